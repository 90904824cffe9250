"""The pages of results and the interactive page of claims, made of the ledger and the result tables.

    python -m papers --out site            index.html: every claim, with filters, its figure and its command
    python -m papers --write results       results/*.md and their figures, from `pages.toml` and the tables; the
                                           counts in the README beside them

Every number on these pages is read from a table.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from streamscope.cli.errors import InputError
from streamscope.cli.parse import command, parse


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m papers`."""

    out: Path | None = None
    """Write the interactive page of claims into this folder; it works offline."""
    figures: bool = True
    """Also draw the papers' own figures from our tables, 5 MB in all."""
    write: Path | None = None
    """Write the Markdown pages of this results folder again, from its tables."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, read the ledger and the tables, write."""
    options = parse(Options, argv, __doc__)
    if options.out is None and options.write is None:
        raise InputError("nothing to write: give --out FOLDER for the page of claims, or --write results")

    if options.write is not None:
        from streamscope.papers.pages.results import write_results

        print("\n".join(f"written {path}" for path in write_results(options.write)))
    if options.out is not None:
        from streamscope.papers.pages.site import write_site

        print(f"written {write_site(options.out, options.figures)}")


if __name__ == "__main__":
    command(main)
