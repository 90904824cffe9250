"""Prepares batches ahead of time on a thread.

Batches come in the order of the given indices, so the data of a run does not depend on the thread.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from torch import Tensor

Batch = tuple[Tensor, Tensor]


class Feed:
    """Yields gather(indices) for each `indices` of an iterator; up to `ahead` batches are gathered in advance.

    With `pin` the tensors lie in page-locked memory, from which a GPU copies without blocking the host. Errors of the
    thread are raised by `__next__`. `close` ends the thread; it may be called at any time and repeatedly.
    """

    def __init__(
        self, gather: Callable[[Any], Batch], order: Iterator[Any], *, ahead: int = 3, pin: bool = False
    ) -> None:
        self._gather, self._order, self._ahead, self._pin = gather, order, ahead, pin
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._waiting: deque[Future[Batch]] = deque()
        self._fill()

    def __iter__(self) -> "Feed":
        return self

    def __next__(self) -> Batch:
        if not self._waiting:
            self.close()
            raise StopIteration
        try:
            batch = self._waiting.popleft().result()
            self._fill()
        except BaseException:
            self.close()
            raise
        return batch

    def close(self) -> None:
        """End the thread and drop the remaining batches."""
        self._waiting.clear()
        self._pool.shutdown(cancel_futures=True)

    def _fill(self) -> None:
        while len(self._waiting) < self._ahead and (indices := next(self._order, None)) is not None:
            self._waiting.append(self._pool.submit(self._work, indices))

    def _work(self, indices: Any) -> Batch:
        tokens, targets = self._gather(indices)
        return (tokens.pin_memory(), targets.pin_memory()) if self._pin else (tokens, targets)
