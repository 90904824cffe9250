"""Direct and total effects of ablating heads, and the compensation by later layers, case by case.

c(v; s) is from `probes.direct_logit_attribution.contributions`; s is the norm's unedited scale, s' the scale and v' the
updates under the ablation. The change of answer − foil (log-odds, nats) is exactly

    total = direct + Σ compensation + mixing + norm

    direct        −Σ_h c(v_h; s) over the ablated heads: the loss of their own contributions
    compensation  c(v'; s) − c(v; s) of each attention and FFN after them (in their own layers: of the other heads)
    mixing        the same for everything before them: 0 except for hyper-connections, whose coefficients depend on the
                  streams (also 0 if H_res is doubly stochastic and keeps the streams' sum, as in KromHC and mHC)
    norm          Σ c(v'; s') − c(v'; s): the new scale of the norm

`total` comes from the model's own log-probabilities, so `unexplained` = total − the sum is a check, 0 up to rounding.
Backup heads (Hydra effect, McGrath et al. 2023) show as compensation of the opposite sign to the direct effect.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from streamscope.cli.errors import InputError
from streamscope.instruments import observations
from streamscope.instruments.contract import InstrumentData, Progress, need_parts, title_of
from streamscope.instruments.data import Opened, Tasks
from streamscope.instruments.observations import Contrast, Estimates, Observations
from streamscope.instruments.open_data import task_block
from streamscope.instruments.prompts.tasks import Task
from streamscope.instruments.result import Result
from streamscope.instruments.stats.estimators import ratio
from streamscope.instruments.table import Table, described, key, note, number, quantity
from streamscope.interventions.controls import CASES
from streamscope.interventions.edits import scale_heads
from streamscope.interventions.hydra import Hydra
from streamscope.interventions.observe import MEASURES, answer_log_probs
from streamscope.interventions.selection import Group, HeadFinder
from streamscope.models.transformer import StreamTransformer
from streamscope.probes.direct_logit_attribution.contributions import check_heads, contributions, directions
from streamscope.probes.direct_logit_attribution.contributions import observe as one_pass

KEYS = ("task", "group")
PLACE = ("layer", "place")
NATS = replace(MEASURES["log_odds"], name="log-odds")
UNSURE = "the direct effect is not significantly different from 0"
FEW = "too few independent cases for a bootstrap, or a share that does not vary"
RESAMPLES = 5000
PARTS = ("direct", "compensation", "attn", "mlp", "mixing", "norm", "total")


@dataclass(frozen=True)
class Decomposition:
    """The terms above for N cases, in nats. heads [L, H, N]: compensation of each head; attn, mlp [L, N]: of the
    attention layer, its output bias included, and of the FFN; the others [N]. A negative `direct` means that the head
    helped: without it the answer gets less."""

    direct: np.ndarray
    heads: np.ndarray
    attn: np.ndarray
    mlp: np.ndarray
    mixing: np.ndarray
    norm: np.ndarray
    total: np.ndarray

    @property
    def compensation(self) -> np.ndarray:
        """Compensation of all layers [N]."""
        return self.attn.sum(0) + self.mlp.sum(0)

    @property
    def unexplained(self) -> np.ndarray:
        """total − the sum of the parts [N]: 0 up to rounding."""
        return self.total - self.direct - self.compensation - self.mixing - self.norm


def check(options: Hydra, model: Any) -> None:
    need_parts(model, options.name)
    check_heads(model)


def decompose(
    model: StreamTransformer, task: Task, groups: Sequence[Group], *, progress: Callable[[Iterable], Iterable] = iter
) -> list[Decomposition]:
    """The effect of ablating each group on each case of a task scored by a token. Raises `InputError` for tasks of
    sentences, whose log-odds are not one logit difference."""
    if task.rule != "token":
        raise InputError(
            f"task {task.name!r} scores whole sentences, but a direct effect belongs to one position: use another task"
        )
    reads, sweep = task.reads, [scale_heads(g.heads, 0.0) for g in groups]
    log_p = answer_log_probs(model, reads.tokens, reads.positions, reads.ids, sweep, progress=progress)
    odds = log_p[..., 0] - log_p[..., 1]
    base_pass = one_pass(model, reads.tokens, reads.positions)
    d = directions(model, reads.ids, base_pass.scale)
    c = contributions(model, base_pass, d)
    decompositions = []
    for i, (group, edits) in enumerate(zip(progress(list(groups)), sweep, strict=True)):
        edited_pass = one_pass(model, reads.tokens, reads.positions, edits)
        new = contributions(model, edited_pass, d)
        rescaled = (edited_pass.final * directions(model, reads.ids, edited_pass.scale)).sum(-1).cpu().numpy()
        attn, mlp, heads = new.attn - c.attn, new.mlp - c.mlp, new.heads - c.heads
        direct = np.zeros(len(reads.tokens))
        for layer, head in group.heads:
            contribution = c.heads[layer, head]
            direct -= contribution
            attn[layer] += contribution
            heads[layer, head] = 0.0
        first = min(layer for layer, _ in group.heads)
        mixing = (new.embed - c.embed) + attn[: first + 1].sum(0) + mlp[:first].sum(0)
        attn[: first + 1], mlp[:first], heads[: first + 1] = 0.0, 0.0, 0.0
        decompositions.append(
            Decomposition(direct, heads, attn, mlp, mixing, rescaled - new.read, total=odds[1 + i] - odds[0])
        )
    return decompositions


def kept_share(direct: np.ndarray, total: np.ndarray) -> float:
    """Σ_i direct_i total_i / Σ_i direct_i² over cases: the share of the direct effect that remains in the total. This
    is the slope of total on direct through the origin (McGrath et al. 2023, Fig. 4: below 1): 1 without compensation, 0
    with full compensation. Unlike `made_up` it needs no mean direct effect. NaN without any effect."""
    size = float((direct**2).sum())
    return float((direct * total).sum() / size) if size > NATS.resolution**2 else float("nan")


def observe(options: Hydra, model: Any, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: per task and group every part, and each later layer's attention, FFN and heads. Units: cases."""
    opened = data[Tasks]
    groups = HeadFinder(model, opened.tokenizer).heads_and_groups(options.heads, options.groups)
    decompositions = [decompose(model, task, groups, progress=progress) for task in opened.tasks]
    units = {task.name: opened.units(task) for task in opened.tasks}
    rows: dict[str, list[tuple[dict[str, Any], np.ndarray | None]]] = {"effects": [], "layers": []}
    for task, by_group in zip(opened.tasks, decompositions, strict=True):
        for group, decomposition in zip(groups, by_group, strict=True):
            labels, first = {"task": task.name, "group": group.name}, min(head.layer for head in group.heads)
            parts = {part: getattr(decomposition, part) for part in PARTS}
            parts |= {"attn": decomposition.attn.sum(0), "mlp": decomposition.mlp.sum(0)}
            rows["effects"] += [({**labels, "part": part}, x) for part, x in parts.items()]
            for layer, attn in enumerate(decomposition.attn):
                places = {" attn": attn, " mlp": decomposition.mlp[layer]}
                places |= {f".H{h}": x for h, x in enumerate(decomposition.heads[layer])}
                for place, x in places.items():  # the same cells in every model, even if groups are found elsewhere
                    acts = layer > first or (layer == first and place[0] == " ")
                    place_labels = {"layer": layer, "place": f"L{layer}{place}"}
                    rows["layers"].append(({**labels, **place_labels}, x if acts else None))
    blocks = {name: task_block(NATS, units, block_rows) for name, block_rows in rows.items()}
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
    by_task = dict(zip([t.name for t in opened.tasks], decompositions, strict=True))
    return InstrumentData(blocks, contrasts, about, extra=(groups, by_task))


def with_resolved_heads(options: Hydra, data: Opened) -> Hydra:
    single = HeadFinder(data.model, data[Tasks].tokenizer).single(options.heads, options.groups)
    return replace(options, heads=tuple(group.spec.partition("=")[2] for group in single))


def tables(options: Hydra, data: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """effects: one row per task and group; layers: compensation of every later layer, by branch and head."""
    groups, decompositions = data.extra
    heads = {group.name: group.label for group in groups}
    frame, missing = estimates["effects"].wide(KEYS)
    frame.insert(2, "heads", frame["group"].map(heads))
    more = []
    for row, (task, group) in enumerate(frame[list(KEYS)].itertuples(index=False)):
        share, reasons = made_up(data.blocks["effects"], task, group)
        missing |= {(row, column): text for column, text in reasons.items()}
        decomposition: Decomposition = decompositions[task][list(heads).index(group)]
        more.append({**share, "unexplained": float(np.abs(decomposition.unexplained).max())})
    frame = frame.assign(**pd.DataFrame(more))
    worst = f"nats of answer − foil, mean over cases; unexplained at most {frame['unexplained'].max():.1e} in a case"
    layers, gone = estimates["layers"].wide((*KEYS, *PLACE))
    layers.insert(2, "heads", layers["group"].map(heads))
    return {
        "effects": Table(frame, EFFECTS, missing, f"{data.about['title']}; {worst}", by="direct",
                         most=8, per=("task",)),
        "layers": Table(layers, LAYERS, gone, "Compensation by layer, attention, FFN and head", by="compensation",
                        most=8, per=("task",)),
    }  # fmt: skip


def shares_of(task: str, group: str, *blocks: Observations) -> list[int]:
    """The cells of compensation and of the direct effect, in the blocks one after the other."""
    parts = [block.cell(task=task, group=group, part=part) for block in blocks for part in ("compensation", "direct")]
    return [cell + i // 2 * len(blocks[0].cells) for i, cell in enumerate(parts)]


def made_up(block: Observations, task: str, group: str) -> tuple[dict[str, float], dict[str, str]]:
    """made_up = −Σ compensation / Σ direct over the cases, with a bootstrap interval; and reasons for missing values.
    Where the mean direct effect does not differ significantly from 0, a share of it says nothing."""
    cells = shares_of(task, group, block)
    direct = observations.estimate(block, [Contrast(quantity="direct", weights={cells[1]: 1.0})]).frame.iloc[0]
    sure = direct["low"] > 0 or direct["high"] < 0
    if np.isnan(direct["low"]):  # no variation over independent cases
        sure = abs(direct["value"]) > block.measure.resolution
    if not sure:
        names = ("made_up", "made_up_low", "made_up_high")
        return dict.fromkeys(names, np.nan), dict.fromkeys(names, UNSURE)
    interval = observations.bootstrap(block, cells, ratio, lambda y, n: (-y[0], y[1]), resamples=RESAMPLES)
    numbers, reasons = observations.interval_columns("made_up", interval)
    return numbers, dict.fromkeys(reasons, FEW)


def control_tables(run: Result, control: Result) -> dict[str, Table]:
    blocks = observations.on_shared_units(run.blocks["effects"], control.blocks["effects"])
    joint = replace(
        blocks[0], cells=pd.concat([block.cells for block in blocks], ignore_index=True),
        total=np.concatenate([block.total for block in blocks]), size=np.concatenate([block.sizes for block in blocks]),
    )  # fmt: skip
    rows = list[dict[str, Any]]()

    def difference_of(a: Any, b: Any, c: Any, d: Any, axis: int = -1) -> np.ndarray:
        return np.asarray(ratio(a, b, axis) - ratio(c, d, axis))

    for task, group in run.table("effects").frame[list(KEYS)].itertuples(index=False):
        shares = [made_up(block, task, group) for block in blocks]
        reasons = {
            name: UNSURE for name, (_, lost) in zip(("run", "control"), shares, strict=True) if "made_up" in lost
        }
        with np.errstate(invalid="ignore"):  # without a direct effect there is no share, which `reasons` say
            interval = observations.bootstrap(
                joint, shares_of(task, group, *blocks), difference_of, lambda y, n: (-y[0], y[1], -y[2], y[3]),
                resamples=RESAMPLES,
            )  # fmt: skip
        difference, lost = observations.interval_columns("difference", interval)
        if reasons:
            difference = dict.fromkeys(difference, np.nan)
        reasons |= dict.fromkeys(difference, UNSURE) if reasons else dict.fromkeys(lost, FEW)
        rows.append({
            "task": task, "group": group, "run": shares[0][0]["made_up"], "control": shares[1][0]["made_up"],
            **difference, "n": interval[0]["n"], "clusters": interval[0]["clusters"], "undefined": note(reasons),
        })  # fmt: skip
    title = "Compensated share of the direct effect, run minus control"
    return {"made_up": Table.noted(pd.DataFrame(rows), MADE_UP, title)}


RATIO = "ratio to the direct effect"
WHICH = (
    key("task", "task", "the task whose answers are scored"), key("group", "ablated", "the ablated group of heads"),
    key("heads", "heads", "the heads of the group", "layer and index", shown=False),
)  # fmt: skip
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
      for c in quantity(part, part, NATS.unit, DOCS[part], sd="cases",
                        shown=part != "compensation")),
    *described("made_up", "share compensated", RATIO, "−compensation / direct", format=".2f",
               source="McGrath et al. 2023"),
    number("unexplained", "unexplained", NATS.unit, "largest |total − sum of the parts| of a case: rounding",
           ".1e", False),
    *CASES,
)  # fmt: skip
LAYERS = (
    *WHICH, number("layer", "layer", "layer", "counted from 0", "d", False),
    key("place", "place", "attention, FFN or head of the layer"),
    *quantity("compensation", "compensation", NATS.unit, DOCS["compensation"], sd="cases"), *CASES,
)  # fmt: skip
MADE_UP = (
    *WHICH[:2],
    number("run", "share compensated, run", RATIO, "−compensation / direct of the run", ".2f"),
    number("control", "share compensated, control", RATIO, "−compensation / direct of the control", ".2f"),
    *described("difference", "run − control", RATIO, "difference of the shares", format="+.2f"), *CASES,
)  # fmt: skip
