"""The figures of HDPL."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from streamscope.papers.figures.look import Look, panels
from streamscope.papers.figures.options import PaperFigure
from streamscope.papers.figures.printed import printed

HOME = "hdpl_textbooks"
NAMES = {"llama": "baseline (llama)", "hdpl": "hybrid (hdpl)", "gpt2": "GPT-2", "canon": "Canon",
         "kromhc": "KromHC", "kromcanon": "KromCanon"}  # fmt: skip
Tables = Mapping[str, pd.DataFrame]


def losses(printed_points: Mapping[str, Mapping[int, str]]) -> Any:
    """Validation loss over training steps of the bundled models of the time; beside it the points that are printed, of
    another text and another tokenizer: {preset: {step: claim of the ledger}}."""

    def draw(tables: Tables, look: Look) -> Any:
        table = tables["bundled"]
        have = list(dict.fromkeys(table["model"]))
        canvas = panels(look, ["here", "as printed"], 2, 0.7, horizontal_spacing=0.16, column_widths=[0.62, 0.38])
        for i, model in enumerate([*have, *(one for one in printed_points if one not in have)]):
            name, one = NAMES.get(model, model), table[table["model"] == model]
            if len(one):
                canvas.add_scatter(x=one["step"] / 1000, y=one["loss"], name=name, row=1, col=1, **look.line(i))
            if points := printed_points.get(model):
                canvas.add_scatter(
                    x=[step / 1000 for step in points],
                    y=[printed(claim) for claim in points.values()],
                    name=f"{name}, paper",
                    row=1,
                    col=2,
                    **look.points(i, paper=True, size=7),
                )
        last = max(max(points) for points in printed_points.values()) / 1000
        canvas.update_xaxes(title="steps, thousands").update_yaxes(title="validation loss, nats", col=1)
        canvas.update_xaxes(range=[0, 1.1 * last], col=2)
        return canvas

    return draw


PRINTED = {
    "llama": {10_000: "hdpl-f2-step-10000-llama", 20_000: "hdpl-t1-loss-llama"},
    "hdpl": {10_000: "hdpl-f2-step-10000-hdpl", 20_000: "hdpl-t1-loss-hdpl"},
}
FIGURES = (
    PaperFigure("1", "The architecture", instead="a drawing: python -m models.describe hdpl"),
    PaperFigure("2", "Validation loss over training, baseline and hybrid", losses(PRINTED), (f"{HOME}/bundled",)),
)
