"""What is measured on one run of PLS' comparison, with the instruments of `interventions`.

    effect.T.G        mean Δ P(answer) over the cases of task T without the heads of group G (Table 2)
    spread.T.G        its standard deviation between cases (§5.2, Fig. 4b)
    range.T.G         control range of P(answer) over the scales (Fig. 3); monotonicity.T.G: |Spearman's ρ| of the mean
                      curve; rising.T.G: ρ within a case, mean over cases, 1 where every case rises with the scale
    own.T.G           |effect| of the group on its own task minus that on the tasks with other own groups (§5.3)
    smear.G           |effect| of the group on gender minus that on capitalization (§5.3, the control)
    diagonality.named, .found      own cells minus others of the matrix task × group (Fig. 4a)

`effect_odds`, `spread_odds`, `range_odds`, `monotonicity_odds`, … are the same of the log-odds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from streamscope.cli.errors import InputError
from streamscope.instruments.observations import Observations
from streamscope.instruments.open_data import OpenTasks
from streamscope.instruments.prompts.alignment import check_tokenizer
from streamscope.instruments.prompts.tasks import Task, load_tasks
from streamscope.instruments.result import Result
from streamscope.instruments.stats.means import estimate, hits
from streamscope.instruments.undefined_cells import note, reasons
from streamscope.interventions.ablation_effects import AblationEffects
from streamscope.interventions.ablation_effects.changes import cases, changes
from streamscope.interventions.ablation_effects.changes import rows as of_cases
from streamscope.interventions.ablation_effects.diagonality import FEW, NUMBERS, OWN, diagonality
from streamscope.interventions.hydra import Hydra
from streamscope.interventions.hydra.measure import PARTS, kept_share
from streamscope.interventions.observe import observe_task
from streamscope.interventions.selection import HeadFinder
from streamscope.interventions.steer_heads import SteerHeads
from streamscope.papers.comparison.seeds import Progress, Rows
from streamscope.papers.pls import Settings
from streamscope.papers.pls.depth import measure_depth
from streamscope.text.shards import TokenShards

SUFFIX = {"probability": "", "log_odds": "_odds"}
UNIT = {"probability": "probability", "log_odds": "nats"}


STEERED, SCALES = ("capitalization",), (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5)
"""Tasks whose control curves are measured, and at which scales; ranges are taken over all of them."""
WITHIN = (min(SCALES), max(SCALES))


@dataclass(frozen=True)
class Measured:
    """One run: its quantities, the tables behind them, and what pairs of runs are compared by."""

    tables: dict[str, pd.DataFrame]
    """runs (quantities), baselines, effects, cases, curves, hydra, diagonality, depth, heads, roles"""
    effects: Result
    """Of `interventions.ablation_effects`."""
    curves: dict[str, Observations]
    """Of `interventions.steer_heads`."""
    left_out: dict[str, str]
    """Task -> counts of its cases, and what was left out."""


def measure_run(model: Any, shards: TokenShards, settings: Settings, progress: Progress) -> Measured:
    """Every table of one run; `shards` are the documents whose tokens have a depth.

    Raises `InputError` for a group of heads that the model does not have and for a task that cannot be scored.
    """
    tokenizer = check_tokenizer(model)
    tasks = _kinds(load_tasks(settings.tasks, tokenizer, model.config.n_ctx))
    finder = HeadFinder(model, tokenizer, layers=settings.layers)
    groups = finder.groups(settings.groups)
    rows = Rows()
    specs = tuple(g.spec for g in groups)
    how = AblationEffects(groups=specs, draws=settings.draws, seed=settings.seed)
    effects = how.measure(model, OpenTasks(tasks, tokenizer), progress=progress("ablation"))
    table = pd.concat([effects.table(name).short("delta").assign(measure=name) for name in SUFFIX], ignore_index=True)
    _ablation(rows, table)
    deltas = {(name, *key): x for name, block in effects.blocks.items() for key, x in changes(block).items()}
    clusters = {task.name: cases(effects.blocks["log_odds"], task.name)["cluster"].to_numpy() for task in tasks}
    matrix = _routing(rows, deltas, clusters, [g.name for g in groups], settings.seed)
    steered = OpenTasks([task for task in tasks if task.name in STEERED], tokenizer)
    curves, levels = _steering(rows, model, steered, specs, progress)
    hydra = _hydra(rows, model, tasks, specs, tokenizer, progress)
    roles = any(g.name.startswith("found-") for g in groups)
    depth = measure_depth(rows, model, shards, settings.tokens, progress)
    tables = {
        "runs": pd.DataFrame(rows.rows), "baselines": _unedited(model, tasks, progress),
        "effects": table, "cases": of_cases(effects.blocks), "hydra": hydra, "curves": levels,
        "diagonality": matrix, "depth": depth, "roles": finder.roles if roles else pd.DataFrame(),
        "heads": pd.DataFrame([{"group": g.name, "heads": g.label} for g in groups]),
    }  # fmt: skip
    return Measured(tables, effects, curves, {task.name: task.title for task in tasks})


def _kinds(tasks: Sequence[Task]) -> list[Task]:
    """The tasks under the names that claims know: the paper's sizes, capitalization-8, count as capitalization.

    Raises `InputError` for two of one kind.
    """
    kinds = [task.name.split("-")[0] if task.name.split("-")[0] in OWN else task.name for task in tasks]
    if len(set(kinds)) < len(kinds):
        twice = next(kind for kind in kinds if kinds.count(kind) > 1)
        raise InputError(f"--tasks: two of them are {twice}; give one, the claims are about it")
    return [replace(task, name=kind) for task, kind in zip(tasks, kinds, strict=True)]


def _unedited(model: Any, tasks: Sequence[Task], progress: Progress) -> pd.DataFrame:
    """Of every task: P(answer), the log-odds of answer against foil, and the share of cases where these are above 0."""

    table = []
    for task in tasks:
        seen = observe_task(model, task, [], progress=progress(f"{task.name}, unedited"))
        clusters = task.cases["cluster"]
        row: dict[str, Any] = {"task": task.name, "rule": task.rule, "n": len(clusters)}
        why: dict[str, str] = {}
        for measure in SUFFIX:
            one = estimate(seen[measure].under(None), clusters)
            row |= {"clusters": one["clusters"], measure: one["mean"]}
            row |= {f"{measure}_low": one["ci_low"], f"{measure}_high": one["ci_high"]}
            given = reasons(one["undefined"])
            why |= {f"{measure}_{end}": given[f"ci_{end}"] for end in ("low", "high") if f"ci_{end}" in given}
        share = hits(seen["log_odds"].under(None) > 0, clusters)
        row |= {"right": share["share"], "right_low": share["ci_low"], "right_high": share["ci_high"]}
        why |= dict.fromkeys(("right_low", "right_high"), share["why"]) if share["why"] else {}
        table.append({**row, "undefined": note(why)})
    return pd.DataFrame(table)


def _ablation(rows: Rows, effects: pd.DataFrame) -> None:
    """Mean and spread of Δ; `detail` names the heads."""

    for r in effects.itertuples():
        name, unit = f"{r.task}.{r.group}", UNIT[str(r.measure)]
        why = reasons(r.undefined).get("ci_low", "")
        limits = (r.ci_low, r.ci_high)
        end = SUFFIX[str(r.measure)]
        rows.add(f"effect{end}.{name}", "effect", unit, r.delta, sd=r.spread, interval=limits, n=r.n,
                 detail=r.heads, why=why)  # fmt: skip
        rows.add(f"spread{end}.{name}", "spread", unit, r.spread, n=r.n, detail=r.heads)


def _routing(
    rows: Rows, deltas: Mapping[tuple[str, str, str], np.ndarray], clusters: Mapping[str, Any], groups: Sequence[str],
    seed: int,
) -> pd.DataFrame:  # fmt: skip
    """Do tasks lean on their own heads? Returns the diagonality of each measure, of named and of found heads.

    `deltas` are (measure, task, group) -> Δ of every case, `clusters` the labels of a task's cases.
    """

    parts = []
    for reading, prefix in (("named", ""), ("found", "found-")):
        own = {t: prefix + OWN[t] for t in clusters if t in OWN and prefix + OWN[t] in groups}
        if not own:
            continue
        for measure, end in SUFFIX.items():
            mine = {(t, g): x for (m, t, g), x in deltas.items() if m == measure}
            row = diagonality(mine, clusters, own, seed=seed)
            value = row["diagonality"]
            why = "" if value == value else FEW
            unsure = {"undefined": note(dict.fromkeys(NUMBERS, why) if why else {})}
            parts.append({"heads": reading, "measure": measure, **row, **unsure})
            rows.add(f"diagonality{end}.{reading}", "routing", UNIT[measure], value, detail=row["tasks"], why=why)
        size = {(t, g): abs(float(x.mean())) for (m, t, g), x in deltas.items() if m == "probability"}
        for task, group in own.items() if len(set(own.values())) > 1 else ():
            others = [size[t, group] for t, g in own.items() if g != group]
            rows.add(f"own.{task}.{group}", "routing", "probability", size[task, group] - sum(others) / len(others))
        if {"gender", "capitalization"} <= set(own):
            group = own["capitalization"]
            rows.add(f"smear.{group}", "routing", "probability", size["gender", group] - size["capitalization", group])
    return pd.DataFrame(parts)


def _steering(
    rows: Rows, model: Any, tasks: OpenTasks, groups: tuple[str, ...], progress: Progress
) -> tuple[dict[str, Observations], pd.DataFrame]:
    """Control range and monotonicity of every group on the steered tasks; returns the observations and the levels."""
    if not tasks.tasks:
        return {}, pd.DataFrame()
    how = SteerHeads(groups=groups, scales=SCALES, within=WITHIN, measures=("task",), draws=0)
    result = how.measure(model, tasks, progress=progress("steering"))
    for r in result.table("curves").short().itertuples():
        name, end, why = f"{r.task}.{r.group}", SUFFIX[str(r.measure)], reasons(r.undefined)
        rows.add(f"range{end}.{name}", "steering", UNIT[str(r.measure)], r.range, interval=(r.range_low, r.range_high),
                 n=r.n + r.flat, detail=r.heads, why=why.get("range_low", ""))  # fmt: skip
        rows.add(f"monotonicity{end}.{name}", "steering", "|Spearman's ρ|", abs(r.spearman_curve), n=r.n,
                 why=why.get("spearman_curve", ""))  # fmt: skip
        rows.add(f"rising{end}.{name}", "steering", "Spearman's ρ", r.spearman, n=r.n,
                 interval=(r.spearman_low, r.spearman_high), detail=f"{r.flat} cases do not move",
                 why=why.get("spearman", why.get("spearman_low", "")))  # fmt: skip
    parts = [result.table(name).short().assign(measure=name) for name in SUFFIX]
    return dict(result.blocks), pd.concat(parts, ignore_index=True)


def _hydra(
    rows: Rows, model: Any, tasks: Sequence[Task], groups: Sequence[str], tokenizer: Any, progress: Progress
) -> pd.DataFrame:
    """Direct effect, compensation and total of every group, on the tasks scored by a token: a row for each part."""

    some = [task for task in tasks if task.rule == "token"]
    if not some:
        return pd.DataFrame()
    data = OpenTasks(some, tokenizer)
    result = Hydra(groups=tuple(groups)).measure(model, data, progress=progress("direct effects"))
    block, parts = result.blocks["effects"], []
    for r in result.table().frame.to_dict("records"):
        direct, total = (block.total[block.cell(task=r["task"], group=r["group"], part=p)] for p in ("direct", "total"))
        inside = ~np.isnan(direct)
        value = kept_share(direct[inside], total[inside])
        rows.add(f"kept.{r['task']}.{r['group']}", "hydra", "share of the direct effect", value, n=r["n"],
                 detail=r["heads"], why="" if value == value else "no direct effect in any case")  # fmt: skip
        which = {name: r[name] for name in ("task", "group", "heads", "n", "clusters", "unexplained")}
        for part in PARTS:
            ends = {"ci_low": r[f"{part}_low"], "ci_high": r[f"{part}_high"]}
            parts.append({**which, "part": part, "mean": r[part], "sd": r[f"{part}_sd"], **ends})
    return pd.DataFrame(parts)
