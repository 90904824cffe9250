"""What `python -m benchmarks.training` measures and prints."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from streamscope.benchmarks.plain_gpt import PlainGPT
from streamscope.benchmarks.timing import interleaved, paired
from streamscope.benchmarks.training.options import Options
from streamscope.cli.errors import InputError
from streamscope.models import build, preset
from streamscope.models.config import ModelConfig
from streamscope.models.flops import PEAKS, peak_flops, training_flops_per_token
from streamscope.models.training.config import Training, with_recipe
from streamscope.models.training.optim import make_optimizer
from streamscope.models.transformer import StreamTransformer

Step = Callable[[], None]


def device_name(device: str) -> str:
    """As the hardware calls itself."""
    return torch.cuda.get_device_name() if device == "cuda" else device


def beside_gpt(o: Options) -> Iterator[str]:
    """`std-t` beside the plain GPT: above 1, ours is faster."""
    for width in o.widths:
        for vocabulary in o.vocabularies:
            c = shape("std-t", o, width, vocabulary)
            ours, plain = training_step(c, "std-t", o), plain_step(c, o)
            yield ratio("plain GPT", plain, f"std-t, width {width}, V {vocabulary:,}", ours, o)


def beside_std_t(o: Options) -> Iterator[str]:
    """Presets beside `std-t` of the same shape: above 1, the preset is faster."""
    width, vocabulary = o.widths[0], o.vocabularies[0]
    peer = training_step(shape("std-t", o, width, vocabulary), "std-t", o)
    for name in o.presets:
        step = training_step(shape(name, o, width, vocabulary), name, o)
        yield ratio("std-t", peer, f"{name}, width {width}, V {vocabulary:,}", step, o)


def supervision(o: Options) -> Iterator[str]:
    """Time of `pls` over `c2`, beside the ratio of their FLOPs."""
    for width in o.widths:
        for vocabulary in o.vocabularies:
            configs = [shape(name, o, width, vocabulary) for name in ("pls", "c2")]
            flops = [sum(training_flops_per_token(build(c)).values()) for c in configs]
            predicted = flops[0] / flops[1]
            steps = [training_step(c, name, o) for c, name in zip(configs, ("pls", "c2"), strict=True)]
            r = paired(*steps, rounds=o.rounds, warmup=2, clock=clock(o))
            yield (
                f"pls, width {width}, V {vocabulary:,}: {r.ratio:.3f} times c2's step (pairs {r.low:.3f} to "
                f"{r.high:.3f}), FLOPs predict {predicted:.3f}: {r.ratio / predicted:.3f} of that"
            )


def pairs(o: Options) -> Iterator[str]:
    """Architectures beside their plain counterparts at the papers' width."""
    for pair in o.pairs:
        name, peer = pair.split(":")
        ours, theirs = (training_step(shape(n, o, None, o.vocabularies[0]), n, o) for n in (name, peer))
        yield ratio(peer, theirs, f"{name}, width {shape(name, o, None, o.vocabularies[0]).d_model}", ours, o)


def mfu(o: Options) -> Iterator[str]:
    """Training FLOPs per second of every preset over those of a large matrix product in the same dtype."""
    ceiling = matmul_ceiling(o)
    known = peak_flops(device_name(o.device))
    printed = "" if known is None else f", the data sheet says {known / 1e12:.0f}"
    yield f"ceiling: {ceiling / 1e12:.3f} TFLOP/s, the best of square products of 1024 to 4096{printed}"
    for name, c in compared(o):
        flops = sum(training_flops_per_token(build(c)).values()) * o.batch * o.context
        step = training_step(c, name, o)
        step()
        seconds = sorted(interleaved({name: step}, rounds=o.rounds, clock=clock(o))[name])
        rates = [flops / s / ceiling for s in seconds]
        yield (
            f"{name}, width {c.d_model}, {c.n_layers} layers, V {c.d_vocab:,}: {rates[len(rates) // 2]:.3f} "
            f"({rates[-1]:.3f} to {rates[0]:.3f}), {o.batch * o.context / seconds[len(seconds) // 2]:,.0f} tokens/s"
        )


def profile(o: Options) -> Iterator[str]:
    """The six operators with most time of their own in one step of each preset, as shares of the step, with calls."""
    device = ProfilerActivity.CUDA if o.device == "cuda" else ProfilerActivity.CPU
    own = "self_device_time_total" if o.device == "cuda" else "self_cpu_time_total"
    for name, c in compared(o):
        step = training_step(c, name, o)
        step()
        with torch.profiler.profile(activities=[device]) as found:
            step()
        rows = sorted(found.key_averages(), key=lambda row: -getattr(row, own))
        whole = sum(getattr(row, own) for row in rows)
        spent = ", ".join(
            f"{row.key.removeprefix('aten::')} {getattr(row, own) / whole:.0%} ({row.count})" for row in rows[:6]
        )
        yield f"{name}, width {c.d_model}: {spent}; {sum(row.count for row in rows):,} calls in all"


def compared(o: Options) -> list[tuple[str, ModelConfig]]:
    """std-t and all that is compared, each once: those of the part `pairs` at their own width, others at the last."""
    pairs = [name for pair in o.pairs for name in pair.split(":")]
    names = dict.fromkeys(["std-t", *o.presets, "c2", "pls", *pairs])
    return [(name, shape(name, o, None if name in pairs else o.widths[-1], o.vocabularies[0])) for name in names]


LINKS = {"NVLink 4 (H100)": 450e9, "PCIe 4 x16": 32e9, "25 Gbit Ethernet": 3.125e9}
"""Bytes per second in one direction."""


def on_paper(o: Options) -> Iterator[str]:
    """Nothing is measured: 8 GPUs of 989 TFLOP/s at 35 %, the paper's batch on each, a ring that sums fp32 gradients.

    A ring of n moves 2 (n − 1) / n of the gradient's bytes through every link. Without any overlap a step takes the
    sum of the two times; with DDP's overlap of the backward pass the larger of communication and two thirds of compute.
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
    """A preset's configuration in the benchmark's shape; heads stay the preset's."""
    change: dict[str, Any] = {"d_vocab": vocabulary, "n_ctx": o.context}
    change |= {"d_model": width, "mlp.d_mlp": 0} if width is not None else {}
    return preset(name, "paper", **change, **({"n_layers": o.layers} if o.layers else {}))


def clock(o: Options) -> Callable[[], float]:
    """Wall or process time."""
    return time.perf_counter if o.clock == "wall" else time.process_time


def ratio(peer: str, theirs: Step, name: str, ours: Step, o: Options) -> str:
    """One line: how many times as fast as the peer."""
    r = paired(theirs, ours, rounds=o.rounds, warmup=2, clock=clock(o))
    speed = o.batch * o.context / r.second
    return f"{name}: {r.ratio:.3f} x {peer} (pairs {r.low:.3f} to {r.high:.3f}), {speed:,.0f} tokens/s"


def training_step(c: ModelConfig, name: str, o: Options) -> Step:
    """A whole step of `models.train`'s kind on random tokens."""
    model: StreamTransformer = build(c).to(o.device).train()
    optimizer = make_optimizer(model, with_recipe(Training(), name, "paper"))
    blocks = [torch.compile(block.forward) for block in model.blocks] if o.compile else None
    x, y = some_tokens(c, o)
    return _step(model, optimizer, lambda: model.loss(x, y, blocks=blocks)[0], o)


def plain_step(c: ModelConfig, o: Options) -> Step:
    """The same of the plain GPT: its optimiser is AdamW with the same options."""
    plain = PlainGPT(
        d_vocab=c.d_vocab, n_ctx=c.n_ctx, d=c.d_model, heads=c.n_heads, layers=c.n_layers, d_mlp=c.d_mlp
    ).to(o.device)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=3e-4, fused=True)
    blocks: Any = [torch.compile(block.forward) for block in plain.blocks] if o.compile else None
    x, y = some_tokens(c, o)
    return _step(plain, optimizer, lambda: plain.loss(x, y, blocks=blocks), o)


def some_tokens(c: ModelConfig, o: Options) -> tuple[Any, Any]:
    """Inputs and next tokens, drawn uniformly with seed 0."""
    tokens = torch.randint(c.d_vocab, (o.batch, o.context + 1), generator=torch.Generator().manual_seed(0))
    return tokens[:, :-1].to(o.device), tokens[:, 1:].to(o.device)


def _step(model: Any, optimizer: Any, loss: Callable[[], Any], o: Options) -> Step:

    def step() -> None:
        with torch.autocast(o.device, dtype=torch.bfloat16, enabled=o.dtype == "bf16"):
            value = loss()
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if o.device == "cuda":
            torch.cuda.synchronize()

    return step


def matmul_ceiling(o: Options) -> float:
    """FLOPs per second of the fastest of three square products, best of some tries."""
    dtype = torch.bfloat16 if o.dtype == "bf16" else torch.float32
    best = 0.0
    for n in (1024, 2048, 4096) if o.rounds > 1 else (256,):
        a, b = (torch.randn(n, n, device=o.device, dtype=dtype) for _ in range(2))
        for _ in range(o.rounds + 1):
            start = clock(o)()
            a @ b
            if o.device == "cuda":
                torch.cuda.synchronize()
            best = max(best, 2 * n**3 / max(clock(o)() - start, 1e-9))
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
        "gpt": beside_gpt, "presets": beside_std_t, "supervision": supervision, "pairs": pairs, "mfu": mfu,
        "profile": profile, "gpus": on_paper,
    }  # fmt: skip
    for part in options.parts:
        for line in parts[part](options):
            print(f"{part}: {line}", flush=True)
