"""Samples text: greedy, temperature, top-k, top-p, min-p, penalties; in batches, seeded, under edits."""

import math
from collections.abc import Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.models.hooks import Edits, edit, forward_at, keeps_positions, not_finite, pad
from streamscope.models.hooks.points import any_hooks

if TYPE_CHECKING:
    from streamscope.models.transformer import StreamTransformer


class KeyValues:
    """Keys, after positions, and values [B, C, G, K] of a text that grows to C tokens, for `Attention.memory`.

    `at` [B, P] are the positions of the tokens that the next pass reads; a pass replaces what stands there. Positions
    beyond a query's own are masked, so what padding left there does not matter.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.at: Tensor
        self.k: Tensor | None = None
        self.v: Tensor | None = None

    def add(self, k: Float[Tensor, "B P G K"], v: Float[Tensor, "B P G K"]) -> tuple[Tensor, Tensor]:
        if self.k is None or self.v is None:
            self.k, self.v = (x.new_zeros(len(x), self.length, *x.shape[2:]) for x in (k, v))
        rows = torch.arange(len(k), device=k.device)[:, None]
        self.k[rows, self.at], self.v[rows, self.at] = k, v
        return self.k, self.v


@torch.no_grad()
def generate(
    model: "StreamTransformer",
    prompts: str | Sequence[str] | Sequence[Sequence[int]] | Int[Tensor, "B T"],
    *,
    max_new_tokens: int = 50,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    suppress_tokens: Sequence[int] = (),
    seed: int = 0,
    edits: Edits | None = None,
    stop_at_eos: bool = True,
) -> list[list[int]]:
    """Continue each prompt (texts, or token ids) and return the ids of prompt and continuation.

    Temperature 0 is greedy. A repetition penalty r divides positive logits of tokens that occurred by r, and multiplies
    negative ones. A token less likely than `min_p` times the most likely one is not drawn, one of `suppress_tokens`
    never. `model.sampling` holds the options that a model's makers use.

    Keys and values of earlier tokens are kept, unless somebody edits or reads activations by position
    (`hooks.everywhere`) or the model has Canon layers: then every step runs the whole sequence.

    A sequence ends early before one of `model.eos_ids`, unless `stop_at_eos` is False. Prompt i draws from a generator
    seeded `seed + i`, so its text does not depend on other prompts. Raises `InputError` if prompt and continuation
    exceed the context, and for logits that are NaN or +∞.
    """
    good = 0 <= temperature < math.inf and (top_k is None or top_k >= 1) and (top_p is None or 0 < top_p <= 1)
    if not good or not 0 < repetition_penalty < math.inf or not 0 <= min_p <= 1 or max_new_tokens < 0:
        raise InputError(
            "sampling needs temperature >= 0, top_k >= 1, 0 < top_p <= 1, 0 <= min_p <= 1, repetition_penalty > 0 and "
            "max_new_tokens >= 0"
        )
    if beyond := [token for token in suppress_tokens if not 0 <= token < model.config.d_vocab]:
        raise InputError(f"suppress_tokens has {beyond[0]}, but token ids are 0 to {model.config.d_vocab - 1}")
    rows = _ids(model, prompts)
    longest, n_ctx = max(map(len, rows)) + max_new_tokens, model.config.n_ctx
    if longest > n_ctx:
        raise InputError(f"prompt and {max_new_tokens} new tokens are {longest} tokens, but the context has {n_ctx}")
    ends = model.eos_ids if stop_at_eos else ()
    generators = [torch.Generator().manual_seed(seed + i) for i in range(len(rows))]
    at_end = [False] * len(rows)
    memory = [KeyValues(longest) for _ in range(model.config.n_layers)] if can_keep(model, edits or {}) else None
    for _ in range(max_new_tokens):
        if all(at_end):
            break
        with edit(model, edits or {}):
            logits = _whole(model, rows) if memory is None else _next(model, rows, memory)
            if not bool(logits.logsumexp(-1).isfinite().all()):  # −∞ forbids a token
                raise not_finite(model, pad(rows).to(model.cfg.device), [])
        logits = _penalised(logits.float().cpu(), rows, repetition_penalty)
        logits = logits.index_fill(-1, torch.tensor(suppress_tokens, dtype=torch.int64), -torch.inf)
        chosen = _sample(logits, temperature, top_k, top_p, min_p, generators).tolist()
        for i, token in enumerate(chosen):
            at_end[i] = at_end[i] or token in ends
            if not at_end[i]:
                rows[i].append(token)
    return rows


def can_keep(model: "StreamTransformer", edits: Edits) -> bool:
    """Whether a step of `generate` may read only the new tokens: nobody else edits or reads, and no Canon layer mixes
    positions."""
    ours = hasattr(model, "segment") and not model.training and model.config.canon is None
    return ours and not any_hooks(model) and keeps_positions(model, edits)


def _whole(model: "StreamTransformer", rows: list[list[int]]) -> Tensor:
    """Logits [B, V] after each row, from a pass of the whole rows."""
    logits = forward_at(model, pad(rows).to(model.cfg.device), [[len(row) - 1] for row in rows])
    assert logits is not None
    return logits[:, 0]


def _next(model: "StreamTransformer", rows: list[list[int]], memory: list[KeyValues]) -> Tensor:
    """Logits [B, V] after each row, from a pass of its last token, or of all tokens if none are kept yet."""
    last = torch.tensor([len(row) - 1 for row in rows])[:, None]
    first = memory[0].k is None
    tokens = pad(rows) if first else torch.tensor([row[-1:] for row in rows])
    positions = (torch.arange(tokens.shape[1]).expand(len(rows), -1) if first else last).to(model.cfg.device)
    layers: list[Any] = [block.attn for block in model.blocks]
    tokens = tokens.to(model.cfg.device)
    model.check_tokens(tokens)
    try:
        for layer, cache in zip(layers, memory, strict=True):
            layer.memory[get_ident()], cache.at = cache, positions
        state = model.segment(model.embed_tokens(tokens, positions))
    finally:
        for layer in layers:
            layer.memory.pop(get_ident(), None)
    return model.logits(state, last.to(positions.device) if first else None)[:, 0]


def _penalised(logits: Tensor, rows: list[list[int]], penalty: float) -> Tensor:
    """Logits [B, V] after the repetition penalty (Keskar et al. 2019, CTRL)."""
    occurred = torch.zeros_like(logits, dtype=torch.bool)
    for i, row in enumerate(rows):
        occurred[i, row] = True
    return torch.where(occurred, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


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


def _ids(
    model: "StreamTransformer", prompts: str | Sequence[str] | Sequence[Sequence[int]] | Int[Tensor, "B T"]
) -> list[list[int]]:
    items: Any = prompts.tolist() if isinstance(prompts, Tensor) else prompts
    items = [items] if isinstance(items, str) else list(items)
    if not items:
        raise InputError("there is nothing to continue: give at least one prompt")
    if any(isinstance(p, int) for p in items):
        raise InputError("prompts are texts or lists of token ids: wrap a single list of ids in a list")
    rows = [model._text().encode(p) if isinstance(p, str) else [int(t) for t in p] for p in items]
    if not all(rows):
        raise InputError("a prompt without tokens cannot be continued; an empty text still has its BOS")
    return rows


def _sample(
    logits: Tensor, temperature: float, top_k: int | None, top_p: float | None, min_p: float,
    generators: list[torch.Generator],
) -> Tensor:  # fmt: skip
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
    p = logits.softmax(-1)
    logits = logits.masked_fill(p < min_p * p.amax(-1, keepdim=True), -torch.inf)
    draws = zip(logits.softmax(-1), generators, strict=True)
    return torch.cat([torch.multinomial(p, 1, generator=generator) for p, generator in draws])
