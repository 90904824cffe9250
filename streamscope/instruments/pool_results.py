"""Several results of one instrument: a run compared with its control, runs in one table, training seeds as units.

compare(run, control)       every estimate of the run minus the control's, over the units that both have
pool_results([a, b, c])     one table with a column `run`
seeds([a, b, c])            every estimate as mean over the runs: what the recipe does, not one model
"""

import re
from collections.abc import Sequence
from dataclasses import replace
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
    """The column of a quantity, as any table of the result describes it."""
    return next((one for table in result.tables.values() for one in table.columns if one.name == name), None)


def _table(result: Result, estimates: Estimates, suffixes: dict[str, str], n: str, title: str) -> Table:
    """The wide table of estimates whose quantities end in one of `suffixes` (-> what it adds to the title)."""
    keys = list(dict.fromkeys(name for c in estimates.contrasts for name in c.labels))
    columns = [_described(result, name) or key(name, name, f"{name} of the row") for name in keys]
    frame, reasons = estimates.wide(keys)
    for name in dict.fromkeys(estimates.frame["quantity"]):
        suffix = next(s for s in suffixes if name.endswith(s))
        plain, words = name.removesuffix(suffix), suffixes[suffix]
        of = _described(result, plain)
        unit, shown = (of.unit, of.format) if of else ("units of the measure", "+.4f")
        doc = f"{of.doc if of else plain}; {words}"
        how: dict[str, Any] = dict(
            format=shown or "+.4f", sd=n, shown=of is None or of.shown or name.startswith("percent")
        )
        heading = f"{of.title if of else plain}, {words}"
        if f"{name}_p" not in frame and f"{name}_low" in frame:
            columns += described(name, heading, unit, doc, **how)
        else:
            columns += quantity(name, heading, unit, doc, tested=f"{name}_p" in frame, **how)
    columns += counts(n, "independent cases, or the fewest words of a kind where cases share words")
    return Table(frame, tuple(columns), reasons, title)


def compare(run: Result, control: Result) -> Result:
    """The run's tables, and for each block of observations a table of run, control and run − control.

    Differences are paired unit by unit, with a 95 % interval, p and Holm's p within the contrast's family
    (`observations.compare`); the instrument may add further tables (`Instrument.control_tables`).

    Raises `InputError` for results of other instruments or options, and where no two units are the same in both.
    """
    if any(run.about.get(k) != control.about.get(k) for k in ("instrument", "options")):
        raise InputError("a run and its control must be measured by one instrument with the same options")
    for what in ("dtype", "autocast"):
        if run.about.get(what) != control.about.get(what):
            raise InputError(
                f"{what} is {run.about.get(what)} of the run and {control.about.get(what)} of its control: "
                "measure both alike"
            )
    names = [str(one.about.get("model")) for one in (run, control)]
    if names[0] == names[1]:
        names[1] += ", control"
    tables = dict(run.tables)
    suffixes = {f"_{what}": words for what, words in COMPARED.items()}
    for name, block in run.blocks.items():
        if name not in control.blocks:
            raise InputError(f"the control has no observations {name!r}: measure it with the same options")
        found = observations.compare(block, control.blocks[name], run.contrasts[name], control.contrasts[name])
        title = f"{names[0]} minus {names[1]}: {block.measure.name}; 95 % over what both were measured on"
        own = run.tables.get(name)
        first = run if own is None else replace(run, tables={name: own, **run.tables})  # it describes its quantities
        table = _table(first, found, suffixes, "cases", title)
        if own is not None and f"{own.by}_difference" in table.frame:
            table = replace(table, by=f"{own.by}_difference", most=own.most, per=own.per)
        tables[f"{name}-control"] = table
    known = discover().get(str(run.about.get("instrument")))
    tables |= {} if known is None else known.control_tables(run, control)
    about = {**run.about, "control": dict(control.about)}
    blocks = {**run.blocks, **{f"control-{name}": block for name, block in control.blocks.items()}}
    made = {**run.contrasts, **{f"control-{name}": some for name, some in control.contrasts.items()}}
    return Result(tables, blocks, made, run.figures, run.arrays, about)


def pool_results(results: Sequence[Result]) -> Result:
    """The tables of several runs as one each, with the column `run` in front, and `seeds` below where rows agree.

    Snapshots of trainings (`runs/lfa@all`) have the columns `run`, `step` and, of trainings on text, `tokens`, and a
    curve over steps; means over runs are then taken at every step. Blocks and arrays are called run0-<name>,
    run1-<name> …, in the order of the runs (`about["runs"]`). Long tables stay one for each, <name>-run0 …

    Raises `InputError` for results of other instruments or options, and for a snapshot that is given twice.
    """
    if len(results) == 1:
        return results[0]
    if not results or any(one.about.get(k) != results[0].about.get(k) for one in results for k in SAME):
        raise InputError("several runs make one table where one instrument measured them with the same options")
    steps = [one.about.get("step") for one in results]
    over = None not in steps
    names = [_training(one) for one in results] if over else _names(results)
    places = list(zip(names, steps, strict=True))
    if over and len(set(places)) < len(places):
        raise InputError("a snapshot of a training is there twice")
    at = [_at(one, results) if over else {} for one in results]
    labels = [{"run": name, **place} for name, place in zip(names, at, strict=True)]
    tables: dict[str, Table] = {}
    for name in results[0].tables:
        parts = [(label, one.tables[name]) for label, one in zip(labels, results, strict=True) if name in one.tables]
        if isinstance(parts[0][1], LongTable):  # what reads these reads them of one model
            tables |= {f"{name}-run{i}": part for i, (_, part) in enumerate(parts)}
            continue
        runs = list(dict.fromkeys(names))
        several = f" of {len(runs)} runs: {', '.join(runs)}" if len(runs) > 1 else f" of {runs[0]}"
        snapshots = f", {counted(len(set(steps)), 'snapshot')}" if over else ""
        tables[name] = _joined(parts, f"{name}{several}{snapshots}")
    first = results[0]
    blocks = {f"run{i}-{name}": b for i, one in enumerate(results) for name, b in one.blocks.items()}
    made = {f"run{i}-{name}": c for i, one in enumerate(results) for name, c in one.contrasts.items()}
    groups = [[one for one, step in zip(results, steps, strict=True) if step == at] for at in dict.fromkeys(steps)]
    why = no_seeds(results, groups) if len(set(names)) > 1 else ""
    if not why and len(set(names)) > 1:
        means = [seeds(group) for group in groups]
        for name in (name for name in means[0] if all(name in one for one in means)):
            each = [(_at(group[0], results), one[name]) for group, one in zip(groups, means, strict=True)]
            tables[name] = _joined(each, each[0][1].title) if over else each[0][1]
    about = {**first.about, "model": names, "runs": [dict(one.about) for one in results], "no_mean": why, OVER: over}
    arrays = {f"run{i}-{name}": x for i, one in enumerate(results) for name, x in one.arrays.items()}
    whole = Result(tables, blocks, made, first.figures, arrays, about)
    known = discover().get(str(about.get("instrument")))
    return whole if known is None else replace(whole, tables=tables | known.relate(whole))


SAME = ("instrument", "options")
"""What results of several runs must have in common."""
RUN = key("run", "run", "the run that was measured")
STEP = number("step", "step", "optimiser steps", "of the training, at the snapshot", ",.0f")


TOKENS = number("tokens", "tokens", "training tokens", "seen by then, repetitions counted", ",.0f")


def _at(one: Result, results: Sequence[Result]) -> dict[str, Any]:
    """Where in its training a snapshot is: the step, and the tokens seen if all `results` say them."""
    known = ("step", "tokens") if all("tokens" in other.about for other in results) else ("step",)
    return {name: one.about[name] for name in known}


def _joined(parts: Sequence[tuple[dict[str, Any], Table]], title: str) -> Table:
    """One table of several, each with its labels (run, step, tokens) in front.

    An instrument's own column of the name of a label, such as tokens, is called measured_tokens.
    """
    parts = [(label, _measured(part, list(label))) for label, part in parts]
    missing: Reasons = {}
    start = 0
    for _, part in parts:
        missing |= {(row + start, column): why for (row, column), why in part.missing.items()}
        start += len(part.frame)
    labels = list(parts[0][0])
    frame = pd.concat([part.frame.assign(**label) for label, part in parts], ignore_index=True)
    frame = frame[[*labels, *(c for c in frame if c not in labels)]]
    of_training = {c.name: c for c in (RUN, STEP, TOKENS) if c.name in labels}
    known = {c.name: c for _, part in parts for c in part.columns} | of_training
    first = parts[0][1]
    return Table(frame, tuple(known[c] for c in frame), missing, title, first.by, first.most * len(parts), first.per)


def _measured(table: Table, labels: Sequence[str]) -> Table:
    """The table, whose own columns of the names of labels are called measured_NAME."""
    own = {name: f"measured_{name}" for name in labels if name in table.frame}

    def name(column: str) -> str:
        return own.get(column, column)

    return Table(
        table.frame.rename(columns=own),
        tuple(
            replace(c, name=own[c.name], title=f"{c.title}, measured") if c.name in own else c for c in table.columns
        ),
        {(row, name(column)): why for (row, column), why in table.missing.items()},
        table.title, name(table.by), table.most, tuple(map(name, table.per)),
    )  # fmt: skip


def no_seeds(results: Sequence[Result], groups: Sequence[Sequence[Result]]) -> str:
    """Why the runs are no training seeds of one recipe, so that their mean would say nothing; "" where they are.

    `groups` are the results at each step.
    """
    first = results[0]
    if any(one.about.get("recipe") != first.about.get("recipe") for one in results):
        return "no mean over runs: they differ in preset, configuration or tokenizer"
    if any(one.about.get("data") != first.about.get("data") for one in results):
        return "no mean over runs: they were measured on other data; name it, as --data SOURCE"
    for what, words in (("dtype", "weights of"), ("autocast", "autocast to"), ("edited_at", "edits at"),
                        ("hooked_at", "hooks of yours at")):  # fmt: skip
        found = list(dict.fromkeys(str(one.about.get(what)) for one in results))
        if len(found) > 1:
            return f"no mean over runs: they were measured with {words} {' and '.join(found)}"
    if any({*map(_training, group)} != {*map(_training, groups[0])} for group in groups):
        return "no mean over runs: they were not all measured at the same steps"
    if any(list(one.blocks) != list(first.blocks) for one in results):
        return "no mean over runs: they were not measured in the same way"
    return ""


def seeds(results: Sequence[Result]) -> dict[str, Table]:
    """For each block a table <block>-runs of every estimate's mean over the runs, with an interval between runs.

    With controls also of every difference from them. Runs that do not have the same rows (heads that were ranked in
    each) give none.
    """
    tables = {}
    for name in (name for name in results[0].blocks if not name.startswith("control-")):
        block, control = results[0].blocks[name], f"control-{name}"
        if control in results[0].blocks:
            each = [
                observations.compare(one.blocks[name], one.blocks[control], one.contrasts[name], one.contrasts[control])
                for one in results
            ]
        else:
            each = [observations.estimate(one.blocks[name], one.contrasts[name]) for one in results]
        keys = list(dict.fromkeys(k for c in each[0].contrasts for k in c.labels))
        try:
            found = observations.over_seeds(each, keys, block.measure)
        except InputError:
            continue
        title = f"mean over {len(results)} runs of {block.measure.name}; runs are the units"
        titles = {f"_{what}": f"{words}, mean over runs" for what, words in COMPARED.items()} | {"": "mean over runs"}
        tables[f"{name}-runs"] = _table(results[0], found, titles, "runs", title)
    return tables


COMPARED = {"run": "run", "control": "control", "difference": "run − control"}


def _training(result: Result) -> str:
    """What a snapshot's training is called."""
    return re.sub(r"@\d+(?=(, edited)?(, hooked)?(, weights changed)?\)?$)", "", str(result.about.get("model")))


def _names(results: Sequence[Result]) -> list[str]:
    """What the runs are called; a model measured twice gets a number."""
    names: list[str] = []
    for one in results:
        name, at = str(one.about.get("model")), 2
        while name in names:
            name, at = f"{one.about.get('model')} #{at}", at + 1
        names.append(name)
    return names
