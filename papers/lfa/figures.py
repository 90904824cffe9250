"""LFA's figures from our runs, in the paper's form; what the paper prints is a diamond."""

from typing import Any

import numpy as np

from streamscope.papers import drawing
from streamscope.papers.lfa.tables import GATES, THRESHOLD
from streamscope.papers.page import Page

ARMS = {"lfa": "LFA", "std-t-printed": "Std-T", "cfm": "CFM"}
"""The paper's three models; D-Cas is in its tables alone."""
LAYERS = range(6)


def layers(page: Page) -> Any:
    """Heads with PDS above .075 in each layer."""
    figure, ((axis,),) = drawing.figure()
    for i, (arm, name) in enumerate(page.present(ARMS, "pds.over").items()):
        for layer in LAYERS:
            estimate = page.estimate(arm, "pds.over", f"L{layer}")
            drawing.seeds(axis, layer + 0.27 * (i - 1), estimate, i, name if layer == 0 else "", width=0.25)
    axis.set(xticks=list(LAYERS), xlabel="layer", ylabel="heads with PDS > .075", ylim=(0, 6.2))
    drawing.legend(figure)
    return figure


def suppressed(page: Page) -> Any:
    """SPS, and the preference for the right habit, before and without the three heads of the largest PDS."""
    arms = page.present(ARMS, "gate.sps")
    figure, (axes,) = drawing.figure(1, 2)
    labels = {"gate.sps": "SPS, attention", "gate.preference": "preference for the right habit, nats"}
    for axis, (quantity, label) in zip(axes, labels.items(), strict=True):
        for i, arm in enumerate(arms):
            for shift, gate in ((-0.18, 1.0), (0.18, 0.0)):
                estimate = page.estimate(arm, quantity, "top3", gate)
                drawing.seeds(axis, i + shift, estimate, i if gate else 6, "" if gate else "without them", width=0.32)
        axis.set(xticks=range(len(arms)), xticklabels=list(arms.values()), ylabel=label)
        axis.axhline(0, color="black", linewidth=0.6)
    for i, name in enumerate(arms.values()):
        for shift, column in ((-0.18, "baseline"), (0.18, "suppressed")):
            if text := page.printed("Figure 2", name, column):
                drawing.diamond(axes[0], i + shift, float(text))
    drawing.legend(figure)
    return figure


def distribution(page: Page) -> Any:
    """PDS of every head of every seed."""
    arms = page.present(ARMS, "pds.head")
    figure, (axes,) = drawing.figure(1, len(arms), (7.2, 2.8), sharey=True, sharex=True)
    rows = page.rows[(page.rows["quantity"] == "pds.head") & (page.rows["grid"] == page.grid("Figure 4"))]
    top = float(rows.loc[rows["arm"].isin(arms), "value"].max())
    for i, (axis, (arm, name)) in enumerate(zip(axes, arms.items(), strict=True)):
        arm_rows = rows[rows["arm"] == arm]
        weights = np.full(len(arm_rows), 1 / arm_rows["seed"].nunique())
        axis.hist(arm_rows["value"], 30, range=(0, top), weights=weights, color=drawing.colour(i), linewidth=0)
        axis.axvline(THRESHOLD, color="black", linewidth=0.8, linestyle="--", label="threshold, .075")
        axis.set(title=name, xlabel="PDS")
    axes[0].set(ylabel="heads per model")
    drawing.legend(figure)
    return figure


def one_head(page: Page) -> Any:
    """SPS and preference as the head of the largest PDS is turned down."""
    return _gates(page, "top1")


def three_heads(page: Page) -> Any:
    """SPS and preference as the three heads of the largest PDS are turned down."""
    return _gates(page, "top3")


def _gates(page: Page, part: str) -> Any:
    figure, (axes,) = drawing.figure(1, 2)
    labels = {"gate.sps": "SPS, attention", "gate.preference": "preference for the right habit, nats"}
    for axis, (quantity, label) in zip(axes, labels.items(), strict=True):
        for i, (arm, name) in enumerate(page.present(ARMS, quantity).items()):
            drawing.band(axis, GATES, [page.estimate(arm, quantity, part, gate) for gate in GATES], i, name)
        axis.set(xlabel="gate g", ylabel=label, xlim=(1, 0), ylim=(min(0, axis.get_ylim()[0]), None))
    drawing.legend(figure)
    return figure


def maps(page: Page) -> Any:
    """PDS of each head by layer, heads of a layer sorted by it, mean over seeds."""
    arms = page.present(ARMS, "pds.head")
    figure, (axes,) = drawing.figure(1, len(arms), (7.6, 3.2))
    rows = page.rows[(page.rows["quantity"] == "pds.head") & (page.rows["grid"] == page.grid("Figure 7"))]
    grids = {arm: drawing.by_rank(rows[rows["arm"] == arm]) for arm in arms}
    top = max(float(values.max()) for values in grids.values())
    for axis, (arm, name) in zip(axes, arms.items(), strict=True):
        names = [str(i + 1) for i in range(grids[arm].shape[1])]
        image = drawing.heat(
            axis, grids[arm], rows=[f"L{i}" for i in range(len(grids[arm]))], columns=names, limits=(0, top)
        )
        axis.set(title=name, xlabel="rank of the head in its layer")
    figure.colorbar(image, ax=axes, label="PDS", shrink=0.8)
    return figure


FIGURES = {
    "Figure 1": layers, "Figure 2": suppressed, "Figure 4": distribution, "Figure 5": one_head,
    "Figure 6": three_heads, "Figure 7": maps,
}  # fmt: skip
"""Figure 3 is the drawing of the architecture: `python -m models.describe lfa`."""
