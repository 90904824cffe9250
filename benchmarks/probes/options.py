"""Options of `python -m benchmarks.probes`."""

from dataclasses import dataclass

from streamscope.cli.bounds import Count


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m benchmarks.probes`."""

    run: str = "lfa"
    """Run folder, or a bundled model."""
    rounds: Count = 3
    """Repetitions; the medians are printed."""
