"""Kill trainings at awkward moments, resume them, and compare the result with an unbroken run.

    python -m benchmarks.faults --kills 50
    python -m benchmarks.faults --kills 0 --every-replace       at every rename, before and after it

A tiny training (dropout, so that the random state matters; validation; the best weights kept), a fine-tuning, an
extraction of features in several parts and a grid of two trainings run in processes of their own. They die by SIGKILL
after a random time, or at the n-th `os.replace`, with which every file gets its name. Whatever is left is resumed, or
started again where there is no run yet, until it completes. Then weights, metrics and rows of features must equal those
of the uninterrupted one, bit for bit.
"""

from collections.abc import Sequence

from streamscope.benchmarks.faults.options import Options
from streamscope.cli.parse import parse


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, kill, compare, print."""
    options = parse(Options, argv, __doc__)

    from streamscope.benchmarks.faults.measure import measure

    measure(options)
