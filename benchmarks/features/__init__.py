"""Time feature extraction against a bare forward pass and against straightforward code.

    python -m benchmarks.features
    python -m benchmarks.features --vocab 4096 --tier topk --rounds 5
    python -m benchmarks.features --memory

extraction        `features.extract`, from token shards to the finished parquet file
bound             one forward pass with explicit attention, one unembedding per layer, one softmax and top-2 over each
straightforward   document by document: `run_with_cache`, softmax and top-k of the logits of every layer, then position
                  by position and layer by layer as in PLS B.6; writes no file. Its features must equal the extraction's

All three see the same documents. The bound uses the extraction's batches and computes logits in chunks of `readout`. It
is not a lower bound: the extraction keeps only the logits it needs, tile by tile, and is faster at a vocabulary of
50,257. --memory measures the largest resident size of an extracting process, by the number of tokens.
"""

from collections.abc import Sequence

from streamscope.benchmarks.features.options import Options
from streamscope.cli.errors import InputError
from streamscope.cli.parse import parse


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, print."""
    options = parse(Options, argv, __doc__)
    if options.length < 40:
        raise InputError(f"--length must be at least 40, got {options.length}")

    from streamscope.benchmarks.features.measure import measure

    measure(options)
