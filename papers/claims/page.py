"""The judged ledger as CSV, parquet, HTML or Markdown."""

import re
from pathlib import Path
from typing import Any

import pandas as pd

from streamscope.cli.disk import write_atomically, write_text
from streamscope.cli.provenance import provenance
from streamscope.cli.terminal import LINE_ENDS, code, visible
from streamscope.instruments.parquet import write_table
from streamscope.papers.claims.table import counts, measured
from streamscope.papers.claims.words import MEANINGS, reason
from streamscope.papers.comparison.markdown import table
from streamscope.papers.demo.html import Page, Section, Table, Text, Verdict, write_page
from streamscope.papers.dst.printed import CARD as DST
from streamscope.papers.hdpl.page import CARD as HDPL
from streamscope.papers.krom.printed import CARD as KROM
from streamscope.papers.lfa.printed import CARD as LFA
from streamscope.papers.pls.printed import CARD as PLS

CARDS = {"dst": DST, "lfa": LFA, "hdpl": HDPL, "pls": PLS, "krom": KROM}
UNITS = {
    "value": "of the table of the result", "ci_low": "as value", "ci_high": "as value", 
    "n": "training seeds, tokens, modules or cases",
    "clusters": "independent cases", "tokens": "training tokens seen by a run",
}  # fmt: skip
SMALL = (
    "Models here are small and were trained little; a bare number is not expected to be the paper's, and says nothing "
    "of the direction of a claim. Of an order, *measured* is the difference as claimed; of a limit "
    "it is the value itself."
)


def write(rows: pd.DataFrame, path: Path) -> None:
    """The claims in the format that the path's ending says."""
    if path.suffix == ".csv":
        write_atomically(path, lambda part: rows.to_csv(part, index=False))
    elif path.suffix == ".parquet":
        write_table(rows, path, units=UNITS, about=provenance("cpu"))
    elif path.suffix == ".md":
        write_text(path, markdown(rows))
    else:
        write_page(html(rows), path)


def markdown(rows: pd.DataFrame) -> str:
    """The page: the counts, then a table per paper."""
    total = counts(rows)
    parts = [
        "# Claims of the papers",
        f"{len(rows):,} claims, judged by the result tables that they name (`python -m papers.claims`). {SMALL}",
        table(list(total), total.astype(str).to_numpy().tolist()),
        "\n".join(f"- **{word}**: {_plain(meaning)}" for word, meaning in MEANINGS.items()),
    ]
    for paper, mine in rows.groupby("paper", sort=False):
        parts += [f"## {str(paper).upper()}", f"{CARDS[str(paper)]}.", *_table(mine)]
    return "\n\n".join(parts) + "\n"


def _table(mine: pd.DataFrame) -> list[str]:
    """The table of a paper, the commands that its rows number, and what the measured models saw."""
    commands = {text: i for i, text in enumerate(dict.fromkeys(filter(None, mine["command"])), 1)}
    cells = [
        [code(r.id), _plain(r.place), _plain(r.quote), _plain(r.configuration),
         _plain(f"{r.printed} {_unit(r)}".strip()), m, _plain(_verdict(r)), commands.get(r.command, "")]
        for r, m in zip(mine.itertuples(), measured(mine), strict=True)
    ]  # fmt: skip
    columns = ("id", "place", "claim", "of", "printed", "measured (95 %)", "verdict", "by")
    made = mine.loc[mine["measured"].ne(""), ["table", "scale", "tokens", "commit"]].drop_duplicates()
    doses = [f"scale {_plain(r.scale)}, {_plain(r.tokens)} tokens seen, " if r.scale else "" for r in made.itertuples()]
    results = [
        f"- {code(r.table)}: {dose}commit {_plain(r.commit or 'unknown')}"
        for r, dose in zip(made.itertuples(), doses, strict=True)
    ]
    by = "\n".join(f"{i}. {code(text)}" for text, i in commands.items())
    return [table(columns, cells), *([f"By:\n\n{by}"] if by else []), *(["\n".join(results)] if results else [])]


def html(rows: pd.DataFrame) -> Page:
    """The same as a page that is complete in itself."""
    sections = [
        Section(
            "Verdicts",
            [
                Text(SMALL.replace("*", "")),
                Table(counts(rows)),
                Verdict([f"**{word}**: {meaning}" for word, meaning in MEANINGS.items()]),
            ],
        )
    ]
    for paper, mine in rows.groupby("paper", sort=False):
        names = ["id", "place", "quote", "configuration", "printed", "unit"]
        shown = mine[names].assign(measured=measured(mine))
        shown = shown.assign(verdict=[_verdict(r) for r in mine.itertuples()], command=mine["command"])
        sections.append(Section(str(paper).upper(), [Text(f"{CARDS[str(paper)]}."), Table(shown, wrap=True)]))
    lead = f"{len(rows):,} claims, judged by the result tables that they name."
    return Page(title="Claims of the papers", lead=lead, sections=sections, footer="python -m papers.claims")


def _unit(r: Any) -> str:
    return "" if r.printed == "" or r.unit == "share" else str(r.unit)


def _verdict(r: Any) -> str:
    """The word, what was said in full where that adds to it, and the ledger's remark."""
    said = reason(r.said)
    remark = f" ({r.why})" if r.why and r.why != r.said else ""
    return f"{r.verdict}{f': {said}' if said else ''}{remark}"


def _plain(text: object) -> str:
    """Text in which Markdown sees no mark of its own; the pipe is the table's to escape."""
    return re.sub(r"([\\`*_{}\[\]<>#$~^])", r"\\\1", visible(LINE_ENDS.sub(" ", str(text))))
