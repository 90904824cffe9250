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
from streamscope.instruments.table import Table, counts, described, key, note, number, quantity
from streamscope.models.mixing import routing
from streamscope.probes.routing import Routing

Matrices = Mapping[tuple[str, int], np.ndarray]
"""(projection, layer) -> W [H to, H from], by projection."""
GROWING = ("max", "off", "uneven")
SLOPE = ("slope", "slope_low", "slope_high", "slope_p")
NAN = float("nan")


def observe(options: Routing, model: Any, data: Opened, progress: Any = iter) -> InstrumentData:
    """Cells: projection × head. Units: layers."""
    return observed(options, matrices(model), title_of(model))


def observed(options: Routing, weights: Matrices, title: str = "") -> InstrumentData:
    """Every head's hub score minus the uniform score, in every layer that has one."""
    scores = hubs(weights)
    wide = scores.pivot_table(index=["projection", "index"], columns="layer", values="score", dropna=False, sort=False)
    heads = wide.index.to_frame(index=False)
    heads["head"] = [f"H{i}" for i in heads["index"]]
    names = [f"L{layer}" for layer in wide.columns]
    block = Observations(
        measure=Measure(name="hub score", unit=SHARE, resolution=0.0, shift=-scores["even"].iloc[0]), cells=heads,
        units=pd.DataFrame({"unit": names, "cluster": names}), total=wide.to_numpy(float), size=wide.notna().to_numpy(),
    )  # fmt: skip
    by_layer = layers(weights, options.shuffles, options.seed)
    extra = {"hubs": scores, "by layer": by_layer, "cells": cells(weights)}
    contrasts = each("over_even", heads[["projection", "head"]])
    return InstrumentData({"hub": block}, {"hub": contrasts}, {"title": title}, extra=extra)


def tables(options: Routing, data: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """layers; heads: hub scores over layers; growth with depth; hubs: of every layer; cells: the matrices."""
    title, scores, by_layer = data.about["title"], data.extra["hubs"], data.extra["by layer"]
    uniform = float(scores["even"].iloc[0])
    even = f"the uniform hub score is {uniform:.3f}"
    frame, missing = estimates["hub"].wide(["projection", "head"])
    frame.insert(0, "name", frame["projection"] + " " + frame["head"])
    frame.insert(3, "even", uniform)
    hubs = Table.noted(scores, HUBS, f"Hub scores by layer and head; {even}")
    return {
        "layers": Table.noted(by_layer, LAYERS, f"{title}: routing by layer; {even}"),
        "heads": Table(frame, HEADS, missing, "Hub score minus the uniform score 1/H; units are layers"),
        "growth": Table.noted(growth(by_layer), GROWTH, "Growth with depth, per layer"),
        "hubs": replace(hubs, by="score", most=10),
        "cells": Table(data.extra["cells"], CELLS, {}, "Routing weights from head to head", by="value", most=10),
    }


def matrices(model: Any) -> dict[tuple[str, int], np.ndarray]:
    """The `Matrices` of a model's Kronecker projections, such as attn.v. `InputError` without any."""
    weights: dict[str, dict[int, np.ndarray]] = {}
    for name, W in routing(model).items():
        _, layer, part = name.split(".", 2)
        weights.setdefault(part, {})[int(layer)] = W.double().cpu().numpy()
    if not weights:
        raise InputError(
            f"{model.config.name} has no Kronecker mixing and so no routing matrices; use dst-kron, or train any "
            "preset with --set attention.v=kron --set attention.o=kron"
        )
    return {(part, layer): W for part, of_part in weights.items() for layer, W in of_part.items()}


def cells(weights: Matrices) -> pd.DataFrame:
    """One row per projection, layer and cell: `to`, `from`, `value`."""
    tables = []
    for (part, layer), W in weights.items():
        target, origin = np.indices(W.shape).reshape(2, -1)
        labels = {"projection": part, "layer": layer, "to": target, "from": origin}
        tables.append(pd.DataFrame({**labels, "value": W.flatten()}))
    return pd.concat(tables, ignore_index=True)


def hub_scores(W: np.ndarray) -> np.ndarray:
    """Hub score of every head of W [..., H, H] -> [..., H]; NaN if nothing is routed between different heads."""
    off_diagonal = np.abs(W) * (1 - np.eye(W.shape[-1]))
    total = 2 * off_diagonal.sum((-1, -2))[..., None]
    return (off_diagonal.sum(-1) + off_diagonal.sum(-2)) / np.where(total > 0, total, np.nan)


def unevenness(W: np.ndarray) -> float:
    """Gini coefficient Σ_a Σ_b |x_a − x_b| / (2 n Σ x) of the n cells x = |W_ij|, i ≠ j; NaN if all are 0."""
    x = np.sort(np.abs(W)[~np.eye(len(W), dtype=bool)])
    ranks = 2 * np.arange(1, len(x) + 1) - len(x) - 1
    return float(ranks @ x / (len(x) * x.sum())) if x.sum() > 0 else NAN


def hubs(weights: Matrices) -> pd.DataFrame:
    """A row per projection, layer, head i: `into` Σ_j |W_ij|, `out_of` Σ_j |W_ji| (j ≠ i), `score`, `even` = 1/H."""
    tables = []
    for (part, layer), W in weights.items():
        off_diagonal, score = np.abs(W) * (1 - np.eye(len(W))), hub_scores(W)
        tables.append(pd.DataFrame({
            "projection": part, "layer": layer, "head": [f"L{layer}.H{i}" for i in range(len(W))],
            "index": range(len(W)), "into": off_diagonal.sum(1), "out_of": off_diagonal.sum(0), "score": score,
            "even": 1 / len(W), "undefined": note({"score": _no_routing(W)} if np.isnan(score).any() else {}),
        }))  # fmt: skip
    return pd.concat(tables, ignore_index=True)


def layers(weights: Matrices, shuffles: int = 2000, seed: int = 0) -> pd.DataFrame:
    """One row per projection and layer: the norms, the head with the largest hub score, and its p against shuffles.

    p = (1 + #{shuffles with a largest score ≥ the layer's}) / (1 + shuffles), also Holm-corrected over all rows;
    `hub_chance` is the shuffles' mean. Undefined if shuffling changes nothing: below three heads, or for equal cells.
    """
    rng, rows = np.random.default_rng(seed), []
    for (part, layer), W in weights.items():
        a, eye, score = np.abs(W), np.eye(len(W), dtype=bool), hub_scores(W)
        norm, off_norm = float(np.linalg.norm(W)), float(np.linalg.norm(W * ~eye))
        row: dict[str, Any] = {
            "projection": part, "layer": layer, "max": a.max(), "mean": a.mean(), "diagonal": a[eye].mean(),
            "off": a[~eye].mean() if len(W) > 1 else NAN, "norm": norm, "off_norm": off_norm,
            "off_share": (off_norm / norm) ** 2 if norm else NAN, "negative": float((W < 0).mean()),
            "uneven": unevenness(W), "hub": "", "hub_score": NAN, "hub_chance": NAN, "hub_p": NAN,
        }  # fmt: skip
        reasons: dict[str, str] = {"off": "the layer has one head"} if len(W) < 2 else {}
        reasons |= {} if norm else {"off_share": "W is zero"}
        untested = ("hub_chance", "hub_p", "hub_p_holm")
        if np.isnan(score).any():
            reasons |= dict.fromkeys(("uneven", "hub_score", *untested), _no_routing(W))
        else:
            row |= {"hub": f"H{int(score.argmax())}", "hub_score": score.max()}
            if len(W) < 3 or np.ptp(a[~eye]) == 0:
                reasons |= dict.fromkeys(untested, "shuffling its cells changes nothing")
            else:
                dealt = np.zeros((shuffles, *W.shape))
                dealt[:, ~eye] = rng.permuted(np.broadcast_to(a[~eye], (shuffles, len(a[~eye]))), axis=1)
                chance = hub_scores(dealt).max(-1)  # the largest of every shuffle
                p = (1 + (chance >= score.max() - 1e-12).sum()) / (1 + shuffles)
                row |= {"hub_chance": chance.mean(), "hub_p": p}
        rows.append({**row, "undefined": note(reasons)})
    table = pd.DataFrame(rows)
    table.insert(table.columns.get_loc("hub_p") + 1, "hub_p_holm", holm(table["hub_p"]))
    return table


def _no_routing(W: np.ndarray) -> str:
    return "the layer has one head" if len(W) < 2 else "nothing is routed between different heads"


def growth(table: pd.DataFrame) -> pd.DataFrame:
    """Slope over the rows of `layers` of `GROWING`: least squares ± t_{L−2} SE, p of no slope; first and last value."""
    rows = []
    for part, part_rows in table.groupby("projection", sort=False):
        for name in GROWING:
            x, y = part_rows[["layer", name]].dropna().sort_values("layer").to_numpy(float).T
            first, last = (y[0], y[-1]) if len(y) else (NAN, NAN)
            row: dict[str, Any] = {"projection": part, "of": name, "layers": len(y), "first": first, "last": last}
            row |= dict.fromkeys(SLOPE, NAN)
            reasons = {}
            if len(y) < 3:
                no_value = "the layers have one head, or nothing is routed between heads"
                reasons = dict.fromkeys(SLOPE, "fewer than three layers")
                reasons |= {} if len(y) else dict.fromkeys(("first", "last"), no_value)
            else:
                fit = stats.linregress(x, y)
                row["slope"] = fit.slope
                if np.abs(y - fit.intercept - fit.slope * x).max() <= 1e-12 * np.abs(y).max():
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
    *described("slope", "slope", f"{EITHER}, per layer", "least-squares slope over layers", format="+.4f"),
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
