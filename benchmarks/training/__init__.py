"""Time training against a plain GPT and across presets.

    python -m benchmarks.training
    python -m benchmarks.training --parts gpt presets --widths 192 --vocabularies 4096 --compile
    python -m benchmarks.training --parts gpt --device cuda

hooks     eager forward and backward pass of presets against the same models without hook points
gpt       a whole training step of `std-t` against a plain GPT (`benchmarks/training/peers.py`) of the same shape
presets   LFA's and DST's presets against `std-t` of the same shape
pairs     hdpl against llama, kromcanon against gpt2, at the papers' width and layers

A step is forward, backward, clipping and the optimisers of `models.train`. Both sides of a ratio have the same shape,
dtype (bf16 autocast, or --dtype fp32) and compile setting, and take turns in one process. A figure is the median of
the rounds, with the smallest and largest. Presets and pairs keep memory from step to step, as `models.train` does; the
other parts, whose second side is not ours, leave it to the system. --clock cpu counts processor seconds; use it with
one thread on a busy machine.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from streamscope.benchmarks import main_of
from streamscope.cli.bounds import Count, Whole
from streamscope.cli.errors import InputError

Part = Literal["hooks", "gpt", "presets", "pairs"]
PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m benchmarks.training`."""

    parts: tuple[Part, ...] = PARTS
    """Parts to measure."""
    presets: tuple[str, ...] = ("d-cas", "lfa", "cfm", "dst-dense", "dst-kron", "dst-ind", "dst-full-ind")
    """Presets of the parts `presets` and `hooks`, which adds std-t."""
    pairs: tuple[str, ...] = ("hdpl:llama", "kromcanon:gpt2")
    """PRESET:PEER pairs of the part `pairs`."""
    widths: tuple[Count, ...] = (192, 384)
    """Widths of the part `gpt`; `hooks` and `presets` take the first."""
    vocabularies: tuple[Count, ...] = (4096, 50257)
    """Vocabulary sizes of the part `gpt`; the others take the first."""
    layers: Whole = 0
    """Layers; 0: the preset's own number."""
    context: Count = 256
    """Tokens per sequence."""
    batch: Count = 16
    """Sequences per step."""
    rounds: Count = 7
    """Timed rounds."""
    device: str = "cpu"
    """Device: cpu or cuda."""
    dtype: Literal["bf16", "fp32"] = "bf16"
    """bf16: autocast; fp32: no autocast."""
    compile: bool = False
    """Compile the blocks of both sides with torch.compile, except in the part `hooks`."""
    clock: Literal["wall", "cpu"] = "wall"
    """Wall time or processor seconds."""

    def __post_init__(self) -> None:
        for pair in self.pairs:
            if pair.count(":") != 1:
                raise InputError(f"--pairs {pair}: give PRESET:PEER, for example hdpl:llama")


main = main_of(Options, __name__)
