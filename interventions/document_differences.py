"""A model beside its control over the same documents: without streams (`model_differences`)."""

from collections.abc import Sequence

import pandas as pd

from streamscope.interventions.effects import holm
from streamscope.interventions.model_differences import DOCUMENTS, Sums, difference, units_of, without
from streamscope.interventions.observe import SMALLEST
from streamscope.interventions.streams_tables import EMPTY, Cell
from streamscope.interventions.sweep import Losses
from streamscope.probes.undefined import note

NATS = SMALLEST["loss"]
PERCENT = 100 * NATS
"""Roundings of float32 in a document's mean, in nats per token and percent of a loss."""
HEAD_UNITS = units_of("nats/token (delta, interaction), percent of the baseline loss", DOCUMENTS)
STREAM_UNITS = units_of("nats/token (delta), percent of the baseline loss", DOCUMENTS)


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
