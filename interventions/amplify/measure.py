"""Amplification: losses, attention, areas, samples and a picture at every α, over documents."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from streamscope.instruments.about_model import title_of
from streamscope.instruments.contract import InstrumentData, Progress
from streamscope.instruments.data import Documents, Opened
from streamscope.instruments.observations import Contrast, Estimates, Measure, Observations, joined
from streamscope.instruments.table import Column, Table, counts, described, key, quantity
from streamscope.interventions.amplify import Amplify
from streamscope.interventions.amplify.areas import UNIT, areas
from streamscope.interventions.amplify.areas import contrasts as of_areas
from streamscope.interventions.edits.amplification import Patterns, amplified, pattern_sums
from streamscope.interventions.edits.means import document_rows
from streamscope.interventions.observe import NATS, PERCENT, document_losses
from streamscope.models.generate import check_room, continuations
from streamscope.models.head_spec import Head, parse_heads
from streamscope.probes.picture.measure import picture

BASELINE = "alpha 1 is the baseline itself"
KEPT = "by construction, the scores of the first amplified layer keep their order"
ATTENTION = {
    "entropy": Measure(name="entropy of attention", unit="nats", resolution=1e-5),  # roundings of float32 in a mean
    "peak": Measure(name="attention of the largest key", unit="share", resolution=1e-5),
    "unchanged": Measure(name="queries with the same first key", unit="share", resolution=0.0),
}
KEYS = ("alpha", "head", "layer", "index")


def observe(how: Amplify, model: Any, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: every α, and every head at it; units: documents."""
    cfg, alphas = model.config, how.alphas
    heads = parse_heads(how.heads or ("all",), cfg.n_layers, cfg.n_heads)
    drawn = parse_heads(how.picture, cfg.n_layers, cfg.n_heads)
    if how.prompt:
        check_room(model, how.prompt, how.sample_tokens)
    opened = data[Documents]
    sweep = [amplified(model, alpha, heads) for alpha in alphas]
    found = document_losses(model, opened.shards, sweep, **opened.limits, progress=progress)
    rows, units = list(document_rows(opened.batches())), opened.units()
    order = np.concatenate([index for index, *_ in opened.batches()])[[len(row) > 1 for row in rows]]
    patterns = pattern_sums(model, rows, alphas, heads, progress=progress)
    which = "all heads" if len(heads) == cfg.n_layers * cfg.n_heads else f"{len(heads)} heads"
    title = f"{title_of(model)}: softmax(α · scores) in {which}"
    seen = InstrumentData({}, {}, {"title": f"{title}; {opened.title()}, {found.tokens.sum():,} tokens"}, extra={})
    add_losses(seen, alphas, found.edited, found.tokens.astype(float), units)
    add_attention(seen, alphas, patterns, units.iloc[order].reset_index(drop=True), heads)
    if how.prompt:
        said = continuations(model, how.prompt, sweep, tokens=how.sample_tokens, seed=how.seed)
        seen.extra["samples"] = pd.DataFrame({"alpha": alphas, "sample": said})
    if how.text:
        middle = patterns.entropy[alphas.index(1.0), cfg.n_layers // 2].sum(-1)
        drawn = drawn or [Head(cfg.n_layers // 2, int(middle.argmax()))]
        parts = [
            (alpha, picture(model, how.text, drawn, edits=edits)) for alpha, edits in zip(alphas, sweep, strict=True)
        ]
        both = [one.assign(alpha=alpha, head=one["head"] + f", α = {alpha:g}") for alpha, one in parts]
        by = ["layer", "index", "alpha"]
        seen.extra["picture"] = pd.concat(both, ignore_index=True).sort_values(by, kind="stable", ignore_index=True)
    return seen


# ---- cells and contrasts -----------------------------------------------------------------------


def add_losses(
    seen: InstrumentData, alphas: Sequence[float], losses: np.ndarray, tokens: np.ndarray, units: pd.DataFrame
) -> None:
    """Losses [alphas, documents] in nats, their change from α = 1, also in percent, and areas from α = 1 upwards."""
    cells, one = pd.DataFrame({"alpha": list(alphas)}), list(alphas).index(1.0)
    rows: list[tuple[int, Any, str]] = [(i, {"alpha": a}, BASELINE if a == 1 else "") for i, a in enumerate(alphas)]
    base = {one: 1.0}
    of: dict[str, tuple[Measure, Any, list[Contrast]]] = {
        "loss": (NATS, tokens, [
            Contrast(quantity="loss", weights={i: 1.0}, labels=at, null=None) for i, at, _ in rows
        ]),
        "delta": (NATS, tokens, [
            made
            for i, at, why in rows
            for made in (
                Contrast(quantity="baseline", weights=base, labels=at, null=None),
                Contrast(quantity="delta", weights={one: 0.0} if why else {i: 1.0, one: -1.0}, labels=at, fixed=why),
            )
        ]),
        "percent": (PERCENT, losses[one], [
            Contrast(quantity="percent", weights={i: 1.0}, labels=at, null=None, fixed=why) for i, at, why in rows
        ]),
    }  # fmt: skip
    for name, (measure, size, contrasts) in of.items():
        seen.blocks[name] = Observations(measure=measure, cells=cells, units=units, total=losses, size=size)
        seen.contrasts[name] = contrasts
    if len(up := [i for i, alpha in enumerate(alphas) if alpha >= 1]) > 1:
        seen.blocks["areas"] = areas([alphas[i] for i in up], losses[up], tokens, units)
        seen.contrasts["areas"] = of_areas(seen.blocks["areas"])


def add_attention(
    seen: InstrumentData, alphas: Sequence[float], patterns: Patterns, units: pd.DataFrame, heads: Iterable[Head]
) -> None:
    """Entropy, peak and unchanged keys of all heads together and of each, at every α.

    `unchanged` is over the layers after the first amplified one: up to it, the key with most attention is the same at
    every α, by construction.
    """
    layers, width = patterns.entropy.shape[1:3]
    fixed = min((head.layer for head in heads), default=0)
    every: list[dict[str, Any]] = [
        {"alpha": alpha, "head": f"L{layer}H{head}", "layer": layer, "index": head}
        for alpha in alphas for layer in range(layers) for head in range(width)
    ]  # fmt: skip
    for name, measure in ATTENTION.items():
        sums = getattr(patterns, name)  # [alphas, layers, heads, documents]
        kept = sums[:, fixed + 1 :] if name == "unchanged" else sums
        mean = kept.mean((1, 2)) if kept.shape[1] else sums.mean((1, 2))
        of = {name: ([{"alpha": a} for a in alphas], mean, not kept.shape[1]), f"heads-{name}": (every, sums, False)}
        for block, (rows, totals, same) in of.items():
            seen.blocks[block] = Observations(
                measure=measure, cells=pd.DataFrame(rows), units=units, size=patterns.queries,
                total=totals.reshape(len(rows), -1),
            )  # fmt: skip
            seen.contrasts[block] = []
            for i, row in enumerate(rows):
                kept_order = same or row.get("layer", fixed + 1) <= fixed
                why = BASELINE if row["alpha"] == 1 else KEPT if kept_order else ""
                one = Contrast(
                    quantity=name, weights={i: 1.0}, labels=row, null=None, missing=why if name == "unchanged" else ""
                )
                seen.contrasts[block].append(one)


# ---- tables ------------------------------------------------------------------------------------


def tables(how: Amplify, seen: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """The curve, and areas, heads, samples and the picture beside it."""
    title, tokens = seen.about["title"], int(seen.blocks["delta"].sizes[0].sum())
    frame, missing = joined([estimates[name] for name in ("delta", "loss", "percent", *ATTENTION)], KEYS[:1])
    out = {"amplify": Table(frame.assign(tokens=tokens), CURVE, missing, title)}
    if "areas" in estimates:
        frame, missing = estimates["areas"].wide(["kind", "axis"], describe=("low", "high"))
        upwards = [alpha for alpha in how.alphas if alpha >= 1]
        said = f"area under the curve, α from 1 to {upwards[-1]:g}; {title}"
        out["areas"] = Table(frame.assign(alphas=" ".join(f"{a:g}" for a in upwards)), AREAS, missing, said)
    frame, missing = joined([estimates[f"heads-{name}"] for name in ATTENTION], KEYS)
    queries = int(seen.blocks["entropy"].sizes[0].sum())
    out["heads"] = Table(
        frame.assign(queries=queries), HEADS, missing, f"attention of every head; {title}", "entropy", 6, ("alpha",)
    )
    if "samples" in seen.extra:
        out["samples"] = Table(seen.extra["samples"], SAMPLES, title=f"samples; {title}")
    if "picture" in seen.extra:
        what = f"attention across α in {how.text!r}; {title.partition(';')[0]}"
        out["picture"] = Table(seen.extra["picture"], PICTURE, title=what, by="attention", most=10)
    return out


ALPHA = key("alpha", "α", "what the scores are multiplied by", "factor on the scores", "g")
OF_ATTENTION = (
    *described("entropy", "entropy", "nats", "−Σ A ln A, mean over queries and heads", format=".3f"),
    *described("peak", "peak", "share of attention", "attention of the largest key, mean over queries and heads",
               format=".3f"),
    *described("unchanged", "unchanged", "share of queries", "whose key with most attention is the one at α = 1; over "
               "the layers after the first amplified one", format=".3f"),
)  # fmt: skip
OF_LOSS = (
    *described("loss", "loss", "nats/token", "loss per token", format=".4f"),
    *described("baseline", "loss at α = 1", "nats/token", "loss per token at α = 1", format=".4f", shown=False),
    *quantity("delta", "Δ loss", "nats/token", "loss − loss at α = 1", sd="documents"),
    *described("percent", "degradation", "percent of the loss at α = 1", "100 (loss(α) / loss(1) − 1)", format="+.2f",
               source="DST Table 5"),
)  # fmt: skip
CURVE = (
    ALPHA, *OF_LOSS, *OF_ATTENTION,
    Column(name="tokens", title="tokens", unit="tokens", format="d", shown=False, doc="predicted tokens"),
    *counts("documents, or windows of them", "documents"),
)  # fmt: skip
AREAS = (
    key("kind", "kind", "raw, excess over α = 1, relative to it, perplexity, weighted by α"),
    key("axis", "axis", "what the integral is over: α, log2 α or ln α"),
    *described("area", "area", UNIT, "area under the curve", format=".3f", source="DST §4.2"),
    Column(name="alphas", title="α", unit="factors on the scores", doc="where the curve is known", shown=False),
    *counts("documents, or windows of them", "documents"),
)
HEADS = (
    ALPHA,
    key("head", "head", "the head", "layer and index"),
    Column(name="layer", title="layer", unit="layer", format="d", shown=False, doc="counted from 0"),
    Column(name="index", title="index", unit="head", format="d", shown=False, doc="in its layer, from 0"),
    *OF_ATTENTION,
    Column(name="queries", title="queries", unit="queries", format="d", shown=False, doc="positions that look back"),
    *counts("documents, or windows of them", "documents"),
)
SAMPLES = (ALPHA, Column(name="sample", title="sample", unit="text", doc="the prompt, continued at this α"))
PICTURE = (
    key("head", "head", "the head, and α", "layer, index, α"),
    Column(name="layer", title="layer", unit="layer", format="d", shown=False, doc="counted from 0"),
    Column(name="index", title="index", unit="head", format="d", shown=False, doc="in its layer, from 0"),
    Column(name="query", title="query", unit="position in tokens", format="d", doc="that looks; BOS is 0"),
    key("query_token", "query's text", "of the position that looks", "text"),
    Column(name="key", title="key", unit="position in tokens", format="d", doc="that is looked at; BOS is 0"),
    key("key_token", "key's text", "of the position that is looked at", "text"),
    Column(name="attention", title="attention", unit="share of the query's attention", format=".3f", doc="A[q, k]"),
    Column(name="role", title="role", unit="name", doc="of the key in the text, empty for none", shown=False),
    Column(name="alpha", title="α", unit="factor on the scores", format="g", shown=False,
           doc="what the scores are multiplied by"),
)  # fmt: skip
