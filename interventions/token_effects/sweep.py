"""The effect of every edit on every token: losses and log-probabilities by position, from shared passes.

    found = token_effects(model, [[0, 17, 4, 9], [0, 5]], [scale_heads([head], 0.0) for head in heads])
    found[0].delta_loss                       [edits, 3], nats: edited − unedited, at positions 0, 1, 2

Position q predicts token q + 1. With p_e the distribution under edit e (p_0 unedited), y the next token and ŷ = argmax
p_0 the model's own prediction:

    loss = −ln p_0(y)        Δ loss = ln p_0(y) − ln p_e(y)
    log p = ln p_0(ŷ)        Δ log p = ln p_e(ŷ) − ln p_0(ŷ)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.interventions.observe import chunk_log_probs
from streamscope.models.hooks import Edits, batches, pad
from streamscope.models.readout import map_logits
from streamscope.models.sweep import Plan, measure_rows

BATCH_TOKENS = 4096
"""Padded tokens per batch."""


@dataclass(frozen=True)
class Effects:
    """Effects on one sequence of T + 1 tokens, in nats: unedited `loss`, `log_p` (of the model's own prediction) and
    `prediction` (token ids) [T]; changes `delta_loss`, `delta_log_p` [edits, T]."""

    loss: np.ndarray
    log_p: np.ndarray
    prediction: np.ndarray
    delta_loss: np.ndarray
    delta_log_p: np.ndarray


@torch.no_grad()
def token_effects(
    model: Any, sequences: Sequence[Sequence[int]], sweep: Sequence[Edits], *, without: Sequence[int] | None = None,
    done: Callable[[Sequence[int], int], None] = lambda members, n: None, budget: int | None = None,
) -> list[Effects]:  # fmt: skip
    """The effect of each edit at each position of each sequence, except the last token and the first `without`
    positions, which are only context.

    Values equal one pass per sequence and edit, up to rounding; edits must treat the rows of a batch alike. `done` gets
    the members that have finished some positions, and how many; `budget` is that of `Trajectories`. Raises `InputError`
    for sequences without a next token or beyond the context, ids the model lacks, and values that are not finite.
    """
    lengths = [len(ids) - 1 for ids in sequences]
    if not lengths or min(lengths) < 1 or max(lengths) > model.config.n_ctx:
        span = f"{min(lengths)} to {max(lengths)}" if lengths else "no"
        raise InputError(f"sequences have {span} next tokens: give 1 to {model.config.n_ctx}, the context")
    skipped = [0] * len(lengths) if without is None else list(without)
    plans = [Plan(model, edits) for edits in [{}, *sweep]]
    found: dict[int, Effects] = {}
    for rows in batches(lengths, BATCH_TOKENS):
        ids = pad([list(sequences[i]) for i in rows]).to(model.cfg.device)
        places, begin = torch.arange(ids.shape[1] - 1), torch.tensor([skipped[i] for i in rows])[:, None]
        at = (places >= begin) & (places < torch.tensor([lengths[i] for i in rows])[:, None])
        values, prediction = _batch(model, ids, at.to(ids.device), plans, done, budget)
        cuts = np.cumsum([lengths[i] - skipped[i] for i in rows])[:-1]
        parts = zip(np.split(values, cuts, axis=1), np.split(prediction, cuts), strict=True)
        for i, (value, predicted) in zip(rows, parts, strict=True):
            y, own = value[..., 0], value[..., 1]
            found[i] = Effects(-y[0], own[0], predicted, y[0] - y[1:], own[1:] - own[0])
    return [found[i] for i in range(len(sequences))]


def _batch(
    model: Any, ids: Int[Tensor, "B T"], at: Tensor, plans: list[Plan], done: Callable[[Sequence[int], int], None],
    budget: int | None,
) -> tuple[Float[np.ndarray, "one_plus_edits n two"], np.ndarray]:  # fmt: skip
    """ln p of the next token and of the prediction at the n positions `at`, and the predictions [n]."""
    n, wanted = int(at.sum()), None

    def log_probs(stream: Tensor, _: dict[str, Any]) -> np.ndarray:
        nonlocal wanted
        h = stream[at]
        if wanted is None:  # the unedited model comes first
            wanted = torch.stack([ids[:, 1:][at], map_logits(h, model.head, _argmax).long()], 1)
        return map_logits(h, model.head, partial(chunk_log_probs, wanted)).cpu().numpy()

    values = measure_rows(model, ids[:, :-1], plans, log_probs, done=lambda members: done(members, n), budget=budget)
    if not np.isfinite(values).all():
        raise InputError(f"log-probabilities are not finite at {int((~np.isfinite(values)).any(2).sum())} positions")
    assert wanted is not None
    return values, wanted[:, 1].cpu().numpy()


def _argmax(logits: Tensor, rows: slice) -> Tensor:
    return logits.argmax(-1).double()
