"""Direct logit attribution: parts of answer − foil, with cases of all tasks as units."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from streamscope.cli.errors import InputError
from streamscope.instruments.contract import InstrumentData, Progress, need_parts, title_of
from streamscope.instruments.data import Opened, Tasks
from streamscope.instruments.observations import Contrast, Estimates, Measure
from streamscope.instruments.open_data import task_block
from streamscope.instruments.prompts.tasks import Task
from streamscope.instruments.table import HEAD, Table, counts, key, number, quantity
from streamscope.models.hooks import Query, run
from streamscope.probes.direct_logit_attribution import DirectLogitAttribution
from streamscope.probes.direct_logit_attribution.contributions import check_heads, contributions, directions
from streamscope.probes.direct_logit_attribution.contributions import observe as one_pass

UNIT = "nats, answer − foil"
LOGITS = Measure(name="logit difference", unit=UNIT, resolution=1e-6)


def check(options: DirectLogitAttribution, model: Any) -> None:
    need_parts(model, options.name)
    check_heads(model)


def observe(options: DirectLogitAttribution, model: Any, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: every part and their sum, per task. Units: cases. `unexplained` is the largest error of the sum."""
    opened = data[Tasks]
    rows: list[tuple[dict[str, Any], np.ndarray]] = []
    unexplained = dict[str, float]()
    for task in progress(opened.tasks):
        parts, difference = attribute(model, task)
        rows += [({"task": task.name, **labels}, x) for labels, x in [*parts, (_labels("sum"), difference)]]
        unexplained[task.name] = float(np.abs(sum(x for _, x in parts) - difference).max())
    contrasts = [
        Contrast(quantity="contribution", weights={i: 1.0}, labels=labels, family=f"{labels['kind']}, {labels['task']}")
        for i, (labels, _) in enumerate(rows)
    ]
    block = task_block(LOGITS, {task.name: opened.units(task) for task in opened.tasks}, rows)
    worst = max(unexplained.values())
    title = f"{title_of(model)}; {opened.title()}; parts add up to the logit difference within {worst:.0e}"
    return InstrumentData({"parts": block}, {"parts": contrasts}, {"title": title, "unexplained": unexplained})


def _labels(part: str, kind: str = "", layer: int = -1, index: int = -1) -> dict[str, Any]:
    return {"part": part, "kind": kind or part, "layer": layer, "index": index}


def attribute(model: Any, task: Task) -> tuple[list[tuple[dict[str, Any], np.ndarray]], np.ndarray]:
    """(part, its nats in every case [N]) of a task, and the model's own logit differences [N]. Raises `InputError` for
    tasks of whole sentences, whose score is not one logit difference."""
    if task.rule != "token":
        raise InputError(f"task {task.name!r} scores whole sentences, which is not one logit difference; use another")
    reads = task.reads
    states = one_pass(model, reads.tokens, reads.positions)
    c = contributions(model, states, directions(model, reads.ids, states.scale))
    bias, ids = model.logit_bias.detach().double().cpu().numpy(), np.asarray(reads.ids)
    parts = [(_labels("embedding"), c.embed)]
    for layer, (heads, mlp) in enumerate(zip(c.heads, c.mlp, strict=True)):
        parts += [(_labels(f"L{layer}.H{h}", "head", layer, h), x) for h, x in enumerate(heads)]
        parts.append((_labels(f"L{layer} FFN", "FFN", layer), mlp))
    if any(getattr(block.attn.o, "bias", None) is not None for block in model.blocks):
        parts.append((_labels("attention biases"), (c.attn - c.heads.sum(1)).sum(0)))
    parts.append((_labels("final bias"), bias[ids[:, 0]] - bias[ids[:, 1]]))
    logits = run(model, Query(tokens=reads.tokens, logits=[[p] for p in reads.positions])).logits
    assert logits is not None
    answer, foil = np.stack([x[0].double().cpu().numpy()[pair] for x, pair in zip(logits, ids, strict=True)]).T
    return parts, answer - foil


def tables(
    options: DirectLogitAttribution, data: InstrumentData, estimates: Mapping[str, Estimates]
) -> dict[str, Table]:
    """heads: every head; parts: embedding, FFN of each layer, attention biases, final bias, and the sum."""
    parts, title = estimates["parts"], data.about["title"]
    other_kinds = {c.labels["kind"] for c in parts.contrasts} - {"head"}
    out = {}
    for name, kinds, columns, subject, most in (
        ("heads", {"head"}, HEADS, "every head", 10), ("parts", other_kinds, PARTS, "all other parts, and the sum", 40),
    ):  # fmt: skip
        frame, missing = parts.where(kind=kinds).wide(("task", "part", "layer", "index"))
        frame = frame.rename(columns={"part": columns[1].name})[[column.name for column in columns]]
        heading = f"{title}; contribution of {subject}"
        out[name] = Table(frame, columns, missing, heading, by="contribution", most=most, per=("task",))
    return out


CONTRIBUTION = quantity(
    "contribution", "contribution", UNIT, "mean contribution of the part to logit(answer) − logit(foil)",
    sd="cases", source="Elhage et al. 2021",
)  # fmt: skip
TASK = key("task", "task", "the task whose answers are scored")
CASES = counts("cases", "independent cases, or the fewest words of a kind if cases share words")
HEADS = (TASK, *HEAD, *CONTRIBUTION, *CASES)
PARTS = (
    TASK, key("part", "part", "part that writes into the residual stream"),
    number("layer", "layer", "layer", "counted from 0; −1: no layer", "d", False),
    *CONTRIBUTION, *CASES,
)  # fmt: skip
