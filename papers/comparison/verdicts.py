"""Does a claim of a paper hold on these runs? One rule, applied to an interval over training seeds.

    direction   holds            the 95 % interval lies on the side that the paper says, and p, corrected over the
                                 claims of the table (Holm), is at most .05
                opposite         the same on the other side
                negligible       the whole interval lies within ± the smallest effect of interest of the claim
                not resolved     anything else with an interval: it holds 0 (or the limit), or its p does not survive
                                 the correction
                undefined        there is no interval, and why
                any other text   the claim cannot be judged on these runs, and why: `instead` (the model cannot do the
                                 task, the arms differ in something else as well, withdrawn)
    alone       holds or opposite by the interval alone, uncorrected, where the verdict is "not resolved"
    size        unless opposite: the printed difference lies inside the interval, or this one is larger or smaller; not
                in nats or parameters, whose differences belong to a text, a tokenizer and a width

No effect (negligible) is judged row by row, not corrected for the number of rows. Only holds and opposite need the
corrected p.

A limit has Student's interval over the seeds of one preset. Where every seed gives the same number there is no interval
and no p: that number's side is the verdict, which says so. It has no error rate: a difference that is +1 or −1 by a
coin is the same at three seeds in one case of four. A number that training does not change is counted, not measured;
its verdict says that too.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from streamscope.instruments.stats.means import with_holm
from streamscope.instruments.undefined_cells import note, reasons
from streamscope.papers.comparison.printed import Bound, Order, between, smallest
from streamscope.papers.comparison.printed import number as printed_number
from streamscope.papers.comparison.seeds import FLAT, NAN, against_zero, nothing, paired, seeds_of

HOLDS, OPPOSITE, NEGLIGIBLE = "holds", "opposite", "negligible"
COUNTED = "counted, not trained"
LIMIT = re.compile(r".+ (above|below) ([-+]?\d*\.?\d+%?)")
"""How the claim of a limit ends: "lfa above 0.075"."""
CANNOT = "the model cannot do the task"
LEVEL = 0.05
NOT_COMPARED = ("", "nats", "nats/token", "nats, log-odds", "parameters")
"""Units without a size: unknown ones, and those whose differences text, tokenizer, context or width set."""


def direction(low: float, high: float, p: float, seeds: str, least: float = 0.0) -> str:
    """Verdict on a quantity that the paper says is positive: its interval, and p corrected over the table's claims.

    `least` is the smallest effect of interest, in the unit of the interval; `seeds` is for the text, as "3".
    Raises `ValueError` for an interval that is turned round or has no ends.
    """
    if not low <= high:
        raise ValueError(f"the interval {low} … {high} is turned round or has no ends")
    if -least <= low and high <= least and least > 0:
        return f"{NEGLIGIBLE}: within ±{least:g}"
    if low <= 0 <= high:
        return f"not resolved at n={seeds} seeds"
    if not p <= LEVEL:
        return f"not resolved at n={seeds} seeds, corrected"
    return HOLDS if low > 0 else OPPOSITE


def size(expected: float, low: float, high: float) -> str:
    """Where the printed difference lies; all three in the direction that the paper says. "" where one is missing."""
    if expected != expected or low != low or high != high:
        return ""
    if low <= expected <= high:
        return "printed value inside"
    return "smaller than printed" if high < expected else "larger than printed"


def as_measured(claim: str, *differences: float) -> tuple[float, ...]:
    """What was measured, from a row's difference and the ends of its interval, lower end first.

    Of a limit c the difference is x − c, or c − x where x is to lie below: gives x, which is what one reads. Of
    anything else, as an order of two models, the difference is what is measured.
    """
    limit_text = LIMIT.fullmatch(claim)
    if limit_text is None:
        return differences
    limit, sign = printed_number(limit_text[2]), 1.0 if limit_text[1] == "above" else -1.0
    middle, *ends = (limit + sign * x for x in differences)
    return middle, *(ends if sign > 0 else reversed(ends))


# ---- a row per claim, without its verdict ------------------------------------------------------


def bound_row(claim: Bound, quantities: pd.DataFrame) -> dict[str, Any]:
    """The claim that an architecture lies above or below a limit; the sign is such that positive holds."""
    sign = 1.0 if claim.side == "above" else -1.0
    row = {
        "claim": f"{claim.preset} {claim.side} {claim.text}", "quantity": claim.quantity, "where": claim.where,
        "paper": NAN, "printed": claim.text, "smallest": smallest(claim, quantities),
    }  # fmt: skip
    values, _ = seeds_of(quantities, claim.quantity, claim.preset)
    none = "" if len(values) else nothing(quantities, claim.quantity, claim.preset)
    return seeds_row(row, against_zero(sign * (values - claim.limit), none), f"one seed of {claim.preset}")


def order_row(claim: Order, quantities: pd.DataFrame, **columns: Any) -> dict[str, Any]:
    """The claim that one arm has more of a quantity than another, over the pairs of seeds.

    `columns` are more of it, or what the paper prints (`paper`, the difference, and `printed`, the text) where the
    claim's `quote` does not say it.
    """
    row = {
        "claim": f"{claim.more} > {claim.less}", "quantity": claim.quantity, "where": claim.where,
        "paper": between(claim.quote), "printed": claim.quote, "smallest": smallest(claim, quantities), **columns,
    }  # fmt: skip
    return seeds_row(row, paired(quantities, claim.quantity, claim.more, claim.less))


def seeds_row(row: dict[str, Any], numbers: Mapping[str, Any], one: str = "one pair of seeds") -> dict[str, Any]:
    """The row of a claim with what seeds say of it: `seeds.against_zero`, or `seeds.paired` of more and less."""
    why = numbers["why"].get("ci_low", "")
    why = one if why == "one seed" else why
    return measured(row, numbers["mean"], numbers["ci_low"], numbers["ci_high"], numbers["p"], str(numbers["n"]), why)


def measured(
    row: dict[str, Any], difference: float, low: float, high: float, p: float, seeds: str, why: str
) -> dict[str, Any]:
    """The row of a claim with what was measured and reasons for what is undefined; `with_verdicts` judges it.

    `row` has claim, quantity, where, paper, printed and smallest (the smallest effect of interest).
    """
    cells = {"difference": difference, "ci_low": low, "ci_high": high, "p": p}
    missing = {k: why or COUNTED for k, x in cells.items() if x != x}
    if row["paper"] != row["paper"]:
        missing["paper"] = "the paper prints no difference, or in no known unit"
    if row["smallest"] != row["smallest"]:
        missing["smallest"] = "no effect is too small: the number is exact, or of no known unit"
    return {**row, **cells, "seeds": seeds, "why": why, "undefined": note(missing)}


# ---- all claims of a page: one family, one correction ------------------------------------------


def with_verdicts(
    rows: Sequence[Mapping[str, Any]],
    instead: Mapping[int, str] | None = None,
    quantities: pd.DataFrame | None = None,
    withheld: Mapping[int, str] | None = None,
) -> pd.DataFrame:
    """The table of claims: `measured` rows with Holm's p over all that are judged, direction, alone and size.

    `instead` gives rows, by their place, that cannot be judged the text of their verdict; they are no tests and not in
    the family. `withheld` does so where the values themselves say it, so these rows stay in the family: it would depend
    on what was found. A row with `kind` factor is in logarithms. Only rows of a known unit have a size: their own
    `unit`, or that of their quantity in the table `quantities`. Without rows the table is empty.
    """
    if not rows:
        return pd.DataFrame()
    instead, table = dict(instead or {}), pd.DataFrame(rows)
    kept = table["p"].copy()
    table.loc[list(instead), "p"] = NAN
    table["undefined"] = [
        note({**reasons(text), **({"p": "not judged"} if i in instead and kept[i] == kept[i] else {})})
        for i, text in enumerate(table["undefined"])
    ]
    table = with_holm(table)
    claims = list(table.itertuples())
    instead |= withheld or {}
    verdict = [instead.get(i) or _verdict(r) for i, r in enumerate(claims)]
    both = list(zip(verdict, claims, strict=True))
    alone = [_side(r.ci_low, r.ci_high) if v.startswith("not resolved") else "" for v, r in both]
    unsized = {i for i, v in enumerate(verdict) if v.startswith(OPPOSITE)} | set(instead)
    units = {} if quantities is None else dict(zip(quantities["quantity"], quantities["unit"], strict=True))
    unsized |= {i for i, r in enumerate(claims) if getattr(r, "unit", units.get(r.quantity, "")) in NOT_COMPARED}
    sizes = ["" if i in unsized else size(r.paper, r.ci_low, r.ci_high) for i, r in enumerate(claims)]
    return table.drop(columns="why").assign(direction=verdict, alone=alone, size=sizes)


def judge(claims: Iterable[Bound | Order], quantities: pd.DataFrame) -> pd.DataFrame:
    """The table of claims about quantities of runs, one correction (Holm) over all; empty without claims."""
    rows = [bound_row(one, quantities) if isinstance(one, Bound) else order_row(one, quantities) for one in claims]
    return with_verdicts(rows, quantities=quantities)


def _verdict(r: Any) -> str:
    if r.ci_low != r.ci_low or r.ci_high != r.ci_high:
        if r.why == FLAT and r.difference == r.difference:
            return _same_in_all(r.difference, r.seeds, r.smallest)
        return f"undefined: {r.why.removeprefix('undefined ')}"
    if r.p != r.p:
        return f"{_side(r.ci_low, r.ci_high) or 'undefined'}: {COUNTED}"
    return direction(r.ci_low, r.ci_high, r.p_holm, r.seeds, 0.0 if r.smallest != r.smallest else r.smallest)


def _same_in_all(difference: float, seeds: str, least: float) -> str:
    """Verdict of a difference without spread over seeds; one that rounding could make is none."""
    value, seeds = round(difference, 12), f"n={seeds} seeds"
    if abs(value) > (least if least == least else 0.0):
        return f"{_side(value, value)}: the same at {seeds}"
    return f"{NEGLIGIBLE}: within ±{least:g}, the same at {seeds}" if value else f"not resolved at {seeds}"


def _side(low: float, high: float) -> str:
    return HOLDS if low > 0 else OPPOSITE if high < 0 else ""


# ---- how many ----------------------------------------------------------------------------------


def verdicts(table: pd.DataFrame) -> pd.Series:
    """How many claims hold, are opposite, negligible, not resolved, counted, undefined, or cannot be judged."""
    return table["direction"].map(_kind).value_counts()


def _kind(text: str) -> str:
    if text.endswith(COUNTED):
        return COUNTED
    return re.sub(r"( at n=|: ).*", "", text)


def summary(table: pd.DataFrame) -> str:
    """The counts in one sentence, with those that exclude the printed size and what chance alone would give.

    Of m tested intervals m/20 are expected to miss 0 by chance: that is why verdicts take the corrected p.
    """
    counts = ", ".join(f"{kind}: {n}" for kind, n in verdicts(table).items())
    open_ = table[table["direction"].str.startswith("not resolved")]
    outside = int(open_["size"].isin(["smaller than printed", "larger than printed"]).sum())
    leaning = int((open_["alone"] != "").sum())
    tests = int(table["p"].notna().sum())
    text = f"{counts}."
    if outside:
        text += f" Of those not resolved, {outside} exclude the printed size."
    if leaning:
        text += (
            f" {leaning} more have an interval on one side of 0 and a p that does not survive the correction over "
            f"{tests} tests (about {tests / 20:.1f} such intervals are expected by chance alone)."
        )
    return text
