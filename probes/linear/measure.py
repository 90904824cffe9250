"""Cross-validated probes: hooks with the task and its controls as cells, labelled positions as units."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedGroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from streamscope.cli.errors import InputError
from streamscope.cli.terminal import counted
from streamscope.instruments.contract import InstrumentData, Progress, say, title_of
from streamscope.instruments.data import Labels, Opened
from streamscope.instruments.observations import Contrast, Estimates, Measure, Observations, each, joined
from streamscope.instruments.prompts.labelled import Example
from streamscope.instruments.stats.cross_validation import SHARED, dealt
from streamscope.instruments.table import Table, counts, key, number, quantity
from streamscope.models.hooks import Captures, Query, run
from streamscope.probes.linear import Linear

NOTHING = "no word recurs across groups"
HITS = Measure(name="accuracy", unit="share of cases", resolution=0.0, kind="share", inflation=SHARED)
GAINS = Measure(name="selectivity", unit="share of cases", resolution=0.0, inflation=SHARED)


def plan(how: Linear, examples: Sequence[Example], tokenizer: Any, n_ctx: int) -> tuple[Query, list[Example]]:
    """Each text once, up to its last labelled position; and the examples within the context, in query order. Raises
    `InputError` for a span without tokens, and if no example lies within the context."""
    by_text: dict[str, list[Example]] = {}
    for example in examples:
        by_text.setdefault(example.text, []).append(example)
    tokens, positions, kept = [], [], list[Example]()
    for text, some in by_text.items():
        at = [tokenizer.align(text, e.start, e.end)[-1] for e in some]
        inside = [i for i, p in enumerate(at) if p < n_ctx]
        if inside:
            positions.append([at[i] for i in inside])
            kept += [some[i] for i in inside]
            tokens.append(tokenizer.encode(text)[: max(positions[-1]) + 1])
    if not kept:
        raise InputError(f"none of {len(examples)} examples lies within the context of {n_ctx} tokens; give others")
    return Query(tokens=tokens, positions=positions, hooks=tuple(how.hooks)), kept


def read(how: Linear, captures: Captures, examples: Sequence[Example], progress: Progress = iter) -> pd.DataFrame:
    """One row per hook, task (label or control), draw of the control, and example, predicted while held out.

    Columns `layer` (−1 outside the blocks), `group`, `label` (the task's own), `predicted`, `correct`. Raises
    `InputError` for activations that are not one vector per position or hold NaN, fewer than two classes, and fewer
    groups than folds.
    """
    table = pd.DataFrame([(e.label, e.group, e.word) for e in examples], columns=["y", "group", "word"])
    groups, _ = pd.factorize(table["group"])
    words, types = pd.factorize(table["word"])
    names, y = np.unique(table["y"].to_numpy(str), return_inverse=True)
    if len(names) < 2:
        raise InputError(f"{counted(len(y), 'example')}, all labelled {names.tolist()}: a probe needs two classes")
    rarest, found = np.bincount(y).min(), groups.max() + 1
    if min(rarest, found) < how.folds:
        few = f"{counted(found, 'group')}, {counted(rarest, 'example')} of the rarest label"
        raise InputError(f"{few}: too few for {how.folds} folds")
    folds = StratifiedGroupKFold(how.folds, shuffle=True, random_state=how.seed)
    splits = [(train, test) for train, test in folds.split(y[:, None], y, groups) if len(test)]
    rng = np.random.default_rng(how.seed)
    tasks = [("label", 0, y)]
    if len(set(zip(words, groups, strict=True))) > len(types):  # a word occurs in two groups
        tasks += [("control", draw, dealt(words, y, rng)) for draw in range(how.controls)]
    parts = []
    for hook in progress(list(captures.hooks)):
        x = features(hook, captures.hooks[hook])
        where = {"hook": hook, "layer": int(hook.split(".")[1]) if hook.startswith("blocks.") else -1}
        for task, draw, truth in tasks:
            predicted = held_out(x, truth, splits, how.c)
            case = {"task": task, "draw": draw, "example": table.index, "group": table["group"]}
            result = {"label": names[truth], "predicted": names[predicted], "correct": predicted == truth}
            parts.append(pd.DataFrame(where | case | result))
    return pd.concat(parts, ignore_index=True)


def held_out(x: np.ndarray, y: np.ndarray, splits: Sequence[tuple[Any, Any]], c: float) -> np.ndarray:
    """Prediction [N] for each example by the probe trained on the other folds."""
    predicted = y.copy()
    for train, test in splits:
        if len(set(y[train])) > 1:  # a control task with few words may have a single label
            probe = make_pipeline(StandardScaler(), LogisticRegression(C=c, max_iter=2000))
            predicted[test] = probe.fit(x[train], y[train]).predict(x[test])
        else:
            predicted[test] = y[train][0]
    return predicted


def features(hook: str, rows: Sequence[Any]) -> np.ndarray:
    """x [N, F] from one tensor [positions, ...] per prompt."""
    widths = {tuple(row.shape[1:]) for row in rows}
    if len(widths) > 1 or not next(iter(widths)) or hook.endswith(("hook_pattern", "hook_attn_scores")):
        raise InputError(f"{hook} has no vector of one length at every position; probe a stream, hook_z or hook_post")
    x = np.concatenate([row.detach().float().cpu().numpy().reshape(len(row), -1) for row in rows]).astype(float)
    if not np.isfinite(x).all():
        raise InputError(f"{hook}: {int((~np.isfinite(x)).any(1).sum())} of {len(x)} activations are not finite")
    return x


def observe(how: Linear, model: Any, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: hooks, and their control tasks. Units: labelled positions, hit or missed while held out."""
    opened = data[Labels]
    query, kept = plan(how, opened.examples, opened.tokenizer, model.cfg.n_ctx)
    if len({(one.word, one.group) for one in kept}) == len({one.word for one in kept}):
        say(progress, f"{NOTHING}: selectivity will have no value; give groups that share words")
    seen = observed(read(how, run(model, query, progress=progress), kept, progress), kept)
    beyond = f" ({len(opened.examples) - len(kept)} beyond the context)"
    seen.about["title"] = f"{title_of(model)}: {opened.title}, {counted(len(kept), 'case')}{beyond}"
    return seen


def observed(table: pd.DataFrame, examples: Sequence[Example]) -> InstrumentData:
    """Observations of `read`: hits of the task, and hits of the control tasks (mean over draws)."""
    hooks = table.drop_duplicates("hook")[["hook", "layer"]].reset_index(drop=True)
    wide = table.pivot_table(index="example", columns=["task", "hook"], values="correct", aggfunc="mean", sort=False)
    n, names = len(hooks), [f"{e.text}|{e.start}|{e.end}" for e in examples]
    total = wide["label"][hooks["hook"]].to_numpy(float).T
    # repeated examples are numbered
    digests = pd.Series([hashlib.sha1(name.encode()).hexdigest()[:10] for name in names])
    again = digests.groupby(digests).cumcount()
    units = pd.DataFrame({"unit": [f"{a}:{b}" if b else a for a, b in zip(digests, again, strict=True)]})
    units["cluster"] = [e.group for e in examples]
    shares = pd.Series([e.label for e in examples]).value_counts(normalize=True)
    majority, controlled = float(shares.max()), "control" in wide
    blocks = {"accuracy": Observations(measure=HITS, cells=hooks, units=units, total=total, size=1.0)}
    both = pd.concat([hooks.assign(task="label"), hooks.assign(task="control")], ignore_index=True)
    control = wide["control"][hooks["hook"]].to_numpy(float).T if controlled else np.zeros_like(total)
    blocks["selectivity"] = Observations(
        measure=GAINS, cells=both, units=units, total=np.concatenate([total, control]),
        size=np.concatenate([np.ones_like(total), np.full_like(total, controlled)]),
    )  # fmt: skip
    at, missing = hooks.to_dict("records"), "" if controlled else NOTHING
    contrasts = {"accuracy": each("accuracy", hooks, null=majority), "selectivity": []}
    for i, one in enumerate(at):
        contrasts["selectivity"] += [
            Contrast(quantity="control", weights={n + i: 1.0}, labels=one, null=None, missing=missing),
            Contrast(quantity="selectivity", weights={i: 1.0, n + i: -1.0}, labels=one, missing=missing),
        ]
    return InstrumentData(blocks, contrasts, extra={"chance": 1 / len(shares), "majority": majority})


def tables(how: Linear, seen: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """One row per hook."""
    frame, missing = joined([estimates["accuracy"], estimates["selectivity"]], ["hook", "layer"], LINEAR)
    frame = frame.assign(**seen.extra)
    frame.insert(2, "place", ["*".join(hook.split(str(layer), 1)) if layer >= 0 else hook
                              for hook, layer in zip(frame["hook"], frame["layer"], strict=True)])  # fmt: skip
    return {"linear": Table(frame, LINEAR, missing, seen.about.get("title", "linear probes"))}


SHARE = "share of held-out cases"
LINEAR = (
    key("hook", "hook", "hook of the activation"),
    number("layer", "layer", "layer", "−1 outside the blocks", "d", False),
    key("place", "place", "the hook with * for its layer", shown=False),
    *quantity("accuracy", "accuracy", SHARE, "cases predicted correctly; p against the majority", format=".3f",
              sd="groups"),
    number("chance", "chance", SHARE, "1 / classes", ".3f"),
    number("majority", "majority", SHARE, "share of the commonest label", ".3f"),
    *quantity("control", "accuracy, random labels", SHARE, "control: accuracy with random labels per word",
              format=".3f", tested=False),
    *quantity("selectivity", "selectivity", SHARE, "accuracy − accuracy with random labels", format="+.3f", sd="groups",
              source="Hewitt & Liang 2019"),
    *counts("cases", "groups"),
)  # fmt: skip
