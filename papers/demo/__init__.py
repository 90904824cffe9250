"""Look into trained models and write what is found as one page: probes, ablation with controls, suppression.

    python -m papers.demo dst-kron runs/demo/lfa --out runs/demo/page
    python -m papers.demo runs/lfa --pairs 1000 --documents 200

Takes one run or several of one tokenizer. FOLDER/index.html is the page, complete in itself; the tables lie beside it
as parquet, one per measure with the run as its first column. Prompts are held-out minimal pairs of the built-in
stories, documents those that the run was validated on. The defaults take one to two minutes per zoo model on a core.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from streamscope.models.cli import parse
from streamscope.models.errors import InputError
from streamscope.papers.demo.measure import Found, Sizes, Subject


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m papers.demo`."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Run folders, one or several."""
    out: Path = Path("runs/demo/page")
    """Folder for index.html and the tables; files of these names in it are replaced."""
    sizes: Annotated[Sizes, tyro.conf.arg(name="")] = Sizes()
    device: str = "auto"
    """auto, cpu or cuda."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure every run, write tables and page, print the summary."""
    options = parse(Options, argv, __doc__)
    if not options.runs:
        raise InputError("give a run folder or several: python -m papers.demo RUN RUN --out FOLDER")
    if options.out.exists() and not options.out.is_dir():
        raise InputError(f"--out {options.out} is a file; give a folder")

    from streamscope.models.provenance import pick_device, provenance
    from streamscope.papers.demo.html import write_page
    from streamscope.papers.demo.measure import measure_run, open_runs
    from streamscope.papers.demo.page import build
    from streamscope.papers.demo.words import summary
    from streamscope.probes.command import progress_bar
    from streamscope.probes.tables import print_table

    subjects = open_runs(options.runs, options.device)
    found = [(subject, measure_run(subject, options.sizes, progress_bar)) for subject in subjects]
    about = provenance(pick_device(options.device))
    _write_tables(options.out, found, about)
    page = options.out / "index.html"
    write_page(build(found, options.sizes, _footer(about)), page)
    print_table(summary({subject.name: one.tables for subject, one in found}), "in short; in brackets 95 % intervals")
    print(f"{len(list(options.out.glob('*.parquet')))} tables in {options.out}")
    print(f"page {page}")


def _write_tables(out: Path, found: Sequence[tuple[Subject, Found]], about: dict[str, Any]) -> None:
    """One parquet file per measure, the rows of all runs together; units and provenance in the schema."""
    import pandas as pd

    from streamscope.probes.tables import write_table

    units = _units()
    for name in found[0][1].tables:
        parts = [one.tables[name].assign(run=subject.name) for subject, one in found]
        table = pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
        table = table[["run", *(c for c in table if c != "run")]]
        known = {c: u for c, u in units[name.split("-")[0]].items() if c in table}
        runs = {subject.name: str(subject.folder) for subject, _ in found}
        write_table(table, out / f"{name}.parquet", units=known, about={**about, "runs": runs})


def _units() -> dict[str, dict[str, str]]:
    """Units by the first word of a table's name, from the modules that made the table."""
    from streamscope.interventions.ablate.measure import LOSS
    from streamscope.interventions.suppress.measure import CONTROLS, DRAWS, EFFECTS
    from streamscope.probes.coherence.measure import ODDS
    from streamscope.probes.coreference.measure import HEADS as COREFERENCE
    from streamscope.probes.coreference.measure import HELD_OUT
    from streamscope.probes.pds.measure import HEADS
    from streamscope.probes.result import short_units
    from streamscope.probes.sps.measure import COLUMNS as SPS

    return {
        "parameters": {"parameters": "numbers, layers summed"},
        "losses": {"loss": "nats/token", "tokens": "training tokens seen, repetitions counted"},
        "pds": short_units(HEADS, "difference"),
        "coreference": short_units((*COREFERENCE, *HELD_OUT)),
        "sps": short_units(SPS, "sps"),
        "coherence": short_units(ODDS, "log_odds"),
        "following": {"change": "nats of log-odds; of the row `whole` the log-odds due to the nouns themselves"},
        "ablation": short_units(LOSS, "delta"),
        "suppression": short_units((*EFFECTS, *CONTROLS, *DRAWS), "delta"),
    }


def _footer(about: dict[str, Any]) -> str:
    """How the page was made."""
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    made = " ".join(about["argv"])
    return f"Made {about['started']} by `{made}`, commit {about['commit']}, on {about['device']}; {versions}."
