"""Log-probabilities of answers under many edits: row 0 is the unedited model, row 1 + e the e-th edit.

    found = answer_log_probs(model, tokens, positions, answers, [scale_heads([head], 0.0) for head in heads])
    found[1:] - found[:1]                        [edits, cases, answers], nats

A case is a prompt, the position whose next token is asked for, and the candidate ids of that token.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from jaxtyping import Float

from models.capture import Edits, Query, run
from models.errors import InputError
from models.transformer import StreamTransformer


@torch.no_grad()
def answer_log_probs(
    model: StreamTransformer,
    tokens: Sequence[Sequence[int]],
    positions: Sequence[int],
    answers: Sequence[Sequence[int]],
    sweep: Sequence[Edits],
    *,
    progress: Callable[[Iterable], Iterable] = iter,
) -> Float[np.ndarray, "one_plus_edits cases answers"]:
    """ln p(answer | prompt up to its position), in nats, for every case, unedited and under each edit of `sweep`.

    Edits must treat the rows of a batch alike. Raises `InputError` without cases, for lists of unequal length and for
    values that are not finite.
    """
    if not len(tokens) or not len(tokens) == len(positions) == len(answers) or len({len(a) for a in answers}) != 1:
        shapes = f"{len(tokens)} prompts, {len(positions)} positions, {len(answers)} rows of answers"
        raise InputError(f"{shapes}: give one of each per case, and equally many answers in every row")
    query = Query(tokens=list(tokens), logits=[[p] for p in positions])
    wanted = torch.as_tensor([list(a) for a in answers])
    found = []
    for edits in progress([{}, *sweep]):
        logits = run(model, query, edits).logits
        assert logits is not None
        log_p = torch.cat(logits).double().log_softmax(-1)
        found.append(log_p.gather(1, wanted.to(log_p.device)).cpu().numpy())
    if not np.isfinite(found).all():
        raise InputError("an edit gave log-probabilities that are not finite")
    return np.stack(found)
