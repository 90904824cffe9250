"""Canon layers against loops over positions, and what a causal depthwise kernel must keep."""

import math

import pytest
import torch
from torch import Tensor

from streamscope.models import config as c
from streamscope.models.layers.canon import CanonLayer, _ShiftedSum, shifted_sum
from tests.tiny import assert_gradients

OPTIONS = [
    c.Canon(),
    c.Canon(kernel=2),
    c.Canon(kernel=3, activation="silu"),
    c.Canon(residual=False),
    c.Canon(residual=False, activation="silu", kernel=2),
]
options = pytest.mark.parametrize("spec", OPTIONS, ids=lambda s: f"k{s.kernel}-{s.activation}-{s.residual}")


def layer(spec: c.Canon, channels: int = 6) -> CanonLayer:
    made = CanonLayer(spec, channels).double()
    torch.nn.init.normal_(made.weight, generator=torch.Generator().manual_seed(2))
    return made


def loop(x: Tensor, w: Tensor, spec: c.Canon) -> Tensor:
    """y_t,c = x_t,c + act(Σ_j w_c,j x_{t−k+1+j},c), number by number."""
    y = torch.zeros_like(x)
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            for channel in range(x.shape[2]):
                total = 0.0
                for j in range(spec.kernel):
                    source = t - spec.kernel + 1 + j
                    total += float(w[channel, j] * x[b, source, channel]) if source >= 0 else 0.0
                total = total / (1 + math.exp(-total)) if spec.activation == "silu" else total
                y[b, t, channel] = total + (float(x[b, t, channel]) if spec.residual else 0.0)
    return y


@options
@torch.no_grad()
def test_equals_the_loop(spec: c.Canon) -> None:
    made, x = layer(spec), torch.randn(2, 7, 6, dtype=torch.float64)
    torch.testing.assert_close(made(x), loop(x, made.weight, spec), rtol=0, atol=1e-10)


def test_initialisation() -> None:
    """U(±1/2) for a kernel of four, U(±1/sqrt(2)) for two, N(0, 0.02)."""
    generator = torch.Generator().manual_seed(0)
    for spec, low, high, std in [
        (c.Canon(), -0.5, 0.5, 0.5 / 3**0.5),
        (c.Canon(kernel=2), -(0.5**0.5), 0.5**0.5, (1 / 6) ** 0.5),
        (c.Canon(init="normal"), -0.2, 0.2, 0.02),
    ]:
        made = CanonLayer(spec, 5000)
        made.init_weights(0.02, generator)
        w = made.weight.detach()
        assert low <= w.min() < w.max() <= high
        assert abs(float(w.std()) / std - 1) < 0.02
        assert abs(float(w.mean())) < std / 50


@pytest.mark.parametrize(("length", "kernel"), [(1, 4), (3, 4), (9, 4), (9, 2)])
def test_gradients_summed_in_place_are_those_of_autograd(length: int, kernel: int) -> None:
    """The same values bit for bit and the same gradients as of the plain sums; short sequences as well."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(3, length, 5, generator=g, dtype=torch.float64).requires_grad_()
    w = torch.randn(5, kernel, generator=g, dtype=torch.float64).requires_grad_()
    ours, plain = _ShiftedSum.apply(x, w), shifted_sum(x, w)
    assert torch.equal(ours, plain)
    assert_gradients(ours, plain, (x, w))


def test_half_precision_rounds_once() -> None:
    g = torch.Generator().manual_seed(0)
    x, w = (torch.randn(s, generator=g).bfloat16() for s in ((2, 7, 5), (5, 4)))
    assert torch.equal(_ShiftedSum.apply(x, w), shifted_sum(x.float(), w.float()).bfloat16())
