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
    """Parts to measure."""
    presets: tuple[str, ...] = ("d-cas", "lfa", "cfm", "dst-dense", "dst-kron", "dst-ind", "dst-full-ind")
    """Presets of the part `presets`; `mfu` and `profile` also take std-t and the presets of the other parts."""
    pairs: tuple[str, ...] = ("hdpl:llama", "kromcanon:gpt2")
    """PRESET:PEER pairs of the part `pairs`."""
    widths: tuple[Count, ...] = (192, 384)
    """Widths of the parts `gpt` and `supervision`; `presets` takes the first."""
    vocabularies: tuple[Count, ...] = (4096, 50257)
    """Vocabulary sizes of the parts `gpt` and `supervision`; the others take the first."""
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
    """Compile the blocks of both sides with torch.compile."""
    clock: Literal["wall", "process"] = "wall"
    """Wall time or processor seconds."""
