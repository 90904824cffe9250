"""The training loop of one model with one optimiser.

After a kill, `resume` continues from the last checkpoint to the same weights, bit for bit (eager CPU): the data order
depends only on (seed, step), and the checkpoint holds weights, moments, random state and the running means of the log.
"""

import bisect
import contextlib
import itertools
import math
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Literal

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.cli.provenance import peak_resident_bytes
from streamscope.cli.terminal import visible
from streamscope.models.checkpoint import write_snapshot
from streamscope.models.flops import peak_flops, training_flops_per_token
from streamscope.models.generate import generate
from streamscope.models.mixing import has_mixing, inert_modules, measure, no_mixing_message
from streamscope.models.readout import IGNORE
from streamscope.models.tensors import keep_memory
from streamscope.models.training.config import Phase, Training, phases_of, snapshot_steps
from streamscope.models.training.lora import merged
from streamscope.models.training.optim import lr_factor, make_optimizer, set_lr, store_parameters
from streamscope.models.training.parallel import Ranks
from streamscope.models.training.run import Run, load_checkpoint, none_yet, save_checkpoint
from streamscope.models.transformer import StreamTransformer
from streamscope.text.windows import MixedWindows, Windows, epoch_order

BF16_WIDTH = 96
"""Narrowest model for which bf16 autocast is used on a CPU that has bf16 instructions."""


def fastest_dtype(device: str, d_model: int) -> Literal["fp32", "bf16"]:
    """The dtype of matrix products for --dtype auto: bf16 on CUDA, and from a width of `BF16_WIDTH` on a CPU with bf16
    instructions (AVX-512 BF16), else fp32.

    A step in bf16 took 5 to 17 times as long as in fp32 on a CPU without them (EPYC with AVX2, widths 32 to 128), and
    with them 1 to 2/3 of it at width 96, 1/2 at 192 and 1/3 at 384.
    """
    fast = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)  # not part of torch's public interface
    return "bf16" if torch.device(device).type == "cuda" or (d_model >= BF16_WIDTH and fast()) else "fp32"


Batch = tuple[Tensor, Tensor]


def gather_ahead(
    gather: Callable[[Any], Batch], order: Iterator[Any], *, ahead: int = 3, pin: bool = False
) -> Generator[Batch, None, None]:
    """Yield gather(indices) for each `indices` of `order`; a thread, which `close` ends, gathers up to `ahead` batches
    in advance. With `pin` the tensors lie in page-locked memory, from which a GPU copies without blocking the host."""

    def work(indices: Any) -> Batch:
        tokens, targets = gather(indices)
        return (tokens.pin_memory(), targets.pin_memory()) if pin else (tokens, targets)

    pool = ThreadPoolExecutor(1, thread_name_prefix="batches")
    try:
        waiting = deque(pool.submit(work, indices) for indices in itertools.islice(order, ahead))
        while waiting:
            batch = waiting.popleft().result()
            waiting.extend(pool.submit(work, indices) for indices in itertools.islice(order, 1))
            yield batch
    finally:
        pool.shutdown(cancel_futures=True)


class Progress(Bar):
    """Step, loss, tokens per second and time left: a bar on a terminal or in a notebook, about twenty lines if standard
    error is a file, nothing without `shown`."""

    def __init__(self, steps: int, first: int = 0, shown: bool = True) -> None:
        console = Console(file=sys.stderr, quiet=not shown)
        super().__init__(
            "training", BarColumn(), MofNCompleteColumn(),
            "loss {task.fields[loss]:.4f}  {task.fields[rate]:,.0f} tokens/s", TimeElapsedColumn(), "left",
            TimeRemainingColumn(), console=console,
            disable=not shown or not (console.is_terminal or console.is_jupyter),
        )  # fmt: skip
        self.steps, self.every = steps, max(1, steps // 20)
        self.lines = first // self.every
        self.task = self.add_task("training", total=steps, completed=first, loss=float("nan"), rate=0.0)

    def move(self, step: int, loss: float, rate: float) -> None:
        self.update(self.task, completed=step, loss=loss, rate=rate)
        if self.disable and step // self.every > self.lines:
            self.lines = step // self.every
            self.say(f"step {step}/{self.steps}: loss {loss:.4f}, {rate:,.0f} tokens/s")

    def say(self, text: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # a closed pipe must not end a training
            self.console.print(visible(text), highlight=False, markup=False, soft_wrap=True)


class Stopped(Exception):
    """Training ended early; the message gives the reason and the remedy."""


class Trainer:
    """The state of a training. `fit` runs to the end, to a signal, or to a loss that is not finite.

    `train` and `valid` are windows: of a text, a mixture or pairs (`batch(indices)` gives inputs and targets [B, T]).
    """

    def __init__(
        self, model: StreamTransformer, training: Training, train: Any, valid: Any, run: Run, device: str,
        ranks: Ranks | None = None,
    ) -> None:  # fmt: skip
        if training.dtype == "auto":
            training = replace(training, dtype=fastest_dtype(device, model.config.d_model))
        self.model, self.training, self.train, self.valid, self.run = model.to(device), training, train, valid, run
        self.device, self.ranks = torch.device(device), ranks or Ranks()
        if training.compile == "step" and self.device.type != "cuda":
            raise InputError("--compile step needs a CUDA device (a CPU's is not deterministic): give --compile blocks")
        self.batch = training.batch_size or 1
        self.ranks.check(training, self.batch)
        store_parameters(model, training)
        self.blocks = [torch.compile(b.forward) for b in model.blocks] if training.compile == "blocks" else None
        self.loss = self.ranks.loss_of(model, self.blocks)
        if training.compile == "step":
            self.loss = compiled_loss(model)
        self.optimizer = make_optimizer(self.ranks.trained_model, training)
        if len(train) < self.batch:
            raise InputError(f"the data has {len(train)} windows, but one batch needs {self.batch}: lower --batch-size")
        self.steps = training.steps or math.ceil((training.epochs or 1.0) * self.per_epoch)
        self.phases = self._phases()
        self.snapshots = set(snapshot_steps(training.snapshots, self.steps))
        self.step = 0
        self.best = math.inf
        self.window: dict[str, float] = {}
        self.mean_loss: float | None = None  # running mean for the progress bar
        self.pending: list[dict[str, Tensor | float]] = []  # of `update`: reading a value waits for the device
        self.seconds, self.tokens, self.flops = 0.0, 0, 0.0  # of the steps since the last log row
        self.positions = 0  # of the last step's batch, with padding
        self.feed: Iterator[Batch] | None = None
        self._stop = False
        self._mixes, self._warned = has_mixing(model), False

    @property
    def per_epoch(self) -> int:
        """Steps per epoch; windows that do not fill the last batch are left out."""
        return len(self.train) // self.batch

    def _phases(self) -> list[Phase]:
        """The phases of the run, one by default. Raises `InputError` for impossible ones."""
        context, phases = self.model.config.n_ctx, list[Phase]()
        for phase in phases_of(self.training.phases):
            if not isinstance(self.train, Windows | MixedWindows):
                raise InputError("phases need a training on text: leave out --phases")
            if phase.n_ctx > context:
                raise InputError(f"a phase has {phase.n_ctx} tokens, but the model's context is {context}")
            self.ranks.check(self.training, phase.batch_size)
            if phase.weights is not None and isinstance(self.train, Windows):
                raise InputError("weights in --phases need a mixture: give --data with parts, A*.5 + B*.5")
            windows = self.train.at(phase.n_ctx, *([] if phase.weights is None else [phase.weights]))
            if len(windows) < phase.batch_size:
                raise InputError(f"the data has {len(windows)} windows, but a phase's batch needs {phase.batch_size}")
            phases.append(phase._replace(windows=windows))
        phases = phases or [Phase(0, self.steps, self.batch, getattr(self.train, "n_ctx", context), None, self.train)]
        return [p._replace(flops=sum(training_flops_per_token(self.model, p.n_ctx).values())) for p in phases]

    def phase(self, step: int) -> int:
        return bisect.bisect_right(self.phases, step, key=lambda phase: phase.first) - 1

    def indices(self, step: int) -> Any:
        """Windows of a step: a slice of the epoch's permutation, or the draws of a mixture. Every phase starts its own
        order, the first that of a run without phases."""
        number = self.phase(step)
        phase, seed = self.phases[number], self.training.seeds["data"]
        if isinstance(phase.windows, MixedWindows):
            return phase.windows.draw(seed, (step - phase.first) * phase.batch_size, phase.batch_size, number)
        epoch, place = divmod(step - phase.first, len(phase.windows) // phase.batch_size)
        if getattr(self, "_epoch", None) != (number, epoch):
            self._epoch, self._order = (number, epoch), epoch_order(len(phase.windows), seed, epoch, number)
        return self._order[place * phase.batch_size : (place + 1) * phase.batch_size]

    def autocast(self) -> Any:
        """bf16 autocast with --dtype bf16.

        Weights, gradients, moments, the residual stream and its norms are fp32. Under autocast, matrix products and
        attention are bf16 with fp32 sums; the softmax of the loss, hyper-connection coefficients, RoPE tables and KL
        are fp32. With --dtype fp32, and in every analysis, products are true fp32: TF32 is never used.
        """
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.training.dtype == "bf16")

    def update(self) -> dict[str, Tensor | float]:
        """Run one optimiser step; returns its losses (means over all its targets) on the device. It waits for a GPU
        only to check for finite values, at steps that log or save."""
        t = self.training
        assert t.lr_floor is not None, "with_recipe fills it"
        if not self.ranks.trained_model.training:  # .train() visits hundreds of modules
            self.ranks.trained_model.train()
        lr = set_lr(self.optimizer, lr_factor(self.step, self.steps, t.warmup or 0, t.lr_floor))
        sums: dict[str, Tensor] = {}
        windows = self.phases[self.phase(self.step)].windows
        batches = list(itertools.islice(self.feed or map(windows.batch, self.micro_batches(self.step)), t.accumulate))
        self.positions = self.ranks.size * sum(tokens.numel() for tokens, _ in batches)
        for i, (batch, (of_targets, of_places)) in enumerate(zip(batches, self._shares(batches), strict=True)):
            tokens, targets = self._move(batch)
            with self.ranks.syncing(i == t.accumulate - 1):
                with self.autocast():
                    loss, parts = self.loss(tokens, targets)
                of_targets, of_places = of_targets.to(loss.dtype), of_places.to(loss.dtype)
                loss = loss * of_targets
                if "kl" in parts:
                    loss = loss + parts["kl"] * (of_places - of_targets)
                loss.backward()
            scaled = {k: v.detach() * (of_places if k.startswith("kl") else of_targets) for k, v in parts.items()}
            for name, value in {"loss": loss.detach(), **scaled}.items():
                sums[name] = sums.get(name, 0.0) + value
        sums, norm = self.ranks.mean(sums), self.ranks.clip(t.clip or math.inf)
        step = self.step + 1
        due = step in {self.steps, *self.snapshots} or 0 in (step % t.log_every, step % t.checkpoint_every)
        if (due or self.device.type == "cpu") and not torch.isfinite(sums["loss"]) & torch.isfinite(norm):
            raise Stopped(self._nan_message(float(sums["loss"]), float(norm)))
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        return {**sums, "grad_norm": norm, "lr": lr}

    def _shares(self, batches: list[Batch]) -> list[Tensor]:
        """[share of the step's targets, share of its positions] of each micro-batch, times the number of processes.

        A sum over micro-batches, averaged over processes like the gradients, is then a mean over the step's targets;
        for HDPL's KL, which padding also has, a mean over its positions.
        """
        counts = [torch.stack([(targets != IGNORE).sum(), torch.tensor(targets.numel())]) for _, targets in batches]
        total = self.ranks.total(torch.stack(counts).double().sum(0)).clamp(min=1)
        return [self.ranks.size * count.double() / total for count in counts]

    def _nan_message(self, loss: float, norm: float) -> str:
        last = self.run.folder / "checkpoint.safetensors"
        state = f"the last good state is {last}" if last.exists() else "no checkpoint was written yet"
        hint = " or --dtype fp32" if self.training.dtype == "bf16" else ""
        return (
            f"step {self.step + 1}: loss {loss}, gradient norm {norm}: not finite; {state}; "
            f"try a lower --lr, a lower --clip{hint}, and another --out or delete {self.run.folder}"
        )

    def micro_batches(self, step: int) -> list[Any]:
        """This process' windows of each micro-batch of a step, in order."""
        order = self.ranks.own_part(self.indices(step))
        size = len(order) // self.training.accumulate
        return [order[i * size : (i + 1) * size] for i in range(self.training.accumulate)]

    def open_feed(self) -> Generator[Batch, None, None]:
        steps = range(self.step, self.steps)
        order = ((self.phases[self.phase(step)].windows, part) for step in steps for part in self.micro_batches(step))
        return gather_ahead(lambda item: item[0].batch(item[1]), order, pin=self.device.type == "cuda")

    def _move(self, batch: Batch) -> Batch:
        tokens, targets = batch
        return tokens.to(self.device, non_blocking=True), targets.to(self.device, non_blocking=True)

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Mean loss in nats per token over the first windows of the validation part."""
        self.ranks.refresh(self.model)
        self.model.eval()
        sums: list[Tensor] = []
        tokens_seen = 0
        chunk = self.batch // self.training.accumulate
        stop = min(len(self.valid), self.training.eval_batches * self.batch)
        for start in self.ranks.share(range(0, stop, chunk)):
            batch = self.valid.batch(range(start, min(start + chunk, stop)))
            tokens_seen += int((batch[1] != IGNORE).sum())  # before it moves, so that nothing waits for the device
            tokens, targets = self._move(batch)
            with self.autocast():
                sums.append(self.model.token_losses(tokens, targets).sum())
        local_sum = float(sum(torch.stack(sums).tolist())) if sums else 0.0
        total, counted = self.ranks.total(torch.tensor([local_sum, tokens_seen], dtype=torch.float64)).tolist()
        loss = total / counted
        return {"loss": loss, "perplexity": math.exp(min(loss, 700.0)), "tokens": counted}

    def monitor_mixing(self, progress: Progress) -> None:
        """Log the mixing matrices on the first micro-batch of the validation part; warn when streams stop mixing."""
        self.model.eval()
        size = min(len(self.valid), self.batch // self.training.accumulate)
        with self.autocast():
            rows = measure(self.model, *self._move(self.valid.batch(range(size))))
        self.run.log_rows(self.step, "mixing", rows)
        warning = no_mixing_message(rows, inert_modules(self.model))
        if warning and not self._warned:
            progress.say(f"step {self.step}: {warning}")
        self._warned = bool(warning)

    def resume(self) -> None:
        """Load the last checkpoint, or restart a run that was killed before its first one at step 0, and print the
        step. `fit` then drops later rows of metrics.jsonl."""
        with self.run.locked():
            if not none_yet(self.run.folder, self.training.checkpoint_every):
                self.step, state = load_checkpoint(self.run.folder, self.ranks.trained_model, self.optimizer)
                self.ranks.restore_noise(state.get("noise", {}), self.training.seeds["noise"], self.step)
                self.ranks.refresh(self.model)
                self.best, self.window = state["best"] if state["best"] is not None else math.inf, state["window"]
        if self.ranks.leader:
            complete = " (the run is complete)" if self.step == self.steps else ""
            print(f"resuming at step {self.step} of {self.steps}{complete}", file=sys.stderr)

    def fit(self) -> None:
        """Train to the end. Raises `Stopped` on SIGINT, SIGTERM (after saving) and on a loss that is not finite."""
        t, started, outcome, final = self.training, time.perf_counter(), "failed", dict[str, str]()
        first = self.step
        with self.run.locked():
            self.run.open_metrics(first)
        try:
            bar = Progress(self.steps, first, self.ranks.leader)
            with self._signals(), bar as progress, contextlib.closing(self.open_feed()) as self.feed:
                if first == 0:
                    self._snapshot()
                while self.step < self.steps:
                    began = time.perf_counter()
                    values = self.update()
                    if self.step == first + 1 and float(values.get("kl_clamped", 0.0)) == 1.0:
                        progress.say("HDPL: KL clamped on 100 % of tokens: the penalty has no gradient")
                    self.pending.append(values)
                    self._stop = self.ranks.any(self._stop)
                    at_end = self.step == self.steps
                    self._log(progress, began)
                    if self.step % t.eval_every == 0 or at_end:
                        self._evaluate(progress)
                    if t.sample_every and (self.step % t.sample_every == 0 or at_end):
                        self._sample(progress)
                    self._snapshot()  # before the checkpoint, so that none before a checkpoint is missing
                    if self.step % t.checkpoint_every == 0 or at_end or self._stop:
                        self._save()
                    if self._stop and not at_end:
                        raise Stopped(f"stopped at step {self.step} of {self.steps}; saved; --resume continues it")
            final = {"weights": self.run.save_final(merged(self.model), self.step)}
            outcome = "completed"
        except Stopped as stop:
            outcome = str(stop)
            raise
        finally:
            self.feed = None
            self.run.finish(outcome, time.perf_counter() - started, step=self.step, steps=self.steps, **final)

    def _read_values(self) -> None:
        """Add the pending steps to the sums of the next log row; their values leave the device in one transfer."""
        tensors = [value for values in self.pending for value in values.values() if isinstance(value, Tensor)]
        numbers = iter(torch.stack(tensors).tolist() if tensors else [])
        for values in self.pending:
            row = {name: next(numbers) if isinstance(value, Tensor) else value for name, value in values.items()}
            for name, value in {**row, "n": 1.0}.items():
                self.window[name] = self.window.get(name, 0.0) + value
            mean = row["loss"] if self.mean_loss is None else self.mean_loss
            self.mean_loss = 0.9 * mean + 0.1 * row["loss"]
        self.pending.clear()

    def _log(self, progress: Progress, began: float) -> None:
        """At a log step, log the means and the speed since the last row, without evaluations."""
        due = self.step % self.training.log_every == 0 or self.step == self.steps
        if due:
            self._read_values()  # waits for the device, so that the clock below counts all of the work
        self.seconds += time.perf_counter() - began
        self.tokens += self.positions
        self.flops += self.positions * self.phases[self.phase(self.step - 1)].flops
        if not due:
            return
        rate = self.tokens / self.seconds
        progress.move(self.step, self.mean_loss or 0.0, rate)
        n = self.window.pop("n")
        means = {name: value / n for name, value in self.window.items()}
        hardware = self._hardware(self.flops / self.seconds)
        self.run.log(self.step, "train", **means, tokens_per_second=round(rate, 1), **hardware)
        self.window, self.seconds, self.tokens, self.flops = {}, 0.0, 0, 0.0

    def _hardware(self, flops: float) -> dict[str, float]:
        """`peak_memory` in GB, and `mfu` from `flops` per second if the device's peak is known."""
        if self.device.type != "cuda":
            return {"peak_memory": round(peak_resident_bytes() / 1e9, 3)}
        peak = peak_flops(torch.cuda.get_device_name(self.device))
        memory = {"peak_memory": round(torch.cuda.max_memory_allocated(self.device) / 1e9, 3)}
        return memory if peak is None else {"mfu": round(flops / peak / self.ranks.size, 4), **memory}

    def _evaluate(self, progress: Progress) -> None:
        result = self.evaluate()
        self.run.log(self.step, "eval", **result)
        progress.say(f"step {self.step}: validation loss {result['loss']:.4f}")
        if self._mixes and self.ranks.leader:
            self.monitor_mixing(progress)
        self.best = min(self.best, result["loss"])

    def _sample(self, progress: Progress) -> None:
        """Log one continuation of the empty prompt."""
        self.ranks.refresh(self.model)
        if self.ranks.leader:
            self.model.eval()
            tokenizer, new = self.model._text(), min(60, self.model.config.n_ctx - 1)
            (ids,) = generate(self.model, [[tokenizer.bos_id]], max_new_tokens=new, temperature=0.8, seed=self.step)
            text = tokenizer.decode(ids)
            self.run.log(self.step, "sample", text=text)
            progress.say(f"step {self.step}: {text!r}")

    def _snapshot(self) -> None:
        if self.step in self.snapshots:
            self.ranks.refresh(self.model)
            if self.ranks.leader:
                write_snapshot(self.run.folder, merged(self.model), self.step, self.training.snapshot_dtype)

    def _save(self) -> None:
        self._read_values()
        state: dict[str, Any] = {"best": self.best if math.isfinite(self.best) else None, "window": self.window}
        self.ranks.refresh(self.model)
        state["noise"], moments = self.ranks.noise_states(), self.ranks.whole(self.optimizer.state_dict()["state"])
        if self.ranks.leader:
            save_checkpoint(self.run.folder, self.model, moments, self.step, state)
        self.run.save_model(merged(self.model), self.step)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Let SIGINT and SIGTERM stop after the current step; a second signal interrupts at once."""

        def ask(number: int, frame: Any) -> None:
            if self._stop:
                raise KeyboardInterrupt
            self._stop = True

        with contextlib.ExitStack() as stack:
            with contextlib.suppress(ValueError):  # not the main thread: a notebook's kernel handles its own interrupts
                for number in (signal.SIGINT, signal.SIGTERM):
                    stack.callback(signal.signal, number, signal.signal(number, ask))
            yield


def compiled_loss(model: StreamTransformer, backend: str = "inductor") -> Any:
    """Compile `model.loss` to one graph, forward and backward, for one shape of tokens."""
    return torch.compile(model.loss, backend=backend, dynamic=False, fullgraph=True)


def run_to_end(trainer: Trainer) -> None:
    """Run `fit` for a command: print the best loss; exit with 130 after a signal (saved), 1 if a loss is not finite."""
    keep_memory()
    try:
        trainer.fit()
    except Stopped as stop:
        if trainer.ranks.leader:
            print(visible(stop), file=sys.stderr)
        sys.exit(1 if "not finite" in str(stop) else 130)
    finally:
        trainer.ranks.close()
    if trainer.ranks.leader:
        print(visible(f"validation loss {trainer.best:.4f} at best -> {trainer.run.folder}"))
