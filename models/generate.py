"""Samples text: greedy, temperature, top-k, top-p; in batches, seeded, under edits."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.models.hooks import Edits, edit, not_finite, pad
from streamscope.models.hooks.capture_and_edit import forward_at

if TYPE_CHECKING:
    from streamscope.models.transformer import StreamTransformer


@torch.no_grad()
def generate(
    model: "StreamTransformer",
    prompts: str | Sequence[str] | Sequence[Sequence[int]],
    *,
    max_new_tokens: int = 50,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    edits: Edits | None = None,
    stop_at_eos: bool = True,
) -> list[list[int]]:
    """Continue each prompt (texts, or token ids) and return the ids of prompt and continuation.

    Temperature 0 is greedy. Every step runs the whole sequence without a cache, so that edits see all positions. A
    sequence ends early before one of `model.eos_ids`, unless `stop_at_eos` is False. Prompt i draws from a generator
    seeded `seed + i`, so its text does not depend on other prompts. Raises `InputError` if prompt and continuation
    exceed the context, and for logits that are NaN or +∞.
    """
    if max_new_tokens < 0:
        raise InputError(f"max_new_tokens must be at least 0, got {max_new_tokens}")
    good = 0 <= temperature < math.inf and (top_k is None or top_k >= 1) and (top_p is None or 0 < top_p <= 1)
    if not good:
        raise InputError("sampling needs temperature >= 0, top_k >= 1 and 0 < top_p <= 1")
    rows = _ids(model, prompts)
    longest = max(map(len, rows)) + max_new_tokens
    if longest > model.config.n_ctx:
        raise InputError(
            f"prompt and {max_new_tokens} new tokens are {longest} tokens, but the context has {model.config.n_ctx}"
        )
    ends = model.eos_ids if stop_at_eos else ()
    generators = [torch.Generator().manual_seed(seed + i) for i in range(len(rows))]
    done = [False] * len(rows)
    for _ in range(max_new_tokens):
        if all(done):
            break
        tokens = pad(rows).to(model.cfg.device)
        with edit(model, edits or {}):
            logits = forward_at(model, tokens, [[len(row) - 1] for row in rows])
            assert logits is not None
            if not bool(logits[:, 0].logsumexp(-1).isfinite().all()):  # −∞ forbids a token
                raise not_finite(model, tokens, [])
        chosen = _sample(logits[:, 0].float().cpu(), temperature, top_k, top_p, generators).tolist()
        for i, token in enumerate(chosen):
            if not done[i]:
                done[i] = token in ends
                if not done[i]:
                    rows[i].append(token)
    return rows


def check_room(model: "StreamTransformer", prompt: str, tokens: int) -> None:
    """Raise `InputError` if a prompt and this number of new tokens exceed the context."""
    room = model.config.n_ctx - len(model._text().encode(prompt))
    if not 0 < tokens <= room:
        raise InputError(f"--sample-tokens {tokens}: the context leaves room for 1 to {room}")


def continuations(
    model: "StreamTransformer", prompt: str, edits: Sequence[Edits], *, tokens: int, seed: int
) -> list[str]:
    """One sampled continuation per set of edits (temperature 0.8, same seed), including the prompt."""
    return [
        model._text().decode(generate(model, [prompt], max_new_tokens=tokens, temperature=0.8, seed=seed, edits=e)[0])
        for e in edits
    ]


def _ids(model: "StreamTransformer", prompts: str | Sequence[str] | Sequence[Sequence[int]]) -> list[list[int]]:
    """Convert prompts to lists of ids; texts get the tokenizer's BOS."""
    items: list[str | Sequence[int]] = [prompts] if isinstance(prompts, str) else list(prompts)
    if not items:
        raise InputError("there is nothing to continue: give at least one prompt")
    if any(isinstance(p, int) for p in items):
        raise InputError("prompts are texts or lists of token ids: wrap a single list of ids in a list")
    rows = [model._text().encode(p) if isinstance(p, str) else [int(t) for t in p] for p in items]
    if not all(rows):
        raise InputError("a prompt without tokens cannot be continued; an empty text still has its BOS")
    return rows


def _sample(
    logits: Tensor, temperature: float, top_k: int | None, top_p: float | None, generators: list[torch.Generator]
) -> Tensor:
    """Sample token ids [B] from logits [B, V]."""
    if temperature == 0:
        return logits.argmax(-1)
    logits = logits / temperature
    if top_k is not None and top_k < logits.shape[-1]:
        best = logits.argsort(dim=-1, descending=True, stable=True)[:, :top_k]  # k tokens, also of a tie
        logits = torch.full_like(logits, -torch.inf).scatter(1, best, logits.gather(1, best))
    if top_p is not None and top_p < 1:
        sorted_logits, order = logits.sort(descending=True)
        p = sorted_logits.softmax(-1)
        cut = p.cumsum(-1) - p >= top_p  # mass before a token already reaches top_p
        logits = logits.masked_fill(cut.scatter(1, order, cut), -torch.inf)
    draws = zip(logits.softmax(-1), generators, strict=True)
    return torch.cat([torch.multinomial(p, 1, generator=generator) for p, generator in draws])
