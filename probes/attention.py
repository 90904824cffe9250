"""Attention from the query of a prompt to its roles, for every head; used by `pds`, `coreference` and `sps`.

    query = role_query(suite, tokenizer, needs=("target", "distractor"))
    for i, rows in attention_rows(run(model, query), query):       rows: [L, H, keys], keys 0 … query position
        attention_to(rows, query.aligned.positions[i]["target"])   [L, H]

Only the pattern's row at the query position is kept, so memory grows with prompts × heads × keys. A row sums to 1.
Hook: `blocks.L.attn.hook_pattern`, of our models and of a TransformerLens bridge.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch

from streamscope.cli.errors import InputError
from streamscope.instruments.prompts.alignment import Aligned, align_once
from streamscope.instruments.prompts.suite import Prompt, Suite, Unit, units
from streamscope.instruments.stats.estimators import cohens_d
from streamscope.models.hooks import Captures, Query

PATTERN, GATE = "blocks.*.attn.hook_pattern", "blocks.*.attn.hook_gate"
RESOLUTION = 1e-6
"""Attention weights closer than this count as equal (rounding of a float32 softmax)."""
SINK = 0.9
"""A head whose mean attention to BOS is at least this is a BOS sink: it says little about the text."""
TIE = 1e-5
"""Two candidates tie if their weights differ by less than this share of the larger one."""


@dataclass(frozen=True, kw_only=True)
class RoleQuery(Query):
    """A query with its prompts.

    aligned: the prompts in the order of `tokens`. left_out: ids of prompts without the roles that the probe needs.
    undecided: ids of prompts left out because the same text up to the query has another answer elsewhere.
    """

    aligned: Aligned
    left_out: tuple[str, ...] = ()
    undecided: tuple[str, ...] = ()


def undecided(prompts: Sequence[Prompt]) -> set[str]:
    """Ids of the prompts whose text up to and including the query occurs again with another target.

    A causal model attends equally in all of them, so one target's gain is the other's loss: every head hits at most one
    of such a pair and their SPS sums to 0. Winograd and Winogender schemas have many, because the decisive words come
    after the pronoun.
    """
    groups: dict[tuple[str, tuple[int, int]], list[Prompt]] = {}
    for p in prompts:
        groups.setdefault((p.text[: p.roles["query"][1]], p.roles["query"]), []).append(p)
    return {p.id for same in groups.values() if len({q.roles.get("target") for q in same}) > 1 for p in same}


def role_query(
    prompts: Suite | Aligned, tokenizer: Any, *, needs: tuple[str, ...] = ("target",), gated: bool = False
) -> RoleQuery:
    """Patterns, and gates if `gated`, at the query position of every prompt that has the roles `needs`.

    Prompts that no causal model can decide at the query (`undecided`) are left out and named. Raises `InputError` if no
    prompt has the roles, or none of those can be decided.
    """
    aligned = align_once(prompts, tokenizer)
    keep = [i for i, at in enumerate(aligned.positions) if all(role in at for role in needs)]
    if not keep:
        raise InputError(f"no prompt has the roles {' and '.join(needs)}; use another suite, such as competing")
    open_ended = undecided([aligned.prompts[i] for i in keep])
    keep = [i for i in keep if aligned.prompts[i].id not in open_ended]
    if not keep:
        raise InputError(
            f"every prompt has a twin with the same text up to the query and another answer ({len(open_ended)}), and a "
            "causal model attends equally in both; use a suite whose text decides before the query"
        )
    chosen = aligned.only(keep)
    names = {p.id for p in chosen.prompts} | open_ended
    return RoleQuery(
        tokens=chosen.tokens,
        hooks=(PATTERN, GATE) if gated else (PATTERN,),
        positions=[[q] for q in chosen.queries],
        aligned=chosen,
        left_out=tuple(p.id for p in aligned.prompts if p.id not in names),
        undecided=tuple(p.id for p in aligned.prompts if p.id in open_ended),
    )


def up_to_query(query: RoleQuery) -> RoleQuery:
    """The query without the tokens behind each prompt's query, which a causal model cannot see there."""
    return replace(query, tokens=[ids[: q + 1] for ids, q in zip(query.tokens, query.aligned.queries, strict=True)])


def left_out(query: Query, roles: str) -> str:
    """For a title: how many prompts a `role_query` left out, and why."""
    assert isinstance(query, RoleQuery)
    lost = f", {len(query.left_out)} without {roles}" if query.left_out else ""
    if query.undecided:
        lost += f", {len(query.undecided)} left out whose text up to the query also occurs with another answer "
        lost += "(Top-1 at most 50 % and SPS 0 by construction)"
    return lost


def attention_rows(captures: Captures, query: RoleQuery, *, gated: bool = False) -> Iterator[tuple[int, np.ndarray]]:
    """(prompt, α [L, H, keys ≤ q]) in float64; gated: Ã = ḡ α, ḡ_h the mean of the gate over d_h (SPEC §7.3).

    Raises `InputError` for a weight that is not finite.
    """
    patterns, gates = by_layer(captures, "hook_pattern"), by_layer(captures, "hook_gate") if gated else {}
    for i, q in enumerate(query.aligned.queries):
        layers = {layer: x[i][:, 0, : q + 1].double() for layer, x in patterns.items()}
        if gated:
            layers = {layer: a * gates[layer][i][0].double().mean(-1)[:, None] for layer, a in layers.items()}
        rows = torch.stack(list(layers.values())).cpu().numpy()
        if not np.isfinite(rows).all():
            layer, head = (int(x[0]) for x in np.nonzero(~np.isfinite(rows).all(-1)))
            name = query.aligned.prompts[i].id
            raise InputError(f"attention of L{list(patterns)[layer]}.H{head} is not finite on prompt {name!r}")
        yield i, rows


def sink_names(to_bos: np.ndarray) -> list[str]:
    """The BOS sinks, such as L3.H2, from the mean attention to BOS [L, H]."""
    return [f"L{layer}.H{h}" for layer, h in np.argwhere(to_bos >= SINK)]


def sinks_sentence(sinks: Sequence[str], heads: int) -> str:
    """For a title: how many heads are BOS sinks; "" if none is."""
    return f"; {len(sinks)} of {heads} heads are BOS sinks (at least {SINK:.0%} of attention to BOS)" if sinks else ""


def by_layer(captures: Captures, hook: str) -> dict[int, list[torch.Tensor]]:
    """Layer -> activations per prompt of the attention hook `hook`, in layer order."""
    found = {int(name.split(".")[1]): x for name, x in captures.hooks.items() if name.endswith(f".attn.{hook}")}
    if not found:
        raise InputError(f"no {hook} was captured; run the query planned by this probe")
    return dict(sorted(found.items()))


def attention_to(rows: np.ndarray, positions: Sequence[int]) -> np.ndarray:
    """Attention [L, H] to a role: the sum of rows [L, H, keys] over its tokens."""
    return rows[..., list(positions)].sum(-1)


def exceeds(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(first > second, tie) elementwise; a tie is a difference below `TIE` of the larger one and does not win."""
    tie = np.abs(first - second) <= TIE * np.maximum(first, second)
    return (first > second) & ~tie, tie


def moved_d(condition: np.ndarray, baseline: np.ndarray) -> float:
    """Cohen's d between attention in two conditions; NaN for one case, and where attention does not vary."""
    moves = len(condition) > 1 and np.abs(condition - baseline).max() > RESOLUTION
    return cohens_d(condition, baseline) if moves else float("nan")


def clusters(aligned: Aligned) -> list[Unit]:
    """The unit of inference of each prompt (`suite.units`)."""
    return units(aligned.prompts)


def prompt_columns(aligned: Aligned) -> dict[str, list[Any]]:
    """One entry per prompt; "" for missing ones."""
    return {
        "id": [p.id for p in aligned.prompts],
        "pair": [p.pair or "" for p in aligned.prompts],
        "cluster": clusters(aligned),
        "category": [p.category for p in aligned.prompts],
        "relation": [p.relation or "" for p in aligned.prompts],
        "order": [p.order or "" for p in aligned.prompts],
    }


def tidy(columns: Mapping[str, Sequence[Any]], layers: Sequence[int], values: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """One row per case and head, from case columns [N] and values [N, L, H]; heads are named L5.H4."""
    n, n_layers, n_heads = next(iter(values.values())).shape
    cells = n_layers * n_heads
    layer, head = np.repeat(np.asarray(layers), n_heads), np.tile(np.arange(n_heads), n_layers)
    table = {name: pd.Series(list(column)).repeat(cells).to_numpy() for name, column in columns.items()}
    table["layer"], table["index"] = np.tile(layer, n), np.tile(head, n)
    table["head"] = np.tile([f"L{a}.H{b}" for a, b in zip(layer, head, strict=True)], n)
    return pd.DataFrame(table | {name: x.reshape(-1) for name, x in values.items()})
