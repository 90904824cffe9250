"""Which claims of PLS can be judged at all: the models must do the task, and found heads must have their roles.

A model does a task when, over its training seeds,

    log-odds     the 95 % interval of the mean log-odds of answer over foil lies above 0, where both are as probable
                 (every case has a partner with answer and foil exchanged, but for 16 of the 64 of capitalization)
    P(answer)    for claims in probability: its mean is moreover at least `LEAST`, 1 %. That is twice the smallest
                 effect of interest (half a point): under it, heads whose loss halves P(answer) would do nothing of
                 interest

Where seeds leave no interval, the mean itself has to be above 0; what was not measured is not above anything. A claim
about a task that a model of it cannot do is no evidence for or against anything; it gets that as its verdict.
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from streamscope.instruments.undefined_cells import note
from streamscope.interventions.ablation_effects.diagonality import OWN
from streamscope.papers.comparison.printed import SMALLEST, Bound, Order, Ratio
from streamscope.papers.comparison.seeds import estimate, put_interval, seeds_of
from streamscope.papers.comparison.verdicts import CANNOT, NEGLIGIBLE
from streamscope.papers.pls.runs import PRESETS
from streamscope.papers.pls.verdicts import LARGEST

LEAST = 0.01
"""The smallest P(answer) of a model that does a task."""
NO_HEAD = "no such head"
UNSHUFFLED = "withdrawn: these found heads were not held against shuffled roles"
MEASURED = ("probability", "log_odds", "right")
Claim = Ratio | Order | Bound


def competence(baselines: pd.DataFrame) -> pd.DataFrame:
    """One row per preset and task: means over seeds with 95 % intervals, and why the model cannot do it.

    `cannot_log_odds` is for claims in log-odds, `cannot` for those in probability; "" where it can.
    """
    rows = []
    for (preset, task), one in baselines.groupby(["preset", "task"], sort=False):
        row: dict[str, Any] = {"preset": preset, "task": task, "n": len(one)}
        why: dict[str, str] = {}
        for name in MEASURED:
            put_interval(row, why, name, estimate(one[name].dropna().to_numpy(float), "not measured"))
        low, p = row["log_odds_low"], row["probability"]
        chance = not (row["log_odds"] if low != low else low) > 0  # also where nothing was measured
        width = "" if low != low else f" ({low:+.3f} … {row['log_odds_high']:+.3f})"
        at_chance = f"log-odds {row['log_odds']:+.3f}{width} of {preset}, not above 0" if chance else ""
        rare = f"P(answer) {100 * p:.2g} % of {preset}, under {100 * LEAST:g} %" if p < LEAST else ""
        if row["log_odds"] != row["log_odds"]:
            at_chance = f"log-odds of {preset} not measured"
        if p != p:
            rare = f"P(answer) of {preset} not measured"
        row |= {"cannot_log_odds": at_chance, "cannot": at_chance or rare, "undefined": note(why)}
        rows.append(row)
    return pd.DataFrame(rows)


def unfit(quantities: pd.DataFrame, able: pd.DataFrame, roles: pd.DataFrame | None) -> Callable[[Claim], str]:
    """Claim -> why it cannot be judged on these runs, the text of its verdict; "" where it can.

    `able` is the table of `competence`, `roles` that of `head_groups.measure.roles` by preset and seed, None where
    nobody held the found heads against shuffled roles.
    """
    measured = set(quantities["quantity"])

    def why(claim: Claim) -> str:
        if claim.quantity not in measured or claim.quantity.startswith("depth."):
            return ""
        presets = _presets(claim)
        if text := roleless(claim.quantity, presets, quantities, roles):
            return text
        if text := unable(claim.quantity, presets, able):
            return f"{CANNOT}: {text}"
        return _flat_curve(claim, quantities)

    return why


def unable(quantity: str, presets: tuple[str, ...], able: pd.DataFrame) -> str:
    """The first task of a quantity that a model of these presets cannot do, and why; "" where they can do all."""
    column = "cannot_log_odds" if _in_log_odds(quantity) else "cannot"
    for task in _tasks(quantity, list(dict.fromkeys(able["task"]))):
        mine = able[(able["task"] == task) & (able[column] != "")].set_index("preset")[column]
        if texts := [mine[preset] for preset in presets if preset in mine.index]:
            return f"{task}: {', '.join(texts)}"
    return ""


def _presets(claim: Claim) -> tuple[str, ...]:
    if isinstance(claim, Bound):
        return (claim.preset,)
    return PRESETS if isinstance(claim, Ratio) else (claim.more, claim.less)


def _in_log_odds(quantity: str) -> bool:
    kind = quantity.split(".")[0]
    return kind == "kept" or kind.endswith("_odds")


def _tasks(quantity: str, measured: list[str]) -> list[str]:
    """The tasks that a quantity is about: its own, or all with groups of their own where it compares tasks."""
    _, task, *_ = *quantity.split("."), ""
    if quantity == LARGEST:
        return measured
    if quantity.split(".")[0].removesuffix("_odds") in ("own", "smear", "diagonality"):
        return [name for name in measured if name in OWN]
    return [task] if task in measured else []


def roleless(quantity: str, presets: tuple[str, ...], quantities: pd.DataFrame, roles: pd.DataFrame | None) -> str:
    """Why the found heads of a quantity are none; "" for the paper's heads and where every run has them.

    A run of these presets without rows in `roles` was not held against shuffled roles.
    """
    if quantity != LARGEST and not re.search(r"\.found\b", quantity):
        return ""
    if roles is None:
        return UNSHUFFLED
    groups = re.findall(r"entity|anchor|semantic", quantity) or sorted(set(OWN.values()))
    for preset in presets:
        runs = set(quantities.loc[quantities["preset"] == preset, "seed"])
        for group in groups:
            mine = roles[(roles["preset"] == preset) & (roles["group"] == group)]
            has = mine.groupby("seed")["above_shuffled"].all()
            if runs - set(has.index):
                return UNSHUFFLED
            if not has.all():
                lacking = f"{(~has).sum()} of {len(has)} runs"
                return f"{NO_HEAD}: {group} heads of {preset} are not above shuffled roles in {lacking}"
    return ""


def _flat_curve(claim: Claim, quantities: pd.DataFrame) -> str:
    """A curve that spans nothing of interest has no shape to speak of."""
    kind, _, rest = claim.quantity.partition(".")
    if kind != "monotonicity" or not isinstance(claim, Bound):
        return ""
    spans, _ = seeds_of(quantities, f"range.{rest}", claim.preset)
    if not len(spans) or not np.mean(spans) < SMALLEST["probability"]:
        return ""
    return f"{NEGLIGIBLE}: the curve spans only {100 * np.mean(spans):.2g} points of P(answer)"
