"""What a task asks of a model, as data: pairs of prompts in batches, and a metric m of the logits.

m is large where the model does the task.

    logit-difference    ln Σ p(answers) − ln Σ p(foils) after the prompt
    log-odds            ln p(answers) − ln (1 − p(answers)): of one set against all other tokens
    kl                  −KL(clean run ‖ this run) after the prompt
    loss                −loss of the answer's tokens, all of them, in nats per token
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.interventions.circuits import Metric
from streamscope.interventions.patch.pairs import PatchPair
from streamscope.models.hooks import batches, pad


@dataclass(frozen=True)
class Batch:
    """Pairs of prompts, padded on the right. Ids of answers and foils are filled up with −1."""

    rows: list[int]
    """Places of the pairs in their list."""
    clean: Int[Tensor, "B T"]
    corrupt: Int[Tensor, "B T"]
    at: Int[Tensor, "B P"]
    """Positions whose logits count."""
    answers: Int[Tensor, "B a"]
    foils: Int[Tensor, "B f"]
    targets: Int[Tensor, "B P"]
    """With the metric loss, the answer's tokens; −1 where there are no more."""


def batches_of(
    pairs: Sequence[PatchPair], metric: Metric, tokens: int, device: str | torch.device = "cpu"
) -> Iterator[Batch]:
    """The pairs in batches of at most `tokens` tokens. Raises `InputError` for the metric loss where a pair has no
    continuation."""
    if metric == "loss" and not all(p.continuation for p in pairs):
        raise InputError("the metric loss needs answers as text: give a task with continuations, or another --metric")
    follow = [list(p.continuation if metric == "loss" else p.answers[:1]) for p in pairs]
    for rows in batches([len(p.clean) + len(f) - 1 for p, f in zip(pairs, follow, strict=True)], tokens):
        batch_pairs, answer_ids = [pairs[i] for i in rows], [follow[i] for i in rows]
        places = [[p.last + k for k in range(len(f))] for p, f in zip(batch_pairs, answer_ids, strict=True)]
        width = max(map(len, places))
        clean, corrupt = (
            pad([[*ids, *f[:-1]] for ids, f in zip(side, answer_ids, strict=True)]).to(device)
            for side in ([p.clean for p in batch_pairs], [p.corrupt for p in batch_pairs])
        )
        positions = torch.tensor([[*place, *place[-1:] * (width - len(place))] for place in places], device=device)
        token_ids = ([p.answers for p in batch_pairs], [p.foils for p in batch_pairs], answer_ids)
        answers, foils, targets = (pad(ids, -1).to(device) for ids in token_ids)
        yield Batch(rows, clean, corrupt, positions, answers, foils, targets)


def value(
    metric: Metric, logits: Float[Tensor, "*E B P V"], batch: Batch, clean: Float[Tensor, "B P V"] | None = None
) -> Float[Tensor, "*E B"]:
    """m of every pair; `clean` are the logits of the clean run, for kl."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    last = logits[..., 0, :]
    if metric == "logit-difference":
        return log_total(last, batch.answers) - log_total(last, batch.foils)
    if metric == "log-odds":
        inside = torch.zeros(last.shape[-2:], dtype=torch.bool, device=last.device)
        inside.scatter_(1, batch.answers.where(batch.answers >= 0, batch.answers[:, :1]), True)
        return log_total(last, batch.answers) - last.masked_fill(inside, -torch.inf).logsumexp(-1)
    if metric == "kl":
        assert clean is not None
        p, q = clean[..., 0, :].log_softmax(-1), last.log_softmax(-1)
        return -(p.exp() * (p - q)).sum(-1)
    real = batch.targets >= 0
    index = batch.targets.where(real, 0).expand(*logits.shape[:-1])[..., None]
    log_p = logits.log_softmax(-1).gather(-1, index)[..., 0]
    return (log_p * real).sum(-1) / real.sum(-1)


def log_total(logits: Float[Tensor, "*E B V"], ids: Int[Tensor, "B n"]) -> Float[Tensor, "*E B"]:
    """ln Σ exp of the logits at these ids; −1 counts for none."""
    index = ids.where(ids >= 0, 0).expand(*logits.shape[:-1], -1)
    return logits.gather(-1, index).masked_fill(ids < 0, -torch.inf).logsumexp(-1)
