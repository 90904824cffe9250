"""PLS' figures from our runs, in the paper's form; what the paper prints is a diamond."""

from typing import Any

import numpy as np
import pandas as pd

from streamscope.cli.errors import InputError
from streamscope.papers import drawing
from streamscope.papers.page import Page
from streamscope.papers.paper import RESULTS, Estimate
from streamscope.papers.pls.tables import OWN, RANGES, SCALES, TASKS
from streamscope.papers.printed import number

ARMS = {"pls": "PLS", "c2": "C2"}
COLUMNS = ("entity", "anchor", "semantic")
MAP = RESULTS / "pls" / "map.parquet"
"""Tokens of stories/pls: place on a UMAP of their features, cluster (−1: none), k*, text."""


def agreement(page: Page) -> Any:
    """Agreement of clusters of features with clusters of raw activations; 0 is chance, 1 equality."""
    figure, ((axis,),) = drawing.figure(size=(7.6, 3.4))
    cells = {"k-means": ("ari", "k-means"), "HDBSCAN": ("ari", "HDBSCAN"),
             "HDBSCAN, tokens\nin clusters of both": ("ari.clustered", "HDBSCAN")}  # fmt: skip
    arms = page.present(ARMS, "ari", page.grid("Figure 1"))
    for i, (arm, name) in enumerate(arms.items()):
        for x, (quantity, part) in enumerate(cells.values()):
            estimate = page.estimate(arm, quantity, part, grid=page.grid("Figure 1"))
            drawing.seeds(axis, x + 0.34 * (i - 0.5), estimate, i, name if x == 0 else "", width=0.3)
            if quantity == "ari":
                chance = page.estimate(arm, "ari.shuffled", part, grid=page.grid("Figure 1")).mean
                centre = x + 0.34 * (i - 0.5)
                axis.plot([centre - 0.15, centre + 0.15], [chance] * 2, "k", linewidth=1.2, label="shuffled labels")
    for x, row in enumerate(("ARI, k-means, 10 clusters", "ARI, HDBSCAN")):
        _diamond(axis, x - 0.17, number(page.printed("Figure 1", row, "PLS")))
    axis.set(xticks=range(len(cells)), xticklabels=list(cells), ylabel="adjusted Rand index", ylim=(-0.03, 1))
    _key(axis)
    drawing.legend(figure)
    return figure


def depth(page: Page) -> Any:
    """Shares of tokens by the layer from which on their prediction no longer changes, and by the ranges of Table 1."""
    grid = page.grid("Figure 2")
    arms = page.present(ARMS, "depth", grid)
    figure, (axes,) = drawing.figure(1, 3, (8.4, 3.0), sharey=True)
    layers = sorted(page.rows.loc[(page.rows["quantity"] == "depth") & page.rows["x"].notna(), "x"].unique())
    for i, (arm, name) in enumerate(arms.items()):
        for k in layers:
            drawing.seeds(axes[i], k, page.estimate(arm, "depth", x=k, grid=grid), i, width=0.75)
        axes[i].set(title=name, xlabel="k*", xticks=layers)
        for x, (part, row) in enumerate(zip(RANGES, dict.fromkeys(page.at("Table 1")["row"]), strict=True)):
            estimate = page.estimate(arm, "depth", part, grid=grid)
            drawing.seeds(axes[2], x + 0.36 * (i - 0.5), estimate, i, name if x == 0 else "", width=0.32)
            _diamond(axes[2], x + 0.36 * (i - 0.5), number(page.printed("Table 1", row, name)))
    axes[2].set(title="Table 1", xticks=range(3), xticklabels=[part.removeprefix("layers ") for part in RANGES])
    axes[2].set(xlabel="k*")
    axes[0].set(ylabel="share of tokens")
    _key(axes[2])
    drawing.legend(figure)
    return figure


def steering(page: Page) -> Any:
    """P(answer) as two heads of each model are scaled, and the ratio of the ranges of PLS and C2."""
    tasks = _measured(page, "curve", "Figure 3")
    figure, (axes,) = drawing.figure(1, 1 + len(tasks), (4.2 + 2.6 * len(tasks), 3.2),
                                    width_ratios=(*[3] * len(tasks), 1.4))  # fmt: skip
    for x, (axis, (title, (part, grid))) in enumerate(zip(axes, tasks.items(), strict=False)):
        arms = page.present(ARMS, "curve", grid)
        for i, (arm, name) in enumerate(arms.items()):
            estimates = [_percent(page.estimate(arm, "curve", part, scale, grid=grid)) for scale in SCALES]
            drawing.band(axis, SCALES, estimates, i, name)
        axis.set(title=title, xlabel="scale of the heads", ylabel="P(answer), %", ylim=(0, None))
        if len(arms) == len(ARMS):
            ratio = page.estimate("pls / c2", "curve.range", part, grid=grid)
            drawing.seeds(axes[-1], x, ratio, 6, "ratio, 95 %" if x == 0 else "")
        _diamond(axes[-1], x, number(page.printed("Figure 3", "Range of P(answer), scale 0 to 1.5", "PLS / C2")))
    names = [title.split(",")[0] for title in tasks]
    axes[-1].set(title="range, PLS / C2", yscale="log", xlim=(-0.6, len(tasks) - 0.4), xticks=range(len(tasks)))
    axes[-1].set_xticklabels(names, fontsize=7)
    axes[-1].axhline(1, color="black", linewidth=0.6)
    axes[-1].set_yticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
    _key(axes[-1], "-")
    drawing.legend(figure)
    return figure


def _measured(page: Page, quantity: str, place: str) -> dict[str, tuple[str, str]]:
    """Title -> (part, grid) of the tasks of which a quantity was measured."""
    tasks = {
        "Capitalization, entity heads": ("capitalization, entity heads", page.grid(place)),
        "Gender pairs, antecedent heads": ("gender pairs, antecedent heads", page.grid("Planted pairs")),
    }
    rows = page.rows[page.rows["quantity"] == quantity]
    available = set(zip(rows["part"], rows["grid"], strict=True))
    return {title: source for title, source in tasks.items() if source in available}


def _key(axis: Any, mark: str = "o") -> None:
    """What a small mark and a diamond are, for the legend."""
    axis.plot([], [], mark, color="#333333", markersize=3, linewidth=0.6, label="one training seed")
    drawing.diamond(axis, [], [], label="printed in the paper")


def _diamond(axis: Any, x: float, y: float, i: int | None = None) -> None:
    drawing.diamond(axis, x, y, i, label="")


def _percent(e: Estimate) -> Estimate:
    return e._replace(mean=100 * e.mean, low=100 * e.low, high=100 * e.high, values=100 * np.asarray(e.values))


def modularity(page: Page) -> Any:
    """Change of P(answer) without a group of heads: (a) tasks and groups, (b) the prompts of Winograd, entity heads."""
    grid = page.grid("Figure 4")
    arms = page.present(ARMS, "effect", grid)
    figure, axes = drawing.figure(2, 2, (7.4, 6.2))
    maps = {arm: _effects(page, arm, grid) for arm in arms}
    rows, pairs = [task.capitalize() for task in TASKS], list(_measured(page, "effect", "Figure 4").values())[1:]
    top = max(float(np.abs(values).max()) for values in maps.values())
    for i, (arm, name) in enumerate(arms.items()):
        image = drawing.heat(axes[0, i], maps[arm], rows=rows, columns=COLUMNS, limits=(-top, top))
        axes[0, i].set(title=f"(a) {name}, mean over seeds, %")
        for row, (task, group) in enumerate(TABLE2.items()):
            estimate = _percent(page.estimate(arm, "effect", f"{task}, {group} heads", grid=grid))
            drawing.seeds(axes[1, 0], row + 0.3 * (i - 0.5), estimate, i, name if row == 0 else "")
            printed_change = 100 * number(page.printed("Table 2", task.capitalize(), f"{name} Δ"))
            _diamond(axes[1, 0], row + 0.3 * (i - 0.5), printed_change, i)
        for part, pair_grid in pairs:
            if arm in page.present(ARMS, "effect", pair_grid):
                estimate = _percent(page.estimate(arm, "effect", part, grid=pair_grid))
                drawing.seeds(axes[1, 0], 3 + 0.3 * (i - 0.5), estimate, i)
        _prompts(page, axes[1, 1], arm, i, grid)
    figure.colorbar(image, ax=axes[0], shrink=0.8, label="Δ P(answer), %")
    axes[1, 0].set(title="Table 2, each training", ylabel="Δ P(answer), %")
    names = [f"{task.capitalize()},\n{group}" for task, group in TABLE2.items()]
    names += ["Gender pairs,\nantecedent"] * len(pairs)
    axes[1, 0].set_xticks(range(len(names)), names, fontsize=7, rotation=25)
    axes[1, 0].axhline(0, color="black", linewidth=0.6)
    axes[1, 1].set(title="(b) Winograd, entity heads", xlabel="Δ P(answer) of a prompt, %")
    axes[1, 1].set(ylabel="prompts per model", yscale="log", ylim=(0.15, 1000))
    _key(axes[1, 1])
    drawing.legend(figure)
    return figure


TABLE2 = {**OWN, "winograd": "entity"}


def _effects(page: Page, arm: str, grid: str) -> np.ndarray:
    """[tasks, groups] mean Δ P(answer), %."""
    return np.array(
        [[100 * page.estimate(arm, "effect", f"{task}, {group} heads", grid=grid).mean for group in COLUMNS]
         for task in TASKS]
    )  # fmt: skip


def _prompts(page: Page, axis: Any, arm: str, i: int, grid: str) -> None:
    """Histogram of the changes, prompts per model, with σ as measured and as printed."""
    rows = page.rows[(page.rows["quantity"] == "cases") & (page.rows["grid"] == grid) & (page.rows["arm"] == arm)]
    rows = rows[rows["part"] == "winograd, entity heads"]
    counts = rows.groupby("x")["value"].sum() / rows["seed"].nunique()
    edges = np.arange(-1.025, 1.03, 0.05) * 100
    heights, _ = np.histogram(100 * counts.index, edges, weights=counts)
    bins = slice(heights.nonzero()[0].min(), heights.nonzero()[0].max() + 1)
    axis.stairs(heights[bins], edges[bins.start : bins.stop + 1], color=drawing.colour(i), linewidth=1.6)
    sigma = _percent(page.estimate(arm, "spread", "winograd, entity heads", grid=grid)).mean
    text = f"σ {sigma:.2f} % (printed {page.printed('Figure 4', '(b) σ over prompts', ARMS[arm])})".replace("%)", " %)")
    axis.text(0.02, 0.95 - 0.08 * i, f"{ARMS[arm]}: {text}", transform=axis.transAxes, fontsize=8,
              color=drawing.colour(i), va="top")  # fmt: skip


def clusters(page: Page) -> Any:
    """Tokens on a UMAP of their features, a colour per cluster (colours repeat); named: the largest of each depth."""
    tokens = _tokens(page)
    figure, ((axis,),) = drawing.figure(size=(6.4, 5.2))
    is_noise = tokens["cluster"] < 0
    _points(axis, tokens[is_noise], color="#D9D9D9", label="in no cluster")
    for i, points in tokens[~is_noise].groupby(tokens["cluster"] % len(drawing.COLOURS)):
        _points(axis, points, color=drawing.colour(int(i)))
    members = tokens[~is_noise].groupby("cluster")
    sizes = members.size()[members["k_star"].nunique() == 1]
    for k, cluster in sizes.groupby(members["k_star"].first()).idxmax().items():
        points = members.get_group(cluster)
        words = ", ".join(f"“{word.strip() or 'newline'}”" for word in points["token"].value_counts().index[:3])
        axis.annotate(
            f"k* {k}, {len(points)} tokens:\n{words}", points[["x", "y"]].median(), xytext=(-14, 22), fontsize=7,
            textcoords="offset points", ha="right", arrowprops={"arrowstyle": "-", "linewidth": 0.6},
        )  # fmt: skip
    axis.legend(loc="upper left", markerscale=6, frameon=False)
    return figure


def strata(page: Page) -> Any:
    """The same map, tokens coloured by depth. Most features are 0 except at that layer, so any map separates depths."""
    tokens = _tokens(page)
    figure, ((axis,),) = drawing.figure(size=(6.4, 5.2))
    points = _points(axis, tokens, c=tokens["k_star"], cmap="viridis_r")
    figure.colorbar(points, ax=axis, label="k*", shrink=0.6, ticks=range(int(tokens["k_star"].max()) + 1))
    return figure


def _tokens(page: Page) -> pd.DataFrame:
    """The map. Raises `InputError` for own runs, which have none."""
    if page.own is not None:
        raise InputError("Figures 5 and 6 are of the bundled PLS model; `python -m features.cluster` maps another run")
    return pd.read_parquet(MAP)


def _points(axis: Any, tokens: pd.DataFrame, **style: Any) -> Any:
    """Tokens on the map, without axes: directions and long distances of a UMAP mean nothing."""
    axis.set(xticks=[], yticks=[])
    for side in axis.spines.values():
        side.set_visible(False)
    return axis.scatter(tokens["x"], tokens["y"], s=2, linewidths=0, rasterized=True, **style)


FIGURES = {
    "Figure 1": agreement, "Figure 2": depth, "Figure 3": steering, "Figure 4": modularity, "Figure 5": clusters,
    "Figure 6": strata,
}  # fmt: skip
