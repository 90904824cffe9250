"""List every claim of the five papers with its printed value, its measured value and its verdict.

    python -m papers.claims --paper lfa
    python -m papers.claims --verdict reproduced --kind order
    python -m papers.claims --search "recency heads" --out claims.html
    streamscope papers claims --out claims.csv

A row of the ledger (`papers/claims/PAPER.csv`) is written by hand and holds what the paper says: place, quote, printed
value, configuration, the command that measures it, and the row of a result table that holds what was measured. The
verdict of a measured claim is never written there: it is read from that row, and changes when the table does.

Models of LFA, PLS, HDPL, KROM and (three of its architectures) DST were trained on more and on less text. A claim about
several seeds is judged by the longest training of which each model has three seeds, whatever it shows. If these models
fail the gate of the claim (they cannot do the task, or have no such heads), the longest such training judges it whose
models pass the gate. One exception: what KROM says of the bias that mixing starts with, and of what one bias gives that
another does not, is judged after about as many steps as in the blog. Weight decay takes every logit towards 0, step by
step. In fp32 it alone would leave nothing of any bias in the longer training.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from streamscope.cli.errors import InputError
from streamscope.cli.parse import parse
from streamscope.papers.claims.words import Kind, Paper, Word, legend

FORMATS = (".csv", ".parquet", ".html", ".md")
HERE = Path(__file__).resolve().parent
"""The shipped ledgers."""
RESULTS = HERE.parents[1] / "results"
"""The result tables of the clone."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m papers.claims`."""

    paper: tuple[Paper, ...] = ()
    """Only claims of these papers."""
    verdict: tuple[Word, ...] = ()
    """Only claims with one of these verdicts, in quotation marks where it has several words."""
    kind: tuple[Kind, ...] = ()
    """Only claims of these kinds: a number, an order of two models, a direction, a property of one model."""
    search: str | None = None
    """Only claims with these characters in id, place, quote, configuration, instrument or reason; case does not
    matter."""
    out: Path | None = None
    """Write the claims that are shown to this .csv, .parquet, .html or .md file."""
    ledger: Path | None = None
    """Folder of ledgers of your own, a CSV file per paper, in place of the shipped ones."""
    results: Path | None = None
    """Folder of the result tables that the ledgers name, in place of the clone's `results`."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, judge, filter, print, write."""
    options = parse(Options, argv, f"{__doc__}\n{legend()}")
    if options.out is not None and options.out.suffix not in FORMATS:
        raise InputError(f"--out {options.out}: the ending of the name chooses the format, one of {', '.join(FORMATS)}")

    from streamscope.cli.disk import check_writable
    from streamscope.instruments.table import check_own
    from streamscope.papers.claims.judged import judged
    from streamscope.papers.claims.page import chosen, show, write

    ledger, results = options.ledger or HERE, options.results or RESULTS
    if options.out is not None:
        check_own(options.out, "papers.claims", (ledger, results))
        check_writable(options.out)
    rows = chosen(judged(ledger, results), options)
    show(rows)
    if options.out is not None:
        write(rows, options.out)
        print(f"written {options.out}")
