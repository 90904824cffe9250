"""The book-keeping of `models.sweep.batched_sweep`: which edits go together through the next layer."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any

import torch
import torch.utils._pytree

from streamscope.models.layers.residual import State


@dataclass(eq=False)
class CaptureChain:
    """What was captured on the way of a trajectory since the trail `before`, which it may share."""

    before: "CaptureChain | None" = None
    found: dict[str, Any] = field(default_factory=dict)

    def captured(self) -> dict[str, Any]:
        """Hook name -> what was kept of it, from the embedding on."""
        return {**(self.before.captured() if self.before is not None else {}), **self.found}


@dataclass(eq=False)
class Trajectory:
    """A trajectory that has come to a layer: its state [B, …] there (None: before the embedding) and its trail."""

    state: State
    chain: CaptureChain


@dataclass(eq=False)
class LayerTask:
    """The next layer of a trajectory, for those of its edits that do the same in it: `keys`, stage by stage."""

    path: Trajectory
    edits: list[int]
    keys: tuple[Hashable, ...]


def key(task: LayerTask, depth: int) -> tuple[int, tuple[Hashable, ...]]:
    """Equal for tasks that do the same in the first `depth` stages of their layer."""
    return id(task.path), task.keys[:depth]


def grouped(tasks: Sequence[LayerTask], depth: int) -> list[list[LayerTask]]:
    """Neighbours that do the same in the first `depth` stages of their layer."""
    return [list(group) for _, group in groupby(tasks, partial(key, depth=depth))]


def within(tasks: Sequence[LayerTask], groups: Sequence[Sequence[LayerTask]]) -> list[int]:
    """The group of each task."""
    place = {id(task): i for i, group in enumerate(groups) for task in group}
    return [place[id(task)] for task in tasks]


def side_by_side(keys: Sequence[tuple[Hashable, ...]]) -> list[tuple[Hashable, ...]]:
    """Keys in the order of their first, then of their second parts, and so on, parts in order of appearance."""
    seen: dict[Hashable, int] = {}
    for key in keys:
        for depth in range(1, len(key) + 1):
            seen.setdefault(key[:depth], len(seen))
    return sorted(keys, key=lambda key: [seen[key[:depth]] for depth in range(1, len(key) + 1)])


def joined(states: Sequence[State]) -> State:
    """States one after the other along the batch."""
    if len(states) == 1:
        return states[0]
    return torch.utils._pytree.tree_map(lambda *parts: torch.cat(parts), *states)
