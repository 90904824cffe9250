"""The training loop: one model, one optimiser, a data order that is a pure function of the seed.

After a kill, `resume` continues from the last checkpoint to the same weights, bit for bit (eager CPU):
the order of the data depends on (seed, step) alone, and weights, moments, random state and the running
means of the log are in the checkpoint.
"""

import bisect
import contextlib
import itertools
import math
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.cli.terminal import visible
from streamscope.models.flops import peak_flops, training_flops_per_token
from streamscope.models.generate import generate
from streamscope.models.mixing import has_mixing, inert_modules, measure, no_mixing_message
from streamscope.models.readout import IGNORE
from streamscope.models.training.checkpoints import Kept, load_checkpoint, none_yet, save_checkpoint
from streamscope.models.training.config import Training, phases_of, snapshot_steps
from streamscope.models.training.feed import Feed
from streamscope.models.training.optim import lr_factor, make_optimizer, set_lr, store_parameters
from streamscope.models.training.parallel import Ranks, load_sharded, save_sharded
from streamscope.models.training.progress import Progress
from streamscope.models.training.run import Run
from streamscope.models.transformer import StreamTransformer
from streamscope.text.mixture import MixedWindows
from streamscope.text.shards import Windows, epoch_order

BF16_WIDTH = 128
"""Narrowest model for which bf16 autocast is used on a CPU."""


@runtime_checkable
class Batches(Protocol):
    """Windows to train on: `text.shards.Windows`, `text.pairs.PairWindows`."""

    def __len__(self) -> int:
        """How many there are."""

    def batch(self, indices: Any) -> tuple[Tensor, Tensor]:
        """Inputs and targets [B, T]; −100 where there is no target."""


class TrainingPhase(NamedTuple):
    """A phase of a run: from step `first`, `batch` windows of `n_ctx` tokens each, at `flops` per token of training."""

    first: int
    batch: int
    n_ctx: int
    windows: Batches
    flops: int


class Stopped(Exception):
    """Training ended early; the message says why and what to do."""


class Trainer:
    """Holds what a step needs. `fit` runs to the end, or to a signal, or to a loss that is not finite."""

    def __init__(
        self,
        model: StreamTransformer,
        training: Training,
        train: Batches,
        valid: Batches,
        run: Run,
        device: str,
        ranks: Ranks | None = None,
    ) -> None:
        self.model, self.training, self.train, self.valid, self.run = model.to(device), training, train, valid, run
        self.device, self.ranks = torch.device(device), ranks or Ranks()
        if training.compile == "step" and self.device.type != "cuda":
            raise InputError(
                "--compile step needs a CUDA device: on a CPU a model compiled as a whole is not repeatable; "
                "give --compile blocks"
            )
        self.batch = training.batch_size or 1
        self.ranks.check(training, self.batch)
        store_parameters(model, training)
        self.blocks = [torch.compile(b.forward) for b in model.blocks] if training.compile == "blocks" else None
        self.loss = self.ranks.loss_of(model, self.blocks)
        if training.compile == "step":
            self.loss = compiled_loss(model)
        self.optimizer = make_optimizer(self.ranks.trained, training)
        if len(train) < self.batch:
            raise InputError(f"the data has {len(train)} windows, one batch needs {self.batch}: lower --batch-size")
        self.steps = training.steps or math.ceil((training.epochs or 1.0) * self.per_epoch)
        self.phases = self._phases()
        self.snapshots = set(snapshot_steps(training.snapshots, self.steps))
        self.step = 0
        self.best = math.inf
        self.kept: Kept | None = None  # with --keep best, the best so far
        self.window: dict[str, float] = {}
        self.shown: float | None = None  # running mean of the loss, for the progress bar
        self.pending: list[tuple[float, list[str], Tensor]] = []  # (rate, names, values) of steps not yet read
        self.seconds = 0.0  # of steps since the last log row
        self.timed = 0  # their tokens
        self.spent = 0.0  # their FLOPs
        self.feed: Feed | None = None
        self._stop = False
        self._mixes, self._still = has_mixing(model), False

    @property
    def per_epoch(self) -> int:
        """Steps in one pass; windows that do not fill a last batch are left out of that epoch."""
        return len(self.train) // self.batch

    # ---- one step ------------------------------------------------------------------------------

    def _phases(self) -> list[TrainingPhase]:
        """The stretches of the run: one, unless phases are declared. Raises `InputError` for those that cannot be."""
        t, model, declared = self.training, self.model, phases_of(self.training.phases)
        if not declared:
            flops = sum(training_flops_per_token(model).values())
            return [TrainingPhase(0, self.batch, model.config.n_ctx, self.train, flops)]
        if not isinstance(self.train, Windows | MixedWindows):
            raise InputError("phases are for training on text: leave --phases out")
        found = []
        for phase in declared:
            if phase.n_ctx > model.config.n_ctx:
                raise InputError(f"a phase of {phase.n_ctx} tokens, the model's context is {model.config.n_ctx}")
            if phase.batch_size % t.accumulate:
                raise InputError(f"{t.accumulate} micro-batches do not divide a phase's batch of {phase.batch_size}")
            self.ranks.check(t, phase.batch_size)
            if isinstance(self.train, MixedWindows):
                windows: Windows | MixedWindows = self.train.at(phase.n_ctx, phase.weights)
            elif phase.weights is None:
                windows = self.train.at(phase.n_ctx)
            else:
                raise InputError("weights in --phases need a mixture: give --data with parts, A*.5 + B*.5")
            if len(windows) < phase.batch_size:
                raise InputError(f"the data has {len(windows)} windows, a phase's batch needs {phase.batch_size}")
            flops = sum(training_flops_per_token(model, phase.n_ctx).values())
            found.append(TrainingPhase(phase.first, phase.batch_size, phase.n_ctx, windows, flops))
        return found

    def phase(self, step: int) -> int:
        """The number of the phase in which step `step` lies."""
        return bisect.bisect_right(self.phases, step, key=lambda phase: phase.first) - 1

    def indices(self, step: int) -> Any:
        """Windows of step `step`: a slice of the epoch's permutation, of a mixture its draws.

        Every phase begins an order of its own; that of the first is that of a run without phases.
        """
        number = self.phase(step)
        phase, seed = self.phases[number], self.training.seed_of("data")
        if isinstance(phase.windows, MixedWindows):
            return phase.windows.drawn(seed, (step - phase.first) * phase.batch, phase.batch, number)
        epoch, place = divmod(step - phase.first, len(phase.windows) // phase.batch)
        if getattr(self, "_epoch", None) != (number, epoch):
            self._epoch, self._order = (number, epoch), epoch_order(len(phase.windows), seed, epoch, number)
        return self._order[place * phase.batch : (place + 1) * phase.batch]

    def autocast(self) -> Any:
        """bf16 on CUDA; on a CPU where the model is wide enough to gain from it.

        What is computed in what, everywhere: weights, gradients, moments, the residual stream and its norms are fp32.
        Under this autocast matrix products and attention are bf16 with fp32 sums; softmax of the loss, hyper-connection
        coefficients, RoPE tables and KL are fp32. Products that are left in fp32 (--dtype fp32, and every analysis) are
        true fp32: TF32, which keeps ten bits of fp32's 23, is never switched on.
        """
        wide = self.device.type == "cuda" or self.model.config.d_model >= BF16_WIDTH
        on = self.training.dtype == "bf16" or (self.training.dtype == "auto" and wide)
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=on)

    def update(self) -> dict[str, Tensor | float]:
        """One optimiser step; returns the losses of the step (means over all its targets), on the device.

        Nothing here waits for a GPU but the check for finite values at the steps that log or save.
        """
        t = self.training
        assert t.lr_floor is not None, "with_recipe fills it"
        if not self.ranks.trained.training:  # it visits hundreds of modules
            self.ranks.trained.train()
        lr = set_lr(self.optimizer, lr_factor(self.step, self.steps, t.warmup or 0, t.lr_floor))
        sums: dict[str, Tensor] = {}
        windows = self.phases[self.phase(self.step)].windows
        batches = list(itertools.islice(self.feed or map(windows.batch, self.micro_batches(self.step)), t.accumulate))
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
        if not self._finite(sums["loss"], norm):
            raise Stopped(self._nan_message(float(sums["loss"]), float(norm)))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return {**sums, "grad_norm": norm, "lr": lr}

    def _shares(self, batches: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
        """(share of the step's targets, share of its positions) of each micro-batch, times the number of processes.

        So a sum over micro-batches, averaged over processes as gradients are, is a mean over the targets of the step;
        of HDPL's KL, which padding has as well, a mean over its positions.
        """
        counts = [((targets != IGNORE).sum().double(), targets.numel()) for _, targets in batches]
        mine = torch.stack([torch.stack([n, torch.tensor(float(places)).double()]) for n, places in counts]).sum(0)
        of_targets, of_places = self.ranks.total(mine).clamp(min=1)
        size = self.ranks.size
        return [(size * n / of_targets, size * places / of_places) for n, places in counts]

    def _finite(self, loss: Tensor, norm: Tensor) -> bool:
        """Checked before the weights change: every step on a CPU, at the log steps on a GPU (a sync)."""
        t = self.training
        due = (self.step + 1) % t.log_every == 0 or (self.step + 1) % t.checkpoint_every == 0
        return not (self.device.type == "cpu" or due) or bool(torch.isfinite(loss) & torch.isfinite(norm))

    def _nan_message(self, loss: float, norm: float) -> str:
        kept = self.run.folder / "checkpoint.safetensors"
        state = f"the last good state is {kept}" if kept.exists() else "no checkpoint was written yet"
        return (
            f"step {self.step + 1}: loss {loss}, gradient norm {norm}: not finite; {state}; "
            "try a lower --lr, a lower --clip or --dtype fp32"
        )

    def micro_batches(self, step: int) -> list[Any]:
        """This process' windows of each micro-batch of step `step`, in order."""
        order = self.ranks.mine(self.indices(step))
        size = len(order) // self.training.accumulate
        return [order[i * size : (i + 1) * size] for i in range(self.training.accumulate)]

    def _fed(self) -> Feed:
        """The micro-batches from the next step to the last, gathered ahead."""
        steps = range(self.step, self.steps)
        order = ((self.phases[self.phase(step)].windows, part) for step in steps for part in self.micro_batches(step))
        return Feed(lambda one: one[0].batch(one[1]), order, pin=self.device.type == "cuda")

    def _move(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        tokens, targets = batch
        return tokens.to(self.device, non_blocking=True), targets.to(self.device, non_blocking=True)

    # ---- looking -------------------------------------------------------------------------------

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Mean loss in nats per token over the first windows of the validation part, weighted by tokens."""
        self.ranks.refresh(self.model)
        self.model.eval()
        sums: list[Tensor] = []
        tokens_seen = 0
        chunk = self.batch // self.training.accumulate
        stop = min(len(self.valid), self.training.eval_batches * self.batch)
        for start in self.ranks.share(range(0, stop, chunk)):
            batch = self.valid.batch(range(start, min(start + chunk, stop)))
            tokens_seen += int((batch[1] != IGNORE).sum())  # before it moves: no wait for the device
            tokens, targets = self._move(batch)
            with self.autocast():
                sums.append(self.model.token_losses(tokens, targets).sum())
        mine = float(sum(torch.stack(sums).tolist())) if sums else 0.0
        total, counted = self.ranks.sum(mine, float(tokens_seen))
        loss = total / counted
        return {"loss": loss, "perplexity": math.exp(min(loss, 700.0)), "tokens": counted}

    def watch(self, progress: Progress) -> None:
        """Log what the mixing matrices do on the first micro-batch of the validation part; warn when streams stop."""
        self.model.eval()
        size = min(len(self.valid), self.batch // self.training.accumulate)
        with self.autocast():
            rows = measure(self.model, *self._move(self.valid.batch(range(size))))
        self.run.log_rows(self.step, "mixing", rows)
        warning = no_mixing_message(rows, inert_modules(self.model))
        if warning and not self._still:
            progress.say(f"step {self.step}: {warning}")
        self._still = bool(warning)

    def sample(self) -> str:
        """One continuation of the empty prompt."""
        self.model.eval()
        tokenizer = self.model.tokenizer
        assert tokenizer is not None
        new = min(60, self.model.config.n_ctx - 1)
        (ids,) = generate(self.model, [[tokenizer.bos_id]], max_new_tokens=new, temperature=0.8, seed=self.step)
        return tokenizer.decode(ids)

    # ---- the whole run -------------------------------------------------------------------------

    def resume(self) -> None:
        """Go back to the last checkpoint; `fit` then drops the rows of metrics.jsonl after it.

        A run that was killed before its first checkpoint starts again from step 0.
        """
        seed = self.training.seed_of("noise")
        with self.run.locked():
            if self.training.parallel == "fsdp":
                self.step, state = load_sharded(self.run.folder, self.ranks, self.model, self.optimizer, seed)
            elif none_yet(self.run.folder, self.training.checkpoint_every):
                return
            else:
                self.step, state, self.kept = load_checkpoint(self.run.folder, self.model, self.optimizer)
                self.ranks.restore_noise(state.get("noise", {}), seed, self.step)
        self.best, self.window = state["best"] if state["best"] is not None else math.inf, state["window"]

    def fit(self) -> None:
        """Train to the end. Raises `Stopped` on SIGINT, SIGTERM (after saving) and on a loss that is not finite."""
        t, started, outcome, final = self.training, time.perf_counter(), "failed", dict[str, str]()
        first = self.step
        with self.run.locked():
            self.run.open_metrics(first)
        try:
            bar = Progress(self.steps, first, self.ranks.leader)
            with self._signals(), bar as progress, contextlib.closing(self._fed()) as self.feed:
                if first == 0:
                    self._snapshot()
                while self.step < self.steps:
                    began = time.perf_counter()
                    values = self.update()
                    if self.step == first + 1 and float(values.get("kl_clamped", 0.0)) == 1.0:
                        progress.say("HDPL: KL clamped on 100 % of tokens: the penalty has no gradient")
                    self._account(values)
                    self._stop = self.ranks.any(self._stop)
                    done = self.step == self.steps
                    self._log(progress, began)
                    if self.step % t.eval_every == 0 or done:
                        self._evaluate(progress)
                    if t.sample_every and (self.step % t.sample_every == 0 or done):
                        self._sample(progress)
                    self._snapshot()  # before the checkpoint: what is behind one is never missing
                    if self.step % t.checkpoint_every == 0 or done or self._stop:
                        self._save()
                    if self._stop and not done:
                        raise Stopped(f"stopped at step {self.step} of {self.steps}; saved; --resume goes on from here")
            kept = self.kept or Kept(self.step, self.model.state_dict())
            final = {"weights": self.run.save_final(kept.weights, kept.step)}
            outcome = "completed"
        except Stopped as stop:
            outcome = str(stop)
            raise
        finally:
            self.feed = None
            self.run.finish(outcome, time.perf_counter() - started, step=self.step, steps=self.steps, **final)

    def _account(self, values: dict[str, Tensor | float]) -> None:
        """Keep the values of a step where they are: reading one would wait for the device."""
        tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
        self.pending.append((float(values["lr"]), list(tensors), torch.stack(list(tensors.values())).detach()))

    def _settle(self) -> None:
        """Read what `_account` kept, in one transfer, and add it to the sums of the next log row."""
        if not self.pending:
            return
        kept = torch.cat([values for *_, values in self.pending]).tolist()
        for lr, names, values in self.pending:
            row = dict(zip(names, kept, strict=False)) | {"lr": lr}
            kept = kept[len(values) :]
            for name, value in row.items():
                self.window[name] = self.window.get(name, 0.0) + value
            self.shown = row["loss"] if self.shown is None else 0.9 * self.shown + 0.1 * row["loss"]
            self.window["n"] = self.window.get("n", 0.0) + 1
        self.pending.clear()

    def _log(self, progress: Progress, began: float) -> None:
        """At a log step: one row of means, and the speed of the steps since the last row, evaluations left out."""
        due = self.step % self.training.log_every == 0 or self.step == self.steps
        if due:
            self._settle()  # waits for the device, so that the clock below has seen the whole work
        self.seconds += time.perf_counter() - began
        phase = self.phases[self.phase(self.step - 1)]
        self.timed += phase.batch * phase.n_ctx
        self.spent += phase.batch * phase.n_ctx * phase.flops
        if not due:
            return
        rate = self.timed / self.seconds
        progress.update(self.step, self.shown or 0.0, rate)
        n = self.window.pop("n")
        means = {name: value / n for name, value in self.window.items()}
        hardware = self._hardware(self.spent / self.seconds)
        self.run.log(self.step, "train", **means, tokens_per_second=round(rate, 1), **hardware)
        self.window, self.seconds, self.timed, self.spent = {}, 0.0, 0, 0.0

    def _hardware(self, flops: float) -> dict[str, float]:
        """`mfu`, from the `flops` per second, where the device's ceiling is known, and the most memory held so far, in
        GB (`peak_memory`)."""
        if self.device.type != "cuda":
            return {"peak_memory": round(peak_resident_bytes() / 1e9, 3)}
        peak = peak_flops(torch.cuda.get_device_name(self.device))
        found = {"peak_memory": round(torch.cuda.max_memory_allocated(self.device) / 1e9, 3)}
        return found if peak is None else {"mfu": round(flops / peak / self.ranks.size, 4), **found}

    def _evaluate(self, progress: Progress) -> None:
        result = self.evaluate()
        self.run.log(self.step, "eval", **result)
        progress.say(f"step {self.step}: validation loss {result['loss']:.4f}")
        if self._mixes and self.ranks.leader:
            self.watch(progress)
        if self.training.keep == "best" and result["loss"] < self.best:
            weights = {name: x.detach().cpu().clone() for name, x in self.model.state_dict().items()}
            self.kept = Kept(self.step, weights)
            self.run.save_model(weights, self.step)
        self.best = min(self.best, result["loss"])

    def _sample(self, progress: Progress) -> None:
        self.ranks.refresh(self.model)
        if self.ranks.leader:
            text = self.sample()
            self.run.log(self.step, "sample", text=text)
            progress.say(f"step {self.step}: {text!r}")

    def _snapshot(self) -> None:
        if self.step in self.snapshots:
            self.ranks.refresh(self.model)
            self.run.save_snapshot(self.model, self.step, self.training.snapshot_dtype)

    def _save(self) -> None:
        self._settle()
        state: dict[str, Any] = {"best": self.best if math.isfinite(self.best) else None, "window": self.window}
        if self.training.parallel == "fsdp":
            self.ranks.refresh(self.model)
            save_sharded(self.run.folder, self.ranks, self.optimizer, self.step, state)
        else:
            state["noise"] = self.ranks.noise_states()
            if self.ranks.leader:
                save_checkpoint(self.run.folder, self.model, self.optimizer, self.step, state, self.kept)
        if self.kept is None:
            self.run.save_model(self.model.state_dict(), self.step)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM ask for a stop after the current step; a second one interrupts at once."""

        def ask(number: int, frame: Any) -> None:
            if self._stop:
                raise KeyboardInterrupt
            self._stop = True

        try:
            old = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # not the main thread: a notebook's kernel handles its own interrupts
            yield
            return
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)


def compiled_loss(model: StreamTransformer, backend: str = "inductor") -> Any:
    """`model.loss` as one compiled graph, forward and backward, for tokens of one shape."""
    return torch.compile(model.loss, backend=backend, dynamic=False, fullgraph=True)


def peak_resident_bytes() -> int:
    """The most memory this process has held, as the operating system counts it; 0 where it does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def run_to_end(trainer: Trainer) -> None:
    """`fit` for a command: prints the best loss; exits 130 after a signal (saved), 1 on a loss that is not finite."""
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
