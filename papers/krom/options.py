"""What `python -m papers.krom` can be told."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from streamscope.papers.comparison.options import RunsOptions
from streamscope.papers.figures.options import FigureOptions


@dataclass(frozen=True, kw_only=True)
class Options(FigureOptions, RunsOptions):
    """Arguments of `python -m papers.krom`."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Run folders of gpt2, canon, kromhc and kromcanon."""
    html: bool = True
    """Write the interactive figure.html (5 MB) as well."""
