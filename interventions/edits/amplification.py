"""Attention amplification A_α = softmax(α Q K^T / sqrt(d_h)) (DST §2.3, Eq. 17), and its effect on patterns.

    with edit(model, amplification(model, 8.0)):
        model(tokens)

Scaling the keys by α scales every score, before or after RoPE, and stays on the fused path (error ≤ 4e-6 in float32). A
gate reads queries, inputs or values but never keys, so it does not change. ALiBi adds −m_h (q − k) to the scores, so
its slopes are scaled as well.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.interventions.edits import heads_by_layer, scale_axis
from streamscope.interventions.edits.means import chunks
from streamscope.models.head_spec import Head, every_head
from streamscope.models.hooks import Edit, Query, run

PATTERNS = "blocks.*.attn.hook_pattern"


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


@dataclass(frozen=True)
class Patterns:
    """Sums over the queries of each document, [alphas, layers, heads, documents]; queries [documents]. Queries are
    positions from 1 on, because position 0 has one key. entropy −Σ_k A_k ln A_k in nats; peak max_k A_k; unchanged: 1
    if the most attended key is the one at α = 1."""

    entropy: np.ndarray
    peak: np.ndarray
    unchanged: np.ndarray
    queries: np.ndarray


def pattern_sums(
    model: Any, rows: Iterable[Sequence[int]], alphas: Sequence[float], heads: Sequence[Head] | None = None, *,
    chunk: int = 16, progress: Callable[[Iterable], Iterable] = iter,
) -> Patterns:  # fmt: skip
    """Attention statistics of documents (token ids) at each α; patterns of `chunk` documents are in memory at once.
    Raises `InputError` if no document has two tokens, and for attention that is not finite."""
    batch_sums, queries = list[np.ndarray](), list[int]()
    for batch in progress(list(chunks([row for row in rows if len(row) > 1], chunk))):
        queries += [len(row) - 1 for row in batch]
        plain = list[Tensor]()
        sums = np.zeros((3, len(alphas), model.config.n_layers, model.config.n_heads, len(batch)))
        for number, edits in enumerate([{}, *(amplification(model, alpha, heads) for alpha in alphas)]):
            patterns = run(model, Query(tokens=batch, hooks=(PATTERNS,)), edits).hooks
            layers = sorted(patterns, key=lambda name: int(name.split(".")[1]))
            for i in range(len(batch)):
                A = torch.stack([patterns[name][i] for name in layers])[:, :, 1:]  # [L, H, T−1, T]
                if number == 0:
                    plain.append(A.argmax(-1))
                    continue
                values = [torch.special.entr(A.double()).sum(-1), A.amax(-1), A.argmax(-1) == plain[i]]
                sums[:, number - 1, :, :, i] = torch.stack([x.double().sum(-1) for x in values]).cpu().numpy()
        if not np.isfinite(sums).all():
            raise InputError("attention is not finite: α is too large for these weights")
        batch_sums.append(sums)
    if not queries:
        raise InputError("no document has two tokens, so there is no attention; give longer documents")
    entropy, peak, unchanged = np.concatenate(batch_sums, -1)
    return Patterns(entropy, peak, unchanged, np.asarray(queries, float))
