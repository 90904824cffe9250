"""Direct and total effects: one table row per task and group, with cases of all tasks as units."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from streamscope.instruments.contract import InstrumentData, Progress, title_of
from streamscope.instruments.data import Opened, Tasks
from streamscope.instruments.observations import (
    Contrast,
    Estimates,
    Measure,
    Observations,
    Reasons,
    bootstrap,
    estimate,
)
from streamscope.instruments.result import Result
from streamscope.instruments.stats.estimators import ratio, read_clusters
from streamscope.instruments.table import Column, Table, counts, described, key, number, quantity
from streamscope.interventions.hydra import Hydra
from streamscope.interventions.hydra.decomposition import PARTS, Decomposition, decompose, layer_values, part_values
from streamscope.interventions.observe import SMALLEST, UNIT
from streamscope.interventions.selection import Group, HeadFinder
from streamscope.probes.direct_logit_attribution.contributions import check_heads

__all__ = ["check_heads", "control_tables", "observe", "tables", "with_resolved_heads"]
KEYS = ("task", "group")
PLACE = ("layer", "place")
NATS = Measure(name="log-odds", unit=UNIT["log_odds"], resolution=SMALLEST["log_odds"])
UNSURE = "the direct effect is not significantly different from 0"
FEW = "too few independent cases for a bootstrap, or a share that does not vary"
RESAMPLES = 5000
ENDS = ("", "_low", "_high")


def observe(how: Hydra, model: Any, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: per task and group every part, and each later layer's attention, FFN and heads. Units: cases."""
    opened, groups = data[Tasks], _groups(how, data)
    found = [decompose(model, task, groups, progress=progress) for task in opened.tasks]
    units = pd.concat([opened.units(task).assign(task=task.name) for task in opened.tasks], ignore_index=True)
    units["unit"] = units["task"] + ":" + units["unit"]
    rows: dict[str, list[tuple[dict[str, Any], np.ndarray | None]]] = {"effects": [], "layers": []}
    layers = [(n, place) for n in range(model.config.n_layers)
              for place in ("attn", "mlp", *(f"L{n}H{h}" for h in range(model.config.n_heads)))]  # fmt: skip
    for task, each in zip(opened.tasks, found, strict=True):
        for group, one in zip(groups, each, strict=True):
            labels = {"task": task.name, "group": group.name}
            rows["effects"] += [({**labels, "part": part}, x) for part, x in part_values(one).items()]
            of = layer_values(group, one)
            for at in layers:  # the same cells in every model, even if groups are found in other layers
                rows["layers"].append(({**labels, "layer": at[0], "place": _place(*at)}, of.get(at)))
    blocks = {name: _block(some, units) for name, some in rows.items()}
    contrasts = {
        "effects": [
            Contrast(quantity=labels["part"], weights={i: 1.0}, labels={k: labels[k] for k in KEYS},
                     family=f"{labels['part']}, {labels['task']}")
            for i, (labels, _) in enumerate(rows["effects"])
        ],
        "layers": [
            Contrast(quantity="compensation", weights={i: 1.0}, labels=labels, family=f"layers, {labels['task']}")
            for i, (labels, x) in enumerate(rows["layers"]) if x is not None
        ],
    }  # fmt: skip
    about = {"title": f"{title_of(model)}; {opened.title()}", "groups": {g.name: g.label for g in groups}}
    by_task = dict(zip([t.name for t in opened.tasks], found, strict=True))
    return InstrumentData(blocks, contrasts, about, extra=(groups, by_task))


def _groups(how: Hydra, data: Opened) -> list[Group]:
    """The single heads of --heads, then --groups."""
    finder = HeadFinder(data.model, data[Tasks].tokenizer)
    single = [Group(head.label, (head,)) for group in _single(how, finder) for head in group.heads]
    return list(dict.fromkeys([*single, *(finder.groups(how.groups) if how.groups else [])]))


def _single(how: Hydra, finder: HeadFinder) -> list[Group]:
    return finder.groups(how.heads or ("all",)) if how.heads or not how.groups else []


def with_resolved_heads(how: Hydra, data: Opened) -> Hydra:
    """These options with single heads given by name, so that a control ablates the same ones."""
    finder = HeadFinder(data.model, data[Tasks].tokenizer)
    return replace(how, heads=tuple(f"L{h.layer}.H{h.head}" for g in _single(how, finder) for h in g.heads))


def _place(layer: int, part: str) -> str:
    return part if part.startswith("L") else f"L{layer} {part}"


def _block(rows: Sequence[tuple[dict[str, Any], np.ndarray | None]], units: pd.DataFrame) -> Observations:
    """Values of each task's cases at its units; None for cells without values."""
    at = {task: np.flatnonzero(units["task"] == task) for task in dict.fromkeys(units["task"])}
    total, size = np.zeros((2, len(rows), len(units)))
    for i, (labels, x) in enumerate(rows):
        if x is not None:
            total[i, at[labels["task"]]], size[i, at[labels["task"]]] = x, 1.0
    cells = pd.DataFrame([labels for labels, _ in rows])
    return Observations(measure=NATS, cells=cells, units=units, total=total, size=size)


def tables(how: Hydra, seen: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """effects: one row per task and group; layers: compensation of every later layer, by branch and head.

    `unexplained` is the largest difference in a case between the parts and the model's own log-probabilities.
    """
    groups, found = seen.extra
    heads = {group.name: group.label for group in groups}
    frame, missing = estimates["effects"].wide(KEYS)
    frame.insert(2, "heads", frame["group"].map(heads))
    more = []
    for row, (task, group) in enumerate(frame[list(KEYS)].itertuples(index=False)):
        share, why = made_up(seen.blocks["effects"], task, group)
        missing |= {(row, column): text for column, text in why.items()}
        one: Decomposition = found[task][list(heads).index(group)]
        more.append({**share, "unexplained": float(np.abs(one.unexplained).max())})
    frame = frame.assign(**pd.DataFrame(more))
    worst = f"nats of answer − foil, mean over cases; unexplained at most {frame['unexplained'].max():.1e} in a case"
    layers, gone = estimates["layers"].wide((*KEYS, *PLACE))
    layers.insert(2, "heads", layers["group"].map(heads))
    return {
        "effects": Table(frame, EFFECTS, missing, f"{seen.about['title']}; {worst}", by="direct",
                         most=8, per=("task",)),
        "layers": Table(layers, LAYERS, gone, "Compensation by layer, attention, FFN and head", by="compensation",
                        most=8, per=("task",)),
    }  # fmt: skip


def _two(block: Observations, task: str, group: str) -> tuple[int, int]:
    """The cells of compensation and of the direct effect."""
    compensation, direct = (block.cell(task=task, group=group, part=part) for part in ("compensation", "direct"))
    return compensation, direct


def _significant(block: Observations, cell: int) -> bool:
    """Whether the mean direct effect differs significantly from 0, so that a share of it is meaningful."""
    row = estimate(block, [Contrast(quantity="direct", weights={cell: 1.0})]).frame.iloc[0]
    if np.isnan(row["low"]):  # no variation over independent cases
        return bool(abs(row["value"]) > block.measure.resolution)
    return bool(row["low"] > 0 or row["high"] < 0)


def _share(undone: Any, direct: Any, axis: int = -1) -> np.ndarray:
    return np.asarray(ratio(undone, direct, axis))


def made_up(block: Observations, task: str, group: str) -> tuple[dict[str, float], dict[str, str]]:
    """made_up = −Σ compensation / Σ direct over the cases, with a bootstrap interval; and reasons for missing
    values."""
    cells = _two(block, task, group)
    names = [f"made_up{end}" for end in ENDS]
    if not _significant(block, cells[1]):
        return dict.fromkeys(names, np.nan), dict.fromkeys(names, UNSURE)
    found, why = bootstrap(block, cells, _share, lambda y, n: (-y[0], y[1]), resamples=RESAMPLES)
    return dict(zip(names, (found[k] for k in ("value", "low", "high")), strict=True)), _few(why, "made_up")


def _few(why: Mapping[str, str], name: str) -> dict[str, str]:
    return {f"{name}_{end}": FEW for end in ("low", "high") if end in why}


def control_tables(run: Result, control: Result) -> dict[str, Table]:
    """made_up: the compensated shares of run and control, and their difference, resampled jointly."""
    mine, theirs = run.blocks["effects"], control.blocks["effects"]
    common = [name for name in mine.units["unit"] if name in set(theirs.units["unit"])]
    a, b = (one.at(pd.Index(one.units["unit"]).get_indexer(common)) for one in (mine, theirs))
    rows: list[dict[str, Any]] = []
    missing: Reasons = {}
    for task, group in run.table("effects").frame[list(KEYS)].itertuples(index=False):
        row = {"task": task, "group": group, **dict.fromkeys(("run", "control"), np.nan)}
        why: dict[str, str] = {}
        for name, block in (("run", a), ("control", b)):
            share, lost = made_up(block, task, group)
            row[name] = share["made_up"]
            why |= {name: UNSURE} if "made_up" in lost else {}
        names = [f"difference{end}" for end in ENDS]
        cells = [(block, list(_two(block, task, group))) for block in (a, b)]
        parts = zip(*((one.total[i], one.sizes[i]) for one, i in cells), strict=True)
        totals, sizes = (np.concatenate(x) for x in parts)
        inside = (sizes > 0).all(0)
        row |= {"n": int(inside.sum()), **dict.fromkeys(names, np.nan)}
        if why:
            why |= dict.fromkeys(names, UNSURE)
        else:
            both = replace(a, cells=pd.DataFrame({"cell": range(4)}), size=sizes, total=totals)
            found, few = bootstrap(both, range(4), _two_shares, lambda y, n: (-y[0], y[1], -y[2], y[3]),
                                   resamples=RESAMPLES)  # fmt: skip
            row |= dict(zip(names, (found[name] for name in ("value", "low", "high")), strict=True))
            why |= _few(few, "difference")
        missing |= {(len(rows), column): text for column, text in why.items()}
        clusters = a.units["cluster"][inside].to_list()
        rows.append({**row, "clusters": read_clusters(clusters, len(clusters)).count})
    return {
        "made_up": Table(
            pd.DataFrame(rows), MADE_UP, missing, "Compensated share of the direct effect, run minus control"
        )
    }


def _two_shares(a: Any, b: Any, c: Any, d: Any, axis: int = -1) -> np.ndarray:
    return np.asarray(ratio(a, b, axis) - ratio(c, d, axis))


SHARE = "share of the direct effect"
WHICH = (
    key("task", "task", "the task whose answers are scored"), key("group", "ablated", "the ablated group of heads"),
    Column(name="heads", title="heads", unit="layer and index", shown=False, doc="the heads of the group"),
)  # fmt: skip
CASES = counts("cases", "independent cases, or the fewest words of a kind if cases share words")
DOCS = {
    "direct": "minus the heads' contribution to answer − foil, with the final norm's scale held fixed",
    "compensation": "change of later attention and FFNs because the heads are ablated",
    "attn": "compensation of later attention, all layers", "mlp": "compensation of later FFNs, all layers",
    "mixing": "change of the streams' mixing before the heads' layer; 0 without hyper-connections",
    "norm": "effect of the final norm's new scale",
    "total": "change of the log-odds, from the model's own probabilities",
}  # fmt: skip
TESTED_PARTS = ("direct", "total")
"""Parts whose corrected p is shown."""
EFFECTS = (
    *WHICH,
    *(replace(c, shown=c.shown and (part in TESTED_PARTS or not c.name.endswith("_holm"))) for part in PARTS
      for c in quantity(part, part, UNIT["log_odds"], DOCS[part], sd="independent cases",
                        shown=part != "compensation")),
    *described("made_up", "share compensated", SHARE, "−compensation / direct", format=".2f",
               source="McGrath et al. 2023"),
    number("unexplained", "unexplained", UNIT["log_odds"], "largest |total − sum of the parts| of a case: rounding",
           ".1e", False),
    *CASES,
)  # fmt: skip
LAYERS = (
    *WHICH, Column(name="layer", title="layer", unit="layer", format="d", shown=False, doc="counted from 0"),
    key("place", "place", "attention, FFN or head of the layer"),
    *quantity("compensation", "compensation", UNIT["log_odds"], DOCS["compensation"], sd="independent cases"), *CASES,
)  # fmt: skip
MADE_UP = (
    *WHICH[:2],
    number("run", "share compensated, run", SHARE, "−compensation / direct of the run", ".2f"),
    number("control", "share compensated, control", SHARE, "−compensation / direct of the control", ".2f"),
    *described("difference", "run − control", SHARE, "difference of the shares", format="+.2f"), *CASES,
)  # fmt: skip
