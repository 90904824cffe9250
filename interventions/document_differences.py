"""A model beside its control over the same documents: amplified, without heads or streams (`model_differences`)."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from streamscope.interventions.amplification import Patterns
from streamscope.interventions.amplify_tables import BASELINE, KEPT, by_construction
from streamscope.interventions.areas import readings
from streamscope.interventions.effects import holm
from streamscope.interventions.model_differences import DOCUMENTS, TESTED, Sums, difference, units_of, without
from streamscope.interventions.observe import SMALLEST
from streamscope.interventions.streams_tables import EMPTY, Cell
from streamscope.interventions.sweep import Losses
from streamscope.models.head_spec import Head
from streamscope.probes.undefined import note

NATS = SMALLEST["loss"]
PERCENT = 100 * NATS
ENTROPY = 1e-5
"""Roundings of float32 in a document's mean, in nats per token, percent of a loss and nats."""
CURVE_UNITS = units_of(
    "nats/token (loss, delta), percent of the loss at α = 1, nats (entropy), share of queries (unchanged)", DOCUMENTS
)
AREA_UNITS = units_of("by kind, see interventions.areas", DOCUMENTS)
HEAD_UNITS = units_of("nats/token (delta, interaction), percent of the baseline loss", DOCUMENTS)
STREAM_UNITS = units_of("nats/token (delta), percent of the baseline loss", DOCUMENTS)


def compare_curves(
    alphas: Sequence[float],
    losses: tuple[Losses, Losses],
    patterns: tuple[Patterns, Patterns],
    heads: Sequence[Head] | None = None,
) -> pd.DataFrame:
    """One row per measure and α: run, control, run − control with 95 % over documents, p, p_holm over α.

    loss and delta (nats/token), percent, entropy (nats) and unchanged as in `amplify_tables.curve`, of the same
    documents in both models (run first). At α = 1 nothing has changed yet: delta and percent are 0 there and are not
    tested. Raises `InputError` for other documents in the two.
    """
    rows = []
    for i, alpha in enumerate(alphas):
        y, base = [one.edited[i] for one in losses], [one.baseline for one in losses]
        tokens = [one.tokens.astype(float) for one in losses]
        changes = [a - b for a, b in zip(y, base, strict=True)]
        measures: dict[str, Any] = {
            "loss": difference(*map(Sums, y, tokens), resolution=NATS),
            "delta": difference(*map(Sums, changes, tokens), resolution=NATS),
            "percent": difference(*map(Sums, y, base), resolution=PERCENT, factor=100, shift=-100),
        }
        entropy = [Sums(one.entropy[i].mean((0, 1)), one.queries) for one in patterns]
        measures["entropy"] = difference(*entropy, resolution=ENTROPY)
        for name in ("delta", "percent") if alpha == 1 else ():
            row, why = measures[name]
            row |= dict.fromkeys(("sd", *TESTED), float("nan"))
            why |= dict.fromkeys(("sd", *TESTED), BASELINE)
        later = slice(by_construction(heads) + 1, None)
        free = [one.unchanged[i, later] for one in patterns]
        if alpha == 1 or not len(free[0]):
            row, why = difference(*[Sums(one.queries, one.queries) for one in patterns], resolution=0)
            reason = BASELINE if alpha == 1 else KEPT
            without(row, why, run=reason, control=reason)
            measures["unchanged"] = row, why
        else:
            shares = [Sums(x.mean((0, 1)), one.queries) for x, one in zip(free, patterns, strict=True)]
            measures["unchanged"] = difference(*shares, resolution=0)
        for name, (row, why) in measures.items():
            rows.append({"measure": name, "alpha": float(alpha), **row, "n": len(y[0]), "undefined": note(why)})
    return holm(pd.DataFrame(rows), ("measure",)).sort_values(
        "measure", key=_as_listed, kind="stable", ignore_index=True
    )


def _as_listed(measures: pd.Series) -> pd.Series:
    return measures.map({name: at for at, name in enumerate(dict.fromkeys(measures))})


def compare_areas(alphas: Sequence[float], losses: tuple[Losses, Losses]) -> pd.DataFrame:
    """One row per reading of the area (`areas.areas`): run, control, run − control with 95 % over documents, p, p_holm.

    Over the α of 1 and above. The columns kind and axis name the reading; `measure` is "area". Raises `InputError` as
    `areas.areas`.
    """
    rows = []
    at = [i for i, alpha in enumerate(alphas) if alpha >= 1]
    both = [readings([alphas[i] for i in at], one.edited[at], one.tokens) for one in losses]
    for mine, theirs in zip(*both, strict=True):
        row, why = difference(
            *[Sums(one.totals, one.sizes) for one in (mine, theirs)], resolution=NATS, factor=mine.factor
        )
        about = {"measure": "area", "kind": mine.kind, "axis": mine.axis}
        rows.append({**about, **row, "n": len(mine.totals), "undefined": note(why)})
    return holm(pd.DataFrame(rows), ("measure",))


def compare_streams(
    cells: Sequence[Cell],
    losses: tuple[Losses, Losses],
    index: Sequence[Sequence[int]],
    empty: tuple[Sequence[bool], Sequence[bool]],
) -> pd.DataFrame:
    """One row per measure and cell: run, control, run − control with 95 % over documents, p, p_holm.

    delta (nats/token) and percent as in `streams_tables.stream_table`, of the same documents in both models (run
    first) and the same draws, which are averaged. `index` are the edits of each cell, `empty` says per model in which
    cells the stream is 0 anyway (`streams_tables.empty_stream`). p_holm corrects over the cells of one stream and
    method. Raises `InputError` for other documents in the two.
    """
    rows = []
    for measure in ("delta", "percent"):
        for c, (cell, at) in enumerate(zip(cells, index, strict=True)):
            y, base = [one.edited[list(at)].mean(0) for one in losses], [one.baseline for one in losses]
            if measure == "delta":
                sums = [Sums(a - b, one.tokens.astype(float)) for a, b, one in zip(y, base, losses, strict=True)]
                row, why = difference(*sums, resolution=NATS)
            else:
                row, why = difference(*map(Sums, y, base), resolution=PERCENT, factor=100, shift=-100)
            without(row, why, *(EMPTY if one[c] else "" for one in empty))
            about = {"measure": measure, **cell.labels, **row, "n": len(y[0])}
            rows.append({**about, "undefined": note(why)})
    return holm(pd.DataFrame(rows), ("measure", "stream", "method"))
