"""Linear probes: what a logistic regression can read from an activation, beside what it could learn by heart.

    python -m probes.linear runs/lfa                                      which of two nouns the pronoun means, by layer
    python -m probes.linear runs/lfa --task gender --groups antecedent    the gender of names the probe has not met
    python -m probes.linear runs/lfa --hooks "blocks.*.attn.hook_z" hook_embed --out linear.parquet

For each hook: x [N, F], the activation at N labelled positions (all axes but the position flattened), standardised by
the training folds; p = softmax(W x + b) with L2 penalty |W|²/(2C); accuracy on held-out folds. Groups (stories, words)
are never on both sides. The control task gives each word type a label at random, labels as frequent as the true ones;
selectivity = accuracy − control accuracy (Hewitt & Liang 2019). It tells what the activation says from what the probe
memorises about words it has met; where no word recurs across groups there is nothing to memorise, and control and
selectivity are undefined by construction. chance = 1/classes; majority = share of the commonest label.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import tyro

from streamscope.models.bounds import Bounds, Count, Positive, Seed, check
from streamscope.models.cli import command, parse
from streamscope.models.errors import InputError, unknown
from streamscope.probes.command import RunOptions, open_run, write_results

if TYPE_CHECKING:
    import pandas as pd

HOOKS = ("hook_embed", "blocks.*.hook_resid_post")
Task = Literal["antecedent", "gender", "number"]
Groups = Literal["story", "antecedent"]
SELECTIVITY = ("control", "selectivity", "selectivity_low", "selectivity_high")
UNITS = {
    **dict.fromkeys(("accuracy", "ci_low", "ci_high", "chance", "majority", *SELECTIVITY), "share of held-out cases"),
    **{"p": "accuracy against majority", "p_holm": "p, Holm over hooks", "n": "cases"},
}


@dataclass(frozen=True, kw_only=True)
class Example:
    """A labelled position: the last token of `text[start:end]`."""

    text: str
    start: int
    end: int
    label: str
    group: str
    """Cases that depend on each other: a story, a pair, a word."""
    word: str
    """The word type that the control task labels at random."""


def story_examples(task: Task, stories: int, *, groups: Groups = "story", seed: int = 2) -> list[Example]:
    """Labelled positions of the built-in corpus, held-out combinations (`models.text.stories.labelled`).

    antecedent: at a pronoun that a causal model can resolve, which of its two candidates it means, the first or the
    second mentioned; always saying "second" is the recency rule. gender, number: at the mention of the antecedent
    nearest before, whether a later pronoun calls it he or she, single or group. Groups are stories, or antecedents:
    then no antecedent is on both sides. The word type is the antecedent. Texts begin at the paragraph of the first
    candidate, so that short contexts hold them. Raises `InputError` for an unknown task or grouping.
    """
    from streamscope.models.text.stories import labelled

    for what, name, known in (("task", task, get_args(Task)), ("grouping", groups, get_args(Groups))):
        if name not in known:
            raise unknown(what, name, list(known))
    found = []
    for i, one in enumerate(labelled(seed, stories, held_out=True)):
        for case in one.cases:
            word = one.text[case.antecedent.start : case.antecedent.end].lower()
            if task == "antecedent" and len(case.candidates) == 2 and case.cue_before:
                at, label = case.pronoun, "first" if case.candidates[0] == case.antecedent else "second"
            elif case.category == task:
                at, label = case.antecedent, case.relation
            else:
                continue
            cut = one.text.rfind("\n", 0, case.candidates[0].start) + 1
            group = f"story {i}" if groups == "story" else word
            start, end = at.start - cut, at.end - cut
            found.append(Example(text=one.text[cut:], start=start, end=end, label=label, group=group, word=word))
    return found


@cache
def labelled_query() -> Any:
    """The class of this probe's queries, made at first use: its base imports torch, which `--help` must not."""
    from streamscope.models.hooks import Query

    @dataclass(frozen=True, kw_only=True)
    class LabelledQuery(Query):
        """A query that remembers what is true at its positions; lists in the order of prompts and positions."""

        examples: tuple[Example, ...]
        left_out: int = 0
        """Examples beyond the last token."""

    return LabelledQuery


@dataclass(frozen=True, kw_only=True)
class LinearProbe:
    """Cross-validated logistic probes with control tasks; see this module's docstring. Prompts are `Example`s."""

    hooks: tuple[str, ...] = HOOKS
    """Names or patterns of activations with one position axis; layers are told apart by name."""
    folds: Annotated[int, Bounds(low=2)] = 5
    """Folds of the cross-validation; groups are not split, labels balanced as far as that allows."""
    controls: Count = 3
    """Control tasks, each with other random labels; their accuracies are averaged."""
    c: Positive = 0.1
    """C, the inverse strength of the penalty; activations are standardised."""
    seed: Seed = 0
    """Of folds and control labels."""
    max_tokens: Count | None = None
    """The model's context: examples beyond it are left out."""

    def __post_init__(self) -> None:
        check(self)

    def plan(self, prompts: Sequence[Example], tokenizer: Any) -> Any:
        """Each text once, up to its last labelled position. `tokenizer` gives `align` and `encode`.

        Raises `InputError` for a span without tokens and when no example lies within `max_tokens`.
        """
        by_text: dict[str, list[Example]] = {}
        for example in prompts:
            by_text.setdefault(example.text, []).append(example)
        tokens, positions, kept = [], [], list[Example]()
        for text, examples in by_text.items():
            at = [tokenizer.align(text, e.start, e.end)[-1] for e in examples]
            inside = [i for i, p in enumerate(at) if self.max_tokens is None or p < self.max_tokens]
            if inside:
                positions.append([at[i] for i in inside])
                kept += [examples[i] for i in inside]
                tokens.append(tokenizer.encode(text)[: max(positions[-1]) + 1])
        if not kept:
            raise InputError(f"none of {len(prompts)} examples lies within {self.max_tokens} tokens; give others")
        query = {"tokens": tokens, "positions": positions, "hooks": self.hooks}
        return labelled_query()(**query, examples=tuple(kept), left_out=len(prompts) - len(kept))

    def read(self, captures: Any, query: Any, *, progress: Callable[[Iterable], Iterable] = iter) -> "pd.DataFrame":
        """One row per hook, task (label or control), draw of the control, and example, when it was held out.

        Columns `layer` (−1 outside the blocks), `group`, `label` (the task's own), `predicted`, `correct`.
        Raises `InputError` for activations without one vector per position or with NaN, fewer than two classes,
        fewer groups than folds.
        """
        import numpy as np
        import pandas as pd
        from sklearn.model_selection import StratifiedGroupKFold

        from streamscope.probes.stats.cross_validation import dealt

        examples = pd.DataFrame([(e.label, e.group, e.word) for e in query.examples], columns=["y", "group", "word"])
        groups, _ = pd.factorize(examples["group"])
        words, types = pd.factorize(examples["word"])
        names, y = np.unique(examples["y"].to_numpy(str), return_inverse=True)
        if len(names) < 2:
            raise InputError(f"{len(y)} examples, all labelled {names.tolist()}: a probe needs two classes")
        rarest, found = np.bincount(y).min(), groups.max() + 1
        if min(rarest, found) < self.folds:
            raise InputError(f"{found} groups, {rarest} examples of the rarest label: too few for {self.folds} folds")
        folds = StratifiedGroupKFold(self.folds, shuffle=True, random_state=self.seed)
        splits = [(train, test) for train, test in folds.split(y[:, None], y, groups) if len(test)]
        rng = np.random.default_rng(self.seed)
        tasks = [("label", 0, y)]
        if len(set(zip(words, groups, strict=True))) > len(types):  # some word is in two groups
            tasks += [("control", draw, dealt(words, y, rng)) for draw in range(self.controls)]
        tables = []
        for hook in progress(list(captures.hooks)):
            x = _features(hook, captures.hooks[hook])
            where = {"hook": hook, "layer": int(hook.split(".")[1]) if hook.startswith("blocks.") else -1}
            for task, draw, truth in tasks:
                predicted = self._held_out(x, truth, splits)
                case = {"task": task, "draw": draw, "example": examples.index, "group": examples["group"]}
                said = {"label": names[truth], "predicted": names[predicted], "correct": predicted == truth}
                tables.append(pd.DataFrame(where | case | said))
        return pd.concat(tables, ignore_index=True)

    def _held_out(self, x: Any, y: Any, splits: Sequence[tuple[Any, Any]]) -> Any:
        """Predictions [N] of each example by the probe that was trained on the other folds."""
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        predicted = y.copy()
        for train, test in splits:
            if len(set(y[train])) > 1:  # a control task of few words may have a single label
                probe = make_pipeline(StandardScaler(), LogisticRegression(C=self.c, max_iter=2000))
                predicted[test] = probe.fit(x[train], y[train]).predict(x[test])
            else:
                predicted[test] = y[train][0]
        return predicted

    def summarize(self, table: "pd.DataFrame") -> "pd.DataFrame":
        """One row per hook: accuracy with Wilson's interval over groups, baselines, control, selectivity.

        p: that the accuracy is the share of the commonest label (score test); p_holm over hooks. Inference allows
        for cases that train each other's probes (`cross_validation.SHARED`).
        """
        import pandas as pd

        from streamscope.probes.stats.corrections import correct
        from streamscope.probes.stats.cross_validation import cross_validated_gain, cross_validated_share
        from streamscope.probes.undefined import note

        rows = []
        for hook, one in table.groupby("hook", sort=False):
            cases = one[one["task"] == "label"].set_index("example")
            controls = one[one["task"] == "control"].groupby("example")["correct"].mean()
            shares = cases["label"].value_counts(normalize=True)
            hits = cross_validated_share(cases["correct"], cases["group"], float(shares.max()))
            row = {"hook": hook, "layer": int(cases["layer"].iloc[0]), "accuracy": hits.mean, "sd": hits.sd}
            row |= {"ci_low": hits.ci_low, "ci_high": hits.ci_high, "chance": 1 / len(shares), "majority": shares.max()}
            row["p"] = hits.p
            values = [float("nan")] * 4
            if len(controls):
                gain = cross_validated_gain(cases["correct"] - controls, cases["group"])
                values = [float(controls.mean()), *gain]
            row |= dict(zip(SELECTIVITY, values, strict=True))
            why = {} if len(controls) else dict.fromkeys(SELECTIVITY, "no word recurs across groups")
            rows.append(row | {"n": len(cases), "groups": hits.n, "undefined": note(why)})
        summary = pd.DataFrame(rows)
        summary.insert(summary.columns.get_loc("p") + 1, "p_holm", correct(summary["p"]).p)
        return summary

    def plot(self, table: "pd.DataFrame", title: str = "") -> Any:
        """Accuracy by hook with its interval, the control's accuracy, chance and majority as lines."""
        import plotly.graph_objects as go

        s = self.summarize(table)
        bars = {"array": s["ci_high"] - s["accuracy"], "arrayminus": s["accuracy"] - s["ci_low"]}
        figure = go.Figure(go.Scatter(x=s["hook"], y=s["accuracy"], error_y=bars, name="accuracy, 95 % interval"))
        figure.add_scatter(x=s["hook"], y=s["control"], name="control task")
        for name, dash in (("majority", "dash"), ("chance", "dot")):
            figure.add_scatter(x=s["hook"], y=s[name], mode="lines", line={"dash": dash, "color": "gray"}, name=name)
        figure.update_layout(title=title, width=max(900, 330 + 45 * len(s)), height=600, margin={"b": 190})
        figure.update_yaxes(title="share of held-out cases", range=[0, 1.03])
        return figure.update_xaxes(title="activation (hook)", tickangle=-40)


def _features(hook: str, rows: Sequence[Any]) -> Any:
    """x [N, F] from one tensor [positions, ...] per prompt."""
    import numpy as np

    widths = {tuple(row.shape[1:]) for row in rows}
    if len(widths) > 1 or not next(iter(widths)) or hook.endswith(("hook_pattern", "hook_attn_scores")):
        raise InputError(f"{hook} has no vector of one length at every position; probe a stream, hook_z or hook_post")
    x = np.concatenate([row.detach().float().cpu().numpy().reshape(len(row), -1) for row in rows]).astype(float)
    if not np.isfinite(x).all():
        raise InputError(f"{hook}: {int((~np.isfinite(x)).any(1).sum())} of {len(x)} activations are not finite")
    return x


# ---- the command -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Options(RunOptions):
    """Arguments of `python -m probes.linear`."""

    task: Task = "antecedent"
    """At the pronoun: which candidate it means. At the antecedent: its gender, its number."""
    groups: Groups = "story"
    """What is never in training and test at once; with antecedent no word is, and there is no control task."""
    stories: Count = 400
    """Stories of the evaluation stream (seed 2, held-out combinations)."""
    probe: Annotated[LinearProbe, tyro.conf.arg(name="")] = LinearProbe()


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, print, write."""
    options = parse(Options, argv, __doc__)
    name, model = open_run(options)

    import sys

    from rich.console import Console
    from rich.progress import track

    from streamscope.models.hooks import run
    from streamscope.probes.command import show

    probe = replace(options.probe, max_tokens=min(options.probe.max_tokens or model.config.n_ctx, model.config.n_ctx))
    query = probe.plan(story_examples(options.task, options.stories, groups=options.groups), model._text())
    captures = run(model, query)
    table = probe.read(captures, query, progress=lambda x: track(x, "hooks", console=Console(file=sys.stderr)))
    summary = probe.summarize(table)
    title = f"{name}: {options.task}, {len(query.examples)} cases ({query.left_out} beyond the context)"
    show(summary.drop(columns=["layer", "sd"]), f"{title}, groups: {options.groups}", digits=3)
    about = {"task": options.task, "grouped_by": options.groups, "stories": options.stories, "probe": asdict(probe)}
    write_results(options, {"": (summary, UNITS)}, probe.plot(table, title), **about)


if __name__ == "__main__":
    command(main)
