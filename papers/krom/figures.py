"""KROM's figures from our runs, in the blog's form, which does not number them; what it prints is a diamond."""

from typing import Any

import numpy as np
import pandas as pd

from streamscope.papers import drawing
from streamscope.papers.page import Page
from streamscope.papers.printed import number

ARCHITECTURES = {
    "gpt2": "Vanilla", "canon": "Canon", "kromhc-b8-fp32": "KromHC, fp32", "kromcanon-b8-fp32": "KromCanon, fp32",
    "kromcanon-b8-bf16": "KromCanon, bf16",
}  # fmt: skip
BIASES = {
    "kromcanon-b8-bf16": "bias −8, bf16", "kromcanon-b8-fp32": "bias −8, fp32", "kromcanon-b2-fp32": "bias −2, fp32",
}  # fmt: skip
SWEEP = {**BIASES, "kromcanon-b1-fp32": "bias −1, fp32", "kromcanon-b0-fp32": "bias 0, fp32"}


def _rows(page: Page, arm: str, quantity: str, grid: str) -> pd.DataFrame:
    """The rows of an arm and quantity."""
    rows = page.rows
    return rows[(rows["arm"] == arm) & (rows["quantity"] == quantity) & (rows["grid"] == grid)]


def _means(page: Page, arm: str, quantity: str, grid: str) -> pd.Series:
    """Means over seeds by part, in the order of computation."""
    return _rows(page, arm, quantity, grid).groupby("part", sort=False)["value"].mean().sort_index()


def _curves(page: Page, axis: Any, arms: dict[str, str], quantity: str, grid: str) -> None:
    """A curve of an arm over training tokens, with a thin line a seed."""
    for arm, name in arms.items():
        points = sorted(set(_rows(page, arm, quantity, grid)["x"]))
        estimates = [page.estimate(arm, quantity, x=x, grid=grid) for x in points]
        drawing.band(axis, points, estimates, list(ARCHITECTURES | SWEEP).index(arm) % 7, name)
    axis.set(xlabel="training tokens, millions")


def training_curves(page: Page) -> Any:
    """Validation loss while training, and its end less that of Vanilla, beside the printed difference."""
    grid = page.grid("Training curves")
    arms = page.present(ARCHITECTURES, "loss.curve", grid)
    figure, ((curves, ends),) = drawing.figure(1, 2, (8.6, 3.2))
    _curves(page, curves, arms, "loss.curve", grid)
    curves.set(ylabel="validation loss, nats per token")
    vanilla = number(page.printed("Training curves", "Vanilla", "end"))
    for place, arm in enumerate(arm for arm in arms if arm != "gpt2"):
        i = list(ARCHITECTURES).index(arm)
        estimate = page.estimate(f"{arm} − gpt2", "loss", grid=grid)
        drawing.seeds(ends, place, estimate, i)
        text = page.printed("Training curves", arms[arm].split(",")[0], "end")
        drawing.diamond(ends, place, number(text) - vanilla)
    ends.axhline(0, color="black", linewidth=0.6)
    ends.set(xticks=range(len(arms) - 1), ylabel="loss − Vanilla, nats per token")
    ends.set_xticklabels([name.replace(", ", "\n") for arm, name in arms.items() if arm != "gpt2"])
    drawing.legend(figure)
    return figure


def swap(page: Page) -> Any:
    """Static swap of each module (faint), and the largest that its dynamic term can reach (solid), mean over seeds."""
    grid = page.grid("Swap")
    arms = page.present(BIASES, "module.best", grid)
    figure, (axes,) = drawing.figure(1, len(arms), (8.4, 3.4), sharey=True)
    for axis, (arm, name) in zip(axes, arms.items(), strict=True):
        static, reach = (_means(page, arm, quantity, grid) for quantity in ("module.swap", "module.best"))
        i = list(BIASES).index(arm)
        places = np.arange(len(reach))
        axis.barh(places, reach, color=drawing.colour(i), height=0.7, linewidth=0)
        axis.barh(places, static, color="white", alpha=0.65, height=0.7, linewidth=0)
        if reach.max() < 0.01:
            axis.text(0.08, 0, f"none above {reach.max():.2%}", va="center", fontsize=8)
        axis.set(title=name, xlabel="swap probability", xlim=(0, 1))
        axis.set_yticks(places, _paper_names(reach.index))
        for place in page.at("Swap").to_dict("records"):
            if place["arm"] == arm:
                drawing.diamond(axis, number(place["printed"]), list(reach.index).index(place["part"]))
    axes[0].invert_yaxis()
    drawing.legend(figure)
    return figure


def _paper_names(parts: Any) -> list[str]:
    """The blog's names: L0/ffn for L0.mlp."""
    return [part.replace(".mlp", "/ffn").replace(".attn", "/attn") for part in parts]


def heat(page: Page) -> Any:
    """Static swap of each factor, module by factor, mean over seeds."""
    grid = page.grid("Heat")
    arms = page.present(BIASES, "factor.swap", grid)
    figure, (axes,) = drawing.figure(1, len(arms), (7.2, 4.0), sharey=True)
    tables = {arm: _by_factor(_means(page, arm, "factor.swap", grid)) for arm in arms}
    top = max(float(table.to_numpy().max()) for table in tables.values())
    for axis, (arm, name) in zip(axes, arms.items(), strict=True):
        table = tables[arm]
        image = drawing.heat(
            axis, table.to_numpy(), rows=_paper_names(table.index), columns=["factor 0", "factor 1"], limits=(0, top)
        )
        axis.set(title=name)
    figure.colorbar(image, ax=axes, label="static swap probability", shrink=0.8)
    return figure


def _by_factor(values: pd.Series) -> pd.DataFrame:
    """[module, factor]"""
    names = values.index.str.extract(r"^(?P<module>.+)\.(?P<factor>\d)$")
    return names.assign(value=values.to_numpy()).pivot(index="module", columns="factor", values="value")


def scatter(page: Page) -> Any:
    """Size of the learned α_res of each module and seed, against the largest swap that the module can reach."""
    grid = page.grid("Scatter")
    arms = page.present(BIASES, "alpha", grid)
    figure, ((axis,),) = drawing.figure(size=(7.2, 3.6))
    for arm, name in arms.items():
        i = list(BIASES).index(arm)
        columns = [_rows(page, arm, q, grid).set_index(["seed", "part"])["value"] for q in ("alpha", "module.best")]
        table = pd.concat(columns, axis=1, keys=["alpha", "best"]).dropna()
        sizes = table["alpha"].abs()
        axis.plot(sizes, table["best"], "o", color=drawing.colour(i), markersize=4, alpha=0.7, label=name)
        bias = name.split(",")[0]
        if not any(bias in other_name for other_name in list(arms.values())[: list(arms).index(arm)]):
            x, y = (number(page.printed("Scatter", f"{bias}, {q}", _part(bias))) for q in ("α_res", "swap"))
            drawing.diamond(axis, x, y, i)
    axis.set(xlabel="size of α_res: effort", ylabel="largest swap probability: result", ylim=(-0.03, 1))
    drawing.legend(figure)
    return figure


def _part(bias: str) -> str:
    """The module whose α_res and swap the blog prints."""
    return "L2.attn" if bias == "bias −8" else "L0.mlp"


def cosines(page: Page) -> Any:
    """Cosine between the streams' directions, and that of shuffled labels, by initial bias."""
    grid = page.grid("Cosines")
    arms = page.present(SWEEP, "direction.cosine", grid)
    figure, ((axis,),) = drawing.figure(size=(6.4, 3.4))
    for place, (arm, name) in enumerate(arms.items()):
        real, shuffled = (page.estimate(arm, f"direction.{q}", grid=grid) for q in ("cosine", "shuffled"))
        drawing.seeds(axis, place - 0.15, real, 0, "of the contrast" if not place else "")
        drawing.seeds(axis, place + 0.15, shuffled, 6, "of shuffled labels" if not place else "")
        bias = name.split(",")[0].removeprefix("bias ")
        drawing.diamond(axis, place - 0.15, number(page.printed("Cosines", bias, "cosine")))
    axis.set(xticks=range(len(arms)), ylabel="cosine between streams")
    axis.set_xticklabels([name.replace(", ", "\n") for name in arms.values()])
    drawing.legend(figure)
    return figure


def over_training(page: Page) -> Any:
    """Mean static swap while training (solid), and what weight decay and storage alone make of it (dashed)."""
    grid = page.grid("Swap over training")
    arms = page.present(BIASES, "swap.curve", grid)
    figure, ((axis,),) = drawing.figure(size=(6.4, 3.4))
    _curves(page, axis, arms, "swap.curve", grid)
    for arm in arms:
        decay = _rows(page, arm, "swap.decay.curve", grid).groupby("x")["value"].mean()
        i = list(ARCHITECTURES | SWEEP).index(arm) % 7
        axis.plot(decay.index, decay, color=drawing.colour(i), linestyle="--", linewidth=1, zorder=1)
        start = next(row for row in page.at("Swap over training").to_dict("records") if row["arm"] == arm)
        drawing.diamond(axis, 0, number(start["printed"]))
    axis.set(ylabel="mean static swap probability", yscale="log")
    drawing.legend(figure)
    return figure


FIGURES = {
    "Training curves": training_curves, "Swap": swap, "Heat": heat, "Scatter": scatter, "Cosines": cosines,
    "Swap over training": over_training,
}  # fmt: skip
