"""Dropout masks: their distribution, and that they are a function of the generator's state."""

import math

import pytest
import torch

from streamscope.models.layers.noise import LEVELS, Dropout, dropout, keep_mask


@pytest.mark.parametrize("p", [0.1, 0.5, 0.003])
def test_elements_are_kept_by_themselves_with_the_probability_asked_for(p: float) -> None:
    torch.manual_seed(1)
    n = 2**22
    mask = keep_mask(torch.empty(n), round(p * LEVELS)).double()
    sigma = math.sqrt(p * (1 - p) / n)
    assert abs(mask.mean().item() - (1 - p)) < 4 * sigma + 0.5 / LEVELS
    for lane in range(4):  # the four elements that share a draw
        assert abs(mask[lane::4].mean().item() - (1 - p)) < 8 * sigma + 0.5 / LEVELS
    centred = mask - (1 - p)
    for lag in (1, 2, 3, 4, 8, 64):  # uncorrelated, inside one draw and between draws
        covariance = (centred[:-lag] * centred[lag:]).mean().item()
        assert abs(covariance) < 4 * p * (1 - p) / math.sqrt(n), lag


@pytest.mark.parametrize("p", [0.1, 0.5, 1e-3, 0.999, 1e-7, 1 - 1e-7])
def test_what_is_kept_is_scaled_to_the_expectation(p: float) -> None:
    x = torch.ones(7, 3, 5)  # not a multiple of four elements
    dropped = min(round(p * LEVELS), LEVELS - 1)
    torch.manual_seed(2)
    values = set(torch.cat([dropout(x, p).flatten() for _ in range(400)]).tolist())
    scale = LEVELS / (LEVELS - dropped)
    assert values <= {0.0, torch.tensor(scale).item()}
    assert abs(dropped / LEVELS - p) <= 1 / LEVELS
    assert (0.0 in values) == (dropped > 0)


def test_the_mask_is_a_function_of_the_generators_state() -> None:
    x = torch.rand(3, 50)
    torch.manual_seed(3)
    first, state, second = dropout(x, 0.3), torch.get_rng_state(), dropout(x, 0.3)
    assert not torch.equal(first, second)
    torch.set_rng_state(state)
    assert torch.equal(dropout(x, 0.3), second)


def test_the_gradient_has_the_mask_of_the_value() -> None:
    x = torch.rand(40, 50, requires_grad=True)
    y = dropout(x, 0.25)
    y.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.where(y == 0, 0.0, 1 / 0.75))


def test_the_module_is_the_identity_at_evaluation_and_at_rate_0() -> None:
    x = torch.rand(10, 10)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0).train()(x) is x
    assert (Dropout(0.5).train()(x) == 0).any()
