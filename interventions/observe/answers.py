"""Log-probabilities of answers under many edits: row 0 is the unedited model, row 1 + e the e-th edit.

    found = answer_log_probs(model, tokens, positions, answers, [scale_heads([head], 0.0) for head in heads])
    found[1:] - found[:1]                        [edits, cases, answers], nats

A case is a prompt, the position whose next token is asked for, and the candidate ids of that token. Edits share the
passes of our models (`models.sweep`), and only the answers' positions go through the last layer and the head.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.instruments.prompts.tasks import Task
from streamscope.interventions.observe import NAMES, Observed
from streamscope.models.hooks import Edits, Query, batches, pad, run
from streamscope.models.readout import log_probs_at, map_logits
from streamscope.models.sweep.batched_sweep import Trajectories
from streamscope.models.sweep.stages import Plan

BATCH_TOKENS = 8192
"""Padded size of a batch of prompts, as in `models.hooks.run`."""

Progress = Callable[[Iterable], Iterable]


@torch.no_grad()
def answer_log_probs(
    model: Any,
    tokens: Sequence[Sequence[int]],
    positions: Sequence[int],
    answers: Sequence[Sequence[int]],
    sweep: Sequence[Edits],
    *,
    progress: Progress = iter,
    budget: int | None = None,
) -> Float[np.ndarray, "one_plus_edits cases answers"]:
    """ln p(answer | prompt up to its position), in nats, for every case, unedited and under each edit of `sweep`.

    An edit sees the batches of `models.hooks.run` and must treat their rows alike; `budget` is the number of tokens
    that run at once. A TransformerLens bridge works as well, one run per edit. Raises `InputError` without cases, for
    lists of unequal length, ids and positions that do not exist, values that are not finite, and as `run` does.
    """
    if not len(tokens) or not len(tokens) == len(positions) == len(answers) or len({len(a) for a in answers}) != 1:
        shapes = f"{len(tokens)} prompts, {len(positions)} positions, {len(answers)} rows of answers"
        raise InputError(f"{shapes}: give one of each per case, and equally many answers in every row")
    query = Query(tokens=list(tokens), logits=[[p] for p in positions])
    wanted = torch.as_tensor([list(a) for a in answers])
    if wanted.numel() and not 0 <= int(wanted.min()) <= int(wanted.max()) < model.cfg.d_vocab:
        raise InputError(
            f"answers go from {int(wanted.min())} to {int(wanted.max())}: ids are 0 to {model.cfg.d_vocab - 1}"
        )
    found = (_shared if hasattr(model, "segment") else _one_by_one)(model, query, wanted, sweep, progress, budget)
    if not np.isfinite(found).all():
        raise InputError("an edit gave log-probabilities that are not finite")
    return found


def _one_by_one(
    model: Any, query: Query, wanted: Tensor, sweep: Sequence[Edits], progress: Progress, budget: int | None
) -> np.ndarray:
    """A whole run per edit, for models that do not come in segments."""
    found = []
    for edits in progress([{}, *sweep]):
        logits = run(model, query, edits, batch_tokens=BATCH_TOKENS).logits
        assert logits is not None
        found.append(log_probs_at(torch.cat(logits), wanted.to(model.cfg.device)).cpu().numpy())
    return np.stack(found)


def _shared(
    model: Any, query: Query, wanted: Tensor, sweep: Sequence[Edits], progress: Progress, budget: int | None
) -> np.ndarray:
    """All edits from shared passes, batch by batch."""
    assert query.logits is not None
    plans = [Plan(model, edits) for edits in [{}, *sweep]]
    found = np.zeros((len(plans), *wanted.shape))
    prompts = list(batches([len(t) for t in query.tokens], BATCH_TOKENS))
    done = ticks(progress, len(plans) * len(prompts))
    for rows in prompts:
        at = torch.as_tensor([list(query.logits[i]) for i in rows])
        batch = pad([list(query.tokens[i]) for i in rows]).to(model.cfg.device)
        order, streams = [], []
        for arrived in Trajectories(model, batch, plans, at=at, budget=budget):
            assert arrived.h is not None
            order += arrived.edits
            streams.append(arrived.h[:, :, 0])
            done(sum(map(len, arrived.edits)))
        h, answers = torch.cat(streams).flatten(0, 1), wanted[rows].repeat(len(order), 1).to(model.cfg.device)
        log_p = map_logits(h, model.head, partial(chunk_log_probs, answers))
        for edits, values in zip(order, log_p.unflatten(0, (len(order), -1)).cpu().numpy(), strict=True):
            found[np.ix_(np.array(edits), np.array(rows))] = values
    done(0)
    return found


def chunk_log_probs(answers: Tensor, logits: Tensor, rows: slice) -> Tensor:
    """ln softmax(logits) at the answers of these rows, for `models.readout.map_logits`."""
    return log_probs_at(logits, answers[rows].to(logits.device))


def ticks(progress: Progress, total: int) -> Callable[[int], None]:
    """A function that moves a progress bar of `total` steps on by n; called with 0 at the end it closes the bar."""
    bar = iter(progress(range(total)))

    def done(n: int) -> None:
        for _ in range(n) if n else bar:
            next(bar, None)

    return done


def observe_task(
    model: Any, task: Task, sweep: Sequence[Edits], *, progress: Callable[[Iterable], Iterable] = iter
) -> dict[str, Observed]:
    """`probability` and `log_odds` of every case of a task, unedited and under every edit."""
    reads = task.reads
    log_p = answer_log_probs(model, reads.tokens, reads.positions, reads.ids, sweep, progress=progress)
    cases = task.cases[list(NAMES)]
    return {m: Observed(m, cases, ("all",), v[0][None], v[1:, None]) for m, v in task.scores(log_p).items()}
