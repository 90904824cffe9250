"""Where in the forward pass a hook acts: the stages of a model, in order, derived from THE table.

    EMBED, then for every layer L   4 L + HEADS    up to z, what the output projection consumes
                                    4 L + WRITE    z, the projection, the stream after attention
                                    4 L + FFN      the FFN
                                    4 L + POST     the stream that leaves the layer
    then 4 n_layers                 the final norm

An edit changes nothing before its stage, so many edits can share what comes before (`batched_sweep`). A hook
that the table does not list acts from the start of its layer, or from the embedding.
"""

from collections.abc import Hashable
from functools import cache, partial
from typing import Any

from streamscope.models.hooks import HOOKS, Edit, Edits, resolve, row_of

EMBED, HEADS, WRITE, FFN, POST = -1, 0, 1, 2, 3
STAGES = 4
"""Stages of a layer."""

_ROWS = [row.name for row in HOOKS]
_AFTER = max(i for i, name in enumerate(_ROWS) if name.startswith("blocks.L.")) + 1
_STARTS = {
    WRITE: _ROWS.index("blocks.L.attn.hook_z"),
    FFN: _ROWS.index("blocks.L.hook_resid_mid") + 1,
    POST: _ROWS.index("blocks.L.hook_mlp_out") + 1,
}


def layer_of(name: str) -> int | None:
    """L of a hook of layer L; None outside the blocks."""
    parts = name.split(".")
    return int(parts[1]) if parts[0] == "blocks" and len(parts) > 2 and parts[1].isdigit() else None


@cache
def stage_of(name: str, n_layers: int) -> int:
    """The first stage that an edit of the hook changes."""
    layer, row = layer_of(name), row_of(name)
    place = 0 if row is None else _ROWS.index(row.name)
    if layer is None:
        return n_layers * STAGES if place >= _AFTER else EMBED
    return layer * STAGES + max((stage for stage, start in _STARTS.items() if place >= start), default=HEADS)


class Plan:
    """The edits of one member of a sweep, hook by hook and stage by stage. Raises `InputError` as `capture.edit`."""

    def __init__(self, model: Any, edits: Edits) -> None:
        self.functions: dict[str, list[Edit]] = {}
        """By full hook name, in the order in which they apply."""
        self.stages: dict[str, int] = {}
        """Hook -> stage."""
        self.keys: dict[int, tuple[Hashable, ...]] = {}
        """Stage -> what happens there: equal keys do the same."""
        for name, fn in resolve(model, edits):
            stage = stage_of(name, model.config.n_layers)
            self.functions.setdefault(name, []).append(fn)
            self.stages[name] = stage
            self.keys[stage] = (*self.keys.get(stage, ()), (name, identity(fn)))
        self.anywhere = any(row_of(name) is None for name in self.functions)
        """Whether some hook is not in the table and may fire at any place from its stage on."""


def identity(value: Any) -> Hashable:
    """Equal for functions that do the same by construction: partial applications of equal values, or one object."""
    if isinstance(value, partial):
        return partial, identity(value.func), identity(value.args), identity(sorted(value.keywords.items()))
    if isinstance(value, list | tuple):
        return type(value), tuple(identity(v) for v in value)
    if isinstance(value, bool | int | float | str | None):
        return type(value), value
    return "object", id(value)
