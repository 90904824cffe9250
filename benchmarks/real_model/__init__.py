"""Measure what every instrument costs on a real model: memory, CPU seconds and the longest silence.

    python -m benchmarks.real_model                            runs/smollm2, every instrument on little data
    python -m benchmarks.real_model --only ablate pds --out results/real_model/costs.parquet

Each instrument runs as a command of its own, with the data named in its row. Peak memory is the largest resident set of
the process, CPU seconds are user plus system time, and silence is the longest wait between two outputs.
"""

from dataclasses import dataclass
from pathlib import Path

from streamscope.benchmarks import main_of
from streamscope.cli.bounds import Names, Positive


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m benchmarks.real_model`."""

    run: str = "runs/smollm2"
    """Run folder; default: the model of `make smollm2`."""
    only: Names = ()
    """Instruments to measure; default: all. The rows of the others stay in the table of --out."""
    limit: Positive = 900.0
    """Seconds after which an instrument is stopped, and its row says so."""
    out: Path | None = None
    """Write the table here as .parquet."""


main = main_of(Options, __name__)
