"""What an instrument gives back: tables that know their columns, and all that is needed to draw and compare them again.

r = Ablate(heads="L4.*").measure(model, Documents("valid.txt"))
r                                           the tables; in a notebook with the first figure
r.table("heads").frame                      a pandas table
r.figure("delta")                           plotly
r.save("heads.parquet", figure="heads.pdf")
Result.load("heads.parquet")
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from pyarrow import csv

from streamscope.cli.disk import write_atomically, write_text
from streamscope.cli.errors import InputError, reading, unknown
from streamscope.cli.locks import locked
from streamscope.instruments.figures import OVER, Figure, over_steps, write_figure
from streamscope.instruments.observations import Contrast, Measure, Observations
from streamscope.instruments.options import check_out
from streamscope.instruments.registry import discover
from streamscope.instruments.table import (
    Column,
    LongTable,
    Table,
    check_own,
    json_meta,
    plain_number,
    read_about,
    read_parquet,
    write_batches,
)
from streamscope.models.tensors import read_tensors, write_tensors

FORMAT = 2  # of the files written by `Result.save`
OBSERVED = "observations"  # what the file of observations adds to the main table's name


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

    def figure(self, name: str | None = None, **style: Any) -> Any:
        """A declared figure by name as plotly figure, the first that has something to show without.

        `style`: paper=True for a column's width and fonts, dark=True.
        """
        figures = {figure.name: figure for figure in self.figures}
        if not figures:
            who = self.about.get("instrument", "?")
            raise InputError(f"instrument {who!r} declares no figure here; import its module, then load")
        if name is not None and name not in figures:
            raise unknown("figure", name, list(figures))
        plot = self._first_figure(self.figures if name is None else (figures[name],), **style)
        if plot is None:
            what = "no figure has" if name is None else f"figure {name!r} has no"
            raise InputError(f"{what} values to show in this result")
        return plot

    def _first_figure(self, figures: Sequence[Figure], **style: Any) -> Any:
        from streamscope.instruments.figures.drawing import draw  # which imports plotly

        return next((plot for figure in figures if (plot := draw(figure, self, **style)) is not None), None)

    def print(self) -> None:
        for table in self.tables.values():
            table.print()

    def __repr__(self) -> str:
        """Every table as on the terminal, and what else there is."""
        figures = [figure.name for figure in self.figures if figure.table in (None, *self.tables)]
        kinds = {"tables": list(self.tables), "figures": figures, "arrays": list(self.arrays)}
        summary = [f"{kind}: {', '.join(x[:9])}{', …' if x[9:] else ''}" for kind, x in kinds.items() if x]
        return "\n".join([*map(repr, self.tables.values()), "; ".join(summary)])

    def _ipython_display_(self) -> None:
        """In a notebook: the tables, then the first figure as the notebook draws one, without Plotly's code in it."""
        from IPython.display import display

        tables = "".join(table._repr_html_() for table in self.tables.values())
        display({"text/plain": repr(self), "text/html": tables}, raw=True)
        plot = self._first_figure(self.figures)
        if plot is not None and (shown := plot._repr_mimebundle_()):
            display(shown, raw=True)

    def save(self, path: str | Path, figure: str | Path | None = None) -> list[Path]:
        """Write PATH (the main table), PATH-<name> of the others, PATH-observations, and a figure; the paths.

        Tables are parquet with units, columns, reasons and provenance, which can be loaded again; the figure is html,
        svg, pdf or png. For PATH.csv, only the tables are written, as text with every digit, and provenance as JSON in
        PATH-about.json. Every file appears under its name when it is complete.
        """
        maker = str(self.about.get("instrument", ""))
        instrument_class = None if Path(path).suffix in (".parquet", ".csv") else discover().get(maker)
        path = check_out(Path(path), exports=() if instrument_class is None else instrument_class.exports)
        if instrument_class is not None and path.suffix in instrument_class.exports:
            paths: list[Path] = import_module(f"{instrument_class.__module__}.formats").export(self, path)
        else:
            names = list(self.tables)
            if strange := [name for name in names if "/" in name or name in ("", ".", "..", OBSERVED)]:
                raise InputError(f"a table called {strange[0]!r} cannot be a file; name it otherwise")
            files, arrays = _places(path, names), path.with_suffix(".safetensors")
            for file in [*files.values(), *([arrays] if self.arrays else [])] if maker else ():
                check_own(file, maker)
            with locked(path.with_name(f".{path.name}.lock")):  # files that belong together are of one save
                paths = (self._save_text if path.suffix == ".csv" else self._save_parquet)(path, files, arrays)
        if figure is not None:
            write_figure(self.figure(), Path(figure))
            paths.append(Path(figure))
        return paths

    def _save_parquet(self, path: Path, files: Mapping[str, Path], arrays: Path) -> list[Path]:
        about = {**self.about, "format": FORMAT, "tables": list(self.tables), "blocks": list(self.blocks)}
        about |= {"arrays": list(self.arrays), "result": secrets.token_hex(8)}
        paths = [_write_arrays(arrays, self.arrays, about)] if self.arrays else []
        if self.blocks:
            frame, observed = _observed(self.blocks, self.contrasts)
            rows, meta = pa.Table.from_pandas(frame, preserve_index=False), {OBSERVED: observed, "about": about}
            write_batches(files[OBSERVED], [rows], json_meta(meta), dictionary=True)
            paths.insert(0, files[OBSERVED])
        for name, table in list(self.tables.items())[::-1]:  # the main table comes last: where it is, all is
            units = {column.name: column.unit for column in table.columns}
            long = isinstance(table, LongTable)
            layout = {"title": table.title, "by": table.by, "most": table.most, "per": list(table.per), "long": long}
            layout["columns"] = [asdict(column) for column in table.columns]
            meta = {"table": layout, "about": about, "units": units}
            write_batches(files[name], table.batches(), json_meta(meta), dictionary=not long)
            paths.insert(0, files[name])
        return paths

    def _save_text(self, path: Path, files: Mapping[str, Path], arrays: Path) -> list[Path]:
        tables = {}
        for name, table in self.tables.items():
            write_atomically(files[name], partial(_write_text, table, files[name]))
            tables[name] = {"title": table.title, "columns": [asdict(column) for column in table.columns]}
        paths, about_path = [files[name] for name in self.tables], path.with_name(f"{path.stem}-about.json")
        about = {"about": self.about, "tables": tables, "files": [file.name for file in paths]}
        if self.arrays:
            paths.append(_write_arrays(arrays, self.arrays, dict(self.about)))
        write_text(about_path, json.dumps(about, default=plain_number, indent=1) + "\n")
        return [*paths, about_path]

    @classmethod
    def load(cls, path: str | Path) -> "Result":
        """A result written by `save`."""
        if Path(path).suffix == ".csv":
            raise InputError(f"{path} is text for other programs; a result is read again from .parquet")
        path = Path(path)
        with reading(path, "it is damaged, or of another version: measure it again"):
            about = _meta(path)["about"]
            if about.pop("format", None) != FORMAT:
                raise InputError(f"{path} is no result of an instrument (format {FORMAT}): measure it again")
            names, blocks, arrays, result = (about.pop(key) for key in ("tables", "blocks", "arrays", "result"))
            files = _places(path, names)
            tables = {name: _read_table(files[name], result) for name in names}
            observed = _read_observed(files[OBSERVED], result) if blocks else ({}, {})
            tensors = read_tensors(path.with_suffix(".safetensors"), "measure it again")[0] if arrays else {}
        instrument_class = discover().get(about.get("instrument"))
        figures = instrument_class.figures if instrument_class else ()
        return cls(tables, *observed, figures, {name: x.numpy() for name, x in tensors.items()}, about)


def _places(path: Path, names: Sequence[str]) -> dict[str, Path]:
    """The file of each table and of the observations: the main table's is `path`, the others lie next to it."""
    files = {name: path.with_stem(f"{path.stem}-{name}") for name in (*names, OBSERVED)}
    return files | dict.fromkeys(names[:1], path)


def _write_text(table: Table, path: Path, part: Path) -> None:
    """CSV, UTF-8, a row of names first; an empty cell is undefined, and the column `undefined` says why."""
    batches = table.batches()
    first = next(batches)
    if lists := [field.name for field in first.schema if pa.types.is_nested(field.type)]:
        raise InputError(f"{path}: {lists[0]} holds lists, which CSV cannot; write .parquet")
    with csv.CSVWriter(part, first.schema) as writer:
        for batch in chain([first], batches):
            writer.write_table(batch)


def _write_arrays(path: Path, arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> Path:
    tensors = {name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in arrays.items()}
    write_tensors(path, tensors, {"about": json.dumps(about, default=plain_number)})
    return path


def _meta(path: Path, result: str | None = None) -> dict[str, Any]:
    """The JSON of a parquet file's metadata; `InputError` for a foreign file, or one of another than `result`."""
    meta = read_about(path, ("about", "units", "table", OBSERVED))
    if "about" not in meta or not all(isinstance(meta["about"].get(k, []), list) for k in ("tables", "blocks")):
        raise InputError(f"{path} is no result of an instrument: it does not say what it is about")
    if result is not None and meta["about"].get("result") != result:
        raise InputError(f"{path} belongs to another result than the main table next to it: measure it again")
    return meta


def _read_table(path: Path, result: str) -> Table:
    about = _meta(path, result)["table"]
    columns = tuple(
        Column(**{**c, "interval": tuple(c["interval"]) if c["interval"] else None}) for c in about["columns"]
    )
    if about.get("long"):
        return LongTable([path], columns, about["title"], most=about["most"])
    table = Table.noted(read_parquet(path).to_pandas(), columns, about["title"])
    return replace(table, by=about["by"], most=about["most"], per=tuple(about["per"]))


def _observed(
    blocks: Mapping[str, Observations], contrasts: Mapping[str, Sequence[Contrast]]
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A row per block and cell with its totals and sizes as lists; measures, cells, units and contrasts as data."""
    rows, headers = [], {}
    for name, block in blocks.items():
        rows.append(pd.DataFrame({"block": name, "cell": range(len(block.cells)), "total": list(block.total),
                                  "size": list(block.sizes)}))  # fmt: skip
        headers[name] = {
            "measure": asdict(block.measure),
            "cells": {key: block.cells[key].tolist() for key in block.cells},
            "units": {key: block.units[key].tolist() for key in block.units},
            "contrasts": [{**asdict(c), "weights": list(c.weights.items())} for c in contrasts.get(name, ())],
        }
    return pd.concat(rows), headers


def _read_observed(path: Path, result: str) -> tuple[dict[str, Observations], dict[str, tuple[Contrast, ...]]]:
    blocks, contrasts = {}, {}
    rows = dict(list(read_parquet(path).to_pandas().groupby("block", sort=False)))
    for name, header in _meta(path, result)[OBSERVED].items():
        units = pd.DataFrame(header["units"])
        units["cluster"] = [tuple(c) if isinstance(c, list) else c for c in units["cluster"]]
        measure: dict[str, Any] = {k: tuple(x) if isinstance(x, list) else x for k, x in header["measure"].items()}
        total, size = (np.stack(rows[name][part].to_list()) for part in ("total", "size"))
        blocks[name] = Observations(
            measure=Measure(**measure), cells=pd.DataFrame(header["cells"]), units=units,
            total=total, size=np.where(np.isnan(total), 0.0, size),
        )  # fmt: skip
        contrasts[name] = tuple(
            Contrast(**{**c, "weights": {int(k): float(w) for k, w in c["weights"]}}) for c in header["contrasts"]
        )
    return blocks, contrasts
