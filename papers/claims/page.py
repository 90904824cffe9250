"""The judged ledger filtered and counted, on the terminal and as CSV, parquet, HTML or Markdown."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from streamscope.cli.disk import write_atomically, write_text
from streamscope.cli.errors import InputError
from streamscope.cli.provenance import provenance
from streamscope.cli.terminal import code
from streamscope.instruments.table import Table, write_table
from streamscope.papers.claims.judged import measured
from streamscope.papers.claims.words import MEANINGS, SMALL, reason
from streamscope.papers.pages.markdown import Raw, cell, table
from streamscope.papers.pages.site import html

if TYPE_CHECKING:
    from streamscope.papers.claims import Options

UNITS = {
    "value": "of the table of the result", "ci_low": "as value", "ci_high": "as value", 
    "n": "training seeds, tokens, modules or cases",
    "clusters": "independent cases", "tokens": "training tokens seen by a run",
}  # fmt: skip
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


def show(rows: pd.DataFrame) -> None:
    """The claims, a line each, then how many have which verdict."""
    columns = rows[["id", "place", "verdict", "printed"]].assign(measured=measured(rows), unit=rows["unit"])
    Table.plain(columns, "claims").print()
    Table.plain(counts(rows), "verdicts").print()


def write(rows: pd.DataFrame, path: Path) -> None:
    """The claims in the format that the path's ending says."""
    if path.suffix == ".csv":
        write_atomically(path, lambda part: rows.to_csv(part, index=False))
    elif path.suffix == ".parquet":
        write_table(rows, path, units=UNITS, about=provenance("cpu"))
    elif path.suffix == ".md":
        write_text(path, markdown(rows))
    else:
        write_text(path, html(rows, {}))


def markdown(rows: pd.DataFrame) -> str:
    """The page: the counts, then a table per paper."""
    total = counts(rows)
    parts = [
        "# Claims of the papers",
        f"{len(rows):,} claims, judged by the result tables that they name (`python -m papers.claims`). {SMALL}",
        table(list(total), total.astype(str).to_numpy().tolist()),
        "\n".join(f"- **{word}**: {cell(meaning)}" for word, meaning in MEANINGS.items()),
    ]
    for paper, mine in rows.groupby("paper", sort=False):
        parts += [f"## {str(paper).upper()}", *_table(mine)]
    return "\n\n".join(parts) + "\n"


def _table(mine: pd.DataFrame) -> list[str]:
    """The table of a paper, the commands that its rows number, and what the measured models saw."""
    commands = {text: i for i, text in enumerate(dict.fromkeys(filter(None, mine["command"])), 1)}
    cells = [
        [Raw(code(r.id)), r.place, r.quote, r.configuration, r.printed, m, r.unit, _verdict(r),
         commands.get(r.command, "")]
        for r, m in zip(mine.itertuples(), measured(mine), strict=True)
    ]  # fmt: skip
    columns = ("id", "place", "claim", "of", "printed", "measured (95 %)", "unit", "verdict", "by")
    made = mine.loc[mine["measured"].ne(""), ["table", "scale", "tokens", "commit"]].drop_duplicates()
    doses = [f"scale {cell(r.scale)}, {cell(r.tokens)} tokens seen, " if r.scale else "" for r in made.itertuples()]
    results = [
        f"- {code(r.table)}: {dose}commit {cell(r.commit or 'unknown')}"
        for r, dose in zip(made.itertuples(), doses, strict=True)
    ]
    by = "\n".join(f"{i}. {code(text)}" for text, i in commands.items())
    return [table(columns, cells), *([f"By:\n\n{by}"] if by else []), *(["\n".join(results)] if results else [])]


def _verdict(r: Any) -> str:
    """The word, the reason in full where that adds to it, and the ledger's remark."""
    text = reason(r.finding)
    remark = f" ({r.why})" if r.why and r.why != r.finding else ""
    return f"{r.verdict}{f': {text}' if text else ''}{remark}"
