"""Judge a paper's primary claims, which were registered before their runs were measured.

    python -m papers.primary lfa                       the claims of papers/lfa/primary.toml on results/differences
    python -m papers.primary lfa --rows FOLDER         on rows that papers.differences wrote for your own runs

A claim compares one number a run between arms; training seeds are the units. Its contrast is Σ_a w_a mean_a with
Welch's standard error sqrt(Σ_a w_a² s_a² / n_a) and Satterthwaite's degrees of freedom. p is two-sided, corrected by
Holm over the paper's claims. Verdicts:

    reproduced     significant, with the printed sign; an equivalence: both one-sided tests against ± the margin
    contradicted   significant, with the other sign; an equivalence: the interval lies outside the margin
    no effect      not significant, and the interval lies within ± the margin
    too weak       an arm does not show what the claim needs (its interval reaches the limit)
    inconclusive   none of these; `shown` says what difference these seeds show with 80 % power

Intervals of verdicts are those at level 1 − .05 / number of claims; the table shows those at 95 %.
"""

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from streamscope.cli.errors import InputError
from streamscope.cli.parse import command, parse

PAPERS = Path(__file__).resolve().parent
ROWS = PAPERS.parent / "results" / "differences"
LEVEL, POWER = 0.05, 0.8


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m papers.primary`."""

    paper: Annotated[Literal["dst", "lfa", "hdpl", "pls", "krom"], tyro.conf.Positional]
    """The paper."""
    rows: Path = ROWS
    """Folder of rows: a file a run, written by `papers.differences`."""


def contrast(values: Mapping[str, Any], weights: Mapping[str, float]) -> tuple[float, float, float]:
    """(Σ w_a mean_a, its standard error, degrees of freedom) over arms of independent runs (Welch 1947)."""
    import numpy as np

    total, variances, df = 0.0, [], []
    for arm, weight in weights.items():
        runs = np.asarray(values[arm], float)
        total += weight * runs.mean()
        variances.append(weight**2 * runs.var(ddof=1) / len(runs))
        df.append(len(runs) - 1)
    variance = np.array(variances)
    if not variance.sum():
        return total, 0.0, float(sum(df))
    return total, float(np.sqrt(variance.sum())), float(variance.sum() ** 2 / (variance**2 / np.array(df)).sum())


def detectable(error: float, df: float, level: float = LEVEL, power: float = POWER) -> float:
    """The difference that a two-sided t test with this standard error shows with this power, with the right sign."""
    from scipy.optimize import brentq
    from scipy.stats import nct, t

    limit = t.isf(level / 2, df)
    return error * float(brentq(lambda d: nct.sf(limit, df, d) - power, 0, limit + 8))


def judge(claims: Sequence[Mapping[str, Any]], rows: Any, seeds: range) -> Any:
    """A row per claim: difference, interval, p, Holm's p, what the seeds show, and the verdict.

    `rows` has the columns arm, seed, quantity, value. Raises `InputError` for an arm with fewer than two of the seeds.
    """
    import pandas as pd

    from streamscope.instruments.stats.estimators import holm

    rows = rows[rows["seed"].isin(seeds)]
    table = pd.DataFrame([_measured(claim, rows, LEVEL / len(claims)) for claim in claims])
    table["p_holm"] = holm(table["p"].to_numpy())
    table["verdict"] = [_verdict(claim, row) for claim, row in zip(claims, table.to_dict("records"), strict=True)]
    return table


def endpoints(spec: Mapping[str, Any], rows: Any, seeds: range) -> Any:
    """A row per registered endpoint: the difference of two arms with p (Holm over them), and every arm's mean."""
    import pandas as pd

    from streamscope.instruments.stats.estimators import holm

    rows, (first, second) = rows[rows["seed"].isin(seeds)], spec["arms"]
    claims = [{"id": name, "quantity": name, "arms": [first, second], "margin": 0.0} for name in spec["quantities"]]
    table = pd.DataFrame([_measured(claim, rows) for claim in claims]).drop(columns="claim")
    table["p_holm"] = holm(table["p"].to_numpy())
    means = rows.groupby(["quantity", "arm"])["value"].mean().unstack("arm")
    for arm in (first, second, *spec["beside"]):
        if arm in means:
            table[arm] = means[arm].reindex(table["quantity"]).to_numpy()
    return table


def _values(rows: Any, arm: str, quantity: str) -> Any:
    values = rows[(rows["arm"] == arm) & (rows["quantity"] == quantity)].drop_duplicates("seed")["value"].dropna()
    if len(values) < 2:
        raise InputError(
            f"{quantity} of {arm}: {len(values)} of the registered seeds are measured, at least 2 are needed"
        )
    if not values.between(-1e300, 1e300).all():
        raise InputError(f"{quantity} of {arm} is not finite in a run: measure it again")
    return values.to_numpy(float)


def _measured(claim: Mapping[str, Any], rows: Any, level: float = LEVEL) -> dict[str, Any]:
    """Difference, 95 % interval, `ends` at another level and p of one claim; an equivalence's p is of two tests."""
    from scipy.stats import t

    weights: dict[str, float] = {}
    for arm, sign in zip(claim["arms"], (1.0, -1.0, -1.0, 1.0), strict=False):
        weights[arm] = weights.get(arm, 0.0) + sign
    values = {arm: _values(rows, arm, claim["quantity"]) for arm in weights}
    difference, error, df = contrast(values, weights)
    if claim.get("relative"):
        scale = 100 / abs(float(values[claim["arms"][1]].mean()))
        difference, error = difference * scale, error * scale
    (half, wide), margin = t.isf([LEVEL / 2, level / 2], df) * error, float(claim["margin"])
    kind = claim.get("test", "difference")
    distance = {"equivalence": margin - abs(difference), "below": margin - difference}.get(kind, difference)
    z = distance / error if error else math.copysign(math.inf, distance) if distance else 0.0
    p = float(t.sf(z, df) if kind == "equivalence" else 2 * t.sf(abs(z), df))
    weak = [arm for arm in weights if "needs" in claim and _lacks(claim["needs"], rows, arm)]
    return {
        "claim": claim["id"], "quantity": claim["quantity"], "arms": " − ".join(claim["arms"]),
        "n": " / ".join(str(len(runs)) for runs in values.values()), "difference": difference, "low": difference - half,
        "high": difference + half, "ends": (difference - wide, difference + wide), "p": p, "weak": ", ".join(weak),
        "shown": detectable(error, df) if error else 0.0,
    }  # fmt: skip


def _lacks(needs: Mapping[str, Any], rows: Any, arm: str) -> bool:
    """Whether the lower end of the arm's 95 % interval does not lie above the limit."""
    from scipy.stats import t

    mean, error, df = contrast({arm: _values(rows, arm, needs["quantity"])}, {arm: 1.0})
    return mean - float(t.isf(LEVEL / 2, df)) * error <= needs["above"]


def _verdict(claim: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    margin, significant, (low, high) = float(claim["margin"]), row["p_holm"] <= LEVEL, row["ends"]
    if row["weak"]:
        return f"too weak: {row['weak']}"
    if claim.get("test") == "equivalence":
        is_outside = low > margin or high < -margin
        return "reproduced" if significant else "contradicted" if is_outside else "inconclusive"
    if claim.get("test") == "below":
        return ("reproduced" if row["difference"] < margin else "contradicted") if significant else "inconclusive"
    if significant:
        return "reproduced" if row["difference"] * _printed_sign(claim) > 0 else "contradicted"
    return "no effect" if -margin <= low and high <= margin else "inconclusive"


def _printed_sign(claim: Mapping[str, Any]) -> float:
    """Sign of the printed contrast."""
    cell_text = claim["printed"]
    if isinstance(cell_text[0], str):
        return 1.0 if cell_text[0] == "larger" else -1.0
    return sum(sign * value for sign, value in zip((1.0, -1.0, -1.0, 1.0), cell_text, strict=False))


def registered(paper: str) -> tuple[list[dict[str, Any]], range, dict[str, Any]]:
    """The claims of papers/PAPER/primary.toml, the registered seeds, and the endpoints, if it has some."""
    data = tomllib.loads((PAPERS / paper / "primary.toml").read_text("utf-8"))
    return data["claims"], range(*data["seeds"]), data.get("endpoints", {})


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, read the rows, judge, print."""
    options = parse(Options, argv, __doc__)

    import pandas as pd

    files = sorted(options.rows.glob("*.csv"))
    if not files:
        raise InputError(f"{options.rows} has no rows: python -m papers.differences RUN… writes them")
    claims, seeds, spec = registered(options.paper)
    rows = pd.concat([pd.read_csv(file) for file in files], ignore_index=True)
    for table in [judge(claims, rows, seeds), *([endpoints(spec, rows, seeds)] if spec else [])]:
        print(table.drop(columns=["weak", "ends"]).to_string(index=False, float_format="{:.4g}".format), end="\n\n")


if __name__ == "__main__":
    command(main)
