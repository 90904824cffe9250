"""What an instrument gives back: tables that know their columns, and all that is needed to draw and compare them again.

r = Ablate(heads="L4.*").measure(model, Documents("valid.txt"))
r                                           the tables; in a notebook with the first figure
r.table("heads").frame                      a pandas table
r.figure("delta")                           plotly
r.save("heads.parquet", figure="heads.pdf")
Result.load("heads.parquet")
compare(run, control)       every estimate of the run minus the control's, over the units that both have
pool_results([a, b, c])     one table with a column `run`
seeds([a, b, c])            every estimate as mean over the runs: what the recipe does, not one model
"""

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib import import_module
from itertools import chain, count
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
from streamscope.cli.terminal import counted
from streamscope.instruments import observations
from streamscope.instruments.figures import OVER, Figure, over_steps, write_figure
from streamscope.instruments.observations import Contrast, Estimates, Measure, Observations, Reasons
from streamscope.instruments.options import check_out
from streamscope.instruments.registry import discover
from streamscope.instruments.table import (
    Column,
    LongTable,
    Table,
    check_own,
    counts,
    described,
    json_meta,
    key,
    number,
    plain_number,
    quantity,
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


# ---- several results: a run and its control, runs in one table, training seeds as units ------------


def _described(result: Result, name: str) -> Column | None:
    return next((column for table in result.tables.values() for column in table.columns if column.name == name), None)


def _table(result: Result, estimates: Estimates, suffixes: dict[str, str], n: str, title: str) -> Table:
    """The wide table of estimates whose quantities end in one of `suffixes` (-> what it adds to the title)."""
    keys = list(dict.fromkeys(name for c in estimates.contrasts for name in c.labels))
    columns = [_described(result, name) or key(name, name, f"{name} of the row") for name in keys]
    frame, reasons = estimates.wide(keys)
    for name in dict.fromkeys(estimates.frame["quantity"]):
        suffix = next(s for s in suffixes if name.endswith(s))
        plain, words = name.removesuffix(suffix), suffixes[suffix]
        source = _described(result, plain) or number(plain, plain, "units of the measure", plain, "+.4f")
        heading, doc = f"{source.title}, {words}", f"{source.doc}; {words}"
        options: dict[str, Any] = dict(format=source.format or "+.4f", shown=source.shown or name.startswith("percent"))
        if f"{name}_p" in frame:
            columns += quantity(name, heading, source.unit, doc, sd=n, **options)
        elif f"{name}_low" in frame:
            columns += described(name, heading, source.unit, doc, sd=n, **options)
        else:
            columns.append(number(name, heading, source.unit, doc, **options))
    columns += counts(n, "independent cases, or the fewest words of a kind where cases share words")
    return Table(frame, tuple(columns), reasons, title)


def compare(run: Result, control: Result) -> Result:
    """The run's tables, and for each block of observations a table of run, control and run − control.

    Differences are paired unit by unit, with a 95 % interval, p and Holm's p within the contrast's family
    (`observations.compare`); the instrument may add further tables (`Instrument.control_tables`).
    """
    if any(run.about.get(k) != control.about.get(k) for k in ("instrument", "options")):
        raise InputError("a run and its control must be measured by one instrument with the same options")
    for setting in ("dtype", "autocast"):
        a, b = (result.about.get(setting) for result in (run, control))
        if a != b:
            raise InputError(f"{setting} is {a} of the run and {b} of its control: measure both alike")
    names = [str(result.about.get("model")) for result in (run, control)]
    if names[0] == names[1]:
        names[1] += ", control"
    tables = dict(run.tables)
    suffixes = {f"_{kind}": words for kind, words in COMPARED.items()}
    for name, block in run.blocks.items():
        if name not in control.blocks:
            raise InputError(f"the control has no observations {name!r}: measure it with the same options")
        estimates = observations.compare(block, control.blocks[name], run.contrasts[name], control.contrasts[name])
        title = f"{names[0]} minus {names[1]}: {block.measure.name}; 95 % over what both were measured on"
        base = run.tables.get(name)
        first = run if base is None else replace(run, tables={name: base, **run.tables})  # it describes its quantities
        table = _table(first, estimates, suffixes, "cases", title)
        if base is not None and f"{base.by}_difference" in table.frame:
            table = replace(table, by=f"{base.by}_difference", most=base.most, per=base.per)
        tables[f"{name}-control"] = table
    instrument_class = discover().get(str(run.about.get("instrument")))
    tables |= {} if instrument_class is None else instrument_class.control_tables(run, control)
    about = {**run.about, "control": dict(control.about)}
    blocks = {**run.blocks, **{f"control-{name}": block for name, block in control.blocks.items()}}
    contrasts = {**run.contrasts, **{f"control-{name}": wanted for name, wanted in control.contrasts.items()}}
    return Result(tables, blocks, contrasts, run.figures, run.arrays, about)


def pool_results(results: Sequence[Result]) -> Result:
    """The tables of several runs as one each, with the column `run` in front, and `seeds` below where rows agree.

    Snapshots of trainings (`runs/lfa@all`) have the columns `run`, `step` and, of trainings on text, `tokens`, and a
    curve over steps; means over runs are then taken at every step. Blocks and arrays are called run0-<name>,
    run1-<name> …, in the order of the runs (`about["runs"]`). Long tables stay one for each, <name>-run0 …
    """
    if len(results) == 1:
        return results[0]
    if not results or any(result.about.get(k) != results[0].about.get(k) for result in results for k in SAME):
        raise InputError("several runs make one table where one instrument measured them with the same options")
    steps = [result.about.get("step") for result in results]
    has_steps = None not in steps
    names = [_training(result) for result in results] if has_steps else _names(results)
    places = list(zip(names, steps, strict=True))
    if has_steps and len(set(places)) < len(places):
        raise InputError("a snapshot of a training is there twice")
    snapshot_labels = [_at(result, results) if has_steps else {} for result in results]
    labels = [{"run": name, **place} for name, place in zip(names, snapshot_labels, strict=True)]
    first, runs = results[0], list(dict.fromkeys(names))
    snapshots = f", {counted(len(set(steps)), 'snapshot')}" if has_steps else ""
    tables: dict[str, Table] = {}
    for name in dict.fromkeys(name for result in results for name in result.tables):
        parts = {i: result.tables[name] for i, result in enumerate(results) if name in result.tables}
        if any(isinstance(part, LongTable) for part in parts.values()):  # what reads these reads them of one model
            tables |= {f"{name}-run{i}": part for i, part in parts.items()}
            continue
        having = list(dict.fromkeys(names[i] for i in parts))
        share = f"{len(having)} of " if len(having) < len(runs) else ""
        several = f" of {share}{len(runs)} runs: {', '.join(having)}" if len(runs) > 1 else f" of {runs[0]}"
        tables[name] = _joined([(labels[i], part) for i, part in parts.items()], f"{name}{several}{snapshots}")
    blocks = {f"run{i}-{name}": b for i, result in enumerate(results) for name, b in result.blocks.items()}
    contrasts = {f"run{i}-{name}": c for i, result in enumerate(results) for name, c in result.contrasts.items()}
    groups = [[result for result in results if result.about.get("step") == step] for step in dict.fromkeys(steps)]
    reason = no_seeds(results, groups) if len(runs) > 1 else ""
    if not reason and len(runs) > 1:
        means = [seeds(group) for group in groups]
        for name in (name for name in means[0] if all(name in step_means for step_means in means)):
            step_tables = [step_means[name] for step_means in means]
            tables[name] = step_tables[0]
            if has_steps:
                places_of = [_at(group[0], results) for group in groups]
                tables[name] = _joined(list(zip(places_of, step_tables, strict=True)), step_tables[0].title)
    abouts = [dict(result.about) for result in results]
    about = {**first.about, "model": names, "runs": abouts, "no_mean": reason, OVER: has_steps}
    arrays = {f"run{i}-{name}": x for i, result in enumerate(results) for name, x in result.arrays.items()}
    whole = Result(tables, blocks, contrasts, first.figures, arrays, about)
    instrument_class = discover().get(str(about.get("instrument")))
    return whole if instrument_class is None else replace(whole, tables=tables | instrument_class.relate(whole))


SAME = ("instrument", "options")  # what results of several runs must have in common
RUN = key("run", "run", "the run that was measured")
STEP = number("step", "step", "optimiser steps", "of the training, at the snapshot", ",.0f")
TOKENS = number("tokens", "tokens", "training tokens", "seen by then, repetitions counted", ",.0f")


def _at(result: Result, results: Sequence[Result]) -> dict[str, Any]:
    """Where in its training a snapshot is: the step, and the tokens seen if all `results` say them."""
    names = ("step", "tokens") if all("tokens" in snapshot.about for snapshot in results) else ("step",)
    return {name: result.about[name] for name in names}


def _joined(parts: Sequence[tuple[dict[str, Any], Table]], title: str) -> Table:
    """One table of several, each with its labels (run, step, tokens) in front.

    An instrument's own column of the name of a label, such as tokens, is called measured_tokens.
    """
    labels, first = list(parts[0][0]), parts[0][1]
    aliases = {name: f"measured_{name}" for name in labels if any(name in part.frame for _, part in parts)}
    columns: dict[str, Column] = {}
    missing: Reasons = {}
    frames = list[pd.DataFrame]()
    start = 0
    for label, part in parts:
        for c in part.columns:
            if c.name in aliases:
                c = replace(c, name=aliases[c.name], title=f"{c.title}, measured")
            columns[c.name] = c
        for (row, column), reason in part.missing.items():
            missing[row + start, aliases.get(column, column)] = reason
        frames.append(part.frame.rename(columns=aliases).assign(**label))
        start += len(part.frame)
    frame = pd.concat(frames, ignore_index=True)
    frame = frame[[*labels, *(c for c in frame if c not in labels)]]
    columns |= {c.name: c for c in (RUN, STEP, TOKENS) if c.name in labels}
    per = tuple(aliases.get(name, name) for name in first.per)
    by, most = aliases.get(first.by, first.by), first.most * len(parts)
    return Table(frame, tuple(columns[c] for c in frame), missing, title, by, most, per)


def no_seeds(results: Sequence[Result], groups: Sequence[Sequence[Result]]) -> str:
    """Why the runs, in `groups` of one step, are no seeds of one recipe and have no mean; "" where they are."""
    first = results[0]
    if any(result.about.get("recipe") != first.about.get("recipe") for result in results):
        return "no mean over runs: they differ in preset, configuration, tokenizer, training or data"
    if any(result.about.get("data") != first.about.get("data") for result in results):
        return "no mean over runs: they were measured on other data; name it, as --data SOURCE"
    for setting, words in (("dtype", "weights of"), ("autocast", "autocast to"), ("edited_at", "edits at"),
                        ("hooked_at", "hooks of yours at")):  # fmt: skip
        values = list(dict.fromkeys(str(result.about.get(setting)) for result in results))
        if len(values) > 1:
            return f"no mean over runs: they were measured with {words} {' and '.join(values)}"
    if len(groups) > 1 and any(result.about.get("step") is None for result in results):
        return "no mean over runs: only some are snapshots; give each with the same steps, as RUN@STEP"
    digests = [[digest for result in group if (digest := result.about.get("checkpoint"))] for group in groups]
    if all(len(set(group)) < len(group) for group in digests):
        return "no mean over runs: two of them have the same weights; give each run once"
    if any({*map(_training, group)} != {*map(_training, groups[0])} for group in groups):
        return "no mean over runs: they were not all measured at the same steps"
    if any(list(result.blocks) != list(first.blocks) for result in results):
        return "no mean over runs: they were not measured in the same way"
    return ""


def seeds(results: Sequence[Result]) -> dict[str, Table]:
    """For each block a table <block>-runs of every estimate's mean over the runs, with an interval between runs.

    With controls also of every difference from them. Runs with other rows (heads that were ranked in each) give none.
    """

    def estimates_of(result: Result, name: str) -> Estimates:
        block, control = result.blocks[name], f"control-{name}"
        if control not in result.blocks:
            return observations.estimate(block, result.contrasts[name])
        return observations.compare(block, result.blocks[control], result.contrasts[name], result.contrasts[control])

    tables = {}
    for name in (name for name in results[0].blocks if not name.startswith("control-")):
        block, estimates = results[0].blocks[name], [estimates_of(result, name) for result in results]
        keys = list(dict.fromkeys(k for c in estimates[0].contrasts for k in c.labels))
        try:
            means = observations.over_seeds(estimates, keys, block.measure)
        except InputError:
            continue
        title = f"mean over {len(results)} runs of {block.measure.name}; runs are the units"
        titles = {f"_{kind}": f"{words}, mean over runs" for kind, words in COMPARED.items()} | {"": "mean over runs"}
        tables[f"{name}-runs"] = _table(results[0], means, titles, "runs", title)
    return tables


COMPARED = {"run": "run", "control": "control", "difference": "run − control"}


def _training(result: Result) -> str:
    return re.sub(r"@\d+(?=(, edited)?(, hooked)?(, weights changed)?\)?$)", "", str(result.about.get("model")))


def _names(results: Sequence[Result]) -> list[str]:
    """What the runs are called; a model measured twice gets a number."""
    names: list[str] = []
    for model in (str(result.about.get("model")) for result in results):
        candidates = chain([model], (f"{model} #{ordinal}" for ordinal in count(2)))
        names.append(next(name for name in candidates if name not in names))
    return names
