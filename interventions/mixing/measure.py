"""Losses of documents under changes of the mixing of streams; changes without effect are not measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from streamscope.cli.terminal import counted
from streamscope.instruments.contract import InstrumentData, Progress, title_of
from streamscope.instruments.data import Documents, Opened
from streamscope.instruments.observations import Estimates, Observations, effect_contrasts, joined
from streamscope.instruments.open_data import OpenDocuments
from streamscope.instruments.table import Table, counts, described, key, number, quantity
from streamscope.interventions.edits.means import document_rows, hook_means
from streamscope.interventions.edits.mixing import (
    average_streams,
    constant_coefficients,
    parse_modules,
    permutations,
    permute_streams,
)
from streamscope.interventions.mixing import Mixing
from streamscope.interventions.observe import NATS, PERCENT, document_losses
from streamscope.models.hooks import Edits, edited_at, hooked_at
from streamscope.models.mixing import PlacedConnection, connections, inert_modules, unseen

EVERYWHERE = "everywhere"
OF = {"res": "H_res", "pre": "H_pre", "post": "H_post", "both": "H_pre and H_post"}
TO = {"identity": "I", "mean": "mean over tokens", "even": "even"}
STREAMS = {"permute": "permuted", "average": "their mean"}
COEFFICIENTS = {"both": ("pre", "post")}
"""Coefficients of changes that affect several."""
KEYS = ("change", "definition", "of", "to", "where", "acts")
NOTHING = {**dict.fromkeys(KEYS, ""), "change": "none", "module": -1, "layer": -1, "draw": -1}
"""Keys of the unedited model."""
SAME = "coefficients are the same at every token by construction"
EQUAL = "its streams are equal"
SUM = "only the sum of its streams is read, which stays the same"


@dataclass(frozen=True)
class Cell:
    """One change of one module (L2.attn) or of all at once (everywhere).

    modules: those it acts in. why: the reason if it acts in none.
    """

    change: str
    where: str
    modules: tuple[PlacedConnection, ...]
    why: str

    @property
    def labels(self) -> dict[str, Any]:
        """Columns that name the cell; module and layer are −1 for everywhere."""
        of, _, to = self.change.partition("-")
        coefficient, value = (OF[of], TO[to]) if to else ("streams", STREAMS[of])
        one = self.modules[0] if self.where != EVERYWHERE else None
        return {
            "change": self.change, "definition": f"{coefficient} → {value}", "of": coefficient, "to": value,
            "where": self.where,
            "acts": "no" if self.why else "yes", "module": one.number if one else -1, "layer": one.layer if one else -1,
        }  # fmt: skip

    def edits(self, constants: Mapping[tuple[str, str], Tensor], orders: Sequence[Sequence[int]]) -> list[Edits]:
        """The edits, one for each permutation."""
        if self.change == "permute":
            return [permute_streams(self.modules, order) for order in orders]
        if self.change == "average":
            return [average_streams(self.modules)]
        to = self.change.partition("-")[2]
        hooks = [hook for module in self.modules for hook in hooks_of(self.change, module)]
        return [constant_coefficients({hook: constants[hook, to] for hook in hooks})]


def hooks_of(change: str, module: PlacedConnection) -> list[str]:
    """Hooks of the module's coefficients that a change affects."""
    of = change.partition("-")[0]
    return [f"{module.path}.hook_{name}" for name in COEFFICIENTS.get(of, (of,))]


def places(where: Sequence[str], n_layers: int) -> tuple[bool, list[PlacedConnection]]:
    """(whether to change all modules at once, the modules to change alone); both by default. Raises as
    `parse_modules`."""
    alone = [spec for spec in where if spec != EVERYWHERE] if where else ["all"]
    return not where or EVERYWHERE in where, parse_modules(alone, n_layers)


def cells_of(how: Mixing, model: Any) -> list[Cell]:
    """Every requested change, everywhere and at every module."""
    everywhere, alone = places(how.where, model.config.n_layers)
    every, cells = parse_modules("all", model.config.n_layers), []
    for change in dict.fromkeys(how.change):
        without = inert_reasons(model, change)
        for where, modules in [(EVERYWHERE, every)] * everywhere + [(module.label, [module]) for module in alone]:
            acting = tuple(module for module in modules if module.path not in without)
            reasons = " and ".join(dict.fromkeys(without.get(module.path, "") for module in modules))
            why = "" if acting else f"cannot act, {reasons}"
            cells.append(Cell(change, where, acting or tuple(modules), why))
    return cells


def inert_reasons(model: Any, change: str) -> dict[str, str]:
    """Modules in which a change cannot affect any output, by name, with the reason.

    Empty if the user has edits or hooks on the model, because then nothing is known by construction.
    """
    spec, modules = model.config.residual, list(connections(model))
    to = change.partition("-")[2]
    if edited_at(model) or hooked_at(model):
        return {}
    if to == "mean" and not spec.dynamic:
        return dict.fromkeys(modules, SAME)
    if change in ("res-identity", "res-mean"):
        return inert_modules(model)
    if change == "res-even":
        return unseen(model)
    if change in STREAMS:
        return {modules[0]: EQUAL}
    return {modules[-1]: SUM} if change == "post-even" and not spec.dynamic else {}


def constants_of(model: Any, cells: Sequence[Cell], opened: OpenDocuments) -> dict[tuple[str, str], Tensor]:
    """(hook, "identity", "mean" or "even") -> the new coefficients; equal keys share one object, also between sweeps.

    The even H_post is the mean over tokens and streams: 1/n would also write less.
    """
    n = model.config.residual.n
    wanted = dict.fromkeys(
        (hook, cell.change.partition("-")[2])
        for cell in cells if cell.change not in STREAMS and not cell.why
        for module in cell.modules for hook in hooks_of(cell.change, module)
    )  # fmt: skip
    measured = dict.fromkeys(hook for hook, to in wanted if to == "mean" or (to == "even" and hook.endswith("post")))
    means = hook_means(model, list(measured), document_rows(opened.batches())) if measured else {}
    made = {}
    for hook, to in wanted:
        if to == "mean":
            made[hook, to] = means[hook]
        elif hook in means and to == "even" and hook.endswith("post"):
            made[hook, to] = means[hook].mean().expand(n)
        else:
            made[hook, to] = torch.eye(n) if to == "identity" else torch.full((n,) * (2 - hook.endswith("pre")), 1 / n)
    return made


def observe(how: Mixing, model: Any, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: the unedited model and every change, one per permutation. Units: documents."""
    opened, cells = data[Documents], cells_of(how, model)
    constants = constants_of(model, cells, opened)
    orders = permutations(model.config.residual.n, how.draws, how.seed)
    keys, sweep, acting, index = [NOTHING], list[Edits](), list[int](), list[range]()
    for cell in cells:
        many = len(orders) if cell.change == "permute" else 1
        index.append(range(len(keys), len(keys) + many))
        keys += [{**cell.labels, "draw": i} for i in range(many)]
        if not cell.why:
            sweep += cell.edits(constants, orders)
            acting += index[-1]
    losses = document_losses(model, opened.shards, sweep, kl="forward", progress=progress, **opened.limits)
    loss = f"loss {losses.baseline.sum() / losses.tokens.sum():.4f} nats/token"
    title = f"{title_of(model)}, {loss}; {opened.title()}, {counted(losses.tokens.sum(), 'token', ',')}"
    seen = InstrumentData({}, {}, {"title": title}, extra=(cells, index))
    measures = {"loss": NATS, "percent": PERCENT, "kl": replace(NATS, name="kl")}
    seen.blocks |= losses.blocks(pd.DataFrame(keys), opened.units(), at=acting, **measures)
    seen.contrasts |= {name: [] for name in measures}
    for cell, at in zip(cells, index, strict=True):
        edited, labels = {i: 1 / len(at) for i in at}, cell.labels
        family = EVERYWHERE if cell.where == EVERYWHERE else cell.change
        value, *others = effect_contrasts("loss", edited, 0, labels, family=family, missing=cell.why)
        value = replace(value, missing=cell.why)
        seen.contrasts["loss"] += [value, *others]
        for name in ("percent", "kl"):
            seen.contrasts[name].append(replace(value, quantity=name))
    return seen


def tables(how: Mixing, seen: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """everywhere: one row per change of all modules at once; modules: one row per change and module."""
    cells, index = seen.extra
    made = {}
    for name, keys, columns in ((EVERYWHERE, KEYS, COLUMNS), ("modules", (*KEYS, "module", "layer"), MODULE_COLUMNS)):
        chosen = [i for i, cell in enumerate(cells) if (cell.where == EVERYWHERE) == (name == EVERYWHERE)]
        if not chosen:
            continue
        where = {cells[i].where for i in chosen}
        frame, missing = joined(
            [estimates[block].where(where=where) for block in ("loss", "percent", "kl")], keys, columns
        )
        frame["tokens"] = int(seen.blocks["loss"].sizes[0].sum())
        rows = [_of_draws(cells[i], index[i], seen.blocks["loss"]) for i in chosen]
        frame["draws"], frame["draw_sd"] = [many for many, *_ in rows], [sd for _, sd, _ in rows]
        missing |= {(row, "draw_sd"): why for row, (*_, why) in enumerate(rows) if why}
        made[name] = Table(frame, columns, missing, f"{name}, {seen.about['title']}", "delta", 4, ("definition",))
    return made


def _of_draws(cell: Cell, at: Sequence[int], block: Observations) -> tuple[int, float, str]:
    """(number of permutations, sd of delta between them, reason if there is none)."""
    if cell.change != "permute" or len(at) < 2 or cell.why:
        return 0, np.nan, cell.why or "no permutations are drawn"
    return len(at), float(np.std(block.values[list(at)], ddof=1)), ""


CHANGE = (
    key("change", "change", "value of --change", shown=False),
    key("definition", "change", "coefficient or streams → replacement"),
    key("of", "changed", "coefficients, or the streams themselves", shown=False),
    key("to", "becomes", "the replacement", shown=False),
    key("where", "where", "layer and branch, or everywhere", "place"),
    key("acts", "can act", "whether the change can affect an output"),
)  # fmt: skip
MEASURED = (
    *described("loss", "loss", "nats/token", "loss under the change", format=".4f", shown=False),
    *described("baseline", "unedited loss", "nats/token", "loss of the unedited model", format=".4f", shown=False),
    *quantity("delta", "Δ loss", "nats/token", "loss under the change − loss", sd="documents"),
    *described("percent", "Δ loss, percent", "percent of the unedited loss", "100 (loss under the change / loss − 1)",
               format="+.2f"),
    *described("kl", "KL", "nats/token, KL(unedited ‖ edited) of the next token", "change of the predictions"),
    number("draws", "permutations", "permutations", "number of permutations that the row averages; 0 for other changes",
           "d", False),
    number("draw_sd", "sd over permutations", "nats/token, between permutations",
           "standard deviation of delta between permutations", ".4f", False),
    number("tokens", "tokens", "tokens", "predicted tokens", "d", False),
    *counts("documents or windows", "documents"),
)  # fmt: skip
COLUMNS = (*CHANGE, *MEASURED)
MODULE_COLUMNS = (
    *CHANGE,
    number("module", "module", "from 0", "number of the module in the order of writing", "d", False),
    number("layer", "layer", "layer", "counted from 0", "d", False),
    *MEASURED,
)  # fmt: skip
