"""Time a sweep over all heads against TransformerLens on the same weights, in forward passes.

    python -m benchmarks.ablation_sweep
    python -m benchmarks.ablation_sweep --cases answers pairs --vocab 4096 --rounds 5

answers   every head ablated alone, ln p of one answer at the last position of every row
losses    every head ablated alone, the loss at every position
pairs     every two heads ablated together, scored as `answers`

The unit is one forward pass of the same side, with the logits of all positions. The peer is a `TransformerBridge`
around GPT-2 with our weights and one `run_with_hooks` per head. Its outputs are checked to equal ours first. Δ is the
largest difference to one whole pass per edit: of ln p, or of a document's loss per token.
"""

from collections.abc import Sequence

from streamscope.benchmarks.ablation_sweep.options import Options
from streamscope.cli.parse import parse


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, print."""
    options = parse(Options, argv, __doc__)

    from streamscope.benchmarks.ablation_sweep.measure import measure

    measure(options)
