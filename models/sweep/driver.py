"""One number, or array, for every member of a sweep: what is measured on the final streams of its trajectory."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from streamscope.models.hooks import Edits
from streamscope.models.sweep.batched_sweep import Trajectories
from streamscope.models.sweep.stages import Plan
from streamscope.models.transformer import StreamTransformer

Measured = Callable[[Tensor, dict[str, Any]], np.ndarray]
"""(final normed streams [B, P, D], what was captured) -> an array of the same shape for all."""


def measure_rows(
    model: StreamTransformer,
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
    for arrived in Trajectories(model, tokens, sweep, **options):
        assert arrived.h is not None
        for members, h, found in zip(arrived.edits, arrived.h, arrived.found, strict=True):
            value = np.asarray(measure(h, found))
            if values is None:
                values = np.zeros((len(sweep), *value.shape))
            values[members] = value
            done(len(members))
    assert values is not None
    return values
