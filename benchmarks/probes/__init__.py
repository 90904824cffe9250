"""Time the prompt probes together on the 73 prompts of paper LFA.

    python -m benchmarks.probes
    python -m benchmarks.probes --run runs/lfa --rounds 5

Times PDS, coreference in both domains, SPS and coherence, from aligned prompts to summaries. The peer is one forward
pass over the same prompts without hooks, in the same run.
"""

from dataclasses import dataclass

from streamscope.cli.bounds import Count
from streamscope.cli.parse import main_with_body


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m benchmarks.probes`."""

    run: str = "lfa"
    """Run folder, or a bundled model."""
    rounds: Count = 3
    """Repetitions; the medians are printed."""


main = main_with_body(Options, __doc__, "streamscope.benchmarks.probes.measure")
