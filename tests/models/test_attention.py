"""Fast paths of attention against the plain ones: one product for Q, K and V, fp32 gradients of narrow heads."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from streamscope.models import build
from streamscope.models.hooks import capture
from streamscope.models.layers import attention
from streamscope.models.layers.attention import NARROW_HEAD, causal_attention
from tests.tiny import randomise


def heads(k: int, n: int = 40) -> tuple[list[torch.Tensor], torch.Tensor]:
    """q, k, v in bf16 and a gradient of the output."""
    g = torch.Generator().manual_seed(0)
    x = [torch.randn(2, n, 3, k, generator=g).bfloat16().transpose(1, 2) for _ in range(4)]
    return [t.detach().requires_grad_() for t in x[:3]], x[3]


@pytest.mark.parametrize("width", [8, 32, NARROW_HEAD])
def test_narrow_heads_have_the_kernels_value_and_gradients_nearer_to_exact(width: int) -> None:
    inputs, g = heads(width)
    plain = F.scaled_dot_product_attention(*inputs, is_causal=True)
    z = causal_attention(*inputs)
    assert torch.equal(z, plain) and z.dtype == torch.bfloat16
    assert type(z.grad_fn).__name__ == "_NarrowAttentionBackward"
    exact = [t.detach().double().requires_grad_() for t in inputs]
    wanted = torch.autograd.grad(F.scaled_dot_product_attention(*exact, is_causal=True), exact, g.double())
    errors = []
    for y in (z, plain):
        found = torch.autograd.grad(y, inputs, g)
        errors.append([float((a.double() - b).norm() / b.norm()) for a, b in zip(found, wanted, strict=True)])
    assert all(ours < 0.01 and ours < 1.1 * theirs for ours, theirs in zip(*errors, strict=True)), errors


def test_under_autocast_attention_is_in_its_dtype() -> None:
    inputs = [t.detach().float().requires_grad_() for t in heads(8)[0]]
    with torch.autocast("cpu", torch.bfloat16):
        z = causal_attention(*inputs)
    assert z.dtype == torch.bfloat16
    grads = torch.autograd.grad(z.sum(), inputs)
    assert all(x.dtype == torch.float32 for x in grads)


@pytest.mark.parametrize(
    ("preset", "together"), [("std-t", 3), ("lfa", 2), ("pls", 3), ("dst-kron", 2), ("hdpl", 0), ("kromcanon", 3)]
)
def test_dense_projections_of_one_input_are_one_product(preset: str, together: int, monkeypatch: Any) -> None:
    """Loss and gradients as with a product each; how many are joined depends on what reads the same input."""
    model, results, alone = randomise(build(preset, "tiny", n_layers=1).double().train(), std=0.2), [], list[str]()
    tokens = torch.randint(256, (2, 9), generator=torch.Generator().manual_seed(1))
    joined, project = attention.Attention._project_jointly, attention.Attention.project

    def separate(self: Any, inputs: dict) -> list:
        return [self.project(name, x) for name, x in inputs.items()]

    def counted(self: Any, name: str, x: torch.Tensor) -> torch.Tensor:
        alone.append(name)
        return project(self, name, x)

    monkeypatch.setattr(attention.Attention, "project", counted)
    for fn in (separate, joined):
        monkeypatch.setattr(attention.Attention, "_project_jointly", fn)
        torch.manual_seed(0)
        alone.clear()
        loss = model.loss(tokens, tokens.roll(-1, 1))[0]
        grads = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
        results.append([loss, *(x for x in grads if x is not None)])
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)
    assert len(alone) == 3 - together + 1, "and the output's"


def test_hooks_of_joined_projections_stay_apart() -> None:
    """An edit of the keys, even in place, leaves queries and values of the same product alone."""
    model, tokens = build("std-t", "tiny", dropout=0.0).train(), torch.arange(8)[None]
    names = [f"blocks.0.attn.hook_{n}" for n in "qv"]
    with torch.no_grad(), capture(model, names) as before:
        model(tokens)
    wiped = model.hooks([("blocks.0.attn.hook_k", lambda x, hook: x.zero_())])
    with torch.no_grad(), wiped, capture(model, names) as seen:
        model(tokens)
    torch.testing.assert_close(dict(seen), dict(before), rtol=0, atol=0)
