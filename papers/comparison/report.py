"""What the comparisons of runs share: the way through the runs, the report, and its way to disk."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from streamscope.cli.disk import read_json, write_atomically, write_text
from streamscope.cli.errors import InputError
from streamscope.cli.provenance import provenance
from streamscope.instruments.command import progress_bar, show
from streamscope.instruments.parquet import read_about, read_parquet, write_table
from streamscope.models.checkpoint import load
from streamscope.models.training.data import evaluation_shards
from streamscope.models.transformer import StreamTransformer
from streamscope.papers.claims.words import plain
from streamscope.papers.comparison import TRAINED
from streamscope.papers.comparison.figures import write_figures
from streamscope.papers.comparison.rows import Progress
from streamscope.papers.comparison.runs import Run
from streamscope.papers.comparison.verdicts import summary
from streamscope.papers.pages.folder import folder_page
from streamscope.text.shards import TokenShards


@dataclass(frozen=True, kw_only=True)
class Report:
    """Runs, what was measured of them, and who made it."""

    runs: Sequence[Run]
    tables: dict[str, pd.DataFrame]
    about: dict[str, Any]
    """Command, commit, versions and device of the tables."""


# ---- through the runs --------------------------------------------------------------------------


def each_model(runs: Sequence[Run], device: str) -> Iterator[tuple[Run, StreamTransformer, TokenShards, Progress]]:
    """Run after run: its model, its validation documents, and bars that say whose they are."""

    def bar(run: str, label: str) -> Any:
        return progress_bar(f"{run}: {label}")

    for run in runs:
        model = load(run.folder, device=device)
        yield run, model, evaluation_shards(run.folder, model._text(), None), partial(bar, run.name)


def stack(found: Iterable[tuple[str, int, Mapping[str, pd.DataFrame]]]) -> dict[str, pd.DataFrame]:
    """The tables of (preset, seed, tables) one above the other, preset and seed in front; without columns: none."""

    parts: dict[str, list[pd.DataFrame]] = {}
    for preset, seed, tables in found:
        for name, table in tables.items():
            if len(table.columns):
                front = table.copy()
                front.insert(0, "preset", preset)
                front.insert(1, "seed", seed)
                parts.setdefault(name, []).append(front)
    filled = {name: [one for one in some if len(one)] or some[:1] for name, some in parts.items()}
    return {name: pd.concat(some, ignore_index=True) for name, some in filled.items()}


# ---- tables that were measured before ----------------------------------------------------------


def reopen(folder: Path, module: str) -> tuple[list[Run], dict[str, pd.DataFrame], dict[str, Any]]:
    """The runs, tables and `about` of a comparison that `module` wrote, to be judged again without a model.

    A folder without tables of its own may hold a folder for each run, measured when its training ended: their rows are
    pooled. `about` says who measured; `judged` in it says which command judges now. Raises `InputError` for a folder
    that holds no comparison of that module, and for runs measured with other settings or on other documents.
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
    runs = [
        Run(Path(one["folder"]), one["preset"], one["seed"], one["manifest"], one["config"])
        for part in parts
        for one in read_json(part / TRAINED)["runs"]
    ]
    now = provenance("cpu")
    argv = f"python -m {module} --tables {folder.name if folder.is_absolute() else folder}"
    about["judged"] = {"argv": argv, "commit": now["commit"], "started": now["started"]}
    rows: dict[str, list[pd.DataFrame]] = {}
    for path in tables:
        rows.setdefault(path.stem, []).append(read_parquet(path).to_pandas())
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


def dose(runs: Sequence[Run]) -> str:
    """How much text the runs saw, as every sentence with a result needs to be read: "2.4 M tokens seen each"."""
    seen = sorted({run.tokens_seen for run in runs})
    amounts = " to ".join(dict.fromkeys(f"{n / 1e6:.1f} M" for n in (seen[0], seen[-1])))
    return f"{amounts} tokens seen" + (" each" if len(runs) > 1 else "")


def print_claims(claims: pd.DataFrame, title: str, columns: Sequence[str], digits: int = 4, widest: int = 40) -> None:
    """The claims on the screen, verdicts cut at `widest` characters, and the counts of verdicts."""
    show(claims.assign(direction=claims["direction"].map(plain).str.slice(0, widest)), title, tuple(columns), digits)
    print(summary(claims))


R = TypeVar("R", bound=Report)


def write_report(
    report: Report,
    units: Mapping[str, Mapping[str, str]],
    figure: Any,
    folder: Path,
    static: str,
    html: bool,
    **facts: Any,
) -> None:
    """Tables, figures and README.md of a report; `facts` are kept beside who made the tables, to judge them again."""
    write_page(report.tables, units, {**report.about, **facts}, folder, figure, static, html, report.runs)


def write_page(
    tables: Mapping[str, pd.DataFrame],
    units: Mapping[str, Mapping[str, str]],
    about: Mapping[str, Any],
    folder: Path,
    figure: Any = None,
    static: str = "svg",
    html: bool = True,
    runs: Sequence[Run] = (),
) -> None:
    """Tables that have rows, how the runs were trained, the figure, then a short README.md.

    Each is written whole or not at all.
    """
    for name, rows in tables.items():
        if len(rows):
            own = {c: u for c, u in units.get(name, {}).items() if c in rows}
            write_table(rows, folder / f"{name}.parquet", units=own, about=dict(about))
    if runs:
        facts = json.dumps(trained(runs), indent=1, ensure_ascii=False) + "\n"
        write_atomically(folder / TRAINED, lambda part: part.write_text(facts, encoding="utf-8"))
    said = [] if figure is None else write_figures(figure, folder, static, html)
    what = f"Tables that this command made: {', '.join(name for name, rows in tables.items() if len(rows))}."
    write_text(folder / "README.md", folder_page(folder, what).text())
    print("\n".join([*said, f"tables and {folder / 'README.md'}"]))
