"""Options of `python -m papers.krom`."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from streamscope.papers.figures.options import FigureOptions
from streamscope.papers.scales.options import ScaleOptions


@dataclass(frozen=True, kw_only=True)
class Options(FigureOptions, ScaleOptions):
    """Arguments of `python -m papers.krom`."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN…")] = ()
    """Run folders of gpt2, canon, kromhc and kromcanon, their streams mixed in any way."""
    html: bool = True
    """Write the interactive figure.html (5 MB) as well."""
