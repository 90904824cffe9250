"""KROM's question by arithmetic: is mixing at bias −8 stuck because softmax saturates, or because bf16 rounds?

One 2 × 2 factor by itself, as in `papers.krom.arithmetic`; the numbers that SPEC §1.10 d computed, and two controls.
"""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from streamscope.models.hooks import capture
from streamscope.models.make import build
from streamscope.models.training.config import Training, with_recipe
from streamscope.models.training.optim import make_optimizer
from streamscope.papers.krom import arithmetic
from streamscope.papers.krom.arithmetic import BIASES, Case, sinkhorn_slope, stream_differences, untrained, updates
from streamscope.papers.krom.tables import set_bias
from tests.tiny import assert_refused


def ends(steps: int = 2000, **fields) -> dict[float, dict]:
    return {row["bias"]: row for row in updates(Case(**fields), steps=steps).to_dict("records")}


def test_adamw_in_fp32_reaches_the_swap_from_every_bias() -> None:
    """And the long table has the rows with decay."""
    results = pd.read_parquet(Path(__file__).parents[2] / "results" / "krom" / "measured.parquet")
    results = results[results["arm"] == "one factor, adamw, fp32"].set_index("x")["value"]
    decayed, plain = updates(Case()).set_index("bias")["swap"], updates(Case(decay=0.0))["swap"]
    assert [*decayed, *plain] == pytest.approx([0.30] * 2 * len(BIASES), abs=1e-3)
    assert results[decayed.index].to_numpy() == pytest.approx(decayed.to_numpy(), abs=1e-6)


@pytest.mark.parametrize(
    ("decay", "b0", "swap"), [pytest.param(0.0, -2.0, 0.0025, marks=pytest.mark.slow), (0.2, -1.515625, 0.0015)]
)
def test_adamw_in_bf16_stops_from_minus_eight_and_only_there(decay: float, b0: float, swap: float) -> None:
    """b_1 never leaves −8: the next number is 1/32 away, a step .005. b_0 goes as far as its own grid lets it."""
    rows = ends(dtype="bf16", decay=decay)
    assert (rows[-8.0]["b0"], rows[-8.0]["b1"]) == (b0, -8.0)
    assert rows[-8.0]["swap"] == pytest.approx(swap, abs=5e-5)
    if decay:
        assert all(rows[bias]["swap"] == pytest.approx(0.30, abs=1e-3) for bias in BIASES[1:])


@pytest.mark.slow  # the quick ones take fewer
@pytest.mark.parametrize("pull", ["unit", "none"])
def test_two_thousand_steps_from_minus_eight(pull: str) -> None:
    """With a gradient of −1 that no softmax has shrunk fp32 ends at +.63. With none, decay alone thaws it:
    b_1 = −8 Π(1 − .2 lr_t), by hand from the schedule. bf16 ends where it started."""
    lr = [5e-3 * min(1, (t + 1) / 200) for t in range(200)]
    lr += [5e-3 * (0.1 + 0.45 * (1 + math.cos(math.pi * t / 1799))) for t in range(1800)]
    decayed = -8 * math.prod(1 - 0.2 * x for x in lr)
    assert decayed > -2.7
    end, near = (0.63, 5e-3) if pull == "unit" else (decayed, 3e-4)
    assert ends(pull=pull)[-8.0]["b1"] == pytest.approx(end, abs=near)
    assert ends(pull=pull, dtype="bf16")[-8.0]["b1"] == -8.0


def test_the_gradient_of_sgd_has_the_factor_that_krom_names() -> None:
    """Its first gradient over s − .30 is p(1−p): 313.2 times larger at −2 than at −8."""
    rows = ends(steps=1, optimizer="sgd")
    slope = {b: row["gradient"] / (1 / (1 + math.exp(-b)) - 0.30) for b, row in rows.items() if b != 0.0}
    assert slope[-2.0] / slope[-8.0] == pytest.approx(313.2, abs=0.1)
    assert slope[-2.0] == pytest.approx(rows[-2.0]["p(1-p)"], rel=1e-4)


@pytest.mark.slow
def test_sgd_is_frozen_at_the_rate_of_adamw_and_not_at_its_own() -> None:
    frozen, own = (ends(optimizer="sgd", lr=lr, decay=0.0)[-8.0]["swap"] for lr in (5e-3, 5.0))
    assert (frozen, own) == (pytest.approx(1 / (1 + math.exp(8)), rel=0.01), pytest.approx(0.30, abs=1e-3))
    assert ends(optimizer="sgd", lr=5.0, decay=0.0, dtype="bf16")[-8.0]["b1"] == -8.0
    decayed = [row["swap"] for row in ends(optimizer="sgd", lr=0.5).values()]
    assert decayed == pytest.approx([0.4245] * 4, abs=1e-3), "decay .2 goes past .30, to one place from every bias"


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_rows_do_not_see_each_other(dtype: str) -> None:
    together = updates(Case(dtype=dtype), steps=50)
    for i, bias in enumerate(BIASES):
        (alone,) = updates(Case(dtype=dtype), [bias], steps=50).to_dict("records")
        assert alone == together.iloc[i].to_dict()


def test_the_optimiser_is_that_of_training() -> None:
    """Rate, betas, decay and storage of moments as a hyper-connection gets them, with the usual bias correction."""
    model = build("kromhc", "tiny", **{"residual.hc_dtype": "bf16"})
    optimizer = make_optimizer(model, with_recipe(Training(bias_correction=True), "kromhc", "tiny"))
    b = model.blocks[0].attn_hc.b["res"]
    (group,) = [g for g in optimizer.param_groups if any(p is b for p in g["params"])]
    case = Case()
    assert (group["lr"], group["weight_decay"], group["fused"]) == (case.lr, case.decay, True)
    assert group["betas"] == (0.8, 0.95)
    assert b.dtype == torch.bfloat16


def test_unknown_names_are_refused_and_divergence_is_undefined() -> None:
    for fields in ({"pull": "push"}, {"optimizer": "lion"}, {"dtype": "fp8"}):
        assert_refused("is unknown", updates, Case(**fields), steps=1)
    row = updates(Case(optimizer="sgd", lr=50.0), [-8.0], steps=100).iloc[0]
    assert math.isnan(row["swap"]) and row["undefined"] == "b0, b1, swap: diverged" and not row["reached"]


def test_mhc_has_the_slope_of_its_exponential() -> None:
    """By differences of a plain Sinkhorn iteration: at −8 as small as p(1−p), at −2 some two hundred times as large."""

    def entry(bias: float, more: float) -> float:
        M = np.exp(np.where(np.eye(4), 0.0, bias) + more * np.outer([1, 0, 0, 0], [0, 1, 0, 0]))
        for _ in range(20):
            M = M / M.sum(0)
            M = M / M.sum(1, keepdims=True)
        return float(M[0, 1])

    for bias in (-8.0, -2.0):
        step = 1e-5
        assert sinkhorn_slope(bias) == pytest.approx((entry(bias, step) - entry(bias, -step)) / (2 * step), rel=1e-4)
    p = 1 / (1 + math.exp(8))
    assert sinkhorn_slope(-8.0) == pytest.approx(p * (1 - p), rel=0.02) and sinkhorn_slope(-2.0) > 190 * p


def test_spread_and_rank_are_those_of_a_plain_implementation() -> None:
    model = build("kromcanon", "tiny", seed=3, d_vocab=64)
    tokens = torch.randint(64, (2, 9), generator=torch.Generator().manual_seed(0))
    set_bias(model, -2.0)
    last = model.config.n_layers - 1
    with torch.no_grad(), capture(model, f"blocks.{last}.hook_streams_post") as found:
        model(tokens)
    each = []
    for x in found[f"blocks.{last}.hook_streams_post"].double().numpy().reshape(18, 4, -1):
        away = math.sqrt(sum(((row - x.mean(0)) ** 2).sum() for row in x))
        p = np.linalg.eigvalsh(x @ x.T).clip(1e-300)
        p = p / p.sum()
        each.append({"spread": away / math.sqrt((x**2).sum()), "rank": math.exp(-(p * np.log(p)).sum()), "apart": away})
    assert stream_differences(model, tokens) == pytest.approx(pd.DataFrame(each).mean().to_dict(), rel=1e-5)


def test_nothing_is_contracted_without_mixing_and_more_by_more() -> None:
    found = untrained(1, "tiny", (-40.0, -8.0, -2.0, 0.0))["contracted"].tolist()
    assert found[0] == pytest.approx(0, abs=1e-6) and 0 < found[1] < found[2] < found[3] < 1


def test_the_command_prints_swaps_and_slopes(capsys: pytest.CaptureFixture[str]) -> None:
    arithmetic.main(["--steps", "3"])
    text = capsys.readouterr().out
    assert "swap after 3 steps" in text and "p(1−p): 0.000335" in text
