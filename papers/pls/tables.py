"""The numbers of PLS' tables and figures that the registered claims do not have.

depth                      share of tokens by k*, the layer from which on the prediction no longer changes (x; L: only
                           the last has it), and by the ranges of Table 1 (part)
depth.second_peak          how far both of two peaks of these shares stand above the valley between them (Figure 2)
task.TASK                  ln p(answer) − ln p(foil); .probability of the answer, .right share above 0, .prompts
entity.above, anchor.…     heads, of the two that attention names for a group, whose attention to its class of words is
                           above that to shuffled classes; .attention: mean excess over uniform
effect, spread             mean over prompts of the change of P(answer) without a group of heads, and its standard
                           deviation (Table 2, Figure 4); effect.size: |effect|; effect.above: less that of random heads
effect.own, smear, diagonality, effect.largest     comparisons of cells of the matrix task × group (§5.3)
cases                      prompts by their change of P(answer), rounded to .01 (x, Figure 4b)
kept                       share of the direct effect that is left after later layers have reacted (§1, §5.4)
curve, curve.change        P(answer) with the outputs of a group times x (Figure 3); its range and |Spearman's ρ|
ari, ami                   agreement of clusters of features and of raw activations (Figure 1); .token: with token ids
clusters                   of App. C.4: number, .coverage, .noise, .largest, .variance, .flat (σ(k*) = 0), .size

Heads are found by attention in the whole model: which head does what differs from training to training. On pairs of the
small stories (part "gender pairs, antecedent heads") they are the two that attend most to the antecedent on one half of
the pairs, ablated on the other half, both ways.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import spearmanr
from sklearn.metrics import adjusted_mutual_info_score

from streamscope.features.cluster.checks import agreement_table, raw_rows
from streamscope.features.cluster.measure import varying_features
from streamscope.features.cluster.modes import ComputationalModes
from streamscope.features.compute import depth_ranges
from streamscope.features.extract import Extract
from streamscope.features.store import features_of, raw_of
from streamscope.instruments.data import Tasks, Tokens
from streamscope.instruments.stats.held_out import halves
from streamscope.interventions.ablation_effects import AblationEffects
from streamscope.interventions.ablation_effects.measure import changes
from streamscope.interventions.edits import scale_heads
from streamscope.interventions.hydra import Hydra
from streamscope.interventions.hydra.measure import kept_share
from streamscope.interventions.selection import HeadFinder
from streamscope.interventions.steer_heads import SteerHeads
from streamscope.models.head_spec import Head
from streamscope.papers.paper import Run
from streamscope.probes.coherence.measure import rows as coherence_rows
from streamscope.probes.coreference import Coreference
from streamscope.probes.head_groups import HeadGroups
from streamscope.probes.head_groups.measure import capture, read, role_tests, shuffled_scores, summary

DEFAULT = "long"
GRIDS = {
    "Table 1, shorter training": "eighth", "Table 1, TinyStories": "tinystories", "Planted pairs": "differences",
    "Planted pairs, heads": "differences", "Figure 5": "zoo", "Figure 6": "zoo",
}  # fmt: skip
"""Places that show another training than `DEFAULT`."""
TASKS = ("capitalization", "gender", "winograd")
OWN = {"capitalization": "entity", "gender": "anchor"}
"""Task -> the group of heads that the paper says it needs."""
RANGES = ("layers 0–1", "layers 2–4", "layers 5–6")
SCALES = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5)
TOKENS = 10_000
HELD_OUT = "stories:1:300:0"
CATEGORIES = {"gender": "gender", "number": "plurality", "noun": "competing-nouns"}
PROMPTS = 200
"""Prompts with a pronoun on which heads are found."""


def depths(run: Run) -> None:
    """Table 1, Figure 2."""
    k_star = features_of(_extract(run, "structural")).table["k_star"].to_numpy(int)
    layers = run.last + 1
    shares = np.bincount(k_star, minlength=layers + 1) / len(k_star)
    for k, share in enumerate(shares):
        run.add("depth", "share of tokens", share, x=k)
    ranges = depth_ranges(np.arange(layers + 1), layers)
    for i, name in enumerate(RANGES):
        run.add("depth", "share of tokens", shares[ranges == i].sum(), name)
    if (ranges[:-2] == 1).any():
        run.add("depth.second_peak", "difference of shares", second_peak(shares))


def second_peak(shares: np.ndarray) -> float:
    """min(largest early share, share at k* = L) − smallest share between: above 0 with two peaks.

    `shares` [L + 1] by k*; k* = L − 1 cannot occur, so it is no valley.
    """
    ranges = depth_ranges(np.arange(len(shares)), len(shares) - 1)
    middle_shares = shares[:-2][ranges[:-2] == 1]
    return float(min(shares[ranges == 0].max(), shares[-1]) - middle_shares.min())


def _extract(run: Run, tier: Any) -> Any:
    return Extract(tier=tier, raw=()).measure(run.model, Tokens(data=HELD_OUT, max_tokens=TOKENS))


def groups(run: Run) -> None:
    """§5.1 to §5.3: tasks, groups of heads, Table 2, Figures 3 and 4."""
    finder = HeadFinder(run.model, run.tokenizer, layers="all")
    specs = tuple(f"{group.name.removeprefix('found-')}={group.label}" for group in finder.groups(("found",)))
    _add_roles(run, finder.roles)
    tasks = Tasks(tasks=TASKS)
    effects = AblationEffects(groups=specs, draws=19).measure(run.model, tasks)
    _add_tasks(run, effects.blocks)
    deltas = changes(effects.blocks["probability"])
    table = effects.table("probability").frame.set_index(["task", "group"])
    hydra = Hydra(groups=specs).measure(run.model, tasks).blocks["effects"]
    for (task, group), delta in deltas.items():
        part = f"{task}, {group} heads"
        _add_effects(run, part, delta)
        if task == "capitalization":
            run.add("effect.above", "change of a probability", table.loc[(task, group), "above"], part)
        direct, total = (hydra.total[hydra.cell(task=task, group=group, part=p)] for p in ("direct", "total"))
        valid = ~np.isnan(direct)
        run.add("kept", "share of the direct effect", kept_share(direct[valid], total[valid]), part)
    _add_routing(run, {cell: abs(delta.mean()) for cell, delta in deltas.items()})
    change_counts = pd.Series(deltas["winograd", "entity"]).round(2).value_counts()
    for change, count in change_counts.items():
        run.add("cases", "prompts", count, "winograd, entity heads", float(change) + 0.0)
    _add_curves(run, specs)


def _add_roles(run: Run, roles: pd.DataFrame, part: str = "") -> None:
    for group, heads in roles.groupby("group"):
        run.add(f"{group}.above", "heads", heads["above_shuffled"].sum(), part)
        run.add(f"{group}.attention", "attention", heads["held_out"].mean(), part)


def _add_tasks(run: Run, blocks: Any) -> None:
    """Scores of the unedited model."""
    for task in TASKS:
        scores = {}
        for name in ("probability", "log_odds"):
            block = blocks[name]
            row = block.cell(task=task, group="")
            scores[name] = block.total[row][block.inside[row]]
        run.add(f"task.{task}", "nats", scores["log_odds"].mean())
        run.add(f"task.{task}.probability", "probability", scores["probability"].mean())
        run.add(f"task.{task}.right", "share of prompts", (scores["log_odds"] > 0).mean())
        run.add(f"task.{task}.prompts", "prompts", len(scores["log_odds"]))


def _add_effects(run: Run, part: str, delta: Any) -> None:
    run.add("effect", "change of a probability", delta.mean(), part)
    run.add("effect.size", "size of a change", abs(delta.mean()), part)
    run.add("spread", "sd of a probability", delta.std(ddof=1), part)


def _add_routing(run: Run, size: Any) -> None:
    """Comparisons of |effect| [task, group]."""
    gaps = {task: size[task, g] - np.mean([size[t, g] for t in OWN if t != task]) for task, g in OWN.items()}
    for task, gap in gaps.items():
        run.add("effect.own", "change of a probability", gap, f"{task}, {OWN[task]} heads")
    run.add("diagonality", "change of a probability", np.mean(list(gaps.values())), "heads by attention")
    run.add(
        "smear", "change of a probability", size["gender", "entity"] - size["capitalization", "entity"], "entity heads"
    )
    lead = size["capitalization", "entity"] - max(size["gender", "anchor"], size["winograd", "entity"])
    run.add("effect.largest", "change of a probability", lead, "capitalization")


def _add_curves(run: Run, specs: tuple[str, ...]) -> None:
    options = SteerHeads(groups=specs, scales=SCALES, within=(SCALES[0], SCALES[-1]), measures=("task",), draws=0)
    levels = options.measure(run.model, Tasks(tasks=("capitalization",))).table("probability").frame
    for group, curve in levels.groupby("group"):
        values = curve.set_index("scale")["level"]
        _add_curve(run, f"capitalization, {group} heads", values[list(SCALES)])


def _add_curve(run: Run, part: str, values: pd.Series) -> None:
    """P(answer) by scale, its range and how monotonic it is."""
    for scale, value in values.items():
        run.add("curve", "probability", value, part, scale)
        run.add("curve.change", "change of a probability", value - values[1.0], part, scale)
    run.add("curve.range", "range of a probability", values.max() - values.min(), part)
    if values.nunique() > 1:
        run.add("curve.monotonicity", "|Spearman's ρ|", abs(spearmanr(values.index, values).statistic), part)


def planted(run: Run) -> None:
    """Groups of heads on the pairs of the small stories, and what the two that attend most to the antecedent do."""
    options, sample = HeadGroups(layers="all"), run.pairs.only(list(range(len(run.pairs.prompts)))[:PROMPTS])
    captured = capture(run.model, sample, run.tokenizer)
    groups = summary(options, read(*captured, run.tokenizer))
    _add_roles(run, role_tests(groups, shuffled_scores(options, *captured, run.tokenizer)), "pairs")
    for name, category in CATEGORIES.items():
        pairs = run.pairs.only([i for i, prompt in enumerate(run.pairs.prompts) if prompt.category == category])
        table = run.probe(Coreference(domain="keys"), prompts=pairs)
        side = halves(table, 0)[0]
        half_of = dict(zip(table["id"], side, strict=True))

        def probabilities(edits: Any = None, pairs: Any = pairs) -> pd.Series:
            return np.exp(coherence_rows(run.model, pairs, None, run.tokenizer, edits).set_index("id")["log_p"])

        baseline = probabilities()
        curves: dict[float, list[pd.Series]] = {scale: [] for scale in SCALES}
        for half in (0, 1):
            attention = table[side == half].groupby(["layer", "index"])["attention"].mean()
            heads = [Head(*place) for place in attention.sort_values(ascending=False).index[:2]]
            test_prompts = [prompt for prompt in baseline.index if half_of[prompt] != half]
            for scale, parts in curves.items():
                parts.append((baseline if scale == 1 else probabilities(scale_heads(heads, scale)))[test_prompts])
        values = {scale: pd.concat(parts) for scale, parts in curves.items()}
        part = f"{name} pairs, antecedent heads"
        _add_effects(run, part, (values[0.0] - values[1.0]).to_numpy())
        _add_curve(run, part, pd.Series({scale: series.mean() for scale, series in values.items()}))


def clusters(run: Run) -> None:
    """§2.3, App. C.4, Table 3: clusters of features and of raw activations."""
    units = {"ari": "adjusted Rand index", "ami": "adjusted mutual information"}
    for method, name, tier in (("kmeans", "k-means", "structural"), ("hdbscan", "HDBSCAN", "topk")):
        extracted = _extract(run, tier)
        features = features_of(extracted)
        x, _ = varying_features(features)
        modes = ComputationalModes(method)  # type: ignore[arg-type]
        feature_labels = modes.fit(x).labels_
        raw = ComputationalModes(method).fit(raw_rows(raw_of(extracted), features)).labels_  # type: ignore[arg-type]
        table = features.table[["document", "token_id", "k_star"]]
        for row in agreement_table(feature_labels, raw, table["document"].to_numpy(), resamples=8).to_dict("records"):
            measure, in_clusters = row["measure"].lower(), row["tokens"].startswith("in ")
            if method == "hdbscan" or not in_clusters:
                run.add(measure + ".clustered" * in_clusters, units[measure], row["value"], name)
            if measure == "ari" and not in_clusters:
                run.add("ari.shuffled", units[measure], row["control"], name)
        both_clustered = (feature_labels >= 0) & (raw >= 0)
        ids = table["token_id"].to_numpy()[both_clustered]
        token = [adjusted_mutual_info_score(labels[both_clustered], ids) for labels in (feature_labels, raw)]
        for end, value in zip(("", ".raw", ".gap"), (*token, token[1] - token[0]), strict=True):
            run.add(f"ami.token{end}", units["ami"], value, name)
    _add_clusters(run, feature_labels, table["k_star"].to_numpy(int), float(modes.explained_variance_ratio_.sum()))


def _add_clusters(run: Run, labels: np.ndarray, k_star: np.ndarray, variance: float) -> None:
    part, in_cluster = "HDBSCAN", labels >= 0
    clustered_depths = pd.Series(k_star[in_cluster]).groupby(labels[in_cluster])
    sizes, spread = clustered_depths.size(), clustered_depths.std(ddof=0)
    add: Callable[..., None] = run.add
    add("clusters", "clusters", len(sizes), part)
    add("clusters.tokens", "tokens", len(labels), part)
    add("clusters.coverage", "share of tokens", in_cluster.mean(), part)
    add("clusters.noise", "share of tokens", 1 - in_cluster.mean(), part)
    add("clusters.variance", "share of variance", variance, part)
    if sizes.empty:
        return
    add("clusters.largest", "tokens", sizes.max(), part)
    add("clusters.flat", "share of clusters", (spread < 1e-6).mean(), part)
    pure = clustered_depths.mean()[spread < 0.5].round()
    for depth, members in pure.groupby(pure):
        add("clusters.at", "clusters", len(members), part, depth)
        for i, size in enumerate(sizes[members.index].sort_values(ascending=False)[:4], 1):
            add("clusters.size", "tokens", size, f"{part}, largest {i}", depth)


MEASURES = (depths, groups, planted, clusters)
