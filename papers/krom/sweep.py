"""What the blog says of initial biases −8, −2, −1 and 0, judged over training seeds (KROM, "Bias sweep").

    mixed             mean static swap less what decay and storage alone make of it; the blog has no such control
    swap.low, .high   the least and the largest static swap of the factors that can act, of one run
    best.low, .high   the same of the best swap that the dynamic term can reach
    in use            mean swap with the dynamic term, on the tokens of the monitor
    alpha             largest |α_res| of the modules that can act
    cosine.range      largest less least cosine of biases −2, −1 and 0, of one seed
    cosine.bend       what the cosine gains from −8 to −2, less what it gains from −2 to 0
    gain              the smaller of two, both claimed: what KromHC adds to Canon, and how much more Canon adds

A sentence that two biases do not differ holds where the whole interval lies within ± the smallest effect of interest,
and is opposite where the whole interval lies beyond it (`_without_difference`).

Units are seeds. A bias is compared within one preset, storage and recipe.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from streamscope.instruments.undefined_cells import note
from streamscope.models.training.config import Training
from streamscope.papers.comparison.printed import SMALLEST, Bound, Order
from streamscope.papers.comparison.seeds import NAN
from streamscope.papers.comparison.verdicts import bound_row, order_row, with_verdicts
from streamscope.papers.krom.mixing import ARM, label

TRAP, MILDER = "What replicates", "Frozen vs alive"
LAYERS = "Layer-specific modulation under milder initialization"
SURVIVE = "Directions survive multi-stream coupling"
MEANS = "What this means"
UNIT = {
    "loss": "nats/token", "alpha": "α_res", "gain": "nats/token",
    **dict.fromkeys(("cosine", "cosine.range", "cosine.bend"), "cosine"),
    **dict.fromkeys(("mixed", "swap.low", "swap.high", "best.low", "best.high", "in use"), "probability"),
}  # fmt: skip
ALPHA = 0.05
"""The smallest difference of interest in |α_res|, which begins at .01 and is .84 to .93 at the end there: ours."""
BOUNDS: tuple[tuple[float, str, str, str, str], ...] = (
    (-8.0, "mixed", "below", "0.01", TRAP),
    (-8.0, "in use", "below", "0.01", "A gap in the literature"),
    (-8.0, "best.high", "below", "0.01", LAYERS),
    (-2.0, "mixed", "above", "0.01", MILDER),
    (-2.0, "swap.low", "above", "0.069", MILDER),
    (-2.0, "swap.high", "below", "0.148", MILDER),
    (-2.0, "best.low", "above", "0.11", LAYERS),
    (-2.0, "best.high", "below", "0.37", LAYERS),
)
"""Initial bias, quantity, side, limit and place. .01 is ours: the blog says frozen, and near 0."""
ORDERS: tuple[tuple[str, float, float, str, str, float], ...] = (
    ("loss", -8.0, -2.0, "5.836 against 5.834", MEANS, SMALLEST["nats/token"]),
    ("alpha", -8.0, -2.0, "0.93 against 0.84", LAYERS, ALPHA),
    ("cosine", 0.0, -2.0, "0.995 against 0.994", SURVIVE, 0.0),
    ("in use", -2.0, -8.0, "0.12 against 0.0003", MILDER, SMALLEST["probability"]),
)
"""Quantity, the bias that has more of it, the one that has less, both as printed, the place, the smallest effect.

The cosines that the blog calls highest are .001 apart, so theirs is held against 0."""
SAME = ("loss", "alpha")
"""Quantities of which the blog says that two biases do not differ."""
RANGE = ((-2.0, -1.0, 0.0), "cosine.range", "below", "0.01", SURVIVE, 0.0)
BEND = ((-8.0, -2.0, 0.0), "cosine.bend", "above", "0", SURVIVE, SMALLEST["cosine"])
"""Biases, quantity, side, limit (.01 is ours), place, smallest effect; a range below .01 has none, it is one itself."""
GAIN, GAIN_WHERE = "canon first, KromHC a smaller further gain", "Architecture comparison"


def quantities(mixing: pd.DataFrame, factors: pd.DataFrame, losses: pd.DataFrame) -> pd.DataFrame:
    """Every quantity of the sweep, one row per arm, seed and number; arms of other topologies are left out."""
    rows = [row for _, one in _groups(mixing) for row in _of_runs(one, factors)]
    table = pd.DataFrame(rows, columns=["preset", "seed", "quantity", "unit", "value", "undefined"])
    parts = [table]
    for name, one in _groups(mixing):
        arms = _arms(one)
        for biases, quantity, *_ in (RANGE, BEND):
            if set(biases) <= set(arms):
                wide = table[(table["quantity"] == "cosine") & table["preset"].isin([arms[b] for b in biases])]
                by = wide.pivot(index="seed", columns="preset", values="value")[[arms[b] for b in biases]].dropna()
                x = by.to_numpy(float)
                values = np.ptp(x, axis=1) if quantity == RANGE[1] else 2 * x[:, 1] - x[:, 0] - x[:, 2]
                parts.append(pd.DataFrame([_row(_of(name, biases), seed, quantity, value)
                                           for seed, value in zip(by.index, values, strict=True)]))  # fmt: skip
    if len(losses) and {"gpt2", "canon", "kromcanon"} <= set(losses["preset"]):
        by = losses.pivot(index="seed", columns="preset", values="loss")[["gpt2", "canon", "kromcanon"]].dropna()
        more = by["canon"] - by["kromcanon"]
        gain = np.minimum(more, by["gpt2"] - by["canon"] - more)
        parts.append(pd.DataFrame([_row(GAIN, seed, "gain", value) for seed, value in gain.items()]))
    return pd.concat([part for part in parts if len(part)], ignore_index=True) if any(map(len, parts)) else table


def claims(mixing: pd.DataFrame, numbers: pd.DataFrame) -> pd.DataFrame:
    """The blog's sentences, per preset and storage; one correction over all rows."""
    rows: list[dict[str, Any]] = []
    for name, group in _groups(mixing):
        arms = _arms(group)
        rows += [
            bound_row(Bound(quantity, arms[bias], side, text, where), numbers)
            for bias, quantity, side, text, where in BOUNDS if bias in arms
        ]  # fmt: skip
        rows += [
            bound_row(Bound(quantity, _of(name, biases), side, text, where, least), numbers)
            for biases, quantity, side, text, where, least in (RANGE, BEND) if set(biases) <= set(arms)
        ]  # fmt: skip
        for quantity, more, less, printed, where, least in ORDERS:
            if {more, less} <= set(arms):
                one, other = (float(x) for x in printed.split(" against "))
                claim = Order(quantity, arms[more], arms[less], where, least)
                rows.append(order_row(claim, numbers, one - other, printed))
    if (numbers["quantity"] == "gain").any():
        rows.append(bound_row(Bound("gain", GAIN, "above", "0", GAIN_WHERE), numbers))
    return _without_difference(with_verdicts(rows, quantities=numbers)) if rows else pd.DataFrame()


def _without_difference(judged: pd.DataFrame) -> pd.DataFrame:
    """The rows of `SAME` with the verdicts of a sentence that says that there is no difference."""
    texts = list(judged["direction"])
    for i, r in enumerate(judged.itertuples()):
        if r.quantity not in SAME or not texts[i].startswith(("negligible", "holds", "opposite")):
            continue
        beyond = r.difference if r.ci_low != r.ci_low else max(r.ci_low, -r.ci_high)
        if texts[i].startswith("negligible"):
            texts[i] = texts[i].replace("negligible", "holds", 1)
        else:
            texts[i] = "opposite" if abs(beyond) > r.smallest else "not resolved beside the smallest effect of interest"
    return judged.assign(direction=texts, claim=[
        c.replace(" > ", " = ") if q in SAME else c for c, q in zip(judged["claim"], judged["quantity"], strict=True)
    ])  # fmt: skip


def _groups(mixing: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """(preset, storage and steps, their rows of the mixing table), of the preset's topology and the blog's recipe."""
    t = Training()
    usual = {"optimizer": t.hc_optimizer, "lr": t.hc_lr, "decay": t.hc_decay}
    if mixing.empty:
        return
    plain = ~mixing["preset"].str.contains("+", regex=False)
    own = mixing[plain & (mixing[list(usual)] == list(usual.values())).all(axis=1)]
    for (preset, storage, steps), one in own.groupby(["preset", "storage", "steps"], sort=False):
        yield f"{preset}, {storage}, {steps:,} steps", one


def _arms(one: pd.DataFrame) -> dict[float, str]:
    return {r.b_res: label(r) for r in one.itertuples()}


def _of(group: str, biases: tuple[float, ...]) -> str:
    return f"{group}, biases {', '.join(f'{b:g}' for b in biases)}"


def _of_runs(runs: pd.DataFrame, factors: pd.DataFrame) -> Iterator[dict[str, Any]]:
    acts = factors[factors["acts"]]
    for r in runs.itertuples():
        mine = acts[(acts[[*ARM, "seed"]] == [*(getattr(r, c) for c in ARM), r.seed]).all(axis=1)]
        alpha = mine["alpha_res"].abs().max() if "alpha_res" in mine else NAN
        for quantity, value in (
            ("loss", r.loss), ("cosine", r.stream_cosine),
            ("mixed", r.swap - r.swap_without_gradient), ("in use", r.swap_dynamic), ("swap.low", r.swap_low),
            ("swap.high", r.swap_high), ("best.low", mine["swap_best"].min()), ("best.high", mine["swap_best"].max()),
            ("alpha", alpha),
        ):  # fmt: skip
            yield _row(label(r), r.seed, quantity, float(value))


def _row(arm: str, seed: Any, quantity: str, value: float) -> dict[str, Any]:
    why = "" if value == value else note({"value": "not kept when these tables were made"})
    return {"preset": arm, "seed": seed, "quantity": quantity, "unit": UNIT[quantity], "value": value, "undefined": why}
