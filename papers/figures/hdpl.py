"""The figures of HDPL."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from streamscope.papers.comparison.curves import wide
from streamscope.papers.comparison.printed import printed
from streamscope.papers.figures.style import Style, note, panels

NAMES = {"llama": "baseline (llama)", "hdpl": "hybrid (hdpl)", "gpt2": "GPT-2", "canon": "Canon",
         "kromhc": "KromHC", "kromcanon": "KromCanon"}  # fmt: skip
LONG = 20
"""From this many letters on, a name takes a line of the legend for itself."""
Tables = Mapping[str, pd.DataFrame]


def losses(printed_points: Mapping[str, Mapping[int, str]], others: bool = True) -> Any:
    """Validation loss over training steps, the mean over seeds and a band of one standard deviation, of every arm;
    and the printed points, of another text and another tokenizer: {preset: {step: claim of the ledger}}.

    `others` says whether arms of which nothing is printed are drawn as well.
    """

    def draw(tables: Tables, style: Style) -> Any:
        table = tables["curves"]
        drawn = [arm for arm in dict.fromkeys(table["preset"]) if others or arm in printed_points]
        arms = {arm: wide(table, arm).dropna(axis=1) for arm in drawn}
        names = [*arms, *(one for one in printed_points if one not in arms)]
        lines = len(names) if max(len(_name(arm)) for arm in names) > LONG else -(-len(names) // 2)
        height = 0.58 + 0.08 * lines  # of the legend
        canvas = panels(style, ["here", "as printed"], 2, height, horizontal_spacing=0.16, column_widths=[0.62, 0.38])
        for i, arm in enumerate(names):
            name = _name(arm)
            if arm in arms:
                mean, sd = arms[arm].mean(), arms[arm].std()
                x = mean.index / 1000
                if len(arms[arm]) > 1:
                    ends = np.concatenate([mean - sd, (mean + sd)[::-1]])
                    canvas.add_scatter(x=[*x, *x[::-1]], y=ends, name=f"{name} ± sd", row=1, col=1, **style.band(i))
                canvas.add_scatter(x=x, y=mean, name=name, row=1, col=1, **style.line(i))
            if points := printed_points.get(arm):
                canvas.add_scatter(
                    x=[step / 1000 for step in points],
                    y=[printed(claim) for claim in points.values()],
                    name=f"{name}, paper",
                    showlegend=arm not in arms,
                    row=1,
                    col=2,
                    **style.points(i, paper=True, size=7),
                )
        last = max(max(points) for points in printed_points.values()) / 1000
        canvas.update_xaxes(title="steps, thousands").update_yaxes(title="validation loss, nats", col=1)
        canvas.update_xaxes(range=[0, 1.1 * last], col=2)
        note(canvas, f"here: {_of(arms)}")
        return canvas.update_layout(margin={"t": 40})

    return draw


def _name(arm: str) -> str:
    """The name of an arm in the legend: its preset's, and what it has of its own."""
    preset = re.split(r"[+,]", arm, maxsplit=1)[0]
    return NAMES.get(preset, preset) + arm.removeprefix(preset)


def _of(arms: Mapping[str, pd.DataFrame]) -> str:
    """What the lines are of."""
    n = sorted({len(losses) for losses in arms.values()})
    seeds = f"{' to '.join(map(str, dict.fromkeys((n[0], n[-1]))))} seed{'s' * (n[-1] > 1)}"
    return f"mean ± standard deviation over {seeds}" if n[-1] > 1 else "one seed each"


PRINTED = {
    "llama": {10_000: "hdpl-f2-step-10000-llama", 20_000: "hdpl-t1-loss-llama"},
    "hdpl": {10_000: "hdpl-f2-step-10000-hdpl", 20_000: "hdpl-t1-loss-hdpl"},
}
curves = losses(PRINTED)
