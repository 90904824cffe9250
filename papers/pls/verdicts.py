"""From runs to PLS against C2: pairs of one training seed are the units.

Effects, spreads and control ranges are compared as the paper does, by the factor |PLS| / |C2| of a pair, averaged
geometrically over pairs; all else by the difference. A factor of sizes near 0 is noise over noise: it has the interval
over seeds for that, the bootstrap interval over cases of every pair (`pairs`), and the pairs of one sign (`alike`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from streamscope.instruments.stats.means import with_holm
from streamscope.instruments.undefined_cells import note
from streamscope.interventions.ablation_effects.ratios import table as ratios_of
from streamscope.interventions.observe import SMALLEST
from streamscope.interventions.steer_heads.measure import leverage
from streamscope.papers.comparison.printed import Bound, Order, Printed, Ratio
from streamscope.papers.comparison.seeds import NAN, Rows, means, paired
from streamscope.papers.comparison.verdicts import bound_row, order_row, seeds_row, with_verdicts
from streamscope.papers.pls.claims import CLAIMS, SECOND_PEAK, factor, printed
from streamscope.papers.pls.measure import WITHIN, Measured
from streamscope.papers.pls.runs import CONTROL, PRESETS, RUN

FACTORS = ("effect", "spread", "range")
FACTOR = "factor"
"""The unit of a ratio."""
Lookup = Callable[[str, str], Printed | None]
"""(preset, quantity) -> what the paper prints of it."""


LOSS, LARGEST = "loss", "largest.capitalization"
OWN_EFFECT = "effect.capitalization.found-entity"
OTHERS = ("effect.gender.found-anchor", "effect.winograd.found-entity")
NOT_ALL = "not all three tasks were measured"


def with_derived(quantities: pd.DataFrame, losses: pd.DataFrame) -> pd.DataFrame:
    """The quantities of all runs with those that follow from effects and losses, whenever these were measured.

    `loss` is the validation loss, of the last layer alone in either model (§3.3); `largest.capitalization` the |effect|
    of the entity heads found on capitalization less the larger of |effect| of the anchor heads found on gender and of
    the entity heads found on Winograd (§5.2).
    """
    own = quantities[~quantities["quantity"].isin([LOSS, LARGEST])]
    parts = [own]
    effects = own.pivot_table(index=["preset", "seed"], columns="quantity", values="value", sort=False)
    whole = losses.set_index(["preset", "seed"])["loss"].to_dict()
    for (preset, seed), one in effects.iterrows():
        rows = Rows()
        if (loss := whole.get((preset, seed))) is not None:
            rows.add(LOSS, "loss", "nats/token", loss)
        sizes = one.reindex([OWN_EFFECT, *OTHERS]).abs()
        gap = float(sizes[OWN_EFFECT] - sizes[list(OTHERS)].max(skipna=False))
        rows.add(LARGEST, "effect", "probability", gap, why="" if gap == gap else NOT_ALL)
        parts.append(rows.of(preset, seed)[list(own.columns)])
    return pd.concat(parts, ignore_index=True)


def of_sizes(quantities: pd.DataFrame, quantity: str) -> dict[str, Any]:
    """|PLS| / |C2| over the pairs; sizes that rounding could make are none (`interventions.observe.SMALLEST`)."""
    measure = "log_odds" if quantity.split(".")[0].endswith("_odds") else "probability"
    return paired(quantities, quantity, RUN, CONTROL, ratio=True, resolution=SMALLEST[measure])


def is_factor(quantity: str) -> bool:
    """Whether PLS is compared with C2 by a factor of sizes."""
    return quantity.split(".")[0].removesuffix("_odds") in FACTORS


def presets(quantities: pd.DataFrame, printed: Lookup = printed) -> pd.DataFrame:
    """`seeds.means` of both presets, with the paper's numbers.

    Intervals of shares, spreads and ranges end where these do.
    """
    return means(quantities, PRESETS, printed, _possible)


def _possible(quantity: str, family: str, unit: str) -> tuple[float, float]:
    """What a quantity can be at all, where intervals end: a share from 0 to 1, a spread or a range from 0."""
    if unit.startswith("share of") and quantity != SECOND_PEAK:
        return 0.0, 1.0
    return 0.0 if quantity.startswith(("spread", "range")) else -np.inf, np.inf


def comparisons(quantities: pd.DataFrame, printed: Lookup = printed) -> pd.DataFrame:
    """One row per quantity: PLS against C2 over the pairs, `kind` factor or difference, p, Holm in its family."""

    rows = []
    every = quantities.drop_duplicates("quantity")[["quantity", "family", "unit"]]
    for quantity, family, unit in every.itertuples(index=False):
        ratio = is_factor(quantity)
        numbers = of_sizes(quantities, quantity) if ratio else paired(quantities, quantity, RUN, CONTROL)
        paper = factor(quantity)
        if not ratio:
            two = [printed(preset, quantity) for preset in PRESETS]
            paper = two[0].value - two[1].value if two[0] and two[1] else NAN
        why = {{"mean": "value"}.get(name, name): text for name, text in numbers["why"].items()}
        why |= {"paper": "the paper prints none"} if paper != paper else {}
        rows.append(
            {
                "quantity": quantity, "family": family, "kind": "factor" if ratio else "difference",
                "unit": FACTOR if ratio else unit, "value": numbers["mean"], "ci_low": numbers["ci_low"],
                "ci_high": numbers["ci_high"], "p": numbers["p"], "n": numbers["n"],
                "alike": f"{numbers['same_sign']} of {numbers['n']}" if ratio else "", "paper": paper,
                "left_out": numbers["left_out"], "undefined": note(why),
            }
        )  # fmt: skip
    parts = [with_holm(one) for _, one in pd.DataFrame(rows).groupby("family", sort=False)]
    return pd.concat(parts, ignore_index=True)


def pairs(measured: Mapping[tuple[str, int], Measured]) -> dict[str, pd.DataFrame]:
    """`ratios` (sds and means of Δ) and `leverage` of every pair, with bootstrap intervals over cases.

    `measured` is by (preset, seed). Heads of found groups are each model's own.
    """

    ratios, levers = [], []
    for seed in sorted({seed for _, seed in measured}):
        run, control = measured[RUN, seed], measured[CONTROL, seed]
        ratio_table = ratios_of(run.effects.blocks, control.effects.blocks, resamples=2000)
        ratios.append(ratio_table.short().assign(seed=seed))
        levers.append(leverage(run.curves, control.curves, WITHIN).short().assign(seed=seed))
    return {"ratios": pd.concat(ratios, ignore_index=True), "leverage": pd.concat(levers, ignore_index=True)}


# ---- claims ------------------------------------------------------------------------------------


def claims(
    quantities: pd.DataFrame,
    of: Sequence[Ratio | Order | Bound] = CLAIMS,
    printed: Lookup = printed,
    unfit: Callable[[Any], str] = lambda claim: "",
) -> pd.DataFrame:
    """One row per claim of the paper: printed, measured with its interval over seeds, Holm over all, verdicts.

    `unfit` says of a claim why it cannot be judged ("" where it can): its verdict then, and no test of the family.
    `kind` is factor (`difference` and the ends are factors, 1 is no difference), difference or limit.
    """
    units = dict(zip(quantities["quantity"], quantities["unit"], strict=True))
    rows = []
    for claim in of:
        if isinstance(claim, Ratio):
            row = _factor(claim, quantities)
        elif isinstance(claim, Order):
            row = _order(claim, quantities, printed)
        else:
            assert isinstance(claim, Bound)
            row = {**bound_row(claim, quantities), "kind": "limit"}
        unit = FACTOR if row["kind"] == "factor" else units.get(claim.quantity, "")
        rows.append({"alike": "", **row, "unit": unit})
    table = with_verdicts(rows, {i: why for i, claim in enumerate(of) if (why := unfit(claim))})
    factors = table["kind"] == "factor"
    table.loc[factors, _IN_LOGARITHMS] = np.exp(table.loc[factors, _IN_LOGARITHMS])
    return table


_IN_LOGARITHMS = ["paper", "difference", "ci_low", "ci_high", "smallest"]
"""Columns of a factor that are judged as logarithms, whose 0 is no difference, and shown as factors."""
SMALLEST_FACTOR = 1.1
"""The smallest factor of interest, ours: sizes that differ by less than a tenth count as the same."""


def _order(claim: Order, quantities: pd.DataFrame, printed: Lookup) -> dict[str, Any]:
    more, less = (printed(preset, claim.quantity) for preset in (claim.more, claim.less))
    paper, text = (more.value - less.value, f"{more.text} against {less.text}") if more and less else (NAN, "")
    return {**order_row(claim, quantities, paper=paper, printed=text), "kind": "difference"}


def _factor(claim: Ratio, quantities: pd.DataFrame) -> dict[str, Any]:
    """The claim about a factor of sizes, in logarithms."""
    row = {
        "claim": f"|{RUN}| > |{CONTROL}|", "quantity": claim.quantity, "where": claim.where,
        "paper": np.log(factor(claim.quantity)), "printed": f"{claim.text} ×", "smallest": np.log(SMALLEST_FACTOR),
    }  # fmt: skip
    numbers = of_sizes(quantities, claim.quantity)
    logs = {name: float(np.log(numbers[name])) for name in ("mean", "ci_low", "ci_high")}
    same = f"{numbers['same_sign']} of {numbers['n']}"
    return {**seeds_row(row, {**numbers, **logs}), "kind": "factor", "alike": same}
