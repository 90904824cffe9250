"""Time the prompt probes together on the 73 prompts of paper LFA.

    python -m benchmarks.probes
    python -m benchmarks.probes --run runs/lfa --rounds 5

Times PDS, coreference in both domains, SPS and coherence, from aligned prompts to summaries. The peer is one forward
pass over the same prompts without hooks, in the same run.
"""

from collections.abc import Sequence

from streamscope.benchmarks.probes.options import Options
from streamscope.cli.parse import parse


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, time, print."""
    options = parse(Options, argv, __doc__)

    from streamscope.benchmarks.probes.measure import measure

    measure(options)
