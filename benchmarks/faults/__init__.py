"""Kill trainings at awkward moments, resume them, and compare the result with an unbroken run.

    python -m benchmarks.faults --kills 50
    python -m benchmarks.faults --kills 0 --every-replace       at every rename, before and after it

Each case runs in its own process: a tiny training (dropout, so that the random state matters; validation), a
fine-tuning, an extraction of features in several parts and a grid of two trainings. A process dies by SIGKILL after a
random time, or at the n-th `os.replace`, the call that gives every file its name. The command is then resumed, or
started again if no run exists yet, until it completes. Weights, metrics and feature rows must then equal those of the
uninterrupted run, bit for bit.
"""

from dataclasses import dataclass

from streamscope.cli.bounds import Seed, Whole
from streamscope.cli.parse import main_with_body


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m benchmarks.faults`."""

    kills: Whole = 50
    """Number of kills at random times."""
    every_replace: bool = False
    """Also kill at every rename, once before it and once after."""
    seed: Seed = 0
    """Seed of the random times."""


main = main_with_body(Options, __doc__, "streamscope.benchmarks.faults.measure")
