"""A paper's tables and figures, printed beside measured; from the shipped tables or your own runs.

    python -m papers lfa                               results/lfa.md and its figures
    python -m papers all                               every page, and results/README.md
    python -m papers lfa --table 3                     one table: every cell printed, measured, with its interval
    python -m papers lfa --figure 2 --out fig2.pdf     one figure, as pdf, svg or png
    python -m papers lfa --claims --out claims.csv     every sentence of the paper with its verdict (`papers.sentences`)
    python -m papers lfa --runs runs/mine/lfa-s0 runs/mine/std-t-printed-s0 --table 4       of your own runs (ARM-sSEED)
    python -m papers lfa --runs runs/differences/lfa-s* --grid differences       measures, and adds to the long table

Runs are measured with the instruments of the other rooms, half a minute each. Without --grid no shipped table changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from streamscope.cli.errors import InputError
from streamscope.cli.parse import command, parse


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m papers`."""

    paper: Annotated[Literal["dst", "lfa", "hdpl", "pls", "krom", "scorecard", "all"], tyro.conf.Positional]
    """The paper; scorecard compares the architectures of all; all writes every page, and the front page."""
    table: str | None = None
    """Number of a table, or a place such as "Appendix G": print its cells."""
    figure: str | None = None
    """Number of a figure: draw it."""
    claims: bool = False
    """Print every sentence of the paper with what was measured, and its verdict."""
    out: Path | None = None
    """File of the figure (.svg, .pdf, .png); of the table or the claims, if they are to be saved (.csv)."""
    runs: tuple[Path, ...] = ()
    """Own run folders, called ARM-sSEED as `models.grid` names them."""
    text: str = "own text"
    """Training text of the runs, in words."""
    grid: str | None = None
    """Add the rows of --runs to the long table of the paper under this name."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure what is given, print, draw or write."""
    options = parse(Options, argv, __doc__)
    if bool(options.table) + bool(options.figure) + options.claims > 1:
        raise InputError("give one of --table, --figure and --claims")
    if options.out and not (options.table or options.figure or options.claims):
        raise InputError("--out is for one --table or --figure, or the --claims; the page is written to results/")
    if options.claims and options.runs:
        raise InputError("--claims is of the tables that are shipped: leave out --runs")
    if options.grid and not options.runs:
        raise InputError("--grid names what is measured of --runs: give these")
    if options.runs and not (options.grid or options.table or options.figure):
        raise InputError("of own --runs give the --table or --figure that you want, or --grid to keep their rows")

    if options.paper == "all" and (options.table or options.figure or options.claims or options.runs):
        raise InputError("all writes the pages; name one paper for its --table, --figure, --claims or --runs")

    from streamscope.papers.page import Page, add, index

    if options.paper == "all":
        from streamscope.cli.disk import write_text
        from streamscope.papers.paper import PAGES, RESULTS

        for paper in PAGES:
            print(f"written {Page(paper).write()}")
        write_text(RESULTS / "README.md", index())
        print(f"written {RESULTS / 'README.md'}")
        return
    if options.grid:
        print(add(options.paper, options.runs, options.grid, options.text))
        return
    if options.claims:
        from streamscope.papers.sentences import sentences

        claims = sentences(options.paper)
        _show(claims[["id", "printed", "measured", "n", "verdict"]], claims, options.out)
        print("\n" + ", ".join(f"{n} {word}" for word, n in claims["verdict"].value_counts().items()))
        return
    rows = None
    if options.runs:
        from importlib import import_module

        from streamscope.papers.paper import measure_runs

        measures = import_module(f"streamscope.papers.{options.paper}.tables").MEASURES
        rows = measure_runs(options.runs, measures, options.text, f"python -m papers {options.paper} --runs …")
    page = Page(options.paper, rows)
    if options.table:
        frame = page.frame(_place("Table", options.table))
        _show(frame, frame, options.out)
    elif options.figure:
        place = _place("Figure", options.figure)
        path = options.out or Path(f"{options.paper}_{place.lower().replace(' ', '_')}.svg")
        page.draw(place, path)
        print(f"written {path}")
    else:
        print(f"written {page.write()}")


def _show(shown: Any, full_table: Any, out: Path | None) -> None:
    """Print a table, and save the whole of it."""
    print(shown.to_string(index=False, na_rep="", float_format="{:.4g}".format))
    if out:
        from streamscope.cli.disk import write_text

        write_text(out, full_table.to_csv(index=False))


def _place(kind: str, text: str) -> str:
    """Table 3 for 3; other places by their name."""
    return f"{kind} {text}" if text[:1].isdigit() else text


if __name__ == "__main__":
    command(main)
