"""Time a sweep over all heads against TransformerLens on the same weights, in forward passes.

    python -m benchmarks.ablation_sweep
    python -m benchmarks.ablation_sweep --cases answers --vocab 4096 --rounds 5
    python -m benchmarks.ablation_sweep --run hf:./SmolLM2-135M --every 9 --batch 4 --clock cpu

answers   every head ablated alone, ln p of one answer at the last position of every row
losses    every head ablated alone, the loss at every position

The unit is one forward pass of the same side, with the logits of all positions. The peer is a `TransformerBridge`
around GPT-2 with our weights and one `run_with_hooks` per head. Its outputs are checked to equal ours first. Δ is the
largest difference to one whole pass per edit: of ln p, or of a document's loss per token.

With --run the case is `losses`, ours is `document_losses` and the peer a bridge around transformers' model, one
document at a time. The table has the seconds and the largest memory of each side's process, and the ratio peer / ours.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from streamscope.benchmarks import main_of
from streamscope.cli.bounds import Count, Only
from streamscope.cli.errors import InputError

Case = Literal["answers", "losses"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m benchmarks.ablation_sweep`."""

    run: str | None = None
    """Measure this run or hf:FOLDER instead of random models, each side in a process of its own, with its memory."""
    every: Annotated[Count, Only("run")] = 3
    """With --run: ablate every N-th head."""
    cases: tuple[Case, ...] = ("answers", "losses")
    """Cases to time."""
    vocab: tuple[Count, ...] = (50257, 4096)
    """Vocabulary sizes."""
    batch: Count = 8
    """Sequences per batch."""
    length: Count = 128
    """Tokens per sequence."""
    layers: Count = 6
    """Layers of the model."""
    heads: Count = 6
    """Heads per layer."""
    width: Count = 384
    """Width, a multiple of the heads."""
    rounds: Count = 3
    """Repetitions; the medians of the ratios are printed."""
    budget: Count | None = None
    """Tokens of a batch of documents; default: the sweep's own."""
    clock: Literal["wall", "cpu"] = "wall"
    """Wall time or processor seconds (cpu: for a busy machine, with one thread)."""
    peer: bool = True
    """Also measure TransformerLens."""

    def __post_init__(self) -> None:
        for name in ("cases", "vocab", "layers", "heads", "width", "peer") if self.run is not None else ():
            if getattr(self, name) != getattr(Options, name):
                raise InputError(f"--{name if name != 'peer' else 'no-peer'} has no effect with --run: leave it out")


main = main_of(Options, __name__)
