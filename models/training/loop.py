"""The training loop: one model, one optimiser, a data order that is a pure function of the seed.

After a kill, `resume` continues from the last checkpoint to the same weights, bit for bit (eager CPU):
the order of the data depends on (seed, step) alone, and weights, moments, random state and the running
means of the log are in the checkpoint.
"""

import contextlib
import math
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from models.errors import InputError
from models.generate import generate
from models.mixing import has_mixing, measure, still
from models.text.shards import epoch_order
from models.training.config import Training
from models.training.optim import lr_factor, make_optimizer, set_lr
from models.training.progress import Progress
from models.training.run import Run
from models.transformer import StreamTransformer

BF16_WIDTH = 128
"""Narrowest model for which bf16 autocast is used on a CPU."""


@runtime_checkable
class Batches(Protocol):
    """Windows to train on: `models.text.shards.Windows`, `models.text.pairs.PairWindows`."""

    def __len__(self) -> int:
        """How many there are."""

    def batch(self, indices: Any) -> tuple[Tensor, Tensor]:
        """Inputs and targets [B, T]; −100 where there is no target."""


class Stopped(Exception):
    """Training ended early; the message says why and what to do."""


class Trainer:
    """Holds what a step needs. `fit` runs to the end, or to a signal, or to a loss that is not finite."""

    def __init__(
        self, model: StreamTransformer, training: Training, train: Batches, valid: Batches, run: Run, device: str
    ) -> None:
        self.model, self.training, self.train, self.valid, self.run = model.to(device), training, train, valid, run
        self.device = torch.device(device)
        self.optimizer = make_optimizer(model, training)
        self.batch = training.batch_size or 1
        if len(train) < self.batch:
            raise InputError(f"the data has {len(train)} windows, one batch needs {self.batch}: lower --batch-size")
        self.steps = training.steps or math.ceil((training.epochs or 1.0) * self.per_epoch)
        self.blocks = [torch.compile(b.forward) for b in model.blocks] if training.compile else None
        self.step = 0
        self.best = math.inf
        self.window: dict[str, float] = {}
        self.shown: float | None = None  # running mean of the loss, for the progress bar
        self._stop = False
        self._mixes, self._still = has_mixing(model), False

    @property
    def per_epoch(self) -> int:
        """Steps in one pass; windows that do not fill a last batch are left out of that epoch."""
        return len(self.train) // self.batch

    # ---- one step ------------------------------------------------------------------------------

    def indices(self, step: int) -> Any:
        """Windows of step `step`: a slice of the epoch's permutation."""
        epoch, place = divmod(step, self.per_epoch)
        if getattr(self, "_epoch", None) != epoch:
            self._epoch, self._order = epoch, epoch_order(len(self.train), self.training.seed, epoch)
        return self._order[place * self.batch : (place + 1) * self.batch]

    def autocast(self) -> Any:
        """bf16 on CUDA; on a CPU where the model is wide enough to gain from it."""
        wide = self.device.type == "cuda" or self.model.config.d_model >= BF16_WIDTH
        on = self.training.dtype == "bf16" or (self.training.dtype == "auto" and wide)
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=on)

    def update(self) -> dict[str, Tensor]:
        """One optimiser step; returns the losses of the step (means over its micro-batches)."""
        t = self.training
        self.model.train()
        lr = set_lr(self.optimizer, lr_factor(self.step, self.steps, t.warmup or 0, t.lr_floor))
        sums: dict[str, Tensor] = {}
        size = self.batch // t.accumulate
        order = self.indices(self.step)
        for i in range(t.accumulate):
            tokens, targets = self._move(self.train.batch(order[i * size : (i + 1) * size]))
            with self.autocast():
                loss, parts = self.model.loss(tokens, targets, blocks=self.blocks)
            (loss / t.accumulate).backward()
            for name, value in {"loss": loss, **parts}.items():
                sums[name] = sums.get(name, 0.0) + value.detach() / t.accumulate
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), t.clip or math.inf)
        if not self._finite(sums["loss"], norm):
            raise Stopped(self._nan_message(float(sums["loss"]), float(norm)))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return {**sums, "grad_norm": norm, "lr": torch.tensor(lr)}

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

    def _move(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        tokens, targets = batch
        return tokens.to(self.device, non_blocking=True), targets.to(self.device, non_blocking=True)

    # ---- looking -------------------------------------------------------------------------------

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Mean loss in nats per token over the first windows of the validation part, weighted by tokens."""
        self.model.eval()
        total = tokens_seen = 0.0
        chunk = self.batch // self.training.accumulate
        stop = min(len(self.valid), self.training.eval_batches * self.batch)
        for start in range(0, stop, chunk):
            tokens, targets = self._move(self.valid.batch(range(start, min(start + chunk, stop))))
            with self.autocast():
                total += float(self.model.token_losses(tokens, targets).sum())
            tokens_seen += int((targets != -100).sum())
        loss = total / tokens_seen
        return {"loss": loss, "perplexity": math.exp(min(loss, 700.0)), "tokens": tokens_seen}

    def watch(self, progress: Progress) -> None:
        """Log what the mixing matrices do on the first micro-batch of the validation part; warn when streams stop."""
        self.model.eval()
        size = min(len(self.valid), self.batch // self.training.accumulate)
        with self.autocast():
            rows = measure(self.model, *self._move(self.valid.batch(range(size))))
        self.run.log_rows(self.step, "mixing", rows)
        warning = still(rows)
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
        """Go back to the last checkpoint; `fit` then drops the rows of metrics.jsonl after it."""
        self.step, state = self.run.load_checkpoint(self.model, self.optimizer)
        self.best, self.window = state["best"] if state["best"] is not None else math.inf, state["window"]

    def fit(self) -> None:
        """Train to the end. Raises `Stopped` on SIGINT, SIGTERM (after saving) and on a loss that is not finite."""
        t, started, outcome = self.training, time.perf_counter(), "failed"
        first = self.step
        self.run.open_metrics(first)
        try:
            with self._signals(), Progress(self.steps, first) as progress:
                while self.step < self.steps:
                    values = self.update()
                    if self.step == first + 1 and float(values.get("kl_clamped", 0.0)) == 1.0:
                        progress.say("HDPL: KL clamped on 100 % of tokens: the penalty has no gradient")
                    self._account(values)
                    done = self.step == self.steps
                    self._log(progress, started, first)
                    if self.step % t.eval_every == 0 or done:
                        self._evaluate(progress)
                    if t.sample_every and (self.step % t.sample_every == 0 or done):
                        text = self.sample()
                        self.run.log(self.step, "sample", text=text)
                        progress.say(f"step {self.step}: {text!r}")
                    if self.step % t.checkpoint_every == 0 or done or self._stop:
                        self._save()
                    if self._stop and not done:
                        raise Stopped(f"stopped at step {self.step} of {self.steps}; saved; --resume goes on from here")
            outcome = "completed"
        except Stopped as stop:
            outcome = str(stop)
            raise
        finally:
            self.run.finish(outcome, time.perf_counter() - started, step=self.step, steps=self.steps)

    def _account(self, values: dict[str, Tensor]) -> None:
        for name, value in values.items():
            self.window[name] = self.window.get(name, 0.0) + float(value)
        loss = float(values["loss"])
        self.shown = loss if self.shown is None else 0.9 * self.shown + 0.1 * loss
        self.window["n"] = self.window.get("n", 0.0) + 1

    def _log(self, progress: Progress, started: float, first: int) -> None:
        seconds = time.perf_counter() - started
        rate = (self.step - first) * self.batch * self.model.config.n_ctx / seconds
        progress.update(self.step, self.shown or 0.0, rate)
        if self.step % self.training.log_every == 0 or self.step == self.steps:
            n = self.window.pop("n")
            means = {name: value / n for name, value in self.window.items()}
            self.run.log(self.step, "train", **means, tokens_per_second=round(rate, 1))
            self.window = {}

    def _evaluate(self, progress: Progress) -> None:
        result = self.evaluate()
        self.run.log(self.step, "eval", **result)
        progress.say(f"step {self.step}: validation loss {result['loss']:.4f}")
        if self._mixes:
            self.watch(progress)
        if self.training.keep == "best" and result["loss"] < self.best:
            self.run.save_model(self.model, self.step)
        self.best = min(self.best, result["loss"])

    def _save(self) -> None:
        state = {"best": self.best if math.isfinite(self.best) else None, "window": self.window}
        self.run.save_checkpoint(self.model, self.optimizer, self.step, state)
        if self.training.keep == "last" or not (self.run.folder / "model.safetensors").exists():
            self.run.save_model(self.model, self.step)

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


def run_to_end(trainer: Trainer) -> None:
    """`fit` for a command: prints the best loss; exits 130 after a signal (saved), 1 on a loss that is not finite."""
    try:
        trainer.fit()
    except Stopped as stop:
        print(stop, file=sys.stderr)
        sys.exit(1 if "not finite" in str(stop) else 130)
    print(f"validation loss {trainer.best:.4f} at best -> {trainer.run.folder}")
