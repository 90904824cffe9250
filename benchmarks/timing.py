"""Times computations in turn in one process, so that a drifting machine cannot favour any of them."""

import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from multiprocessing import get_context
from resource import RUSAGE_SELF, getrusage
from statistics import median
from typing import Any

import torch

CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}  # of --clock


class Times(dict[str, list[float]]):
    """Seconds of every computation in every round."""

    def median(self, name: str) -> float:
        return median(self[name])

    def ratio(self, first: str, second: str) -> str:
        """The median, smallest and largest of first/second, round by round."""
        ratios = [a / b for a, b in zip(self[first], self[second], strict=True)]
        return f"{median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"


def interleaved(
    steps: Mapping[str, Callable[[], object]], *, rounds: int = 3, warmup: int = 0, clock: str = "wall"
) -> Times:
    """Seconds of every step in every round, after `warmup` calls; every other round runs backwards."""
    for step in [*steps.values()] * warmup:
        step()
    timer, seconds = CLOCKS[clock], Times((name, []) for name in steps)
    for i in range(rounds):
        for name in list(steps) if i % 2 == 0 else reversed(list(steps)):
            start = timer()
            steps[name]()
            seconds[name].append(timer() - start)
    return seconds


def in_a_process(work: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """What `work` returns in a new process, and the largest memory of that process in MiB."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_with_memory, work, *arguments).result()


SIDES = ("ours", "peer")
SIDES_TITLES = ("ours", "peer", "peer / ours", "ours, MiB", "peer, MiB")  # titles of the cells of `compare_sides`


def compare_sides(
    measured: Callable[..., tuple[float, Any]], rounds: int, *arguments: Any
) -> tuple[list[str], dict[str, Any]]:
    """The cells of a row that compares two sides, and the last answer of each. `measured(side, *arguments)` returns
    seconds and an answer, in a process of its own, so that memory is the peak of one side; sides take turns."""
    times, memory, answers = Times({side: [] for side in SIDES}), dict.fromkeys(SIDES, 0.0), dict[str, Any]()
    for i in range(rounds):
        for side in SIDES if i % 2 == 0 else SIDES[::-1]:
            (seconds, answers[side]), peak = in_a_process(measured, side, *arguments)
            times[side].append(seconds)
            memory[side] = max(memory[side], peak)
    cells = [f"{times.median(side):.2f} s" for side in SIDES] + [times.ratio("peer", "ours")]
    return [*cells, *(f"{memory[side]:,.0f}" for side in SIDES)], answers


def _with_memory(work: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    with redirect_stdout(sys.stderr):  # the table is the parent's
        return work(*arguments), getrusage(RUSAGE_SELF).ru_maxrss / 1024


def device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else device


def machine(device: str = "cpu") -> str:
    return f"torch {torch.__version__}, {device_name(device)}, {torch.get_num_threads()} threads"
