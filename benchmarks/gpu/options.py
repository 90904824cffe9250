"""Options of `python -m benchmarks.gpu`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from streamscope.cli.bounds import Count, Positive

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
