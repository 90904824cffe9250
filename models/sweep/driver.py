"""One number, or array, for every member of a sweep: what is measured on the final streams of its trajectory."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from streamscope.models.hooks import Edit, Edits, capture, edit
from streamscope.models.sweep.batched_sweep import Arrived, Trajectories
from streamscope.models.sweep.stages import Plan

Measured = Callable[[Tensor, dict[str, Any]], np.ndarray]
"""(final normed streams [B, P, D], what was captured) -> an array of the same shape for all."""


def _whole_passes(
    model: Any,
    tokens: Int[Tensor, "B T"],
    sweep: Sequence[Edits | Plan],
    *,
    names: Sequence[str] = (),
    keep: Callable[[str, Tensor], Any] = lambda name, x: x.clone(),
    budget: int | None = None,
) -> Iterator[Arrived]:
    """`Trajectories` of a model that does not come in segments (`interop.huggingface.bridged`): a pass per member."""
    for at, one in enumerate(sweep):
        functions = (one if isinstance(one, Plan) else Plan(model, one)).functions
        edits = {name: partial(_in_order, some) for name, some in functions.items()}
        with edit(model, edits), capture(model, [*names, model.final]) as found:
            model(tokens)
        yield Arrived(
            [[at]], model.streams(found[model.final])[None], [{name: keep(name, found[name]) for name in names}]
        )


def _in_order(functions: Sequence[Edit], x: Tensor, hook: Any) -> Tensor:
    for fn in functions:
        x = fn(x, hook)
    return x


def measure_rows(
    model: Any,
    tokens: Int[Tensor, "B T"],
    sweep: Sequence[Edits | Plan],
    measure: Measured,
    *,
    done: Callable[[int], None] = lambda n: None,
    **options: Any,
) -> Float[np.ndarray, "members ..."]:
    """What `measure` says of every member of `sweep`, asked once for each trajectory; the first member's comes first.

    So a measure may keep what it saw first, the unedited model, and hold the others against it. `done` is told how
    many members are finished; `options` are those of `Trajectories`, which also says what raises.
    """
    values: np.ndarray | None = None
    passes = Trajectories if hasattr(model, "segment") else _whole_passes
    for arrived in passes(model, tokens, sweep, **options):
        assert arrived.h is not None
        for members, h, found in zip(arrived.edits, arrived.h, arrived.found, strict=True):
            value = np.asarray(measure(h, found))
            if values is None:
                values = np.zeros((len(sweep), *value.shape))
            values[members] = value
            done(len(members))
    assert values is not None
    return values
