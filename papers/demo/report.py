"""The demonstration's report: every run measured, its tables and its page written."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from streamscope.cli.errors import InputError
from streamscope.cli.provenance import pick_device, provenance
from streamscope.instruments.command import progress_bar
from streamscope.instruments.table import Table, write_table
from streamscope.models.checkpoint import run_label
from streamscope.papers.comparison.tables import units
from streamscope.papers.demo.html import write_page
from streamscope.papers.demo.measure import Found, Subject, measure_run, open_runs
from streamscope.papers.demo.options import Options
from streamscope.papers.demo.page import build
from streamscope.papers.demo.sections import COLUMNS
from streamscope.papers.demo.sentences import summary
from streamscope.viewer.describe import identities
from streamscope.viewer.session import MOST, Shown
from streamscope.viewer.view import check_extra

LIVE = "live.html"


def write_report(options: Options) -> None:
    """Measure every run, write tables and page, print the summary."""
    subjects = open_runs(options.runs, options.device)
    found = [(subject, measure_run(subject, options.sizes, progress_bar)) for subject in subjects]
    about = provenance(pick_device(options.device))
    _write_tables(options.out, found, about)
    page = options.out / "index.html"
    live = _write_live(found, options.out)
    write_page(build(found, options.sizes, _footer(about), live), page)
    overview = summary({subject.name: one.tables for subject, one in found})
    Table.plain(overview, "in short; in brackets 95 % intervals").print()
    print(f"{len(list(options.out.glob('*.parquet')))} tables in {options.out}")
    print(f"page {page}")


def _write_live(found: Sequence[tuple[Subject, Found]], out: Path) -> str:
    """The live page of the first two runs; "" where it cannot be made.

    It opens with the first run, whose head it is, on the passage of the attention picture. It needs packages of the
    extra `view`, and ONNX Runtime in the cache.
    """
    try:
        check_extra()
        from streamscope.viewer.page import write_page as write_live

        names = identities([subject.run for subject, _ in found[:MOST]])
        shown = [Shown(subject.run, name, subject.model) for (subject, _), name in zip(found, names, strict=False)]
        first = found[0][1]
        state = {"head": first.head.replace("H", ".H"), "token": int(first.rows[0]["query"].iloc[0])}
        write_live(shown, out / LIVE, first.text, report="index.html", state=state)
    except InputError as error:
        print(f"without the live page: {error}")
        return ""
    print(f"live page {out / LIVE}")
    return LIVE


def _write_tables(out: Path, found: Sequence[tuple[Subject, Found]], about: dict[str, Any]) -> None:
    """One parquet file per measure, the rows of all runs together; units and provenance in the schema."""
    for name in found[0][1].tables:
        parts = [one.tables[name].assign(run=subject.name) for subject, one in found]
        table = pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
        table = table[["run", *(c for c in table if c != "run")]]
        known = units(table, f"demo/{name}", COLUMNS.get(name.split("-")[0], ()))
        runs = {subject.name: run_label(subject.folder) for subject, _ in found}
        write_table(table, out / f"{name}.parquet", units=known, about={**about, "runs": runs})


def _footer(about: dict[str, Any]) -> str:
    """How the page was made."""
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    made = " ".join(about["argv"])
    return f"Made {about['started']} by `{made}`, commit {about['commit']}, on {about['device']}; {versions}."
