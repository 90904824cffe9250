"""Direct and total effects of heads, and what later layers make up for: the Hydra effect (PLS §1, McGrath et al. 2023).

    python -m interventions.hydra
    python -m interventions.hydra runs/pls --tasks capitalization gender --out hydra.parquet
    python -m interventions.hydra runs/pls --groups entity L5.H2+L5.H3
    python -m interventions.hydra runs/pls --heads L3.* top2:entity

A head's direct effect is what it writes along answer minus foil, with the final norm's scale held fixed; its total
effect is what the log-odds lose when it is ablated. They differ by what later layers do about it (compensation, per
layer, attention and FFN, and per head), by the norm's new scale, and with hyper-connections by other mixing:

    total = direct + compensation + mixing + norm          nats per case, exactly (`interventions.hydra_tables`)

`made_up` is −compensation / direct: 1 where later layers restore all that was taken, 0 where none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from models.cli import command, parse
from probes.command import RunOptions, check_options, open_run, progress_bar, show, write_results

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class Options(RunOptions):
    """Arguments of `python -m interventions.hydra`."""

    heads: tuple[str, ...] = ()
    """Heads to ablate one at a time: L5.H4, L4.*, top3:entity; default: all, unless there are --groups."""
    groups: tuple[str, ...] = ()
    """Groups to ablate as one: entity, anchor, semantic, found, L5.H4+L5.H5, name=L4.*."""
    tasks: tuple[str, ...] = ("capitalization", "winograd")
    """Tasks scored by a token: capitalization, gender, winograd, a JSONL file, a suite with continuations."""
    top: int = 8
    """Rows to print of each task, by the size of the direct effect; the written table holds all."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, decompose, print, write."""
    options = parse(Options, argv, __doc__)
    check_options(options)

    import pandas as pd

    from interventions.groups import Group, HeadFinder
    from interventions.hydra_figure import plot
    from interventions.hydra_tables import UNITS, by_layer, decompose, summary
    from models.errors import InputError
    from probes.align import check_tokenizer
    from probes.tasks import load_tasks

    if options.top < 1:
        raise InputError(f"--top {options.top}: at least one row")
    name, model = open_run(options)
    tokenizer = check_tokenizer(model)
    tasks = load_tasks(options.tasks, tokenizer, model.config.n_ctx)
    finder, groups = HeadFinder(model, tokenizer), list[Group]()
    for group in finder.groups(options.heads or ("all",)) if options.heads or not options.groups else []:
        groups += [Group(head.label, (head,)) for head in group.heads]
    groups += finder.groups(options.groups) if options.groups else []
    groups = list(dict.fromkeys(groups))
    parts, layers = [], []
    for task in tasks:
        found = decompose(model, task, groups, progress=progress_bar(task.name))
        parts.append(summary(task, groups, found))
        layers.append(by_layer(task, groups, found))
        _print(f"{name}; {task.title}", parts[-1], options.top)
    table = pd.concat(parts, ignore_index=True)
    about = {"tasks": {task.name: [task.source, task.title] for task in tasks}}
    tables: dict[str, Any] = {"": (table, UNITS), "layers": (pd.concat(layers, ignore_index=True), UNITS)}
    figure = plot(table, tables["layers"][0], name) if options.out is not None else None
    write_results(options, tables, figure, **about)


def _print(title: str, table: "pd.DataFrame", top: int) -> None:
    """The groups with the largest direct effects: every part, with the intervals of direct and total."""
    from interventions.hydra_tables import PARTS
    from interventions.observe import SMALLEST

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
