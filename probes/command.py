"""What the commands that measure a run share: their arguments, loading, tables on the screen and on disk."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from streamscope.models.bounds import Count
from streamscope.models.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from streamscope.probes.contract import Instrument

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

    from streamscope.models.checkpoint import load, run_folder, run_label
    from streamscope.models.provenance import pick_device

    folder = run_folder(options.run if run is None else run)
    model = load(folder, device=pick_device(options.device))
    return f"{model.config.name} ({run_label(folder)})", model


def show(table: "pd.DataFrame", title: str, columns: tuple[str, ...] = (), digits: int = 3) -> None:
    """Print a table; `INTERVAL` among the columns stands for ci_low and ci_high. No value prints "undefined"."""
    from streamscope.probes.tables import print_table
    from streamscope.probes.undefined import printable

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
        from rich.markup import escape
        from rich.progress import track

        return track(steps, description=escape(label), console=Console(file=sys.stderr))

    return bar


def write_results(options: RunOptions, tables: Tables, figure: Any, **about: Any) -> None:
    """Write OUT ("" in `tables`), OUT-<name> for the others, and the figure; nothing without --out.

    `about` goes into the schema metadata, with who computed it and on which run. `figure` may be None, or several by
    name, as the tables.
    """
    from streamscope.models.disk import write_text
    from streamscope.models.provenance import pick_device, provenance
    from streamscope.probes.tables import write_table

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
        write_text(page, html)
        print(f"figure {page}")


def documents(shards: Any, at_least: int = 1) -> Iterable[list[int]]:
    """The token ids of each document, BOS first; documents shorter than `at_least` are left out."""
    for start, stop in zip(shards.starts[:-1], shards.starts[1:], strict=True):
        if stop - start >= at_least:
            yield shards.tokens[start:stop].tolist()


# ---- the command of an instrument --------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What every command of an instrument takes, beside its own options and those of its data."""

    run: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """RUN…: run folders, snapshots (runs/lfa@512), or bundled models; several make one table, with seeds as units."""
    control: str | None = None
    """A control model of the same layers and heads: its numbers, and what the run has beyond them, unit by unit."""
    out: Path | None = None
    """Write the main table (.parquet) here, the other tables and the observations beside it."""
    figure: Path | None = None
    """Write the first figure here: .html, .svg, .pdf or .png."""
    device: str = "auto"
    """auto, cpu or cuda."""


def main_of(made: "type[Instrument]", doc: str | None = None) -> Callable[..., None]:
    """`main(argv=None)` of an instrument: its fields, its data's and `Arguments` are the options."""

    def main(argv: Sequence[str] | None = None) -> None:
        from streamscope.models.cli import parse

        flat = tyro.conf.OmitArgPrefixes
        kinds = [
            (f"of_{type(one).__name__.lower()}", Annotated[type(one), flat], field(default=one)) for one in made.takes
        ]
        own = (f"of_{made.name}", Annotated[made, flat], field(default=made()))
        options: Any = parse(
            make_dataclass("Options", [*kinds, own], bases=(Arguments,), frozen=True, kw_only=True),
            argv,
            doc or made.__doc__,
        )
        measure(getattr(options, own[0]), [getattr(options, name) for name, *_ in kinds], options)

    return main


def measure(how: "Instrument", data: Sequence[Any], options: Arguments) -> None:
    """Open every run, measure, print, write. What cannot be written is refused before anything is measured."""
    from streamscope.probes.figures import check_figure, write_figure
    from streamscope.probes.result import check_out

    if options.out is not None:
        check_out(options.out)
    if options.figure is not None:
        check_figure(options.figure)
    if options.control is not None and len(options.run) > 1:
        raise InputError("--control stands beside one run; give one, or several runs without a control")

    from streamscope.models.checkpoint import load, run_folder
    from streamscope.models.provenance import pick_device, provenance
    from streamscope.probes.contract import Documents, title_of
    from streamscope.probes.documents import same_tokens
    from streamscope.probes.together import compare, together

    names = options.run or how.runs
    for name in (*names, *([options.control] if options.control is not None else [])):
        run_folder(name)
    device = pick_device(options.device)
    models = [load(name, device=device) for name in names]
    if options.control is not None:
        control = load(options.control, device=device)
        _same_shape(models[0], control, options.control)
        if Documents in map(type, how.takes):
            same_tokens(models[0], control, options.control)
    opened = [how.open(model, *data) for model in models]
    if options.control is not None:
        how = how.settled(opened[0])
        how.check(control)
    result = together([how.run(one, progress_bar(title_of(one.model))) for one in opened])
    if options.control is not None:
        like = how.open(control, *data, like=opened[0])
        beside = how.run(like, progress_bar(f"{title_of(control)}, control"))
        result = compare(result, beside)
    result.print()
    if result.about.get("no_mean"):
        print(result.about["no_mean"])
    if options.out is not None:
        from dataclasses import replace

        whole = replace(result, about={**result.about, **provenance(device), "run": list(names)})
        for path in whole.save(options.out):
            print(f"written {path}")
    if options.figure is not None:
        write_figure(result.figure(), options.figure)
        print(f"figure {options.figure}")


def _same_shape(model: Any, control: Any, name: str) -> None:
    """Raise `InputError` for a control whose heads are not those of the model."""
    (a, b), (c, d) = ((m.config.n_layers, m.config.n_heads) for m in (model, control))
    if (a, b) != (c, d):
        raise InputError(
            f"--control {name} has {c} layers of {d} heads, the model {a} of {b}; "
            "heads can be compared between models of one shape"
        )
