"""Cross-validated probes: hooks with the task and its controls as cells, labelled positions as units."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from sklearn.feature_selection import SelectKBest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedGroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from streamscope.cli.errors import InputError
from streamscope.cli.terminal import counted
from streamscope.cli.user_code import latents_in
from streamscope.instruments.contract import InstrumentData, Progress, say, title_of
from streamscope.instruments.data import Labels, Opened
from streamscope.instruments.observations import Contrast, Estimates, Measure, each, joined
from streamscope.instruments.open_texts import Example
from streamscope.instruments.table import Table, counts, key, number, quantity
from streamscope.models.dictionaries import read_dictionary
from streamscope.models.hooks import Captures, Query, layer_of, match, row_of, run
from streamscope.probes.linear import Linear

NOTHING = "no word recurs across groups"
SHARED = 1 + 2 / np.pi
"""Variance of a cross-validated share of hits, over that of as many independent hits.

Of two cases in different folds each has trained the probe that judges the other. A linear probe scores case i by
Σ_j y_i y_j k(x_i, x_j): the term (i, j) is in the scores of i and of j. Where the activations say nothing, two scores
so have correlation 1/n_train and their signs, the hits, (2/π)/n_train; summed over all pairs that adds 2/π. In
simulations of such nulls (8 and 96 dimensions, cases or whole groups independent) the factor was 1.6 to 1.8; where
a label is easy to read it falls to 1, so that intervals are then too wide: they hold 98 to 99 %. No estimate of this
variance from one cross-validation is unbiased (Bengio & Grandvalet 2004); Nadeau & Bengio's factor (2003), 2.25 for
five folds, is more cautious.
"""
HITS = Measure(name="accuracy", unit="share of cases", resolution=0.0, kind="share", inflation=SHARED)
GAINS = Measure(name="selectivity", unit="share of cases", resolution=0.0, inflation=SHARED)


def plan(options: Linear, examples: Sequence[Example], tokenizer: Any, n_ctx: int) -> tuple[Query, list[Example]]:
    """Each text once, up to its last labelled position; and the examples within the context, in query order. Raises
    `InputError` for a span without tokens, and if no example lies within the context."""
    by_text: dict[str, list[tuple[int, Example]]] = {}
    for e in examples:
        if (last_token := tokenizer.align(e.text, e.start, e.end)[-1]) < n_ctx:
            by_text.setdefault(e.text, []).append((last_token, e))
    if not by_text:
        raise InputError(f"none of {len(examples)} examples lies within the context of {n_ctx} tokens; give others")
    positions = [[p for p, _ in pairs] for pairs in by_text.values()]
    tokens = [tokenizer.encode(text)[: max(row) + 1] for text, row in zip(by_text, positions, strict=True)]
    usable = [e for pairs in by_text.values() for _, e in pairs]
    return Query(tokens=tokens, positions=positions, hooks=tuple(options.hooks)), usable


def activations(options: Linear, model: Any, query: Query, progress: Progress) -> tuple[Captures, dict[str, int]]:
    """The activations of hooks, and the latents of dictionaries [positions, F] under the name that was given; and the
    layers of these. Raises `InputError` for --latents without a dictionary, or with one that has fewer, and for latents
    that a dictionary lacks."""
    latents = {spec: chosen for spec in options.hooks if (chosen := latents_in(spec, complete=True)) is not None}
    if options.latents and not latents:
        raise InputError("--latents chooses among those of a dictionary: give one in --hooks")
    dictionaries = {spec: read_dictionary(str(folder), model) for spec, (folder, _) in latents.items()}
    hook_names = match(model, [spec for spec in options.hooks if spec not in latents])
    all_hooks = dict.fromkeys([*hook_names, *(dictionary.hook for dictionary in dictionaries.values())])
    captures = run(model, replace(query, hooks=tuple(all_hooks)), progress=progress)
    hooks = {name: captures.hooks[name] for name in hook_names}
    for spec, dictionary in dictionaries.items():
        if max(latents[spec][1], default=0) >= (size := len(dictionary.b_enc)):
            raise InputError(f"{spec}: give latents from 0 to {size - 1}, which the dictionary has")
        all_latents = map(dictionary.encode, map(dictionary.stream_of, captures.hooks[dictionary.hook]))
        hooks[spec] = [z[:, latents[spec][1] or slice(None)] for z in all_latents]
        if (n := hooks[spec][0].shape[1]) < (options.latents or 1):
            raise InputError(f"--latents {options.latents}: {spec} has {counted(n, 'latent')}; give no more")
    return Captures(hooks, None), {spec: layer_of(d.hook) for spec, d in dictionaries.items()}


def dealt(words: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A control task [N]: each word type gets one label at random, the labels as frequent as in `labels`.

    words and labels are codes from 0. Words in random order each take the label that is furthest behind, so that no
    control has a commoner label, and with it a better guess, than the task itself.
    """
    budget = np.bincount(labels) + 0.5 * rng.random(labels.max() + 1)
    sizes = np.bincount(words)
    label_of = np.zeros(len(sizes), int)
    for word in rng.permutation(len(sizes)):
        label_of[word] = budget.argmax()
        budget[label_of[word]] -= sizes[word]
    return label_of[words]


def read(
    options: Linear, captures: Captures, examples: Sequence[Example], progress: Progress = iter,
    layers: Mapping[str, int] | None = None,
) -> pd.DataFrame:  # fmt: skip
    """One row per hook, task (label or control), draw of the control, and example, predicted while held out. Raises
    `InputError` for activations that are not one finite vector per position, fewer than two classes, and fewer groups
    than folds."""
    table = pd.DataFrame([(e.label, e.group, e.word) for e in examples], columns=["y", "group", "word"])
    groups, _ = pd.factorize(table["group"])
    words, types = pd.factorize(table["word"])
    names, y = np.unique(table["y"].to_numpy(str), return_inverse=True)
    if len(names) < 2:
        raise InputError(f"{counted(len(y), 'example')}, all labelled {names.tolist()}: a probe needs two classes")
    rarest, n_groups = np.bincount(y).min(), groups.max() + 1
    if min(rarest, n_groups) < options.folds:
        sizes = f"{counted(n_groups, 'group')}, {counted(rarest, 'example')} of the rarest label"
        raise InputError(f"{sizes}: too few for {options.folds} folds")
    folds = StratifiedGroupKFold(options.folds, shuffle=True, random_state=options.seed)
    splits = [(train, test) for train, test in folds.split(y[:, None], y, groups) if len(test)]
    rng = np.random.default_rng(options.seed)
    tasks = [("label", 0, y)]
    if len(set(zip(words, groups, strict=True))) > len(types):  # a word occurs in two groups
        tasks += [("control", draw, dealt(words, y, rng)) for draw in range(options.controls)]
    parts = []
    for hook in progress(list(captures.hooks)):
        x = features(hook, captures.hooks[hook])
        layer = (layers or {}).get(hook, layer_of(hook))
        for task, draw, truth in tasks:
            predicted = held_out(x, truth, splits, options.c, None if row_of(hook) else options.latents)
            case = {"hook": hook, "layer": layer, "task": task, "draw": draw, "example": table.index}
            result = {"label": names[truth], "predicted": names[predicted], "correct": predicted == truth}
            parts.append(pd.DataFrame(case | result))
    return pd.concat(parts, ignore_index=True)


def class_share(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The share of each feature's variance that lies between classes [F]; 0 of a constant one."""
    squares = ((x - x.mean(0)) ** 2).sum(0)
    between = sum((y == label).sum() * (x[y == label].mean(0) - x.mean(0)) ** 2 for label in np.unique(y))
    return np.divide(between, squares, out=np.zeros_like(squares), where=squares > 0)


def held_out(
    x: np.ndarray, y: np.ndarray, splits: Sequence[tuple[Any, Any]], c: float, k: int | None = None
) -> np.ndarray:
    """Prediction [N] for each example by the probe trained on the other folds, there also on the k best features."""
    predicted = y.copy()
    for train, test in splits:
        if len(set(y[train])) > 1:  # a control task with few words may have a single label
            best = [SelectKBest(class_share, k=k)] if k else []
            probe = make_pipeline(*best, StandardScaler(), LogisticRegression(C=c, max_iter=2000))
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
    if bad := int((~np.isfinite(x)).any(1).sum()):  # of latents, which `run` does not see
        raise InputError(f"{hook}: {bad} of {len(x)} activations are not finite")
    return x


def observe(options: Linear, model: Any, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: hooks, and their control tasks. Units: labelled positions, hit or missed while held out."""
    opened = data[Labels]
    query, usable = plan(options, opened.examples, opened.tokenizer, model.cfg.n_ctx)
    if len({(example.word, example.group) for example in usable}) == len({example.word for example in usable}):
        say(progress, f"{NOTHING}: selectivity will have no value; give groups that share words")
    captures, layers = activations(options, model, query, progress)
    measurements = observed(read(options, captures, usable, progress, layers), usable)
    note = f" ({len(opened.examples) - len(usable)} beyond the context)"
    measurements.about["title"] = f"{title_of(model)}: {opened.title}, {counted(len(usable), 'case')}{note}"
    return measurements


def observed(table: pd.DataFrame, examples: Sequence[Example]) -> InstrumentData:
    """Observations of `read`: hits of the task, and hits of the control tasks (mean over draws)."""
    hooks = table.drop_duplicates("hook")[["hook", "layer"]].reset_index(drop=True)
    wide = table.pivot_table(index="example", columns=["task", "hook"], values="correct", aggfunc="mean", sort=False)
    n, names = len(hooks), [f"{e.text}|{e.start}|{e.end}" for e in examples]
    total = wide["label"][hooks["hook"]].to_numpy(float).T
    # repeated examples are numbered
    digests = pd.Series([hashlib.sha1(name.encode()).hexdigest()[:10] for name in names])
    copy_number = digests.groupby(digests).cumcount()
    units = pd.DataFrame({"unit": [f"{a}:{b}" if b else a for a, b in zip(digests, copy_number, strict=True)]})
    units["cluster"] = [e.group for e in examples]
    shares = pd.Series([e.label for e in examples]).value_counts(normalize=True)
    majority, missing = float(shares.max()), "" if "control" in wide else NOTHING
    cells = pd.concat([hooks.assign(task="label"), hooks.assign(task="control")], ignore_index=True)
    control = np.full_like(total, np.nan) if missing else wide["control"][hooks["hook"]].to_numpy(float).T
    both = np.concatenate([total, control])
    measurements = InstrumentData(extra={"chance": 1 / len(shares), "majority": majority})
    measurements.add(HITS, hooks, units, total, 1.0, block="accuracy", null=majority)
    measurements.add(GAINS, cells, units, both, block="selectivity")
    measurements.contrasts["selectivity"] = each("control", hooks, start=n, null=None, missing=missing) + [
        Contrast(quantity="selectivity", weights={i: 1.0, n + i: -1.0}, labels=labels, missing=missing)
        for i, labels in enumerate(hooks.to_dict("records"))
    ]
    return measurements


def tables(options: Linear, data: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """One row per hook."""
    frame, missing = joined([estimates["accuracy"], estimates["selectivity"]], ["hook", "layer"], LINEAR)
    frame = frame.assign(**data.extra)
    hooks = zip(frame["hook"], frame["layer"], strict=True)
    frame.insert(2, "place", [hook.replace(f"blocks.{layer}.", "blocks.*.") for hook, layer in hooks])
    return {"linear": Table(frame, LINEAR, missing, data.about.get("title", "linear probes"))}


SHARE = "share of held-out cases"
LINEAR = (
    key("hook", "hook", "hook of the activation"),
    number("layer", "layer", "layer", "−1 outside the blocks", "d", False),
    key("place", "place", "the hook with * for its layer", shown=False),
    *quantity("accuracy", "accuracy", SHARE, "cases predicted correctly; p against the majority", format=".3f",
              sd="groups"),
    number("chance", "chance", SHARE, "1 / classes", ".3f"),
    number("majority", "majority", SHARE, "share of the commonest label", ".3f"),
    number("control", "accuracy, random labels", SHARE, "control: accuracy with random labels per word", ".3f"),
    *quantity("selectivity", "selectivity", SHARE, "accuracy − accuracy with random labels", format="+.3f", sd="groups",
              source="Hewitt & Liang 2019"),
    *counts("cases", "groups"),
)  # fmt: skip
