"""Measurements of `python -m benchmarks.training`."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from streamscope.benchmarks.inputs import random_tokens
from streamscope.benchmarks.plain_gpt import plain_gpt
from streamscope.benchmarks.timing import CLOCKS, device_name, interleaved, optimizer_step, paired, synchronize
from streamscope.benchmarks.training import Options
from streamscope.cli.errors import InputError
from streamscope.models import build, preset
from streamscope.models.config import ModelConfig
from streamscope.models.flops import PEAKS, peak_flops, training_flops_per_token
from streamscope.models.training.config import Training, with_recipe
from streamscope.models.training.optim import make_optimizer
from streamscope.models.transformer import StreamTransformer

Step = Callable[[], None]


def gpt_ratios(o: Options) -> Iterator[str]:
    """`std-t` against the plain GPT: above 1, ours is faster."""
    for width, vocabulary in itertools.product(o.widths, o.vocabularies):
        c = shape("std-t", o, width, vocabulary)
        ours, plain = training_step(c, "std-t", o), plain_step(c, o)
        yield ratio("plain GPT", plain, f"std-t, width {width}, V {vocabulary:,}", ours, o)


def preset_ratios(o: Options) -> Iterator[str]:
    """Presets against `std-t` of the same shape: above 1, the preset is faster."""
    width, vocabulary = o.widths[0], o.vocabularies[0]
    peer = training_step(shape("std-t", o, width, vocabulary), "std-t", o)
    for name in o.presets:
        step = training_step(shape(name, o, width, vocabulary), name, o)
        yield ratio("std-t", peer, f"{name}, width {width}, V {vocabulary:,}", step, o)


def supervision(o: Options) -> Iterator[str]:
    """The ratio of times `pls`/`c2`, compared with the ratio of their FLOPs."""
    for width, vocabulary in itertools.product(o.widths, o.vocabularies):
        configs = {name: shape(name, o, width, vocabulary) for name in ("pls", "c2")}
        flops = [sum(training_flops_per_token(build(c)).values()) for c in configs.values()]
        predicted = flops[0] / flops[1]
        steps = [training_step(c, name, o) for name, c in configs.items()]
        r = paired(*steps, rounds=o.rounds, warmup=2, clock=CLOCKS[o.clock])
        yield (
            f"pls, width {width}, V {vocabulary:,}: {r.ratio:.3f} times c2's step (pairs {r.low:.3f} to "
            f"{r.high:.3f}), FLOPs predict {predicted:.3f}: {r.ratio / predicted:.3f} of that"
        )


def pairs(o: Options) -> Iterator[str]:
    """Architectures against their plain counterparts at the papers' width."""
    for pair in o.pairs:
        name, peer = pair.split(":")
        ours, theirs = (training_step(shape(n, o, None, o.vocabularies[0]), n, o) for n in (name, peer))
        yield ratio(peer, theirs, f"{name}, width {shape(name, o, None, o.vocabularies[0]).d_model}", ours, o)


def mfu(o: Options) -> Iterator[str]:
    """Training FLOPs per second of every preset, as a share of a large matrix product's in the same dtype."""
    ceiling = matmul_ceiling(o)
    known = peak_flops(device_name(o.device))
    printed = "" if known is None else f"; data sheet: {known / 1e12:.0f}"
    yield f"ceiling: {ceiling / 1e12:.3f} TFLOP/s, the best of square products of 1024 to 4096{printed}"
    for name, c in presets_compared(o):
        flops = sum(training_flops_per_token(build(c)).values()) * o.batch * o.context
        step = training_step(c, name, o)
        step()
        seconds = sorted(interleaved({name: step}, rounds=o.rounds, clock=CLOCKS[o.clock])[name])
        rates = [flops / s / ceiling for s in seconds]
        yield (
            f"{name}, width {c.d_model}, {c.n_layers} layers, V {c.d_vocab:,}: {rates[len(rates) // 2]:.3f} "
            f"({rates[-1]:.3f} to {rates[0]:.3f}), {o.batch * o.context / seconds[len(seconds) // 2]:,.0f} tokens/s"
        )


def profile(o: Options) -> Iterator[str]:
    """The six operators that take most of a preset's training step: share of its time and number of calls."""
    device = ProfilerActivity.CUDA if o.device == "cuda" else ProfilerActivity.CPU
    own = "self_device_time_total" if o.device == "cuda" else "self_cpu_time_total"
    for name, c in presets_compared(o):
        step = training_step(c, name, o)
        step()
        with torch.profiler.profile(activities=[device]) as profiler:
            step()
        rows = sorted(profiler.key_averages(), key=lambda row: -getattr(row, own))
        whole = sum(getattr(row, own) for row in rows)
        spent = ", ".join(
            f"{row.key.removeprefix('aten::')} {getattr(row, own) / whole:.0%} ({row.count})" for row in rows[:6]
        )
        yield f"{name}, width {c.d_model}: {spent}; {sum(row.count for row in rows):,} calls in all"


def presets_compared(o: Options) -> list[tuple[str, ModelConfig]]:
    """All presets of the other parts: those of `pairs` at their own width, the others at the last of --widths."""
    pairs = [name for pair in o.pairs for name in pair.split(":")]
    names = dict.fromkeys(["std-t", *o.presets, "c2", "pls", *pairs])
    return [(name, shape(name, o, None if name in pairs else o.widths[-1], o.vocabularies[0])) for name in names]


LINKS = {"NVLink 4 (H100)": 450e9, "PCIe 4 x16": 32e9, "25 Gbit Ethernet": 3.125e9}
"""Bandwidth in bytes per second in one direction."""


def gradient_sum_estimates(o: Options) -> Iterator[str]:
    """Estimated cost of summing fp32 gradients in a ring of 8 GPUs of 989 TFLOP/s at 35 %, with the paper's batch each.

    A ring of n moves 2 (n − 1) / n of the gradient's bytes through every link. Without overlap, a step takes compute
    plus communication; with DDP's overlap of the backward pass, communication hides behind two thirds of compute.
    """
    n, speed = 8, 0.35 * PEAKS["H100"]
    for name in ("std-t", "lfa", "dst-kron", "pls", "hdpl", "kromcanon"):
        model = build(name)
        batch = with_recipe(Training(), name, "paper").batch_size or 1
        tokens = batch * model.config.n_ctx
        compute = tokens * sum(training_flops_per_token(model).values()) / speed
        moved = 2 * (n - 1) / n * 4 * model.n_params()
        times = []
        for link, rate in LINKS.items():
            sum_, hidden = moved / rate, max(moved / rate - 2 / 3 * compute, 0.0)
            times.append(
                f"{link} {1e3 * sum_:.2f} ms ({n * compute / (compute + sum_):.1f} GPUs' worth without overlap, "
                f"{n * compute / (compute + hidden):.1f} with)"
            )
        yield f"{name}, {tokens:,} tokens per GPU: compute {1e3 * compute:.1f} ms, summing {moved / 1e6:.0f} MB by " + (
            "; ".join(times)
        )


def shape(name: str, o: Options, width: int | None, vocabulary: int) -> ModelConfig:
    """A preset's configuration with this width and vocabulary; the number of heads stays."""
    change: dict[str, Any] = {"d_vocab": vocabulary, "n_ctx": o.context}
    change |= {"d_model": width, "mlp.d_mlp": 0} if width is not None else {}
    return preset(name, "paper", **change, **({"n_layers": o.layers} if o.layers else {}))


def ratio(peer: str, theirs: Step, name: str, ours: Step, o: Options) -> str:
    """One line: the speed relative to the peer."""
    r = paired(theirs, ours, rounds=o.rounds, warmup=2, clock=CLOCKS[o.clock])
    speed = o.batch * o.context / r.second
    return f"{name}: {r.ratio:.3f} x {peer} (pairs {r.low:.3f} to {r.high:.3f}), {speed:,.0f} tokens/s"


def training_step(c: ModelConfig, name: str, o: Options) -> Step:
    """A whole training step of a model, as in `models.train`, on random tokens."""
    model: StreamTransformer = build(c).to(o.device).train()
    optimizer = make_optimizer(model, with_recipe(Training(), name, "paper"))
    blocks = [torch.compile(block.forward) for block in model.blocks] if o.compile else None
    x, y = random_tokens(c.d_vocab, o.batch, o.context, o.device)
    return _step(model, optimizer, lambda: model.loss(x, y, blocks=blocks)[0], o)


def plain_step(c: ModelConfig, o: Options) -> Step:
    """A whole training step of the plain GPT with AdamW."""
    plain = plain_gpt(c).to(o.device)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=3e-4, fused=True)
    blocks: Any = [torch.compile(block.forward) for block in plain.blocks] if o.compile else None
    x, y = random_tokens(c.d_vocab, o.batch, o.context, o.device)
    return _step(plain, optimizer, lambda: plain.loss(x, y, blocks=blocks), o)


def _step(model: Any, optimizer: Any, loss: Callable[[], Any], o: Options) -> Step:
    return optimizer_step(model, optimizer, loss, o.device, bf16=o.dtype == "bf16")


def matmul_ceiling(o: Options) -> float:
    """FLOPs per second of the fastest of three square matrix products, best of several repetitions."""
    clock = CLOCKS[o.clock]
    dtype = torch.bfloat16 if o.dtype == "bf16" else torch.float32
    best = 0.0
    for n in (1024, 2048, 4096) if o.rounds > 1 else (256,):
        a, b = (torch.randn(n, n, device=o.device, dtype=dtype) for _ in range(2))
        for _ in range(o.rounds + 1):
            start = clock()
            a @ b
            synchronize(o.device)
            best = max(best, 2 * n**3 / max(clock() - start, 1e-9))
    return best


def measure(options: Options) -> None:
    """Measure and print."""
    if options.device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: torch finds no CUDA device here")
    print(
        f"torch {torch.__version__}, {device_name(options.device)}, {torch.get_num_threads()} threads; "
        f"{options.dtype}, {'compiled blocks' if options.compile else 'eager'}, {options.clock} time, "
        f"{options.batch} x {options.context} tokens, {options.rounds} rounds",
        flush=True,
    )
    parts = {
        "gpt": gpt_ratios, "presets": preset_ratios, "supervision": supervision, "pairs": pairs, "mfu": mfu,
        "profile": profile, "gpus": gradient_sum_estimates,
    }  # fmt: skip
    for part in options.parts:
        for line in parts[part](options):
            print(f"{part}: {line}", flush=True)
