"""What steering along a direction does at every scale: KL, loss, projection, as a table and a figure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from streamscope.interventions.divergence import document_divergence, per_token
from streamscope.interventions.edits import add_direction
from streamscope.models.errors import InputError, unknown
from streamscope.models.hooks import Query, run
from streamscope.probes.undefined import note

if TYPE_CHECKING:
    from streamscope.models.hooks import Edits
    from streamscope.models.text.shards import TokenShards
    from streamscope.models.transformer import StreamTransformer

BASELINE = "scale 0 is the baseline itself"
CHUNK = 32


def streams_of(model: "StreamTransformer", chosen: Sequence[str] = ()) -> tuple[str, ...]:
    """The streams to steer: `chosen`, checked, or all that the model has."""
    from streamscope.probes.stream_states import PARALLEL, RESID, stream_hooks

    kinds = stream_hooks(model)
    have = tuple(f"s{i}" for i in range(_parallel(model))) if kinds == (PARALLEL,) else kinds or (RESID,)
    for stream in chosen:
        if stream not in have:
            raise unknown("stream", stream, list(have))
    return tuple(dict.fromkeys(chosen)) or have


def _parallel(model: "StreamTransformer") -> int:
    """N, the number of streams of hyper-connections."""
    from streamscope.models.config import Hyper

    assert isinstance(model.config.residual, Hyper)
    return model.config.residual.n


def mean_norms(model: "StreamTransformer", rows: Iterable[Sequence[int]]) -> dict[int, float]:
    """Mean over tokens (without BOS) of ‖resid_post‖ per layer, the unit of --scale; `resid` is what the head reads."""
    rows = [list(row) for row in rows]
    total = np.zeros(model.config.n_layers)
    tokens = 0
    for start in range(0, len(rows), CHUNK):
        some = [row for row in rows[start : start + CHUNK] if len(row) > 1]
        if not some:
            continue
        tokens += sum(len(row) - 1 for row in some)
        for name, xs in run(model, Query(tokens=some, hooks=("blocks.*.hook_resid_post",))).hooks.items():
            total[int(name.split(".")[1])] += sum(float(x[1:].double().norm(dim=-1).sum()) for x in xs)
    if not tokens:
        raise InputError("a mean norm over no tokens: the documents hold BOS alone")
    return {layer: float(value) for layer, value in enumerate(total / tokens)}


def random_direction(d: int, seed: int, draw: int) -> Tensor:
    """A unit vector [d], uniform on the sphere, from a generator of its own."""
    x = torch.from_numpy(np.random.default_rng([seed, draw]).standard_normal(d))
    return (x / x.norm()).float()


def steering_edits(
    direction: Tensor, layers: Sequence[int], streams: Sequence[str], scale: float, norms: Mapping[int, float] | None
) -> "Edits":
    """Add scale · norm_ℓ · d after each layer ℓ (norm_ℓ = 1 without `norms`) to each stream; d [D] is a unit vector."""
    amounts = {layer: scale * (norms[layer] if norms is not None else 1.0) for layer in layers}
    return add_direction(direction, amounts, streams)


def steer(
    model: "StreamTransformer",
    shards: "TokenShards",
    direction: Tensor,
    layers: Sequence[int],
    streams: Sequence[str],
    scales: Sequence[float],
    norms: Mapping[int, float] | None,
    *,
    draws: int = 0,
    seed: int = 0,
    max_documents: int | None = None,
    batch_size: int = 32,
    progress: Callable[[Iterable], Iterable] = iter,
) -> pd.DataFrame:
    """One row per scale, means per token with 95 % intervals over documents.

    kl     KL(P_c ‖ P_0) of next-token distributions, nats            kl_low, kl_high
    loss   nats; delta = loss − baseline, with delta_low, delta_high
    shift  change of d·x before the final norm, units of the residual stream     shift_low, shift_high

    random_kl, random_delta: kl and delta of `draws` random directions, the mean; the control.

    At scale 0 nothing changes, exactly; intervals there are undefined. Raises `InputError` for scales that are not
    finite and layers that do not exist.
    """
    if not scales or not np.isfinite(scales).all():
        raise InputError(f"scales {list(scales)}: give at least one, all finite")
    if not layers or not all(0 <= layer < model.config.n_layers for layer in layers):
        raise InputError(f"layers {list(layers)}: the model has layers 0 to {model.config.n_layers - 1}")
    random = [random_direction(len(direction), seed, i).to(direction) for i in range(draws)]
    sweep = [steering_edits(d, layers, streams, scale, norms) for d in (direction, *random) for scale in scales]
    found = document_divergence(
        model, shards, sweep, direction=direction, max_documents=max_documents, batch_size=batch_size, progress=progress
    )
    rows = []
    for i, scale in enumerate(scales):
        kl, delta, shift = (
            per_token(x, found.tokens) for x in (found.kl[i], found.loss[i] - found.baseline, found.shift[i])
        )
        row: dict[str, Any] = {
            "scale": float(scale),
            "kl": kl["mean"],
            "kl_low": kl["ci_low"],
            "kl_high": kl["ci_high"],
        }
        row |= {
            "baseline": float(found.baseline.sum() / found.tokens.sum()),
            "loss": float(found.loss[i].sum() / found.tokens.sum()),
        }
        for name, e in (("delta", delta), ("shift", shift)):
            row |= {name: e["mean"], f"{name}_low": e["ci_low"], f"{name}_high": e["ci_high"]}
        bounds = [f"{name}_{end}" for name in ("kl", "delta", "shift") for end in ("low", "high")]
        if scale == 0:
            row |= dict.fromkeys(bounds, float("nan"))
        why = dict.fromkeys(bounds, BASELINE) if scale == 0 else {}
        others = [i + len(scales) * (draw + 1) for draw in range(draws)]
        for name, sums in (("random_kl", found.kl), ("random_delta", found.loss - found.baseline)):
            row[name] = float(sums[others].sum(1).mean() / found.tokens.sum()) if draws else float("nan")
            why |= {} if draws else {name: "no random directions were drawn"}
        rows.append({**row, "documents": kl["n"], "tokens": int(found.tokens.sum()), "undefined": note(why)})
    return pd.DataFrame(rows)


def plot(table: pd.DataFrame, title: str = "", unit: str = "mean residual norms") -> Any:
    """KL, change of the loss and shift of the projection against the scale, 95 % over documents (plotly figure)."""
    from plotly.subplots import make_subplots

    names = {"kl": "KL(P_c ‖ P_0)", "delta": "change of loss", "shift": "change of d·x, last layer"}
    units = ("nats per token", "nats per token", "units of the residual stream")
    rows = table.sort_values("scale")
    figure = make_subplots(1, 3, subplot_titles=tuple(names.values()), horizontal_spacing=0.09)
    for column, (name, axis) in enumerate(zip(names, units, strict=True), 1):
        bars = {
            "array": (rows[f"{name}_high"] - rows[name]).fillna(0.0),
            "arrayminus": (rows[name] - rows[f"{name}_low"]).fillna(0.0),
            "symmetric": False, "thickness": 1.2, "width": 4,
        }  # fmt: skip
        figure.add_scatter(
            x=rows["scale"], y=rows[name], error_y=bars, mode="lines+markers", line={"color": "#3b6ea5"},
            showlegend=False, row=1, col=column,
        )  # fmt: skip
        if f"random_{name}" in rows and rows[f"random_{name}"].notna().any():
            figure.add_scatter(
                x=rows["scale"], y=rows[f"random_{name}"], mode="lines", line={"color": "gray", "dash": "dot"},
                name="random directions", showlegend=name == "kl", row=1, col=column,
            )  # fmt: skip
        figure.update_xaxes(title=f"scale c, {unit}", row=1, col=column)
        figure.update_yaxes(title=axis, row=1, col=column)
    figure.update_layout(title=title, width=1200, height=460, legend={"orientation": "h", "y": -0.2})
    return figure


def continuations(
    model: "StreamTransformer", prompt: str, edits: "Sequence[Edits]", *, tokens: int, seed: int
) -> list[str]:
    """One sampled continuation per set of edits (temperature 0.8, the same seed), the prompt included."""
    from streamscope.models.generate import generate

    return [
        model._text().decode(generate(model, [prompt], max_new_tokens=tokens, temperature=0.8, seed=seed, edits=e)[0])
        for e in edits
    ]
