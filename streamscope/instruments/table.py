"""Tables that know their columns: what each is called, counted in, and how it is shown.

A number stands with its interval in one cell, and a p below 1e-4 says so. A cell without a value (a p with one training
seed) is "undefined", with the reason below the table: neither 0 nor a silent NaN. Terminal, notebook and Markdown show
the same cells. On disk a table is parquet, with the reasons in a text column:

    delta_low, delta_high, delta_p: one training seed in a group; r2: the mean response is the same at every gate
"""

import io
import json
import math
import os
import re
import shutil
import tempfile
import weakref
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from html import escape
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import ArrayLike
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text
from safetensors import SafetensorError, safe_open

from streamscope.cli.disk import parse, write_atomically
from streamscope.cli.errors import InputError, reading, unknown
from streamscope.cli.terminal import cell, counted, visible
from streamscope.instruments.observations import Reasons, reasons_of

WORD = 16  # columns of a narrow terminal that a text has at least
NUMBER = re.compile(r"[-+<]? ?\d|undefined|NaN|$")  # how cells begin that hold a number or an interval
UNSIGNED_ZERO = re.compile(r"(?<![^ (])[-+]+(?=[-+0.]*(?![^ )]))")  # the sign of a number that is rounded to zero
LEAST_P = 1e-4
AGAIN = "check the path, restore it, or make it again"

LONGEST = 60  # rows that a table has at most where it shows itself, in a notebook or a Python shell


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a table: what it is called, counted in, and how it is shown.

    `format` is a format specification for numbers, "p" for probabilities, "" for text. `interval` names the columns of
    its 95 % interval, which are shown with it. What is not `shown` is on disk only."""

    name: str
    title: str
    unit: str
    doc: str
    format: str = ""
    interval: tuple[str, str] | None = None
    shown: bool = True
    source: str = ""
    """Where the quantity is defined: a paper and its equation."""

    def text(self, value: Any, low: Any = None, high: Any = None) -> str:
        """The text of a cell: the value with its interval. An interval that is narrower than two units of the last
        digit has two digits of its width. What is rounded to zero has no sign."""
        if value is None or (isinstance(value, float) and np.isnan(value)):
            return "undefined"
        if self.format == "p":
            return "< 1e-4" if value < LEAST_P else f"{value:.4f}"
        if isinstance(value, bool | np.bool_):
            return "yes" if value else "no"
        if self.format.endswith("d") and isinstance(value, float) and value.is_integer():
            value = int(value)  # pandas makes floats of counts where one is missing
        if isinstance(value, str):
            return value
        if low is None or np.isnan(low):
            return UNSIGNED_ZERO.sub("", format(value, self.format))
        spec, width = self.format, float(high) - float(low)
        sign, dot, decimals = spec.rstrip("f").partition(".")
        if spec.endswith("f") and dot and 0 < width < 2 * 10.0 ** -int(decimals):
            digits = 1 - math.floor(math.log10(width))
            spec = spec if digits > 8 else f"{sign}.{digits}f"  # what is narrower is rounding
        return UNSIGNED_ZERO.sub("", f"{value:{spec}} ({low:{spec}} … {high:{spec}})")


def key(name: str, title: str, doc: str, unit: str = "name", format: str = "", shown: bool = True) -> Column:
    """A column that names rows."""
    return Column(name=name, title=title, unit=unit, doc=doc, format=format, shown=shown)


def number(
    name: str, title: str, unit: str, doc: str, format: str = ".4f", shown: bool = True, *, source: str = ""
) -> Column:
    """A column of numbers without an interval."""
    return Column(name=name, title=title, unit=unit, doc=doc, format=format, shown=shown, source=source)


HEAD = (
    key("head", "head", "layer and index"),
    number("layer", "layer", "layer", "counted from 0", "d", shown=False),
    number("index", "head", "head", "of the head in its layer, from 0", "d", shown=False),
)
"""The columns of `observations.head_cells`."""


def quantity(
    name: str, title: str, unit: str, doc: str, *, format: str = "+.4f", sd: str = "units", source: str = "",
    shown: bool = True,
) -> tuple[Column, ...]:  # fmt: skip
    """The columns of a tested estimate as `Estimates.wide` names them.

    A contrast with `tested=False` has an interval and no p: `described`. One with `null=None` is a value: `number`.
    """
    return (
        *described(name, title, unit, doc, format=format, sd=sd, source=source, shown=shown),
        number(f"{name}_p", f"p of {title}", "probability", f"p that {name} is 0", "p", shown=False),
        number(f"{name}_p_holm", "p, Holm", "probability", f"p of {name}, corrected over its family", "p", shown),
    )


def described(
    name: str, title: str, unit: str, doc: str, *, format: str = ".4f", sd: str = "", source: str = "",
    shown: bool = True,
) -> tuple[Column, ...]:  # fmt: skip
    """The columns of an estimate with an interval and no test, and of a standard deviation between `sd`, if given."""
    ends = (f"{name}_low", f"{name}_high")
    value = Column(name=name, title=title, unit=unit, doc=doc, format=format, interval=ends, source=source, shown=shown)
    sd_doc = f"standard deviation of {name} between independent {sd}"
    spread = number(f"{name}_sd", f"sd of {title}", f"{unit}, between {sd}", sd_doc, format, shown=False)
    low = number(ends[0], f"{title}, lower", unit, f"lower end of the 95 % interval of {name}", format, shown=False)
    high = number(ends[1], f"{title}, upper", unit, f"upper end of the 95 % interval of {name}", format, shown=False)
    return (value, spread, low, high) if sd else (value, low, high)


def descending(frame: pd.DataFrame, missing: Reasons, by: Sequence[str]) -> tuple[pd.DataFrame, Reasons]:
    """Rows and reasons in descending order of some columns; equal rows stay in order."""
    order = frame.sort_values(list(by), ascending=False, kind="stable").index
    return frame.loc[order].reset_index(drop=True), reasons_of(missing, order)


def counts(n: str, clusters: str) -> tuple[Column, Column]:
    """The columns n and clusters of `Estimates.wide`."""
    return (
        number("n", "n", n, f"how many {n}", "d", shown=False),
        number("clusters", "independent", clusters, f"how many {clusters}", "d", shown=False),
    )


@dataclass(frozen=True)
class Table:
    """A pandas table, its columns as data, and why cells have no value."""

    frame: pd.DataFrame
    columns: tuple[Column, ...]
    missing: Reasons = field(default_factory=dict)
    title: str = ""
    by: str = ""
    """Where the table is longer than `most`, the rows with the largest values of this column are shown."""
    most: int = 40
    per: tuple[str, ...] = ()
    """`most` rows of each combination of these columns' values are shown."""

    def __post_init__(self) -> None:
        described, place = pd.Index([*map(attrgetter("name"), self.columns)]), f"table {self.title!r}:"
        if len(strange := self.frame.columns.difference(described, sort=False)):
            raise InputError(f"{place} column {strange[0]!r} has no title, unit and doc: describe it in columns")
        if len(strange := described.difference(self.frame.columns, sort=False)):
            raise InputError(f"{place} column {strange[0]!r} is described, but not there")
        for column in self.columns:
            if not (column.name.strip() and column.title.strip() and column.unit.strip() and column.doc.strip()):
                raise InputError(f"{place} column {column.name!r} needs a title, a unit and a doc: say what it is")
        for row, name in self.missing:
            if pd.notna(self.frame[name].iloc[row]):
                raise InputError(f"{place} {name} of row {row} has a value and a reason for having none")

    @classmethod
    def noted(cls, frame: pd.DataFrame, columns: tuple[Column, ...], title: str) -> "Table":
        """The table of a frame whose text column `undefined` says why cells, where it has them, have no value."""
        missing: Reasons = {}
        for i, text in enumerate(frame.get(UNDEFINED, [])):
            missing |= {(i, name): reason for name, reason in read_note(text).items() if name in frame}
        return cls(frame.drop(columns=UNDEFINED, errors="ignore"), columns, missing, title)

    @classmethod
    def plain(cls, frame: pd.DataFrame, title: str = "") -> "Table":
        """The table of a frame whose columns need no description, for the screen: they are titled by their names."""
        formats = [{"f": ".4f", "i": ",d", "u": ",d"}.get(frame[name].dtype.kind, "") for name in frame]
        columns = [key(name, name, name, format=format) for name, format in zip(frame, formats, strict=True)]
        return cls(frame, tuple(columns), title=title)

    def column(self, name: str) -> Column:
        columns = {column.name: column for column in self.columns}
        if name not in columns:
            raise unknown("column", name, list(columns))
        return columns[name]

    def head(self, n: int = 20) -> "Table":
        """The first n rows."""
        return self.only(range(min(n, len(self.frame))), self.title)

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """The rows as files hold them (`with_reasons`); all columns without `columns`."""
        table = pa.Table.from_pandas(with_reasons(self), preserve_index=False)
        return iter([table if columns is None else table.select(columns)])

    def only(self, rows: Sequence[int], title: str) -> "Table":
        """Some of the rows, by their places, under another title."""
        frame = self.frame.iloc[list(rows)].reset_index(drop=True)
        return replace(self, frame=frame, missing=reasons_of(self.missing, rows), title=title)

    def rows(self) -> pd.DataFrame:
        """The rows that are shown."""
        if not self.by or len(self.frame) <= self.most:
            return self.frame
        largest = self.frame.loc[self.frame[self.by].abs().sort_values(ascending=False, kind="stable").index]
        if not self.per:
            return largest.iloc[: self.most]
        return largest.groupby(list(self.per)).head(self.most).sort_values(list(self.per), kind="stable")

    def caption(self) -> str:
        """The title, and how many of the rows are shown where these are not all."""
        shown, all_of = len(self.rows()), len(self.frame)
        if shown == all_of:
            return self.title
        titles = dict(map(attrgetter("name", "title"), self.columns))
        group = f" of each {' and '.join(map(titles.__getitem__, self.per))}" if self.per else ""
        largest = f"those with the largest {titles[self.by]}{group}"
        return f"{self.title}; {shown} of {all_of} rows, {largest}"

    def shown(self) -> list[Column]:
        """The columns that are shown. Titles of corrected p name their quantities where there are several."""
        shown = [*filter(attrgetter("shown"), self.columns)]
        titles, renamed = dict(map(attrgetter("name", "title"), self.columns)), shown.copy()
        for i, column in enumerate(shown):
            if column.name.endswith("_p_holm") and (title := titles.get(column.name.removesuffix("_p_holm"))):
                renamed[i] = replace(column, title=f"{column.title}, of {title}")
        return renamed if len({*renamed} - {*shown}) > 1 else shown

    def cells(self) -> tuple[list[Column], list[list[str]]]:
        """The columns that are shown, and the text of every cell, row by row."""
        shown, frame, texts = self.shown(), self.rows(), []
        for column in shown:
            values = frame[[column.name, *(column.interval or ())]].to_dict("list").values()
            texts.append(map(column.text, *values))
        return shown, [*map(list, zip(*texts, strict=True))]

    def legend(self) -> list[str]:
        """One line per reason: undefined (2 rows) delta: the same in every document."""
        titles, lines = dict(map(attrgetter("name", "title"), self.shown())), []
        count, columns = Counter[tuple[str, str]](), defaultdict[tuple[str, int], list[str]](list)
        for (_, name), reason in self.missing.items():
            if name in titles:
                count[name, reason] += 1
        for (name, reason), n in count.items():
            columns[reason, n].append(titles[name])
        for (reason, n), names in columns.items():
            lines.append(f"undefined ({counted(n, 'row')}) {', '.join(names)}: {reason}")
        return lines

    def print(self, console: Console | None = None) -> None:
        """On the terminal, with the reasons of missing values below; 160 columns wide where there is no terminal.

        Where the columns need more room texts and titles fold, and numbers stay whole.
        """
        columns, rows = self.cells()
        terminal, grid = console or Console(), Grid()
        width = terminal.width if terminal.is_terminal or console is not None else 160
        for column in columns:
            justify: Any = "right" if column.format else "left"
            grid.add_column(Text(visible(column.title)), justify=justify, overflow="fold")
        for row in rows:
            grid.add_row(*map(Text, map(partial(visible, keep="\n"), row)))
        if grid.__rich_measure__(terminal, terminal.options.update(width=10_000)).maximum > width:
            least = 1
            for column, grid_column in zip(columns, grid.columns, strict=True):
                texts = [*map(str, grid_column.cells)]
                if column.format or all(map(NUMBER.match, texts)):
                    grid_column.width = max(map(cell_len, [*texts, *visible(column.title).split()]))
                least += 3 + (grid_column.width or WORD)
            width = max(width, least)
        output = terminal
        if width != terminal.width:
            output = Console(width=width, file=terminal.file, force_jupyter=terminal.is_jupyter)
        if self.title:
            output.print(Text(visible(self.caption(), keep="\n"), style="italic"))
        output.print(grid)
        for line in self.legend():
            print(visible(line), file=output.file)

    def column_legend(self) -> str:
        """What every shown column means, a line each: its title, its documentation and its unit."""
        return "\n".join(map("  {0.title}: {0.doc} ({0.unit})".format, self.shown()))

    def _brief(self) -> "Table":
        if len(self.rows()) <= LONGEST:
            return self
        return replace(self.head(), by="", title=f"{self.title}; the first 20 of {len(self.frame):,} rows")

    def __repr__(self) -> str:
        """As on the terminal; of a long table the first rows."""
        console = Console(file=io.StringIO(), force_jupyter=False)  # a notebook shows `_repr_html_`, once
        self._brief().print(console)
        return console.file.getvalue().rstrip("\n")  # type: ignore[attr-defined]

    def markdown(self) -> str:
        """As a Markdown table, with its title above and the reasons of missing values below."""
        columns, rows = self.cells()
        lines = [f"**{cell(self.caption())}**", ""] if self.title else []
        lines.append("| " + " | ".join(cell(c.title) for c in columns) + " |")
        lines.append("|" + "|".join("--:" if c.format else "---" for c in columns) + "|")
        lines += ["| " + " | ".join(map(cell, row)) + " |" for row in rows]
        return "\n".join([*lines, *(f"\n{cell(line)}" for line in self.legend())])

    def _repr_html_(self) -> str:
        return self._brief().html()

    def html(self) -> str:
        """As an HTML table, its title the caption, with the reasons of missing values below."""
        columns, rows = self.cells()
        titles = [f'<th title="{escape(f"{c.doc} ({c.unit})")}">{escape(c.title)}</th>' for c in columns]
        styles = [f'<td style="text-align:{"right" if c.format else "left"}">' for c in columns]
        body = ["".join(f"{td}{escape(x)}</td>" for td, x in zip(styles, row, strict=True)) for row in rows]
        lines = "".join(f"<tr>{cells}</tr>" for cells in body)
        below = "".join(f"<p><small>{escape(line)}</small></p>" for line in self.legend())
        title = f"<caption>{escape(self.caption())}</caption>" if self.title else ""
        return f"<table>{title}<thead><tr>{''.join(titles)}</tr></thead><tbody>{lines}</tbody></table>{below}"


class Scratch:
    """A temporary folder, deleted with the last that holds it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="streamscope-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)


class LongTable(Table):
    """A table of more rows than memory should hold, in parquet files that are read in batches.

    Every row has a value in every column. `frame` reads all of them; what is printed are the first `most`."""

    def __init__(
        self, files: Sequence[Path], columns: tuple[Column, ...], title: str = "", *, most: int = 5, keep: Any = None
    ) -> None:
        """`files` hold the rows one after the other, with the same columns; `keep` lives as long as this table."""
        self.__dict__.update(files=tuple(files), columns=columns, title=title, most=most, keep=keep, missing={})
        Table(pq.read_schema(self.files[0]).empty_table().to_pandas(), columns, title=title)

    if TYPE_CHECKING:
        files: tuple[Path, ...]
        keep: Any

    @classmethod
    def of(
        cls, batches: Iterable[pa.Table | pd.DataFrame], columns: tuple[Column, ...], title: str = "", *, most: int = 5
    ) -> "LongTable":
        """The rows of the batches, one after the other, in a temporary file that goes with the table."""
        scratch = Scratch()
        path = scratch.folder / "rows.parquet"
        frames = (pa.Table.from_pandas(b, preserve_index=False) if isinstance(b, pd.DataFrame) else b for b in batches)
        write_batches(path, (batch.replace_schema_metadata(None) for batch in frames), {})
        return cls([path], columns, title, most=most, keep=scratch)

    def __len__(self) -> int:
        return sum(map(attrgetter("num_rows"), map(pq.read_metadata, self.files)))

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """The rows, a row group of a file at a time; all columns without `columns`."""
        for path in self.files:
            with reading(path, AGAIN), pq.ParquetFile(path) as file:
                for i in range(file.num_row_groups):
                    yield file.read_row_group(i, columns=columns)

    @property
    def frame(self) -> pd.DataFrame:
        """All rows, in memory."""
        return pd.concat([batch.to_pandas() for batch in self.batches()], ignore_index=True)

    def head(self, n: int = 20) -> Table:
        parts: list[pa.Table] = []
        for batch in self.batches():
            parts.append(batch)
            if sum(map(len, parts)) >= n:
                break
        shown = f"{self.title}; the first {min(n, len(self)):,} of {len(self):,} rows" if n < len(self) else self.title
        return Table(pa.concat_tables(parts).slice(0, n).to_pandas(), self.columns, title=shown)

    def rows(self) -> pd.DataFrame:
        return self.head(self.most).frame

    def caption(self) -> str:
        return self.head(self.most).title

    def _brief(self) -> Table:
        return self if self.most <= LONGEST else self.head()


def write_batches(
    path: Path, batches: Iterable[pa.Table], meta: Mapping[bytes, bytes], *, dictionary: bool = False
) -> None:
    """Parquet of the batches one after the other, a row group for each, under its name when it is complete.

    Equal texts are written once (a dictionary), with `dictionary` equal values of every column.
    """

    def write(part: Path) -> None:
        iterator = iter(batches)
        if (first := next(iterator, None)) is None:
            raise InputError(f"{path.name}: no rows to write")
        schema = first.schema.with_metadata({**(first.schema.metadata or {}), **meta})
        texts = [field.name for field in schema if str(field.type) in ("string", "large_string")]
        with pq.ParquetWriter(part, schema, use_dictionary=dictionary or texts) as writer:
            for batch in chain([first], iterator):
                writer.write_table(batch.cast(schema))

    write_atomically(path, write)


UNDEFINED = "undefined"


def note(reasons: Mapping[str, str]) -> str:
    """The text of an `undefined` cell, "column, column: reason; column: reason"; "" when everything is defined."""
    by_reason: dict[str, list[str]] = {}
    for column, reason in reasons.items():
        if set(":;,") & set(column) or ";" in reason or not reason.strip():
            raise InputError(f"undefined cell {column!r}: a name without ':;,' and a reason without ';', please")
        by_reason.setdefault(reason, []).append(column)
    return "; ".join(f"{', '.join(columns)}: {reason}" for reason, columns in by_reason.items())


def read_note(text: str) -> dict[str, str]:
    """`note` read back: column -> reason."""
    parts = (part.split(": ", 1) for part in text.split("; ") if part)
    return {column: reason for columns, reason in parts for column in columns.split(", ")}


def mark(table: pd.DataFrame, columns: Sequence[str], mask: ArrayLike, reason: str) -> pd.DataFrame:
    """A copy whose `columns` are NaN in the rows `mask`, with the reason in the column `undefined`."""
    rows, new = np.asarray(mask, bool), table.copy()
    texts = new[UNDEFINED].to_list() if UNDEFINED in new else [""] * len(new)
    added = {column: reason for column in columns}
    new[UNDEFINED] = [note({**read_note(b), **added}) if hit else b for b, hit in zip(texts, rows, strict=True)]
    new.loc[rows, list(columns)] = np.nan
    return new


def with_reasons(table: Table) -> pd.DataFrame:
    """The frame with the reasons of missing values as the text column `undefined`."""
    rows: list[dict[str, str]] = [{} for _ in range(len(table.frame))]
    for (row, name), reason in table.missing.items():
        rows[row][name] = reason
    return table.frame.assign(**{UNDEFINED: list(map(note, rows))})


# ---- tables on disk: parquet with units and provenance in the schema ---------------------------


def read_parquet(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of a parquet file; `InputError` for one that is damaged."""
    with reading(path, AGAIN):
        return pq.read_table(path, columns=columns)


def write_table(table: pd.DataFrame, path: Path, *, units: Mapping[str, str], about: Mapping[str, Any]) -> None:
    """Write parquet under a temporary name, then rename. Schema metadata: `units` and `about`, as JSON."""
    rows = pa.Table.from_pandas(table, preserve_index=False)
    write_batches(path, [rows], json_meta({"units": dict(units), "about": dict(about)}), dictionary=True)


def json_meta(meta: Mapping[str, Any]) -> dict[bytes, bytes]:
    """Schema metadata as JSON; numbers of numpy are plain ones."""
    return {name.encode(): json.dumps(x, default=plain_number).encode() for name, x in meta.items()}


def plain_number(x: Any) -> Any:
    """What JSON holds of a number or an array of numpy; of others their text."""
    return x.tolist() if hasattr(x, "tolist") else str(x)


def read_about(path: Path, names: Sequence[str] = ("about", "units")) -> dict[str, Any]:
    """The entries `names` of a table's metadata, if it has them; `InputError` for no parquet, or a damaged one."""
    with reading(path, AGAIN):
        meta = pq.read_schema(path).metadata or {}
    entries = {name: meta[name.encode()] for name in names if name.encode() in meta}
    return {name: parse(text, dict[str, Any], f"{name} of {path}") for name, text in entries.items()}


def maker_of(path: Path) -> str:
    """The instrument, or the module such as papers.circuits, that wrote a file; "" where there is no file of ours."""
    try:
        if path.suffix == ".csv":
            sidecar = path.with_name(f"{path.stem}-about.json")
            about = json.loads(sidecar.read_text("utf-8"))["about"] if os.path.isfile(path) else {}
        elif path.suffix == ".safetensors":
            with safe_open(path, framework="np") as file:
                about = json.loads((file.metadata() or {})["about"])
        else:
            about = read_about(path).get("about", {})
        return str(about.get("instrument", ""))
    except (InputError, SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ""


def check_own(path: Path, module: str) -> None:
    """Raise `InputError` if another command than `module` wrote the table at `path`, or others' tensors lie there."""
    maker = maker_of(path)
    if maker and maker != module:
        raise InputError(f"{path} holds a table of {maker}, which would be lost; name another file, or delete it")
    if not maker and path.suffix == ".safetensors" and os.path.exists(path):  # False for a name that is too long
        raise InputError(f"{path} holds no arrays of {module}, and would be lost; name another file, or move it")
