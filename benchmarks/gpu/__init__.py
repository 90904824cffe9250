"""Run the checks and timings that need a GPU, in pieces of under ten minutes.

    python -m benchmarks.gpu --out gpu.jsonl
    python -m benchmarks.gpu --out gpu.jsonl --pieces mfu --minutes 9
    python -m benchmarks.gpu --device cpu --scale tiny --out dry.jsonl

correctness  every preset in fp32: loss and gradients on the GPU against the CPU; in bf16 the loss
sync         training steps under `torch.cuda.set_sync_debug_mode("error")`, which raises where the host waits
mfu          tokens per second, MFU and peak memory of a training by `models.training.loop`, per preset and --compile
memory       peak of a step with and without per-layer supervision, V 50,257, 32 x 512 tokens

Every finding is written to --out at once. A second call continues with the missing cases, and a call stops after
--minutes. Without CUDA, the pieces that need it are skipped with a message; the others run on the CPU.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from streamscope.cli.bounds import Count, Positive
from streamscope.cli.errors import InputError
from streamscope.cli.parse import main_with_body

Piece = Literal["correctness", "sync", "mfu", "memory"]
PIECES: tuple[Piece, ...] = ("correctness", "sync", "mfu", "memory")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m benchmarks.gpu`."""

    out: Path | None = None
    """JSON lines file that findings are added to."""
    pieces: tuple[Piece, ...] = PIECES
    """Pieces to measure."""
    presets: tuple[str, ...] = ()
    """Presets (default: all)."""
    scale: Literal["paper", "small", "tiny"] = "paper"
    """Scale of `sync` and `mfu`; `correctness` is at scale small, or tiny if that is chosen."""
    compile: tuple[Literal["off", "blocks", "step"], ...] = ("off", "blocks", "step")
    """Compile settings of `mfu`."""
    steps: Count = 30
    """Training steps of `sync` and `mfu`; the first third of `mfu` warms up."""
    minutes: Positive = 9.0
    """Start no new case after this many minutes; the next call continues."""
    device: Literal["cuda", "cpu"] = "cuda"
    """Device; cpu is a dry run."""

    def __post_init__(self) -> None:
        if self.out is None:
            raise InputError("--out FILE is missing: name the file for the findings")


main = main_with_body(Options, __doc__, "streamscope.benchmarks.gpu.measure")
