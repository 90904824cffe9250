"""Computations timed in turn, in one process, so that a drifting machine cannot favour either."""

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import NamedTuple


class Paired(NamedTuple):
    """Seconds per call (medians) and the median, smallest and largest of the ratios first/second, pair by pair."""

    first: float
    second: float
    ratio: float
    low: float
    high: float

    def line(self, name: str, peer: str) -> str:
        """One line for a report."""
        return (
            f"{name}: {1e3 * self.first:.1f} ms; {peer}: {1e3 * self.second:.1f} ms; "
            f"ratio {self.ratio:.3f} (pairs {self.low:.3f} to {self.high:.3f})"
        )


def paired(
    first: Callable[[], object],
    second: Callable[[], object],
    *,
    rounds: int = 15,
    warmup: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> Paired:
    """Time both `rounds` times, alternating which goes first, after `warmup` calls of each.

    `clock` as in `interleaved`.
    """
    for _ in range(warmup):
        first()
        second()
    a: list[float] = []
    b: list[float] = []
    for i in range(rounds):
        for fn, times in ((first, a), (second, b)) if i % 2 == 0 else ((second, b), (first, a)):
            start = clock()
            fn()
            times.append(clock() - start)
    ratios = sorted(x / y for x, y in zip(a, b, strict=True))
    return Paired(median(a), median(b), median(ratios), ratios[0], ratios[-1])


def interleaved(
    steps: Mapping[str, Callable[[], object]], *, rounds: int = 3, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of every step in every round; all steps run in every round, every other round backwards.

    `clock` may be `time.process_time`, the processor's seconds, when others keep the machine busy.
    """
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for i in range(rounds):
        for name in list(steps) if i % 2 == 0 else reversed(list(steps)):
            start = clock()
            steps[name]()
            seconds[name].append(clock() - start)
    return seconds
