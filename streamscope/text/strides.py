"""Splits documents into overlapping windows, so that every token except the first is scored exactly once.

    overlapping_windows(shards, n_ctx=128, stride=64)       shards whose documents are windows

With context T and stride s ≤ T, window w of a document holds the inputs ws … ws + T − 1 and their next tokens. The
first window scores all of its targets, each later one only its last s. So a token is predicted from everything before
it, or from at least T − s + 1 tokens. s = T gives separate chunks, as packing "document" in training. s = T/2 costs
twice as much and uses at least half of the context, except at the beginning of a document.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from streamscope.cli.errors import InputError
from streamscope.text.shards import TokenShards


class WindowedShards(TokenShards):
    """Shards whose documents are W windows; attributes are [W].

    `source` is the document of a window, `window` its number and `offset` its first position there, `unscored` its
    number of leading targets that are only context. `possible` is the number of windows before selection. `tokens`,
    `starts` and `meta` are those of the documents.
    """

    def __init__(self, shards: TokenShards, stride: int, windows: dict[str, np.ndarray], possible: int) -> None:
        self.__dict__.update(vars(shards))
        self.documents, self.stride, self.possible = shards, stride, possible
        self.source, self.window, self.offset = (windows[name] for name in ("source", "window", "offset"))
        self._ends, self._unscored = windows["end"], windows["unscored"]

    @property
    def begins(self) -> np.ndarray:
        return self.starts[self.source] + self.offset

    @property
    def ends(self) -> np.ndarray:
        return self.starts[self.source] + self._ends

    @property
    def unscored(self) -> np.ndarray:
        return self._unscored

    def only(self, documents: Sequence[int]) -> "WindowedShards":
        """Some of the windows."""
        return WindowedShards(self.documents, self.stride, _some(self._table(), documents), len(documents))

    def _table(self) -> dict[str, np.ndarray]:
        return {
            "source": self.source, "window": self.window, "offset": self.offset, "end": self._ends,
            "unscored": self._unscored,
        }  # fmt: skip


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
    n = len(source)
    if most is not None and most < n:
        table = _some(table, np.linspace(0, n - 1, most).round().astype(np.int64))
    return WindowedShards(shards, stride, table, n)


def _some(table: dict[str, Any], rows: Sequence[int] | np.ndarray) -> dict[str, np.ndarray]:
    return {name: values[np.asarray(rows, dtype=np.int64)] for name, values in table.items()}
