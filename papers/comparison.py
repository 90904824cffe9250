"""What the comparisons of runs share: options, the way through the runs, the report, a page and its way to disk."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from models.errors import InputError
from papers.runs import SHAPE, Run

if TYPE_CHECKING:
    import pandas as pd

    from models.text.shards import TokenShards
    from models.transformer import StreamTransformer
    from papers.rows import Progress

LEAD = "{}, measured on models trained here. This page is generated; every number is in the tables beside it."


@dataclass(frozen=True, kw_only=True)
class PageOptions:
    """Arguments of every comparison that measures runs and writes a page."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Folders of finished runs, one or more seeds of each preset."""
    out: Path | None = None
    """Folder for the tables, the figures and README.md."""
    html: bool = True
    """Write the interactive figure.html (5 MB) as well."""
    static: Literal["svg", "png", "none"] = "svg"
    """Kind of the static figure; it needs the extra `figures`."""
    device: str = "auto"
    """auto, cpu or cuda."""

    def check_out(self) -> None:
        """Raises `InputError` where --out names a file."""
        if self.out is not None and self.out.exists() and not self.out.is_dir():
            raise InputError(f"--out {self.out} is a file; give a folder")


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a page tells of."""

    runs: Sequence[Run]
    tables: "dict[str, pd.DataFrame]"
    about: dict[str, Any]
    """Command, commit, versions and device of the tables."""
    files: Sequence[str] = ()


# ---- through the runs --------------------------------------------------------------------------


def each_model(runs: Sequence[Run], device: str) -> "Iterator[tuple[Run, StreamTransformer, TokenShards, Progress]]":
    """Run after run: its model, its validation documents, and bars that say whose they are."""
    from models.checkpoint import load
    from models.training.data import evaluation_shards
    from probes.command import progress_bar

    def bar(run: str, label: str) -> Any:
        return progress_bar(f"{run}: {label}")

    for run in runs:
        model = load(run.folder, device=device)
        yield run, model, evaluation_shards(run.folder, model._text(), None), partial(bar, run.name)


def stack(found: "Iterable[tuple[str, int, Mapping[str, pd.DataFrame]]]") -> "dict[str, pd.DataFrame]":
    """The tables of (preset, seed, tables) one above the other, preset and seed in front; without columns: none."""
    import pandas as pd

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


# ---- the page ----------------------------------------------------------------------------------


def rule(over: str, nothing: str) -> str:
    """How verdicts come about (`papers.verdicts`); `over` names the units, `nothing` what no difference is."""
    return (
        f"A claim *holds* when the 95 % interval over {over} lies on the side that the paper says, is *opposite* when "
        f"it lies on the other, *not resolved* when it holds {nothing}, and has no verdict with one seed. Where every "
        "seed gives the same number there is no interval, and its side is the verdict. Of a limit, `measured` is how "
        "far the model lies on the claimed side."
    )


def shape(source: Mapping[str, Any]) -> str:
    """The sizes of a model, from the conditions of a run or the configuration of its model."""
    return ", ".join(f"{name} {source[name]}" for name in SHAPE)


def made_by(about: Mapping[str, Any]) -> str:
    """The line that says which command made the page, from which code and on what."""
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    commit = f"{about['commit'][:12]}{'+changes' if '+' in about['commit'] else ''}"
    return f"- Made by `{about['argv']}` at commit {commit}, {about['started']}, {about['device']}; {versions}."


def files_line(files: Sequence[str]) -> str:
    """The line that names the files beside the page."""
    return "- Files: " + ", ".join(f"`{name}`" for name in files) + "."


def pictures(files: Sequence[str]) -> list[str]:
    """The static figure among the files, as Markdown."""
    return [f"![comparison]({name})" for name in files if name in ("figure.svg", "figure.png")]


def commands(report: Report) -> str:
    """The section with the commands that trained the runs and made the page."""
    lines = [f"{run.command}   # commit {str(run.manifest.get('commit', 'unknown'))[:12]}" for run in report.runs]
    return "## Commands\n\n```\n" + "\n".join([*lines, report.about["argv"]]) + "\n```"


def write_page(
    page: Callable[[Sequence[str]], str],
    tables: "Mapping[str, pd.DataFrame]",
    units: Mapping[str, Mapping[str, str]],
    about: Mapping[str, Any],
    folder: Path,
    figure: Any = None,
    static: str = "svg",
    html: bool = True,
) -> None:
    """Tables that have rows, the figure, then README.md = page(names of the files); each whole or not at all."""
    from papers.figures import write_figures
    from probes.tables import write_atomically, write_table

    files = []
    for name, rows in tables.items():
        if len(rows):
            own = {c: u for c, u in units.get(name, {}).items() if c in rows}
            write_table(rows, folder / f"{name}.parquet", units=own, about=dict(about))
            files.append(f"{name}.parquet")
    said = [] if figure is None else write_figures(figure, folder, static, html)
    files += [Path(line.split(" ", 1)[1]).name for line in said if line.startswith("figure ")]
    text = page(files)
    write_atomically(folder / "README.md", lambda part: part.write_text(text, encoding="utf-8"))
    print("\n".join([*said, f"tables and {folder / 'README.md'}"]))
