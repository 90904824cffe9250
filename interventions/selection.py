"""Which heads to suppress and which to compare them with: LFA's selection by PDS (§3.3, App. D)."""

import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING, Any, Literal

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
    """Head -> PDS, for `head_spec.parse_heads` and the selections here."""
    rows = zip(table["layer"], table["index"], table["pds"], strict=True)
    return {Head(int(layer), int(index)): float(pds) for layer, index, pds in rows}


def ranked(scores: Ranking, k: int, which: Literal["top", "bottom"] = "top") -> tuple[Head, ...]:
    """The k heads with the largest or the smallest PDS, in order of layer and index; ties go to the earlier head.

    Raises `InputError` when the k heads leave fewer than k others for the controls.
    """
    if not 1 <= k <= len(scores) // 2:
        raise InputError(f"k={k} of {len(scores)} heads leave no {k} others to compare with; 1 to {len(scores) // 2}")
    sign = -1.0 if which == "top" else 1.0
    return tuple(sorted(sorted(scores, key=lambda head: (sign * scores[head], head))[:k]))


def over(scores: Ranking, threshold: float | Literal["own"]) -> tuple[Head, ...]:
    """The heads whose PDS exceeds the threshold (LFA Table 5: 0.075); "own" is μ+σ over the heads, σ with n−1.

    Raises `InputError` for no head and for more than half of them, which leave too few for the controls.
    """
    import numpy as np

    values = np.array(list(scores.values()))
    limit = float(values.mean() + values.std(ddof=1)) if threshold == "own" else float(threshold)
    chosen = tuple(sorted(head for head, pds in scores.items() if pds > limit))
    if not chosen:
        best = max(scores, key=lambda head: scores[head])
        raise InputError(
            f"no head has PDS over {limit:.4f}: the largest is {best.label} with {scores[best]:.4f}; "
            "lower --threshold, or --select topk"
        )
    if len(chosen) > len(scores) // 2:
        raise InputError(
            f"{len(chosen)} of {len(scores)} heads have PDS over {limit:.4f} and leave too few for the controls; "
            "raise --threshold, or --select topk"
        )
    return chosen


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
