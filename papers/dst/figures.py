"""DST's figures from our runs, in the paper's form; what the paper prints is a diamond."""

from typing import Any

import numpy as np

from streamscope.papers import drawing
from streamscope.papers.dst.tables import PAPER_ALPHAS, TABLE5
from streamscope.papers.page import Page
from streamscope.papers.printed import number

ARMS = {"dst-dense-frozen": "dense", "dst-kron-frozen": "Kronecker", "dst-ind-frozen": "independent"}
GATES = {"dst-dense-frozen": "dense", "dst-dense-gated-frozen": "dense, gated"}
COLOURS = dict(zip((*ARMS, "dst-dense-gated-frozen"), (0, 1, 2, 3), strict=True))
STREAMS = {
    "x_t → 0": ("$x_t$ → 0", "x_t → 0"), "x_e → 0": ("$x_e$ → 0", "x_e → 0"),
    "x_t → random words": ("$x_t$ → random words", "x_t → random vocab"),
}  # fmt: skip
"""What replaces a stream: its label, and its row in Table 4."""


def removed(page: Page) -> Any:
    """Loss more without a stream, by where it is removed (left), and from which layer on (right)."""
    figure, (axes,) = drawing.figure(1, 2, (7.2, 3.2))
    wheres = {"everywhere": "removed everywhere", "unembedding": "from the unembedding alone"}
    for k, (part, (_, row)) in enumerate(STREAMS.items()):
        for i, (place, label) in enumerate(wheres.items()):
            estimate = page.estimate("dst-kron", f"streams.{place}", part)
            drawing.seeds(axes[0], k + 0.3 * (i - 0.5), estimate, i, label if k == 0 else "")
        drawing.diamond(axes[0], k, 100 * number(page.printed("Table 4", row, "Δ from Baseline")))
    axes[0].set(yscale="log", xticks=range(len(STREAMS)), ylabel="loss more, %", ylim=(1, 1500))
    axes[0].set_xticklabels([label for label, _ in STREAMS.values()])
    for i, part in enumerate(("x_t → 0", "x_e → 0")):
        onwards = range(part == "x_e → 0", 6)  # x_e is 0 where layer 0 reads it
        curve = [page.estimate("dst-kron", "streams.onwards", part, layer) for layer in onwards]
        drawing.band(axes[1], onwards, curve, i + 2, STREAMS[part][0])
    axes[1].set(yscale="log", xticks=range(6), xlabel="removed from this layer on", ylim=(1, 1500))
    drawing.legend(figure)
    return figure


def sharpened(page: Page) -> Any:
    """Loss against the factor α on the scores, by mixing (left) and with gated heads (right)."""
    figure, (axes,) = drawing.figure(1, 2, (7.2, 3.4), sharey=True)
    for axis, arms in zip(axes, (ARMS, GATES), strict=True):
        for arm, name in page.present(arms, "amplify.loss").items():
            curve = [page.estimate(arm, "amplify.loss", x=alpha) for alpha in PAPER_ALPHAS]
            drawing.band(axis, PAPER_ALPHAS, curve, COLOURS[arm], name)
            drawing.diamond(axis, PAPER_ALPHAS, TABLE5[arm], COLOURS[arm], "printed, of another text")
        axis.set_xscale("log", base=2)
        axis.set(xticks=PAPER_ALPHAS, xticklabels=[f"{alpha:g}" for alpha in PAPER_ALPHAS], xlabel="α")
    axes[0].set(ylabel="loss, nats per token")
    drawing.legend(figure)
    return figure


def routed(page: Page) -> Any:
    """Kronecker weights of one training, to a head (down) from a head (across), and the largest of each layer."""
    rows = page.rows[(page.rows["grid"] == page.grid("Figure 3")) & (page.rows["arm"] == "dst-kron")]
    first = rows[rows["seed"] == rows["seed"].min()]
    grids = {
        (projection, layer): _matrix(of_layer)
        for projection in ("v", "o")
        for layer, of_layer in first[first["quantity"] == f"routing.{projection}"].groupby("x")
    }
    layers = sorted({layer for _, layer in grids})
    limit = max(float(np.abs(weights).max()) for weights in grids.values())
    figure, axes = drawing.figure(3, len(layers), (7.6, 4.6), height_ratios=(1, 1, 1.1))
    for (projection, layer), weights in grids.items():
        axis = axes["vo".index(projection), int(layer)]
        image = axis.imshow(weights, cmap="RdBu_r", vmin=-limit, vmax=limit)
        axis.set(title=f"{projection.upper()}, layer {layer:g}", xticks=[], yticks=[])
    figure.colorbar(image, ax=axes[:2], label="weight", shrink=0.8)
    grid = axes[2, 0].get_gridspec()
    for axis in axes[2]:
        axis.remove()
    lower = figure.add_subplot(grid[2, :])
    for i, (part, name) in enumerate((("V", "value"), ("O", "output"))):
        for layer in layers:
            estimate = page.estimate("dst-kron", "routing.max", part, layer, grid=page.grid("Figure 3"))
            drawing.seeds(lower, layer + 0.3 * (i - 0.5), estimate, i, f"{name} projection" if layer == 0 else "")
    for layer in (0, 5):
        printed_value = page.printed("Figure 3", "value projection", f"largest weight, layer {layer}")
        drawing.diamond(lower, layer, number(printed_value))
    lower.set(xticks=layers, xlabel="layer", ylabel="largest |weight|", yscale="log", ylim=(0.1, 6))
    lower.set_yticks([0.1, 0.3, 1, 3], ["0.1", "0.3", "1", "3"])
    lower.set_yticks([], minor=True)
    drawing.legend(figure)
    return figure


def _matrix(rows: Any) -> Any:
    """[to, from] of the rows of a projection and layer."""
    places = rows["part"].str.extract(r"H(\d+) from H(\d+)").astype(int)
    weights = np.full(places.max() + 1, np.nan)
    weights[places[0], places[1]] = rows["value"]
    return weights


def maps(page: Page) -> Any:
    """Attention of one head in one text at α = 1, 4, 8 and 16, from a word (down) to a word (across)."""
    rows = page.rows[(page.rows["grid"] == page.grid("Figure 4")) & (page.rows["quantity"] == "map")]
    rows = rows[(rows["arm"] == rows["arm"].iloc[0]) & (rows["seed"] == rows["seed"].min())]
    alphas = (1, 4, 8, 16)
    figure, axes = drawing.figure(2, 2, (6.6, 6.2), sharex=True, sharey=True)
    for axis, alpha in zip(axes.flat, alphas, strict=True):
        places = rows[rows["x"] == alpha]
        words = places["part"].str.extract(r"^(?P<q>\d+) (?P<query>.*) to (?P<k>\d+) (?P<key>.*)$")
        names = words.drop_duplicates("q").sort_values("q")["query"].str.replace("<|endoftext|>", "BOS")
        weights = np.full((len(names), len(names)), np.nan)
        weights[words["q"].astype(int), words["k"].astype(int)] = places["value"]
        image = axis.imshow(weights, cmap="YlOrRd", vmin=0, vmax=1)
        axis.set(title=f"α = {alpha}", xticks=range(len(names)), yticks=range(len(names)))
        axis.set_xticklabels(names, rotation=90, fontsize=6)
        axis.set_yticklabels(names, fontsize=6)
        axis.grid(visible=False)
    figure.colorbar(image, ax=axes, label="attention", shrink=0.6)
    return figure


def specialists(page: Page) -> Any:
    """Share of pronouns at which a head attends most to the antecedent, heads of a layer sorted by it."""
    arms = {"dst-ind": "Independent-Dense", "dst-dense": "Dense baseline"}
    arms = page.present(arms, "top1.head", page.grid("Figure 5"))
    figure, (axes,) = drawing.figure(1, len(arms), (7.2, 3.2))
    rows = page.rows[(page.rows["quantity"] == "top1.head") & (page.rows["grid"] == page.grid("Figure 5"))]
    for axis, (arm, name) in zip(axes, arms.items(), strict=True):
        shares = drawing.by_rank(rows[rows["arm"] == arm])
        names = [str(rank + 1) for rank in range(shares.shape[1])]
        layers = [f"L{layer}" for layer in range(len(shares))]
        image = drawing.heat(axis, shares, rows=layers, columns=names, limits=(0, 0.5))
        axis.set(title=name, xlabel="rank of the head in its layer")
    figure.colorbar(image, ax=axes, label="share of pronouns", shrink=0.8)
    return figure


FIGURES = {
    "Table 4": removed, "Figure 2": sharpened, "Figure 3": routed, "Figure 4": maps, "Figure 5": specialists,
}  # fmt: skip
"""Figure 1 is the drawing of the architecture: `python -m models.describe dst-kron`. Table 4 is a figure here alone."""
