"""Direct and total effects of heads, and what later layers make up for: the Hydra effect (PLS §1, McGrath et al. 2023).

    python -m interventions.hydra
    python -m interventions.hydra runs/pls --tasks capitalization gender --out hydra.parquet
    python -m interventions.hydra runs/pls --groups entity L5.H2+L5.H3
    python -m interventions.hydra runs/pls --heads L3.* top2:entity
    python -m interventions.hydra runs/pls --control runs/c2

A head's direct effect is minus what it writes along answer minus foil, with the final norm's scale held fixed; its
total effect is the change of the log-odds when it is ablated. Both are below 0 for a head that helps. They differ by
what later layers do about it (compensation, per layer, attention and FFN, and per head), by the norm's new scale, and
with hyper-connections by other mixing:

    total = direct + compensation + mixing + norm          nats per case, exactly (`interventions.hydra_tables`)

`made_up` is −compensation / direct: 1 where later layers restore all that was taken, 0 where none. --control decomposes
the same cases in a second model with the run's tokenizer, and gives the difference of every part, paired by case; heads
of --heads are found in the run and ablated in both models, those of --groups are found in each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streamscope.interventions.control_run import (
    ControlOptions,
    check_tokens,
    named_with_control,
    open_runs,
    show_differences,
)
from streamscope.models.bounds import Count
from streamscope.models.cli import command, parse
from streamscope.probes.command import check_options, progress_bar, show, write_results

if TYPE_CHECKING:
    import pandas as pd

    from streamscope.interventions.groups import Group
    from streamscope.interventions.hydra_tables import Decomposition


@dataclass(frozen=True, kw_only=True)
class Options(ControlOptions):
    """Arguments of `python -m interventions.hydra`."""

    heads: tuple[str, ...] = ()
    """Heads to ablate one at a time: L5.H4, L4.*, top3:entity; default: all, unless there are --groups."""
    groups: tuple[str, ...] = ()
    """Groups to ablate as one: entity, anchor, semantic, found, L5.H4+L5.H5, name=L4.*."""
    tasks: tuple[str, ...] = ("capitalization", "winograd")
    """Tasks scored by a token: capitalization, gender, winograd, a JSONL file, a suite with continuations."""
    top: Count = 8
    """Rows to print of each task, by the size of the direct effect; the written table holds all."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, decompose, print, write."""
    options = parse(Options, argv, __doc__)
    check_options(options)

    import pandas as pd

    from streamscope.interventions.contributions import check_heads
    from streamscope.interventions.hydra_figure import plot
    from streamscope.interventions.hydra_tables import UNITS, by_layer, decompose, summary
    from streamscope.probes.prompts.alignment import check_tokenizer
    from streamscope.probes.prompts.tasks import load_tasks

    opened = open_runs(options)
    names, nets = [name for name, _ in opened], [model for _, model in opened]
    check_tokens(options, opened)
    for model in nets[1:]:
        check_heads(model)
    tasks = [load_tasks(options.tasks, check_tokenizer(model), model.config.n_ctx) for model in nets]
    groups = _groups(options, nets)
    found: list[list[list[Decomposition]]] = []
    parts, layers = [], []
    for name, model, some, chosen in zip(names, nets, tasks, groups, strict=True):
        found.append([decompose(model, task, chosen, progress=progress_bar(f"{name}: {task.name}")) for task in some])
        each = [summary(task, chosen, one) for task, one in zip(some, found[-1], strict=True)]
        for task, table in zip(some, each, strict=True):
            _print(f"{name}; {task.title}", table, options.top)
        parts.append(pd.concat(each, ignore_index=True))
        each = [by_layer(task, chosen, one) for task, one in zip(some, found[-1], strict=True)]
        layers.append(pd.concat(each, ignore_index=True))
    about: dict[str, Any] = {"tasks": {task.name: [task.source, task.title] for task in tasks[0]}}
    tables: dict[str, Any] = {
        "": (named_with_control(names, parts), UNITS), "layers": (named_with_control(names, layers), UNITS)
    }  # fmt: skip
    if len(opened) > 1:
        from streamscope.interventions.case_differences import PART_UNITS, compare_parts

        both = zip(*tasks, *found, strict=True)
        compared = [compare_parts((a, b), (groups[0], groups[1]), (x, y)) for a, b, x, y in both]
        for at, kind in enumerate(("control", "layers-control")):
            tables[kind] = (pd.concat([pair[at] for pair in compared], ignore_index=True), PART_UNITS)
        named = {"log_odds": "nats of answer − foil", "made_up": "share made up for"}
        shown = tables["control"][0].replace({"measure": named})
        shown = shown[shown["part"].isin(("direct", "compensation", "total"))]
        for task_name, rows in shown.groupby("task", sort=False):
            print(f"{task_name}: the largest differences of direct, compensation and total")
            show_differences(rows, names, ("group", "part"), units="cases", top=options.top)
    figure = plot(tables[""][0], tables["layers"][0], " and ".join(names)) if options.out is not None else None
    write_results(options, tables, figure, **about, control=options.control)


def _groups(options: Options, nets: Sequence[Any]) -> "list[list[Group]]":
    """The groups of each model: single heads as the run has them, --groups as each model has them."""
    from streamscope.interventions.groups import Group, HeadFinder
    from streamscope.probes.prompts.alignment import check_tokenizer

    finders = [HeadFinder(model, check_tokenizer(model)) for model in nets]
    single: list[Group] = []
    for group in finders[0].groups(options.heads or ("all",)) if options.heads or not options.groups else []:
        single += [Group(head.label, (head,)) for head in group.heads]
    more = [finder.groups(options.groups) if options.groups else [] for finder in finders]
    return [list(dict.fromkeys([*single, *some])) for some in more]


def _print(title: str, table: "pd.DataFrame", top: int) -> None:
    """The groups with the largest direct effects: every part, with the intervals of direct and total."""
    from streamscope.interventions.hydra_tables import PARTS
    from streamscope.interventions.observe import SMALLEST

    wide = table.pivot(index="group", columns="part", values="mean")[list(PARTS)]
    wide = wide.where(wide.abs() > SMALLEST["log_odds"], 0.0)  # rounding prints as 0
    of = {str(part): one.set_index("group") for part, one in table.groupby("part")}
    for part in ("direct", "total"):
        wide[f"{part} 95 %"] = of[part].apply(_interval, axis=1)
    share = of["compensation"]["made_up"]
    wide["made_up"] = share.map(lambda x: f"{x:.2f}" if x == x else "undefined")
    order = wide["direct"].abs().sort_values(ascending=False, kind="stable").index[:top]
    columns = ("direct", "direct 95 %", "attn", "mlp", "mixing", "norm", "total", "total 95 %", "made_up")
    shown = wide.loc[order, list(columns)].reset_index()
    worst = table["unexplained"].max()
    show(shown, f"{title}; nats of answer − foil, mean over cases; unexplained at most {worst:.1e} in a case")
    if (share.loc[order].isna()).any():
        print("made_up is undefined where the mean direct effect cannot be told from 0")


def _interval(row: "pd.Series") -> str:
    low, high = row["ci_low"], row["ci_high"]
    return f"{low:+.3f} … {high:+.3f}" if low == low else "undefined"


if __name__ == "__main__":
    command(main)
