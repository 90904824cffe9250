"""Options of every comparison of runs."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import tyro

from streamscope.cli.disk import check_folder
from streamscope.cli.errors import InputError
from streamscope.papers.comparison import TRAINED


@dataclass(frozen=True, kw_only=True)
class RunsOptions:
    """Arguments of every comparison of runs."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN…")] = ()
    """Folders of finished runs, one or more seeds of each preset."""
    out: Path | None = None
    """Folder for the tables, the figures and README.md."""
    tables: Path | None = None
    """Folder of an earlier comparison: its tables are judged and its page is written again, without any model."""

    def check(self, example: str) -> None:
        """Raises `InputError` where --out cannot be written to, or holds another comparison than that of the example's
        module, and unless there are either runs or tables."""
        if self.out is not None:
            check_folder(self.out)
            if (self.out / TRAINED).is_file():
                from streamscope.instruments.table import check_own

                for path in self.out.glob("*.parquet"):
                    check_own(path, example.partition(" ")[0])
        if self.tables is not None and self.runs:
            raise InputError(f"give run folders to measure, or --tables {self.tables} to judge again; not both")
        if self.tables is None and not self.runs:
            raise InputError(f"give run folders: python -m {example} …")


@dataclass(frozen=True, kw_only=True)
class PageOptions(RunsOptions):
    """Arguments of every comparison that measures models and writes a page with a figure."""

    html: bool = True
    """Write the interactive figure.html (5 MB) as well."""
    static: Literal["svg", "png", "none"] = "svg"
    """Kind of the static figure; it needs the extra `figures`."""
    device: str = "auto"
    """auto, cpu or cuda."""


S = TypeVar("S")


def settings_of(kind: type[S], options: RunsOptions) -> S:
    """The settings of measuring among the options of a command, which inherits them."""
    return kind(**{one.name: getattr(options, one.name) for one in fields(kind)})  # type: ignore[arg-type]


def not_with_tables(kind: type, options: RunsOptions) -> None:
    """Raises `InputError` for a setting of measuring, or its data, given with --tables, which measures nothing."""
    usual = {one.name: one.default for one in fields(kind)} | {"data": None}
    for name, default in usual.items():
        if options.tables is not None and getattr(options, name, default) != default:
            name = name.replace("_", "-")
            raise InputError(f"--{name} is for measuring, and --tables measures nothing; leave it out")
