"""What `python -m benchmarks.hooks` measures and prints."""

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from transformer_lens.hook_points import HookPoint

from streamscope.benchmarks.hooks.options import Options
from streamscope.benchmarks.plain_gpt import PlainGPT
from streamscope.benchmarks.timing import paired
from streamscope.models import build, preset
from streamscope.models.hooks import observe, read_point
from streamscope.models.transformer import StreamTransformer


def without_hooks(model: StreamTransformer) -> StreamTransformer:
    """A copy whose hook points are bare identities; run it under `no_taps`."""

    class Bare:
        listening = False

        def __call__(self, x: Any) -> Any:
            return x

    bare = copy.deepcopy(model)
    for module in bare.modules():
        for name, child in list(module.named_children()):
            if isinstance(child, HookPoint):
                del module._modules[name]
                object.__setattr__(module, name, Bare())
    return bare


@contextmanager
def no_taps() -> Iterator[None]:
    """`read_point` and `observe` do nothing at all inside, as if no hook had ever been thought of."""
    nothing = {"tap": (read_point, lambda point, x: x), "observe": (observe, lambda point, readout: None)}
    rooms = [module for name, module in sys.modules.items() if name.startswith("streamscope.models.")]
    with ExitStack() as stack:
        for module in rooms:
            for name, (real, bare) in nothing.items():
                if vars(module).get(name) is real:
                    stack.enter_context(patch.object(module, name, bare))
        yield


def train_step(model: nn.Module, loss: Callable[[], Any], device: str) -> Callable[[], None]:
    """A whole step: bf16 autocast, backward, clipping to 1, AdamW, zeroing."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        with torch.autocast(device, dtype=torch.bfloat16):
            value = loss()
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if device == "cuda":
            torch.cuda.synchronize()

    return step


def measure(options: Options) -> None:
    """Measure and print."""
    device = options.device
    c = build("std-t", "small").config
    tokens = torch.randint(0, c.d_vocab, (options.batch, c.n_ctx + 1), generator=torch.Generator().manual_seed(0))
    x, y = tokens[:, :-1].to(device), tokens[:, 1:].to(device)
    print(
        f"torch {torch.__version__}, {device}, {torch.get_num_threads()} threads; width {c.d_model}, "
        f"{c.n_layers} layers, {c.n_heads} heads, vocabulary {c.d_vocab}, {options.batch} x {c.n_ctx} tokens"
    )

    def forward_backward(model: StreamTransformer) -> Callable[[], None]:
        def run() -> None:
            model.loss(x, y)[0].backward()
            model.zero_grad(set_to_none=True)
            if device == "cuda":
                torch.cuda.synchronize()

        return run

    for name in options.presets:
        model = build(preset(name, "small", **{"dropout": 0.0, "attention.dropout": 0.0})).to(device).train()
        bare = forward_backward(without_hooks(model))

        def unhooked(bare: Callable[[], None] = bare) -> None:
            with no_taps():
                bare()

        result = paired(forward_backward(model), unhooked, rounds=options.rounds)
        print(result.line(f"{name} forward+backward fp32", "no hooks"))

    ours = build("std-t", "small").to(device).train()
    plain = PlainGPT(
        d_vocab=c.d_vocab, n_ctx=c.n_ctx, d=c.d_model, heads=c.n_heads, layers=c.n_layers, d_mlp=c.d_mlp
    ).to(device)
    assert sum(p.numel() for p in plain.parameters()) == ours.n_params()
    blocks = [[torch.compile(b.forward) for b in m.blocks] if options.compile else None for m in (ours, plain)]
    result = paired(
        train_step(plain, lambda: plain.loss(x, y, blocks=blocks[1]), device),
        train_step(ours, lambda: ours.loss(x, y, blocks=blocks[0])[0], device),
        rounds=options.rounds,
    )
    kind = "bf16 autocast, " + ("compiled" if options.compile else "eager")
    speed = options.batch * c.n_ctx / result.second
    print(result.line(f"plain GPT training step {kind}", "std-t"))
    print(f"std-t trains at {speed:,.0f} tokens/s, {result.ratio:.3f} times the plain GPT")
