"""Distributes one training over several processes, started by `torchrun -m models.train …`.

    torchrun --nproc-per-node 8 -m models.train lfa --data stories --out runs/lfa
    torchrun --nproc-per-node 8 -m models.train lfa --data stories --out runs/lfa --parallel fsdp
    torchrun --nproc-per-node 2 -m models.train --resume --out runs/lfa        with another number of processes

Each process takes an n-th of every batch, gradients are averaged (torch's DistributedDataParallel, or FSDP2), clipping
uses the whole gradient, and the log has means over all processes. So n processes with `--accumulate a` equal one with
`--accumulate n·a`, up to the order of floating-point sums. Each process draws dropout and HDPL's noise for its own
windows: with noise, runs on different numbers of processes agree only in distribution.

Process 0 writes the run folder, samples, and holds the model that is evaluated. Tensors on CUDA use nccl, tensors in
memory gloo. The stop signal is in memory, so that checking it never waits for a GPU.
"""

import base64
import contextlib
import copy
import datetime
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from streamscope.cli.errors import InputError
from streamscope.models.training.config import Training

WAIT = datetime.timedelta(hours=1)
"""Time that the others wait while process 0 evaluates, samples and saves."""


class Ranks:
    """The processes of a training, seen from one of them. The default is a single process without communication."""

    def __init__(self, rank: int = 0, size: int = 1, sharded: bool = False) -> None:
        self.rank, self.size, self.sharded, self.leader = rank, size, sharded, rank == 0
        self.syncing: Callable[[bool], Any] = lambda last: contextlib.nullcontext()
        """Context for the backward pass of a micro-batch; only the last one of a step exchanges gradients."""
        self.trained_model: nn.Module
        """The model that `loss_of` trains; with sharding a copy."""

    def check(self, training: Training, batch: int) -> None:
        """Raise `InputError` for options that these processes cannot share."""
        parts = training.accumulate * self.size
        if batch % parts:
            raise InputError(
                f"a batch of {batch} sequences is not divisible by {self.size} processes × {training.accumulate} "
                "micro-batches: change --batch-size or --nproc-per-node"
            )
        if training.compile == "step" and self.size > 1:
            raise InputError("--compile step needs a single process: use --compile blocks")
        if self.sharded and training.compile != "off":
            raise InputError("--parallel fsdp needs uncompiled blocks: leave out --compile")
        if self.sharded and training.optimizer == "muon":
            raise InputError("Muon orthogonalises whole matrices, but --parallel fsdp splits them: use --parallel ddp")

    def own_part(self, order: Any) -> Any:
        share = len(order) // self.size
        return order[self.rank * share : (self.rank + 1) * share]

    def share(self, chunks: Iterable[Any]) -> list[Any]:
        """The chunks that this process evaluates; with a sharded model, process 0 evaluates all."""
        every = list(chunks)
        if self.sharded:
            return every if self.leader else []
        return every[self.rank :: self.size]

    def seed_noise(self, seed: int) -> None:
        """Seed dropout and HDPL's noise, of process 0 as without others."""
        torch.manual_seed(seed if self.leader else (seed * 1_000_003 + self.rank) % 2**63)

    def loss_of(self, model: Any, blocks: Any) -> Callable[[Tensor, Tensor], Any]:
        """A function for the training loss of `model`, whose gradients are averaged over the processes. With sharding,
        `trained_model` is a copy of the model, and `refresh` copies its weights back."""
        self.trained_model, wrapped = model, _Loss(model, blocks)
        if self.sharded:
            return self._shard(wrapped)
        if self.size == 1:
            return wrapped
        device = next(model.parameters()).device
        names = inspect.signature(DistributedDataParallel).parameters.keys()
        buffers = next(name for name in ("forward_sync_buffers", "broadcast_buffers") if name in names)  # are constant
        options: dict[str, Any] = {buffers: False, "device_ids": [device] if device.type == "cuda" else None}
        ddp = DistributedDataParallel(wrapped, **options)
        self.syncing = lambda last: contextlib.nullcontext() if last else ddp.no_sync()
        return ddp

    def _shard(self, wrapped: "_Loss") -> Callable[[Tensor, Tensor], Any]:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        full_model, wrapped.blocks = wrapped.model, None
        device = next(full_model.parameters()).device
        mesh = init_device_mesh(device.type, (self.size,))
        # a block may return a view; nothing here changes one in place
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module", category=UserWarning)
        self.trained_model = wrapped.model = copy.deepcopy(full_model)
        if not self.leader:
            full_model.to("meta")  # it is not used there
        for block in wrapped.model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(wrapped, mesh=mesh)
        module: Any = wrapped  # now an FSDPModule
        self.syncing = lambda last: contextlib.nullcontext(module.set_requires_gradient_sync(last))
        return wrapped

    def clip(self, largest: float) -> Tensor:
        """Scale the whole gradient down to norm `largest`; returns its norm over all parameters and shards."""
        return _whole(torch.nn.utils.clip_grad_norm_(self._parameters, largest))

    @cached_property
    def _parameters(self) -> list[nn.Parameter]:
        return list(self.trained_model.parameters())  # collecting them takes as long as their norms

    def refresh(self, model: nn.Module) -> None:
        """Copy the sharded weights into `model` on process 0, which evaluates and saves it."""
        state = model.state_dict()
        for name, value in self.trained_model.state_dict().items() if self.sharded else ():
            full_value = _whole(value)
            if self.leader:
                state[name].copy_(full_value)

    def whole(self, moments: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
        """The moments of the optimiser without shards, in memory; {} in processes that do not write them."""
        if not self.sharded:
            return moments
        full = {i: {key: torch.as_tensor(_whole(x)).cpu() for key, x in m.items()} for i, m in moments.items()}
        return full if self.leader else {}

    def mean(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Means of scalars over the processes, equal in all of them."""
        if self.size == 1:
            return values
        stacked = torch.stack([value.detach().float() for value in values.values()])
        torch.distributed.all_reduce(stacked)
        return dict(zip(values, stacked / self.size, strict=True))

    def total(self, values: Tensor) -> Tensor:
        """Sum a tensor in memory over the processes, in place."""
        if self.size > 1:
            torch.distributed.all_reduce(values)
        return values

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process, so that a signal to one stops all at the same step."""
        return bool(self.total(torch.tensor(float(flag))) > 0)

    @contextlib.contextmanager
    def leader_first(self) -> Iterator[None]:
        """Let process 0 run the block before the others, for example to fill a cache. If it raises there, the others
        exit silently, because process 0 prints the error."""
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
        if self.size > 1 and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()

    def noise_states(self) -> dict[str, str]:
        """Random states of all processes except the first, by rank, as text for a checkpoint."""
        if self.size == 1:
            return {}
        cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else torch.empty(0, dtype=torch.uint8)
        own_state = torch.cat([torch.get_rng_state(), cuda]).numpy().tobytes()
        states: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(states, base64.b64encode(own_state).decode())
        return {str(rank): state for rank, state in enumerate(states) if rank}

    def restore_noise(self, states: dict[str, str], seed: int, step: int) -> None:
        """Restore this process' state of `noise_states`, or seed a new one if there were fewer processes."""
        if self.leader:
            return  # the checkpoint itself holds its state
        state = states.get(str(self.rank))
        if state is None:
            self.seed_noise(seed + 7919 * step)
        else:
            noise, n = torch.tensor(list(base64.b64decode(state)), dtype=torch.uint8), len(torch.get_rng_state())
            torch.set_rng_state(noise[:n].clone())
            if torch.cuda.is_available() and len(noise) > n:
                torch.cuda.set_rng_state(noise[n:].clone())


def ranks(device: str, parallel: str = "ddp") -> tuple[Ranks, str]:
    """(processes started by torchrun, device of this one): with CUDA, that of its local rank."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return Ranks(), device
    local, rank, size = (int(os.environ[name]) for name in ("LOCAL_RANK", "RANK", "WORLD_SIZE"))
    if device.startswith("cuda"):
        if local >= (n := torch.cuda.device_count()):
            raise InputError(f"{local + 1} processes for {n} CUDA devices: lower --nproc-per-node")
        device = f"cuda:{local}"
        torch.cuda.set_device(local)
    if not torch.distributed.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo"
        torch.distributed.init_process_group(backend, timeout=WAIT)
    return Ranks(rank, size, parallel == "fsdp"), device


class _Loss(nn.Module):
    """The training loss as a module, which torch's wrappers need."""

    def __init__(self, model: Any, blocks: Any) -> None:
        super().__init__()
        self.model, self.blocks = model, blocks

    def forward(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return self.model.loss(tokens, targets, blocks=self.blocks)


def _whole(tensor: Tensor) -> Tensor:
    """Assemble a tensor that FSDP2 shards (a DTensor, whose import takes a second; so it is not imported here)."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def split_like(value: Tensor, like: Any) -> Tensor:
    """A whole tensor as shards where `like` is sharded (a DTensor), else `value` itself."""
    if not hasattr(like, "device_mesh"):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(like.device, like.dtype), like.device_mesh, like.placements)
