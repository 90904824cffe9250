"""The figures of DST."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from streamscope.papers.dst.printed import PAPER_ALPHAS, TABLE5
from streamscope.papers.figures.look import Look, single
from streamscope.papers.figures.options import PaperFigure

HOME = "dst_tinystories"
Tables = Mapping[str, pd.DataFrame]


def amplified(tables: Tables, look: Look) -> Any:
    """Fig. 2: validation loss by the factor α on the scores, mean over seeds; what Table 5 prints in open markers."""
    canvas, table = single(look, 0.8), tables["amplification"]
    have = list(dict.fromkeys(table["preset"]))
    for i, preset in enumerate([*have, *(one for one in TABLE5 if one not in have)]):
        mean = table[table["preset"] == preset].groupby("alpha")["loss"].mean()
        if len(mean):
            canvas.add_scatter(x=mean.index, y=mean, name=preset, **look.line(i))
        if preset in TABLE5:
            canvas.add_scatter(x=list(PAPER_ALPHAS), y=[float(x) for x in TABLE5[preset]], name=f"{preset}, paper",
                               **look.points(i, paper=True))  # fmt: skip
    canvas.update_xaxes(title="α", type="log", tickvals=sorted({*PAPER_ALPHAS, *table["alpha"]}))
    canvas.update_yaxes(title="validation loss, nats per token")
    return canvas


FIGURES = (
    PaperFigure("1", "The architecture", instead="a drawing: python -m models.describe dst-kron"),
    PaperFigure("2", "Validation loss by attention amplification", amplified, (f"{HOME}/amplification",), height=0.8),
    PaperFigure("3", "Learned Kronecker routing matrices",
                instead="no table has them: python -m probes.routing RUN --figure routing.svg"),
    PaperFigure("4", "Attention under amplification",
                instead="no table has it: python -m interventions.amplify RUN --picture L3.H0 --figure picture.svg"),
    PaperFigure("5", "Coreference accuracy by head",
                instead="no table has it: python -m probes.coreference RUN --domain keys --figure heads.svg"),
)  # fmt: skip
