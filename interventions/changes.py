"""Change something and measure the loss: what every such instrument shares. The shortest is `streams`.

    changes = [Change({"where": "L2", "draw of": "x_t"}, [edits of each draw], family="token, zero"), ...]
    effects = measure_changes(model, data[Documents], changes, progress=progress, kl="forward")
    effect_table(effects, estimates, COLUMNS)                   one row per change

An instrument is its list of named changes, and the columns that name them. Cells are the unedited model and every
variant of every change; units are documents or windows. Of each change are estimated

    loss      mean of its variants, nats/token          delta     loss − loss of the unedited model, tested
    percent   100 (loss / unedited loss − 1)            kl        KL of the next token's distributions
    shift     change of d·x for a direction d           random_delta, random_kl, kl_above    against its controls
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from streamscope.cli.terminal import counted
from streamscope.instruments.contract import InstrumentData, Progress
from streamscope.instruments.observations import Contrast, Estimates, Measure, effect_contrasts, joined
from streamscope.instruments.open_data import OpenDocuments
from streamscope.instruments.table import Column, Table, counts, described, number, quantity
from streamscope.interventions.observe import KL, NATS, PERCENT, Variant, document_losses

NO_DRAWS = "no random directions were drawn"
SUMS = ("loss", "percent", "kl", "shift")
LOSSES = {"loss": NATS, "percent": PERCENT}
OF_CHANGE = {"kl": replace(NATS, name="kl", limits=(0.0, np.inf))}
OF_DIRECTION = {
    "kl": replace(NATS, name="KL(changed ‖ unchanged)", limits=(0.0, np.inf)),
    "shift": Measure(name="shift of d·x", unit="units of the residual stream", resolution=1e-6),
}


@dataclass(frozen=True)
class Change:
    """One row: a change with a name, as edits of activations or as other models.

    labels: the columns that name it. variants: one per draw, the row is their mean; None is not measured, but has a
    cell, so that a control has the same ones. controls: random changes of the same size. missing: why it cannot have an
    effect. fixed: why its effect is known. family: changes whose p are corrected together, of all by default. undrawn:
    for tables with draws, why nothing was drawn; empty where the variants are draws.
    """

    labels: Mapping[str, Any]
    variants: Sequence[Variant | None]
    controls: Sequence[Variant] = ()
    missing: str = ""
    fixed: str = ""
    family: str | None = None
    undrawn: str = ""
    cells: range = field(default=range(0), compare=False)
    """The cells of the variants."""


@dataclass
class Effects(InstrumentData):
    """Losses of documents under changes, each with its cells; `documents` and `loss` are sentences for a title."""

    changes: Sequence[Change] = ()
    documents: str = ""
    """The documents, and the number of predicted tokens."""
    loss: str = ""
    """The loss of the unedited model."""


def measure_changes(
    model: Any, opened: OpenDocuments, changes: Sequence[Change], *, progress: Progress = iter,
    measures: Mapping[str, Measure] = LOSSES, kl: KL = "none", direction: Tensor | None = None, controls: bool = False,
) -> Effects:  # fmt: skip
    """Losses of documents under every change, with the contrasts of each. measures: of the sums loss, percent, kl and
    shift. controls: whether rows are compared with their controls."""
    rows = [{name: "" if isinstance(value, str) else -1 for name, value in changes[0].labels.items()}]
    variants: list[Variant | None] = [None]
    placed, random = list[Change](), list[range]()
    for change in changes:
        placed.append(replace(change, cells=range(len(rows), len(rows) + len(change.variants))))
        rows += [{**change.labels, "draw": i} for i in range(len(change.variants))]
        variants += change.variants
    for change in changes:
        random.append(range(len(rows), len(rows) + len(change.controls)))
        rows += [{**change.labels, "draw": i, "control": True} for i in range(len(change.controls))]
        variants += change.controls
    cells = pd.DataFrame([{"draw": -1, "control": False, **row} for row in rows])
    variant_cells = [i for i, variant in enumerate(variants) if variant is not None]
    losses = document_losses(
        model, opened.shards, [variant for variant in variants if variant is not None], kl=kl, direction=direction,
        **opened.limits, progress=progress,
    )  # fmt: skip
    blocks = losses.blocks(cells, opened.units(), indices=variant_cells, **measures)
    contrasts: dict[str, list[Contrast]] = {name: [] for name in measures}
    for change, drawn in zip(placed, random, strict=True):
        for name in measures:
            contrasts[name] += _contrasts(name, change, drawn, controls)
    tokens = losses.tokens.sum()
    documents = f"{opened.title()}, {counted(tokens, 'token', ',')}"
    loss = f"loss {losses.baseline.sum() / tokens:.4f} nats/token"
    return Effects(blocks, contrasts, changes=placed, documents=documents, loss=loss)


def _contrasts(name: str, change: Change, drawn: Sequence[int], controls: bool) -> list[Contrast]:
    edited = dict.fromkeys(change.cells, 1 / len(change.cells))
    random = dict.fromkeys(drawn, 1 / max(1, len(drawn)))
    none = change.missing or ("" if drawn else NO_DRAWS)
    tested: dict[str, Any] = {"labels": change.labels, "missing": change.missing, "fixed": change.fixed}
    described: dict[str, Any] = {"labels": change.labels, "null": None}
    if name == "percent":
        return [Contrast(quantity=name, weights=edited, null=None, **tested)]
    if name == "loss":
        contrasts = effect_contrasts(name, edited, 0, family=change.family, **tested)
        if None in change.variants:
            contrasts[0] = replace(contrasts[0], missing=change.missing)
        control_contrasts = [Contrast(quantity="random_delta", weights={**random, 0: -1.0}, missing=none, **described)]
    else:
        contrasts = [Contrast(quantity=name, weights=edited, tested=False, **tested)]
        comparison = {**tested, "missing": none, "fixed": change.fixed if drawn else ""}
        control_contrasts = [
            Contrast(quantity=f"random_{name}", weights=random, missing=none, **described),
            Contrast(quantity=f"{name}_above", weights={**edited, **{i: -w for i, w in random.items()}}, **comparison),
        ]  # fmt: skip
    return [*contrasts, *(control_contrasts if controls and name != "shift" else [])]


def effect_table(
    effects: Effects, estimates: Mapping[str, Estimates], columns: tuple[Column, ...], title: str,
    *, where: Mapping[str, Any] | None = None, also: Sequence[str] = (),
    extra_columns: Mapping[str, Sequence[float]] | None = None, **printed: Any,
) -> Table:  # fmt: skip
    """A row per change: labels, estimates, draws and their spread, tokens.

    columns: those of the labels, then `LOSS`, `DELTA`, `RELATIVE` and `TOKENS` or more; estimates without a column are
    left out. where: label -> the value or values of the rows. also: further blocks with the same rows. extra_columns:
    further columns. printed: further arguments of `Table`.
    """
    chosen = {name: value if isinstance(value, set) else {value} for name, value in (where or {}).items()}
    changes = [c for c in effects.changes if all(c.labels[name] in choices for name, choices in chosen.items())]
    parts = [estimates[name].where(**chosen) for name in (*SUMS, *also) if name in estimates]
    frame, missing = joined(parts, list(changes[0].labels), columns)
    values, names = effects.blocks["loss"].values, {column.name for column in columns}
    frame = frame.assign(**(extra_columns or {}), tokens=int(effects.blocks["loss"].sizes[0].sum()))
    if "draws" in names:
        draws = [0 if c.undrawn or None in c.variants else len(c.cells) for c in changes]
        frame["draws"], frame["draw_sd"] = draws, np.nan
        for row, (change, n) in enumerate(zip(changes, draws, strict=True)):
            if reason := change.missing or change.undrawn or ("" if n > 1 else "one draw"):
                missing[row, "draw_sd"] = reason
            else:
                frame.loc[row, "draw_sd"] = np.std(values[list(change.cells)], ddof=1)
    return Table(frame, columns, missing, title, **printed)


LOSS = tuple(
    replace(column, interval=None)
    for column in (
        *described("loss", "loss", NATS.unit, "loss under the change"),
        *described("baseline", "unedited loss", NATS.unit, "loss of the unedited model", shown=False),
    )
)  # fmt: skip
DELTA = quantity("delta", "Δ loss", NATS.unit, "loss under the change − unedited loss", sd="documents")
RELATIVE = described(
    "percent", "Δ loss, percent", "percent of the unedited loss", "100 (loss under the change / unedited loss − 1)",
    format="+.2f",
)  # fmt: skip
FORWARD_KL = described("kl", "KL", "nats/token, KL(unedited ‖ edited) of the next token", "change of the predictions")
RANDOM = "control: mean over random directions of the same size"
RANDOM_DELTA = number("random_delta", "Δ loss, random direction", NATS.unit, RANDOM, "+.4f", False)


def reverse_kl(title: str, doc: str) -> tuple[Column, ...]:
    """The columns of KL(changed ‖ unchanged), of its mean over the controls, and of the difference."""
    return (
        *described("kl", title, NATS.unit, doc, sd="documents", source="SPEC §1.8"),
        *described("random_kl", "KL, random direction", NATS.unit, RANDOM, sd="documents"),
        *quantity("kl_above", "KL − random", NATS.unit, "KL − mean KL of random directions", sd="documents"),
    )


DRAWS = (
    number("draws", "draws", "draws", "number of random draws that the row averages; 0 where nothing is drawn", "d"),
    number("draw_sd", "sd over draws", "nats/token, between draws", "standard deviation of delta between draws", ".4f",
           False),
)  # fmt: skip
TOKENS = (
    number("tokens", "tokens", "tokens", "predicted tokens", "d", False),
    *counts("documents or windows", "documents"),
)
