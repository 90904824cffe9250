"""`models.hooks.run` under many edits: the captures of each, from shared passes (`models.sweep.batched_sweep`).

for captures in run_sweep(model, query, [{}, *sweep]):
    table = probe.read(captures, query)
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.models.hooks import Captures, Edits, Query, batches, crop, match, pad, run
from streamscope.models.sweep.batched_sweep import Trajectories
from streamscope.models.sweep.stages import Plan

HELD = 2**19
"""Tokens · hooks · edits whose captures are held at a time."""


def run_sweep(
    model: Any, query: Query, sweep: Sequence[Edits], *, batch_tokens: int = 8192, budget: int | None = None
) -> Iterator[Captures]:
    """`run(model, query, edits)` for every member of `sweep`, in order; {} is the unedited model.

    Values are those of `run` up to rounding, edits see the same batches, and what they do not change is not computed
    again: members share tensors, so change none. A part of the sweep is computed at a time, by `HELD`; `budget` is
    that of `Trajectories`. Models other than ours run once per member. Raises `InputError` as `run` does; an edit
    behind all that the query asks for is not run.
    """
    if not hasattr(model, "segment"):
        yield from (run(model, query, edits) for edits in sweep)
        return
    names = match(model, query.hooks) if query.hooks else []
    plans = [Plan(model, edits) for edits in sweep]
    size = max(8, HELD // (sum(map(len, query.tokens)) * max(1, len(names))))
    for first in range(0, len(plans), size):
        yield from _together(model, query, names, plans[first : first + size], batch_tokens, budget)


def _together(
    model: Any, query: Query, names: list[str], plans: list[Plan], batch_tokens: int, budget: int | None
) -> Iterator[Captures]:
    """The captures of `plans`, all computed before the first is returned."""
    n = len(query.tokens)
    kept: list[dict[str, list[Any]]] = [{name: [None] * n for name in names} for _ in plans]
    streams: list[list[Any]] = [[None] * n for _ in plans]
    for rows in batches([len(t) for t in query.tokens], batch_tokens):
        tokens = pad([list(query.tokens[i]) for i in rows]).to(model.cfg.device)
        at = None if query.logits is None else pad([list(query.logits[i]) or [0] for i in rows])
        keep = partial(_cropped, query, rows)
        options: dict[str, Any] = {"names": names, "keep": keep, "streams": at is not None, "budget": budget}
        for arrived in Trajectories(model, tokens, plans, at=at, **options):
            for r, edits in enumerate(arrived.edits):
                silent = [name for name in names if name not in arrived.found[r]]
                if silent:
                    raise InputError(f"hooks that did not fire: {', '.join(silent[:5])}")
                for b, i in enumerate(rows):
                    for e in edits:
                        for name in names:
                            kept[e][name][i] = arrived.found[r][name][b]
                        if arrived.h is not None and query.logits is not None:
                            streams[e][i] = arrived.h[r, b, : len(query.logits[i])].clone()
    for hooks, h in zip(kept, streams, strict=True):
        yield Captures(hooks, None if query.logits is None else _logits(model, h))


def _cropped(query: Query, rows: Sequence[int], name: str, x: Tensor) -> list[Tensor]:
    """Each prompt's part of an activation, without padding, at the query's positions."""
    wanted = query.positions
    return [crop(name, x[b], len(query.tokens[i]), wanted[i] if wanted else None) for b, i in enumerate(rows)]


@torch.no_grad()
def _logits(model: Any, h: list[Tensor]) -> list[Tensor]:
    """Logits [P, V] of every prompt's final streams [P, D]."""
    return list(F.linear(torch.cat(h), model.head).split([len(one) for one in h]))
