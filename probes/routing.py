"""Which head sends to which: the Kronecker routing matrices of a model, layer by layer (DST §4.3, Fig. 3).

    python -m probes.routing                                      the bundled dst-kron
    python -m probes.routing runs/dst-kron
    python -m probes.routing runs/dst-kron --out routing.parquet

W [H to, H from] of a Kronecker projection: W_ij scales what head j gives to head i (DST Eq. 5). Positive weights
excite, negative ones invert. Per layer and projection:

    max, mean      of |W_ij|, all cells; `diagonal` and `off` are the means of |W_ii| and of |W_ij|, i ≠ j
    norm           ‖W‖_F; off_norm = ‖W − diag W‖_F; off_share = off_norm² / norm²
    hub score      (Σ_{j≠i} |W_ij| + Σ_{j≠i} |W_ji|) / (2 Σ_{a≠b} |W_ab|): the share of the routing between different
                   heads that goes into or out of head i. The scores of a layer sum to 1, an even one gives 1/H.

The paper names head 0 a hub and says that weights grow with depth, without a measure for either. Here a hub is tested
against chance: the cells off the diagonal are shuffled, and p is the share of shuffles whose largest hub score reaches
the layer's. Growth is the slope over layers of the largest |W_ij|, with a t interval whose units are the layers of
this one model; other seeds may differ by more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from streamscope.models.bounds import Count, Seed
from streamscope.models.cli import command, parse
from streamscope.models.errors import InputError
from streamscope.probes.command import INTERVAL, RunOptions, check_options, open_run, show, write_results

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

GROWING = ("max", "off")
UNITS = {
    "score": "share of routing between heads",
    "into": "Σ |W|",
    "out_of": "Σ |W|",
    "max": "|W|",
    "mean": "|W|",
    "diagonal": "|W|",
    "off": "|W|",
    "norm": "|W|",
    "off_norm": "|W|",
    "off_share": "share of ‖W‖²",
    "hub_p": "share of shuffles",
    "slope": "|W| per layer",
    "value": "W",
}


def matrices(model: Any) -> "dict[str, dict[int, np.ndarray]]":
    """{projection ("attn.v"): {layer: W [H to, H from]}} of a model's Kronecker projections.

    Raises `InputError` for a model without any.
    """
    from streamscope.models.mixing import routing

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


def cells(found: "Mapping[str, Mapping[int, np.ndarray]]") -> "pd.DataFrame":
    """One row per projection, layer and cell: `to`, `from`, `value`."""
    import numpy as np
    import pandas as pd

    tables = []
    for part, layers in found.items():
        for layer, W in layers.items():
            to, origin = np.indices(W.shape).reshape(2, -1)
            tables.append(
                pd.DataFrame({"projection": part, "layer": layer, "to": to, "from": origin, "value": W.flatten()})
            )
    return pd.concat(tables, ignore_index=True)


def hub_scores(W: "np.ndarray") -> "np.ndarray":
    """Hub score of every head of W [..., H, H] -> [..., H]; NaN where nothing is routed between different heads."""
    import numpy as np

    off = np.abs(W) * (1 - np.eye(W.shape[-1]))
    total = 2 * off.sum((-1, -2))[..., None]
    with np.errstate(invalid="ignore"):
        return (off.sum(-1) + off.sum(-2)) / np.where(total > 0, total, np.nan)


def hubs(found: "Mapping[str, Mapping[int, np.ndarray]]") -> "pd.DataFrame":
    """A row per projection, layer, head i: `into` Σ_j |W_ij|, `out_of` Σ_j |W_ji| (j ≠ i), `score`, `even` = 1/H."""
    import numpy as np
    import pandas as pd

    from streamscope.probes.undefined import note

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


def hub_heads(table: "pd.DataFrame") -> "pd.DataFrame":
    """One row per projection and head: mean score over layers minus 1/H, 95 % t interval (units: layers), p, Holm.

    What `hubs` returned. Undefined with one layer.
    """
    import pandas as pd

    from streamscope.probes.report import estimate, with_holm

    rows = []
    for (part, i), one in table[table["score"].notna()].groupby(["projection", "index"], sort=False):
        over = estimate(one["score"] - one["even"], one["layer"])
        rows.append({"projection": part, "head": f"H{i}", "even": float(one["even"].iloc[0]), **over})
    if not rows:
        return pd.DataFrame()
    found = pd.DataFrame(rows).rename(columns={"mean": "over_even"}).drop(columns="clusters")
    return with_holm(found)


def layers(found: "Mapping[str, Mapping[int, np.ndarray]]", shuffles: int = 2000, seed: int = 0) -> "pd.DataFrame":
    """One row per projection and layer: the norms, the head with the largest hub score, and its p against shuffles.

    p = (1 + #{shuffles with a largest score ≥ the layer's}) / (1 + shuffles), Holm's over all rows beside it;
    `hub_chance` is the shuffles' mean. Undefined where a shuffle changes nothing: below three heads, or equal cells.
    """
    import numpy as np
    import pandas as pd

    from streamscope.probes.report import with_holm
    from streamscope.probes.undefined import note

    rng, rows, nan = np.random.default_rng(seed), [], float("nan")
    for part, matrices in found.items():
        for layer, W in matrices.items():
            a, eye = np.abs(W), np.eye(len(W), dtype=bool)
            off, norm = W * ~eye, float(np.linalg.norm(W))
            row: dict[str, Any] = {"projection": part, "layer": layer, "max": a.max(), "mean": a.mean()}
            row |= {"diagonal": a[eye].mean(), "off": a[~eye].mean() if len(W) > 1 else nan, "norm": norm}
            row |= {"off_norm": float(np.linalg.norm(off)), "off_share": nan, "negative": float((W < 0).mean())}
            row |= {"hub": "", "hub_score": nan, "hub_chance": nan, "hub_p": nan}
            why: dict[str, str] = {"off": "one head"} if len(W) < 2 else {}
            if norm:
                row["off_share"] = (row["off_norm"] / norm) ** 2
            else:
                why["off_share"] = "W is zero"
            score = hub_scores(W)
            if np.isnan(score).any():
                why |= dict.fromkeys(("hub_score", "hub_chance", "hub_p"), _no_routing(W))
            else:
                row |= {"hub": f"H{int(score.argmax())}", "hub_score": score.max()}
                if len(W) < 3 or np.ptp(a[~eye]) == 0:
                    why |= dict.fromkeys(("hub_chance", "hub_p"), "shuffling its cells changes nothing")
                else:
                    chance = _shuffled(a[~eye], eye, shuffles, rng)
                    row["hub_chance"] = chance.mean()
                    row["hub_p"] = (1 + (chance >= score.max() - 1e-12).sum()) / (1 + shuffles)
            rows.append({**row, "undefined": note(why)})
    return with_holm(pd.DataFrame(rows), "hub_p")


def _shuffled(values: "np.ndarray", eye: "np.ndarray", shuffles: int, rng: "np.random.Generator") -> "np.ndarray":
    """The largest hub score of each of many shuffles of the cells off the diagonal."""
    import numpy as np

    W = np.zeros((shuffles, *eye.shape))
    W[:, ~eye] = rng.permuted(np.broadcast_to(values, (shuffles, len(values))), axis=1)
    return hub_scores(W).max(-1)


def _no_routing(W: "np.ndarray") -> str:
    return "one head" if len(W) < 2 else "nothing is routed between different heads"


def growth(table: "pd.DataFrame") -> "pd.DataFrame":
    """Slope over layers of `max` and `off`: least squares, x̂ ± t_{L−2} SE, p of no slope; first and last layer.

    What `layers` returned; units are those of W per layer. Undefined for fewer than three layers.
    """
    import numpy as np
    import pandas as pd
    from scipy import stats

    from streamscope.probes.undefined import note

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
                    why |= dict.fromkeys(("first", "last"), "one head")
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


def plot(found: "Mapping[str, Mapping[int, np.ndarray]]", title: str = "") -> Any:
    """Fig. 3: a heat map per projection (rows) and layer (columns), red positive, blue negative, one scale."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    parts, depth = list(found), sorted({layer for own in found.values() for layer in own})
    titles = [f"{part} · L{layer}" for part in parts for layer in depth]
    figure = make_subplots(len(parts), len(depth), subplot_titles=titles, horizontal_spacing=0.25 / len(depth) / 2)
    limit = max(float(abs(W).max()) for own in found.values() for W in own.values()) or 1.0
    for r, part in enumerate(parts):
        for layer, W in found[part].items():
            heads = [f"H{h}" for h in range(len(W))]
            heat = go.Heatmap(
                z=W,
                x=heads,
                y=heads,
                texttemplate="%{z:.2f}" if len(W) <= 8 and limit >= 0.1 else None,
                textfont={"size": 9},
                hovertemplate=f"{part} L{layer}, %{{x}} → %{{y}}: %{{z:.4f}}<extra></extra>",
                coloraxis="coloraxis",
            )
            figure.add_trace(heat, row=r + 1, col=depth.index(layer) + 1)
    figure.update_yaxes(autorange="reversed")
    figure.update_yaxes(title="to", col=1)
    figure.update_xaxes(title="from", row=len(parts))
    figure.update_layout(
        title=title,
        width=max(760, 140 + 230 * len(depth)),
        height=130 + 250 * len(parts),
        coloraxis={"colorscale": "RdBu_r", "cmin": -limit, "cmax": limit, "colorbar": {"title": "W"}},
    )
    return figure


@dataclass(frozen=True, kw_only=True)
class Options(RunOptions):
    """Arguments of `python -m probes.routing`."""

    run: Annotated[str, tyro.conf.Positional] = "dst-kron"
    """Run folder of a model with Kronecker mixing, or a bundled one."""
    shuffles: Count = 2000
    """Shuffles of a matrix's cells for the p of its hub."""
    seed: Seed = 0
    """Seed of the shuffles."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, print, write."""
    options = parse(Options, argv, __doc__)
    check_options(options)
    name, model = open_run(options)
    from streamscope.probes.undefined import legend

    found = matrices(model)
    by_layer, by_head = layers(found, options.shuffles, options.seed), hubs(found)
    over, slopes = hub_heads(by_head), growth(by_layer)
    show(by_layer, f"{name}: routing by layer; an even hub score is {by_head['even'].iloc[0]:.3f}")
    if len(over):
        columns = ("projection", "head", "over_even", "sd", INTERVAL, "p", "p_holm")
        show(over, "hub score over an even one, units are layers", columns)
    show(slopes, "growth with depth, per layer", ("projection", "of", "first", "last", "slope", INTERVAL, "p"))
    for why in filter(None, map(legend, (by_layer, slopes))):
        print(why)
    figure = plot(found, f"{name}: Kronecker routing, from head (columns) to head (rows)")
    tables = {"": by_layer, "cells": cells(found), "hubs": by_head, "heads": over, "growth": slopes}
    write_results(options, {k: (t, UNITS) for k, t in tables.items() if len(t)}, figure, shuffles=options.shuffles)


if __name__ == "__main__":
    command(main)
