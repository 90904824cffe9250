"""Prepares batches ahead of time on a thread.

Batches come in the order of the given indices, so the data of a run does not depend on the thread.
"""

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

Batch = tuple[Tensor, Tensor]


class Feed:
    """Yields gather(indices) for each `indices` of an iterator; up to `ahead` batches are gathered in advance.

    With `pin` the tensors lie in page-locked memory, from which a GPU copies without blocking the host. Errors of the
    thread are raised by `__next__`. `close` ends the thread; it may be called at any time and repeatedly.
    """

    def __init__(
        self, gather: Callable[[Any], Batch], order: Iterator[Any], *, ahead: int = 2, pin: bool = False
    ) -> None:
        self._gather, self._order, self._pin = gather, order, pin
        self._queue: queue.Queue[tuple[Batch | None, BaseException | None]] = queue.Queue(maxsize=ahead)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="batches", daemon=True)
        self._thread.start()

    def __iter__(self) -> "Feed":
        return self

    def __next__(self) -> Batch:
        if self._closed.is_set():
            raise StopIteration
        batch, error = self._queue.get()
        if batch is None:
            self.close()
            raise StopIteration if error is None else error
        return batch

    def close(self) -> None:
        """End the thread and drop the remaining batches."""
        self._closed.set()
        while self._thread.is_alive():
            try:
                self._queue.get(timeout=0.01)  # the thread may be waiting to put one
            except queue.Empty:
                continue
        self._thread.join()

    def _work(self) -> None:
        try:
            for indices in self._order:
                if self._closed.is_set():
                    return
                batch = self._gather(indices)
                self._queue.put((tuple(t.pin_memory() for t in batch) if self._pin else batch, None))  # type: ignore[arg-type]
            self._queue.put((None, None))
        except BaseException as error:  # raised again by __next__
            self._queue.put((None, error))
