"""What it costs to edit other heads as many: the matched-random controls of a sweep (LFA App. D).

A change alone does not say that a head is special: removing any head changes something. So every group of k heads
stands beside other random sets of k heads under the same edit (`selection.random_sets`). Of one head among 36 these
are all 35 others, and in a sweep over all heads they cost nothing, for the sweep has run them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from streamscope.interventions.selection import random_sets
from streamscope.models.errors import InputError
from streamscope.models.head_spec import Head
from streamscope.probes.stats.estimators import t_quantile
from streamscope.probes.stats.permutations import rank_among
from streamscope.probes.stats.t_tests import TTest, spread

if TYPE_CHECKING:
    from streamscope.models.hooks import Edits

NAN = float("nan")
COLUMNS = ("control", "control_sd", "draws", "above", "above_low", "above_high", "p_above", "p_rank", "p_rank_min")
NO_DRAWS, IDENTITY = "no random sets to compare with", "scale 1 changes nothing"
FEW = "one random set: no spread"


@dataclass(frozen=True)
class Sweep:
    """Groups of heads at scales g, each edit once, and for every cell the edits that are its controls."""

    edits: "list[Edits]"
    cells: list[tuple[tuple[Head, ...], float]]
    index: list[int]
    """The edit of each cell."""
    controls: list[list[tuple[tuple[Head, ...], int]]]
    """The random sets of each cell, with their edits; none at scale 1."""
    known: Mapping[tuple[tuple[Head, ...], float], int]
    """Every set of heads at every scale that is edited at all, with its edit."""


def plan(
    groups: Sequence[Sequence[Head]],
    scales: Sequence[float],
    heads: Sequence[Head],
    make: "Callable[[Sequence[Head], float], Edits]",
    *,
    draws: int = 39,
    seed: int = 0,
    also: Sequence[Sequence[Head]] = (),
) -> Sweep:
    """The edits of a sweep over `groups` × `scales` with `draws` other random sets of `heads` for each group.

    All sets when there are no more of them than draws; none where the group is all heads. `also` are edited as well,
    without being cells. Raises `InputError` for a
    scale that is not finite and a negative number of draws.
    """
    for g in scales:
        if not np.isfinite(g):
            raise InputError(f"scale {g} is not a finite number")
    if draws < 0:
        raise InputError(f"--draws {draws}: a number of random sets, 0 for no controls")
    edits: list[Edits] = []
    known: dict[tuple[tuple[Head, ...], float], int] = {}

    def at(group: Sequence[Head], g: float) -> int:
        key = (tuple(group), float(g))
        if key not in known:
            known[key] = len(edits)
            edits.append(make(group, g) if g != 1 else {})  # the unedited model, bit for bit
        return known[key]

    cells = [(tuple(group), float(g)) for group in groups for g in scales]
    index = [at(*cell) for cell in cells]
    controls = []
    for group, g in cells:
        possible = draws > 0 and g != 1 and len(group) < len(heads)
        sets = random_sets(heads, group, len(group), draws, seed) if possible else []
        controls.append([(drawn, at(drawn, g)) for drawn in sets])
    for one in also:
        for g in scales:
            at(one, g)
    return Sweep(edits, cells, index, controls, known)


def control_columns(
    effect: float, draws: ArrayLike, test: TTest | None, g: float, *, resolution: float = 0.0
) -> dict[str, Any]:
    """The columns `COLUMNS` of one cell, and `why`: column -> why it has no value.

    `control` is the mean effect of the random sets and `above` = effect − control; its interval and p are over
    documents or pairs, the sets being given (`test`: the paired test of the cell against the mean of its sets), where
    these differ by more than `resolution`, the rounding of the values (`t_tests.spread`).
    `p_rank` is the effect's rank among the sets (`permutations.rank_among`). Units are those of the effect.
    """
    effects = np.asarray(draws, float)
    row: dict[str, Any] = {**dict.fromkeys(COLUMNS, NAN), "draws": len(effects)}
    numbers = [name for name in COLUMNS if name != "draws"]
    if not len(effects) or test is None:
        return {**row, "why": dict.fromkeys(numbers, IDENTITY if g == 1 else NO_DRAWS)}
    rank, half = rank_among(effect, effects), t_quantile(0.95, float(test.df)) * float(test.error)
    row |= {"control": float(effects.mean()), "above": float(test.difference)}
    row |= {"p_rank": rank.p, "p_rank_min": rank.p_min}
    why = {}
    if len(effects) > 1:
        row["control_sd"] = float(effects.std(ddof=1))
    else:
        why["control_sd"] = FEW
    if spread(test) > resolution:
        row |= {"above_low": row["above"] - half, "above_high": row["above"] + half, "p_above": float(test.p)}
    else:
        why |= dict.fromkeys(("above_low", "above_high", "p_above"), "the difference is the same in every cluster")
    return {**row, "why": why}
