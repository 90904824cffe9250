"""Scale heads down, one at a time, and measure what the model loses.

    python -m interventions.ablate runs/lfa --heads
    python -m interventions.ablate runs/lfa --heads L4.* L5.H2 --scale 0 0.5 1 --data valid.txt --out heads.parquet
    python -m interventions.ablate runs/lfa --heads L5.H0-2 --together

Each row is one head (or, with --together, the group) at one scale g: its output z is multiplied by g, and
`delta` is the change of the loss in nats per token, with a 95 % interval over documents.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from models.cli import command, parse
from models.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from interventions.head_spec import Head
    from models.text.shards import TokenShards
    from models.transformer import StreamTransformer

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


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m interventions.ablate`."""

    run: Annotated[str, tyro.conf.Positional] = ""
    """Run folder."""
    heads: tuple[str, ...] = ("all",)
    """Heads: L5.H4, L4.*, L4-5.H0-2, all, random3:7. --heads alone means all."""
    scale: tuple[float, ...] = (0.0,)
    """Factors g on the heads' outputs."""
    together: bool = False
    """Scale all the heads at once instead of one at a time."""
    data: str | None = None
    """SOURCE to measure on; default: the run's validation data."""
    max_documents: int | None = 200
    """Use at most this many documents; None for all."""
    batch_size: int = 32
    """Documents per batch."""
    out: Path | None = None
    """Write the table (.parquet) here, and the heat map beside it (.html)."""
    device: str = "auto"
    """auto, cpu or cuda."""


def ablate_heads(
    model: "StreamTransformer",
    shards: "TokenShards",
    groups: Sequence[Sequence["Head"]],
    scales: Sequence[float],
    *,
    max_documents: int | None = None,
    batch_size: int = 32,
    progress: Any = iter,
) -> "pd.DataFrame":
    """One row per group of heads and scale: loss under the edit, its change, and an interval over documents.

    delta = (Σ_d edited loss_d − baseline loss_d) / Σ_d tokens_d, in nats per token; the interval is the ratio
    estimator's, documents as clusters (`probes.statistics.ratio_of_sums`). Raises `InputError` for a scale
    that is not finite.
    """
    import math

    import pandas as pd

    from interventions.edits import scale_heads
    from interventions.sweep import document_losses
    from probes.statistics import ratio_of_sums

    for g in scales:
        if not math.isfinite(g):
            raise InputError(f"scale {g} is not a finite number")
    cells = [(heads, g) for heads in groups for g in scales]
    losses = document_losses(
        model,
        shards,
        [scale_heads(heads, g) for heads, g in cells],
        max_documents=max_documents,
        batch_size=batch_size,
        progress=progress,
    )
    tokens = losses.tokens
    baseline = losses.baseline.sum() / tokens.sum()
    rows = []
    for (heads, g), edited in zip(cells, losses.edited, strict=True):
        effect = ratio_of_sums(edited - losses.baseline, tokens)
        single = heads[0] if len(heads) == 1 else None
        rows.append(
            {
                "head": "+".join(h.label for h in heads),
                "layer": single.layer if single else -1,
                "index": single.head if single else -1,
                "scale": float(g),
                "loss": edited.sum() / tokens.sum(),
                "baseline": baseline,
                "delta": effect.mean,
                "sd": effect.sd,
                "ci_low": effect.ci_low,
                "ci_high": effect.ci_high,
                "n": effect.n,
                "tokens": int(tokens.sum()),
            }
        )
    return pd.DataFrame(rows)


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


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, print, write."""
    options = parse(Options, argv, __doc__)
    if not options.run:
        raise InputError("give a run folder: python -m interventions.ablate RUN --heads")
    if options.out is not None and options.out.suffix != ".parquet":
        raise InputError(f"--out {options.out}: the table is parquet, name it {options.out.with_suffix('.parquet')}")

    from interventions.head_spec import parse_heads
    from models.checkpoint import load, run_folder
    from models.provenance import pick_device
    from models.text.shards import truncated_documents
    from models.training.data import evaluation_shards
    from probes.tables import print_table

    folder = run_folder(options.run)
    model = load(folder, device=pick_device(options.device))
    heads = parse_heads(options.heads or ("all",), model.config.n_layers, model.config.n_heads)
    shards = evaluation_shards(folder, model._text(), options.data)
    groups = [heads] if options.together else [[head] for head in heads]
    table = ablate_heads(
        model,
        shards,
        groups,
        options.scale,
        max_documents=options.max_documents,
        batch_size=options.batch_size,
        progress=_bar(f"{len(groups) * len(options.scale)} edits"),
    )
    cut = truncated_documents(shards, model.config.n_ctx, options.max_documents)
    name = f"{model.config.name} ({folder}): loss {table['baseline'][0]:.4f} nats/token"
    detail = f"{table['n'][0]} documents, {table['tokens'][0]:,} tokens, {cut} documents cut at {model.config.n_ctx}"
    print_table(table.drop(columns=["baseline", "tokens", "n", "layer", "index"]), f"{name}; {detail}")
    if options.out is not None:
        _write(options.out, table, name, options, shards)


def _bar(label: str) -> Any:
    from rich.console import Console
    from rich.progress import track

    def bar(batches: Iterable) -> Iterable:
        return track(batches, description=label, console=Console(file=sys.stderr))

    return bar


def _write(out: Path, table: "pd.DataFrame", title: str, options: Options, shards: "TokenShards") -> None:
    from models.provenance import provenance
    from probes.tables import write_atomically, write_table

    about = {**provenance(options.device), "data": shards.meta["source"]}
    write_table(table, out, units=UNITS, about=about)
    print(f"table {out}")
    if (table["layer"] >= 0).any():
        page = out.with_suffix(".html")
        html = plot(table, title).to_html(include_plotlyjs=True)
        write_atomically(page, lambda part: part.write_text(html, encoding="utf-8"))
        print(f"figure {page}")


if __name__ == "__main__":
    command(main)
