"""Routing: the matrices of a model, hub scores as heads × layers, and the tables of both."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from streamscope.cli.errors import InputError
from streamscope.instruments.about_model import title_of
from streamscope.instruments.contract import InstrumentData
from streamscope.instruments.data import Opened
from streamscope.instruments.observations import Contrast, Estimates, Measure, Observations
from streamscope.instruments.stats.p_values import correct
from streamscope.instruments.table import Column, Table, counts, key, quantity
from streamscope.instruments.undefined_cells import note, reasons
from streamscope.models.mixing import routing
from streamscope.probes.routing import Routing

Matrices = Mapping[str, Mapping[int, np.ndarray]]
"""Projection -> layer -> W [H to, H from]."""
GROWING = ("max", "off", "uneven")


def observe(how: Routing, model: Any, data: Opened, progress: Any = iter) -> InstrumentData:
    """Cells: projection × head; units: layers."""
    found = matrices(model)
    seen = seen_of(hubs(found))
    seen.extra["by layer"] = layers(found, how.shuffles, how.seed)
    seen.extra["cells"] = cells(found)
    seen.about["title"] = title_of(model)
    return seen


def seen_of(scores: pd.DataFrame) -> InstrumentData:
    """Observations of what `hubs` returned: every head's score beyond an even one, in every layer that has one."""
    n = round(1 / scores["even"].iloc[0])
    wide = scores.pivot_table(index=["projection", "index"], columns="layer", values="score", dropna=False, sort=False)
    cells = wide.index.to_frame(index=False)
    cells["head"] = [f"H{i}" for i in cells["index"]]
    names = [f"L{layer}" for layer in wide.columns]
    block = Observations(
        measure=Measure(name="hub score", unit=SHARE, resolution=0.0, shift=-1 / n), cells=cells,
        units=pd.DataFrame({"unit": names, "cluster": names}), total=wide.to_numpy(float), size=wide.notna().to_numpy(),
    )  # fmt: skip
    contrasts = [
        Contrast(quantity="over_even", weights={i: 1.0}, labels={"projection": one.projection, "head": one.head})
        for i, one in enumerate(cells.itertuples())
    ]
    return InstrumentData({"hub": block}, {"hub": contrasts}, {"title": "routing"}, extra={"hubs": scores})


def tables(how: Routing, seen: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """layers; heads: hub scores over layers; growth with depth; hubs: of every layer; cells: the matrices."""
    title, scores, by_layer = seen.about["title"], seen.extra["hubs"], seen.extra["by layer"]
    heads = over_even(seen, estimates["hub"])
    even = f"an even hub score is {scores['even'].iloc[0]:.3f}"
    parts = {
        "layers": Table.noted(by_layer, LAYERS, f"{title}: routing by layer; {even}"),
        "heads": heads,
        "growth": Table.noted(growth(by_layer), GROWTH, "growth with depth, per layer"),
        "hubs": Table.noted(scores, HUBS, f"hub scores by layer and head; {even}"),
        "cells": Table(seen.extra["cells"], CELLS, {}, "routing, from head to head"),
    }
    parts["hubs"] = replace(parts["hubs"], by="score", most=10)
    parts["cells"] = replace(parts["cells"], by="value", most=10)
    return parts


def over_even(seen: InstrumentData, found: Estimates) -> Table:
    """One row per projection and head: the mean hub score over layers minus 1/H, and whether it differs from 0."""
    frame, missing = found.wide(["projection", "head"])
    frame.insert(2, "even", float(seen.extra["hubs"]["even"].iloc[0]))
    frame.insert(0, "name", [f"{part} {head}" for part, head in zip(frame["projection"], frame["head"], strict=True)])
    return Table(frame, HEADS, missing, "hub score over an even one, units are layers")


def matrices(model: Any) -> dict[str, dict[int, np.ndarray]]:
    """{projection ("attn.v"): {layer: W [H to, H from]}} of a model's Kronecker projections.

    Raises `InputError` for a model without any.
    """
    found: dict[str, dict[int, Any]] = {}
    for name, W in routing(model).items():
        _, layer, part = name.split(".", 2)
        found.setdefault(part, {})[int(layer)] = W.double().cpu().numpy()
    if not found:
        raise InputError(
            f"{model.config.name} has no Kronecker mixing, so no matrix says which head sends to which; dst-kron has, "
            "or train any preset with --set attention.v=kron --set attention.o=kron"
        )
    return found


def cells(found: Matrices) -> pd.DataFrame:
    """One row per projection, layer and cell: `to`, `from`, `value`."""
    tables = []
    for part, layers in found.items():
        for layer, W in layers.items():
            to, origin = np.indices(W.shape).reshape(2, -1)
            tables.append(
                pd.DataFrame({"projection": part, "layer": layer, "to": to, "from": origin, "value": W.flatten()})
            )
    return pd.concat(tables, ignore_index=True)


def hub_scores(W: np.ndarray) -> np.ndarray:
    """Hub score of every head of W [..., H, H] -> [..., H]; NaN where nothing is routed between different heads."""
    off = np.abs(W) * (1 - np.eye(W.shape[-1]))
    total = 2 * off.sum((-1, -2))[..., None]
    with np.errstate(invalid="ignore"):
        return (off.sum(-1) + off.sum(-2)) / np.where(total > 0, total, np.nan)


def unevenness(W: np.ndarray) -> float:
    """Gini coefficient Σ_a Σ_b |x_a − x_b| / (2 n Σ x) of the n cells x = |W_ij|, i ≠ j; NaN where all are 0."""
    x = np.sort(np.abs(W)[~np.eye(len(W), dtype=bool)])
    ranks = 2 * np.arange(1, len(x) + 1) - len(x) - 1
    return float(ranks @ x / (len(x) * x.sum())) if x.sum() > 0 else float("nan")


def hubs(found: Matrices) -> pd.DataFrame:
    """A row per projection, layer, head i: `into` Σ_j |W_ij|, `out_of` Σ_j |W_ji| (j ≠ i), `score`, `even` = 1/H."""
    rows = []
    for part, layers in found.items():
        for layer, W in layers.items():
            off = np.abs(W) * (1 - np.eye(len(W)))
            for i, score in enumerate(hub_scores(W)):
                why = {"score": _no_routing(W)} if np.isnan(score) else {}
                row = {"projection": part, "layer": layer, "head": f"L{layer}H{i}", "index": i}
                sums = {"into": off[i].sum(), "out_of": off[:, i].sum(), "score": score, "even": 1 / len(W)}
                rows.append({**row, **sums, "undefined": note(why)})
    return pd.DataFrame(rows)


def layers(found: Matrices, shuffles: int = 2000, seed: int = 0) -> pd.DataFrame:
    """One row per projection and layer: the norms, the head with the largest hub score, and its p against shuffles.

    p = (1 + #{shuffles with a largest score ≥ the layer's}) / (1 + shuffles), Holm's over all rows beside it;
    `hub_chance` is the shuffles' mean. Undefined where a shuffle changes nothing: below three heads, or equal cells.
    """
    rng, rows, nan = np.random.default_rng(seed), [], float("nan")
    for part, matrices in found.items():
        for layer, W in matrices.items():
            a, eye = np.abs(W), np.eye(len(W), dtype=bool)
            off, norm = W * ~eye, float(np.linalg.norm(W))
            row: dict[str, Any] = {"projection": part, "layer": layer, "max": a.max(), "mean": a.mean()}
            row |= {"diagonal": a[eye].mean(), "off": a[~eye].mean() if len(W) > 1 else nan, "norm": norm}
            row |= {"off_norm": float(np.linalg.norm(off)), "off_share": nan, "negative": float((W < 0).mean())}
            row["uneven"] = unevenness(W)
            row |= {"hub": "", "hub_score": nan, "hub_chance": nan, "hub_p": nan}
            why: dict[str, str] = {"off": "one head"} if len(W) < 2 else {}
            if norm:
                row["off_share"] = (row["off_norm"] / norm) ** 2
            else:
                why["off_share"] = "W is zero"
            score = hub_scores(W)
            if np.isnan(score).any():
                why |= dict.fromkeys(("uneven", "hub_score", "hub_chance", "hub_p"), _no_routing(W))
            else:
                row |= {"hub": f"H{int(score.argmax())}", "hub_score": score.max()}
                if len(W) < 3 or np.ptp(a[~eye]) == 0:
                    why |= dict.fromkeys(("hub_chance", "hub_p"), "shuffling its cells changes nothing")
                else:
                    chance = _shuffled(a[~eye], eye, shuffles, rng)
                    row["hub_chance"] = chance.mean()
                    row["hub_p"] = (1 + (chance >= score.max() - 1e-12).sum()) / (1 + shuffles)
            rows.append({**row, "undefined": note(why)})
    table = pd.DataFrame(rows)
    p = correct(table["hub_p"]).p if table["hub_p"].notna().any() else np.nan
    table.insert(table.columns.get_loc("hub_p") + 1, "hub_p_holm", p)
    whys = [reasons(text) for text in table["undefined"]]
    table["undefined"] = [note(why | ({"hub_p_holm": why["hub_p"]} if "hub_p" in why else {})) for why in whys]
    return table


def _shuffled(values: np.ndarray, eye: np.ndarray, shuffles: int, rng: np.random.Generator) -> np.ndarray:
    """The largest hub score of each of many shuffles of the cells off the diagonal."""
    W = np.zeros((shuffles, *eye.shape))
    W[:, ~eye] = rng.permuted(np.broadcast_to(values, (shuffles, len(values))), axis=1)
    return hub_scores(W).max(-1)


def _no_routing(W: np.ndarray) -> str:
    return "one head" if len(W) < 2 else "nothing is routed between different heads"


def growth(table: pd.DataFrame) -> pd.DataFrame:
    """Slope over layers of `max`, `off` and `uneven`: least squares, x̂ ± t_{L−2} SE, p of no slope; both ends.

    `table`: what `layers` returned; units are those of the column per layer. Undefined for fewer than three layers.
    """
    rows = []
    for part, one in table.groupby("projection", sort=False):
        for what in GROWING:
            own = one[one[what].notna()].sort_values("layer")
            x, y = own["layer"].to_numpy(float), own[what].to_numpy(float)
            row: dict[str, Any] = {"projection": part, "of": what, "layers": len(y)}
            row |= {"first": y[0] if len(y) else float("nan"), "last": y[-1] if len(y) else float("nan")}
            row |= dict.fromkeys(("slope", "ci_low", "ci_high", "p"), float("nan"))
            if len(y) < 3:
                why = dict.fromkeys(("slope", "ci_low", "ci_high", "p"), "fewer than three layers")
                if not len(y):
                    why |= dict.fromkeys(("first", "last"), "one head, or nothing is routed between heads")
            else:
                fit, why = stats.linregress(x, y), {}
                row["slope"] = fit.slope
                residual = y - fit.intercept - fit.slope * x
                if np.abs(residual).max() <= 1e-12 * np.abs(y).max():
                    why = dict.fromkeys(("ci_low", "ci_high", "p"), "layers lie on a line exactly")
                else:
                    half = stats.t.ppf(0.975, len(y) - 2) * fit.stderr
                    row |= {"ci_low": fit.slope - half, "ci_high": fit.slope + half, "p": fit.pvalue}
            rows.append({**row, "undefined": note(why)})
    return pd.DataFrame(rows)


WEIGHT, SHARE = "|W|", "share of routing between heads"
GINI, EITHER = "Gini coefficient", "|W|; of uneven: Gini coefficient"
PROJECTION = key("projection", "projection", "which Kronecker projection")
LAYER = Column(name="layer", title="layer", unit="layer", format="d", doc="counted from 0")


def _number(name: str, title: str, unit: str, doc: str, format: str = ".4f", shown: bool = True) -> Column:
    return Column(name=name, title=title, unit=unit, doc=doc, format=format, shown=shown)


EVEN = _number("even", "even", SHARE, "1/H", ".3f", False)
HEAD = key("head", "head", "whose share it is")
LAYERS = (
    PROJECTION,
    LAYER,
    _number("max", "largest", WEIGHT, "largest |W_ij|", ".3f"),
    _number("mean", "mean", WEIGHT, "mean |W_ij|", ".3f"),
    _number("diagonal", "diagonal", WEIGHT, "mean |W_ii|", ".3f"),
    _number("off", "off diagonal", WEIGHT, "mean |W_ij|, i ≠ j", ".3f"),
    _number("norm", "norm", WEIGHT, "‖W‖_F", ".3f", False),
    _number("off_norm", "norm, off", WEIGHT, "‖W − diag W‖_F", ".3f", False),
    _number("off_share", "share, off", "share of ‖W‖²", "off_norm² / norm²", ".3f"),
    _number("negative", "negative", "share of cells", "cells below 0", ".3f", False),
    _number("uneven", "uneven", GINI, "of |W_ij|, i ≠ j; .414 where W is normal and large", ".3f"),
    key("hub", "hub", "the head with the largest hub score"),
    _number("hub_score", "its score", SHARE, "the largest hub score", ".3f"),
    _number("hub_chance", "by chance", SHARE, "mean of the largest hub score over shuffles", ".3f"),
    _number("hub_p", "p of the hub", "share of shuffles", "shuffles with as large a hub score", "p", False),
    _number("hub_p_holm", "p, Holm", "probability", "hub_p, corrected over all rows", "p"),
)
HEADS = (
    key("name", "head", "projection and head"),
    Column(name="projection", title="projection", unit="name", doc=PROJECTION.doc, shown=False),
    Column(name="head", title="head", unit="name", doc="the same place in every layer", shown=False),
    EVEN,
    *quantity("over_even", "over even", SHARE, "mean hub score over layers − 1/H", sd="layers"),
    *counts("layers", "layers"),
)
GROWTH = (
    PROJECTION,
    key("of", "of", "the largest, the mean weight off the diagonal, or how unevenly those are spread"),
    _number("layers", "layers", "layers", "how many", "d", False),
    _number("first", "first layer", EITHER, "in the first layer", ".3f"),
    _number("last", "last layer", EITHER, "in the last layer", ".3f"),
    Column(name="slope", title="slope", unit=f"{EITHER}, per layer", format="+.4f", interval=("ci_low", "ci_high"),
           doc="least squares over layers"),
    _number("ci_low", "slope, lower", f"{EITHER}, per layer", "lower end of the 95 % interval", "+.4f", False),
    _number("ci_high", "slope, upper", f"{EITHER}, per layer", "upper end of the 95 % interval", "+.4f", False),
    _number("p", "p", "probability", "p of no slope", "p"),
)  # fmt: skip
HUBS = (
    PROJECTION,
    LAYER,
    HEAD,
    _number("index", "index", "head", "in its layer, from 0", "d", False),
    _number("into", "into", "Σ |W|", "Σ_j |W_ij|, j ≠ i"),
    _number("out_of", "out of", "Σ |W|", "Σ_j |W_ji|, j ≠ i"),
    _number("score", "score", SHARE, "hub score", ".3f"),
    EVEN,
)
CELLS = (
    PROJECTION,
    LAYER,
    _number("to", "to", "head", "the head that receives", "d"),
    _number("from", "from", "head", "the head that sends", "d"),
    _number("value", "W", "weight", "W_ij", "+.4f"),
)
