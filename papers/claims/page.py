"""The judged ledger as CSV, parquet, HTML or Markdown."""

from pathlib import Path
from typing import Any

import pandas as pd

from streamscope.cli.disk import write_atomically, write_text
from streamscope.cli.provenance import provenance
from streamscope.cli.terminal import code
from streamscope.instruments.table import write_table
from streamscope.papers.claims.table import counts, measured
from streamscope.papers.claims.words import MEANINGS, SMALL, reason
from streamscope.papers.pages.markdown import Raw, cell, table
from streamscope.papers.pages.site import html

UNITS = {
    "value": "of the table of the result", "ci_low": "as value", "ci_high": "as value", 
    "n": "training seeds, tokens, modules or cases",
    "clusters": "independent cases", "tokens": "training tokens seen by a run",
}  # fmt: skip


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
        [Raw(code(r.id)), r.place, r.quote, r.configuration, f"{r.printed} {_unit(r)}".strip(), m, _verdict(r),
         commands.get(r.command, "")]
        for r, m in zip(mine.itertuples(), measured(mine), strict=True)
    ]  # fmt: skip
    columns = ("id", "place", "claim", "of", "printed", "measured (95 %)", "verdict", "by")
    made = mine.loc[mine["measured"].ne(""), ["table", "scale", "tokens", "commit"]].drop_duplicates()
    doses = [f"scale {cell(r.scale)}, {cell(r.tokens)} tokens seen, " if r.scale else "" for r in made.itertuples()]
    results = [
        f"- {code(r.table)}: {dose}commit {cell(r.commit or 'unknown')}"
        for r, dose in zip(made.itertuples(), doses, strict=True)
    ]
    by = "\n".join(f"{i}. {code(text)}" for text, i in commands.items())
    return [table(columns, cells), *([f"By:\n\n{by}"] if by else []), *(["\n".join(results)] if results else [])]


def _unit(r: Any) -> str:
    return "" if r.printed == "" or r.unit == "share" else str(r.unit)


def _verdict(r: Any) -> str:
    """The word, the reason in full where that adds to it, and the ledger's remark."""
    text = reason(r.finding)
    remark = f" ({r.why})" if r.why and r.why != r.finding else ""
    return f"{r.verdict}{f': {text}' if text else ''}{remark}"
