"""Which heads to suppress and which to compare them with: LFA's selection by PDS (§3.3, App. D)."""

import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING, Any, Literal

from interventions.head_spec import Head
from models.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from probes.align import Aligned
    from probes.suite import Suite

Ranking = Mapping[Head, float]
"""Every head of a model with its PDS (a difference of attention weights)."""


def pds_table(model: Any, prompts: "Suite | Aligned", tokenizer: Any) -> "pd.DataFrame":
    """`probes.pds.Pds().summarize` of the prompts' pairs, largest PDS first."""
    from probes.pds import Pds
    from probes.probe import measure

    probe = Pds()
    summary = probe.summarize(measure(model, probe, prompts, tokenizer=tokenizer))
    return summary.sort_values(["pds", "layer", "index"], ascending=[False, True, True], ignore_index=True)


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
    heads: Iterable[Head], exclude: Sequence[Head], k: int, draws: int, seed: int
) -> list[tuple[Head, ...]]:
    """Matched-random controls: different sets of k heads none of which is in `exclude`, drawn evenly.

    All C(m, k) sets when there are no more than `draws`. Same seed, same sets. Raises `InputError` for k heads that
    do not exist, and for no draws.
    """
    others = sorted(set(heads) - set(exclude))
    if k < 1 or draws < 1 or len(others) < k:
        raise InputError(f"cannot draw {draws} sets of {k} heads out of {len(others)} that were not selected")
    if comb(len(others), k) <= draws:
        return list(combinations(others, k))
    generator = random.Random(seed)
    found: dict[tuple[Head, ...], None] = {}
    while len(found) < draws:
        found[tuple(sorted(generator.sample(others, k)))] = None
    return list(found)
