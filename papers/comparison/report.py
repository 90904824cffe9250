"""The way of every comparison of runs: measured, or read again; judged; printed; written with its page."""

import json
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import pandas as pd

from streamscope.cli.disk import write_text
from streamscope.cli.errors import InputError
from streamscope.cli.output_lock import one_at_a_time
from streamscope.cli.provenance import pick_device, provenance
from streamscope.instruments.command import progress_bar
from streamscope.instruments.figures import write_figure
from streamscope.instruments.table import Column, read_about, read_parquet, write_table
from streamscope.models.checkpoint import load
from streamscope.models.training.data import evaluation_shards
from streamscope.models.transformer import StreamTransformer
from streamscope.papers.claims.words import plain
from streamscope.papers.comparison import TRAINED
from streamscope.papers.comparison.options import not_with_tables
from streamscope.papers.comparison.runs import Run, trained_runs, typed
from streamscope.papers.comparison.seeds import Progress, over_seeds
from streamscope.papers.comparison.tables import table_of, units
from streamscope.papers.comparison.verdicts import summary
from streamscope.papers.pages.folder import dose, folder_page
from streamscope.text.shards import TokenShards

Tables = dict[str, pd.DataFrame]
LONGEST = 48
"""Characters of a verdict on the screen; files have all."""
CLAIMS = ("claim", "quantity", "difference", "p_holm", "direction")


@cache
def printed_tables() -> dict[str, Any]:
    """Module -> the tables that its command prints, as shown.toml declares them; its named lists under `lists`."""
    return tomllib.loads(Path(__file__).with_name("shown.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What a paper's command declares: how runs are measured and judged, and what is printed and drawn of them."""

    module: str
    """The command, as papers.dst.calibration."""
    measure: Callable[[Any], tuple[Sequence[Run], Tables, dict[str, Any]]]
    """Options -> runs, what was measured of them, and facts that are kept with the tables to judge them again."""
    judge: Callable[[Sequence[Run], Tables, Mapping[str, Any]], Tables]
    """Runs, what was measured of them and the facts -> all tables."""
    settings: type | None = None
    """The options that say what is measured and how; refused with --tables."""
    shown: Sequence[Mapping[str, Any]] = ()
    """The tables that are printed, where shown.toml does not declare them."""
    as_shown: Callable[[Tables], Tables] = lambda tables: tables
    """What is printed of all tables in place of the tables themselves."""
    columns: Mapping[str, Sequence[Column]] = field(default_factory=dict)
    """Columns that an instrument describes, by the table that they stand in; all others are in columns.csv."""
    arms: Callable[[Sequence[Run]], Sequence[Run]] = lambda runs: runs
    """Runs that were read again, with the names of their arms."""
    draw: Callable[[Sequence[Run], Tables], Any] | None = None
    """The figure (plotly)."""


def of_quantities(
    module: str, title: str, measure: Callable[[Any], tuple[Sequence[Run], pd.DataFrame]],
    claims: Callable[[pd.DataFrame], pd.DataFrame], arms: Callable[[Sequence[Run]], Sequence[Run]] = lambda runs: runs,
) -> Comparison:  # fmt: skip
    """A comparison that is a few numbers of every run: rows of preset, seed, quantity, unit, value and undefined."""

    def measured(options: Any) -> tuple[Sequence[Run], Tables, dict[str, Any]]:
        runs, quantities = measure(options)
        return runs, {"runs": quantities}, {}

    def judged(runs: Sequence[Run], tables: Tables, facts: Mapping[str, Any]) -> Tables:
        quantities = tables["runs"]
        return {"runs": quantities, "arms": over_seeds(quantities), "claims": claims(quantities)}

    shown = ({"table": "arms", "title": title}, {"table": "claims", "title": "claims", "columns": CLAIMS})
    return Comparison(module=module, measure=measured, judge=judged, shown=shown, arms=arms)


def rejudge(paper: Comparison, folder: Path) -> tuple[Sequence[Run], Tables, dict[str, Any]]:
    """Runs, tables and `about` of an earlier comparison, judged by today's rules without a model."""
    runs, measured, about = reopen(folder, paper.module, paper.arms)
    return runs, paper.judge(runs, measured, about), about


def compare(paper: Comparison, options: Any) -> None:
    """Measure the runs, or read what --tables has; judge, print, and write where --out says."""
    if options.tables is not None:
        if paper.settings is not None and getattr(options, "scale", None) is None:
            not_with_tables(paper.settings, options)
        runs, tables, about = rejudge(paper, options.tables)
    else:
        runs, measured, facts = paper.measure(options)
        own = ("data",) if facts.get("data", {}).get("own") else ()
        argv = typed(paper.module, options, runs, own)
        about = {**provenance(pick_device(getattr(options, "device", "cpu"))), "argv": argv, **facts}
        tables = paper.judge(runs, measured, about)
    show(paper, runs, tables)
    if options.out is not None:
        write_page(paper, runs, tables, about, options)


def name_of(paper: Comparison, table: str) -> str:
    """PAPER/TABLE."""
    return f"{paper.module.split('.')[1]}/{table}"


def show(paper: Comparison, runs: Sequence[Run], tables: Tables) -> None:
    """How many runs, the tables that are shown, the counts of verdicts, and why runs have no value."""
    print(dose(runs) or "no runs")
    lists, made = printed_tables()["lists"], paper.as_shown(tables)
    for one in paper.shown or printed_tables()[paper.module]:
        frame = made.get(name := one["table"], pd.DataFrame())
        if len(frame) and "where" in one:
            frame = frame.query(one["where"], local_dict=lists)
        if len(frame):
            if "direction" in frame:
                frame = frame.assign(direction=frame["direction"].map(plain).str.slice(0, LONGEST))
            names = [column for column in one.get("columns", ()) if column in frame]
            table_of(frame, name_of(paper, name), one["title"], names, paper.columns.get(name, ())).print()
    if len(claims := tables.get("claims", pd.DataFrame())):
        print(summary(claims))
    if len(lost := tables.get("runs", pd.DataFrame())) and len(lost := lost[lost["value"].isna()]):
        print(*table_of(lost[["value", "undefined"]], name_of(paper, "runs")).legend(), sep="\n")


# ---- through the runs --------------------------------------------------------------------------


def each_model(
    runs: Sequence[Run], device: str, data: str | None = None
) -> Iterator[tuple[Run, StreamTransformer, TokenShards, Progress]]:
    """Run after run: its model, its validation documents (or those of `data`), and bars that say whose they are.

    Raises `InputError` when a run's tokenizer is not the one it was trained with, and where documents are missing.
    """

    def bar(run: str, label: str) -> Any:
        return progress_bar(f"{run}: {label}")

    for run in runs:
        model = load(run.folder, device=device)
        if model.tokenizer is None or model.tokenizer.sha256 != run.manifest["data"]["tokenizer"]["sha256"]:
            raise InputError(f"{run.folder}/tokenizer.json is not the tokenizer of its manifest; restore it")
        yield run, model, evaluation_shards(run.folder, model.tokenizer, data), partial(bar, run.name)


def stack(tables_of_runs: Iterable[tuple[str, int, Mapping[str, pd.DataFrame]]]) -> dict[str, pd.DataFrame]:
    """The tables of (preset, seed, tables) one above the other, preset and seed in front; without columns: none."""

    parts: dict[str, list[pd.DataFrame]] = {}
    for preset, seed, tables in tables_of_runs:
        for name, table in tables.items():
            if len(table.columns):
                front = table.copy()
                front.insert(0, "preset", preset)
                front.insert(1, "seed", seed)
                parts.setdefault(name, []).append(front)
    filled = {name: [one for one in some if len(one)] or some[:1] for name, some in parts.items()}
    return {name: pd.concat(some, ignore_index=True) for name, some in filled.items()}


# ---- tables that were measured before ----------------------------------------------------------


def reopen(
    folder: Path, module: str, arms: Callable[[Sequence[Run]], Sequence[Run]] = lambda runs: runs
) -> tuple[Sequence[Run], dict[str, pd.DataFrame], dict[str, Any]]:
    """The runs, tables and `about` of a comparison that `module` wrote, to be judged again without a model.

    A folder without tables of its own may hold a folder for each run, measured when its training ended: their rows are
    pooled. `arms` names runs by what they differ in, which may be less in one folder than in all: rows get the names
    that the runs have together. `about` says who measured; `judged` in it says which command judges now. Raises
    `InputError` for a folder that holds no comparison of that module, and for runs measured with other settings or on
    other documents.
    """

    parts = [folder] if (folder / TRAINED).is_file() else sorted(path.parent for path in folder.glob(f"*/{TRAINED}"))
    tables = [path for part in parts for path in sorted(part.glob("*.parquet"))]
    if not tables:
        raise InputError(f"--tables {folder} is no folder of a comparison: it needs tables (.parquet) and {TRAINED}")
    abouts = [read_about(path)["about"] for path in tables]
    about = max(abouts, key=lambda one: str(one["started"]))
    for path, one in zip(tables, abouts, strict=True):
        if f"python -m {module} " not in str(one["argv"]):
            raise InputError(f"--tables {path.parent} was made by `{one['argv']}`, not by {module}")
        for name in ("settings", "data") if len(parts) > 1 else ():
            if one.get(name) != about.get(name):
                raise InputError(
                    f"--tables {path.parent}: {name} {one.get(name)}, others {about.get(name)}: measure it again"
                )
    alone = {part: trained_runs(part) for part in parts}
    runs = arms([run for own in alone.values() for run in own])
    names = {run.folder: run.arm for run in runs}
    now = provenance("cpu")
    argv = f"python -m {module} --tables {folder.name if folder.is_absolute() else folder}"
    about["judged"] = {"argv": argv, "commit": now["commit"], "started": now["started"]}
    rows: dict[str, list[pd.DataFrame]] = {}
    for path in tables:
        table = read_parquet(path).to_pandas()
        if len(parts) > 1 and "preset" in table:
            new = {run.arm: names[run.folder] for run in arms(alone[path.parent])}
            table["preset"] = table["preset"].map(lambda name, new=new: new.get(name, name))
        rows.setdefault(path.stem, []).append(table)
    return runs, {name: pd.concat(some, ignore_index=True) for name, some in rows.items()}, about


def trained(runs: Sequence[Run]) -> dict[str, Any]:
    """What a page tells of its runs, as JSON: their manifests and configurations, folders as they were typed."""
    return {
        "runs": [
            {"folder": r.typed, "preset": r.preset, "seed": r.seed, "manifest": r.manifest, "config": r.config}
            for r in runs
        ]
    }


# ---- the page ----------------------------------------------------------------------------------


def write_page(paper: Comparison, runs: Sequence[Run], tables: Tables, about: Mapping[str, Any], options: Any) -> None:
    """Tables that have rows, how the runs were trained, the figure, then a short README.md.

    Each is written whole or not at all.
    """
    folder, written = options.out, {name: rows for name, rows in tables.items() if len(rows)}
    folder.mkdir(parents=True, exist_ok=True)
    with one_at_a_time(folder):
        for name, rows in written.items():
            own = units(rows, name_of(paper, name), paper.columns.get(name, ()))
            write_table(rows, folder / f"{name}.parquet", units=own, about=dict(about))
        for name in tables.keys() - written.keys():  # of earlier runs
            (folder / f"{name}.parquet").unlink(missing_ok=True)
        write_text(folder / TRAINED, json.dumps(trained(runs), indent=1, ensure_ascii=False) + "\n")
    if paper.draw is not None:
        static, html = getattr(options, "static", "svg"), options.html
        try:
            print(*write_figures(paper.draw(runs, tables), folder, static, html), sep="\n")
        except InputError as error:  # these runs have nothing to draw
            print(f"no figure: {error}")
    what = f"Tables that this command made: {', '.join(sorted(written))}."
    write_text(folder / "README.md", folder_page(folder, what).text())
    print(f"tables and {folder / 'README.md'}")


def write_figures(canvas: Any, folder: Path, static: str, html: bool = True) -> list[str]:
    """Write figure.html if wanted and, unless `static` is none, figure.svg or .png; a line about each.

    Without kaleido or Chromium the line says why there is no static figure.
    """
    lines = []
    for name in [*(["figure.html"] if html else []), *([] if static == "none" else [f"figure.{static}"])]:
        try:
            write_figure(canvas, folder / name)
            lines.append(f"figure {folder / name}")
        except InputError as error:
            lines.append(f"no {name}: {error}")
    return lines
