"""Options of `python -m benchmarks.faults`."""

from dataclasses import dataclass

from streamscope.cli.bounds import Seed, Whole


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m benchmarks.faults`."""

    kills: Whole = 50
    """Number of kills at random times."""
    every_replace: bool = False
    """Also kill at every rename, once before it and once after."""
    seed: Seed = 0
    """Seed of the random times."""
