"""Direct and total effects: parts of the log-odds as cells, cases of all tasks as units, a row per task and group."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from streamscope.instruments.about_model import title_of
from streamscope.instruments.contract import InstrumentData, Progress
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
from streamscope.instruments.table import Column, Table, counts, described, key, quantity
from streamscope.interventions.hydra import Hydra
from streamscope.interventions.hydra.decomposition import PARTS, Decomposition, decompose, layer_values, part_values
from streamscope.interventions.observe import SMALLEST, UNIT
from streamscope.interventions.selection import Group, HeadFinder
from streamscope.probes.direct_logit_attribution.contributions import check_heads

__all__ = ["check_heads", "control_tables", "observe", "tables", "with_resolved_heads"]
KEYS = ("task", "group")
PLACE = ("layer", "place")
NATS = Measure(name="log-odds", unit=UNIT["log_odds"], resolution=SMALLEST["log_odds"])
UNSURE = "the direct effect cannot be told from 0"
FEW = "too few independent cases to resample, or a share that does not vary over them"
RESAMPLES = 5000
ENDS = ("", "_low", "_high")


def observe(how: Hydra, model: Any, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: every part, and every later layer's attention, FFN and heads, of each task and group; units: cases."""
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
            for at in layers:  # in every model the same cells, also where groups are found in other layers
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
    return InstrumentData(
        blocks, contrasts, about, extra=(groups, dict(zip([t.name for t in opened.tasks], found, strict=True)))
    )


def _groups(how: Hydra, data: Opened) -> list[Group]:
    """Single heads of --heads, then --groups."""
    finder = HeadFinder(data.model, data[Tasks].tokenizer)
    single = [Group(head.label, (head,)) for group in _single(how, finder) for head in group.heads]
    return list(dict.fromkeys([*single, *(finder.groups(how.groups) if how.groups else [])]))


def _single(how: Hydra, finder: HeadFinder) -> list[Group]:
    return finder.groups(how.heads or ("all",)) if how.heads or not how.groups else []


def with_resolved_heads(how: Hydra, data: Opened) -> Hydra:
    """With the single heads by name, so that a control is measured without the same ones."""
    finder = HeadFinder(data.model, data[Tasks].tokenizer)
    return replace(how, heads=tuple(f"L{h.layer}.H{h.head}" for g in _single(how, finder) for h in g.heads))


def _place(layer: int, part: str) -> str:
    return part if part.startswith("L") else f"L{layer} {part}"


def _block(rows: Sequence[tuple[dict[str, Any], np.ndarray | None]], units: pd.DataFrame) -> Observations:
    """Values of each task's cases at its units; None where there are none."""
    at = {task: np.flatnonzero(units["task"] == task) for task in dict.fromkeys(units["task"])}
    total, size = np.zeros((2, len(rows), len(units)))
    for i, (labels, x) in enumerate(rows):
        if x is not None:
            total[i, at[labels["task"]]], size[i, at[labels["task"]]] = x, 1.0
    cells = pd.DataFrame([labels for labels, _ in rows])
    return Observations(measure=NATS, cells=cells, units=units, total=total, size=size)


# ---- tables ------------------------------------------------------------------------------------


def tables(how: Hydra, seen: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """effects: a row per task and group with every part; layers: compensation of every later layer, by branch and head.

    `unexplained` is the largest of a case: the parts against the model's own log-probabilities.
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
        "layers": Table(layers, LAYERS, gone, "compensation by layer, attention, FFN and head", by="compensation",
                        most=8, per=("task",)),
    }  # fmt: skip


def _two(block: Observations, task: str, group: str) -> tuple[int, int]:
    """The cells of compensation and direct effect."""
    compensation, direct = (block.cell(task=task, group=group, part=part) for part in ("compensation", "direct"))
    return compensation, direct


def _known(block: Observations, cell: int) -> bool:
    """Whether the mean direct effect can be told from 0, so that a share of it means something."""
    row = estimate(block, [Contrast(quantity="direct", weights={cell: 1.0})]).frame.iloc[0]
    if np.isnan(row["low"]):  # the same in every independent case
        return bool(abs(row["value"]) > block.measure.resolution)
    return bool(row["low"] > 0 or row["high"] < 0)


def _share(undone: Any, direct: Any, axis: int = -1) -> np.ndarray:
    return np.asarray(ratio(undone, direct, axis))


def made_up(block: Observations, task: str, group: str) -> tuple[dict[str, float], dict[str, str]]:
    """made_up = −Σ compensation / Σ direct over the cases, with a bootstrap interval; and why some are missing."""
    cells = _two(block, task, group)
    names = [f"made_up{end}" for end in ENDS]
    if not _known(block, cells[1]):
        return dict.fromkeys(names, np.nan), dict.fromkeys(names, UNSURE)
    found, why = bootstrap(block, cells, _share, lambda y, n: (-y[0], y[1]), resamples=RESAMPLES)
    return dict(zip(names, (found[k] for k in ("value", "low", "high")), strict=True)), _few(why, "made_up")


def _few(why: Mapping[str, str], name: str) -> dict[str, str]:
    return {f"{name}_{end}": FEW for end in ("low", "high") if end in why}


def control_tables(run: Result, control: Result) -> dict[str, Table]:
    """made_up: the shares of the run and of the control, and their difference, clusters resampled together in both."""
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
        totals, sizes = (
            np.concatenate(x) for x in zip(*((one.total[i], one.sizes[i]) for one, i in cells), strict=True)
        )
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
    return {"made_up": Table(pd.DataFrame(rows), MADE_UP, missing, "the share made up for, run minus control")}


def _two_shares(a: Any, b: Any, c: Any, d: Any, axis: int = -1) -> np.ndarray:
    return np.asarray(ratio(a, b, axis) - ratio(c, d, axis))


SHARE = "share of the direct effect"
WHICH = (
    key("task", "task", "whose answers are scored"), key("group", "ablated", "the group of heads that is removed"),
    Column(name="heads", title="heads", unit="layer and index", shown=False, doc="the heads of the group"),
)  # fmt: skip
CASES = counts("cases", "independent cases, or the fewest words of a kind where cases share words")
DOCS = {
    "direct": "minus what the heads wrote along answer − foil, the final norm's scale held fixed",
    "compensation": "what later attention and FFNs add or take because the heads are gone",
    "attn": "compensation of later attention, all layers", "mlp": "compensation of later FFNs, all layers",
    "mixing": "what the streams' mixing before the heads' layer changes; 0 but for hyper-connections",
    "norm": "what the final norm's new scale changes",
    "total": "change of the log-odds, from the model's own probabilities",
}  # fmt: skip
SHOWN = ("direct", "total")
"""Parts whose p is printed."""
EFFECTS = (
    *WHICH,
    *(replace(c, shown=c.shown and (part in SHOWN or not c.name.endswith("_holm"))) for part in PARTS
      for c in quantity(part, part, UNIT["log_odds"], DOCS[part], sd="independent cases",
                        shown=part != "compensation")),
    *described("made_up", "made up", SHARE, "−compensation / direct", format=".2f", source="McGrath et al. 2023"),
    Column(name="unexplained", title="unexplained", unit=UNIT["log_odds"], format=".1e", shown=False,
           doc="the largest |total − sum of the parts| of a case: rounding"),
    *CASES,
)  # fmt: skip
LAYERS = (
    *WHICH, Column(name="layer", title="layer", unit="layer", format="d", shown=False, doc="counted from 0"),
    key("place", "place", "attention or FFN of a layer, or a head of it"),
    *quantity("compensation", "compensation", UNIT["log_odds"], DOCS["compensation"], sd="independent cases"), *CASES,
)  # fmt: skip
MADE_UP = (
    *WHICH[:2],
    Column(name="run", title="made up, run", unit=SHARE, format=".2f", doc="−compensation / direct of the run"),
    Column(name="control", title="control", unit=SHARE, format=".2f", doc="−compensation / direct of the control"),
    *described("difference", "run − control", SHARE, "of the shares", format="+.2f"), *CASES,
)  # fmt: skip
