"""Losses of documents under changes of the mixing of streams; changes without effect are not measured.

    X ← H_res X + H_post ⊗ F(H_pre X)          around the branch F of every module, L2.attn or L2.mlp (SPEC §1.4, §2)

Coefficients are edited where they are used: `blocks.L.{attn,mlp}_hc.hook_pre`, `hook_post` [B, T, N] and `hook_res`
[B, T, N, N]. Streams are edited where they enter the module, `blocks.L.hook_streams_pre` for attention and
`hook_streams_mid` for the FFN [B, T, N, D], so that the module computes its coefficients from the changed streams.
"""

import itertools
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from streamscope.instruments.contract import Progress, need_streams, title_of
from streamscope.instruments.data import Documents, Opened
from streamscope.instruments.observations import Estimates
from streamscope.instruments.open_data import OpenDocuments
from streamscope.instruments.table import Table, key, number
from streamscope.interventions import changes
from streamscope.interventions.edits import document_rows, hook_means
from streamscope.interventions.mixing import Mixing
from streamscope.models.head_spec import parse_parts
from streamscope.models.hooks import Edit, Edits, edited_at, hooked_at
from streamscope.models.mixing import PARTS, PlacedConnection, connections, inert_modules, unseen

EVERYWHERE = "everywhere"
OF = {"res": "H_res", "pre": "H_pre", "post": "H_post", "both": "H_pre and H_post"}
TO = {"identity": "I", "mean": "mean over tokens", "even": "even"}
STREAMS = {"permute": "permuted", "average": "their mean"}
Constants = Mapping[tuple[str, str], Tensor]
"""(hook, "identity", "mean" or "even") -> the new coefficients."""
SAME = "coefficients are the same at every token by construction"
EQUAL = "its streams are equal"
SUM = "only the sum of its streams is read, which stays the same"


def parse_modules(specs: str | Sequence[str], n_layers: int) -> list[PlacedConnection]:
    """Modules named L2.attn, L2.*, L0-2.mlp, *.attn or all; in order, each once."""
    return [PlacedConnection(*part) for part in parse_parts(specs, n_layers, PARTS, "module")]


def permute_streams(modules: Iterable[PlacedConnection], order: Sequence[int]) -> dict[str, Edit]:
    """X_s ← X_order[s] where the streams enter the modules."""
    return {module.entry: lambda X, hook: X[:, :, list(order)] for module in modules}


def average_streams(modules: Iterable[PlacedConnection]) -> dict[str, Edit]:
    """X_s ← the mean of the streams where they enter the modules; equal streams stay equal, bit for bit."""
    return {module.entry: _average for module in modules}


def permutations(n: int, draws: int, seed: int) -> list[tuple[int, ...]]:
    """`draws` different permutations of n streams, drawn uniformly from all but the identity; all if there are fewer.
    The same seed gives the same permutations."""
    identity = tuple(range(n))
    if math.factorial(n) - 1 <= draws:
        return list(itertools.permutations(range(n)))[1:]
    generator, drawn = random.Random(seed), dict[tuple[int, ...], None]()
    while len(drawn) < draws:
        order = tuple(generator.sample(identity, n))
        if order != identity:
            drawn[order] = None
    return list(drawn)


def _constant(H: Tensor, hook: Any, *, value: Tensor) -> Tensor:
    return value.to(H).expand_as(H)


def _average(X: Float[Tensor, "B T N D"], hook: Any) -> Float[Tensor, "B T N D"]:
    first = X[:, :, :1]  # the mean of equal numbers is not always that number
    return (first + (X - first).mean(2, keepdim=True)).expand_as(X)


def hooks_of(change: str, module: PlacedConnection) -> list[str]:
    of = change.partition("-")[0]
    return [f"{module.path}.hook_{name}" for name in (("pre", "post") if of == "both" else (of,))]


def check(options: Mixing, model: Any) -> None:
    need_streams(model, options.name)
    places(options.where, model.config.n_layers)


def places(where: Sequence[str], n_layers: int) -> tuple[bool, list[PlacedConnection]]:
    """(whether to change all modules at once, the modules to change alone); both by default."""
    alone = [spec for spec in where if spec != EVERYWHERE] if where else ["all"]
    return not where or EVERYWHERE in where, parse_modules(alone, n_layers)


def placed_changes(options: Mixing, model: Any) -> list[tuple[str, str, tuple[PlacedConnection, ...], str]]:
    """(change, where, modules in which it acts, why it cannot act) of every change, everywhere and at every module."""
    everywhere, alone = places(options.where, model.config.n_layers)
    every = parse_modules("all", model.config.n_layers)
    out = list[tuple[str, str, tuple[PlacedConnection, ...], str]]()
    for change in dict.fromkeys(options.change):
        inert = inert_reasons(model, change)
        for where, modules in [(EVERYWHERE, every)] * everywhere + [(module.label, [module]) for module in alone]:
            acting = tuple(module for module in modules if module.path not in inert)
            reasons = " and ".join(dict.fromkeys(inert.get(module.path, "") for module in modules))
            out.append((change, where, acting or tuple(modules), "" if acting else f"cannot act, {reasons}"))
    return out


def edits_of(
    change: str, modules: Sequence[PlacedConnection], constants: Constants, orders: Sequence[Sequence[int]]
) -> list[Edits]:
    """The edits of a change in these modules, one for each permutation; constants [N] or [N, N] are the same at every
    token."""
    if change == "permute":
        return [permute_streams(modules, order) for order in orders]
    if change == "average":
        return [average_streams(modules)]
    to, hooks = change.partition("-")[2], [hook for module in modules for hook in hooks_of(change, module)]
    return [{hook: partial(_constant, value=constants[hook, to]) for hook in hooks}]


def inert_reasons(model: Any, change: str) -> dict[str, str]:
    """Modules in which a change cannot affect any output, by name, with the reason. Empty if the user has edits or
    hooks on the model, because then nothing is known by construction."""
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


def constants_of(
    model: Any, change_sites: Iterable[tuple[str, Sequence[PlacedConnection]]], opened: OpenDocuments
) -> Constants:
    """The new coefficients of changes in modules; equal keys share one object, also between sweeps. The even H_post is
    the mean over tokens and streams: 1/n would also write less."""
    n = model.config.residual.n
    pairs = dict.fromkeys(
        (hook, change.partition("-")[2])
        for change, modules in change_sites if change not in STREAMS
        for module in modules for hook in hooks_of(change, module)
    )  # fmt: skip
    of_post = {hook for hook, to in pairs if to == "even" and hook.endswith("post")}
    mean_hooks = list(dict.fromkeys(hook for hook, to in pairs if to == "mean" or hook in of_post))
    means = hook_means(model, mean_hooks, document_rows(opened.batches())) if mean_hooks else {}
    constants = {}
    for hook, to in pairs:
        if to == "even":
            vector = means[hook].mean().expand(n) if hook in of_post else torch.full((n,), 1 / n)
            constants[hook, to] = torch.full((n, n), 1 / n) if hook.endswith("res") else vector
        else:
            constants[hook, to] = means[hook] if to == "mean" else torch.eye(n)
    return constants


def observe(options: Mixing, model: Any, data: Opened, progress: Progress) -> changes.Effects:
    """Every change, everywhere and at every module, one variant per permutation. Units: documents."""
    opened, placed = data[Documents], placed_changes(options, model)
    constants = constants_of(model, [(change, modules) for change, _, modules, inert in placed if not inert], opened)
    orders, change_list = permutations(model.config.residual.n, options.draws, options.seed), []
    for change, where, modules, inert in placed:
        drawn, (of, _, to) = len(orders) if change == "permute" else 1, change.partition("-")
        coefficient, value = (OF[of], TO[to]) if to else ("streams", STREAMS[of])
        everywhere = where == EVERYWHERE
        labels = {
            "change": change, "definition": f"{coefficient} → {value}", "of": coefficient, "to": value, "where": where,
            "acts": "no" if inert else "yes", "module": -1 if everywhere else modules[0].number,
            "layer": -1 if everywhere else modules[0].layer,
        }  # fmt: skip
        change_list.append(changes.Change(
            labels, [None] * drawn if inert else edits_of(change, modules, constants, orders),
            missing=inert, family=EVERYWHERE if everywhere else change,
            undrawn="" if change == "permute" else "no permutations are drawn",
        ))  # fmt: skip
    measures = changes.LOSSES | changes.OF_CHANGE
    effects = changes.measure_changes(model, opened, change_list, measures=measures, kl="forward", progress=progress)
    effects.about["title"] = f"{title_of(model)}, {effects.loss}; {effects.documents}"
    return effects


def tables(options: Mixing, effects: changes.Effects, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """everywhere: one row per change of all modules at once; modules: one row per change and module."""
    out, where = {}, {change.labels["where"] for change in effects.changes}
    printed: dict[str, Any] = {"by": "delta", "most": 4, "per": ("definition",)}
    for name, chosen, columns in (
        (EVERYWHERE, where & {EVERYWHERE}, COLUMNS), ("modules", where - {EVERYWHERE}, MODULE_COLUMNS),
    ):  # fmt: skip
        if chosen:
            title = f"{name}, {effects.about['title']}"
            out[name] = changes.effect_table(effects, estimates, columns, title, where={"where": chosen}, **printed)
    return out


CHANGE = (
    key("change", "change", "value of --change", shown=False),
    key("definition", "change", "coefficient or streams → replacement"),
    key("of", "changed", "coefficients, or the streams themselves", shown=False),
    key("to", "becomes", "the replacement", shown=False),
    key("where", "where", "layer and branch, or everywhere", "place"),
    key("acts", "can act", "whether the change can affect an output"),
)  # fmt: skip
MEASURED = (*changes.LOSS, *changes.DELTA, *changes.RELATIVE, *changes.FORWARD_KL, *changes.DRAWS, *changes.TOKENS)
COLUMNS = (*CHANGE, *MEASURED)
MODULE_COLUMNS = (
    *CHANGE,
    number("module", "module", "from 0", "number of the module in the order of writing", "d", False),
    number("layer", "layer", "layer", "counted from 0", "d", False),
    *MEASURED,
)  # fmt: skip
