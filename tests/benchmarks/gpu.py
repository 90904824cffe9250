"""Run the checks that need a GPU, in pieces of under ten minutes.

    python -m tests.benchmarks.gpu --out gpu.jsonl
    python -m tests.benchmarks.gpu --out gpu.jsonl --pieces sync --minutes 9
    python -m tests.benchmarks.gpu --device cpu --scale tiny --out dry.jsonl

correctness  every preset in fp32: loss and gradients on the GPU against the CPU; in bf16 the loss
sync         training steps under `torch.cuda.set_sync_debug_mode("error")`, which raises where the host waits

Every finding is written to --out at once. A second call continues with the missing cases, and a call stops after
--minutes. Without CUDA, `sync` is skipped with a message; the other runs on the CPU.
"""

import copy
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from streamscope.benchmarks.inputs import random_tokens, write_shards
from streamscope.benchmarks.timing import device_name
from streamscope.cli.bounds import Count, Positive
from streamscope.cli.errors import InputError, unknown
from streamscope.cli.parse import command, parse
from streamscope.models import build
from streamscope.models.config.presets import PRESETS
from streamscope.models.training.config import Training, with_recipe
from streamscope.models.training.loop import Trainer
from streamscope.models.training.run import Run
from streamscope.text.windows import Windows

Row = dict[str, Any]
Piece = Literal["correctness", "sync"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m tests.benchmarks.gpu`."""

    out: Path | None = None
    """JSON lines file that findings are added to."""
    pieces: tuple[Piece, ...] = ("correctness", "sync")
    """Pieces to measure."""
    presets: tuple[str, ...] = ()
    """Presets (default: all)."""
    scale: Literal["paper", "small", "tiny"] = "paper"
    """Scale of `sync`; `correctness` is at scale small, or tiny if that is chosen."""
    steps: Count = 30
    """Training steps of `sync`."""
    minutes: Positive = 9.0
    """Start no new case after this many minutes; the next call continues."""
    device: Literal["cuda", "cpu"] = "cuda"
    """Device; cpu is a dry run."""

    def __post_init__(self) -> None:
        if self.out is None:
            raise InputError("--out FILE is missing: name the file for the findings")


def correctness(o: Options, name: str) -> Row:
    """Loss and gradients in fp32 and loss in bf16, compared with the CPU's fp32."""
    change: dict[str, Any] = {"dropout": 0.0, "attention.dropout": 0.0}
    model = build(name, "tiny" if o.scale == "tiny" else "small", **change)  # not .train(): HDPL draws noise there
    x, y = random_tokens(model.config.d_vocab, 2, 32)
    if o.scale == "tiny":
        x, y = x[:, :16], y[:, :16]
    copied = copy.deepcopy(model).to(o.device)
    loss = model.loss(x, y)[0]
    other = copied.loss(x.to(o.device), y.to(o.device))[0]
    with torch.autocast(o.device, dtype=torch.bfloat16):
        half = copied.loss(x.to(o.device), y.to(o.device))[0]
    pairs = zip(gradients(loss, model), gradients(other, copied), strict=True)
    worst = max(float((a - b.cpu()).norm() / a.norm().clamp(min=1e-12)) for a, b in pairs)
    exact, measured, rounded = (float(x.detach()) for x in (loss, other, half))
    differences = {"loss": abs(exact - measured), "gradient": worst, "bf16_loss": abs(exact - rounded)}
    equal = differences["loss"] < 1e-4 and worst < 1e-3
    return {**{f"{name}_difference": x for name, x in differences.items()}, "equal": equal}


def gradients(loss: Any, model: Any) -> list[Any]:
    """Gradients of all parameters; those that are mere rounding are 0."""
    grads = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    return [torch.zeros(()) if g is None or float(g.abs().max()) < 1e-7 else g for g in grads]


def sync(o: Options, name: str) -> Row:
    """No step between two log steps of the training loop, on random windows, may wait for the device."""
    model = build(name, o.scale)
    quiet: dict[str, Any] = {"sample_every": 0, "log_every": 10**6, "checkpoint_every": 10**6}
    training = with_recipe(Training(steps=o.steps, device=o.device, **quiet), name, o.scale)
    d_vocab, n_ctx, n = model.config.d_vocab, model.config.n_ctx, 64 * (training.batch_size or 1)
    with tempfile.TemporaryDirectory() as folder:
        tokens, _ = random_tokens(d_vocab, 1, n * n_ctx + 1)
        starts = np.array([0, tokens.shape[1]])
        windows = Windows(write_shards(Path(folder), tokens[0].numpy(), starts, d_vocab), n_ctx)
        t = Trainer(model, training, windows, windows, Run(Path(folder)), o.device)
        t.feed, t.steps = t.open_feed(), 10**6
        try:
            for _ in range(3):  # caches, autotuning and the first allocation may wait
                t.pending.append(t.update())
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")
            for _ in range(o.steps):
                t.pending.append(t.update())
        finally:
            torch.cuda.set_sync_debug_mode("default")
            t.feed.close()
        t._read_values()
        return {"steps_without_waiting": o.steps, "loss": t.mean_loss}


def measure(options: Options) -> None:
    """Measure and write."""
    assert options.out is not None
    if options.device == "cuda" and not torch.cuda.is_available():
        raise InputError("torch finds no CUDA device here; --device cpu --scale tiny is a dry run")
    end, presets = time.monotonic() + 60 * options.minutes, options.presets or tuple(PRESETS)
    if wrong := [name for name in presets if name not in PRESETS]:
        raise unknown("preset", wrong[0], list(PRESETS))
    written = options.out.read_text().splitlines() if options.out.exists() else []
    done = {tuple(json.loads(line)["case"]) for line in written}
    cases = [(piece, name, options.scale)[: 2 + (piece == "sync")] for piece in options.pieces for name in presets]
    if options.device != "cuda":
        print("sync: skipped, it needs CUDA; correctness: the CPU is compared with itself, to show that it runs")
        cases = [case for case in cases if case[0] != "sync"]
    for case in cases:
        if case in done:
            continue
        if time.monotonic() > end:
            print(f"{case[0]}: time is over; call again with the same --out to continue")
            return
        try:
            row = (correctness if case[0] == "correctness" else sync)(options, case[1])
        except Exception as error:  # a preset that fails must not hide the others
            row = {"error": f"{type(error).__name__}: {error}"[:500]}
        about = {"case": case, "device": device_name(options.device), "torch": torch.__version__}
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(about | row) + "\n")
        print(*case, row, flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Parse and measure."""
    measure(parse(Options, argv, __doc__))


if __name__ == "__main__":
    command(main)
