"""What the comparisons of runs share: the way through the runs, the report, a page and its way to disk."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from streamscope.cli.disk import read_json, write_atomically
from streamscope.cli.errors import InputError
from streamscope.cli.provenance import provenance
from streamscope.cli.terminal import visible, without_html
from streamscope.instruments.command import progress_bar, show
from streamscope.instruments.parquet import read_about, read_parquet, write_table
from streamscope.instruments.undefined_cells import reasons
from streamscope.models.checkpoint import load
from streamscope.models.training.data import evaluation_shards
from streamscope.models.transformer import StreamTransformer
from streamscope.papers.comparison import TRAINED
from streamscope.papers.comparison.figures import write_figures
from streamscope.papers.comparison.rows import Progress
from streamscope.papers.comparison.runs import SHAPE, Run
from streamscope.papers.comparison.verdicts import summary
from streamscope.text.shards import TokenShards

LEAD = "{}, measured on models trained here. This page is generated; every number is in the tables beside it."


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a page tells of."""

    runs: Sequence[Run]
    tables: dict[str, pd.DataFrame]
    about: dict[str, Any]
    """Command, commit, versions and device of the tables."""
    files: Sequence[str] = ()


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
        for name in ("settings", "data"):
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


def rule(over: str, nothing: str) -> str:
    """How verdicts come about (`verdicts`); `over` names the units, `nothing` what no difference is."""
    return (
        f"A claim *holds* when the 95 % interval over {over} lies on the side that the paper says and its p, corrected "
        "over the claims of this table (Holm), is at most .05; it is *opposite* when that is so on the other side, "
        "*negligible* when the whole interval lies within ± the smallest effect of interest (ours, in the table), and "
        f"*not resolved* otherwise: the interval holds {nothing}, or its p does not survive the correction (*alone* "
        "then says on which side the interval lies). There is no verdict with one seed; where every seed gives the "
        "same number there is no interval, and its side is the verdict. Of a limit, `measured` is the value itself."
    )


def shape(source: Mapping[str, Any]) -> str:
    """The sizes of a model, from the conditions of a run or the configuration of its model."""
    return ", ".join(f"{name} {source[name]}" for name in SHAPE)


def dose(runs: Sequence[Run]) -> str:
    """How much text the runs saw, as every sentence with a result needs to be read: "2.4 M tokens seen each"."""
    seen = sorted({run.tokens_seen for run in runs})
    amounts = " to ".join(dict.fromkeys(f"{n / 1e6:.1f} M" for n in (seen[0], seen[-1])))
    return f"{amounts} tokens seen" + (" each" if len(runs) > 1 else "")


def made_by(about: Mapping[str, Any]) -> str:
    """The line that says which command made the page, from which code and on what."""
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    when = f"at commit {_short(about['commit'])}, {about['started']}"
    made = f"- Made by `{about['argv']}` {when}, {about['device']}; {versions}."
    if "judged" not in about:
        return made
    again = about["judged"]
    when = f"at commit {_short(again['commit'])}, {again['started']}"
    return f"{made}\n- Judged again from these tables by `{again['argv']}` {when}."


def _short(commit: str) -> str:
    return f"{commit[:12]}{'+changes' if '+' in commit else ''}"


def files_line(files: Sequence[str]) -> str:
    """The line that names the files beside the page."""
    return "- Files: " + ", ".join(f"`{name}`" for name in files) + "."


def pictures(files: Sequence[str]) -> list[str]:
    """The static figure among the files, as Markdown."""
    return [f"![comparison]({name})" for name in files if name in ("figure.svg", "figure.png")]


def commands(report: Report) -> str:
    """The section with the commands that trained the runs and made the page."""
    lines = [f"{run.command}   # commit {str(run.manifest.get('commit', 'unknown'))[:12]}" for run in report.runs]
    once = dict.fromkeys([*lines, report.about["argv"]])  # a snapshot has the line of its run
    return "## Commands\n\n```\n" + "\n".join(map(visible, once)) + "\n```"


def undefined(quantities: pd.DataFrame) -> str:
    """The section with every reason for a missing value of a run: its first cell, and how many more it has."""
    lost: dict[str, list[str]] = {}
    for r in quantities[quantities["value"].isna()].itertuples():
        lost.setdefault(reasons(r.undefined)["value"], []).append(f"{r.preset} seed {r.seed} `{r.quantity}`")
    lines = [
        f"- {without_html(why)}: {cells[0]}" + (f" and {len(cells) - 1} more" if cells[1:] else "")
        for why, cells in lost.items()
    ]
    return "## Undefined\n\n" + "\n".join(lines or ["Every quantity has a value in every run."])


def print_claims(claims: pd.DataFrame, title: str, columns: Sequence[str], digits: int = 4, widest: int = 40) -> None:
    """The claims on the screen, verdicts cut at `widest` characters, and the counts of verdicts."""
    show(claims.assign(direction=claims["direction"].str.slice(0, widest)), title, tuple(columns), digits)
    print(summary(claims))


R = TypeVar("R", bound=Report)


def write_report(
    report: R,
    page: Callable[[R], str],
    units: Mapping[str, Mapping[str, str]],
    figure: Any,
    folder: Path,
    static: str,
    html: bool,
    **facts: Any,
) -> None:
    """Tables, figures and README.md of a report; `facts` are kept beside who made the tables, to judge them again."""
    write_page(
        lambda files: page(replace(report, files=files)), report.tables, units, {**report.about, **facts}, folder,
        figure, static, html, report.runs,
    )  # fmt: skip


def write_page(
    page: Callable[[Sequence[str]], str],
    tables: Mapping[str, pd.DataFrame],
    units: Mapping[str, Mapping[str, str]],
    about: Mapping[str, Any],
    folder: Path,
    figure: Any = None,
    static: str = "svg",
    html: bool = True,
    runs: Sequence[Run] = (),
) -> None:
    """Tables that have rows, how the runs were trained, the figure, then README.md = page(names of the files).

    Each is written whole or not at all.
    """

    files = []
    for name, rows in tables.items():
        if len(rows):
            own = {c: u for c, u in units.get(name, {}).items() if c in rows}
            write_table(rows, folder / f"{name}.parquet", units=own, about=dict(about))
            files.append(f"{name}.parquet")
    if runs:
        facts = json.dumps(trained(runs), indent=1, ensure_ascii=False) + "\n"
        write_atomically(folder / TRAINED, lambda part: part.write_text(facts, encoding="utf-8"))
        files.append(TRAINED)
    said = [] if figure is None else write_figures(figure, folder, static, html)
    files += [Path(line.split(" ", 1)[1]).name for line in said if line.startswith("figure ")]
    text = page(files)
    write_atomically(folder / "README.md", lambda part: part.write_text(text, encoding="utf-8"))
    print("\n".join([*said, f"tables and {folder / 'README.md'}"]))
