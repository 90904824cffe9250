"""Routing: the matrices of a model, hub scores as heads × layers, and their tables."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from streamscope.cli.errors import InputError
from streamscope.instruments.contract import InstrumentData, title_of
from streamscope.instruments.data import Opened
from streamscope.instruments.observations import Estimates, Measure, Observations, each
from streamscope.instruments.stats.estimators import holm
from streamscope.instruments.table import Column, Table, counts, key, number, quantity
from streamscope.instruments.undefined_cells import note
from streamscope.models.mixing import routing
from streamscope.probes.routing import Routing

Matrices = Mapping[str, Mapping[int, np.ndarray]]
"""Projection -> layer -> W [H to, H from]."""
GROWING = ("max", "off", "uneven")
SLOPE = ("slope", "slope_low", "slope_high", "slope_p")
NOTHING_ROUTED = "the layers have one head, or nothing is routed between heads"


def observe(options: Routing, model: Any, data: Opened, progress: Any = iter) -> InstrumentData:
    """Cells: projection × head. Units: layers."""
    weights = matrices(model)
    measurements = observed(hubs(weights))
    measurements.extra["by layer"] = layers(weights, options.shuffles, options.seed)
    measurements.extra["cells"] = cells(weights)
    measurements.about["title"] = title_of(model)
    return measurements


def observed(scores: pd.DataFrame) -> InstrumentData:
    """Observations from `hubs`: every head's score minus the uniform score, in every layer that has one."""
    n = round(1 / scores["even"].iloc[0])
    wide = scores.pivot_table(index=["projection", "index"], columns="layer", values="score", dropna=False, sort=False)
    cells = wide.index.to_frame(index=False)
    cells["head"] = [f"H{i}" for i in cells["index"]]
    names = [f"L{layer}" for layer in wide.columns]
    block = Observations(
        measure=Measure(name="hub score", unit=SHARE, resolution=0.0, shift=-1 / n), cells=cells,
        units=pd.DataFrame({"unit": names, "cluster": names}), total=wide.to_numpy(float), size=wide.notna().to_numpy(),
    )  # fmt: skip
    contrasts = each("over_even", cells[["projection", "head"]])
    return InstrumentData({"hub": block}, {"hub": contrasts}, {"title": "routing"}, extra={"hubs": scores})


def tables(options: Routing, data: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """layers; heads: hub scores over layers; growth with depth; hubs: of every layer; cells: the matrices."""
    title, scores, by_layer = data.about["title"], data.extra["hubs"], data.extra["by layer"]
    even = f"the uniform hub score is {scores['even'].iloc[0]:.3f}"
    hubs = Table.noted(scores, HUBS, f"Hub scores by layer and head; {even}")
    return {
        "layers": Table.noted(by_layer, LAYERS, f"{title}: routing by layer; {even}"),
        "heads": hub_excess_table(data, estimates["hub"]),
        "growth": Table.noted(growth(by_layer), GROWTH, "Growth with depth, per layer"),
        "hubs": replace(hubs, by="score", most=10),
        "cells": Table(data.extra["cells"], CELLS, {}, "Routing weights from head to head", by="value", most=10),
    }


def hub_excess_table(data: InstrumentData, estimates: Estimates) -> Table:
    """One row per projection and head: the mean hub score over layers minus 1/H, and its test against 0."""
    frame, missing = estimates.wide(["projection", "head"])
    frame.insert(2, "even", float(data.extra["hubs"]["even"].iloc[0]))
    frame.insert(0, "name", [f"{part} {head}" for part, head in zip(frame["projection"], frame["head"], strict=True)])
    return Table(frame, HEADS, missing, "Hub score minus the uniform score 1/H; units are layers")


def matrices(model: Any) -> dict[str, dict[int, np.ndarray]]:
    """{projection ("attn.v"): {layer: W [H to, H from]}} of a model's Kronecker projections. `InputError` without
    any."""
    weights: dict[str, dict[int, Any]] = {}
    for name, W in routing(model).items():
        _, layer, part = name.split(".", 2)
        weights.setdefault(part, {})[int(layer)] = W.double().cpu().numpy()
    if not weights:
        raise InputError(
            f"{model.config.name} has no Kronecker mixing and so no routing matrices; use dst-kron, or train any "
            "preset with --set attention.v=kron --set attention.o=kron"
        )
    return weights


def cells(weights: Matrices) -> pd.DataFrame:
    """One row per projection, layer and cell: `to`, `from`, `value`."""
    tables = []
    for part, layers in weights.items():
        for layer, W in layers.items():
            target, origin = np.indices(W.shape).reshape(2, -1)
            labels = {"projection": part, "layer": layer, "to": target, "from": origin}
            tables.append(pd.DataFrame({**labels, "value": W.flatten()}))
    return pd.concat(tables, ignore_index=True)


def hub_scores(W: np.ndarray) -> np.ndarray:
    """Hub score of every head of W [..., H, H] -> [..., H]; NaN if nothing is routed between different heads."""
    off_diagonal = np.abs(W) * (1 - np.eye(W.shape[-1]))
    total = 2 * off_diagonal.sum((-1, -2))[..., None]
    with np.errstate(invalid="ignore"):
        return (off_diagonal.sum(-1) + off_diagonal.sum(-2)) / np.where(total > 0, total, np.nan)


def unevenness(W: np.ndarray) -> float:
    """Gini coefficient Σ_a Σ_b |x_a − x_b| / (2 n Σ x) of the n cells x = |W_ij|, i ≠ j; NaN if all are 0."""
    x = np.sort(np.abs(W)[~np.eye(len(W), dtype=bool)])
    ranks = 2 * np.arange(1, len(x) + 1) - len(x) - 1
    return float(ranks @ x / (len(x) * x.sum())) if x.sum() > 0 else float("nan")


def hubs(weights: Matrices) -> pd.DataFrame:
    """A row per projection, layer, head i: `into` Σ_j |W_ij|, `out_of` Σ_j |W_ji| (j ≠ i), `score`, `even` = 1/H."""
    rows = []
    for part, layers in weights.items():
        for layer, W in layers.items():
            off_diagonal = np.abs(W) * (1 - np.eye(len(W)))
            for i, score in enumerate(hub_scores(W)):
                reasons = {"score": _no_routing(W)} if np.isnan(score) else {}
                row = {"projection": part, "layer": layer, "head": f"L{layer}.H{i}", "index": i}
                sums = {
                    "into": off_diagonal[i].sum(),
                    "out_of": off_diagonal[:, i].sum(),
                    "score": score,
                    "even": 1 / len(W),
                }
                rows.append({**row, **sums, "undefined": note(reasons)})
    return pd.DataFrame(rows)


def layers(weights: Matrices, shuffles: int = 2000, seed: int = 0) -> pd.DataFrame:
    """One row per projection and layer: the norms, the head with the largest hub score, and its p against shuffles.

    p = (1 + #{shuffles with a largest score ≥ the layer's}) / (1 + shuffles), also Holm-corrected over all rows;
    `hub_chance` is the shuffles' mean. Undefined if shuffling changes nothing: below three heads, or for equal cells.
    """
    rng, rows, nan = np.random.default_rng(seed), [], float("nan")
    for part, matrices in weights.items():
        for layer, W in matrices.items():
            a, eye = np.abs(W), np.eye(len(W), dtype=bool)
            norm, off_norm = float(np.linalg.norm(W)), float(np.linalg.norm(W * ~eye))
            row: dict[str, Any] = {
                "projection": part, "layer": layer, "max": a.max(), "mean": a.mean(), "diagonal": a[eye].mean(),
                "off": a[~eye].mean() if len(W) > 1 else nan, "norm": norm, "off_norm": off_norm,
                "off_share": (off_norm / norm) ** 2 if norm else nan, "negative": float((W < 0).mean()),
                "uneven": unevenness(W), "hub": "", "hub_score": nan, "hub_chance": nan, "hub_p": nan,
            }  # fmt: skip
            reasons: dict[str, str] = {"off": "the layer has one head"} if len(W) < 2 else {}
            reasons |= {} if norm else {"off_share": "W is zero"}
            score = hub_scores(W)
            if np.isnan(score).any():
                reasons |= dict.fromkeys(("uneven", "hub_score", "hub_chance", "hub_p", "hub_p_holm"), _no_routing(W))
            else:
                row |= {"hub": f"H{int(score.argmax())}", "hub_score": score.max()}
                if len(W) < 3 or np.ptp(a[~eye]) == 0:
                    text = "shuffling its cells changes nothing"
                    reasons |= dict.fromkeys(("hub_chance", "hub_p", "hub_p_holm"), text)
                else:
                    dealt = np.zeros((shuffles, *W.shape))
                    dealt[:, ~eye] = rng.permuted(np.broadcast_to(a[~eye], (shuffles, len(a[~eye]))), axis=1)
                    chance = hub_scores(dealt).max(-1)  # the largest of every shuffle
                    row["hub_chance"] = chance.mean()
                    row["hub_p"] = (1 + (chance >= score.max() - 1e-12).sum()) / (1 + shuffles)
            rows.append({**row, "undefined": note(reasons)})
    table = pd.DataFrame(rows)
    table.insert(table.columns.get_loc("hub_p") + 1, "hub_p_holm", holm(table["hub_p"]))
    return table


def _no_routing(W: np.ndarray) -> str:
    return "the layer has one head" if len(W) < 2 else "nothing is routed between different heads"


def growth(table: pd.DataFrame) -> pd.DataFrame:
    """Slope over layers of `max`, `off` and `uneven`: least squares ± t_{L−2} SE, p of no slope; first and last value.

    `table`: the rows of `layers`. Undefined for fewer than three layers.
    """
    rows = []
    for part, part_rows in table.groupby("projection", sort=False):
        for quantity_name in GROWING:
            defined_rows = part_rows[part_rows[quantity_name].notna()].sort_values("layer")
            x, y = defined_rows["layer"].to_numpy(float), defined_rows[quantity_name].to_numpy(float)
            first, last = (y[0], y[-1]) if len(y) else (float("nan"), float("nan"))
            row: dict[str, Any] = {
                "projection": part,
                "of": quantity_name,
                "layers": len(y),
                "first": first,
                "last": last,
            }
            row |= dict.fromkeys(SLOPE, float("nan"))
            if len(y) < 3:
                empty_reasons = {} if len(y) else dict.fromkeys(("first", "last"), NOTHING_ROUTED)
                reasons = dict.fromkeys(SLOPE, "fewer than three layers") | empty_reasons
            else:
                fit, reasons = stats.linregress(x, y), {}
                row["slope"] = fit.slope
                residual = y - fit.intercept - fit.slope * x
                if np.abs(residual).max() <= 1e-12 * np.abs(y).max():
                    reasons = dict.fromkeys(SLOPE[1:], "the layers lie exactly on a line")
                else:
                    half = stats.t.ppf(0.975, len(y) - 2) * fit.stderr
                    row |= {"slope_low": fit.slope - half, "slope_high": fit.slope + half, "slope_p": fit.pvalue}
            rows.append({**row, "undefined": note(reasons)})
    return pd.DataFrame(rows)


WEIGHT, SHARE = "|W|", "share of routing between heads"
GINI, EITHER = "Gini coefficient", "|W|; of uneven: Gini coefficient"
PROJECTION = key("projection", "projection", "name of the Kronecker projection")
LAYER = key("layer", "layer", "counted from 0", "layer", "d")

UNIFORM = number("even", "uniform score", SHARE, "1/H", ".3f", False)
HEAD = key("head", "head", "the head with this share")
LAYERS = (
    PROJECTION,
    LAYER,
    number("max", "largest |W|", WEIGHT, "largest |W_ij|", ".3f"),
    number("mean", "mean |W|", WEIGHT, "mean |W_ij|", ".3f"),
    number("diagonal", "diagonal |W|", WEIGHT, "mean |W_ii|", ".3f"),
    number("off", "off-diagonal |W|", WEIGHT, "mean |W_ij|, i ≠ j", ".3f"),
    number("norm", "norm", WEIGHT, "‖W‖_F", ".3f", False),
    number("off_norm", "off-diagonal norm", WEIGHT, "‖W − diag W‖_F", ".3f", False),
    number("off_share", "off-diagonal share", "share of ‖W‖²", "off_norm² / norm²", ".3f"),
    number("negative", "negative cells", "share of cells", "cells below 0", ".3f", False),
    number("uneven", "unevenness", GINI, "Gini coefficient of |W_ij|, i ≠ j; .414 for many normal weights", ".3f"),
    key("hub", "hub", "the head with the largest hub score"),
    number("hub_score", "hub score", SHARE, "the largest hub score", ".3f"),
    number("hub_chance", "hub score by chance", SHARE, "mean of the largest hub score over shuffles", ".3f"),
    number("hub_p", "p of the hub", "share of shuffles", "shuffles with at least this hub score", "p", False),
    number("hub_p_holm", "p, Holm", "probability", "hub_p, corrected over all rows", "p"),
)  # fmt: skip
HEADS = (
    key("name", "head", "projection and head"),
    replace(PROJECTION, shown=False),
    key("head", "head", "the head with this number in every layer", shown=False),
    UNIFORM,
    *quantity("over_even", "hub score − uniform", SHARE, "mean hub score over layers − 1/H", sd="layers"),
    *counts("layers", "layers"),
)  # fmt: skip
GROWTH = (
    PROJECTION,
    key("of", "quantity", "largest weight (max), mean off-diagonal weight (off), or its unevenness"),
    number("layers", "layers", "layers", "number of layers", "d", False),
    number("first", "first layer", EITHER, "value in the first layer", ".3f"),
    number("last", "last layer", EITHER, "value in the last layer", ".3f"),
    Column(name="slope", title="slope", unit=f"{EITHER}, per layer", format="+.4f",
           interval=("slope_low", "slope_high"), doc="least-squares slope over layers"),
    number("slope_low", "slope, lower", f"{EITHER}, per layer", "lower end of the 95 % interval", "+.4f", False),
    number("slope_high", "slope, upper", f"{EITHER}, per layer", "upper end of the 95 % interval", "+.4f", False),
    number("slope_p", "p", "probability", "p of no slope", "p"),
)  # fmt: skip
HUBS = (
    PROJECTION,
    LAYER,
    HEAD,
    number("index", "index", "head", "number of the head in its layer, from 0", "d", False),
    number("into", "into the head", "Σ |W|", "Σ_j |W_ij|, j ≠ i"),
    number("out_of", "out of the head", "Σ |W|", "Σ_j |W_ji|, j ≠ i"),
    number("score", "hub score", SHARE, "share of the routing between different heads", ".3f"),
    UNIFORM,
)  # fmt: skip
CELLS = (
    PROJECTION,
    LAYER,
    number("to", "to", "head", "the receiving head", "d"),
    number("from", "from", "head", "the sending head", "d"),
    number("value", "W", "weight", "W_ij", "+.4f"),
)  # fmt: skip
