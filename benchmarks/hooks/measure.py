"""Measurements of `python -m benchmarks.hooks`."""

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from transformer_lens.hook_points import HookPoint

from streamscope.benchmarks.hooks import Options
from streamscope.benchmarks.inputs import random_tokens
from streamscope.benchmarks.plain_gpt import plain_gpt
from streamscope.benchmarks.timing import optimizer_step, paired, synchronize
from streamscope.models import build, preset
from streamscope.models.hooks import observe, read_point
from streamscope.models.transformer import StreamTransformer


def without_hooks(model: StreamTransformer) -> StreamTransformer:
    """A copy whose hook points are bare identities; run it under `hooks_disabled`."""

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
def hooks_disabled() -> Iterator[None]:
    """`read_point` and `observe` do nothing inside this context."""
    disabled = {"read_point": (read_point, lambda point, x: x), "observe": (observe, lambda point, readout: None)}
    modules = [module for name, module in sys.modules.items() if name.startswith("streamscope.models.")]
    with ExitStack() as stack:
        for module in modules:
            for name, (real, bare) in disabled.items():
                if vars(module).get(name) is real:
                    stack.enter_context(patch.object(module, name, bare))
        yield


def adamw(model: torch.nn.Module) -> torch.optim.Optimizer:
    """AdamW at learning rate 1e-4."""
    return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def measure(options: Options) -> None:
    """Measure and print."""
    device = options.device
    c = build("std-t", "small").config
    x, y = random_tokens(c.d_vocab, options.batch, c.n_ctx, device)
    print(
        f"torch {torch.__version__}, {device}, {torch.get_num_threads()} threads; width {c.d_model}, "
        f"{c.n_layers} layers, {c.n_heads} heads, vocabulary {c.d_vocab}, {options.batch} x {c.n_ctx} tokens"
    )

    def forward_backward(model: StreamTransformer) -> Callable[[], None]:
        def run() -> None:
            model.loss(x, y)[0].backward()
            model.zero_grad(set_to_none=True)
            synchronize(device)

        return run

    for name in options.presets:
        model = build(preset(name, "small", **{"dropout": 0.0, "attention.dropout": 0.0})).to(device).train()
        bare = forward_backward(without_hooks(model))

        def unhooked(bare: Callable[[], None] = bare) -> None:
            with hooks_disabled():
                bare()

        result = paired(forward_backward(model), unhooked, rounds=options.rounds)
        print(result.line(f"{name} forward+backward fp32", "no hooks"))

    ours, plain = build("std-t", "small").to(device).train(), plain_gpt(c).to(device)
    assert sum(p.numel() for p in plain.parameters()) == ours.n_params()
    blocks = [[torch.compile(b.forward) for b in m.blocks] if options.compile else None for m in (ours, plain)]
    result = paired(
        optimizer_step(plain, adamw(plain), lambda: plain.loss(x, y, blocks=blocks[1]), device),
        optimizer_step(ours, adamw(ours), lambda: ours.loss(x, y, blocks=blocks[0])[0], device),
        rounds=options.rounds,
    )
    kind = f"bf16 autocast, {'compiled' if options.compile else 'eager'}"
    speed = options.batch * c.n_ctx / result.second
    print(result.line(f"plain GPT training step {kind}", "std-t"))
    print(f"std-t trains at {speed:,.0f} tokens/s, {result.ratio:.3f} times the plain GPT")
