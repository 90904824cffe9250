"""Compiled blocks and hooks: training compiles a separate callable, analyses run the plain model."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from models.capture import capture, edit
from models.make import build
from models.presets import PRESETS
from models.transformer import StreamTransformer

torch.set_num_threads(1)
TOKENS = torch.randint(256, (2, 6), generator=torch.Generator().manual_seed(7))
Z = "blocks.0.attn.hook_z"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Each test compiles for itself."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def zero(x: Tensor, hook: Any) -> Tensor:
    return torch.zeros_like(x)


def compiled(model: StreamTransformer, backend: str = "eager") -> list[Callable[..., Any]]:
    return [torch.compile(block.forward, backend=backend, fullgraph=True) for block in model.blocks]


def logits(model: StreamTransformer, blocks: Any = None) -> Tensor:
    return model.logits(model.segment(model.embed_tokens(TOKENS), blocks=blocks))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", PRESETS)
def test_blocks_compile_as_one_graph(name: str, training: bool) -> None:
    """Un-hooked blocks have no graph break, and compute the same, in a training step too."""
    model = build(name, "tiny", init_std=0.2, dropout=0.0, **{"attention.dropout": 0.0}).train(training)
    blocks = compiled(model)
    with torch.set_grad_enabled(training):
        assert torch.equal(logits(model, blocks), logits(model))
    if training:
        for use in (None, blocks):
            loss, _ = model.loss(TOKENS, TOKENS.roll(-1, 1), blocks=use)
            (g,) = torch.autograd.grad(loss, model.blocks[0].attn.q.weight)
            expected = g if use is None else expected
            assert torch.equal(g, expected)


@pytest.mark.parametrize("positions", ["rope", "alibi", "none"])
def test_variants_compile_as_one_graph(positions: str) -> None:
    """Other positions, gated FFN, RMS norms."""
    overrides = {"positions": positions, "mlp.gate": "dense", "norm": "rms"}
    model = build("std-t", "tiny", **overrides)
    with torch.no_grad():
        assert torch.equal(logits(model, compiled(model)), logits(model))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", ["std-t", "lfa"])
def test_an_edit_after_compiled_training_has_effect(name: str, backend: str) -> None:
    """A compiled step, then an edit on the plain model: the effect is that on a model never compiled."""
    model, fresh = (build(name, "tiny", init_std=0.2) for _ in range(2))
    blocks = compiled(model, backend)
    for _ in range(2):
        loss, _ = model.loss(TOKENS, TOKENS.roll(-1, 1), blocks=blocks)
        loss.backward()
    with torch.no_grad(), edit(model, {Z: zero}), capture(model, Z) as found:
        edited = model(TOKENS)
    with torch.no_grad(), edit(fresh, {Z: zero}):
        expected = fresh(TOKENS)
    assert torch.equal(edited, expected)
    assert found[Z].abs().max() == 0
    with torch.no_grad():
        plain = model(TOKENS)
        assert not torch.equal(plain, edited)
        assert torch.equal(logits(model, blocks), plain)


@pytest.mark.parametrize("name", ["std-t", "lfa"])
def test_an_edit_around_compiled_blocks_has_effect(name: str) -> None:
    """Inside `edit` and `capture` compiled callables run eagerly, so that hooks fire there as well."""
    model = build(name, "tiny", init_std=0.2)
    blocks = compiled(model)
    with torch.no_grad():
        plain = logits(model, blocks)
        with edit(model, {Z: zero}):
            through_compiled, through_plain = logits(model, blocks), logits(model)
        with capture(model, "blocks.*.attn.hook_pattern") as found:
            logits(model, blocks)
        assert torch.equal(logits(model, blocks), plain)
    assert torch.equal(through_compiled, through_plain)
    assert not torch.equal(through_compiled, plain)
    assert len(found) == model.config.n_layers


def test_compiling_inside_an_edit_does_not_freeze_it() -> None:
    """A callable first called inside `edit` has no edit in it afterwards."""
    model = build("lfa", "tiny", init_std=0.2)
    blocks = compiled(model)
    with torch.no_grad():
        with edit(model, {Z: zero}):
            edited = logits(model, blocks)
        after = logits(model, blocks)
        assert torch.equal(after, logits(model))
    assert not torch.equal(after, edited)
