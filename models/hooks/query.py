"""Run many prompts in few batches and return the requested activations and logits of each.

captures = run(model, Query(tokens=prompts, hooks=("blocks.*.attn.hook_pattern",), logits=positions))
captures.hooks["blocks.3.attn.hook_pattern"][i]              [H, T, T] of prompt i, without padding
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.models.hooks.capture_and_edit import Edits, capture, edit, is_finite, match, not_finite, resolve
from streamscope.models.hooks.table import row_of


@dataclass(frozen=True, kw_only=True)
class Query:
    """A request to a model: prompts, activations, logits. Positions count from 0 (BOS).

    `run` returns `hooks[name][i]` for prompt i without a batch axis ([H, T, T] for a pattern); names are in the model's
    order.
    """

    tokens: Sequence[Sequence[int]] | Tensor
    """Token ids of each prompt, not padded."""
    hooks: tuple[str, ...] = ()
    """Names of the activations to return, or patterns with *: `blocks.*.attn.hook_z`. A name that matches nothing
    raises `InputError`."""
    positions: Sequence[Sequence[int]] | None = None
    """Positions to keep, per prompt (the query axis of patterns); None: all."""
    logits: Sequence[Sequence[int]] | None = None
    """Positions whose logits are wanted, per prompt; None: no logits."""

    def __post_init__(self) -> None:
        for name in ("tokens", "positions", "logits"):  # tensors and lists of tensors are allowed
            rows = getattr(self, name)
            if rows is not None:
                plain = [row.tolist() if isinstance(row, Tensor) else list(row) for row in rows]
                object.__setattr__(self, name, plain)
        if not self.tokens or not all(self.tokens):
            raise InputError("a query needs at least one prompt, and every prompt at least one token")
        for name in ("positions", "logits"):
            rows = getattr(self, name)
            if rows is None:
                continue
            if len(rows) != len(self.tokens):
                raise InputError(f"{name} are given for {len(rows)} prompts, but there are {len(self.tokens)} prompts")
            for i, (row, ids) in enumerate(zip(rows, self.tokens, strict=True)):
                if any(not 0 <= p < len(ids) for p in row):
                    raise InputError(f"{name} {list(row)} of prompt {i} lie outside its {len(ids)} tokens")


@dataclass(frozen=True)
class Captures:
    """The answer to a query, per prompt in its order: `hooks[name][i]` without batch axis, `logits[i]` [P, V]."""

    hooks: dict[str, list[Tensor]]
    logits: list[Tensor] | None


def time_axes(name: str, ndim: int) -> tuple[int, ...]:
    """The position axes of an activation without its batch axis, the query axis first."""
    row = row_of(name)
    letters = row.shape.split(" | ")[0].split()[1:] if row is not None else ["T", *"?" * (ndim - 1)]
    return tuple(i for i, letter in enumerate(letters) if letter == "T")


@torch.no_grad()
def run(model: Any, query: Query, edits: Edits | None = None, *, batch_tokens: int = 8192) -> Captures:
    """Run the prompts of `query` in few length-sorted batches, under `edits`, and return the requested values.

    Works on our models and on a `TransformerBridge`. The values of a prompt do not depend on its batch. An edit sees
    padded batches in sorted order, so it must treat all rows alike. Raises `InputError` in training mode and for values
    that are not finite.
    """
    if model.training:
        raise InputError("the model is in training mode, where dropout is on: call model.eval() first")
    names = match(model, query.hooks) if query.hooks else []
    kept: dict[str, list[Any]] = {name: [None] * len(query.tokens) for name in names}
    logits: list[Any] = [None] * len(query.tokens)
    for rows in batches([len(t) for t in query.tokens], batch_tokens):
        tokens = pad([list(query.tokens[i]) for i in rows]).to(model.cfg.device)
        with edit(model, edits or {}), capture(model, names) as captured:
            out = forward_at(model, tokens, [query.logits[i] for i in rows] if query.logits is not None else None)
        if not all(is_finite(x, name) for name, x in (*captured.items(), *([("", out)] if out is not None else []))):
            raise not_finite(model, tokens, resolve(model, edits or {}))
        for b, i in enumerate(rows):
            n = len(query.tokens[i])
            for name in names:
                kept[name][i] = crop(name, captured[name][b], n, query.positions[i] if query.positions else None)
            if out is not None and query.logits is not None:
                logits[i] = out[b][: len(query.logits[i])].clone()
    return Captures(kept, logits if query.logits is not None else None)


def pad(prompts: Sequence[Sequence[int]], fill: int = 0) -> Tensor:
    """Pad on the right to tokens [B, T]; causal attention hides the padding from every real position."""
    tokens = torch.full((len(prompts), max(map(len, prompts))), fill)
    for i, ids in enumerate(prompts):
        tokens[i, : len(ids)] = torch.as_tensor(ids)
    return tokens


def batches(lengths: list[int], budget: int) -> Iterator[list[int]]:
    """Indices in batches of similar length; the padded size is at most `budget` tokens, or one prompt."""
    rows: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if rows and lengths[i] * (len(rows) + 1) > budget:
            yield rows
            rows = []
        rows.append(i)
    yield rows


def forward_at(model: Any, tokens: Tensor, at: Sequence[Sequence[int]] | None) -> Tensor | None:
    """Logits [B, P, V] at padded position lists, or None; only our models skip the other positions."""
    ours = hasattr(model, "segment")
    if at is None:
        model(tokens, return_type=None) if ours else model(tokens)
        return None
    where = pad([row or [0] for row in at]).to(tokens.device)
    if ours:
        return model(tokens, logits_at=where)
    full = model(tokens)
    return full.gather(1, where[..., None].expand(-1, -1, full.shape[-1]))


def crop(name: str, x: Tensor, n: int, positions: Sequence[int] | None) -> Tensor:
    """One prompt's activation without padding, at the wanted positions."""
    axes = time_axes(name, x.ndim)
    for axis in axes:
        x = x.narrow(axis, 0, n)
    if positions is not None and axes:
        x = x.index_select(axes[0], torch.as_tensor(positions, device=x.device, dtype=torch.long))
    return x.clone()
