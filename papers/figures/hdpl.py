"""The figures of HDPL."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from streamscope.papers.figures.look import Look, single
from streamscope.papers.figures.options import PaperFigure

HOME = "hdpl_textbooks"
NAMES = {"llama": "baseline (llama)", "hdpl": "hybrid (hdpl)", "gpt2": "GPT-2", "kromcanon": "KromCanon"}
Tables = Mapping[str, pd.DataFrame]


def losses(tables: Tables, look: Look) -> Any:
    """Validation loss over training tokens of two of the bundled models of their time."""
    canvas, table = single(look, 0.75), tables["bundled"]
    for i, (model, one) in enumerate(table.groupby("model", sort=False)):
        canvas.add_scatter(x=one["tokens_seen"] / 1e6, y=one["loss"], name=NAMES.get(model, model), **look.line(i))
    canvas.update_xaxes(title="training tokens, millions").update_yaxes(title="validation loss, nats per token")
    return canvas


FIGURES = (
    PaperFigure("1", "The architecture", instead="a drawing: python -m models.describe hdpl"),
    PaperFigure("2", "Validation loss over training, baseline and hybrid", losses, (f"{HOME}/bundled",)),
)
