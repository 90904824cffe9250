"""Turn groups of heads down and up and see a behaviour follow: the control curves of paper PLS (§5.2, Fig. 3).

    python -m interventions.steer_heads
    python -m interventions.steer_heads runs/pls --control runs/c2 --out steering.parquet
    python -m interventions.steer_heads runs/pls --groups entity anchor --tasks capitalization gender --scales 0 0.5 3

The outputs z of a group are multiplied by each scale g at every position: 0 ablates, 1 changes nothing, above 1
amplifies; scaling the attention weights without normalising them is the same. Per scale: P(answer), log-odds of
answer against foil, and the loss of documents; the written table has the change from scale 1 and 95 % over independent
cases. Per curve: control range, monotonicity (Spearman within cases), the ranges of random groups as large; with
--control the leverage, the ratio of the control ranges of the two models. Definitions: `interventions.head_curves`.
To add directions to the stream: `interventions.steer`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from streamscope.interventions.task_session import NAMES, Opened, TaskOptions, about, open_models
from streamscope.models.bounds import AnyNumber, Count, Whole
from streamscope.models.cli import command, parse
from streamscope.models.errors import InputError
from streamscope.probes.command import INTERVAL, check_options, progress_bar, show, write_results

if TYPE_CHECKING:
    import pandas as pd

    from streamscope.interventions.head_curves import Curve

RHO = "spearman (95 %)"


@dataclass(frozen=True, kw_only=True)
class Options(TaskOptions):
    """Arguments of `python -m interventions.steer_heads`."""

    tasks: tuple[str, ...] = ("capitalization",)
    """capitalization, gender, winograd; the paper's sizes capitalization-8, gender-16; a JSONL file; FORMAT:PATH."""
    groups: tuple[str, ...] = ("entity",)
    """entity, anchor, semantic (PLS); found, found-entity, …; or heads as L5.H4+L5.H5, name=L4.*, top2:entity."""
    scales: tuple[AnyNumber, ...] = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
    """Factors g on the heads' outputs; 1 is always among them."""
    within: tuple[AnyNumber, AnyNumber] = (0.0, 1.5)
    """Scales over which range and monotonicity are taken; 0 to 1.5 in the paper."""
    measure: tuple[Literal["task", "loss"], ...] = ("task", "loss")
    """task: P(answer) and log-odds; loss: of documents, under the same scales."""
    draws: Whole = 9
    """Random groups of as many heads to compare the ranges with; 0: none."""
    data: str | None = None
    """SOURCE to measure the loss on; default: the run's validation data."""
    max_documents: Count = 20
    """Documents to measure the loss on."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, steer, print, write."""
    options = parse(Options, argv, __doc__)
    check_options(options)
    if not options.measure:
        raise InputError("give at least one --measure: task, loss")

    import pandas as pd

    from streamscope.interventions.head_curve_figure import plot
    from streamscope.interventions.head_curves import UNITS, levels, leverage, scales_of, summaries

    scales = scales_of(options.scales, options.within)
    opened = open_models(options)
    found = [
        _curves(options, one, scales, run) for one, run in zip(opened, (options.run, options.control), strict=False)
    ]
    tables: dict[str, tuple[pd.DataFrame, dict[str, str]]] = {}
    shown, summed = [], []
    for one, curves in zip(opened, found, strict=True):
        table, summary = levels(curves), summaries(curves, options.within)
        _print(one, table, summary, options.within)
        shown.append(table.assign(model=one.name))
        summed.append(summary.assign(model=one.name))
    tables = {"": (pd.concat(shown, ignore_index=True), UNITS), "curves": (pd.concat(summed, ignore_index=True), UNITS)}
    if len(found) > 1 and len(ratios := leverage(found[0], found[1], options.within)):
        _print_leverage(ratios, f"{opened[0].name} over {opened[1].name}")
        tables["leverage"] = (ratios, UNITS)
    figure = plot(tables[""][0]) if options.out is not None else None
    write_results(options, tables, figure, scales=scales, within=options.within, **about(options, opened))


def _curves(options: Options, one: Opened, scales: tuple[float, ...], run: str | None) -> "list[Curve]":
    """The curves of a model: every task and, where wanted, the loss."""
    from streamscope.interventions.controls import plan
    from streamscope.interventions.edits import scale_heads
    from streamscope.interventions.head_curves import curves
    from streamscope.interventions.observe import observe_loss, observe_task
    from streamscope.interventions.selection import every_head

    heads = [group.heads for group in one.groups]
    sweep = plan(heads, scales, every_head(one.model), scale_heads, draws=options.draws, seed=options.seed)
    found = []
    bar = progress_bar(f"{one.name}: {len(sweep.edits)} edits")
    if "task" in options.measure:
        for task in one.tasks:
            found += curves(observe_task(one.model, task, sweep.edits, progress=bar), task.name, one.groups, sweep)
    if "loss" in options.measure:
        from streamscope.models.checkpoint import run_folder
        from streamscope.models.training.data import evaluation_shards

        assert run is not None
        shards = evaluation_shards(run_folder(run), one.model._text(), options.data)
        limits: dict[str, Any] = {"max_documents": options.max_documents, "progress": bar}
        observed = {"loss": observe_loss(one.model, sweep.edits, shards, **limits)}
        found += curves(observed, "documents", one.groups, sweep)
    return found


def _print(one: Opened, table: "pd.DataFrame", summary: "pd.DataFrame", within: tuple[float, float]) -> None:
    """Levels at every scale, then ranges and monotonicity, and why cells are undefined."""
    from streamscope.probes.undefined import legend

    names = NAMES | {"loss": "loss, nats/token"}
    print("; ".join(task.title for task in one.tasks))
    print(f"{one.name}: {', '.join(f'{group.name} {group.label}' for group in one.groups)}")
    for measure, rows in table.groupby("measure", sort=False):
        wide = rows.pivot_table(index=["task", "group"], columns="scale", values="mean", sort=False)
        wide.columns = [f"g {scale:g}" for scale in wide.columns]
        show(wide.reset_index(), f"{one.name}: {names[str(measure)]}, mean under heads scaled by g", digits=4)
    both = summary.rename(columns={"range_low": "ci_low", "range_high": "ci_high"})
    both["undefined"] = [_renamed(text, "range") for text in both["undefined"]]
    ends = zip(summary["spearman"], summary["spearman_low"], summary["spearman_high"], strict=True)
    both[RHO] = [
        "undefined" if r != r else f"{r:+.2f}" + (f" ({a:+.2f} … {b:+.2f})" if a == a else "") for r, a, b in ends
    ]
    columns = ("measure", "task", "group", "range", INTERVAL, "random_range", "p_rank", RHO, "n", "flat")
    show(both, f"{one.name}: control range and monotonicity, scales {within[0]:g} to {within[1]:g}", columns, digits=4)
    if lines := legend(summary):
        print(lines)


def _print_leverage(ratios: "pd.DataFrame", title: str) -> None:
    """Leverage with its interval."""
    from streamscope.probes.undefined import legend

    shown = ratios.rename(columns={"leverage_low": "ci_low", "leverage_high": "ci_high"})
    shown["undefined"] = [_renamed(text, "leverage") for text in shown["undefined"]]
    columns = ("measure", "task", "group", "range", "control_range", "leverage", INTERVAL, "n")
    show(shown, f"{title}: leverage", columns, digits=4)
    if lines := legend(ratios):
        print(lines)


def _renamed(undefined: str, name: str) -> str:
    """The note of a row whose `name`_low and `name`_high are printed as an interval."""
    return undefined.replace(f"{name}_low", "ci_low").replace(f"{name}_high", "ci_high")


if __name__ == "__main__":
    command(main)
