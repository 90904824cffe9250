"""Amplified attention: losses, attention statistics, areas, samples and a picture at every α, over documents.

Areas under the curve of loss against α are given in every reading of DST §4.2 (SPEC §7.3):

    raw ∫ loss dx                               excess ∫ (loss − loss(1)) dx
    relative 100 ∫ (loss / loss(1) − 1) dx      perplexity ∫ e^loss dx

each by the trapezoid rule over x = α, log2 α or ln α; weighted: Σ α loss(α). The paper computes "the area under the
loss curve from α=1 to α=16" and prints 99.8, 97.2 and 107.4 for losses with trapezoid areas 30.81, 30.87 and 33.44. No
reading gives its numbers. The printed losses are rounded, so either of the first two raw areas may be smaller.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from streamscope.cli.terminal import counted
from streamscope.instruments.contract import Progress, title_of
from streamscope.instruments.data import Documents, Opened
from streamscope.instruments.observations import Estimates, Measure, Observations, each, joined
from streamscope.instruments.table import HEAD, Table, counts, described, key, number, quantity
from streamscope.interventions.amplify import Amplify
from streamscope.interventions.changes import TOKENS, Change, Effects, effect_table, measure_changes
from streamscope.interventions.edits.amplification import Patterns, amplification, pattern_sums
from streamscope.interventions.edits.means import document_rows
from streamscope.interventions.observe import NATS
from streamscope.models.generate import check_room, continuations
from streamscope.models.head_spec import Head, parse_heads
from streamscope.probes.picture.measure import QUERY, WEIGHT, picture

BASELINE = "α = 1 is the baseline itself"
SAME_ORDER = "by construction, the scores of the first amplified layer keep their order"
ATTENTION = {
    "entropy": Measure(name="entropy of attention", unit="nats", resolution=1e-5, limits=(0.0, np.inf)),
    "peak": Measure(name="attention of the largest key", unit="share", resolution=1e-5, limits=(0.0, 1.0)),
    "unchanged": Measure(name="queries with the same first key", unit="share", resolution=0.0, limits=(0.0, 1.0)),
}
KEYS = ("alpha", "head", "layer", "index")
AXES: dict[str, Callable[[np.ndarray], np.ndarray]] = {"linear": lambda a: a, "log2": np.log2, "ln": np.log}
KINDS = ("raw", "excess", "relative", "perplexity", "weighted")
UNIT = "by kind: nats × α (raw, excess, weighted), percent of the loss at α = 1 × α (relative), perplexity × α"


def trapezoid(x: Sequence[float] | np.ndarray) -> np.ndarray:
    """Weights w with Σ w_i y_i = the trapezoid rule's integral of y over ascending x."""
    steps = np.diff(np.asarray(x, float))
    return np.concatenate([[0.0], steps / 2]) + np.concatenate([steps / 2, [0.0]])


def areas(alphas: Sequence[float], losses: np.ndarray, tokens: np.ndarray, units: pd.DataFrame) -> Observations:
    """A cell for each kind and axis. Areas are ratios of sums over documents; that of perplexity is linearised. alphas:
    ascending from 1. losses: summed loss in nats, [alphas, documents], NaN of a document that was not measured. tokens:
    targets per document. units: the documents."""
    a, y, n = np.asarray(alphas, float), np.nan_to_num(losses), np.asarray(tokens, float)
    mean = y.sum(1) / n.sum()
    rows, totals, sizes = [], [], []
    for kind in KINDS:
        for axis in AXES if kind != "weighted" else ("linear",):
            w = trapezoid(AXES[axis](a)) if kind != "weighted" else a
            slope = w * np.exp(mean)
            rows.append({"kind": kind, "axis": axis})
            totals.append({
                "raw": w @ y, "weighted": w @ y, "excess": w @ (y - y[0]), "relative": 100.0 * w @ (y - y[0]),
                "perplexity": slope @ (y - mean[:, None] * n) + slope.sum() * n,
            }[kind])  # fmt: skip
            sizes.append(y[0] if kind == "relative" else n)
    measure, cells = Measure(name="area under the curve", unit=UNIT, resolution=NATS.resolution), pd.DataFrame(rows)
    return Observations(measure=measure, cells=cells, units=units, total=np.stack(totals), size=np.stack(sizes))


def observe(options: Amplify, model: Any, data: Opened, progress: Progress) -> Effects:
    """Cells: every α, and every head at every α. Units: documents."""
    cfg, alphas = model.config, options.alphas
    heads = parse_heads(options.heads, cfg.n_layers, cfg.n_heads)
    drawn = parse_heads(options.picture, cfg.n_layers, cfg.n_heads)
    if options.prompt:
        check_room(model, options.prompt, options.sample_tokens)
    opened = data[Documents]
    sweep = [amplification(model, alpha, heads) for alpha in alphas]
    changes = [
        Change({"alpha": alpha}, [edits], fixed=BASELINE if alpha == 1 else "")
        for alpha, edits in zip(alphas, sweep, strict=True)
    ]
    effects = measure_changes(model, opened, changes, progress=progress)
    units, block, index = opened.units(), effects.blocks["loss"], np.concatenate([i for i, *_ in opened.batches()])
    rows = zip(index.tolist(), document_rows(opened.batches()), strict=True)
    measured = {i: row for i, row in rows if len(row) > 1 and block.inside[0, i]}  # after an interruption some are not
    patterns = pattern_sums(model, measured.values(), alphas, heads, progress=progress)
    scope = "all heads" if len(heads) == cfg.n_layers * cfg.n_heads else f"{counted(len(heads), 'head')}"
    effects.about["title"] = f"{title_of(model)}: softmax(α · scores) in {scope}; {effects.documents}"
    effects.extra, contrasts = {}, effects.contrasts["loss"]
    effects.blocks["delta"] = block  # a control has a table of the losses, and one of their changes
    effects.contrasts["loss"] = [c for c in contrasts if c.quantity == "loss"]
    effects.contrasts["delta"] = [c for c in contrasts if c.quantity != "loss"]
    if len(up := [i for i, alpha in enumerate(alphas, 1) if alpha >= 1]) > 1:
        effects.blocks["areas"] = areas([alphas[i - 1] for i in up], block.total[up], block.sizes[0], units)
        effects.contrasts["areas"] = each("area", effects.blocks["areas"].cells, null=None)
    add_attention(effects, alphas, patterns, units.iloc[list(measured)].reset_index(drop=True), heads)
    if options.prompt:
        samples = continuations(model, options.prompt, sweep, tokens=options.sample_tokens, seed=options.seed)
        effects.extra["samples"] = pd.DataFrame({"alpha": alphas, "sample": samples})
    if options.text:
        middle = patterns.entropy[alphas.index(1.0), cfg.n_layers // 2].sum(-1)
        drawn = drawn or [Head(cfg.n_layers // 2, int(middle.argmax()))]
        pictures = zip(alphas, (picture(model, options.text, drawn, edits=edits) for edits in sweep), strict=True)
        frames = [frame.assign(alpha=alpha, head=frame["head"] + f", α = {alpha:g}") for alpha, frame in pictures]
        frame = pd.concat(frames, ignore_index=True)
        effects.extra["picture"] = frame.sort_values(["layer", "index", "alpha"], kind="stable", ignore_index=True)
    return effects


def add_attention(
    effects: Effects, alphas: Sequence[float], patterns: Patterns, units: pd.DataFrame, heads: Iterable[Head]
) -> None:
    """Blocks of entropy, peak and unchanged keys at every α: mean over all heads, and each head. `unchanged` averages
    over the layers after the first amplified one. Up to it the most attended key never changes."""
    layers, width = patterns.entropy.shape[1:3]
    fixed = min((head.layer for head in heads), default=0)
    every: list[dict[str, Any]] = [
        {"alpha": alpha, "head": f"L{layer}.H{head}", "layer": layer, "index": head}
        for alpha in alphas for layer in range(layers) for head in range(width)
    ]  # fmt: skip
    for name, measure in ATTENTION.items():
        sums = getattr(patterns, name)  # [alphas, layers, heads, documents]
        later = sums[:, fixed + 1 :] if name == "unchanged" else sums
        mean = later.mean((1, 2)) if later.shape[1] else sums.mean((1, 2))
        of = {name: ([{"alpha": a} for a in alphas], mean, not later.shape[1]), f"heads-{name}": (every, sums, False)}
        for block, (rows, totals, fixed_order) in of.items():
            cells, total = pd.DataFrame(rows), totals.reshape(len(rows), -1)
            ordered = [SAME_ORDER if fixed_order or row.get("layer", fixed + 1) <= fixed else "" for row in rows]
            reasons = [BASELINE if row["alpha"] == 1 else reason for row, reason in zip(rows, ordered, strict=True)]
            effects.blocks[block] = Observations(
                measure=measure, cells=cells, units=units, total=total, size=patterns.queries
            )
            effects.contrasts[block] = each(name, cells, null=None, missing=reasons if name == "unchanged" else "")


def tables(options: Amplify, effects: Effects, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    title = effects.about["title"]
    out = {"amplify": effect_table(effects, estimates, CURVE, title, also=("delta", *ATTENTION))}
    if "areas" in estimates:
        frame, missing = estimates["areas"].wide(["kind", "axis"], describe=("low", "high"))
        upwards = [alpha for alpha in options.alphas if alpha >= 1]
        heading = f"Area under the curve for α from 1 to {upwards[-1]:g}; {title}"
        out["areas"] = Table(frame.assign(alphas=" ".join(f"{a:g}" for a in upwards)), AREAS, missing, heading)
    frame, missing = joined([estimates[f"heads-{name}"] for name in ATTENTION], KEYS, HEADS)
    queries = int(effects.blocks["entropy"].sizes[0].sum())
    heading = f"Attention of every head; {title}"
    out["heads"] = Table(frame.assign(queries=queries), HEADS, missing, heading, "entropy", 6, ("alpha",))
    if "samples" in effects.extra:
        out["samples"] = Table(effects.extra["samples"], SAMPLES, title=f"Samples; {title}")
    if "picture" in effects.extra:
        heading = f"Attention across α in {options.text!r}; {title.partition(';')[0]}"
        out["picture"] = Table(effects.extra["picture"], PICTURE, title=heading, by="attention", most=10)
    return out


ALPHA = key("alpha", "α", "factor on the attention scores", "factor on the scores", "g")
ATTENTION_COLUMNS = (
    *described("entropy", "entropy", "nats", "−Σ A ln A, mean over queries and heads", format=".3f"),
    *described("peak", "largest weight", "share of attention",
               "attention of the largest key, mean over queries and heads", format=".3f"),
    *described("unchanged", "same top key", "share of queries",
               "queries with the same most attended key as at α = 1, in layers after the first amplified one",
               format=".3f"),
)  # fmt: skip
LOSS_COLUMNS = (
    *described("loss", "loss", "nats/token", "loss per token", format=".4f"),
    *described("baseline", "loss at α = 1", "nats/token", "loss per token at α = 1", format=".4f", shown=False),
    *quantity("delta", "Δ loss", "nats/token", "loss − loss at α = 1", sd="documents"),
    *described("percent", "degradation", "percent of the loss at α = 1", "100 (loss(α) / loss(1) − 1)", format="+.2f",
               source="DST Table 5"),
)  # fmt: skip
CURVE = (ALPHA, *LOSS_COLUMNS, *ATTENTION_COLUMNS, *TOKENS)
AREAS = (
    key("kind", "kind", "raw, excess over α = 1, relative to α = 1, perplexity, or weighted by α"),
    key("axis", "axis", "variable of the integral: α, log2 α or ln α"),
    *described("area", "area", UNIT, "area under the curve", format=".3f", source="DST §4.2"),
    key("alphas", "α", "values of α in the integral", "factors on the scores", shown=False),
    *counts("documents or windows", "documents"),
)  # fmt: skip
HEADS = (
    ALPHA,
    *HEAD,
    *ATTENTION_COLUMNS,
    number("queries", "queries", "queries", "positions with an earlier key", "d", False),
    *counts("documents or windows", "documents"),
)  # fmt: skip
SAMPLES = (ALPHA, key("sample", "sample", "the prompt, continued at this α", "text"))
PICTURE = (
    key("head", "head", "the head, and α", "layer, index, α"),
    *HEAD[1:], *QUERY, *WEIGHT,
    key("role", "role", "role of the key in the text, empty for none", shown=False),
    number("alpha", "α", "factor on the scores", "factor on the attention scores", "g", False),
)  # fmt: skip
