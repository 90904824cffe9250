"""Measurements of `python -m benchmarks.training`."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from streamscope.benchmarks.inputs import random_tokens
from streamscope.benchmarks.timing import CLOCKS, device_name, interleaved, machine, synchronize
from streamscope.benchmarks.training import Options
from streamscope.benchmarks.training.peers import PlainGPT, hooks_disabled, without_hooks
from streamscope.cli.errors import InputError
from streamscope.models import build, preset
from streamscope.models.config import ModelConfig
from streamscope.models.flops import peak_flops, training_flops_per_token
from streamscope.models.training.config import Training, with_recipe
from streamscope.models.training.optim import make_optimizer
from streamscope.models.transformer import StreamTransformer

Step = Callable[[], None]


def hook_ratios(o: Options) -> Iterator[str]:
    """Presets against themselves without hook points: above 1, the preset with hooks is faster."""
    for name in dict.fromkeys(["std-t", *o.presets]):
        c = shape(name, o, o.widths[0], o.vocabularies[0], **{"dropout": 0.0, "attention.dropout": 0.0})
        model = build(c).to(o.device).train()
        bare = hooks_disabled()(forward_backward(without_hooks(model), o))
        yield ratio("the same without hooks", bare, f"{name}, width {c.d_model}, eager", forward_backward(model, o), o)


def gpt_ratios(o: Options) -> Iterator[str]:
    """`std-t` against the plain GPT: above 1, ours is faster."""
    for width, vocabulary in itertools.product(o.widths, o.vocabularies):
        c = shape("std-t", o, width, vocabulary)
        std_step, peer_step = training_step(c, "std-t", o), plain_step(c, o)
        yield ratio("plain GPT", peer_step, f"std-t, width {width}, V {vocabulary:,}", std_step, o)


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
        steps = {name: training_step(c, name, o) for name, c in configs.items()}
        times = interleaved(steps, rounds=o.rounds, warmup=2, clock=o.clock)
        r = times.ratio("pls", "c2")
        yield (
            f"pls, width {width}, V {vocabulary:,}: {r} times c2's step, FLOPs predict {predicted:.3f}: "
            f"{r.median / predicted:.3f} of that"
        )


def pairs(o: Options) -> Iterator[str]:
    """Architectures against their plain counterparts at the papers' width."""
    for pair in o.pairs:
        name, peer = pair.split(":")
        step, peer_step = (training_step(shape(n, o, None, o.vocabularies[0]), n, o) for n in (name, peer))
        yield ratio(peer, peer_step, f"{name}, width {shape(name, o, None, o.vocabularies[0]).d_model}", step, o)


def mfu(o: Options) -> Iterator[str]:
    """Training FLOPs per second of every preset, as a share of a large matrix product's in the same dtype."""
    ceiling = matmul_ceiling(o)
    data_sheet = peak_flops(device_name(o.device))
    printed = "" if data_sheet is None else f"; data sheet: {data_sheet / 1e12:.0f}"
    yield f"ceiling: {ceiling / 1e12:.3f} TFLOP/s, the best of square products of 1024 to 4096{printed}"
    for name, c in presets_compared(o):
        flops = sum(training_flops_per_token(build(c)).values()) * o.batch * o.context
        step = training_step(c, name, o)
        seconds = sorted(interleaved({name: step}, rounds=o.rounds, warmup=1, clock=o.clock)[name])
        rates = [flops / s / ceiling for s in seconds]
        yield (
            f"{name}, width {c.d_model}, {c.n_layers} layers, V {c.d_vocab:,}: {rates[len(rates) // 2]:.3f} "
            f"({rates[-1]:.3f} to {rates[0]:.3f}), {o.batch * o.context / seconds[len(seconds) // 2]:,.0f} tokens/s"
        )


def profile(o: Options) -> Iterator[str]:
    """The six operators that take most of a preset's training step: share of its time and number of calls."""
    device = ProfilerActivity.CUDA if o.device == "cuda" else ProfilerActivity.CPU
    column = "self_device_time_total" if o.device == "cuda" else "self_cpu_time_total"
    for name, c in presets_compared(o):
        step = training_step(c, name, o)
        step()
        with torch.profiler.profile(activities=[device]) as profiler:
            step()
        rows = sorted(profiler.key_averages(), key=lambda row: -getattr(row, column))
        total = sum(getattr(row, column) for row in rows)
        spent = ", ".join(
            f"{row.key.removeprefix('aten::')} {getattr(row, column) / total:.0%} ({row.count})" for row in rows[:6]
        )
        yield f"{name}, width {c.d_model}: {spent}; {sum(row.count for row in rows):,} calls in all"


def presets_compared(o: Options) -> list[tuple[str, ModelConfig]]:
    """All presets of the other parts: those of `pairs` at their own width, the others at the last of --widths."""
    pairs = [name for pair in o.pairs for name in pair.split(":")]
    names = dict.fromkeys(["std-t", *o.presets, "c2", "pls", *pairs])
    return [(name, shape(name, o, None if name in pairs else o.widths[-1], o.vocabularies[0])) for name in names]


def shape(name: str, o: Options, width: int | None, vocabulary: int, **change: Any) -> ModelConfig:
    """A preset's configuration with this width and vocabulary; the number of heads stays."""
    change |= {"d_vocab": vocabulary, "n_ctx": o.context}
    change |= {"d_model": width, "mlp.d_mlp": 0} if width is not None else {}
    return preset(name, "paper", **change, **({"n_layers": o.layers} if o.layers else {}))


def ratio(peer: str, peer_step: Step, name: str, step: Step, o: Options) -> str:
    """One line: the speed relative to the peer."""
    times = interleaved({"theirs": peer_step, "ours": step}, rounds=o.rounds, warmup=2, clock=o.clock)
    return (
        f"{name}: {times.ratio('theirs', 'ours')} x {peer}, {o.batch * o.context / times.median('ours'):,.0f} tokens/s"
    )


def forward_backward(model: StreamTransformer, o: Options) -> Step:
    x, y = random_tokens(model.config.d_vocab, o.batch, o.context, o.device)
    return optimizer_step(model, None, lambda: model.loss(x, y)[0], o)


def training_step(c: ModelConfig, name: str, o: Options) -> Step:
    """A whole training step of a model, as in `models.train`, on random tokens."""
    model: StreamTransformer = build(c).to(o.device).train()
    optimizer = make_optimizer(model, with_recipe(Training(), name, "paper"))
    blocks = [torch.compile(block.forward) for block in model.blocks] if o.compile else None
    x, y = random_tokens(c.d_vocab, o.batch, o.context, o.device)
    return optimizer_step(model, optimizer, lambda: model.loss(x, y, blocks=blocks)[0], o)


def plain_step(c: ModelConfig, o: Options) -> Step:
    plain = PlainGPT(c).to(o.device)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=3e-4, fused=True)
    blocks: Any = [torch.compile(block.forward) for block in plain.blocks] if o.compile else None
    x, y = random_tokens(c.d_vocab, o.batch, o.context, o.device)
    return optimizer_step(plain, optimizer, lambda: plain.loss(x, y, blocks=blocks), o)


def optimizer_step(model: Any, optimizer: Any, loss: Callable[[], Any], o: Options) -> Step:
    """Forward (in autocast, by --dtype), backward, with an optimiser clipping to 1 and its step; zeroed gradients."""

    def step() -> None:
        with torch.autocast(o.device, dtype=torch.bfloat16, enabled=o.dtype == "bf16"):
            value = loss()
        value.backward()
        if optimizer is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        model.zero_grad(set_to_none=True)
        synchronize(o.device)

    return step


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
    if options.device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: torch finds no CUDA device here")
    print(
        f"{machine(options.device)}; {options.dtype}, {'compiled blocks' if options.compile else 'eager'}, "
        f"{options.clock} time, {options.batch} x {options.context} tokens, {options.rounds} rounds",
        flush=True,
    )
    parts = {
        "hooks": hook_ratios, "gpt": gpt_ratios, "presets": preset_ratios, "supervision": supervision, "pairs": pairs,
        "mfu": mfu, "profile": profile,
    }  # fmt: skip
    for part in options.parts:
        for line in parts[part](options):
            print(f"{part}: {line}", flush=True)
