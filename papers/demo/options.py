"""Options of `python -m papers.demo`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from streamscope.cli.bounds import Bounds, Count, check


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is measured. The defaults take one to two minutes per zoo model on one core."""

    pairs: Annotated[int, Bounds(low=4)] = 600
    """Held-out minimal pairs of the stories, for the probes."""
    documents: Annotated[int, Bounds(low=2)] = 100
    """Validation documents, for the ablation of every head."""
    suppress_pairs: Annotated[int, Bounds(low=4)] = 80
    """Minimal pairs under every gate of the suppression."""
    k: Count = 3
    """Heads to suppress together, those with the largest PDS."""
    draws: Count = 39
    """Random sets of k heads to compare them with; with 39 the smallest p_rank is 0.05."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m papers.demo`."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN…")] = ()
    """Run folders, one or several."""
    out: Path = Path("runs/demo/page")
    """Folder for index.html and the tables; files of these names in it are replaced."""
    sizes: Annotated[Sizes, tyro.conf.arg(name="")] = Sizes()
    device: str = "auto"
    """auto, cpu or cuda."""
