"""Ablate groups of heads and see which tasks suffer, in a model and in its control: Table 2 and Fig. 4 of paper PLS.

    python -m interventions.ablation_effects
    python -m interventions.ablation_effects runs/pls --control runs/c2 --out effects.parquet
    python -m interventions.ablation_effects runs/pls --control runs/c2 --groups found --tasks capitalization gender
    python -m interventions.ablation_effects runs/pls --groups L5.H4+L5.H5 early=L0.* --tasks winograd mine.jsonl

Δ = P(answer) with the group's outputs z at 0 minus P(answer) as it is, case by case; negative: the heads contributed;
also for the log-odds of answer against foil (`probes.prompts.tasks` says how answers are scored). Intervals, p and
Holm over task × group take the independent cases of a task as units; `control` is the mean effect of other random
groups of as many heads and p_rank the group's rank among them. --control adds the ratios of spreads and means to that
of another model of the same shape; `found` groups are looked for in each model. Diagonality:
`interventions.task_matrix`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streamscope.interventions.control_run import named
from streamscope.interventions.task_session import NAMES, Opened, TaskOptions, about, open_models
from streamscope.models.cli import command, parse
from streamscope.probes.command import INTERVAL, check_options, progress_bar, show, write_results

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("task", "group", "heads", "n", "baseline", "difference", INTERVAL, "sd", "p_holm", "control", "p_rank")
RATIOS = ("task", "group", "sd", "control_sd", "sd_ratio", "sd 95 %", "mean", "control_mean", "mean_ratio", "mean 95 %")


@dataclass(frozen=True, kw_only=True)
class Options(TaskOptions):
    """Arguments of `python -m interventions.ablation_effects`."""

    diagonal: tuple[str, ...] = ()
    """Own group of each task as TASK=GROUP; default: capitalization=entity gender=anchor, as in PLS."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, ablate, print, write."""
    options = parse(Options, argv, __doc__)
    check_options(options)

    import pandas as pd

    from streamscope.interventions.ablation_figures import plot
    from streamscope.interventions.model_ratios import UNITS as RATIO_UNITS
    from streamscope.interventions.model_ratios import compare_models
    from streamscope.interventions.task_effects import UNITS, ablate_tasks
    from streamscope.interventions.task_matrix import UNITS as MATRIX_UNITS
    from streamscope.interventions.task_matrix import diagonality_rows, own_groups

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
        "": (named(names, [one.table for one in found]), UNITS),
        "cases": (named(names, [one.rows() for one in found]), UNITS),
        "diagonality": (pd.DataFrame(matrix), MATRIX_UNITS),
    }
    if own:
        show(tables["diagonality"][0].drop(columns="permutations"), "diagonality: own groups minus others", digits=4)
    if len(found) > 1:
        ratios = compare_models(*found)
        _print_ratios(ratios, f"{names[0]} over {names[1]}")
        tables["ratios"] = (ratios, RATIO_UNITS)
    figure = plot(names, found) if options.out is not None else None
    write_results(options, tables, figure, **about(options, opened))


def _print(one: Opened, table: "pd.DataFrame") -> None:
    """The effects of a model, a table per measure, and why cells are undefined."""
    from streamscope.probes.undefined import legend

    print("; ".join(task.title for task in one.tasks))
    for measure, rows in table.groupby("measure", sort=False):
        draws = rows["draws"].max()
        title = f"{one.name}: change of {NAMES[str(measure)]} without the heads; {draws} random groups as controls"
        show(rows, title, COLUMNS, digits=4)
    if lines := legend(table):
        print(lines)


def _print_ratios(ratios: "pd.DataFrame", title: str) -> None:
    """Ratios with their intervals, and why cells are undefined."""
    from streamscope.probes.undefined import legend, printable

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
