"""What the commands that measure a run share: their arguments, loading, tables on the screen and on disk."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from models.bounds import Count
from models.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

INTERVAL = "95 % interval"
Tables = Mapping[str, tuple["pd.DataFrame", Mapping[str, str]]]
"""Name -> (table, units of its columns). The name is added to the file's, "" for the table itself."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Arguments of every command that measures a run."""

    run: Annotated[str, tyro.conf.Positional] = "lfa"
    """Run folder, or bundled: lfa, std-t, d-cas, cfm, pls, c2, dst-kron, llama, hdpl, gpt2, kromcanon, kromcanon-b2."""
    out: Path | None = None
    """Write the table (.parquet) here, what else there is and the figure (.html) beside it."""
    device: str = "auto"
    """auto, cpu or cuda."""


@dataclass(frozen=True, kw_only=True)
class DocumentOptions(RunOptions):
    """Arguments of every command that measures a run's loss over documents."""

    data: str | None = None
    """SOURCE to measure the loss on; default: the run's validation data."""
    max_documents: Count | None = 100
    """Use at most this many documents; None for all."""
    batch_size: Count = 32
    """Documents per batch."""


def check_options(options: RunOptions) -> None:
    """Raise `InputError` for a table of another format, before anything heavy is imported."""
    if options.out is not None and options.out.suffix != ".parquet":
        raise InputError(f"--out {options.out}: the table is parquet, name it {options.out.with_suffix('.parquet')}")


def open_run(options: RunOptions, run: str | None = None) -> tuple[str, Any]:
    """(name for a title, model) of a run, by default that of the checked options."""
    check_options(options)

    from models.checkpoint import load, run_folder, run_label
    from models.provenance import pick_device

    folder = run_folder(options.run if run is None else run)
    model = load(folder, device=pick_device(options.device))
    return f"{model.config.name} ({run_label(folder)})", model


def show(table: "pd.DataFrame", title: str, columns: tuple[str, ...] = (), digits: int = 3) -> None:
    """Print a table; `INTERVAL` among the columns stands for ci_low and ci_high. No value prints "undefined"."""
    from probes.tables import print_table
    from probes.undefined import printable

    shown = printable(table)
    if INTERVAL in columns:
        both = zip(shown["ci_low"], shown["ci_high"], strict=True)
        shown[INTERVAL] = [a if isinstance(a, str) else f"{a:.{digits}f} … {b:.{digits}f}" for a, b in both]
    print_table(shown[list(columns)] if columns else shown, title, digits=digits)


def progress_bar(label: str) -> Callable[[Iterable], Iterable]:
    """A wrapper of iterables that shows a bar on stderr."""

    def bar(steps: Iterable) -> Iterable:
        import sys

        from rich.console import Console
        from rich.progress import track

        return track(steps, description=label, console=Console(file=sys.stderr))

    return bar


def write_results(options: RunOptions, tables: Tables, figure: Any, **about: Any) -> None:
    """Write OUT ("" in `tables`), OUT-<name> for the others, and the figure; nothing without --out.

    `about` goes into the schema metadata, with who computed it and on which run. `figure` may be None, or several by
    name, as the tables.
    """
    from models.provenance import pick_device, provenance
    from probes.tables import write_atomically, write_table

    if options.out is None:
        return
    about = {**provenance(pick_device(options.device)), "run": options.run, **about}
    for name, (table, units) in tables.items():
        path = options.out.with_stem(f"{options.out.stem}-{name}") if name else options.out
        write_table(table, path, units={c: u for c, u in units.items() if c in table}, about=about)
        print(f"table {path}")
    for name, one in (figure if isinstance(figure, Mapping) else {"": figure}).items():
        if one is None:
            continue
        page = options.out.with_stem(f"{options.out.stem}-{name}") if name else options.out
        page, html = page.with_suffix(".html"), one.to_html(include_plotlyjs=True)
        write_atomically(page, lambda part, html=html: part.write_text(html, encoding="utf-8"))
        print(f"figure {page}")


def documents(shards: Any, at_least: int = 1) -> Iterable[list[int]]:
    """The token ids of each document, BOS first; documents shorter than `at_least` are left out."""
    for start, stop in zip(shards.starts[:-1], shards.starts[1:], strict=True):
        if stop - start >= at_least:
            yield shards.tokens[start:stop].tolist()
