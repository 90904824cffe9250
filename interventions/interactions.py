"""Do heads act together? What removing a set of heads S changes beyond what its heads change one at a time.

    interaction(S) = Δ(S) − Σ_{h ∈ S} Δ({h})

0 where effects add up. Of a loss, above 0: the heads stand in for one another, each is missed only when the others are
gone too (a backup); below 0: they work in a row, and without the one the other had nothing left to do. Of log-odds,
which fall where a loss rises, the signs are the other way round. Units are those of Δ. Of a loss that is not flat in
the logits, effects need not add up even where no head reads another. A head that cannot change the measure (SPS, in the
last layer) has Δ = 0 and leaves the interaction to the others of its set.
"""

from collections.abc import Callable, Sequence
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING

import numpy as np

from interventions.selection import random_sets
from models.errors import InputError
from models.head_spec import Head
from probes.statistics import t_quantile
from probes.t_tests import clustered_t, spread

if TYPE_CHECKING:
    import pandas as pd

    from interventions.controls import Sweep
    from probes.statistics import Shared

COLUMNS = ("interaction", "interaction_low", "interaction_high", "p_interaction")
ONE = "one head has no parts"
MOST = 10_000
"""Sets of one sweep, over all of which a table can be read and p corrected."""
SHOWN = 20
"""Sets of a long sweep that are printed."""


def head_sets(heads: Sequence[Head], size: int, sets: int | None, seed: int) -> list[tuple[Head, ...]]:
    """Every set of `size` of the heads, or `sets` random ones of them. Same seed, same sets.

    Raises `InputError` for a size that the heads do not have, fewer than one set, and more than `MOST`.
    """
    every = sorted(set(heads))
    if not 1 <= size <= len(every):
        raise InputError(
            f"--size {size}: 1 to {len(every)} of the {len(every)} heads given; give more --heads, or another size"
        )
    if sets is not None and sets < 1:
        raise InputError(f"--sets {sets}: at least 1")
    possible = comb(len(every), size)
    if min(possible, sets or possible) > MOST:
        raise InputError(
            f"{possible:,} sets of {size} out of {len(every)} heads; give --sets N for N random ones, at most {MOST:,}"
        )
    if sets is None or sets >= possible:
        return list(combinations(every, size))
    return random_sets(every, (), size, sets, seed)


def parts(groups: Sequence[Sequence[Head]]) -> list[tuple[Head, ...]]:
    """Each head of the groups of several heads, alone."""
    return [(head,) for head in dict.fromkeys(h for group in groups if len(group) > 1 for h in group)]


def interaction_columns(
    sweep: "Sweep",
    changes: Callable[[int], np.ndarray],
    sizes: np.ndarray,
    *,
    resolution: float,
    shared: "Shared | None" = None,
    idle: Callable[[Sequence[Head]], str] = lambda heads: "",
) -> "tuple[dict[str, list[float]], list[dict[str, str]]]":
    """(`COLUMNS`, why cells have no value) of every cell: Σ_d (Δ_d(S) − Σ_h Δ_d({h})) / Σ_d n_d with 95 % and p.

    `changes` gives the totals [D] of an edit over documents or independent cases, `sizes` [D] how many tokens or
    prompts each has, `shared` which of them share labels of several kinds. Interactions that differ between these by no
    more than rounding (`resolution`) have no interval. `idle` says why heads cannot change anything, "" where they can.
    """
    rows: list[dict[str, float]] = []
    reasons: list[dict[str, str]] = []
    for (heads, g), at in zip(sweep.cells, sweep.index, strict=True):
        row = dict.fromkeys(COLUMNS, float("nan"))
        able = [head for head in heads if not idle([head])]
        lost = ONE if len(heads) == 1 else next((why for head in heads if (why := idle([head]))), "")
        if len(able) < 2:
            rows.append(row)
            reasons.append(dict.fromkeys(COLUMNS, lost))
            continue
        beyond = changes(at) - sum(changes(sweep.known[(head,), g]) for head in able)
        test = clustered_t(beyond, sizes, shared)
        row["interaction"] = float(test.difference)
        if spread(test) > resolution:
            half = t_quantile(0.95, float(test.df)) * float(test.error)
            row |= {"interaction_low": row["interaction"] - half, "interaction_high": row["interaction"] + half}
            row["p_interaction"] = float(test.p)
            reasons.append({})
        else:
            reasons.append(dict.fromkeys(COLUMNS[1:], "the interaction is the same in every cluster"))
        rows.append(row)
    return {name: [row[name] for row in rows] for name in COLUMNS}, reasons


def strongest(table: "pd.DataFrame", n: int = SHOWN) -> "pd.DataFrame":
    """The rows of the n sets with the largest interactions at any scale, largest first.

    Where none has one, the first n; the whole table where it has no more sets.
    """
    most = table.assign(size=table["interaction"].abs()).groupby("head", sort=False)["size"].max()
    if len(most) <= n:
        return table
    order = most.sort_values(ascending=False, kind="stable", na_position="last").index[:n]
    rank = {head: i for i, head in enumerate(order)}
    return table[table["head"].isin(order)].sort_values("head", key=lambda heads: heads.map(rank), kind="stable")
