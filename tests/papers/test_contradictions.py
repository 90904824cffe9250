"""Whether a paper contradicts itself, computed from what it prints.

A printed number stands for every number that rounds to it. Two places contradict each other only where the intervals of
their roundings do not meet. `MEET` holds the charges that this arithmetic clears, `APART` those that it confirms. A
charge that is not about two numbers has its reason in the ledger.
"""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import linprog
from transformers import get_cosine_schedule_with_warmup

from streamscope.models.config.presets import preset
from streamscope.papers.dst.tables import PAPER_ALPHAS, TABLE5
from streamscope.papers.paper import NAMES
from streamscope.papers.sentences import sentences

TABLE = pd.concat([sentences(paper) for paper in NAMES])
CLAIMS = {row["id"]: row for row in TABLE.to_dict("records")}
CHARGE = "paper inconsistent"
UNITS = {"%": 0.01, "K": 1e3, "M": 1e6}


class Interval(NamedTuple):
    """All values between two numbers; arithmetic as of independent ones."""

    low: float
    high: float

    def __add__(self, other: "Interval | float") -> "Interval":  # type: ignore[override]
        low, high = other if isinstance(other, Interval) else (other, other)
        return Interval(self.low + low, self.high + high)

    def __sub__(self, other: "Interval | float") -> "Interval":
        low, high = other if isinstance(other, Interval) else (other, other)
        return Interval(self.low - high, self.high - low)

    def __truediv__(self, other: "Interval") -> "Interval":
        ends = [x / y for x in self for y in other]
        return Interval(min(ends), max(ends))

    def meets(self, other: "Interval") -> bool:
        return self.low <= other.high and other.low <= self.high


def p(text: str) -> Interval:
    """What rounds to a printed number: 2.62, 7.9%, 22.2M, 8K."""
    unit = UNITS.get(text[-1], 1.0)
    digits = text.rstrip("%KM")
    half = 0.5 * 10.0 ** -len(digits.partition(".")[2])
    return Interval((float(digits) - half) * unit, (float(digits) + half) * unit)


def n(value: float) -> Interval:
    """A number that is not rounded: a count, a setting."""
    return Interval(value, value)


FULL_IND = p("2.62") / p("2.42") - 1
"""Table 1 of DST: 7.84 to 8.70 %."""
MODES = p("2.67") - p("2.66")
"""By how much the modes of Table 2 of DST differ; those of Tables 1 and 8 do not at all."""
TOP1 = ("48.3%", "46.9%", "44.8%", "44.1%", "37.2%", "13.1%", "6.9%", "4.8%")
"""Accuracies of LFA's Table 3."""
MEET: dict[str, list[tuple[Interval, Interval]]] = {
    "dst-t1-cost-full-ind": [(FULL_IND, p("7.9%"))],
    "dst-abs-cost-full-ind": [(FULL_IND, p("8%"))],
    "dst-t8-loss-dense": [(p("2.42") - p("2.42"), MODES)],
    "dst-t8-loss-kron": [(p("2.48") - p("2.48"), MODES)],
    "dst-t8-loss-ind": [(p("2.50") - p("2.50"), MODES)],
    "dst-t8-loss-full-ind": [(p("2.62") - p("2.62"), MODES)],
    "dst-s42-fully-independent": [(p("2.38") / p("1.87") - 1, p("27%"))],
    "dst-s43-explains": [
        (p("2.14") / p("1.84") - 1, p("16%")), (p("2.16") / p("1.80") - 1, p("20%")),
        (p("2.38") / p("1.87") - 1, p("27%")),
    ],
    "dst-f2-gated-alike": [(p("2.39") / p("1.88") - 1, Interval(p("16%").low, p("27%").high))],
    "dst-t5-gated-not-alike": [(p("2.39") / p("1.88") - 1, p("27%")), (p("2.16") / p("1.80") - 1, p("20%"))],
    "lfa-cost-cfm-11": [
        ((p("2.1019") - p("1.9063")) / p("1.8114"), p("11%")), (p("2.1019") / p("1.9063") - 1, p("10.3%")),
    ],
    "lfa-dissolves-third-layer": [(n(2) + 1, n(3))],
    "lfa-dissolves-by-layer-2": [(n(3) - n(2), n(1))],
    "lfa-metabolized-layer-2": [(n(3) - n(2), n(1))],
    "lfa-s51-std-t-two-or-three-early": [(n(2), Interval(2, 3))],
    "lfa-t3-cases": [(p(text), n(round(145 * sum(p(text)) / 2) / 145)) for text in TOP1] + [(n(145 / 29), n(5))],
    "lfa-limits-aj-pairs": [(n(12 * 5), n(60)), (n(60 - 2), n(58))],
    "lfa-eq6-total-heads": [
        (p(text), n(stable / total)) for text, stable, total in
        (("0.50", 6, 12), ("0.27", 3, 11), ("0.25", 1, 4), ("0.20", 1, 5), ("0.125", 1, 8), ("0.33", 1, 3))
    ],
    "pls-dims-768": [(n(2 * 384), n(768))],
    "pls-s52-spread-ratio": [(p("6.32%") / p("0.63%"), p("10"))],
    "krom-three-variants": [(n(3) + 1, n(4))],
    "hdpl-f2-last-step": [(n(range(0, 20_000, 500)[-1]), n(19_500))],
}  # fmt: skip
"""Claims that were charged -> pairs of places that agree as rounded."""
APART: dict[str, list[tuple[Interval, Interval]]] = {
    "dst-s41-random-reversed": [
        (p("28%"), p("36%")), (p("3.65") / p("2.85") - 1, p("3.89") / p("2.85") - 1),
    ],
    "dst-size-29m": [(p("29M"), p("23M"))],
    "dst-size-23m": [(p("29M"), p("23M"))],
    "dst-t6-width": [(n(512), n(516))],
    "dst-t6-heads": [(n(8), n(6))],
    "dst-t6-vocabulary": [(n(32_000), p("4K")), (n(32_000), p("8K"))],
    "dst-hyperparameters": [(n(5e-4), n(3e-4)), (n(2), n(3)), (n(2), n(1))],
    "lfa-t5-layers-lfa": [(n(7), Interval(0, 6)), (n(7), n(5))],
    "lfa-ac-insensitive": [(n(7), n(k)) for k in (1, 2, 3, 5)],
    "hdpl-batch": [(n(32), n(4 * 1))],
    "krom-caption-loss-canon": [(p("5.97"), Interval(5.891 - 3 * 0.003, 5.891 + 3 * 0.003))],
    "krom-order-canon-below-kromhc": [(p("5.891"), p("5.92")), (p("5.97"), p("5.92"))],
}  # fmt: skip
"""Claims that are charged -> pairs of places that no rounding reconciles."""
BY_TEST = {
    *(f"dst-t3-{of}-{heads}" for of in ("loss", "specialization", "entropy") for heads in (6, 12)),
    "dst-s42-area-kron", "dst-s42-area-dense", "dst-s42-area-ind", "dst-s42-cumulative-dense",
    "dst-s42-cumulative-ind", "dst-hierarchy", "lfa-t2-parameters-d-cas", "lfa-t2-parameters-lfa",
    "lfa-identity-values", "lfa-s31-example-order", "hdpl-min-lr", "pls-kstar-six", "pls-kappa-one",
}  # fmt: skip
"""Claims that are charged for another reason than two numbers; it is theirs, and of some there is a test below."""
BY_QUOTES = {"dst-block-parallel", "lfa-s53-cfm-dense", "lfa-s52-cfm-immediate"}
"""Claims that are charged because two quoted sentences differ."""
CLEARED = {
    *MEET, "dst-f2-steeper-ind", "dst-t5-gated-not-used", "dst-s45-maximum-constraint", "dst-ffn-default",
    "dst-single-disabled", "dst-s62-attention-to-token", "dst-s52-isolation", "lfa-t2-parameters-std-t",
    "lfa-t2-parameters-cfm", "lfa-s31-std-t-best-head", "lfa-abs-baselines", "lfa-f4-cfm-few",
    "lfa-gradient-isolated", "lfa-t1-gradient-lfa", "lfa-t1-position-lfa", "lfa-t1-timing-lfa",
    "lfa-attention-writes-xt", "lfa-order-of-blocks", "hdpl-s31-identical", "hdpl-s23-prevents-collapse",
    "hdpl-s211-identity", "hdpl-f1-positions", "pls-s32-integration-late", "pls-two-clusterings",
    "pls-b551-self-correction", "pls-gate-scalar", "krom-same-everything", "krom-two-parameters",
    "krom-l0-ffn-of-factor-0", "krom-magnitude-preserved",
}  # fmt: skip
"""Claims that were charged although the paper has a reading in which its places agree."""


@pytest.fixture(scope="module")
def verdicts() -> pd.Series:
    return TABLE.set_index("id")["verdict"]


def test_places_that_agree_as_rounded_are_no_contradiction(verdicts: pd.Series) -> None:
    for claim, places in MEET.items():
        assert all(one.meets(other) for one, other in places) and verdicts[claim] != CHARGE, claim
    for claim, places in APART.items():
        assert not any(one.meets(other) for one, other in places) and verdicts[claim] == CHARGE, claim
    for heads in (4, 6, 8, 12, 16):  # of DST's Table 3, of width 512
        assert (verdicts[f"dst-t3-loss-{heads}"] == CHARGE) == bool(512 % heads)


def test_every_charge_is_checked_and_none_that_was_cleared_is_left(verdicts: pd.Series) -> None:
    assert set(verdicts[verdicts == CHARGE].index) == {*APART} | BY_TEST | BY_QUOTES
    assert set(verdicts.index) >= CLEARED and not CLEARED & {*APART, *BY_TEST, *BY_QUOTES}


STEP = 0.125


def areas(losses: Sequence[float]) -> Interval:
    """The area over α of every curve that rises and flattens through losses as printed, by linear programming."""
    x = np.arange(1, 16 + STEP / 2, STEP)
    weights = STEP * np.r_[0.5, np.ones(len(x) - 2), 0.5]
    bounds: list[tuple[float, float | None]] = [(0.0, None)] * len(x)
    for alpha, loss in zip(PAPER_ALPHAS, losses, strict=True):
        bounds[round((alpha - 1) / STEP)] = tuple(p(f"{loss:.2f}"))  # type: ignore[assignment]
    rises = -np.diff(np.eye(len(x)), axis=0)
    flattens = np.diff(np.eye(len(x)), 2, axis=0)
    limits = np.vstack([rises, flattens])
    ends = [sign * linprog(sign * weights, limits, np.zeros(len(limits)), bounds=bounds).fun for sign in (1, -1)]
    return Interval(*ends)


def test_no_curve_through_table_5_has_the_areas_of_the_text() -> None:
    """Whatever the unit: it drops out of the ratio to the Kronecker model."""
    of = {name.removesuffix("-frozen"): areas(losses) for name, losses in TABLE5.items()}
    for losses in TABLE5.values():
        slopes = np.diff(losses) / np.diff(PAPER_ALPHAS)
        assert (slopes > 0).all() and (np.diff(slopes) <= 1e-9).all(), "the printed losses rise and flatten"
    for name, text, percent, most in (("dst-dense", "99.8", "2.6%", 0.0096), ("dst-ind", "107.4", "9.5%", 0.0893)):
        assert not (of[name] / of["dst-kron"]).meets(p(text) / p("97.2"))
        cost = n(1) - of["dst-kron"] / of[name]
        assert cost.high < p(percent).low and (n(1) - p("97.2") / p(text)).meets(p(percent))
        assert cost.high == pytest.approx(most, abs=2e-4)
        assert f"at most {100 * most:.1f} %" in CLAIMS[f"dst-s42-cumulative-{name[4:]}"]["why"]


MATRIX = 6 * 384**2
"""Parameters of one dense map of the width, over the layers."""
SAVED = {"dns": 0.0, "ind": MATRIX * 5 / 6, "id": float(MATRIX), "kron": MATRIX - 6.0 * 36}
"""What a map of another kind has fewer."""


def test_no_independent_attention_lies_2_7_m_below_a_dense_one(verdicts: pd.Series) -> None:
    """Two models whose maps are dense in one and of one of these kinds in the other."""
    qk, vo, printed = ("dns", "ind"), ("dns", "ind", "id", "kron"), p("21.2M") - p("18.5M")
    found = {sum(SAVED[kind] for kind in kinds) for kinds in product(qk, qk, vo, vo)}
    assert not any(printed.low - 1e4 <= x <= printed.high + 1e4 for x in found)
    near = min(x for x in found if x > printed.high), max(x for x in found if x < printed.low)
    assert near == pytest.approx((2.949e6, 2.507e6), rel=1e-3)
    for name in ("d-cas", "lfa"):
        assert "2.51 or 2.95 M" in CLAIMS[f"lfa-t2-parameters-{name}"]["why"]
        assert verdicts[f"lfa-t2-parameters-{name}"] == CHARGE


def test_the_schedule_of_the_authors_code_ends_at_zero() -> None:
    """transformers' cosine with warm-up, as their script calls it; Table 2 ends at 8e-5."""
    import torch

    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=8e-4)
    factor = get_cosine_schedule_with_warmup(optimizer, 1000, 20_000).lr_lambdas[0]
    assert 8e-4 * factor(20_000) == pytest.approx(0, abs=1e-9) and 8e-4 * factor(1000) == pytest.approx(8e-4)
    assert CLAIMS["hdpl-min-lr"]["verdict"] == CHARGE
    text = CLAIMS["lfa-s31-example-order"]["quote"]  # the examples of first and last are swapped
    assert "(key first)" in text and text.index("box") < text.index("key")


def test_the_two_models_of_hdpl_differ_in_five_maps_alone() -> None:
    def leaves(tree: object, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], object]:
        if not isinstance(tree, dict):
            return {path: tree}
        return {k: v for name, one in tree.items() for k, v in leaves(one, (*path, name)).items()}

    dense, hybrid = (leaves(asdict(preset(name, "paper"))) for name in ("llama", "hdpl"))
    differ = {path[:2] for path in {*dense, *hybrid} if dense.get(path) != hybrid.get(path)} - {("name",)}
    assert differ == {("attention", "q"), ("attention", "k"), ("attention", "v"), ("mlp", "gate"), ("mlp", "up")}
