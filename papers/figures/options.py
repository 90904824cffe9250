"""A figure of a paper, and the options of a paper's command for it. Imports nothing heavy."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from streamscope.cli.bounds import Only

RESULTS = Path(__file__).resolve().parents[2] / "results"
"""The result tables of the clone."""
SINGLE = "single"
"""Folder, below that of a page, of the tables that figures of single models are drawn of (`papers.scales.singles`)."""
Format = Literal["svg", "pdf", "png", "html"]


@dataclass(frozen=True)
class PaperFigure:
    """A figure of a paper: what it shows, and the tables that it is drawn from: none where a configuration is drawn."""

    number: str
    title: str
    draw: Callable[..., Any]
    """draw(tables by name, style) → a plotly figure."""
    tables: tuple[str, ...] = ()
    """FOLDER/NAME of results, without .parquet; under --tables NAME alone is looked for, there and in `SINGLE`."""
    wide: bool = False
    """Always as wide as a page: names of arms stand at its left."""


@dataclass(frozen=True, kw_only=True)
class FigureOptions:
    """Options of a paper's command for its figures."""

    figure: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Draw the paper's figure of this number from result tables; all, or list: what there is."""
    table: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Show the paper's table of this number: printed and measured values; all, or list."""
    format: Annotated[Format, Only("figure")] = "svg"
    """Of --figure: svg, pdf and png need the extra `figures`, html needs none."""
    width: Annotated[Literal["column", "page"], Only("figure")] = "column"
    """Of --figure: 3.3 or 6.9 inches."""
    table_format: Annotated[Literal["csv", "md"], Only("table")] = "csv"
    """Of --table where --out names a folder to write to."""
    grey: bool = False
    """Draw figures without colours; lines differ in dashes and markers anyway."""
