"""The tables and the figure of `python -m interventions.ablate`: one row per head or group of heads, and scale."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from interventions.controls import Sweep
    from interventions.observe import Observed
    from models.capture import Edits
    from models.head_spec import Head
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
    "control": "nats/token",
    "control_sd": "nats/token, between random sets",
    "draws": "other random sets of as many heads",
    "above": "nats/token, delta − control",
    "above_low": "nats/token",
    "above_high": "nats/token",
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
    "control": "units of the measure",
    "control_sd": "units of the measure, between random sets",
    "draws": "other random sets of as many heads",
    "above": "units of the measure, difference − control",
    "above_low": "units of the measure",
    "above_high": "units of the measure",
}


def ablate_heads(
    model: "StreamTransformer",
    shards: "TokenShards",
    groups: Sequence[Sequence["Head"]],
    scales: Sequence[float],
    *,
    draws: int = 39,
    seed: int = 0,
    max_documents: int | None = None,
    batch_size: int = 32,
    progress: Any = iter,
    make: "MakeEdits | None" = None,
) -> "pd.DataFrame":
    """One row per group of heads and scale: loss under the edit, its change, and what other heads cost.

    delta = (Σ_d edited loss_d − baseline loss_d) / Σ_d tokens_d, in nats per token; the interval is the ratio
    estimator's, documents as clusters (`probes.statistics.ratio_of_sums`), p is its t test's, `p_holm` corrected over
    the groups of one scale. `control` is the mean delta of `draws` other random sets of as many heads, `above` =
    delta − control with its interval and corrected p (`controls.control_columns`). `make` builds the edits, by
    default `scale_heads`. Raises `InputError` for a scale that is not finite.
    """
    import pandas as pd

    from interventions.controls import control_columns, plan
    from interventions.edits import scale_heads
    from interventions.effects import holm
    from interventions.observe import SMALLEST
    from interventions.sweep import document_losses
    from probes.statistics import ratio_of_sums
    from probes.t_tests import clustered_t
    from probes.undefined import note

    sweep = plan(groups, scales, every_head(model), make or scale_heads, draws=draws, seed=seed)
    losses = document_losses(
        model, shards, sweep.edits, max_documents=max_documents, batch_size=batch_size, progress=progress
    )
    tokens, change = losses.tokens.astype(float), losses.edited - losses.baseline
    baseline = losses.baseline.sum() / tokens.sum()
    rows = []
    for (heads, g), at, controls in zip(sweep.cells, sweep.index, sweep.controls, strict=True):
        effect = ratio_of_sums(change[at], tokens)
        p = float(clustered_t(change[at], tokens).p)
        why = {} if p == p else {"p": "the loss changes by the same amount per token in every document"}
        others = change[[i for _, i in controls]]
        paired = clustered_t(change[at] - others.mean(0), tokens) if controls else None
        control = control_columns(effect.mean, others.sum(-1) / tokens.sum(), paired, g, resolution=SMALLEST["loss"])
        rows.append(
            {
                **_labels(heads, g),
                "loss": losses.edited[at].sum() / tokens.sum(),
                "baseline": baseline,
                "delta": effect.mean,
                "sd": effect.sd,
                "ci_low": effect.ci_low,
                "ci_high": effect.ci_high,
                "p": p,
                "n": effect.n,
                "tokens": int(tokens.sum()),
                "undefined": note({**why, **control.pop("why")}),
                **control,
            }
        )
    return holm(holm(pd.DataFrame(rows), ("scale",)), ("scale",), "p_above")


def ablate_on_prompts(
    model: "StreamTransformer",
    aligned: "Aligned",
    tokenizer: Any,
    measures: Sequence[str],
    groups: Sequence[Sequence["Head"]],
    scales: Sequence[float],
    *,
    draws: int = 39,
    seed: int = 0,
    progress: Any = iter,
    make: "MakeEdits | None" = None,
) -> "dict[str, pd.DataFrame]":
    """Per measure (sps, coherence), one row per group and scale: `comparisons.compare` of edited with unedited.

    Units are minimal pairs (`clusters`); p_holm corrects over the groups of one scale; controls as in `ablate_heads`.
    SPS under gating of the last layer is undefined by construction, for a group and for a random set. Raises
    `InputError` for a scale that is not finite.
    """
    from interventions.controls import plan
    from interventions.edits import scale_heads
    from interventions.effects import REASON, Cell, effect_rows, holm
    from interventions.observe import observe_prompts
    from probes.undefined import mark, note, reasons

    sweep = plan(groups, scales, every_head(model), make or scale_heads, draws=draws, seed=seed)
    cells = [Cell(heads, g, i, _labels(heads, g)) for (heads, g), i in zip(sweep.cells, sweep.index, strict=True)]
    observed = observe_prompts(model, measures, sweep.edits, aligned, tokenizer, progress=progress)
    tables = {}
    for measure, one in observed.items():
        table = effect_rows(one, cells, model.config.n_layers).drop(columns="part")
        added, impossible = prompt_controls(one, sweep, model.config.n_layers)
        both = zip(table["undefined"], added["undefined"], strict=True)
        added["undefined"] = [note(reasons(a) | reasons(b)) for a, b in both]
        numbers = [name for name in added if name not in ("undefined", "draws")]
        table = mark(table.assign(**added), numbers, impossible, REASON)
        tables[measure] = holm(holm(table, ("scale",)), ("scale",), "p_above")
    return tables


def prompt_controls(observed: "Observed", sweep: "Sweep", n_layers: int) -> "tuple[dict[str, Any], list[bool]]":
    """Columns of the controls, the reasons of their empty cells among them, and the cells that cannot have any."""
    import numpy as np

    from interventions.controls import control_columns
    from interventions.effects import by_construction
    from interventions.observe import SMALLEST
    from probes.statistics import cluster_codes, cluster_totals
    from probes.t_tests import clustered_t
    from probes.undefined import note

    codes = cluster_codes(observed.cases["cluster"].to_numpy(), len(observed.cases))
    rows, impossible = [], []
    for (heads, g), at, controls in zip(sweep.cells, sweep.index, sweep.controls, strict=True):
        able = [i for drawn, i in controls if not by_construction(observed.measure, "all", drawn, n_layers)]
        change = observed.under(at) - observed.under(None)
        others = np.array([observed.under(i) - observed.under(None) for i in able])
        paired = clustered_t(*cluster_totals(change - others.mean(0), codes)) if able else None
        effects = others.mean(-1) if able else []
        row = control_columns(float(change.mean()), effects, paired, g, resolution=SMALLEST[observed.measure])
        rows.append({"undefined": note(row.pop("why")), **row})
        impossible.append(by_construction(observed.measure, "all", heads, n_layers))
    return {name: [row[name] for row in rows] for name in rows[0]}, impossible


def every_head(model: "StreamTransformer") -> "list[Head]":
    """All heads of a model, in order."""
    from models.head_spec import parse_heads

    return parse_heads("all", model.config.n_layers, model.config.n_heads)


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
