"""One training in several processes, as `torchrun -m models.train …` starts them.

    torchrun --nproc-per-node 8 -m models.train lfa --data stories --out runs/lfa
    torchrun --nproc-per-node 8 -m models.train lfa --data stories --out runs/lfa --parallel fsdp
    torchrun --nproc-per-node 2 -m models.train --resume --out runs/lfa        on another number of processes

A step of n processes trains on the windows of the same step of one: each takes the n-th part of the batch, gradients
are averaged over all of them (torch's DistributedDataParallel, or FSDP2), clipping sees the whole gradient, and the
log has means over all. So n processes with `--accumulate a` do what one does with `--accumulate n·a`, up to the order
in which floating-point numbers are added. Dropout and HDPL's noise are drawn by each process for its own windows: with
them runs on other numbers of processes agree in distribution only; on the same number they repeat exactly.

Process 0 writes the run folder, samples, and holds the model that is evaluated. Backends: nccl for tensors on CUDA,
gloo for those in memory, among them the stop signal, so that asking whether to stop never waits for a GPU.
"""

import base64
import contextlib
import copy
import datetime
import inspect
import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from streamscope.cli.disk import Config, State, read_json, write_text
from streamscope.cli.errors import InputError
from streamscope.models.training.config import Training
from streamscope.models.training.optim import Optimizers
from streamscope.models.training.run import Run

WAIT = datetime.timedelta(hours=1)
"""How long the others wait for process 0 to evaluate, sample and save."""


class Ranks:
    """The processes of a training, of which this is one. The default is a process alone: nothing is communicated."""

    def __init__(self, rank: int = 0, size: int = 1, sharded: bool = False) -> None:
        self.rank, self.size, self.sharded = rank, size, sharded
        self._sync: Callable[[bool], Any] = lambda on: contextlib.nullcontext()
        self._trained: nn.Module | None = None
        self._parameters: list[nn.Parameter] = []

    @property
    def leader(self) -> bool:
        """Whether this process writes."""
        return self.rank == 0

    def check(self, training: Training, batch: int) -> None:
        """Raise `InputError` for what cannot be dealt out to these processes."""
        parts = training.accumulate * self.size
        if batch % parts:
            raise InputError(
                f"a batch of {batch} sequences is not divisible by {self.size} processes × {training.accumulate} "
                "micro-batches: change --batch-size or --nproc-per-node"
            )
        if training.compile == "step" and self.size > 1:
            raise InputError("--compile step is for one process: take --compile blocks")
        if self.sharded and training.compile != "off":
            raise InputError("--parallel fsdp shards blocks as they are called, uncompiled: leave out --compile")
        if self.sharded and training.optimizer == "muon":
            raise InputError("Muon orthogonalises whole matrices, which --parallel fsdp cuts up: take --parallel ddp")

    # ---- who trains on what ----------------------------------------------------------------------

    def mine(self, order: Any) -> Any:
        """This process' part of the windows of a step: the rank-th of `size` equal slices."""
        share = len(order) // self.size
        return order[self.rank * share : (self.rank + 1) * share]

    def share(self, chunks: Iterable[Any]) -> list[Any]:
        """The chunks of an evaluation that this process does; all of them on process 0 where the model is sharded."""
        found = list(chunks)
        if self.sharded:
            return found if self.leader else []
        return found[self.rank :: self.size]

    def seed_noise(self, seed: int) -> None:
        """Seed dropout and HDPL's noise: process 0 as a training alone, the others apart from it and each other."""
        torch.manual_seed(seed if self.leader else (seed * 1_000_003 + self.rank) % 2**63)

    # ---- the model -------------------------------------------------------------------------------

    def loss_of(self, model: Any, blocks: Any) -> Callable[[Tensor, Tensor], Any]:
        """What computes the training loss of `model`; gradients come out averaged over the processes.

        Sharded, a copy of the model is trained and `trained` is that copy; `refresh` brings its weights back.
        """
        self._trained, self._parameters = model, []
        if not self.sharded and self.size == 1:
            return lambda tokens, targets: model.loss(tokens, targets, blocks=blocks)
        wrapped = _Loss(model, blocks)
        if self.sharded:
            return self._shard(wrapped)

        device = next(model.parameters()).device
        known = inspect.signature(DistributedDataParallel).parameters
        buffers = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"  # constants, all
        options: dict[str, Any] = {buffers: False, "device_ids": [device] if device.type == "cuda" else None}
        ddp = DistributedDataParallel(wrapped, **options)
        self._sync = lambda on: contextlib.nullcontext() if on else ddp.no_sync()
        return ddp

    def _shard(self, wrapped: "_Loss") -> Callable[[Tensor, Tensor], Any]:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        whole, wrapped.blocks = wrapped.model, None
        device = next(whole.parameters()).device
        mesh = init_device_mesh(device.type, (self.size,))
        # a block may return a view; nothing here changes one in place
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module", category=UserWarning)
        self._trained = wrapped.model = copy.deepcopy(whole)
        if not self.leader:
            whole.to("meta")  # nobody looks at it there
        for block in wrapped.model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(wrapped, mesh=mesh)
        module: Any = wrapped  # fully_shard made it an FSDPModule
        self._sync = lambda on: contextlib.nullcontext(module.set_requires_gradient_sync(on))
        return wrapped

    @property
    def trained(self) -> nn.Module:
        """The model whose parameters the optimiser changes."""
        assert self._trained is not None, "loss_of comes first"
        return self._trained

    def syncing(self, last: bool) -> Any:
        """A context for the backward pass of a micro-batch: gradients travel with the last one of a step only."""
        return self._sync(last)

    def clip(self, largest: float) -> Tensor:
        """The norm of the whole gradient, over all parameters and shards; the gradient is scaled down to `largest`."""
        if not self._parameters:  # collecting them takes as long as their norms
            self._parameters = list(self.trained.parameters())
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, largest)
        return _whole(norm)

    def refresh(self, model: nn.Module) -> None:
        """Copy the sharded weights into `model` on process 0, where it is evaluated and saved from."""
        if not self.sharded:
            return
        with torch.no_grad():
            own = model.state_dict()
            for name, value in self.trained.state_dict().items():
                whole = _whole(value)
                if self.leader:
                    own[name].copy_(whole)

    # ---- agreeing --------------------------------------------------------------------------------

    def mean(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Means over the processes of scalars, which are the same for all of them afterwards."""
        if self.size == 1:
            return values
        stacked = torch.stack([value.detach().float() for value in values.values()])
        torch.distributed.all_reduce(stacked)
        return dict(zip(values, stacked / self.size, strict=True))

    def sum(self, *values: float) -> list[float]:
        """Sums over the processes."""
        return list(values) if self.size == 1 else self.total(torch.tensor(values, dtype=torch.float64)).tolist()

    def total(self, values: Tensor) -> Tensor:
        """Sums over the processes of numbers in memory."""
        if self.size > 1:
            torch.distributed.all_reduce(values)
        return values

    def any(self, flag: bool) -> bool:
        """Whether one of the processes says so; so that a signal to one stops all at the same step."""
        return flag if self.size == 1 else self.sum(float(flag))[0] > 0

    def wait(self) -> None:
        """Until all are here."""
        self.sum(0.0)

    @contextlib.contextmanager
    def leader_first(self) -> Iterator[None]:
        """What one process does for all, as filling a cache: the others begin when process 0 is through.

        Where that raises, the others leave without a word: it says what is wrong.
        """
        if not self.leader and self.any(False):
            sys.exit(2)
        try:
            yield
        except BaseException:
            if self.leader:
                self.any(True)
            raise
        if self.leader:
            self.any(False)

    def close(self) -> None:
        """Leave the group."""
        if self.size > 1 and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()

    # ---- the run folder --------------------------------------------------------------------------

    def run(self, run: Run) -> Run:
        """`run` for process 0, and for the others one that reads the folder but writes nothing."""
        return run if self.leader else _Reader(run.folder)

    def noise_states(self) -> dict[str, str]:
        """The random states of the processes but the first, by rank, as text for a checkpoint."""
        if self.size == 1:
            return {}
        states: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(states, base64.b64encode(_noise_state().numpy().tobytes()).decode())
        return {str(rank): state for rank, state in enumerate(states) if rank}

    def restore_noise(self, states: dict[str, str], seed: int, step: int) -> None:
        """This process' state of `noise_states`, or a fresh one of that step where there were fewer processes."""
        if self.leader:
            return  # its state is the checkpoint's own
        found = states.get(str(self.rank))
        if found is None:
            self.seed_noise(seed + 7919 * step)
        else:
            _set_noise_state(torch.tensor(list(base64.b64decode(found)), dtype=torch.uint8))


def ranks(device: str, parallel: str = "ddp") -> tuple[Ranks, str]:
    """(the processes that torchrun started, the device of this one); a process alone where it started none.

    `device` is cpu or cuda; each process takes the CUDA device of its local rank. Raises `InputError` for more
    processes on a machine than it has GPUs.
    """
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return Ranks(), device
    local, rank, size = (int(os.environ[name]) for name in ("LOCAL_RANK", "RANK", "WORLD_SIZE"))
    if device.startswith("cuda"):
        if local >= torch.cuda.device_count():
            raise InputError(
                f"{local + 1} processes for {torch.cuda.device_count()} CUDA devices: lower --nproc-per-node"
            )
        device = f"cuda:{local}"
        torch.cuda.set_device(local)
    if not torch.distributed.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo"
        torch.distributed.init_process_group(backend, timeout=WAIT)
    return Ranks(rank, size, parallel == "fsdp"), device


class _Loss(nn.Module):
    """The training loss as a module's forward pass, which is what torch's wrappers hook into."""

    def __init__(self, model: Any, blocks: Any) -> None:
        super().__init__()
        self.model, self.blocks = model, blocks

    def forward(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return self.model.loss(tokens, targets, blocks=self.blocks)


class _Reader(Run):
    """The run folder of a process that is not to write."""

    def open_metrics(self, step: int) -> None: ...
    def log(self, step: int, kind: str, **values: Any) -> None: ...
    def log_rows(self, step: int, kind: str, rows: list[dict[str, Any]]) -> None: ...
    def lock(self) -> None: ...
    def save_model(self, weights: Mapping[str, Tensor], step: int) -> str:
        return ""

    def save_final(self, weights: Mapping[str, Tensor], step: int) -> str:
        return ""

    def save_snapshot(self, model: nn.Module, step: int, dtype: str) -> None: ...
    def finish(self, outcome: str, seconds: float, **values: Any) -> None: ...


def _noise_state() -> Tensor:
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else torch.empty(0, dtype=torch.uint8)
    return torch.cat([torch.get_rng_state(), cuda])


def _set_noise_state(state: Tensor) -> None:
    n = len(torch.get_rng_state())
    torch.set_rng_state(state[:n].clone())
    if torch.cuda.is_available() and len(state) > n:
        torch.cuda.set_rng_state(state[n:].clone())


# ---- sharded checkpoints -----------------------------------------------------------------------
#
# RUN/sharded/step-000200/       torch.distributed.checkpoint: every process writes its own part
# RUN/sharded/step-000200.json   step, configuration and state of the loop; written last, it makes the folder count
#
# torch pickles the index of such a folder. Only --resume reads it, in a run folder of one's own; `models.load` never.


def save_sharded(
    folder: Path, ranks: Ranks, optimizer: Optimizers, step: int, state: dict[str, Any], *, keep: int = 2
) -> None:
    """Write weights, moments and random states, each process its own part; the last `keep` checkpoints stay."""
    import torch.distributed.checkpoint as dcp

    out = folder / "sharded" / f"step-{step:06d}"
    if ranks.leader:
        shutil.rmtree(out, ignore_errors=True)  # of a process that was killed while it wrote
        out.parent.mkdir(exist_ok=True)
    ranks.wait()
    tensors = _tensors(ranks, optimizer) | {f"rng.{ranks.rank}": _noise_state()}
    with _one_process():
        dcp.save(tensors, checkpoint_id=out, no_dist=ranks.size == 1)
    if ranks.leader:
        config = json.dumps(read_json(folder / "config.json", Config), sort_keys=True)
        write_text(out.with_suffix(".json"), json.dumps({"step": step, "config": config, "state": state}))
        for old in sorted(out.parent.glob("step-*.json"))[:-keep]:
            old.unlink()
            shutil.rmtree(old.with_suffix(""), ignore_errors=True)
    ranks.wait()


def load_sharded(
    folder: Path, ranks: Ranks, model: nn.Module, optimizer: Optimizers, seed: int
) -> tuple[int, dict[str, Any]]:
    """(step, state) of the last whole checkpoint, read by as many processes as there are now; one needs no torchrun.

    Raises `InputError` where there is none, and for one of another configuration.
    """
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException  # no Exception, but a BaseException

    found = sorted((folder / "sharded").glob("step-*.json"))
    if not found:
        raise InputError(f"{folder} saved no sharded checkpoint yet; train it again into a new folder")
    about, path = read_json(found[-1], State), found[-1].with_suffix("")
    if about["config"] != json.dumps(read_json(folder / "config.json", Config), sort_keys=True):
        raise InputError(f"{found[-1]} is a checkpoint of another configuration than {folder / 'config.json'}")
    saved: Any = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    moments: dict[int, dict[str, Tensor]] = {}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for name, entry in saved.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".", 2)
            p = parameters[int(index)].detach()
            like = torch.zeros_like(p) if entry.size == p.shape else torch.zeros(entry.size)
            moments.setdefault(int(index), {})[key] = like
    wanted = {f"model.{k}": v.detach() for k, v in ranks.trained.state_dict().items()}
    _same_names(wanted, saved, path)
    wanted |= {f"optimizer.{i}.{key}": v for i, one in moments.items() for key, v in one.items()}
    own = f"rng.{ranks.rank}"
    if own in saved:
        wanted[own] = torch.empty(saved[own].size, dtype=torch.uint8)
    try:
        with _one_process():
            dcp.load(wanted, checkpoint_id=path, no_dist=ranks.size == 1)
    except (Exception, CheckpointException) as error:
        raise InputError(f"{path} is damaged ({str(error).splitlines()[0]}); delete it with its .json") from None
    optimizer.load_state(moments)
    if own in saved:
        _set_noise_state(wanted[own])
    else:
        ranks.seed_noise(seed + 7919 * int(about["step"]))
    ranks.refresh(model)
    return int(about["step"]), about["state"]


@contextlib.contextmanager
def _one_process() -> Iterator[None]:
    """Without torch's remark that one process saves alone: that is meant."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        yield


def _tensors(ranks: Ranks, optimizer: Optimizers) -> dict[str, Tensor]:
    tensors = {f"model.{k}": v.detach() for k, v in ranks.trained.state_dict().items()}
    for i, moments in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{i}.{k}": torch.as_tensor(v) for k, v in moments.items()}
    return tensors


def _same_names(wanted: dict[str, Tensor], saved: Any, path: Path) -> None:
    there = {name for name in saved if name.startswith("model.")}
    if strange := sorted(wanted.keys() ^ there) or [n for n in wanted if saved[n].size != wanted[n].shape]:
        raise InputError(f"{path} belongs to another configuration: {strange[0].removeprefix('model.')}")


def _whole(tensor: Tensor) -> Tensor:
    """The tensor, put together where FSDP2 left a part of it on each process: a DTensor, which takes a second to import
    and which no training without FSDP2 has seen."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
