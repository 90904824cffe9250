"""What the papers' figures share: size, colours, seeds as points, printed values as diamonds, and files.

A figure is a function of a `papers.page.Page` that returns a matplotlib figure. Up to eight training seeds are points
beside their mean; of more, the bar is the 95 % interval of the mean. A diamond is what the paper prints.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from streamscope.cli.disk import write_atomically
from streamscope.cli.errors import InputError
from streamscope.papers.paper import Estimate

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6B6B6B")
"""Of arms, in the order in which a figure names them (Okabe and Ito 2008, for colour-blind readers too)."""
FORMATS = (".svg", ".pdf", ".png")
POINTS = 8
"""Up to so many seeds each is a point."""
STYLE: Any = {
    "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "font.size": 9, "axes.spines.top": False,
    "axes.spines.right": False, "axes.titlesize": 9, "axes.titlelocation": "left", "legend.frameon": False,
    "legend.fontsize": 8, "figure.constrained_layout.use": True, "svg.fonttype": "path", "svg.hashsalt": "streamscope",
    "axes.axisbelow": True, "axes.grid": True, "grid.color": "#E6E6E6", "grid.linewidth": 0.6,
}  # fmt: skip


def pyplot() -> Any:
    """matplotlib's pyplot, without a screen. Raises `InputError` where matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        raise InputError("figures of papers need matplotlib: pip install -e '.[papers]' in the clone") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    return plt


def style() -> Any:
    """A context in which what is drawn has our style: labels and legends take it when they are made."""
    return pyplot().rc_context(STYLE)


def figure(rows: int = 1, columns: int = 1, size: tuple[float, float] = (6.4, 3.4), **share: Any) -> tuple[Any, Any]:
    """A figure of panels in our style, and its axes [rows, columns]."""
    plt = pyplot()
    with style():
        fig, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, **share)
    return fig, axes


def save(fig: Any, path: Path) -> None:
    """Write a figure under a temporary name, then rename. Raises `InputError` for another format than `FORMATS`."""
    plt = pyplot()
    if path.suffix not in FORMATS:
        raise InputError(f"{path.name}: figures are written as {', '.join(FORMATS)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix, {})
    with style():
        write_atomically(
            path, lambda part: fig.savefig(part, format=path.suffix[1:], metadata=metadata, dpi=160, facecolor="white")
        )
    plt.close(fig)


def colour(i: int) -> str:
    """Of the i-th arm."""
    return COLOURS[i % len(COLOURS)]


def seeds(axis: Any, x: float, e: Estimate, i: int = 0, label: str = "", width: float = 0.0) -> None:
    """The estimate `e` at x: a bar (with `width`) or a dash for the mean, and points of the seeds or the interval."""
    if width:
        axis.bar(x, e.mean, width=width, color=colour(i), alpha=0.55, label=label or None, linewidth=0)
    else:
        axis.plot([x - 0.12, x + 0.12], [e.mean] * 2, color=colour(i), linewidth=2, label=label or None)
    if 1 < len(e.values) <= POINTS:
        spread = np.linspace(-0.06, 0.06, len(e.values)) if len(e.values) > 1 else np.zeros(1)
        axis.plot(x + spread, e.values, "o", markersize=3, color=colour(i), markeredgewidth=0, zorder=3)
    elif e.low < e.high:
        axis.errorbar(
            x, e.mean, [[e.mean - e.low], [e.high - e.mean]], color="#333333",
            capsize=2, linewidth=1, zorder=3,
        )  # fmt: skip


def band(axis: Any, x: Sequence[float], estimates: Sequence[Estimate], i: int = 0, label: str = "") -> None:
    """A curve of means over x with the band of the 95 % interval; up to eight seeds are thin lines instead."""
    axis.plot(x, [e.mean for e in estimates], color=colour(i), linewidth=1.8, label=label or None)
    if all(1 < len(e.values) <= POINTS for e in estimates) and len({len(e.values) for e in estimates}) == 1:
        for line in np.array([e.values for e in estimates]).T:
            axis.plot(x, line, color=colour(i), linewidth=0.6, alpha=0.6)
    else:
        axis.fill_between(x, [e.low for e in estimates], [e.high for e in estimates], color=colour(i), alpha=0.2)


def diamond(axis: Any, x: Any, y: Any, i: int | None = None, label: str = "printed") -> None:
    """What the paper prints at x."""
    face = "white" if i is None else colour(i)
    axis.plot(
        x, y, "D", markersize=6, markerfacecolor=face, markeredgecolor="black", linestyle="", label=label, zorder=4
    )


def heat(axis: Any, values: Any, *, rows: Sequence[str], columns: Sequence[str], limits: tuple[float, float]) -> Any:
    """A map of cells with their values written in; returns the image, for a colour bar."""
    values = np.asarray(values, float)
    image = axis.imshow(
        values, cmap="RdYlBu_r" if limits[0] < 0 else "YlOrRd", vmin=limits[0], vmax=limits[1], aspect="auto"
    )
    axis.set_xticks(range(len(columns)), columns)
    axis.set_yticks(range(len(rows)), rows)
    axis.grid(visible=False)
    for (row, column), value in np.ndenumerate(values):
        if not np.isnan(value):
            share = (value - limits[0]) / (limits[1] - limits[0])
            ink = "white" if share > 0.75 or (limits[0] < 0 and share < 0.2) else "black"
            axis.text(column, row, f"{value:.2f}".replace("0.", "."), ha="center", va="center", fontsize=7, color=ink)
    return image


def by_rank(rows: pd.DataFrame) -> np.ndarray:
    """[layer, rank] mean over seeds of the values of heads (part L5.H0), the largest of each layer first: heads of two
    seeds have nothing but their layer in common."""
    by_layer = rows.assign(layer=rows["part"].str.extract(r"L(\d+)")[0].astype(int)).groupby(["seed", "layer"])["value"]
    sorted_values = by_layer.apply(lambda values: np.sort(values.to_numpy(float))[::-1])
    layers = sorted(set(sorted_values.index.get_level_values(1)))
    return np.array([np.mean(np.stack(list(sorted_values[:, layer])), axis=0) for layer in layers])


def legend(fig: Any, columns: int = 6) -> None:
    """One legend above the panels, each label once."""
    handle_of: dict[str, Any] = {}
    for axis in fig.axes:
        handles, labels = axis.get_legend_handles_labels()
        handle_of |= {label: handle for label, handle in zip(labels, handles, strict=True) if label not in handle_of}
    fig.legend(handle_of.values(), handle_of.keys(), loc="outside upper left", ncols=columns, frameon=False, fontsize=8)
