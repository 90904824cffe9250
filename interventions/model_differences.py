"""How far a model's numbers lie from those of its control: differences over the documents or cases both were given.

With y_d and n_d the totals of document or independent case d (nats and tokens; sums over its cases and their number),
in the run and in the control (y', n'),

    run = a Σ y_d / Σ n_d + b      control = a Σ y'_d / Σ n'_d + b      difference = run − control

a and b make a percentage of a ratio. The interval is paired: e_d = a (y_d − R n_d) / Σ n − a (y'_d − R' n'_d) / Σ n'
has the variance D/(D−1) Σ e_d² (linearised ratios, `estimators.ratio_and_error` where n = n'), and t has
`estimators.degrees_of_freedom`. Where no document or case differs from another there is neither interval nor p.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from streamscope.models.errors import InputError
from streamscope.probes.stats.estimators import (
    Clusters,
    clustered_square,
    degrees_of_freedom,
    read_clusters,
    t_quantile,
)
from streamscope.probes.stats.t_tests import constant
from streamscope.probes.undefined import note

NAN = float("nan")
NUMBERS = ("run", "control", "difference", "sd", "ci_low", "ci_high", "p")
TESTED = ("ci_low", "ci_high", "p")
DOCUMENTS, CASES = "documents, the same in both models", "cases that both models have"


def units_of(measures: str, n: str) -> dict[str, str]:
    """Units of the columns of a table of differences: `measures` names those of its measures, `n` what is counted."""
    return {
        **dict.fromkeys(("run", "control", "difference", "ci_low", "ci_high"), f"units of the measure: {measures}"),
        "sd": "units of the measure, of run − control between documents or independent cases",
        "n": n,
        "clusters": "independent cases, or the fewest words of a kind where cases share words",
    }


class Sums(NamedTuple):
    """Totals y and sizes n of documents or independent cases, [D]."""

    totals: np.ndarray
    sizes: np.ndarray


def difference(
    run: Sums,
    control: Sums,
    *,
    resolution: float,
    factor: float = 1.0,
    shift: float = 0.0,
    units: str = "document",
    within: Clusters | None = None,
) -> tuple[dict[str, float], dict[str, str]]:
    """The columns `NUMBERS` as this module defines them, and why some have no value (column -> reason).

    `factor` and `shift` are a and b; `resolution` is the rounding of a document's run − control, in units of the
    measure; `within` says which cells share labels of several kinds. Raises `InputError` for other documents in the
    two, sizes that are not positive and values that are not finite.
    """
    columns = [np.asarray(x, float) for x in (*run, *control)]
    y, n, other, m = columns
    if len({x.shape for x in columns}) > 1 or y.ndim != 1 or not len(y):
        raise InputError(
            f"a difference needs the same documents or cases in both models, got {len(y)} and {len(other)}"
        )
    if not all(np.isfinite(x).all() for x in columns) or (n <= 0).any() or (m <= 0).any():
        raise InputError("a difference needs finite totals, and sizes above 0")
    a, b = float(y.sum() / n.sum()), float(other.sum() / m.sum())
    each = factor * (y / n - other / m)
    row = dict.fromkeys(NUMBERS, NAN)
    row |= {"run": factor * a + shift, "control": factor * b + shift, "difference": factor * (a - b)}
    shared, d = (None, len(each)) if within is None else (within.shared, within.count)
    if d < 2:
        return row, dict.fromkeys(("sd", *TESTED), f"one {units}")
    row["sd"] = float(each.std(ddof=1))
    size = float(np.abs(factor) * max(np.abs(y / n).max(), np.abs(other / m).max()))
    if np.ptp(each) <= resolution or constant(each, size):
        return row, dict.fromkeys(TESTED, f"the same in every {units}")
    e = factor * ((y - a * n) / n.sum() - (other - b * m) / m.sum())
    error = float(np.sqrt(clustered_square(e, shared)))
    df = float(degrees_of_freedom((n / n.sum() + m / m.sum()) / 2, shared))
    half = t_quantile(0.95, df) * error
    row |= {"ci_low": row["difference"] - half, "ci_high": row["difference"] + half}
    row["p"] = float(2 * stats.t.sf(abs(row["difference"]) / error, df))
    return row, {}


def without(row: dict[str, float], why: dict[str, str], run: str = "", control: str = "") -> None:
    """Take the numbers out of a row whose value in the run or in the control is undefined for the reasons given."""
    for column, reason in (("run", run), ("control", control)):
        if reason:
            row |= dict.fromkeys((column, "difference", "sd", *TESTED), NAN)
            why |= dict.fromkeys((column, "difference", "sd", *TESTED), reason)


def shared_cases(mine: pd.DataFrame, theirs: pd.DataFrame, task: str) -> tuple[np.ndarray, np.ndarray]:
    """(mask over `mine`, rows of `theirs`) of the cases that both have, by the column id.

    Raises `InputError` for fewer than two.
    """
    common = mine["id"].isin(set(theirs["id"])).to_numpy()
    if common.sum() < 2:
        raise InputError(f"task {task!r}: fewer than two cases can be scored with both models' tokenizers")
    return common, pd.Series(range(len(theirs)), index=theirs["id"])[mine["id"][common]].to_numpy()


def compare_cases(
    labels: Sequence[Mapping[str, Any]],
    measure: str,
    run: Sequence[np.ndarray | None],
    control: Sequence[np.ndarray | None],
    clusters: Any,
    *,
    resolution: float,
    missing: str = "no case has it",
    absent: str = "one of the models does not have it",
) -> pd.DataFrame:
    """One row per label: the mean of `run` [N] minus that of `control` [N] over the cases where both are finite.

    Intervals and p are over independent cases (`clusters`, labels [N]). What a model does not have is None there: the
    row has the other's value and the reason `absent`; without a case that both define it is undefined, `missing` says
    why. No p_holm yet: `effects.holm`.
    """
    named = pd.Series(list(clusters), dtype=object).to_numpy()
    rows = []
    for label, x, y in zip(labels, run, control, strict=True):
        both = [v for v in (x, y) if v is not None]
        use = np.logical_and.reduce([np.isfinite(v) for v in both])
        row, why = dict.fromkeys(NUMBERS, NAN), dict.fromkeys(NUMBERS, absent if len(both) < 2 else missing)
        within = read_clusters(named[use], int(use.sum()))
        if use.any() and x is not None and y is not None:
            sums = [Sums(*within.totals(v[use])) for v in (x, y)]
            row, why = difference(*sums, resolution=resolution, units="independent case", within=within)
        elif use.any():
            row["control" if x is None else "run"] = float(both[0][use].mean())
        why = {name: reason for name, reason in why.items() if not np.isfinite(row[name])}
        about = {"n": int(use.sum()), "clusters": within.count, "undefined": note(why)}
        rows.append({"measure": measure, **label, **row, **about})
    return pd.DataFrame(rows)
