"""Time feature extraction against a bare forward pass and against straightforward code.

    python -m benchmarks.features
    python -m benchmarks.features --vocab 4096 --tier topk --rounds 5

extraction        `features.extract`, from token shards to the finished parquet file
bound             one forward pass with explicit attention, one unembedding per layer, one softmax and top-2 over each
straightforward   document by document: `run_with_cache`, softmax and top-k of the logits of every layer, then position
                  by position and layer by layer as in PLS B.6; writes no file. Its features must equal the extraction's

All three see the same documents. The bound uses the extraction's batches and computes logits in chunks of `readout`. It
is not a lower bound: the extraction keeps only the logits it needs, tile by tile, and is faster at a vocabulary of
50,257.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge

from streamscope.benchmarks import main_of
from streamscope.cli.bounds import Count
from streamscope.features.extract import Tier


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m benchmarks.features`."""

    vocab: tuple[Count, ...] = (50257, 4096)
    """Vocabulary sizes."""
    tier: Tier = "structural"
    """Tier of features to extract."""
    preset: str = "pls"
    """Architecture preset; it gets 6 heads."""
    layers: Count = 6
    """Layers of the model."""
    documents: Count = 12
    """Documents, of 40 to --length tokens each."""
    length: Annotated[int, Ge(40)] = 256
    """Tokens of the longest document, and the context length."""
    rounds: Count = 3
    """Repetitions; the medians of the ratios are printed."""
    clock: Literal["wall", "cpu"] = "wall"
    """Wall time or processor seconds (cpu: for a busy machine, with one thread)."""
    width: Count = 384
    """Width of the model."""


main = main_of(Options, __name__)
