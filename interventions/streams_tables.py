"""What a model loses without one of its streams: the table and the figure of `python -m interventions.streams`."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streamscope.models.errors import InputError, unknown

if TYPE_CHECKING:
    import pandas as pd

    from streamscope.interventions.stream_edits import Replacement
    from streamscope.interventions.sweep import Losses
    from streamscope.models.capture import Edits
    from streamscope.models.text.shards import TokenShards
    from streamscope.models.transformer import StreamTransformer

METHODS = ("zero", "random", "mean", "resample")
DRAWN = ("random", "resample")
"""Methods that draw what they put in."""
SYMBOL = {"token": "x_t", "context": "x_e", "resid": "x"}
TARGET = {"zero": "0", "random": "random vocabulary", "mean": "mean", "resample": "other text"}
PAPER = {("token", "zero"): 36.0, ("context", "zero"): 9.5, ("token", "random"): 28.0}
"""Percent of DST Table 4."""
EVERYWHERE, HEAD = "everywhere", "head"
EMPTY = "by construction, x_e is 0 until layer 0 writes it"
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

    @property
    def labels(self) -> dict[str, Any]:
        """The columns that name it."""
        where = {"where": self.place, "reach": self.reach, "layer": self.where if isinstance(self.where, int) else -1}
        return {"stream": self.stream, "definition": self.definition, "method": self.method, **where}

    def edits(self, replacement: "Replacement", n_layers: int) -> "Edits":
        """The edits that do it."""
        from streamscope.interventions import stream_edits as e

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
    from streamscope.interventions import stream_edits as e
    from streamscope.interventions import stream_reference as reference

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
    from streamscope.models.config import FrozenToken

    whole = cell.reach == "onwards" or not isinstance(model.config.residual, FrozenToken)
    return cell.stream == "context" and cell.where == 0 and whole


def stream_losses(
    model: "StreamTransformer",
    shards: "TokenShards",
    cells: Sequence[Cell],
    *,
    draws: int = 3,
    seed: int = 0,
    max_documents: int | None = None,
    batch_size: int = 32,
    progress: Callable[[Iterable], Iterable] = iter,
) -> "tuple[Losses, list[list[int]]]":
    """(losses of every document, the edits of each cell, one for each draw). Raises `InputError` for no draw."""
    from streamscope.interventions.reference import document_rows
    from streamscope.interventions.sweep import document_losses
    from streamscope.models.text.shards import document_batches

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
    limits: dict[str, Any] = {"max_documents": max_documents, "batch_size": batch_size, "progress": progress}
    return document_losses(model, shards, sweep, **limits), index


def ablate_streams(
    model: "StreamTransformer", shards: "TokenShards", cells: Sequence[Cell], **options: Any
) -> "pd.DataFrame":
    """`stream_table` of what `stream_losses` measures; `options` and errors are those of the latter."""
    return stream_table(model, cells, *stream_losses(model, shards, cells, **options))


def stream_table(
    model: "StreamTransformer", cells: Sequence[Cell], losses: "Losses", index: Sequence[Sequence[int]]
) -> "pd.DataFrame":
    """One row per cell: the loss under the edit, its change in nats per token and in percent of the baseline.

    delta = (Σ_d edited_d − baseline_d) / Σ_d tokens_d, percent = 100 (Σ_d edited_d / Σ_d baseline_d − 1) as in DST
    Table 4; both are ratio estimates with 95 % intervals over documents (`estimators.ratio_of_sums`). Drawn methods
    are averaged over their draws; `draw_sd` is the spread between draws, which the interval does not hold. p is
    delta's, p_holm corrected over the cells of one stream and method.
    """
    import numpy as np
    import pandas as pd

    from streamscope.interventions.effects import holm
    from streamscope.probes.stats.estimators import ratio_of_sums
    from streamscope.probes.stats.t_tests import clustered_t
    from streamscope.probes.undefined import note

    tokens, baseline = losses.tokens.astype(float), losses.baseline
    table = []
    for cell, at in zip(cells, map(list, index), strict=True):
        edited = losses.edited[at].mean(0)
        effect, ratio = ratio_of_sums(edited - baseline, tokens), ratio_of_sums(edited, baseline)
        p = float(clustered_t(edited - baseline, tokens).p)
        per_draw = (losses.edited[at] - baseline).sum(1) / tokens.sum()
        row: dict[str, Any] = {
            **cell.labels,
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
            why |= dict.fromkeys(numbers, EMPTY)
        table.append({**row, "undefined": note(why)})
    return holm(pd.DataFrame(table), ("stream", "method"))
