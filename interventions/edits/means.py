"""Means of hooks over documents: the reference of mean ablation."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from streamscope.models.head_spec import Head
from streamscope.models.hooks import Query, run

HOOK = "blocks.*.attn.hook_z"


def mean_outputs(model: Any, rows: Iterable[Sequence[int]], *, chunk: int = 32) -> dict[Head, Tensor]:
    """Mean z [K] of every head; see `hook_means`."""
    means = hook_means(model, (HOOK,), rows, chunk=chunk)
    return {Head(int(name.split(".")[1]), h): z for name, mean in means.items() for h, z in enumerate(mean)}


def hook_means(
    model: Any, names: Sequence[str], rows: Iterable[Sequence[int]], *,
    part: Callable[[Tensor], Tensor] = lambda x: x, chunk: int = 32,
) -> dict[str, Tensor]:  # fmt: skip
    """Mean of each hook [...], or of a `part` of it [T, ...], over all positions (BOS included) of rows, in float32.
    Sums run in float64 over `chunk` rows at a time, so memory does not grow."""
    sums, n = dict[str, Tensor](), 0
    for batch in chunks((row for row in rows if len(row)), chunk):  # a document without a target has none
        n += sum(map(len, batch))
        for name, values in run(model, Query(tokens=batch, hooks=tuple(names))).hooks.items():
            total = torch.stack([part(x).double().sum(0) for x in values]).sum(0)
            sums[name] = sums[name] + total if name in sums else total
    return {name: (total / n).float() for name, total in sums.items()}


def document_rows(batches: Iterable[tuple[Any, Tensor, Tensor]]) -> Iterator[list[int]]:
    """The inputs of `text.shards.document_batches` one by one without padding; windows of a longer document come whole,
    with the repeated context."""
    for _, tokens, targets in batches:
        for row, target in zip(tokens, targets, strict=True):
            real = (target != -100).nonzero()
            yield row[: int(real[-1]) + 1 if len(real) else 0].tolist()


def chunks(rows: Iterable[Sequence[int]], size: int) -> Iterator[list[Sequence[int]]]:
    """Lists of `size` rows, the last one shorter."""
    iterator = iter(rows)
    while batch := list(islice(iterator, size)):
        yield batch
