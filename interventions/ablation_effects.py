"""Ablate groups of heads and see which tasks suffer, in a model and in its control: Table 2 and Fig. 4 of paper PLS.

    python -m interventions.ablation_effects
    python -m interventions.ablation_effects runs/pls --control runs/c2 --out effects.parquet
    python -m interventions.ablation_effects runs/pls --control runs/c2 --groups found --tasks capitalization gender
    python -m interventions.ablation_effects runs/pls --groups L5.H4+L5.H5 early=L0.* --tasks winograd mine.jsonl

Δ = P(answer) with the group's outputs z at 0 minus P(answer) as it is, case by case; negative: the heads contributed;
also for the log-odds of answer against foil (`probes.tasks` says how answers are scored). Intervals, p and Holm over
task × group take the independent cases of a task as units; `control` is the mean effect of other random groups of as
many heads and p_rank the group's rank among them. --control adds the ratios of spreads and means to that of another
model of the same shape; `found` groups are looked for in each model. Diagonality: `interventions.task_matrix`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from models.cli import command, parse
from models.errors import InputError
from probes.command import INTERVAL, RunOptions, check_options, open_run, progress_bar, show, write_results

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("task", "group", "heads", "n", "baseline", "difference", INTERVAL, "sd", "p_holm", "control", "p_rank")
RATIOS = ("task", "group", "sd", "control_sd", "sd_ratio", "sd 95 %", "mean", "control_mean", "mean_ratio", "mean 95 %")
NAMES = {"probability": "P(answer)", "log_odds": "log-odds of the answer, nats"}


@dataclass(frozen=True, kw_only=True)
class TaskOptions(RunOptions):
    """Arguments of the commands that edit groups of heads and score tasks."""

    control: str | None = None
    """A control model of the same layers and heads to compare with: a run folder or a bundled model."""
    tasks: tuple[str, ...] = ("capitalization", "gender", "winograd")
    """capitalization, gender, winograd; the paper's sizes capitalization-8, gender-16; a JSONL file; FORMAT:PATH."""
    groups: tuple[str, ...] = ("entity", "anchor", "semantic")
    """entity, anchor, semantic (PLS); found, found-entity, …; or heads as L5.H4+L5.H5, name=L4.*, top2:entity."""
    k: int = 2
    """Heads in a found group."""
    layers: Literal["last", "all"] = "last"
    """Where found groups are looked for."""
    draws: int = 39
    """Controls: other random groups of as many heads; 0: none."""
    seed: int = 0
    """Which random groups are drawn, and the permutations."""


@dataclass(frozen=True, kw_only=True)
class Options(TaskOptions):
    """Arguments of `python -m interventions.ablation_effects`."""

    diagonal: tuple[str, ...] = ()
    """Own group of each task as TASK=GROUP; default: capitalization=entity gender=anchor, as in PLS."""


@dataclass(frozen=True)
class Opened:
    """A model with the tasks in its tokens and its groups of heads."""

    name: str
    model: Any
    tasks: list[Any]
    groups: list[Any]


def open_models(options: TaskOptions) -> list[Opened]:
    """The run and, where one is given, its control.

    Raises `InputError` for a control of another shape, a group or task that does not exist, and --draws below 0.
    """
    from interventions.groups import HeadFinder
    from models.checkpoint import run_folder
    from probes.align import check_tokenizer
    from probes.tasks import load_tasks

    if options.draws < 0 or options.k < 1:
        raise InputError("--draws must be 0 or more and --k at least 1")
    runs = [options.run, *([options.control] if options.control is not None else [])]
    for run in runs:
        run_folder(run)
    found = [open_run(options, run) for run in runs]
    shapes = [(m.config.n_layers, m.config.n_heads) for _, m in found]
    if len(set(shapes)) > 1:
        (a, b), (c, d) = shapes
        raise InputError(
            f"--control {options.control} has {c} layers of {d} heads, the model {a} of {b}; "
            "heads can be compared between models of one shape"
        )
    opened = []
    for name, model in found:
        tokenizer = check_tokenizer(model)
        tasks = load_tasks(options.tasks, tokenizer, model.config.n_ctx)
        finder = HeadFinder(model, tokenizer, k=options.k, layers=options.layers)
        opened.append(Opened(name, model, tasks, finder.groups(options.groups)))
    names = [one.name for one in opened]
    if len(set(names)) < len(names):
        opened[1] = Opened(f"{names[1]}, control", opened[1].model, opened[1].tasks, opened[1].groups)
    return opened


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, ablate, print, write."""
    options = parse(Options, argv, __doc__)
    check_options(options)

    import pandas as pd

    from interventions.ablation_figures import plot
    from interventions.model_ratios import UNITS as RATIO_UNITS
    from interventions.model_ratios import compare_models
    from interventions.task_effects import UNITS, ablate_tasks
    from interventions.task_matrix import UNITS as MATRIX_UNITS
    from interventions.task_matrix import diagonality_rows, own_groups

    opened = open_models(options)
    own = own_groups(options.diagonal, [t.name for t in opened[0].tasks], [g.name for g in opened[0].groups])
    found = []
    for one in opened:
        limits: dict[str, Any] = {"draws": options.draws, "seed": options.seed, "progress": progress_bar(one.name)}
        found.append(ablate_tasks(one.model, one.tasks, one.groups, **limits))
        _print(one, found[-1].table)
    names = [one.name for one in opened]
    matrix = [
        {"model": name, **row}
        for name, one in zip(names, found, strict=True)
        for row in diagonality_rows(one, own, seed=options.seed)
    ]
    tables: dict[str, Any] = {
        "": (_named(names, [one.table for one in found]), UNITS),
        "cases": (_named(names, [one.rows() for one in found]), UNITS),
        "diagonality": (pd.DataFrame(matrix), MATRIX_UNITS),
    }
    if own:
        show(tables["diagonality"][0].drop(columns="permutations"), "diagonality: own groups minus others", digits=4)
    if len(found) > 1:
        ratios = compare_models(*found)
        _print_ratios(ratios, f"{names[0]} over {names[1]}")
        tables["ratios"] = (ratios, RATIO_UNITS)
    write_results(options, tables, plot(names, found), **about(options, opened))


def about(options: TaskOptions, opened: Sequence[Opened]) -> dict[str, Any]:
    """What a written table says of its tasks, groups and control."""
    return {
        "control": options.control,
        "tasks": {task.name: [task.source, task.title] for task in opened[0].tasks},
        "groups": {one.name: {group.name: group.label for group in one.groups} for one in opened},
        "draws": options.draws,
        "seed": options.seed,
    }


def _named(names: Sequence[str], tables: "Sequence[pd.DataFrame]") -> "pd.DataFrame":
    """Tables of several models as one, with the model in front."""
    import pandas as pd

    parts = [table.copy() for table in tables]
    for name, part in zip(names, parts, strict=True):
        part.insert(0, "model", name)
    return pd.concat(parts, ignore_index=True)


def _print(one: Opened, table: "pd.DataFrame") -> None:
    """The effects of a model, a table per measure, and why cells are undefined."""
    from probes.undefined import legend

    print("; ".join(task.title for task in one.tasks))
    for measure, rows in table.groupby("measure", sort=False):
        draws = rows["draws"].max()
        title = f"{one.name}: change of {NAMES[str(measure)]} without the heads; {draws} random groups as controls"
        show(rows, title, COLUMNS, digits=4)
    if lines := legend(table):
        print(lines)


def _print_ratios(ratios: "pd.DataFrame", title: str) -> None:
    """Ratios with their intervals, and why cells are undefined."""
    from probes.undefined import legend, printable

    shown = printable(ratios)
    for kind in ("sd", "mean"):
        ends = zip(shown[f"{kind}_ratio_low"], shown[f"{kind}_ratio_high"], strict=True)
        shown[f"{kind} 95 %"] = [a if isinstance(a, str) else f"{a:.2f} … {b:.2f}" for a, b in ends]
    for measure, rows in shown.groupby("measure", sort=False):
        show(rows, f"{title}: {NAMES[str(measure)]}", RATIOS)
    if lines := legend(ratios):
        print(lines)


if __name__ == "__main__":
    command(main)
