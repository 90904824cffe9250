"""Times computations in turn in one process, so that a drifting machine cannot favour either."""

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import torch

CLOCKS: dict[str, Callable[[], float]] = {
    "wall": time.perf_counter, "cpu": time.process_time, "process": time.process_time,
}  # fmt: skip
"""The choices of --clock: wall time, or the processor's seconds, for a machine that others keep busy."""


class Paired(NamedTuple):
    """Median seconds of two computations, and the median, smallest and largest ratio first/second of the rounds."""

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


def ratios(first: Sequence[float], second: Sequence[float]) -> tuple[float, float, float]:
    """The median, smallest and largest of the ratios first/second, round by round."""
    each = [a / b for a, b in zip(first, second, strict=True)]
    return median(each), min(each), max(each)


def paired(
    first: Callable[[], object],
    second: Callable[[], object],
    *,
    rounds: int = 15,
    warmup: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> Paired:
    """Time both `rounds` times, alternating which goes first, after `warmup` calls of each."""
    for _ in range(warmup):
        first()
        second()
    a, b = interleaved({"first": first, "second": second}, rounds=rounds, clock=clock).values()
    return Paired(median(a), median(b), *ratios(a, b))


def interleaved(
    steps: Mapping[str, Callable[[], object]], *, rounds: int = 3, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of every step in every round; all steps run in every round, every other round backwards."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for i in range(rounds):
        for name in list(steps) if i % 2 == 0 else reversed(list(steps)):
            start = clock()
            steps[name]()
            seconds[name].append(clock() - start)
    return seconds


def optimizer_step(
    model: Any, optimizer: Any, loss: Callable[[], Any], device: str, *, bf16: bool = True
) -> Callable[[], None]:
    """A whole training step: forward (in bf16 autocast), backward, clipping to 1, the optimiser, zeroed gradients."""

    def step() -> None:
        with torch.autocast(device, dtype=torch.bfloat16, enabled=bf16):
            value = loss()
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        synchronize(device)

    return step


def synchronize(device: str) -> None:
    """Wait until a GPU has finished."""
    if device == "cuda":
        torch.cuda.synchronize()


def device_name(device: str) -> str:
    """The GPU's own name, or "cpu"."""
    return torch.cuda.get_device_name() if device == "cuda" else device
