"""Options of `python -m benchmarks.training`."""

from dataclasses import dataclass
from typing import Literal

from streamscope.cli.bounds import Count, Whole

Part = Literal["gpt", "presets", "supervision", "pairs", "mfu", "profile", "gpus"]
PARTS: tuple[Part, ...] = ("gpt", "presets", "supervision", "pairs", "mfu", "profile", "gpus")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m benchmarks.training`."""

    parts: tuple[Part, ...] = PARTS
    """What to measure."""
    presets: tuple[str, ...] = ("d-cas", "lfa", "cfm", "dst-dense", "dst-kron", "dst-ind", "dst-full-ind")
    """Presets of the part `presets`; `mfu` and `profile` take these, std-t, and all that the other parts compare."""
    pairs: tuple[str, ...] = ("hdpl:llama", "kromcanon:gpt2")
    """Preset and its peer, of the part `pairs`."""
    widths: tuple[Count, ...] = (192, 384)
    """Widths of the parts `gpt` and `supervision`; `presets` takes the first."""
    vocabularies: tuple[Count, ...] = (4096, 50257)
    """Token ids of the parts `gpt` and `supervision`; the others take the first."""
    layers: Whole = 0
    """Layers; 0 for each preset's own."""
    context: Count = 256
    """Tokens per sequence."""
    batch: Count = 16
    """Sequences per step."""
    rounds: Count = 7
    """Timed rounds."""
    device: str = "cpu"
    """cpu or cuda."""
    dtype: Literal["bf16", "fp32"] = "bf16"
    """Autocast, or none."""
    compile: bool = False
    """torch.compile the blocks of both sides."""
    clock: Literal["wall", "process"] = "wall"
    """Wall time, or the processor's."""
