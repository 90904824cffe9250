"""The judged ledger filtered, counted and printed."""

from typing import TYPE_CHECKING

import pandas as pd

from streamscope.cli.errors import InputError
from streamscope.instruments.table import Table
from streamscope.papers.claims.judged import number_text
from streamscope.papers.claims.words import MEANINGS

if TYPE_CHECKING:
    from streamscope.papers.claims import Options

SEARCHED = ("id", "place", "quote", "configuration", "instrument", "why", "finding")


def chosen(rows: pd.DataFrame, options: "Options") -> pd.DataFrame:
    """The rows that the options ask for. Raises `InputError` where there is none."""
    for name, wanted in (("paper", options.paper), ("verdict", options.verdict), ("kind", options.kind)):
        if wanted:
            rows = rows[rows[name].isin(wanted)]
    if options.search is not None:
        text = rows[list(SEARCHED)].agg(" ".join, axis=1).str.casefold()
        rows = rows[text.str.contains(options.search.casefold(), regex=False)]
    if rows.empty:
        raise InputError("no claim is all of that: ask for less with --paper, --verdict, --kind or --search")
    return rows.reset_index(drop=True)


def counts(rows: pd.DataFrame) -> pd.DataFrame:
    """Claims per verdict and paper, and their sums."""
    found = pd.crosstab(rows["verdict"], rows["paper"])
    papers = list(dict.fromkeys(rows["paper"]))
    found = found.reindex(index=[v for v in MEANINGS if v in found.index], columns=papers)
    found["all"] = found.sum(axis=1)
    found.loc["claims"] = found.sum()
    return found.reset_index(names="verdict")


def measured(rows: pd.DataFrame) -> list[str]:
    """What was measured, with its interval and n, in one cell; a share in percent where the paper prints it so."""
    cells = []
    for r in rows.itertuples():
        percent = "%" in r.printed and r.value == r.value
        value, low, high = (
            f"{number_text(100 * one)}%" if percent else number_text(one) for one in (r.value, r.ci_low, r.ci_high)
        )
        width = f" ({low} … {high})" if r.ci_low == r.ci_low else ""
        cells.append(f"{value if percent else r.measured}{width}" + (f", n {r.n}" if r.n and r.measured else ""))
    return cells


def show(rows: pd.DataFrame) -> None:
    """The claims, a line each, then how many have which verdict."""
    printed = (rows["printed"] + " " + rows["unit"].where(rows["printed"] != "", "")).str.strip()
    columns = rows[["id", "place", "verdict"]].assign(printed=printed, measured=measured(rows))
    Table.plain(columns, "claims").print()
    Table.plain(counts(rows), "verdicts").print()
