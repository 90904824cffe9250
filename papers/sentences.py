"""What the papers say, sentence by sentence, with a verdict of each by one rule.

    python -m papers lfa --claims                      every sentence of LFA with its verdict

A line of `papers/PAPER/claims.csv` is a sentence with its place, the rows of the long table that it points to, and a
test. The rule takes the 95 % interval over training seeds, not corrected for the number of sentences: one of twenty
that test a true zero would be decided by chance. The claims that decide are the registered ones (`papers.primary`).

    number      reproduced: the printed number lies in the interval, whose half is at most a quarter of it;
                different value: it lies outside
    counted     of a number that has no seeds: reproduced or different value, to the printed digits
    > N, < N    reproduced or contradicted: the interval lies on that side of N, or on the other; no effect: it lies
                within half of the printed difference around N
    within N    reproduced: the interval lies within ±N; contradicted: outside
    otherwise   inconclusive; too weak to test: an arm lacks what the sentence `needs`; not measured; or what a reading
                of the paper says: not testable here, true by construction, paper inconsistent
"""

from collections.abc import Mapping
from math import log
from typing import Any

import pandas as pd

from streamscope.cli.errors import InputError, unknown
from streamscope.papers.paper import Estimate, Selection, estimate, load
from streamscope.papers.primary import PAPERS
from streamscope.papers.printed import form, number, with_interval, written

VERDICTS = (
    "reproduced", "contradicted", "no effect", "different value", "inconclusive", "too weak to test", "not measured",
    "not testable here", "true by construction", "paper inconsistent",
)  # fmt: skip
SURE = 0.25
"""A number is reproduced by an interval whose half is at most this share of it."""


def sentences(paper: str) -> pd.DataFrame:
    """The claims of a paper with what was measured and the verdict."""
    claims = pd.read_csv(PAPERS / paper / "claims.csv", dtype=str, keep_default_na=False)
    claims["x"], rows = pd.to_numeric(claims["x"]), load(paper)
    return pd.DataFrame([judged(claim, rows) for claim in claims.to_dict("records")])


def judged(claim: Mapping[str, Any], rows: pd.DataFrame) -> dict[str, Any]:
    """A claim with its estimate, as text, and its verdict."""
    measurement = None
    if claim["quantity"] and not claim["verdict"]:
        selection = Selection(claim["arms"], claim["quantity"], claim["part"], claim["x"], claim["grid"])
        measurement = estimate(rows, selection, claim["unit"])
    word = claim["verdict"] or ("not measured" if measurement is None else _verdict(claim, measurement, rows))
    if word not in VERDICTS:
        raise unknown(f"verdict of {claim['id']}", word, list(VERDICTS))
    text = "" if measurement is None else with_interval(measurement, form(claim["printed"] or "0.000", claim["unit"]))
    n = "" if measurement is None else " / ".join(map(str, measurement.n))
    return {**claim, "measured": text, "n": n, "verdict": word}


def _verdict(claim: Mapping[str, Any], ci: Estimate, rows: pd.DataFrame) -> str:
    if claim["needs"] and not _able(claim, rows):
        return "too weak to test"
    kind, _, text = claim["test"].partition(" ")
    if kind == "counted":
        number_form = form(claim["printed"], claim["unit"])
        scale = 100.0 if number_form.suffix == "percent" else 1.0
        is_equal = written(ci.mean, number_form) == written(number(claim["printed"]) * scale, number_form)
        return "reproduced" if is_equal else "different value"
    if not ci.low <= ci.high:  # one seed has no interval; seeds that agree have one of length 0
        return "inconclusive"
    if kind == "number":
        scale = 0.01 if claim["unit"] == "percent" and "%" in claim["printed"] else 1.0
        printed_value = number(claim["printed"]) / scale
        if not ci.low <= printed_value <= ci.high:
            return "different value"
        return "reproduced" if (ci.high - ci.low) / 2 <= SURE * abs(printed_value) else "inconclusive"
    if kind not in (">", "<", "within"):
        raise InputError(f"{claim['id']}: the test {claim['test']!r} is none of number, counted, > N, < N, within N")
    limit = float(text)
    if kind == "within":
        is_inside, is_outside = -limit < ci.low and ci.high < limit, ci.low > limit or ci.high < -limit
        return "reproduced" if is_inside else "contradicted" if is_outside else "inconclusive"
    sides = (ci.low > limit, ci.high < limit)
    holds, denied = sides if kind == ">" else sides[::-1]
    low, high, margin = ci.low - limit, ci.high - limit, abs(number(claim["printed"])) / 2
    if " / " in claim["arms"] and min(limit, ci.low, number(claim["printed"])) > 0:  # a factor, by its logarithm
        low, high = log(ci.low / limit), log(ci.high / limit)
        margin = abs(log(number(claim["printed"]))) / 2
    if not (holds or denied) and -margin <= low and high <= margin:
        return "no effect"
    return "reproduced" if holds else "contradicted" if denied else "inconclusive"


def _able(claim: Mapping[str, Any], rows: pd.DataFrame) -> bool:
    """Whether every arm of a claim has what it needs: "preference > 0", by the lower end of the interval."""
    quantity, _, limit = claim["needs"].partition(" > ")
    for arm in claim["arms"].replace(" / ", " − ").split(" − "):
        measurement = estimate(rows, Selection(arm, quantity, grid=claim["grid"]))
        if measurement is None or not measurement.low > float(limit):
            return False
    return True
