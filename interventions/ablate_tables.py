"""The tables and the figure of `python -m interventions.ablate`: one row per head or group of heads, and scale."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from models.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from interventions.head_spec import Head
    from models.capture import Edits
    from models.text.shards import TokenShards
    from models.transformer import StreamTransformer
    from probes.align import Aligned

    MakeEdits = Callable[[Sequence[Head], float], Edits]

UNITS = {
    "scale": "factor on z",
    "loss": "nats/token",
    "baseline": "nats/token",
    "delta": "nats/token",
    "sd": "nats/token, between documents",
    "ci_low": "nats/token",
    "ci_high": "nats/token",
    "n": "documents",
    "tokens": "tokens",
}
PROMPT_UNITS = {
    "scale": "factor on z",
    "baseline": "units of the measure",
    "condition": "units of the measure",
    "difference": "units of the measure",
    "d": "pooled standard deviations",
    "d_z": "standard deviations of the differences",
    "n": "prompts",
    "clusters": "minimal pairs",
}


def ablate_heads(
    model: "StreamTransformer",
    shards: "TokenShards",
    groups: Sequence[Sequence["Head"]],
    scales: Sequence[float],
    *,
    max_documents: int | None = None,
    batch_size: int = 32,
    progress: Any = iter,
    make: "MakeEdits | None" = None,
) -> "pd.DataFrame":
    """One row per group of heads and scale: loss under the edit, its change, and an interval over documents.

    delta = (Σ_d edited loss_d − baseline loss_d) / Σ_d tokens_d, in nats per token; the interval is the ratio
    estimator's, documents as clusters (`probes.statistics.ratio_of_sums`), p is its t test's, `p_holm` corrected over
    the groups of one scale. `make` builds the edits, by default `scale_heads`. Raises `InputError` for a scale
    that is not finite.
    """
    import pandas as pd

    from interventions.edits import scale_heads
    from interventions.effects import holm
    from interventions.sweep import document_losses
    from probes.statistics import ratio_of_sums
    from probes.t_tests import clustered_t

    cells = _cells(groups, scales)
    make = make or scale_heads
    losses = document_losses(
        model,
        shards,
        [make(heads, g) for heads, g in cells],
        max_documents=max_documents,
        batch_size=batch_size,
        progress=progress,
    )
    tokens = losses.tokens
    baseline = losses.baseline.sum() / tokens.sum()
    rows = []
    for (heads, g), edited in zip(cells, losses.edited, strict=True):
        effect = ratio_of_sums(edited - losses.baseline, tokens)
        p = float(clustered_t(edited - losses.baseline, tokens.astype(float)).p)
        rows.append(
            {
                **_labels(heads, g),
                "loss": edited.sum() / tokens.sum(),
                "baseline": baseline,
                "delta": effect.mean,
                "sd": effect.sd,
                "ci_low": effect.ci_low,
                "ci_high": effect.ci_high,
                "p": p,
                "n": effect.n,
                "tokens": int(tokens.sum()),
                "undefined": "" if p == p else "p: the loss changes by the same amount per token in every document",
            }
        )
    return holm(pd.DataFrame(rows), ("scale",))


def ablate_on_prompts(
    model: "StreamTransformer",
    aligned: "Aligned",
    tokenizer: Any,
    measures: Sequence[str],
    groups: Sequence[Sequence["Head"]],
    scales: Sequence[float],
    *,
    progress: Any = iter,
    make: "MakeEdits | None" = None,
) -> "dict[str, pd.DataFrame]":
    """Per measure (sps, coherence), one row per group and scale: `comparisons.compare` of edited with unedited.

    Units are minimal pairs (`clusters`); p_holm corrects over the groups of one scale. SPS under gating of the last
    layer is undefined by construction. Raises `InputError` for a scale that is not finite.
    """
    from interventions.edits import scale_heads
    from interventions.effects import Cell, effect_rows, holm
    from interventions.observe import observe_prompts

    make = make or scale_heads
    cells = [Cell(tuple(heads), g, i, _labels(heads, g)) for i, (heads, g) in enumerate(_cells(groups, scales))]
    edits = [make(cell.heads, cell.gate) for cell in cells]
    observed = observe_prompts(model, measures, edits, aligned, tokenizer, progress=progress)
    tables = {m: effect_rows(one, cells, model.config.n_layers) for m, one in observed.items()}
    return {m: holm(table.drop(columns="part"), ("scale",)) for m, table in tables.items()}


def _cells(groups: Sequence[Sequence["Head"]], scales: Sequence[float]) -> list[tuple[Sequence["Head"], float]]:
    import math

    for g in scales:
        if not math.isfinite(g):
            raise InputError(f"scale {g} is not a finite number")
    return [(heads, g) for heads in groups for g in scales]


def _labels(heads: Sequence["Head"], g: float) -> dict[str, Any]:
    single = heads[0] if len(heads) == 1 else None
    return {
        "head": "+".join(h.label for h in heads),
        "layer": single.layer if single else -1,
        "index": single.head if single else -1,
        "scale": float(g),
    }


def plot(table: "pd.DataFrame", title: str = "") -> Any:
    """Heat map layer × head of `delta` at the smallest scale (plotly figure)."""
    import plotly.graph_objects as go

    one = table[(table["layer"] >= 0) & (table["scale"] == table["scale"].min())]
    grid = one.pivot(index="layer", columns="index", values="delta")
    low, high = (one.pivot(index="layer", columns="index", values=c).to_numpy() for c in ("ci_low", "ci_high"))
    text = [[f"{a:+.3f} to {b:+.3f}" for a, b in zip(x, y, strict=True)] for x, y in zip(low, high, strict=True)]
    limit = float(one["delta"].abs().max()) or 1.0
    figure = go.Figure(
        go.Heatmap(
            z=grid.to_numpy(),
            x=[f"H{h}" for h in grid.columns],
            y=[f"L{layer}" for layer in grid.index],
            customdata=text,
            texttemplate="%{z:+.3f}",
            hovertemplate="%{y}%{x}: %{z:+.4f} nats/token<br>95 % %{customdata}<extra></extra>",
            colorscale="RdBu_r",
            zmin=-limit,
            zmax=limit,
            colorbar={"title": "Δ loss<br>nats/token"},
        )
    )
    figure.update_layout(title=title, xaxis_title="head", yaxis_title="layer", width=760, height=560)
    figure.update_yaxes(autorange="reversed")
    return figure
