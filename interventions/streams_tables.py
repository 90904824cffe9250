"""What a model loses without one of its streams: the table and the figure of `python -m interventions.streams`."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from models.errors import InputError, unknown

if TYPE_CHECKING:
    import pandas as pd

    from interventions.stream_edits import Replacement
    from models.capture import Edits
    from models.text.shards import TokenShards
    from models.transformer import StreamTransformer

METHODS = ("zero", "random", "mean", "resample")
DRAWN = ("random", "resample")
"""Methods that draw what they put in."""
SYMBOL = {"token": "x_t", "context": "x_e", "resid": "x"}
TARGET = {"zero": "0", "random": "random vocabulary", "mean": "mean", "resample": "other text"}
PAPER = {("token", "zero"): 36.0, ("context", "zero"): 9.5, ("token", "random"): 28.0}
"""Percent of DST Table 4."""
EVERYWHERE, HEAD = "everywhere", "head"
UNITS = {
    **dict.fromkeys(("loss", "baseline", "delta", "ci_low", "ci_high"), "nats/token"),
    "sd": "nats/token, between documents",
    "draw_sd": "nats/token, between draws",
    **dict.fromkeys(("percent", "percent_low", "percent_high"), "percent of the baseline loss"),
    "paper_percent": "percent, DST Table 4: another model, another corpus",
    "n": "documents",
    "tokens": "tokens",
}


@dataclass(frozen=True)
class Cell:
    """One stream, replaced in one way at one place."""

    stream: str
    method: str
    where: int | str
    """A layer, "head" or "everywhere"."""
    reach: str
    """"layer" or "onwards"; "" for the other places."""

    @property
    def definition(self) -> str:
        """As in DST Table 4: x_t → 0."""
        return f"{SYMBOL.get(self.stream, self.stream)} → {TARGET[self.method]}"

    @property
    def place(self) -> str:
        """L3, head or everywhere."""
        return f"L{self.where}" if isinstance(self.where, int) else self.where

    def edits(self, replacement: "Replacement", n_layers: int) -> "Edits":
        """The edits that do it."""
        from interventions import stream_edits as e

        if self.where == EVERYWHERE:
            return e.replace_everywhere(self.stream, replacement, n_layers)
        if self.where == HEAD:
            return e.replace_for_head(self.stream, replacement, n_layers)
        assert isinstance(self.where, int)
        make = e.replace_in_layer if self.reach == "layer" else e.replace_onwards
        return make(self.stream, replacement, self.where)


def cells_of(
    streams: Sequence[str], methods: Sequence[str], places: Sequence[int | str], reaches: Sequence[str]
) -> list[Cell]:
    """Every stream with every method at every place; random embeddings only where a stream begins as embeddings.

    Raises `InputError` for an unknown method and when nothing is left.
    """
    for method in methods:
        if method not in METHODS:
            raise unknown("method", method, list(METHODS))
    cells = []
    for stream in streams:
        for method in dict.fromkeys(methods):
            if stream == "context" and method == "random":
                continue
            for where in dict.fromkeys(places):
                for reach in dict.fromkeys(reaches) if isinstance(where, int) else ("",):
                    cells.append(Cell(stream, method, where, reach))
    if not cells:
        raise InputError("nothing to measure: the context stream does not begin as embeddings; use --method resample")
    return cells


def replacements(
    model: "StreamTransformer",
    shards: "TokenShards",
    streams: Sequence[str],
    methods: Sequence[str],
    *,
    draws: int,
    seed: int,
    rows: Callable[[], Iterable[Sequence[int]]],
) -> "dict[tuple[str, str], list[Replacement]]":
    """(stream, method) -> replacements, one for each draw. `rows` gives the reference rows of the mean."""
    from interventions import stream_edits as e
    from interventions import stream_reference as reference

    found: dict[tuple[str, str], list[Replacement]] = {}
    for stream in streams:
        for method in methods:
            if method == "zero":
                made: list[e.Replacement] = [e.zero]
            elif method == "mean":
                made = [e.constant(reference.stream_means(model, stream, rows()))]
            elif method == "random":
                made = [e.sequence(reference.random_embeddings(model, stream, seed, i)) for i in range(draws)]
            else:
                texts = [reference.window(shards, model.config.n_ctx, seed, i) for i in range(draws)]
                made = [e.sequence(reference.stream_of(model, stream, ids)) for ids in texts]
            found[stream, method] = made
    return found


def empty_stream(model: "StreamTransformer", cell: Cell) -> bool:
    """Whether x_e is read where it is still 0: entering layer 0, and in all of it when attention writes x_t."""
    from models.config import FrozenToken

    whole = cell.reach == "onwards" or not isinstance(model.config.residual, FrozenToken)
    return cell.stream == "context" and cell.where == 0 and whole


def ablate_streams(
    model: "StreamTransformer",
    shards: "TokenShards",
    cells: Sequence[Cell],
    *,
    draws: int = 3,
    seed: int = 0,
    max_documents: int | None = None,
    batch_size: int = 32,
    progress: Callable[[Iterable], Iterable] = iter,
) -> "pd.DataFrame":
    """One row per cell: the loss under the edit, its change in nats per token and in percent of the baseline.

    delta = (Σ_d edited_d − baseline_d) / Σ_d tokens_d, percent = 100 (Σ_d edited_d / Σ_d baseline_d − 1) as in DST
    Table 4; both are ratio estimates with 95 % intervals over documents (`statistics.ratio_of_sums`). Drawn methods
    are averaged over `draws`; `draw_sd` is the spread between draws, which the interval does not hold. p is delta's,
    p_holm corrected over the cells of one stream and method. Raises `InputError` for fewer than one draw.
    """
    import numpy as np
    import pandas as pd

    from interventions.effects import holm
    from interventions.reference import document_rows
    from interventions.sweep import document_losses
    from models.text.shards import document_batches
    from probes.statistics import ratio_of_sums
    from probes.t_tests import clustered_t
    from probes.undefined import note

    if draws < 1:
        raise InputError(f"draws {draws}: at least 1")

    def rows() -> Iterable[Sequence[int]]:
        return document_rows(document_batches(shards, model.config.n_ctx, batch_size, max_documents))

    pairs = list(dict.fromkeys((cell.stream, cell.method) for cell in cells))
    made: dict[tuple[str, str], Any] = {}
    for stream, method in pairs:
        made |= replacements(model, shards, [stream], [method], draws=draws, seed=seed, rows=rows)
    sweep, index = list[Any](), list[list[int]]()
    for cell in cells:
        some = [cell.edits(replacement, model.config.n_layers) for replacement in made[cell.stream, cell.method]]
        index.append(list(range(len(sweep), len(sweep) + len(some))))
        sweep += some
    losses = document_losses(
        model, shards, sweep, max_documents=max_documents, batch_size=batch_size, progress=progress
    )
    tokens, baseline = losses.tokens.astype(float), losses.baseline
    table = []
    for cell, at in zip(cells, index, strict=True):
        edited = losses.edited[at].mean(0)
        effect, ratio = ratio_of_sums(edited - baseline, tokens), ratio_of_sums(edited, baseline)
        p = float(clustered_t(edited - baseline, tokens).p)
        per_draw = (losses.edited[at] - baseline).sum(1) / tokens.sum()
        row: dict[str, Any] = {
            "stream": cell.stream,
            "definition": cell.definition,
            "method": cell.method,
            "where": cell.place,
            "reach": cell.reach,
            "layer": cell.where if isinstance(cell.where, int) else -1,
            "loss": float(edited.sum() / tokens.sum()),
            "baseline": float(baseline.sum() / tokens.sum()),
            "delta": effect.mean,
            "sd": effect.sd,
            "ci_low": effect.ci_low,
            "ci_high": effect.ci_high,
            "p": p,
            "percent": 100 * (ratio.mean - 1),
            "percent_low": 100 * (ratio.ci_low - 1),
            "percent_high": 100 * (ratio.ci_high - 1),
            "draw_sd": float(np.std(per_draw, ddof=1)) if len(at) > 1 else float("nan"),
            "draws": len(at) if cell.method in DRAWN else 0,
            "n": effect.n,
            "tokens": int(tokens.sum()),
        }
        row["paper_percent"] = PAPER.get((cell.stream, cell.method), float("nan"))
        why = {} if p == p else {"p": "the loss changes by the same amount per token in every document"}
        if len(at) < 2:
            why["draw_sd"] = "nothing is drawn" if cell.method not in DRAWN else "one draw"
        if row["paper_percent"] != row["paper_percent"]:
            why["paper_percent"] = "not in the paper"
        if empty_stream(model, cell):
            numbers = ("delta", "sd", "ci_low", "ci_high", "p", "percent", "percent_low", "percent_high", "draw_sd")
            row |= dict.fromkeys(numbers, float("nan"))
            why |= dict.fromkeys(numbers, "by construction, x_e is 0 until layer 0 writes it")
        table.append({**row, "undefined": note(why)})
    return holm(pd.DataFrame(table), ("stream", "method"))


COLOURS = ("#3b6ea5", "#c8553d", "#2e7d32", "#8e6bb0", "#b8860b", "#4f8a8b", "#7f7f7f", "#a0522d")
TICKS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50]
REACH = {"layer": "read by that layer only", "onwards": "from that layer on"}


def plot(table: "pd.DataFrame", title: str = "") -> Any:
    """Loss by the place where a stream is replaced, a colour per definition, beside the baseline (plotly figure).

    Logarithmic; bars are the 95 % intervals of the change over documents. One panel per reach; head and everywhere are
    in each.
    """
    from plotly.subplots import make_subplots

    reaches = [r for r in REACH if (table["reach"] == r).any()] or [""]
    figure = make_subplots(
        len(reaches), 1, subplot_titles=[REACH.get(r, "") for r in reaches], vertical_spacing=0.24 / len(reaches)
    )
    places = sorted(set(table["where"]), key=lambda w: (0, int(w[1:])) if w[:1] == "L" else (1, w == EVERYWHERE))
    for panel, reach in enumerate(reaches, 1):
        shown = table[table["reach"].isin((reach, "")) & table["percent"].notna()]
        for i, definition in enumerate(dict.fromkeys(table["definition"])):
            rows = shown[shown["definition"] == definition]
            bars = {
                "array": rows["ci_high"] - rows["delta"],
                "arrayminus": rows["delta"] - rows["ci_low"],
                "symmetric": False, "thickness": 1.2, "width": 4,
            }  # fmt: skip
            figure.add_scatter(
                x=rows["where"], y=rows["loss"], error_y=bars, name=definition, legendgroup=definition, mode="markers",
                showlegend=panel == 1, marker={"color": COLOURS[i % len(COLOURS)], "size": 9}, row=panel, col=1,
                customdata=rows["percent"],
                hovertemplate=f"{definition} at %{{x}}: %{{y:.4f}} nats, %{{customdata:+.2f}} %<extra></extra>",
            )  # fmt: skip
        base = float(table["baseline"].iloc[0])
        figure.add_hline(base, line={"dash": "dot", "color": "gray"}, row=panel, col=1)
        figure.update_xaxes(categoryorder="array", categoryarray=places, row=panel, col=1)
        figure.update_yaxes(title="loss, nats per token", type="log", tickvals=TICKS, row=panel, col=1)
    figure.update_xaxes(title="where the stream is replaced; dotted: nowhere", row=len(reaches), col=1)
    figure.update_layout(title=title, scattermode="group", width=980, height=180 + 300 * len(reaches))
    return figure
