"""What an instrument gives back: tables that know their columns, and all that is needed to draw and compare them again.

    r = Ablate(heads="L4.*").measure(model, Documents("valid.txt"))
    r                                           the tables; in a notebook with the first figure
    r.table("heads").frame                      a pandas table
    r.figure("delta")                           plotly
    r.save("heads.parquet", figure="heads.pdf")
    Result.load("heads.parquet")

One renderer serves terminal, notebook, Markdown and HTML: a number stands with its interval in one cell, a p below 1e-4
says so, and a cell without a value is "undefined", with the reason below the table.
"""

import html
import io
import json
import os
import secrets
import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from pyarrow import csv
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid
from rich.text import Text
from safetensors import SafetensorError, safe_open

from streamscope.models.disk import check_writable, write_atomically, write_text
from streamscope.models.errors import InputError, unknown
from streamscope.models.plain import cell, visible
from streamscope.models.tensors import read_tensors, write_tensors
from streamscope.probes.contract import discover
from streamscope.probes.figures import OVER, over_steps, write_figure
from streamscope.probes.observations import Contrast, Measure, Observations, Reasons
from streamscope.probes.tables import (
    probability,
    read_meta,
    read_parquet,
    reading,
    widths,
    with_checksum,
    write_parquet,
)
from streamscope.probes.undefined import COLUMN as UNDEFINED
from streamscope.probes.undefined import note
from streamscope.probes.undefined import reasons as read_reasons

FORMAT = 2
"""Of the files written by `Result.save`."""
LONGEST = 60
"""Rows that a table has at most where it shows itself, in a notebook or a Python shell."""
OBSERVED = "observations"
"""What the file of observations adds to the main table's name."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a table: what it is called, counted in, and how it is shown.

    `format` is a format specification for numbers, "p" for probabilities, "" for text. `interval` names the columns of
    its 95 % interval, which are shown with it. What is not `shown` is on disk only.
    """

    name: str
    title: str
    unit: str
    doc: str
    format: str = ""
    interval: tuple[str, str] | None = None
    shown: bool = True
    source: str = ""
    """Where the quantity is defined: a paper and its equation."""

    def __post_init__(self) -> None:
        for what in ("name", "title", "unit", "doc"):
            if not str(getattr(self, what)).strip():
                raise InputError(f"column {self.name!r} has no {what}; say what it is, and what it is counted in")

    def text(self, value: Any, low: Any = None, high: Any = None) -> str:
        """The value as it is shown, with its interval."""
        if value is None or (isinstance(value, float) and np.isnan(value)):
            return "undefined"
        if self.format == "p":
            return probability(value)
        if isinstance(value, bool | np.bool_):
            return "yes" if value else "no"
        if self.format.endswith("d") and isinstance(value, float) and value.is_integer():
            value = int(value)  # pandas makes floats of counts where one is missing
        shown = value if isinstance(value, str) else format(value, self.format)
        if low is not None and not np.isnan(low):
            shown += f" ({low:{self.format}} … {high:{self.format}})"
        return shown


def key(name: str, title: str, doc: str, unit: str = "name", format: str = "") -> Column:
    """A column that names rows."""
    return Column(name=name, title=title, unit=unit, doc=doc, format=format)


HEAD = (
    key("head", "head", "layer and index"),
    Column(name="layer", title="layer", unit="layer", format="d", doc="counted from 0", shown=False),
    Column(name="index", title="head", unit="head", format="d", doc="of the head in its layer, from 0", shown=False),
)
"""The columns of `observations.head_cells`."""


def quantity(
    name: str, title: str, unit: str, doc: str, *, format: str = "+.4f", tested: bool = True, sd: str = "units",
    source: str = "", shown: bool = True,
) -> tuple[Column, ...]:  # fmt: skip
    """The columns of an estimate as `Estimates.wide` names them; of a described one the value alone."""
    if not tested:
        return (Column(name=name, title=title, unit=unit, doc=doc, format=format, source=source, shown=shown),)
    return (
        *described(name, title, unit, doc, format=format, sd=sd, source=source, shown=shown),
        Column(name=f"{name}_p", title=f"p of {title}", unit="probability", doc=f"p that {name} is 0", format="p",
               shown=False),
        Column(name=f"{name}_p_holm", title="p, Holm", unit="probability", format="p", shown=shown,
               doc=f"p of {name}, corrected over its family"),
    )  # fmt: skip


def described(
    name: str, title: str, unit: str, doc: str, *, format: str = ".4f", sd: str = "", source: str = "",
    shown: bool = True,
) -> tuple[Column, ...]:  # fmt: skip
    """The columns of an estimate with an interval and no test; sd is there where it says between what it is."""
    ends = (f"{name}_low", f"{name}_high")
    value = Column(name=name, title=title, unit=unit, doc=doc, format=format, interval=ends, source=source, shown=shown)
    spread = Column(name=f"{name}_sd", title=f"sd of {title}", unit=f"{unit}, between {sd}", format=format, shown=False,
                    doc=f"standard deviation of {name} between independent {sd}")  # fmt: skip
    low, high = (
        Column(name=end, title=f"{title}, {which}", unit=unit, doc=f"{which} end of the 95 % interval of {name}",
               format=format, shown=False)
        for end, which in zip(ends, ("lower", "upper"), strict=True)
    )  # fmt: skip
    return (value, *([spread] if sd else []), low, high)


def descending(frame: pd.DataFrame, missing: Reasons, by: Sequence[str]) -> tuple[pd.DataFrame, Reasons]:
    """Rows and reasons in descending order of some columns; equal rows stay in order."""
    order = frame.sort_values(list(by), ascending=False, kind="stable").index
    at = {old: new for new, old in enumerate(order)}
    return frame.loc[order].reset_index(drop=True), {(at[row], name): why for (row, name), why in missing.items()}


SHORT = {"sd": "sd", "low": "ci_low", "high": "ci_high", "p": "p", "p_holm": "p_holm"}


def short_units(columns: Sequence[Column], name: str = "") -> dict[str, str]:
    """The units of `Table.short`."""
    names = {f"{name}_{long}": short for long, short in SHORT.items()}
    return {names.get(column.name, column.name): column.unit for column in columns}


def counts(n: str, clusters: str) -> tuple[Column, Column]:
    """The columns n and clusters of `Estimates.wide`."""
    return (
        Column(name="n", title="n", unit=n, doc=f"how many {n}", format="d", shown=False),
        Column(
            name="clusters", title="independent", unit=clusters, doc=f"how many {clusters}", format="d", shown=False
        ),
    )


@dataclass(frozen=True)
class Table:
    """A pandas table, its columns as data, and why cells have no value.

    Raises `InputError` for a column of the frame that is not described, a described one that is not there, and a cell
    that has a value and a reason for having none.
    """

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
        names = [column.name for column in self.columns]
        if strange := [name for name in self.frame if name not in names]:
            raise InputError(f"table {self.title!r}: column {strange[0]!r} has no title, unit and doc")
        if strange := [name for name in names if name not in self.frame]:
            raise InputError(f"table {self.title!r}: column {strange[0]!r} is described, but not there")
        for row, name in self.missing:
            if pd.notna(self.frame[name].iloc[row]):
                raise InputError(f"table {self.title!r}: {name} of row {row} has a value and a reason for having none")

    @classmethod
    def noted(cls, frame: pd.DataFrame, columns: tuple[Column, ...], title: str) -> "Table":
        """The table of a frame whose text column `undefined` says why cells have no value (`undefined.note`)."""
        texts = frame.get(UNDEFINED, [])
        missing = {(i, name): why for i, text in enumerate(texts) for name, why in read_reasons(text).items()}
        return cls(frame.drop(columns=UNDEFINED, errors="ignore"), columns, missing, title)

    def column(self, name: str) -> Column:
        """The description of a column."""
        for one in self.columns:
            if one.name == name:
                return one
        raise unknown("column", name, [one.name for one in self.columns])

    def short(self, name: str = "") -> pd.DataFrame:
        """The frame with short names for the columns of one quantity (or of none), as `papers` keeps them.

        sd, ci_low, ci_high, p and p_holm, and the reasons of missing values as the text column `undefined`.
        """
        names = {f"{name}_{long}": short for long, short in SHORT.items()}
        told = Table(
            self.frame.rename(columns=names),
            tuple(replace(c, name=names.get(c.name, c.name)) for c in self.columns),
            {(row, names.get(column, column)): why for (row, column), why in self.missing.items()},
        )
        return _told(told)

    def head(self, n: int = 20) -> "Table":
        """The first n rows."""
        kept = {at: why for at, why in self.missing.items() if at[0] < n}
        return replace(self, frame=self.frame.head(n), missing=kept)

    def only(self, rows: Sequence[int], title: str) -> "Table":
        """Some of the rows, by their places, under another title."""
        at = {old: new for new, old in enumerate(rows)}
        kept = {(at[row], name): why for (row, name), why in self.missing.items() if row in at}
        return replace(self, frame=self.frame.iloc[list(rows)].reset_index(drop=True), missing=kept, title=title)

    def rows(self) -> pd.DataFrame:
        """The rows that are shown."""
        if not self.by or len(self.frame) <= self.most:
            return self.frame
        size = self.frame[self.by].abs().sort_values(ascending=False, kind="stable")
        if self.per:
            return self.frame.loc[size.index].groupby(list(self.per)).head(self.most).sort_values(
                list(self.per), kind="stable"
            )  # fmt: skip
        return self.frame.loc[size.index[: self.most]]

    def caption(self) -> str:
        """The title, and how many of the rows are shown where these are not all."""
        shown, all_of = len(self.rows()), len(self.frame)
        if shown == all_of:
            return self.title
        of = f" of each {' and '.join(self.column(name).title for name in self.per)}" if self.per else ""
        return f"{self.title}; {shown} of {all_of} rows, those with the largest {self.column(self.by).title}{of}"

    def cells(self) -> tuple[list[Column], list[list[str]]]:
        """The columns that are shown, and the text of every cell."""
        shown, frame = [column for column in self.columns if column.shown], self.rows()
        texts = []
        for column in shown:
            values = frame[column.name].tolist()
            if column.interval is None:
                texts.append([column.text(v) for v in values])
            else:
                ends = zip(*(frame[end].tolist() for end in column.interval), strict=True)
                texts.append([column.text(v, low, high) for v, (low, high) in zip(values, ends, strict=True)])
        return shown, [list(row) for row in zip(*texts, strict=True)]

    def legend(self) -> list[str]:
        """One line per reason: undefined (2 rows) delta: the same in every document."""
        names = {column.name for column in self.columns if column.shown}
        count = Counter((name, why) for (_, name), why in self.missing.items() if name in names)
        lines: dict[tuple[str, int], list[str]] = {}
        for (name, why), n in count.items():
            lines.setdefault((why, n), []).append(self.column(name).title)
        return [
            f"undefined ({n} row{'s' if n > 1 else ''}) {', '.join(titles)}: {why}"
            for (why, n), titles in lines.items()
        ]

    def print(self, console: Any = None) -> None:
        """On the terminal. Names fold where it is narrow; numbers are never cut."""
        columns, rows = self.cells()
        rows = [[visible(text, keep="\n") for text in row] for row in rows]
        terminal, grid = console or Console(), Grid()
        given, width = widths(
            [column.title for column in columns], [[row[i] for row in rows] for i in range(len(columns))],
            [bool(column.format) for column in columns],
            terminal.width if terminal.is_terminal or console is not None else 160,
        )  # fmt: skip
        out = (
            terminal
            if width == terminal.width
            else Console(width=width, file=terminal.file, force_jupyter=terminal.is_jupyter)
        )
        for column, wide in zip(columns, given, strict=True):
            justify: Any = "right" if column.format else "left"
            grid.add_column(escape(visible(column.title)), justify=justify, overflow="fold", width=wide)
        for row in rows:
            grid.add_row(*map(escape, row))
        if self.title:
            out.print(Text(visible(self.caption(), keep="\n"), style="italic"))
        out.print(grid)
        for line in self.legend():
            print(visible(line), file=out.file)

    def _brief(self) -> "Table":
        """The table, or the first rows of a long one, which its title then says."""
        if len(self.rows()) <= LONGEST:
            return self
        return replace(self.head(), by="", title=f"{self.title}; the first 20 of {len(self.frame):,} rows")

    def __repr__(self) -> str:
        """As on the terminal; of a long table the first rows."""
        written = Console(file=io.StringIO(), force_jupyter=False)  # a notebook shows `_repr_html_`, once
        self._brief().print(written)
        return written.file.getvalue().rstrip("\n")  # type: ignore[attr-defined]

    def markdown(self) -> str:
        """As a Markdown table, with its title above and the reasons of missing values below."""
        columns, rows = self.cells()
        lines = [f"**{cell(self.caption())}**", ""] if self.title else []
        lines.append("| " + " | ".join(cell(c.title) for c in columns) + " |")
        lines.append("|" + "|".join("--:" if c.format else "---" for c in columns) + "|")
        lines += ["| " + " | ".join(map(cell, row)) + " |" for row in rows]
        return "\n".join([*lines, *(f"\n{cell(line)}" for line in self.legend())])

    def _repr_html_(self) -> str:
        brief = self._brief()
        columns, rows = brief.cells()
        head = "".join(f'<th title="{html.escape(f"{c.doc} ({c.unit})", quote=True)}">{html.escape(c.title)}</th>'
                       for c in columns)  # fmt: skip
        align = ["right" if c.format else "left" for c in columns]
        body = "".join(
            "<tr>"
            + "".join(f'<td style="text-align:{a}">{html.escape(x)}</td>' for a, x in zip(align, row, strict=True))
            + "</tr>"
            for row in rows
        )  # fmt: skip
        below = "".join(f"<p><small>{html.escape(line)}</small></p>" for line in brief.legend())
        title = f"<caption>{html.escape(brief.caption())}</caption>" if self.title else ""
        return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"


class Scratch:
    """A temporary folder, deleted with the last that holds it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="streamscope-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)


class LongTable(Table):
    """A table of more rows than memory should hold: they lie in parquet files and are read in batches.

    Every row has a value in every column. `frame` reads all of them; what is printed are the first `most`.
    """

    def __init__(
        self, files: Sequence[Path], columns: tuple[Column, ...], title: str = "", *, most: int = 5, keep: Any = None
    ) -> None:
        """`files` hold the rows one after the other, with the same columns; `keep` lives as long as this table.

        Raises `InputError` as `Table`.
        """

        self.__dict__.update(files=tuple(files), columns=columns, title=title, most=most, keep=keep, missing={})
        Table(pq.read_schema(self.files[0]).empty_table().to_pandas(), columns, title=title)

    if TYPE_CHECKING:
        files: tuple[Path, ...]
        keep: Any

    @classmethod
    def of(
        cls, batches: Iterable[pa.Table | pd.DataFrame], columns: tuple[Column, ...], title: str = "", *, most: int = 5
    ) -> "LongTable":
        """The rows of the batches, one after the other, in a temporary file that goes with the table.

        Raises `InputError` without a batch, and as `Table`.
        """

        scratch = Scratch()
        path = scratch.folder / "rows.parquet"
        frames = (pa.Table.from_pandas(b, preserve_index=False) if isinstance(b, pd.DataFrame) else b for b in batches)
        write_batches(path, (one.replace_schema_metadata(None) for one in frames), {})
        return cls([path], columns, title, most=most, keep=scratch)

    def __len__(self) -> int:

        return sum(pq.read_metadata(path).num_rows for path in self.files)

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """The rows, a row group of a file at a time; all columns without `columns`."""

        for path in self.files:
            with reading(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
                for i in range(file.num_row_groups):
                    yield file.read_row_group(i, columns=columns)

    @property
    def frame(self) -> pd.DataFrame:
        """All rows, in memory."""
        return pd.concat([batch.to_pandas() for batch in self.batches()], ignore_index=True)

    def head(self, n: int = 20) -> Table:
        """The first n rows."""
        parts, left = [], n
        for batch in self.batches():
            parts.append(batch.slice(0, left).to_pandas())
            left -= len(parts[-1])
            if left <= 0:
                break
        shown = f"{self.title}; the first {min(n, len(self)):,} of {len(self):,} rows" if n < len(self) else self.title
        return Table(pd.concat(parts, ignore_index=True), self.columns, title=shown)

    def rows(self) -> pd.DataFrame:
        """The rows that are shown."""
        return self.head(self.most).frame

    def caption(self) -> str:
        """The title, and how many of the rows are shown where these are not all."""
        return self.head(self.most).title

    def _brief(self) -> Table:
        return self if self.most <= LONGEST else self.head()


def write_batches(path: Path, batches: Iterable[pa.Table], told: Mapping[bytes, bytes]) -> None:
    """Parquet of the batches one after the other, a row group for each, under its name when it is complete.

    Raises `InputError` without a batch.
    """

    def write(part: Path) -> None:
        writer: Any = None
        try:
            for batch in batches:
                if writer is None:
                    schema = batch.schema.with_metadata({**(batch.schema.metadata or {}), **told})
                    texts = [field.name for field in schema if str(field.type) in ("string", "large_string")]
                    writer = pq.ParquetWriter(part, schema, use_dictionary=texts, write_page_checksum=True)
                writer.write_table(batch.cast(schema))
        finally:
            if writer is not None:
                writer.close()
        if writer is None:
            raise InputError(f"{path.name}: no rows to write")

    write_atomically(path, write)


@dataclass(frozen=True)
class Result:
    """Tables by name (the first is the main one), what they were estimated from, figures, arrays, and provenance.

    `blocks` are the observations and `contrasts` the estimates made of them, by the same names, so that a loaded
    result can be compared and pooled without the model. `arrays` are kept as safetensors.
    """

    tables: Mapping[str, Table]
    blocks: Mapping[str, Observations] = field(default_factory=dict)
    contrasts: Mapping[str, Sequence[Contrast]] = field(default_factory=dict)
    figures: tuple[Any, ...] = ()
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.about.get(OVER):
            object.__setattr__(self, "figures", over_steps(self.figures, self.tables))

    def table(self, name: str | None = None) -> Table:
        """A table by name, the main one without."""
        if name is None:
            return next(iter(self.tables.values()))
        if name not in self.tables:
            raise unknown("table", name, list(self.tables))
        return self.tables[name]

    def figure(self, name: str | None = None, **how: Any) -> Any:
        """A declared figure by name as plotly figure, the first that has something to show without.

        `how`: paper=True for a column's width and fonts, dark=True. Raises `InputError` where none can be drawn.
        """
        known = {one.name: one for one in self.figures}
        if not known:
            who = self.about.get("instrument", "?")
            raise InputError(f"instrument {who!r} declares no figure here; import its module, then load")
        if name is not None and name not in known:
            raise unknown("figure", name, list(known))
        for one in self.figures if name is None else (known[name],):
            drawn = one.draw(self, **how)
            if drawn is not None:
                return drawn
        raise InputError(
            f"{'no figure has' if name is None else f'figure {name!r} has no'} values to show in this result"
        )

    def print(self) -> None:
        """Every table on the terminal."""
        for table in self.tables.values():
            table.print()

    def __repr__(self) -> str:
        """Every table as on the terminal, and what else there is."""
        named = {
            "table": list(self.tables),
            "figure": [one.name for one in self.figures if one.table in (None, *self.tables)],
            "array": list(self.arrays),
        }
        rest = [
            f"{what}s: {', '.join(names[:9])}{', …' if names[9:] else ''}" for what, names in named.items() if names
        ]
        return "\n".join([*map(repr, self.tables.values()), "; ".join(rest)])

    def _repr_html_(self) -> str:
        parts = [table._repr_html_() for table in self.tables.values()]
        drawn = next((d for one in self.figures if (d := one.draw(self)) is not None), None)
        if drawn is not None:
            parts.append(drawn.to_html(full_html=False, include_plotlyjs="cdn"))
        return "".join(parts)

    # ---- disk ----------------------------------------------------------------------------------

    def save(self, path: str | Path, figure: str | Path | None = None) -> list[Path]:
        """Write PATH (the main table), PATH-<name> of the others, PATH-observations, and a figure.

        Tables are parquet with units, columns, reasons and provenance; the figure is html, svg, pdf or png by its
        suffix. Every file is complete when it bears its name; the paths are returned. What another instrument wrote is
        not written over. Tables and observations of an
        earlier result at PATH that this one does not have are deleted. PATH.csv are the tables alone, as text with
        every digit, and what is known about them as JSON, PATH-about.json; only parquet can be loaded again. Raises
        `InputError` for another suffix and for what cannot be written.
        """

        maker, path = str(self.about.get("instrument", "")), check_out(Path(path))
        names = list(self.tables)
        if strange := [name for name in names if "/" in name or name in ("", ".", "..", OBSERVED)]:
            raise InputError(f"a table called {strange[0]!r} cannot be a file; name it otherwise")
        files = [path, *(path.with_stem(f"{path.stem}-{name}") for name in (*names[1:], OBSERVED))]
        for one in [*files, *([path.with_suffix(".safetensors")] if self.arrays else [])] if maker else ():
            _keep_others(one, maker)
        if path.suffix == ".csv":
            return self._save_text(path, figure)
        about = {**self.about, "format": FORMAT, "tables": names, "blocks": list(self.blocks)}
        about |= {"arrays": list(self.arrays), "result": secrets.token_hex(8)}
        made: list[tuple[Path, pd.DataFrame | LongTable, dict[bytes, bytes]]] = []
        if self.blocks:
            frame, told = _observed(self.blocks, self.contrasts)
            made.append((path.with_stem(f"{path.stem}-{OBSERVED}"), frame, _json({OBSERVED: told, "about": about})))
        for name, table in list(self.tables.items())[::-1]:  # the main table comes last: where it is, all is
            to = path if name == names[0] else path.with_stem(f"{path.stem}-{name}")
            meta = {"table": _columns(table), "about": about, "units": _units(table)}
            made.append((to, table if isinstance(table, LongTable) else _told(table), _json(meta)))
        before = _files_of(path)
        for to, rows, kept in made:
            _write(to, rows, kept)
        done = [to for to, _, _ in reversed(made)]
        for old in before - set(done):
            old.unlink(missing_ok=True)
        if self.arrays:
            done.append(_write_arrays(path.with_suffix(".safetensors"), self.arrays, about))
        if figure is not None:
            write_figure(self.figure(), Path(figure))
            done.append(Path(figure))
        return done

    def _save_text(self, path: Path, figure: str | Path | None) -> list[Path]:
        """`save` as CSV."""
        done, beside = [], path.with_name(f"{path.stem}-about.json")
        told = {
            name: {"title": one.title, "columns": [asdict(c) for c in one.columns]} for name, one in self.tables.items()
        }
        for i, (name, table) in enumerate(self.tables.items()):
            done.append(path if i == 0 else path.with_stem(f"{path.stem}-{name}"))
            _write_text(done[-1], table)
        try:
            named = json.loads(beside.read_text(encoding="utf-8"))["files"] if beside.is_file() else []
            before = {  # a copied file names tables that are another's
                path.with_name(name) for name in named if name.startswith(f"{path.stem}-") and name.endswith(".csv")
            }
        except (ValueError, KeyError, TypeError, AttributeError):  # another's file, or a damaged one
            before = set()
        for old in before - set(done):
            old.unlink(missing_ok=True)
        if self.arrays:
            done.append(_write_arrays(path.with_suffix(".safetensors"), self.arrays, dict(self.about)))
        files = [one.name for one in done if one.suffix == ".csv"]
        text = json.dumps({"about": self.about, "tables": told, "files": files}, default=_plain_number, indent=1)
        write_text(beside, text + "\n")
        done.append(beside)
        if figure is not None:
            write_figure(self.figure(), Path(figure))
            done.append(Path(figure))
        return done

    @classmethod
    def load(cls, path: str | Path) -> "Result":
        """A result written by `save`. Raises `InputError` for a file that is not one, damaged, or mixed with others."""
        if Path(path).suffix == ".csv":
            raise InputError(f"{path} is text for other programs; a result is read again from .parquet")
        try:
            return cls._load(Path(path))
        except InputError:
            raise
        except Exception as error:  # a file that was cut, flipped or written by another version
            reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
            raise InputError(f"{path} is damaged, or of another version: {reason}; measure it again") from None

    @classmethod
    def _load(cls, path: Path) -> "Result":

        meta = _meta(path)
        about = meta["about"]
        if about.get("format") != FORMAT:
            raise InputError(f"{path} is no result of an instrument (format {FORMAT}): measure it again")
        tables = {}
        for i, name in enumerate(about["tables"]):
            tables[name] = _read_table(path if i == 0 else path.with_stem(f"{path.stem}-{name}"), about["result"])
        blocks: dict[str, Observations] = {}
        contrasts: dict[str, tuple[Contrast, ...]] = {}
        if about["blocks"]:
            blocks, contrasts = _read_observed(path.with_stem(f"{path.stem}-{OBSERVED}"), about["result"])
        arrays = {}
        if about["arrays"]:
            arrays = {name: x.numpy() for name, x in read_tensors(path.with_suffix(".safetensors"))[0].items()}
        known = discover().get(about.get("instrument"))
        plain = {k: v for k, v in about.items() if k not in ("format", "tables", "blocks", "arrays", "result")}
        return cls(tables, blocks, contrasts, known.figures if known else (), arrays, plain)


def check_out(path: Path, instrument: str = "", inputs: Sequence[Path] = ()) -> Path:
    """`path` where a table of an instrument can be written there. Raises `InputError` before anything is measured where
    it cannot, and where that would destroy what is there: one of the `inputs` (files, or what lies in folders), the
    table of another instrument, tensors that are none of its arrays."""
    if path.name == ".." or os.path.isdir(path):
        raise InputError(f"--out {path} is a folder; name a file in it, as {path / 'table.parquet'}")
    if path.suffix not in (".parquet", ".csv"):
        raise InputError(f"--out {path}: a table is parquet or CSV, name it {path.with_suffix('.parquet')} or .csv")
    whole, arrays = path.resolve(), path.with_suffix(".safetensors")
    for one in (given.resolve() for given in inputs):
        if one == whole or (one.is_dir() and os.path.exists(path) and one in whole.parents and not maker_of(path)):
            raise InputError(f"--out {path} is an input, which would be lost; name another file")
        if one == arrays.resolve():
            raise InputError(f"--out {path}: {one.name} is an input, and arrays are written there; name another file")
        if one.parent == whole.parent and one.suffix == whole.suffix and one.name.startswith(f"{whole.stem}-"):
            raise InputError(f"--out {path}: {one.name} is an input, and other tables are named so; name another file")
    for one in (path, arrays) if instrument else ():
        _keep_others(one, instrument)
    check_writable(path)
    return path


def _keep_others(path: Path, instrument: str) -> None:
    """Raise `InputError` where another instrument has written, or tensors of somebody else lie, at `path`."""
    maker = maker_of(path)
    if maker and maker != instrument:
        raise InputError(f"{path} holds a table of {maker}, which would be lost; name another file, or delete it")
    if not maker and path.suffix == ".safetensors" and os.path.exists(path):  # False for a name that is too long
        raise InputError(f"{path} holds no arrays of {instrument}, and would be lost; name another file, or move it")


def maker_of(path: Path) -> str:
    """The instrument that wrote a file of `Result.save`; empty where there is no such file."""
    try:
        if path.suffix == ".csv":
            beside = json.loads(path.with_name(f"{path.stem}-about.json").read_text("utf-8")) if path.is_file() else {}
            about = beside["about"]
        elif path.suffix == ".safetensors":
            with safe_open(path, framework="np") as file:
                about = json.loads((file.metadata() or {})["about"])
        else:
            about = _meta(path)["about"]
        return str(about["instrument"])
    except (InputError, SafetensorError, OSError, ValueError, KeyError, TypeError):
        return ""


def _files_of(path: Path) -> set[Path]:
    """The tables and observations beside the main table at `path`, if that is a result and they belong to it."""
    try:
        about = _meta(path)["about"]
        names = [*about["tables"][1:], OBSERVED]
        files = [path.with_stem(f"{path.stem}-{name}") for name in names]
        return {file for file in files if file.is_file() and _meta(file)["about"].get("result") == about["result"]}
    except (InputError, KeyError, ValueError):  # a file of somebody else, with other names
        return set()


def _told(table: Table) -> pd.DataFrame:
    """The frame with the reasons of missing values as the text column `undefined`."""
    rows: dict[int, dict[str, str]] = {}
    for (row, name), why in table.missing.items():
        rows.setdefault(row, {})[name] = why
    return table.frame.assign(**{UNDEFINED: [note(rows.get(i, {})) for i in range(len(table.frame))]})


def _columns(table: Table) -> dict[str, Any]:
    told = {"title": table.title, "by": table.by, "most": table.most, "per": list(table.per)}
    told["long"] = isinstance(table, LongTable)
    return {**told, "columns": [asdict(column) for column in table.columns]}


def _units(table: Table) -> dict[str, str]:
    return {column.name: column.unit for column in table.columns}


def _json(meta: Mapping[str, Any]) -> dict[bytes, bytes]:
    """As schema metadata; numbers of numpy are plain ones."""

    return with_checksum({n.encode(): json.dumps(value, default=_plain_number).encode() for n, value in meta.items()})


def _plain_number(x: Any) -> Any:
    return x.tolist() if hasattr(x, "tolist") else str(x)


def _same(meta: Mapping[str, Any], path: Path, result: str) -> None:
    if meta["about"].get("result") != result:
        raise InputError(f"{path} belongs to another result than the main table beside it; measure it again")


def _write(path: Path, frame: pd.DataFrame | LongTable, told: Mapping[bytes, bytes]) -> None:
    """Parquet with schema metadata, under its name when it is complete."""

    if isinstance(frame, LongTable):
        write_batches(path, frame.batches(), told)
        return
    table = pa.Table.from_pandas(frame, preserve_index=False)
    table = table.replace_schema_metadata({**table.schema.metadata, **told})
    write_atomically(path, lambda part: write_parquet(table, part))


def _write_text(path: Path, table: Table) -> None:
    """CSV, UTF-8, a row of names first; an empty cell is undefined, and the column `undefined` says why.

    Raises `InputError` for a column of lists.
    """

    def write(part: Path) -> None:
        batches = (
            table.batches()
            if isinstance(table, LongTable)
            else [pa.Table.from_pandas(_told(table), preserve_index=False)]
        )
        writer: Any = None
        try:
            for batch in batches:
                if lists := [field.name for field in batch.schema if pa.types.is_nested(field.type)]:
                    raise InputError(f"{path}: {lists[0]} holds lists, which CSV cannot; write .parquet")
                writer = writer or csv.CSVWriter(part, batch.schema)
                writer.write_table(batch)
        finally:
            if writer is not None:
                writer.close()

    write_atomically(path, write)


def _write_arrays(path: Path, arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> Path:

    tensors = {name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in arrays.items()}
    write_tensors(path, tensors, {"about": json.dumps(about, default=_plain_number)})
    return path


def _meta(path: Path) -> dict[str, Any]:
    """The JSON of a parquet file's schema metadata. Raises `InputError` for a missing, foreign or damaged file."""

    if not path.is_file():
        raise InputError(f"there is no file {path}")
    try:
        found = read_meta(path)
        meta = {name.decode(): json.loads(text) for name, text in found.items()}
    except (pa.ArrowException, ValueError, RecursionError, OSError) as error:
        raise InputError(f"{path} cannot be read as a result: {str(error).splitlines()[0]}") from None
    about = meta.get("about")
    if not isinstance(about, dict) or not all(isinstance(about.get(k, []), list) for k in ("tables", "blocks")):
        raise InputError(f"{path} is no result of an instrument: it does not say what it is about")
    return meta


def _read_table(path: Path, result: str) -> Table:
    meta = _meta(path)
    _same(meta, path, result)
    about = meta["table"]
    columns = tuple(
        Column(**{**c, "interval": tuple(c["interval"]) if c["interval"] else None}) for c in about["columns"]
    )
    if about.get("long"):
        return LongTable([path], columns, about["title"], most=about["most"])
    frame = read_parquet(path).to_pandas()
    told = frame.pop(UNDEFINED)
    missing = {(i, name): why for i, text in enumerate(told) for name, why in read_reasons(text).items()}
    return Table(frame, columns, missing, about["title"], about["by"], about["most"], tuple(about["per"]))


def _observed(
    blocks: Mapping[str, Observations], contrasts: Mapping[str, Sequence[Contrast]]
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A row per block and cell with its totals and sizes as lists; measures, cells, units and contrasts as data."""
    rows, told = [], {}
    for name, block in blocks.items():
        rows.append(pd.DataFrame({"block": name, "cell": range(len(block.cells)), "total": list(block.total),
                                  "size": list(block.sizes)}))  # fmt: skip
        told[name] = {
            "measure": asdict(block.measure),
            "cells": {key: block.cells[key].tolist() for key in block.cells},
            "units": {key: block.units[key].tolist() for key in block.units},
            "contrasts": [{**asdict(c), "weights": list(c.weights.items())} for c in contrasts.get(name, ())],
        }
    return pd.concat(rows), told


def _read_observed(path: Path, result: str) -> tuple[dict[str, Observations], dict[str, tuple[Contrast, ...]]]:
    """The inverse of `_observed`."""
    meta = _meta(path)
    _same(meta, path, result)
    blocks, contrasts = {}, {}
    rows = dict(list(read_parquet(path).to_pandas().groupby("block", sort=False)))
    for name, told in meta[OBSERVED].items():
        units = pd.DataFrame(told["units"])
        units["cluster"] = [tuple(c) if isinstance(c, list) else c for c in units["cluster"]]
        total, size = (np.stack(rows[name][what].to_list()) for what in ("total", "size"))
        blocks[name] = Observations(
            measure=Measure(**told["measure"]), cells=pd.DataFrame(told["cells"]), units=units,
            total=total, size=np.where(np.isnan(total), 0.0, size),
        )  # fmt: skip
        contrasts[name] = tuple(
            Contrast(**{**c, "weights": {int(k): float(w) for k, w in c["weights"]}}) for c in told["contrasts"]
        )
    return blocks, contrasts
