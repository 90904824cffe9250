"""What `python -m benchmarks.gpu` measures and prints."""

import copy
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from streamscope.benchmarks.gpu.options import Options
from streamscope.cli.errors import InputError
from streamscope.models import build
from streamscope.models.config.presets import PRESETS
from streamscope.models.training.config import Training, with_recipe
from streamscope.models.training.loop import Trainer
from streamscope.models.training.progress import Progress
from streamscope.models.training.run import Run

Row = dict[str, Any]


class RandomWindows:
    """Windows of tokens drawn uniformly, window by window from its own number."""

    def __init__(self, d_vocab: int, n_ctx: int, n: int) -> None:
        self.d_vocab, self.n_ctx, self.n = d_vocab, n_ctx, n

    def __len__(self) -> int:
        return self.n

    def batch(self, indices: Any) -> tuple[Any, Any]:
        """Inputs and next tokens [B, T]."""
        generator = torch.Generator().manual_seed(int(next(iter(indices))))
        rows = torch.randint(self.d_vocab, (len(indices), self.n_ctx + 1), generator=generator)
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def name_of(device: str) -> str:
    """As the hardware calls itself."""
    return torch.cuda.get_device_name() if device == "cuda" else device


def chosen(o: Options) -> Sequence[str]:
    """The presets to look at."""
    return o.presets or tuple(PRESETS)


Cases = Iterator[tuple[tuple[str, ...], Callable[[], Row]]]


def correctness(o: Options) -> Cases:
    """Loss and gradients in fp32, loss in bf16, beside the CPU's fp32."""

    def look(name: str) -> Row:
        change: dict[str, Any] = {"dropout": 0.0, "attention.dropout": 0.0}
        model = build(name, "tiny" if o.scale == "tiny" else "small", **change)  # not .train(): HDPL draws noise there
        tokens = torch.randint(model.config.d_vocab, (2, 33), generator=torch.Generator().manual_seed(0))
        if o.scale == "tiny":
            tokens = tokens[:, :17]
        there = copy.deepcopy(model).to(o.device)
        loss = model.loss(tokens[:, :-1], tokens[:, 1:])[0]
        moved = tokens.to(o.device)
        other = there.loss(moved[:, :-1], moved[:, 1:])[0]
        with torch.autocast(o.device, dtype=torch.bfloat16):
            half = there.loss(moved[:, :-1], moved[:, 1:])[0]
        pairs = zip(gradients(loss, model), gradients(other, there), strict=True)
        worst = max(float((a - b.cpu()).norm() / a.norm().clamp(min=1e-12)) for a, b in pairs)
        exact, found, rounded = (float(x.detach()) for x in (loss, other, half))
        return {
            "loss_difference": abs(exact - found), "gradient_difference": worst,
            "bf16_loss_difference": abs(exact - rounded),
            "equal": abs(exact - found) < 1e-4 and worst < 1e-3,
        }  # fmt: skip

    for name in chosen(o):
        yield (name,), lambda name=name: look(name)  # type: ignore[misc]


def gradients(loss: Any, model: Any) -> list[Any]:
    """Of every parameter whose gradient is more than rounding."""
    found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    return [torch.zeros(()) if g is None or float(g.abs().max()) < 1e-7 else g for g in found]


def trainer(o: Options, name: str, folder: Path, **changes: Any) -> Trainer:
    """The product's own training loop on random windows."""
    model = build(name, o.scale)
    options = {"steps": o.steps, "device": o.device, "sample_every": 0, "log_every": max(1, o.steps // 3), **changes}
    training = with_recipe(Training(**options), name, o.scale)
    windows = RandomWindows(model.config.d_vocab, model.config.n_ctx, 64 * (training.batch_size or 1))
    return Trainer(model, training, windows, windows, Run(folder), o.device)


def sync(o: Options) -> Cases:
    """No step between two log steps may wait for the device."""

    def look(name: str) -> Row:
        with tempfile.TemporaryDirectory() as folder:
            t = trainer(o, name, Path(folder), log_every=10**6, checkpoint_every=10**6)
            t.steps = 10**6
            t.feed = t._fed()
            try:
                for _ in range(3):  # caches, autotuning and the first allocation may wait
                    t._account(t.update())
                torch.cuda.synchronize()
                torch.cuda.set_sync_debug_mode("error")
                for _ in range(o.steps):
                    t._account(t.update())
            finally:
                torch.cuda.set_sync_debug_mode("default")
                t.feed.close()
            t._settle()
            return {"steps_without_waiting": o.steps, "loss": t.shown}

    for name in chosen(o):
        yield (name, o.scale), lambda name=name: look(name)  # type: ignore[misc]


def mfu(o: Options) -> Cases:
    """The rows that a training logs: the last of three, so that compiling and warming up are over."""

    def look(name: str, compile_: str) -> Row:
        if o.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        with tempfile.TemporaryDirectory() as folder:
            t = trainer(o, name, Path(folder), compile=compile_)
            rows: list[Row] = []
            t.run.log = lambda step, kind, **values: rows.append(values)  # type: ignore[method-assign]
            t.feed = t._fed()
            try:
                with Progress(o.steps) as progress:
                    while t.step < o.steps:
                        began = time.perf_counter()
                        t._account(t.update())
                        t._log(progress, began)
            finally:
                t.feed.close()
            kept = ("tokens_per_second", "mfu", "peak_memory", "loss")
            return {k: rows[-1][k] for k in kept if k in rows[-1]} | {"parameters": t.model.n_params()}

    for name in chosen(o):
        for compile_ in o.compile:
            if compile_ == "step" and o.device != "cuda":
                continue
            yield (name, o.scale, compile_), lambda name=name, compile_=compile_: look(name, compile_)  # type: ignore[misc]


def memory(o: Options) -> Cases:
    """Bytes at the peak of a step of `c2` and of `pls`."""

    def look(name: str) -> Row:
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

    for name in ("c2", "pls"):
        yield (name,), lambda name=name: look(name)  # type: ignore[misc]


def measure(options: Options) -> None:
    """Look and write."""
    assert options.out is not None
    if options.device == "cuda" and not torch.cuda.is_available():
        raise InputError("torch finds no CUDA device here; --device cpu --scale tiny is a dry run")
    end = time.monotonic() + 60 * options.minutes
    written = options.out.read_text().splitlines() if options.out.exists() else []
    done = {tuple(json.loads(line)["case"]) for line in written}
    pieces: dict[str, Callable[[Options], Iterator[tuple[tuple[str, ...], Callable[[], Row]]]]] = {
        "correctness": correctness, "sync": sync, "mfu": mfu, "memory": memory,
    }  # fmt: skip
    for piece in options.pieces:
        if piece in ("sync", "memory") and options.device != "cuda":
            print(f"{piece}: left out, it needs CUDA")
            continue
        if piece == "correctness" and options.device != "cuda":
            print("correctness: no CUDA here: the CPU beside itself, which shows that the comparison runs and no more")
        for rest, look in pieces[piece](options):
            case = (piece, *rest)
            if case in done:
                continue
            if time.monotonic() > end:
                print(f"{piece}: time is over; call again with the same --out to go on")
                return
            try:
                found = look()
            except Exception as error:  # a preset that fails must not hide the others
                found = {"error": f"{type(error).__name__}: {error}"[:500]}
            row = {"case": case, "device": name_of(options.device), "torch": torch.__version__, **found}
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(*case, {k: v for k, v in found.items()}, flush=True)
