"""Splits documents into overlapping windows, so that every token except the first is scored exactly once.

    overlapping_windows(shards, n_ctx=128, stride=64)       shards whose documents are windows

With context T and stride s ≤ T, window w of a document holds the inputs ws … ws + T − 1 and their next tokens. The
first window scores all of its targets, each later one only its last s. So a token is predicted from everything before
it, or from at least T − s + 1 tokens. s = T gives separate chunks, as packing "document" in training. s = T/2 costs
twice as much and uses at least half of the context, except at the beginning of a document.
"""

from collections.abc import Sequence

import numpy as np

from streamscope.cli.errors import InputError
from streamscope.text.shards import TokenShards


class WindowedShards(TokenShards):
    """Shards whose documents are W windows; attributes are [W].

    `possible` is the number of windows before selection. `tokens`, `starts` and `meta` are those of the documents.
    """

    def __init__(self, shards: TokenShards, stride: int, windows: dict[str, np.ndarray], possible: int) -> None:
        self.__dict__.update(vars(shards) | windows)
        self.documents, self.stride, self.possible, self.windows = shards, stride, possible, windows
        first = self.starts[self.source]
        self.begins, self.ends = first + self.offset, first + windows["end"]

    def only(self, documents: Sequence[int] | np.ndarray) -> "WindowedShards":
        rows = np.asarray(documents, dtype=np.int64)
        windows = {name: values[rows] for name, values in self.windows.items()}
        return WindowedShards(self.documents, self.stride, windows, len(rows))


def overlapping_windows(
    shards: TokenShards, n_ctx: int, stride: int, max_documents: int | None = None, most: int | None = None
) -> WindowedShards:
    """Split the first `max_documents` documents into windows of `n_ctx` inputs, `stride` apart.

    A document that fits the context is one window. If there are more than `most` windows, `most` evenly spread ones are
    selected. Raises `InputError` for a stride outside 1 … n_ctx.
    """
    if not 1 <= stride <= n_ctx:
        raise InputError(f"stride {stride}: give 1 to {n_ctx}, the context; a larger one would skip tokens")
    targets = shards.lengths[:max_documents] - 1
    count = 1 + np.maximum(-((n_ctx - targets) // stride), 0)  # 1 + ⌈(targets − n_ctx) / stride⌉
    source = np.repeat(np.arange(len(targets)), count)
    window = np.arange(len(source)) - np.repeat(np.cumsum(count) - count, count)
    offset = window * stride
    table = {
        "source": source, "window": window, "offset": offset,
        "end": np.minimum(offset + n_ctx, targets[source]) + 1,
        "unscored": np.where(window > 0, n_ctx - stride, 0),
    }  # fmt: skip
    every = WindowedShards(shards, stride, table, len(source))
    if most is None or most >= len(source):
        return every
    selection = every.only(np.linspace(0, len(source) - 1, most).round().astype(np.int64))
    selection.possible = len(source)
    return selection
