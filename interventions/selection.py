"""Heads by their PDS, and the random sets that they are compared with (LFA §3.3, App. D)."""

import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING, Any

from streamscope.models.errors import InputError
from streamscope.models.head_spec import Head

if TYPE_CHECKING:
    import pandas as pd

    from streamscope.probes.prompts.alignment import Aligned
    from streamscope.probes.prompts.suite import Suite

Ranking = Mapping[Head, float]
"""Every head of a model with its PDS (a difference of attention weights)."""


def every_head(model: Any) -> list[Head]:
    """All heads of a model, in order."""
    from streamscope.models.head_spec import parse_heads

    return parse_heads("all", model.config.n_layers, model.config.n_heads)


def labels(heads: Sequence[Head], g: float) -> dict[str, Any]:
    """The columns that name a cell; layer and index of a set are −1."""
    single = heads[0] if len(heads) == 1 else None
    return {
        "head": "+".join(h.label for h in heads),
        "layer": single.layer if single else -1,
        "index": single.head if single else -1,
        "scale": float(g),
    }


def pds_table(model: Any, prompts: "Suite | Aligned", tokenizer: Any) -> "pd.DataFrame":
    """The table `heads` of `probes.pds` over the prompts' pairs, largest PDS first."""
    from streamscope.probes.pds.measure import summary

    found = summary(model, prompts, tokenizer)
    return found.sort_values(["pds", "layer", "index"], ascending=[False, True, True], ignore_index=True)


def pds_scores(table: "pd.DataFrame") -> dict[Head, float]:
    """Head -> PDS, for `head_spec.parse_heads` and LFA's selections."""
    rows = zip(table["layer"], table["index"], table["pds"], strict=True)
    return {Head(int(layer), int(index)): float(pds) for layer, index, pds in rows}


def random_sets(
    heads: Iterable[Head], selected: Sequence[Head], k: int, draws: int, seed: int
) -> list[tuple[Head, ...]]:
    """Matched-random controls: different sets of k heads, drawn evenly from all sets but `selected` itself.

    A set may share heads with the selected ones, as two sets drawn at random do. Then the selected set is one more draw
    if the selection says nothing about the effect, and its rank among the sets is exact (`permutations.rank_among`).
    Sets that avoid the selected heads share a smaller pool with each other and not with it: of 36 heads the rank
    among 39 of those rejects 8 % of true nulls at 5 % for k = 3, 10 % for k = 5, 21 % for k = 10.

    All C(n, k) − 1 sets when there are no more than `draws`. Same seed, same sets. Raises `InputError` for k heads that
    do not exist or leave no other set, and for no draws.
    """
    every, own = sorted(set(heads)), tuple(sorted(selected))
    possible = comb(len(every), k) - (len(own) == k and set(own) <= set(every)) if k >= 1 else 0
    if draws < 1 or possible < 1:
        raise InputError(f"cannot draw {draws} sets of {k} heads out of {len(every)}, other than those selected")
    if possible <= draws:
        return [found for found in combinations(every, k) if found != own]
    generator = random.Random(seed)
    drawn: dict[tuple[Head, ...], None] = {}
    while len(drawn) < draws:
        found = tuple(sorted(generator.sample(every, k)))
        if found != own:
            drawn[found] = None
    return list(drawn)
