"""Random controls of a sweep: the same edit on other sets of as many heads (LFA App. D).

Removing any head changes something, so every group of k heads is compared with random other sets of k heads
(`random_sets`). For one head among 36 these are all 35 others; in a sweep over all heads they are measured anyway.

Gating the outputs z of heads in layer ℓ changes attention only in layers after ℓ. SPS read up to layer ℓ, and SPS over
all layers if ℓ is the last, cannot change. Such cells are undefined by construction, not 0.
"""

import random
from collections import defaultdict, namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, combinations, product
from math import comb
from typing import Any

import numpy as np
import pandas as pd

from streamscope.cli.errors import InputError
from streamscope.instruments.observations import Contrast, Estimates, Observations, Reasons, bootstrap
from streamscope.instruments.stats.estimators import cohens_d, d_columns, d_of_totals, rank_among
from streamscope.instruments.table import counts, described, number
from streamscope.models.head_spec import Head
from streamscope.models.hooks import Edits

NO_DRAWS, IDENTITY = "no random sets to compare with", "scale 1 changes nothing"
FEW = "one random set: no spread"
SHARING = "independent cases, or the fewest words of a kind if cases share words"
CASES = counts("cases", SHARING)
MOST_SETS = 10_000
"""Largest number of sets in one sweep; p is corrected over all of them."""


def random_sets(
    heads: Iterable[Head], selected: Sequence[Head], k: int, draws: int, seed: int
) -> list[tuple[Head, ...]]:
    """Random controls: different sets of k heads, drawn uniformly from all sets except `selected`.

    A set may share heads with the selected ones, as two sets drawn at random do. Then the selected set is one more draw
    if the selection says nothing about the effect, and its rank among the sets is exact (`estimators.rank_among`).
    Sets that avoid the selected heads share a smaller pool with each other and not with it: of 36 heads the rank
    among 39 of those rejects 8 % of true nulls at 5 % for k = 3, 10 % for k = 5, 21 % for k = 10.

    Returns all C(n, k) − 1 sets if these are at most `draws`; the same seed gives the same sets. Raises `InputError` if
    there is no other set.
    """
    every, selection = sorted(set(heads)), tuple(sorted(selected))
    possible = comb(len(every), k) - (len(selection) == k and set(selection) <= set(every))
    if possible < 1:
        raise InputError(f"cannot draw sets of {k} heads out of {len(every)}, other than those selected")
    if possible <= draws:
        return sorted({*combinations(every, k)} - {selection})
    generator = random.Random(seed)
    drawn: dict[tuple[Head, ...], None] = {}
    while len(drawn) < draws:
        candidate = tuple(sorted(generator.sample(every, k)))
        if candidate != selection:
            drawn[candidate] = None
    return list(drawn)


def head_sets(heads: Sequence[Head], size: int, sets: int | None, seed: int) -> list[tuple[Head, ...]]:
    """Every set of `size` of the heads, or `sets` random ones; the same seed gives the same sets. Raises `InputError`
    for a size above the number of heads, and for more than `MOST_SETS`."""
    every = sorted(set(heads))
    if size > len(every):
        raise InputError(f"--size {size}: give 1 to {len(every)}, the number of --heads, or more --heads")
    possible = comb(len(every), size)
    if min(possible, sets or possible) > MOST_SETS:
        remedy = f"give --sets N for N random ones, at most {MOST_SETS:,}"
        raise InputError(f"{possible:,} sets of {size} out of {len(every)} heads; {remedy}")
    if sets is None or sets >= possible:
        return list(combinations(every, size))
    return random_sets(every, (), size, sets, seed)


Heads = tuple[Head, ...]
Sweep = namedtuple("Sweep", ("edits", "cells", "index"))
"""Groups of heads at scales g. cells: heads, scale, and the random sets that are their controls, none at scale 1.
index: (heads, scale) of every edit, each once, with its place in `edits`."""


def plan(
    groups: Sequence[Sequence[Head]], scales: Sequence[float], heads: Sequence[Head],
    make: Callable[[Sequence[Head], float], Edits], *, draws: int = 39, seed: int = 0,
    also: Iterable[Sequence[Head]] = (),
) -> Sweep:  # fmt: skip
    """The edits of a sweep over `groups` × `scales`, with `draws` random other sets of `heads` as controls per group.
    All other sets if these are at most `draws`; none if the group is all heads. `also` are edited too, but are no
    cells."""
    cells, edited, controls = [], list[tuple[Heads, float]](), list[tuple[Heads, float]]()
    for group, g in product(map(tuple, groups), map(float, scales)):
        possible = draws > 0 and g != 1 and len(group) < len(heads)
        sets = random_sets(heads, group, len(group), draws, seed) if possible else []
        cells.append((group, g, sets))
        edited.append((group, g))
        controls += product(sets, [g])
    sweep = Sweep([], cells, {})
    for group, g in chain(edited, controls, product(map(tuple, also), map(float, scales))):
        if (group, g) not in sweep.index:
            sweep.index[group, g] = len(sweep.edits)
            sweep.edits.append(make(group, g) if g != 1 else {})  # the unedited model at scale 1, bit for bit
    return sweep


def against_random(
    edited: int, base: int, drawn: Sequence[int], labels: Mapping[str, Any], missing: str, family: str | None = None
) -> list[Contrast]:
    """`control`, the mean change of the cells of random sets, and `above`, the change of the edited cell beyond it."""
    share = 1 / max(1, len(drawn))
    of_drawn, beyond = {**dict.fromkeys(drawn, share), base: -1.0}, {edited: 1.0, **dict.fromkeys(drawn, -share)}
    return [
        Contrast(quantity="control", weights=of_drawn, labels=labels, null=None, missing=missing),
        Contrast(quantity="above", weights=beyond, labels=labels, missing=missing, family=family),
    ]


def beside_draws(
    block: Observations, estimates: Estimates, keys: Sequence[str], *, effect_sizes: bool = True, resamples: int = 2000
) -> tuple[pd.DataFrame, Reasons]:
    """The rows of estimates with a `delta` and a `control` (`against_random`), and why cells have no value: control_sd,
    draws, p_rank and p_rank_min of the delta among those of the random sets, and Cohen's d."""
    (frame, missing), values, more = estimates.wide(keys), block.values, []
    by_quantity = defaultdict[str, list[Contrast]](list)
    for contrast in estimates.contrasts:
        by_quantity[contrast.quantity].append(contrast)
    for i, (delta, control) in enumerate(zip(by_quantity["delta"], by_quantity["control"], strict=True)):
        edited, base = delta.weights
        drawn = values[[] if control.missing else [*control.weights][:-1]] - values[base]  # the last one is the base
        p, p_min = rank_among(float(frame["delta"][i]), drawn) if len(drawn) else (np.nan, np.nan)
        sd = float(drawn.std(ddof=1)) if len(drawn) > 1 else np.nan
        row = {"control_sd": sd, "draws": len(drawn), "p_rank": p, "p_rank_min": p_min}
        for column, x in row.items():
            if np.isnan(x):
                missing[i, column] = FEW if len(drawn) else control.missing
        more.append(row | (sizes_of_effect(block, [edited, base], i, missing, resamples) if effect_sizes else {}))
    return frame.assign(**pd.DataFrame(more)), missing


RANK_COLUMNS = (
    number("control_sd", "sd over random sets", "unit of the effect, between random sets",
           "standard deviation of the effect over the random sets", ".4f", False),
    number("draws", "random sets", "random other sets of as many heads",
           "number of random sets that the row is compared with", "d", False),
    number("p_rank", "p among random heads", "probability",
           "two-sided p from the rank of the effect among the random sets", "p"),
    number("p_rank_min", "smallest p among random heads", "probability",
           "smallest p_rank possible with this number of sets", "p", False),
)  # fmt: skip


REASON = "undefined by construction: heads do not change the attention of their own or earlier layers"


def inert_reason(measure: str, readout: str, heads: Sequence[Head], n_layers: int) -> str:
    """The reason if gating the heads cannot change the measure, else ""."""
    last_read = n_layers - 1 if readout == "all" else int(readout[1:])
    return REASON if measure == "sps" and last_read <= min(head.layer for head in heads) else ""


def sizes_of_effect(
    block: Observations, cells: Sequence[int], row: int, missing: Reasons, resamples: int = 2000
) -> dict[str, float]:
    """d, d_low, d_high and d_z of the first of two cells (edited) against the second, with clusters resampled. Reasons
    for missing values go into `missing` of the row; without a delta all are missing."""
    inside = block.inside[list(cells)].all(0)
    x1, x0 = block.total[list(cells)][:, inside] / block.sizes[list(cells)][:, inside]
    reason = missing.get((row, "delta"), "")
    if not reason and np.abs(x1 - x0).max() <= block.measure.resolution:
        reason = "no case changed under the edit"
    out = dict.fromkeys(("d", "d_low", "d_high", "d_z"), np.nan)
    reasons = dict.fromkeys(out, reason or "values without spread")
    if not reason:
        out |= {"d": cohens_d(x1, x0, "pooled"), "d_z": cohens_d(x1, x0, "d_z")}
        if np.isfinite(out["d"]):
            interval, lost = bootstrap(block, cells, d_of_totals, d_columns, resamples=resamples)
            for end in ("low", "high"):
                out[f"d_{end}"], reasons[f"d_{end}"] = interval[end], lost.get(end, "")
    missing |= {(row, column): reasons[column] for column, value in out.items() if np.isnan(value)}
    return out


EFFECT_SIZES = (
    *described("d", "Cohen's d", "pooled standard deviations", "edited minus unedited model over their pooled sd",
               format="+.3f", source="LFA Eq. 9", shown=False),
    number("d_z", "paired d", "standard deviations of the differences",
           "mean difference over the standard deviation of the differences (d_z)", "+.3f", False),
)  # fmt: skip
