"""The README.md of a folder of tables: what it is, how much the models saw, the commands; all else is in the tables."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from streamscope.instruments.table import read_about, read_parquet
from streamscope.papers.claims.judged import interval
from streamscope.papers.comparison import TRAINED
from streamscope.papers.comparison.runs import Run, again, ended, trained_runs
from streamscope.papers.pages.markdown import Page, Section, three_digits
from streamscope.papers.pages.strips import Strip

FIGURES = ("figure.svg", "figure.png")


def folder_page(
    folder: Path,
    what: str,
    made: Sequence[str] = (),
    title: str = "",
    figure: str = "",
    table: Mapping[str, Any] | None = None,
    sentences: Sequence[str] = (),
) -> Page:
    """The page of a folder, or of those below it where it has no runs itself.

    Without `made` the commands are those of its runs and tables. `sentences` have their numbers."""
    parts = [folder] if (folder / TRAINED).is_file() else [path.parent for path in sorted(folder.rglob(TRAINED))]
    runs = [run for part in parts for run in trained_runs(part)]
    name = figure or next((name for name in FIGURES if (folder / name).is_file()), "")
    return Page(
        title=title or folder.name,
        lead=f"{what} {dose(runs)}".strip(),
        figure=Strip(title=title or folder.name, unit="", rows=[], path=name) if name else None,
        sentences=sentences,
        sections=[table_of(folder, **table)] if table else [],
        made=list(made) or [*trainings(runs), *measurements(folder)],
    )


def table_of(
    folder: Path,
    file: str,
    columns: Mapping[str, str],
    title: str,
    where: str = "",
    by: str | list[str] = "",
    sort: str = "",
    text: str = "",
    examples: Mapping[str, str] | None = None,
) -> Section:
    """A table of a folder as a section: columns by their titles, numbers with the intervals that the file has.

    `by` puts the rows of one value into one cell: their number where it is every run of the file. `examples` has a text
    for each value of the first column, the column `example`.
    """
    found = read_parquet(folder / file).to_pandas()
    every = set(found.get("run", ()))
    if where:
        found = found.query(where)
    if sort:
        found = found.sort_values(sort, kind="stable")
    if by:
        found = found.groupby(by, sort=False).agg(lambda cells: _one_cell(cells.unique(), every)).reset_index()
    if examples:
        found["example"] = [examples[value] for value in found[next(iter(columns))]]
    rows = [[_cell_text(row[name], *interval(name, row)) for name in columns] for row in found.to_dict("records")]
    return Section(title=title, text=text, columns=list(columns.values()), rows=rows)


def _one_cell(cells: Iterable[Any], every: set[str]) -> str:
    return f"all {len(every)}" if set(cells) == every else ", ".join(map(str, cells))


def _cell_text(x: Any, low: float, high: float) -> str:
    if isinstance(x, bool):
        return "yes" if x else "no"
    if not isinstance(x, int | float):
        return str(x)
    own, *ends = (three_digits(float(one)) for one in (x, low, high))
    return f"{own} ({ends[0]} to {ends[1]})" if low < high else own


def seeds_and_tokens(runs: Sequence[Run]) -> tuple[str, str]:
    """The training seeds of runs, "0, 1, 2", and how much text each saw, "1.5 to 16 million tokens"."""
    seen = sorted({run.tokens_seen for run in ended(runs)})
    amount = " to ".join(dict.fromkeys(three_digits(n / 1e6) for n in (seen[0], seen[-1])))
    return ", ".join(map(str, sorted({run.seed for run in runs}))), f"{amount} million tokens"


def dose(runs: Sequence[Run]) -> str:
    """How many runs there are and how much text each saw; snapshots of them, measured as well, are no runs."""
    ended, taken = [run for run in runs if not run.snapshot], [run for run in runs if run.snapshot]
    parts = [(rows, word) for rows, word in ((ended, "run"), (taken, "snapshot")) if rows]
    return " ".join(_saw(rows, word) for rows, word in parts)


def _saw(runs: Sequence[Run], word: str) -> str:
    scales, (seeds, amount) = ", ".join(sorted({run.manifest["scale"] for run in runs})), seeds_and_tokens(runs)
    if len(runs) == 1:
        return f"One {word} (model size {scales}, seed {seeds}) saw {amount}."
    return f"{len(runs)} {word}s (model size {scales}, seeds {seeds}) saw {amount} each."


def trainings(runs: Sequence[Run]) -> list[str]:
    """The one command that trains every run, with {arm}, {seed} and, where runs differ in more, {settings}."""
    lines = []
    for run in runs:
        words = shlex.split(run.command)[3:]
        lines.append(_options([_general(shlex.quote(word), run.preset) for word in words]))
    if not lines:
        return []
    common = [option for option in lines[0] if all(option in line for line in lines)]
    more = ["{settings}"] if any(len(line) > len(common) for line in lines) else []
    return [f"python -m models.train {' '.join([*common, *more])}"]


def _options(words: Sequence[str]) -> list[str]:
    """Words of a command, each option with its value; that of --seed is {seed}."""
    found: list[str] = []
    for word in words:
        if found and found[-1].startswith("--") and " " not in found[-1] and not word.startswith("--"):
            found[-1] += " {seed}" if found[-1] == "--seed" else f" {word}"
        else:
            found.append(word)
    return found


def measurements(folder: Path) -> list[str]:
    """The commands of the tables, each once, runs as {arm} and {seed}."""
    argvs = [read_about(path).get("about", {}).get("argv") for path in sorted(folder.rglob("*.parquet"))]
    return list(dict.fromkeys(general(again(argv)) for argv in argvs if argv))


def general(command: str) -> str:
    """A command with its runs once, as runs/FOLDER/{arm}-s{seed}, and so an output that has a run's name."""
    found: list[str] = []
    for word in command.split(" "):
        own = _general(word)
        if f"/{word} " in command and "/" not in word:  # the output is named as its run
            own = Path(_general(f"runs/{word}")).name
        if own == word or own not in found:
            found.append(own)
    return " ".join(found)


def _general(word: str, preset: str = "") -> str:
    """A word of a command, for all arms and seeds."""
    if word == preset:
        return "{arm}"
    return re.sub(r"[^/]+?(-s?)\d+(@\w+)?$", r"{arm}\1{seed}", word) if word.startswith("runs/") else word
