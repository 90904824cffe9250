"""HDPL's figure from our runs, in the paper's form; what the paper prints is a diamond."""

from typing import Any

from streamscope.papers import drawing
from streamscope.papers.page import Page
from streamscope.papers.printed import number

ARMS = {"llama": "Baseline", "hdpl": "Surgical Hybrid"}
PRINTED_STEPS = 20_000
"""Of the paper's training."""
LEVELS = "printed; levels are of other text"
AT = {"step 10,000": 10_000, "step 17,000": 17_000, "step 20,000": PRINTED_STEPS}


def curves(page: Page) -> Any:
    """Validation loss over the steps, and the hybrid's against the baseline's."""
    arms = page.present(ARMS, "loss.curve")
    rows = page.rows[(page.rows["quantity"] == "loss.curve") & (page.rows["grid"] == page.grid("Figure 2"))]
    steps = {arm: sorted(rows.loc[rows["arm"] == arm, "x"].unique()) for arm in arms}
    end = max(map(max, steps.values()))
    figure, (axes,) = drawing.figure(1, 2, (7.2, 3.2))
    for i, (arm, name) in enumerate(arms.items()):
        estimates = [page.estimate(arm, "loss.curve", x=x, grid=page.grid("Figure 2")) for x in steps[arm]]
        drawing.band(axes[0], [x / end for x in steps[arm]], estimates, i, name)
    for cell in page.at("Figure 2").to_dict("records"):
        name, x = cell["row"], AT[cell["column"]] / PRINTED_STEPS
        if name in arms.values():
            drawing.diamond(axes[0], x, number(cell["printed"]), list(ARMS.values()).index(name), LEVELS)
        elif len(arms) == len(ARMS):
            drawing.diamond(axes[1], x, 100 * number(cell["printed"]), label=LEVELS)
    axes[0].set(ylabel="validation loss, nats per token", ylim=(0, None))
    if len(arms) == len(ARMS):
        common_steps = [x for x in steps["hdpl"] if x in set(steps["llama"])]
        grid = page.grid("Figure 2")
        estimates = [page.estimate("hdpl − llama", "loss.curve", x=x, unit="percent", grid=grid) for x in common_steps]
        drawing.band(axes[1], [x / end for x in common_steps], estimates, 2, "hybrid against baseline, 95 %")
        axes[1].axhline(0, color="black", linewidth=0.6)
    axes[1].set(ylabel="loss against baseline, %")
    for axis in axes:
        axis.set(xlabel="share of the steps", xlim=(0, 1.03))
    drawing.legend(figure)
    return figure


FIGURES = {"Figure 2": curves}
"""Figure 1 is the drawing of the architecture: `python -m models.describe hdpl`."""
