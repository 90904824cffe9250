"""Options of a paper's command for training its models. Imports nothing heavy."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from streamscope.cli.bounds import Count, Only
from streamscope.cli.disk import check_folder
from streamscope.papers.comparison.options import RunsOptions


@dataclass(frozen=True, kw_only=True)
class ScaleOptions(RunsOptions):
    """Arguments of a comparison that can train the runs it needs."""

    scale: Literal["tiny", "eighth", "zoo", "long", "small", "paper"] | None = None
    """Train the paper's models at this scale where they are missing, measure them once, write the page."""
    seeds: Annotated[Count | None, Only("scale")] = None
    """Of --scale: training seeds of every arm; by default as many as the paper's grid.toml says."""
    train: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, Only("scale")] = ()
    """Of --scale: KEY=VALUE, an option of every training in place of the recipe's, as device=cuda."""
    folder: Annotated[Path | None, Only("scale")] = None
    """Of --scale: folder of the runs, which all papers share; default runs/SCALE. The page lies in its folder
    page-PAPER, or in --out."""
    retry: Annotated[bool, Only("scale")] = False
    """Of --scale: try trainings again that failed."""

    def writable(self) -> None:
        """Raises `InputError` where --out cannot be written to."""
        if self.out is not None:
            check_folder(self.out)
