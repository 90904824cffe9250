"""Do heads act together? What removing a set of heads S changes beyond what its heads change one at a time.

    interaction(S) = Δ(S) − Σ_{h ∈ S} Δ({h})

0 where effects add up. Of a loss, above 0: the heads stand in for one another, each is missed only when the others are
gone too (a backup); below 0: they work in a row, and without the one the other had nothing left to do. Of log-odds,
which fall where a loss rises, the signs are the other way round. Units are those of Δ. Of a loss that is not flat in
the logits, effects need not add up even where no head reads another. A head that cannot change the measure (SPS, in the
last layer) has Δ = 0 and leaves the interaction to the others of its set.
"""

from collections.abc import Sequence
from itertools import combinations
from math import comb

from streamscope.cli.errors import InputError
from streamscope.interventions.controls import random_sets
from streamscope.models.head_spec import Head

ONE = "one head has no parts"
MOST = 10_000
"""Sets of one sweep, over all of which a table can be read and p corrected."""


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
