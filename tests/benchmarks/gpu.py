"""Run the checks and timings that need a GPU, in pieces of under ten minutes.

    python -m tests.benchmarks.gpu --out gpu.jsonl
    python -m tests.benchmarks.gpu --out gpu.jsonl --pieces mfu --minutes 9
    python -m tests.benchmarks.gpu --device cpu --scale tiny --out dry.jsonl

correctness  every preset in fp32: loss and gradients on the GPU against the CPU; in bf16 the loss
sync         training steps under `torch.cuda.set_sync_debug_mode("error")`, which raises where the host waits
mfu          tokens per second, MFU and peak memory of a training by `models.training.loop`, per preset and --compile
memory       peak of a step with and without per-layer supervision, V 50,257, 32 x 512 tokens

Every finding is written to --out at once. A second call continues with the missing cases, and a call stops after
--minutes. Without CUDA, the pieces that need it are skipped with a message; the others run on the CPU.
"""

import copy
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
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
from streamscope.models.training.loop import Progress, Trainer
from streamscope.models.training.run import Run
from streamscope.text.shards import Windows

Row = dict[str, Any]
Piece = Literal["correctness", "sync", "mfu", "memory"]
PIECES: tuple[Piece, ...] = ("correctness", "sync", "mfu", "memory")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m tests.benchmarks.gpu`."""

    out: Path | None = None
    """JSON lines file that findings are added to."""
    pieces: tuple[Piece, ...] = PIECES
    """Pieces to measure."""
    presets: tuple[str, ...] = ()
    """Presets (default: all)."""
    scale: Literal["paper", "small", "tiny"] = "paper"
    """Scale of `sync` and `mfu`; `correctness` is at scale small, or tiny if that is chosen."""
    compile: tuple[Literal["off", "blocks", "step"], ...] = ("off", "blocks", "step")
    """Compile settings of `mfu`."""
    steps: Count = 30
    """Training steps of `sync` and `mfu`; the first third of `mfu` warms up."""
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
    return {
        "loss_difference": abs(exact - measured), "gradient_difference": worst,
        "bf16_loss_difference": abs(exact - rounded),
        "equal": abs(exact - measured) < 1e-4 and worst < 1e-3,
    }  # fmt: skip


def gradients(loss: Any, model: Any) -> list[Any]:
    """Gradients of all parameters; those that are mere rounding are 0."""
    grads = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    return [torch.zeros(()) if g is None or float(g.abs().max()) < 1e-7 else g for g in grads]


@contextmanager
def fed_trainer(o: Options, name: str, **changes: Any) -> Iterator[Trainer]:
    """The training loop of `models.train` on random windows, in a temporary folder, with its batches ready."""
    model = build(name, o.scale)
    options = {"steps": o.steps, "device": o.device, "sample_every": 0, "log_every": max(1, o.steps // 3), **changes}
    training = with_recipe(Training(**options), name, o.scale)
    d_vocab, n_ctx, n = model.config.d_vocab, model.config.n_ctx, 64 * (training.batch_size or 1)
    with tempfile.TemporaryDirectory() as folder:
        tokens, _ = random_tokens(d_vocab, 1, n * n_ctx + 1)
        starts = np.array([0, tokens.shape[1]])
        windows = Windows(write_shards(Path(folder), tokens[0].numpy(), starts, d_vocab), n_ctx)
        t = Trainer(model, training, windows, windows, Run(Path(folder)), o.device)
        t.feed = t.open_feed()
        try:
            yield t
        finally:
            t.feed.close()


def sync(o: Options, name: str, scale: str) -> Row:
    """No step between two log steps may wait for the device."""
    with fed_trainer(o, name, log_every=10**6, checkpoint_every=10**6) as t:
        t.steps = 10**6
        try:
            for _ in range(3):  # caches, autotuning and the first allocation may wait
                t._queue_values(t.update())
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")
            for _ in range(o.steps):
                t._queue_values(t.update())
        finally:
            torch.cuda.set_sync_debug_mode("default")
        t._read_values()
        return {"steps_without_waiting": o.steps, "loss": t.mean_loss}


def mfu(o: Options, name: str, scale: str, compile_: str) -> Row:
    """The last of three rows that a training logs, so that compiling and warming up are over."""
    if o.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with fed_trainer(o, name, compile=compile_) as t:
        rows: list[Row] = []
        t.run.log = lambda step, kind, **values: rows.append(values)  # type: ignore[method-assign]
        with Progress(o.steps) as progress:
            while t.step < o.steps:
                began = time.perf_counter()
                t._queue_values(t.update())
                t._log(progress, began)
        names = ("tokens_per_second", "mfu", "peak_memory", "loss")
        return {k: rows[-1][k] for k in names if k in rows[-1]} | {"parameters": t.model.n_params()}


def memory(o: Options, name: str) -> Row:
    """Bytes at the peak of a training step."""
    model = build(name).to(o.device).train()
    tokens = torch.randint(model.config.d_vocab, (32, 513), device=o.device)
    peaks = []
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats()
        with torch.autocast(o.device, dtype=torch.bfloat16):
            loss = model.loss(tokens[:, :-1], tokens[:, 1:])[0]
        loss.backward()
        peaks.append(torch.cuda.max_memory_allocated())
        model.zero_grad(set_to_none=False)
    return {"peak_bytes": peaks[-1]}


def measure(options: Options) -> None:
    """Measure and write."""
    assert options.out is not None
    if options.device == "cuda" and not torch.cuda.is_available():
        raise InputError("torch finds no CUDA device here; --device cpu --scale tiny is a dry run")
    end = time.monotonic() + 60 * options.minutes
    written = options.out.read_text().splitlines() if options.out.exists() else []
    done = {tuple(json.loads(line)["case"]) for line in written}
    presets = options.presets or tuple(PRESETS)
    if wrong := [name for name in presets if name not in PRESETS]:
        raise unknown("preset", wrong[0], list(PRESETS))
    settings = [c for c in options.compile if c != "step" or options.device == "cuda"]
    pieces: dict[str, tuple[Callable[..., Row], Iterator[tuple[str, ...]]]] = {
        "correctness": (correctness, product(presets)),
        "sync": (sync, product(presets, [options.scale])),
        "mfu": (mfu, product(presets, [options.scale], settings)),
        "memory": (memory, product(["c2", "pls"])),
    }
    for piece in options.pieces:
        if piece in ("sync", "memory") and options.device != "cuda":
            print(f"{piece}: skipped, it needs CUDA")
            continue
        if piece == "correctness" and options.device != "cuda":
            print("correctness: without CUDA the CPU is compared with itself; this only shows that the comparison runs")
        look, cases = pieces[piece]
        for arguments in cases:
            case = (piece, *arguments)
            if case in done:
                continue
            if time.monotonic() > end:
                print(f"{piece}: time is over; call again with the same --out to continue")
                return
            try:
                row = look(options, *arguments)
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
