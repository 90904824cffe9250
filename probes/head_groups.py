"""Which heads look at entities, which at syntactic anchors, which at content: the groups of PLS, by a stated rule.

    python -m probes.head_groups                          two heads per group in the last layer of the bundled LFA
    python -m probes.head_groups runs/pls --k 3 --layers all --out groups.parquet

PLS (§5.1) names entity heads "tracking entity mentions", anchor heads "attending to syntactic anchors" and semantic
heads "integrating content", two each in the last layer, found by looking; it prints no rule. The rule here: from the
query of a prompt (a pronoun), effective attention Ã = ḡ A (PLS B.2; A where there is no gate) to the words before it:

    entity     mentions of the candidates, by any occurrence of their words, and names (capitals inside a sentence)
    anchor     punctuation, determiners, prepositions, conjunctions, auxiliaries
    semantic   all other words; pronouns, BOS and the query itself belong to no class

    score = mass on the class − ḡ · (share of the tokens up to the query that belong to it)

so 0 is a head that looks everywhere alike. The groups are the three disjoint ones of --k heads whose scores sum to the
most on half of the cases; `held_out` is a head's score on the other half, with 95 % over independent cases. Every group
gets its heads: one whose held-out score is not above 0 holds only the heads that avoid the class least. Whether a
head has its role is asked of shuffled ones (`roles`): the classes dealt anew over the tokens' forms, so that a form
keeps one class everywhere, and the head scored in the same way.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from streamscope.models.bounds import Count, Seed, check
from streamscope.models.cli import command, parse
from streamscope.models.errors import InputError
from streamscope.probes.report import (
    INTERVAL,
    ProbeOptions,
    check_options,
    estimate,
    open_session,
    show,
    with_holm,
    write,
)
from streamscope.probes.word_classes import CLASSES

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from streamscope.models.head_spec import Head
    from streamscope.probes.align import Aligned
    from streamscope.probes.suite import Suite

ATTENTION = "effective attention, excess over even"
UNITS = {**dict.fromkeys((*CLASSES, "held_out", "sd", "ci_low", "ci_high"), ATTENTION), "n": "prompts"}


@dataclass(frozen=True, kw_only=True)
class HeadGroups:
    """Scores of every head for the three classes of words; see this module's docstring."""

    k: Count = 2
    """Heads in a group; two, as in the paper."""
    layers: Literal["last", "all"] = "last"
    """Where heads are looked for: the last layer, as in the paper, or everywhere."""
    split: Seed = 0
    """Seed of the halves: one chooses, the other is scored."""

    def __post_init__(self) -> None:
        check(self)

    def plan(self, prompts: "Suite | Aligned", tokenizer: Any, *, gated: bool = False) -> Any:
        """Attention (and gates) at the query of every prompt with a target."""
        from streamscope.probes.attention import role_query

        return role_query(prompts, tokenizer, needs=("target",), gated=gated)

    def read(self, captures: Any, query: Any, tokenizer: Any) -> "pd.DataFrame":
        """One row per prompt and head: the three scores, from −1 to 1."""
        import numpy as np

        from streamscope.probes.attention import attention_rows, by_layer, prompt_columns, tidy
        from streamscope.probes.word_classes import token_classes

        aligned, gated = query.aligned, any(name.endswith("hook_gate") for name in captures.hooks)
        values: dict[str, list[np.ndarray]] = {name: [] for name in CLASSES}
        for i, rows in attention_rows(captures, query, gated=gated):
            of = token_classes(aligned.prompts[i], tokenizer.spans(aligned.prompts[i].text)[1])[: rows.shape[-1]]
            of[-1] = ""  # the query itself
            total = rows.sum(-1)
            for name in CLASSES:
                at = np.array([c == name for c in of])
                values[name].append(rows[..., at].sum(-1) - total * at.mean())
        layers = list(by_layer(captures, "hook_pattern"))
        return tidy(prompt_columns(aligned), layers, {name: np.stack(v) for name, v in values.items()})

    def summarize(self, table: "pd.DataFrame") -> "pd.DataFrame":
        """One row per head: its scores on all cases, its `group` or "", and one score on held-out cases with interval.

        `scored` is the class of that score: the group's, or the largest of a head without one. p is that of score 0.
        """
        import pandas as pd

        from streamscope.probes.held_out import halves

        choose = halves(table.assign(relation=""), self.split)[0] == 0
        keys = ["layer", "index", "head"]
        chosen = table[choose].groupby(keys, sort=True)[list(CLASSES)].mean()
        groups = dict.fromkeys(chosen.index, "")
        last = chosen.index.get_level_values("layer").max()
        searched = chosen[chosen.index.get_level_values("layer") == last] if self.layers == "last" else chosen
        groups |= dict(zip(searched.index, self._assigned(searched[list(CLASSES)].to_numpy()), strict=True))
        rows, tests = table.groupby(keys, sort=True)[list(CLASSES)].mean(), table[~choose].groupby(keys)
        out = []
        for key, one in rows.iterrows():
            held, kind = tests.get_group(key), groups[key] or str(chosen.loc[key].idxmax())
            result = estimate(held[kind], held["cluster"])
            names = dict(zip(keys, key, strict=True))
            result = {"scored": kind, "held_out": result.pop("mean"), **result}
            out.append({**names, **one.to_dict(), "group": groups[key], **result})
        return with_holm(pd.DataFrame(out))

    def shuffled(self, captures: Any, query: Any, tokenizer: Any, *, draws: int = 199, seed: int = 0) -> "np.ndarray":
        """[draws, heads]: the held-out score of every head under shuffles of the tokens' classes.

        A form is a token id with its class; the classes are dealt over the forms, so that a head that looks at one
        word, and at no class, has in a shuffle as large a score as here. Forms without a class keep none. The class of
        a head is the one that it scores the most in on the half that chooses. Heads are in order of layers.
        """
        import numpy as np
        import pandas as pd

        from streamscope.probes.attention import attention_rows, by_layer, prompt_columns
        from streamscope.probes.held_out import halves
        from streamscope.probes.word_classes import token_classes

        aligned, gated = query.aligned, any(name.endswith("hook_gate") for name in captures.hooks)
        forms: dict[tuple[int, str], int] = {}
        at = []
        for i, prompt in enumerate(aligned.prompts):
            ids, spans = tokenizer.spans(prompt.text)
            of = token_classes(prompt, spans)[: aligned.queries[i] + 1]
            of[-1] = ""  # the query itself
            at.append(
                np.array([forms.setdefault((t, c), len(forms)) if c else -1 for t, c in zip(ids, of, strict=False)])
            )
        labels, rng = np.array([CLASSES.index(c) for _, c in forms]), np.random.default_rng(seed)
        dealt = np.stack([np.append(rng.permutation(labels), -1) for _ in range(draws)])  # the last: no class
        layers = list(by_layer(captures, "hook_pattern"))
        heads = captures.hooks[next(n for n in captures.hooks if n.endswith("hook_pattern"))][0].shape[0]
        scores = np.empty((draws, len(at), len(layers) * heads, len(CLASSES)), np.float32)
        for i, rows in attention_rows(captures, query, gated=gated):
            flat = rows.reshape(-1, rows.shape[-1])
            for c in range(len(CLASSES)):
                member = dealt[:, at[i]] == c
                scores[:, i, :, c] = member @ flat.T - member.mean(-1)[:, None] * flat.sum(-1)
        cases = pd.DataFrame(prompt_columns(aligned)).assign(relation="")
        choose = halves(cases.assign(relation=""), self.split)[0] == 0
        best = scores[:, choose].mean(1).argmax(-1)
        return np.take_along_axis(scores[:, ~choose].mean(1), best[..., None], -1)[..., 0].astype(float)

    def roles(self, summary: "pd.DataFrame", shuffled: "np.ndarray") -> "pd.DataFrame":
        """The heads of the groups of `summarize`, each held against itself under shuffled roles (`shuffled`).

        p_shuffled = (1 + shuffles in which it scores as much) / (1 + shuffles), corrected over the heads of the groups
        (Holm) in p_shuffled_holm; `above_shuffled` where that is at most .05. `shuffled_95`: 95 % of its shuffles.
        """
        import numpy as np

        own = summary["group"].to_numpy() != ""
        found, dealt = summary[own].reset_index(drop=True), shuffled[:, own]
        p = (1 + (dealt >= found["held_out"].to_numpy()).sum(0)) / (1 + len(dealt))
        edges = {"shuffled_95": np.quantile(dealt, 0.95, axis=0), "draws": len(dealt), "p_shuffled": p}
        found = with_holm(found.assign(**edges), "p_shuffled")
        return found.assign(above_shuffled=found["p_shuffled_holm"] <= 0.05)

    def _assigned(self, scores: "np.ndarray") -> list[str]:
        """The class of every head, "" for none: disjoint groups of k with the largest sum of scores [heads, classes]
        (linear assignment)."""
        import numpy as np
        from scipy.optimize import linear_sum_assignment

        if len(scores) < self.k * len(CLASSES):
            raise InputError(
                f"{len(CLASSES)} groups of {self.k} heads need {self.k * len(CLASSES)} heads, here are {len(scores)}; "
                "lower --k, or --layers all"
            )
        places = np.repeat(np.arange(len(CLASSES)), self.k)
        heads, columns = linear_sum_assignment(scores[:, places], maximize=True)
        found = [""] * len(scores)
        for h, c in zip(heads, columns, strict=True):
            found[h] = CLASSES[places[c]]
        return found

    def plot(self, table: "pd.DataFrame", title: str = "") -> Any:
        """Three heat maps layer × head of the scores; the heads of a group are framed."""
        from plotly.subplots import make_subplots

        from streamscope.probes.report import heat_map

        summary = self.summarize(table)
        limit = float(summary[list(CLASSES)].abs().max().max()) or 1.0
        figure = make_subplots(1, 3, subplot_titles=CLASSES, horizontal_spacing=0.06)
        for column, name in enumerate(CLASSES, 1):
            trace = heat_map(summary, name, unit="excess of<br>attention", diverging=True, digits=2)
            trace.update(zmin=-limit, zmax=limit, showscale=column == 3, colorbar={"thickness": 14})
            figure.add_trace(trace, 1, column)
            order = list(dict.fromkeys(summary["layer"]))
            mine = summary[summary["group"] == name]
            for layer, x in zip(mine["layer"], mine["index"], strict=True):
                y = order.index(layer)
                figure.add_shape(
                    type="rect", x0=x - 0.5, x1=x + 0.5, y0=y - 0.5, y1=y + 0.5, line={"width": 3}, row=1, col=column
                )
        figure.update_xaxes(title="head").update_yaxes(autorange="reversed")
        figure.update_yaxes(title="layer", col=1)
        return figure.update_layout(title=title, width=1150, height=470)


def measure_heads(model: Any, prompts: "Suite | Aligned", tokenizer: Any, probe: HeadGroups) -> "pd.DataFrame":
    """The table of `HeadGroups.read`, with effective attention where the model has gates."""
    from streamscope.models.capture import run

    query = probe.plan(prompts, tokenizer, gated=any(name.endswith("attn.hook_gate") for name in model.hook_dict))
    return probe.read(run(model, query), query, tokenizer)


def groups_of(summary: "pd.DataFrame") -> "dict[str, tuple[Head, ...]]":
    """Class -> its heads, of a table of `HeadGroups.summarize`."""
    from streamscope.models.head_spec import Head

    found: dict[str, tuple[Head, ...]] = {}
    for name in CLASSES:
        rows = summary[summary["group"] == name]
        found[name] = tuple(sorted(Head(int(a), int(b)) for a, b in zip(rows["layer"], rows["index"], strict=True)))
    return found


def scores_of(summary: "pd.DataFrame") -> "dict[str, dict[Head, float]]":
    """Class -> head -> score on all cases, for `head_spec.parse_heads` (top2:entity)."""
    from streamscope.models.head_spec import Head

    heads = [Head(int(a), int(b)) for a, b in zip(summary["layer"], summary["index"], strict=True)]
    return {name: dict(zip(heads, summary[name].tolist(), strict=True)) for name in CLASSES}


# ---- the command -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Options(ProbeOptions):
    """Arguments of `python -m probes.head_groups`."""

    suite: str = "story-cases"
    """Prompts whose roles name the candidates: story-cases, competing, coreference, a JSONL file, FORMAT:PATH."""
    n: Count | None = 200
    """Pronouns of story-cases, or minimal pairs of stories, to read."""
    probe: Annotated[HeadGroups, tyro.conf.arg(name="")] = HeadGroups()


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, print, write."""
    from dataclasses import replace

    from streamscope.probes.prompts import GENERATED

    options = parse(Options, argv, __doc__)
    check_options(options)
    if options.suite not in GENERATED:
        options = replace(options, n=None)
    session = open_session(options)
    table = measure_heads(session.model, session.aligned, session.tokenizer, options.probe)
    summary = options.probe.summarize(table)
    grouped = summary[summary["group"] != ""].sort_values(["group", "held_out"], ascending=[True, False])
    columns = ("group", "head", "held_out", INTERVAL, "p_holm", *CLASSES)
    show(grouped, f"{session.title}: groups, chosen on one half", columns)
    low = grouped[~(grouped["ci_low"] > 0)]
    if len(low):
        named = ", ".join(f"{head} ({group})" for head, group in zip(low["head"], low["group"], strict=True))
        print(f"not shown to look at the words of their group more than evenly: {named}")
    figure = options.probe.plot(table, session.title)
    write(options, session, {"": (summary, UNITS)}, figure, probe=asdict(options.probe))


if __name__ == "__main__":
    command(main)
