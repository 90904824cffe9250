"""Direct logit attribution: parts of answer − foil, with cases of all tasks as units."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from streamscope.cli.errors import InputError
from streamscope.instruments.contract import InstrumentData, Progress, title_of
from streamscope.instruments.data import Opened, Tasks
from streamscope.instruments.observations import Contrast, Estimates, Measure
from streamscope.instruments.open_data import task_block
from streamscope.instruments.prompts.tasks import Task
from streamscope.instruments.table import HEAD, Table, counts, key, number, quantity
from streamscope.models.hooks import Query, run
from streamscope.probes.direct_logit_attribution import DirectLogitAttribution
from streamscope.probes.direct_logit_attribution.contributions import (
    Contributions,
    check_heads,
    contributions,
    directions,
)
from streamscope.probes.direct_logit_attribution.contributions import observe as one_pass

__all__ = ["check_heads", "observe", "tables"]
UNIT = "nats, answer − foil"
LOGITS = Measure(name="logit difference", unit=UNIT, resolution=1e-6)


def observe(options: DirectLogitAttribution, model: Any, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: every part and their sum, per task. Units: cases. `unexplained` is the largest error of the sum."""
    opened = data[Tasks]
    rows: list[tuple[dict[str, Any], np.ndarray]] = []
    unexplained = dict[str, float]()
    for task in progress(opened.tasks):
        parts, difference = attribute(model, task)
        rows += [({"task": task.name, **labels}, x) for labels, x in parts]
        rows.append(({"task": task.name, "part": "sum", "kind": "sum", "layer": -1, "index": -1}, difference))
        unexplained[task.name] = float(np.abs(sum(x for _, x in parts) - difference).max())
    contrasts = [
        Contrast(quantity="contribution", weights={i: 1.0}, labels=labels, family=f"{labels['kind']}, {labels['task']}")
        for i, (labels, _) in enumerate(rows)
    ]
    block = task_block(LOGITS, {task.name: opened.units(task) for task in opened.tasks}, rows)
    worst = max(unexplained.values())
    title = f"{title_of(model)}; {opened.title()}; parts add up to the logit difference within {worst:.0e}"
    return InstrumentData({"parts": block}, {"parts": contrasts}, {"title": title, "unexplained": unexplained})


def attribute(model: Any, task: Task) -> tuple[list[tuple[dict[str, Any], np.ndarray]], np.ndarray]:
    """(part, its nats in every case [N]) of a task, and the model's own logit differences [N]. Raises `InputError` for
    tasks of whole sentences, whose score is not one logit difference."""
    if task.rule != "token":
        raise InputError(f"task {task.name!r} scores whole sentences, which is not one logit difference; use another")
    reads = task.reads
    states = one_pass(model, reads.tokens, reads.positions)
    c: Contributions = contributions(model, states, directions(model, reads.ids, states.scale))
    bias = model.logit_bias.detach().double().cpu().numpy()
    ids = np.asarray(reads.ids)
    parts = [({"part": "embedding", "kind": "embedding", "layer": -1, "index": -1}, c.embed)]
    for layer, (heads, mlp) in enumerate(zip(c.heads, c.mlp, strict=True)):
        for h, x in enumerate(heads):
            parts.append(({"part": f"L{layer}.H{h}", "kind": "head", "layer": layer, "index": h}, x))
        parts.append(({"part": f"L{layer} FFN", "kind": "FFN", "layer": layer, "index": -1}, mlp))
    biases = {"final bias": bias[ids[:, 0]] - bias[ids[:, 1]]}
    if any(getattr(block.attn.o, "bias", None) is not None for block in model.blocks):
        biases = {"attention biases": (c.attn - c.heads.sum(1)).sum(0), **biases}
    for part, x in biases.items():
        parts.append(({"part": part, "kind": part, "layer": -1, "index": -1}, x))
    query = Query(tokens=list(reads.tokens), logits=[[p] for p in reads.positions])
    logits = run(model, query).logits
    assert logits is not None
    answer_logits = np.stack([x[0].double().cpu().numpy()[pair] for x, pair in zip(logits, ids, strict=True)])
    return parts, answer_logits[:, 0] - answer_logits[:, 1]


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
