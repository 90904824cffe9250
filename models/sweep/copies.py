"""Several copies of a batch in one forward pass, each under its own edits."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.models.hooks import apply_edit, is_finite
from streamscope.models.sweep.stages import Plan

Keep = Callable[[str, Tensor], Any]
"""(hook name, activation of one copy of the batch) -> what to remember of it."""


class Copy(NamedTuple):
    """One copy of the batch: the members of the sweep that it stands for, and where its captures go."""

    edits: list[int]
    found: dict[str, Any]


class Copies:
    """The hooks of a pass over `rows`: a tensor of a hook is [len(rows) · batch, …], copy after copy.

    What the members of a copy do at a hook that fires while `rows` are set is the same for all of them.
    """

    def __init__(self, plans: Sequence[Plan], batch: int, names: Sequence[str], keep: Keep) -> None:
        self.plans, self.batch, self.names, self.keep = plans, batch, set(names), keep
        self.rows: list[Copy] = []
        self.fired: set[str] = set()

    def hooks(self, points: Iterable[str], edits: Iterable[int]) -> list[tuple[str, Callable[..., Tensor | None]]]:
        """What to attach to the points for these members of the sweep: their edits, then the captures."""
        points, edits = list(points), list(edits)
        edited = {name for e in edits for name in self.plans[e].functions}
        hooks: list[tuple[str, Callable[..., Tensor | None]]] = []
        hooks += [(name, partial(self._edit, name)) for name in points if name in edited]
        return hooks + [(name, partial(self._capture, name)) for name in points if name in self.names]

    def _edit(self, name: str, x: Tensor, hook: Any) -> Tensor | None:
        parts, some = [], False
        for row, part in zip(self.rows, self._parts(name, x), strict=True):
            for fn in self.plans[row.edits[0]].functions.get(name, ()):
                part, some = apply_edit(name, fn, part, hook), True
            parts.append(part)
        if not some:
            return None
        self.fired.add(name)
        return torch.cat(parts)

    def _capture(self, name: str, x: Tensor, hook: Any) -> None:
        for row, part in zip(self.rows, self._parts(name, x), strict=True):
            edited = self.plans[row.edits[0]].functions
            if not is_finite(part, name):
                under = f"under the edit of {', '.join(edited)}" if edited else "in the unedited model"
                raise InputError(f"{name} is not finite {under}")
            row.found[name] = self.keep(name, part)

    def _parts(self, name: str, x: Tensor) -> Sequence[Tensor]:
        if x.shape[0] != self.batch * len(self.rows):
            raise InputError(f"{name} fired with {x.shape[0]} rows where {self.batch} · {len(self.rows)} run")
        return x.split(self.batch)
