"""Amplified attention: losses, attention statistics, areas, samples and a picture at every α, over documents.

Areas under the curve of loss against α are given in every reading of DST §4.2 (SPEC §7.3):

    raw ∫ loss dx                               excess ∫ (loss − loss(1)) dx
    relative 100 ∫ (loss / loss(1) − 1) dx      perplexity ∫ e^loss dx

each by the trapezoid rule over x = α, log2 α or ln α; weighted: Σ α loss(α). The paper computes "the area under the
loss curve from α=1 to α=16" and prints 99.8, 97.2 and 107.4 for losses with trapezoid areas 30.81, 30.87 and 33.44. No
reading gives its numbers. The printed losses are rounded, so either of the first two raw areas may be smaller.

The edit is A_α = softmax(α Q K^T / sqrt(d_h)) (DST §2.3, Eq. 17):

    with edit(model, amplification(model, 8.0)):
        model(tokens)

Scaling the keys by α scales every score, before or after RoPE, and stays on the fused path (error ≤ 4e-6 in float32). A
gate reads queries, inputs or values but never keys, so it does not change. ALiBi adds −m_h (q − k) to the scores, so
its slopes are scaled as well.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.cli.terminal import counted
from streamscope.instruments.contract import Progress, title_of
from streamscope.instruments.data import Documents, Opened
from streamscope.instruments.observations import Estimates, Measure, Observations, each, head_cells, joined
from streamscope.instruments.table import HEAD, Table, counts, described, key, number, quantity
from streamscope.interventions.amplify import Amplify
from streamscope.interventions.changes import TOKENS, Change, Effects, effect_table, measure_changes
from streamscope.interventions.edits import chunks, document_rows, heads_by_layer
from streamscope.interventions.observe import NATS
from streamscope.models.generate import check_room, continuations
from streamscope.models.head_spec import Head, every_head, parse_heads
from streamscope.models.hooks import Edit, Query, run, scale_axis
from streamscope.probes.picture.measure import QUERY, WEIGHT, picture
from streamscope.probes.roles import PATTERN, by_layer

BASELINE = "α = 1 is the baseline itself"
SAME_ORDER = "by construction, the scores of the first amplified layer keep their order"
ATTENTION = {
    "entropy": Measure(name="entropy of attention", unit="nats", resolution=1e-5, limits=(0.0, np.inf)),
    "peak": Measure(name="attention of the largest key", unit="share", resolution=1e-5, limits=(0.0, 1.0)),
    "unchanged": Measure(name="queries with the same first key", unit="share", resolution=0.0, limits=(0.0, 1.0)),
}
KEYS = ("alpha", "head", "layer", "index")
AXES: dict[str, Callable[[np.ndarray], np.ndarray]] = {"linear": lambda a: a, "log2": np.log2, "ln": np.log}
UNIT = "by kind: nats × α (raw, excess, weighted), percent of the loss at α = 1 × α (relative), perplexity × α"


def amplify_heads(heads: Iterable[Head], alpha: float, *, slopes: bool = False, scaled: str = "k") -> dict[str, Edit]:
    """Multiply the heads' scores by α. Hooks: `attn.hook_k` [B, T, H, K], with `slopes` also `attn.hook_slopes` [B, H].
    Keys are scaled, which no gate reads, or queries (`scaled="q"`) if several heads share keys. α = 1 changes nothing,
    bit for bit. Raises `InputError` unless α is above 0."""
    if not (math.isfinite(alpha) and alpha > 0):
        raise InputError(f"α = {alpha:g}: give a finite number above 0")
    edits: dict[str, Edit] = {}
    for layer, index in heads_by_layer(heads).items():
        edits[f"blocks.{layer}.attn.hook_{scaled}"] = partial(scale_axis, index=index, g=alpha)
        if slopes:
            edits[f"blocks.{layer}.attn.hook_slopes"] = partial(scale_axis, index=index, g=alpha, axis=1)
    return edits


def amplification(model: Any, alpha: float, heads: Iterable[Head] | None = None) -> dict[str, Edit]:
    """`amplify_heads` for this model, including ALiBi's slopes; all heads by default. Raises `InputError` if heads
    share keys and a gate reads the queries, because neither can then be scaled alone, and for capped scores."""
    config = model.config
    if config.attention.softcap:
        raise InputError(f"{config.name} caps its scores, so scaled keys do not scale them: amplification is undefined")
    shared, gate = config.kv_heads < config.n_heads, config.attention.gate
    if shared and gate is not None and gate.source == "query":
        raise InputError("heads that share keys and whose gate reads the queries cannot be amplified one by one")
    chosen = every_head(model) if heads is None else heads
    return amplify_heads(chosen, alpha, slopes=config.positions.slopes, scaled="q" if shared else "k")


def pattern_sums(
    model: Any, rows: Iterable[Sequence[int]], alphas: Sequence[float], heads: Sequence[Head] | None = None, *,
    chunk: int = 16, progress: Callable[[Iterable], Iterable] = iter,
) -> tuple[dict[str, np.ndarray], np.ndarray]:  # fmt: skip
    """Attention statistics of documents (token ids) at each α, sums over the queries of each document, [alphas, layers,
    heads, documents]; and the number of queries [documents]. Queries are positions from 1 on, because position 0 has
    one key. entropy −Σ_k A_k ln A_k in nats; peak max_k A_k; unchanged: 1 if the most attended key is the one at α = 1.

    Patterns of `chunk` documents are in memory at once. Raises `InputError` if no document has two tokens, and for
    attention that is not finite."""
    batch_sums, queries = list[np.ndarray](), list[int]()
    for batch in progress(list(chunks([row for row in rows if len(row) > 1], chunk))):
        queries += [len(row) - 1 for row in batch]
        plain = list[Tensor]()
        sums = np.zeros((3, len(alphas), model.config.n_layers, model.config.n_heads, len(batch)))
        for member, edits in enumerate([{}, *(amplification(model, alpha, heads) for alpha in alphas)]):
            patterns = by_layer(run(model, Query(tokens=batch, hooks=(PATTERN,)), edits), "hook_pattern")
            for i, layers in enumerate(zip(*patterns.values(), strict=True)):
                A = torch.stack(layers)[:, :, 1:]  # [L, H, T−1, T]
                if member == 0:
                    plain.append(A.argmax(-1))
                    continue
                values = [torch.special.entr(A.double()).sum(-1), A.amax(-1), A.argmax(-1) == plain[i]]
                sums[:, member - 1, :, :, i] = torch.stack([x.double().sum(-1) for x in values]).cpu().numpy()
        if not np.isfinite(sums).all():
            raise InputError("attention is not finite: α is too large for these weights")
        batch_sums.append(sums)
    if not queries:
        raise InputError("no document has two tokens, so there is no attention; give longer documents")
    return dict(zip(ATTENTION, np.concatenate(batch_sums, -1), strict=True)), np.asarray(queries, float)


def areas(alphas: Sequence[float], losses: np.ndarray, tokens: np.ndarray, units: pd.DataFrame) -> Observations:
    """A cell for each kind and axis. Areas are ratios of sums over documents; that of perplexity is linearised. alphas:
    ascending from 1. losses: summed loss in nats, [alphas, documents], NaN of a document that was not measured. tokens:
    targets per document. units: the documents."""
    a, y, n = np.asarray(alphas, float), np.nan_to_num(losses), np.asarray(tokens, float)
    mean = y.sum(1, keepdims=True) / n.sum()
    perplexity = np.exp(mean) * (y + (1 - mean) * n)
    curves = {"raw": y, "excess": y - y[0], "relative": 100.0 * (y - y[0]), "perplexity": perplexity}
    keys = [*product(curves, AXES), ("weighted", "linear")]
    totals = [*(np.trapezoid(curves[kind], AXES[axis](a), axis=0) for kind, axis in keys[:-1]), a @ y]
    measure = Measure(name="area under the curve", unit=UNIT, resolution=NATS.resolution)
    return Observations(
        measure=measure, cells=pd.DataFrame(keys, columns=["kind", "axis"]), units=units, total=np.stack(totals),
        size=np.stack([y[0] if kind == "relative" else n for kind, _ in keys]),
    )  # fmt: skip


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
    patterns, queries = pattern_sums(model, measured.values(), alphas, heads, progress=progress)
    scope = "all heads" if len(heads) == cfg.n_layers * cfg.n_heads else f"{counted(len(heads), 'head')}"
    effects.about["title"] = f"{title_of(model)}: softmax(α · scores) in {scope}; {effects.documents}"
    effects.extra, contrasts = {}, effects.contrasts["loss"]
    effects.blocks["delta"] = block  # a control has a table of the losses, and one of their changes
    effects.contrasts["loss"] = [c for c in contrasts if c.quantity == "loss"]
    effects.contrasts["delta"] = [c for c in contrasts if c.quantity != "loss"]
    if len(up := [i for i, alpha in enumerate(alphas, 1) if alpha >= 1]) > 1:
        effects.blocks["areas"] = areas([alphas[i - 1] for i in up], block.total[up], block.sizes[0], units)
        effects.contrasts["areas"] = each("area", effects.blocks["areas"].cells, null=None)
    of_heads = pd.concat([head_cells(model).assign(alpha=alpha) for alpha in alphas], ignore_index=True)[[*KEYS]]
    first = min((head.layer for head in heads), default=0)  # up to this layer the most attended key never changes
    units = units.iloc[list(measured)].reset_index(drop=True)
    for name, measure in ATTENTION.items():
        sums = patterns[name]  # [alphas, layers, heads, documents]
        later = sums[:, first + 1 :] if name == "unchanged" else sums
        mean = later.mean((1, 2)) if later.shape[1] else sums.mean((1, 2))
        for label, cells, totals, same_order in (
            (name, pd.DataFrame({"alpha": alphas}), mean, not later.shape[1]),
            (f"heads-{name}", of_heads, sums, of_heads["layer"] <= first),
        ):
            reasons = np.where(cells["alpha"] == 1, BASELINE, np.where(same_order, SAME_ORDER, "")).tolist()
            effects.add(measure, cells, units, totals.reshape(len(cells), -1), queries, block=label, quantity=name,
                        null=None, missing=reasons if name == "unchanged" else "")  # fmt: skip
    if options.prompt:
        samples = continuations(model, options.prompt, sweep, tokens=options.sample_tokens, seed=options.seed)
        effects.extra["samples"] = pd.DataFrame({"alpha": alphas, "sample": samples})
    if options.text:
        middle = patterns["entropy"][alphas.index(1.0), cfg.n_layers // 2].sum(-1)
        drawn = drawn or [Head(cfg.n_layers // 2, int(middle.argmax()))]
        pictures = zip(alphas, (picture(model, options.text, drawn, edits=edits) for edits in sweep), strict=True)
        frames = [frame.assign(alpha=alpha, head=frame["head"] + f", α = {alpha:g}") for alpha, frame in pictures]
        frame = pd.concat(frames, ignore_index=True)
        effects.extra["picture"] = frame.sort_values(["layer", "index", "alpha"], kind="stable", ignore_index=True)
    return effects


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
