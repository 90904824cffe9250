"""Several results of one instrument: a run compared with its control, runs in one table, training seeds as units.

compare(run, control)       every estimate of the run minus the control's, over the units that both have
pool_results([a, b, c])     one table with a column `run`
seeds([a, b, c])            every estimate as mean over the runs: what the recipe does, not one model
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, count
from typing import Any

import pandas as pd

from streamscope.cli.errors import InputError
from streamscope.cli.terminal import counted
from streamscope.instruments import observations
from streamscope.instruments.figures import OVER
from streamscope.instruments.observations import Estimates, Reasons
from streamscope.instruments.registry import discover
from streamscope.instruments.result import Result
from streamscope.instruments.table import Column, LongTable, Table, counts, described, key, number, quantity


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
