"""Edits that replace whole residual streams, by layer and reader.

A stream is read at three points of layer L, `blocks.L.hook_<stream>_pre`, `_mid` and `_post`: attention reads pre, the
FFN mid, the next layer (or the head) post. The stream continues, so the reach of an edit depends on the point:

    replace_onwards   pre of layer L only: layer L and everything after it read the replacement plus later writes. A
                      frozen token stream is never written, so it stays replaced up to the head.
    replace_in_layer  pre and mid of layer L; at post the removed part is put back as the layer carries it. Only layer L
                      reads the change; its outputs stay. Hyper-connections carry through H_res: until post, other
                      streams lack the stream's share, too, and coefficients come from the changed streams.
    replace_everywhere  pre and mid of every layer and post of the last: nothing ever reads the stream itself.
    replace_for_head  post of the last layer: only the final norm and the head read the replacement.

Streams: "token", "context"; "s0", "s1", … of hyper-connections; "resid" for a single stream.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.models.hooks import Edit

Replacement = Callable[[str, Tensor], Tensor]
"""(hook name, the stream [B, T, D]) -> its replacement, of the same shape."""


def zero(name: str, x: Tensor) -> Tensor:
    """x ← 0 (DST Table 4)."""
    return torch.zeros_like(x)


def constant(values: Mapping[str, Tensor]) -> Replacement:
    """x ← values[hook] [D], the same at every position: mean ablation."""

    def replacement(name: str, x: Tensor) -> Tensor:
        return _value(values, name, x.shape[-1:]).to(x).expand_as(x)

    return replacement


def sequence(values: Mapping[str, Tensor]) -> Replacement:
    """x_t ← values[hook]_t from rows [T', D] with T' ≥ T, the same in every row of the batch: another text's stream."""

    def replacement(name: str, x: Tensor) -> Tensor:
        rows = _value(values, name, None)
        if rows.shape[0] < x.shape[1] or rows.shape[1:] != x.shape[2:]:
            raise InputError(f"{name}: the replacement has shape {list(rows.shape)}, the stream has {list(x.shape)}")
        return rows[: x.shape[1]].to(x).expand_as(x)

    return replacement


EVERYWHERE, HEAD = "everywhere", "head"


def replace_at(stream: str, replacement: Replacement, where: int | str, reach: str, n_layers: int) -> dict[str, Edit]:
    """The edits of a place: `HEAD`, `EVERYWHERE`, or a layer with the reach "layer" or "onwards"."""
    if where == EVERYWHERE:
        return replace_everywhere(stream, replacement, n_layers)
    if where == HEAD:
        return replace_for_head(stream, replacement, n_layers)
    return (replace_in_layer if reach == "layer" else replace_onwards)(stream, replacement, int(where))


def replace_onwards(stream: str, replacement: Replacement, layer: int) -> dict[str, Edit]:
    """Replace the stream where it enters the layer, for all readers from there on."""
    name = _hook(stream, layer, "pre")
    return {name: partial(_replace, name=name, stream=stream, replacement=replacement)}


def replace_for_head(stream: str, replacement: Replacement, n_layers: int) -> dict[str, Edit]:
    """Replace the stream after the last layer: only the final norm and the head read the replacement."""
    name = _hook(stream, n_layers - 1, "post")
    return {name: partial(_replace, name=name, stream=stream, replacement=replacement)}


def replace_everywhere(stream: str, replacement: Replacement, n_layers: int) -> dict[str, Edit]:
    """Replace the stream wherever it is read."""
    names = hook_names(stream, n_layers)
    return {name: partial(_replace, name=name, stream=stream, replacement=replacement) for name in names}


def replace_in_layer(stream: str, replacement: Replacement, layer: int) -> dict[str, Edit]:
    """Replace the stream for the readers of one layer; afterwards it is what it would have been.

    The edits of a layer share state, so use them together, in one forward pass at a time.
    """
    removed = _RemovedPart(stream, replacement)
    names = {place: _hook(stream, layer, place) for place in ("pre", "mid", "post")}
    edits: dict[str, Edit] = {names["pre"]: partial(removed.take, name=names["pre"], first=True)}
    if _index(stream) is not None:
        edits |= {f"blocks.{layer}.{branch}_hc.hook_res": removed.carry for branch in ("attn", "mlp")}
    return edits | {
        names["mid"]: partial(removed.take, name=names["mid"], first=False),
        names["post"]: removed.put_back,
    }


class _RemovedPart:
    """The part of a stream that one layer's edits removed, carried until it is put back."""

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

    def put_back(self, x: Tensor, hook: Any) -> Tensor:
        part, self.taken = self._held(), None
        return x + part

    def _held(self) -> Tensor:
        if self.taken is None:
            raise InputError("the stream of a layer was put back before it was replaced: run whole layers")
        return self.taken


def hook_names(stream: str, n_layers: int) -> tuple[str, ...]:
    """Hooks where a stream is read: pre and mid of every layer, post of the last."""
    names = [_hook(stream, layer, place) for layer in range(n_layers) for place in ("pre", "mid")]
    return (*names, _hook(stream, n_layers - 1, "post"))


def _index(stream: str) -> int | None:
    """1 for "s1", None for a named stream."""
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
        raise InputError(f"{name}: the replacement has shape {list(values[name].shape)}, the stream has {list(shape)}")
    return values[name]
