"""Edits of whole residual streams: what a stream is replaced by, in which layers, and who sees the change.

A stream is read at three points of layer L, `blocks.L.hook_<stream>_pre`, `_mid` and `_post`: attention reads pre, the
FFN mid, the next layer (or the head) post. What an edit reaches depends on the point, because the stream goes on:

    replace_onwards   pre of layer L only: layer L reads it, and so does everything after, with what is written since.
                      A frozen token stream is never written, so it stays replaced up to the head.
    replace_in_layer  pre and mid of layer L; at post what was taken away is put back, as the layer carries it. Layer L
                      alone reads the change, and what it computes from it goes on. Hyper-connections carry through
                      H_res: also other streams lack the stream's share until then, and coefficients are those of the
                      changed streams.
    replace_everywhere  pre and mid of every layer and post of the last: nobody ever reads the stream itself.
    replace_for_head  post of the last layer: the final norm and the head alone.

Streams: "token", "context"; "s0", "s1", … of hyper-connections; "resid" of a model with one stream.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.models.hooks import Edit

Replacement = Callable[[str, Tensor], Tensor]
"""(hook name, the stream [B, T, D]) -> what it is replaced by, of the same shape."""


def zero(name: str, x: Tensor) -> Tensor:
    """x ← 0 (DST Table 4)."""
    return torch.zeros_like(x)


def constant(values: Mapping[str, Tensor]) -> Replacement:
    """x ← values[hook] [D], the same at every position: mean ablation."""

    def replacement(name: str, x: Tensor) -> Tensor:
        return _value(values, name, x.shape[-1:]).to(x).expand_as(x)

    return replacement


def sequence(values: Mapping[str, Tensor]) -> Replacement:
    """x_t ← values[hook]_t, rows of [T', D] with T' ≥ T, the same in every row of the batch: another text's stream."""

    def replacement(name: str, x: Tensor) -> Tensor:
        rows = _value(values, name, None)
        if rows.shape[0] < x.shape[1] or rows.shape[1:] != x.shape[2:]:
            raise InputError(f"{name}: replacement of shape {list(rows.shape)} for a stream {list(x.shape)}")
        return rows[: x.shape[1]].to(x).expand_as(x)

    return replacement


def replace_onwards(stream: str, replacement: Replacement, layer: int) -> dict[str, Edit]:
    """Replace the stream where it enters the layer, and let the model go on from there."""
    name = _hook(stream, layer, "pre")
    return {name: partial(_replace, name=name, stream=stream, replacement=replacement)}


def replace_for_head(stream: str, replacement: Replacement, n_layers: int) -> dict[str, Edit]:
    """Replace the stream after the last layer: only the final norm and the head read it."""
    name = _hook(stream, n_layers - 1, "post")
    return {name: partial(_replace, name=name, stream=stream, replacement=replacement)}


def replace_everywhere(stream: str, replacement: Replacement, n_layers: int) -> dict[str, Edit]:
    """Replace the stream wherever it is read."""
    names = [_hook(stream, layer, place) for layer in range(n_layers) for place in ("pre", "mid")]
    names.append(_hook(stream, n_layers - 1, "post"))
    return {name: partial(_replace, name=name, stream=stream, replacement=replacement) for name in names}


def replace_in_layer(stream: str, replacement: Replacement, layer: int) -> dict[str, Edit]:
    """Replace the stream for the readers of one layer; after it the stream is what it would be without that.

    The edits of one layer share what they took away, so they belong together, in one forward pass at a time.
    """
    kept = _Kept(stream, replacement)
    names = {place: _hook(stream, layer, place) for place in ("pre", "mid", "post")}
    edits: dict[str, Edit] = {names["pre"]: partial(kept.take, name=names["pre"], first=True)}
    if _index(stream) is not None:
        edits |= {f"blocks.{layer}.{branch}_hc.hook_res": kept.carry for branch in ("attn", "mlp")}
    return edits | {names["mid"]: partial(kept.take, name=names["mid"], first=False), names["post"]: kept.give_back}


class _Kept:
    """What one layer's edits took out of a stream, on its way to being put back."""

    def __init__(self, stream: str, replacement: Replacement) -> None:
        self.stream, self.replacement = stream, replacement
        self.taken: Tensor | None = None

    def take(self, x: Tensor, hook: Any, *, name: str, first: bool) -> Tensor:
        new = _replace(x, hook, name=name, stream=self.stream, replacement=self.replacement)
        self.taken = x - new if first else self._held() + (x - new)
        return new

    def carry(self, H: Tensor, hook: Any) -> Tensor:
        self.taken = H @ self._held()
        return H

    def give_back(self, x: Tensor, hook: Any) -> Tensor:
        held, self.taken = self._held(), None
        return x + held

    def _held(self) -> Tensor:
        if self.taken is None:
            raise InputError("a layer's stream is put back before it was replaced: run whole layers")
        return self.taken


def _index(stream: str) -> int | None:
    """1 of "s1", None of a named stream."""
    return int(stream[1:]) if stream[:1] == "s" and stream[1:].isdigit() else None


def _hook(stream: str, layer: int, place: str) -> str:
    return f"blocks.{layer}.hook_{stream if _index(stream) is None else 'streams'}_{place}"


def _replace(x: Tensor, hook: Any, *, name: str, stream: str, replacement: Replacement) -> Tensor:
    index = _index(stream)
    if index is None:
        return replacement(name, x)
    if index >= x.shape[2]:
        raise InputError(f"stream {stream} does not exist: the model has s0 to s{x.shape[2] - 1}")
    new = x.clone()
    new[:, :, index] = replacement(name, x[:, :, index])
    return new


def _value(values: Mapping[str, Tensor], name: str, shape: torch.Size | None) -> Tensor:
    if name not in values:
        raise InputError(f"no replacement was given for {name}")
    if shape is not None and values[name].shape != shape:
        raise InputError(f"{name}: a replacement of shape {list(values[name].shape)}, the stream has {list(shape)}")
    return values[name]
