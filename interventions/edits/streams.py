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

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from streamscope.interventions.edits import stream_number
from streamscope.models.hooks import Edit

Replacement = Callable[[str, Tensor], Tensor]
"""(hook name, the stream [B, T, D]) -> its replacement, of the same shape."""


def zero(name: str, x: Tensor) -> Tensor:
    """x ← 0 (DST Table 4)."""
    return torch.zeros_like(x)


def constant(values: Mapping[str, Tensor]) -> Replacement:
    """x ← values[hook] [D], the same at every position: mean ablation."""
    return lambda name, x: values[name].to(x).expand_as(x)


def sequence(values: Mapping[str, Tensor]) -> Replacement:
    """x_t ← values[hook]_t from rows [T', D] with T' ≥ T, the same in every row of the batch: another text's stream."""
    return lambda name, x: values[name][: x.shape[1]].to(x).expand_as(x)


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
    return _edits(stream, replacement, [_hook(stream, layer, "pre")])


def replace_for_head(stream: str, replacement: Replacement, n_layers: int) -> dict[str, Edit]:
    """Replace the stream after the last layer: only the final norm and the head read the replacement."""
    return _edits(stream, replacement, [_hook(stream, n_layers - 1, "post")])


def replace_everywhere(stream: str, replacement: Replacement, n_layers: int) -> dict[str, Edit]:
    """Replace the stream wherever it is read."""
    return _edits(stream, replacement, hook_names(stream, n_layers))


def replace_in_layer(stream: str, replacement: Replacement, layer: int) -> dict[str, Edit]:
    """Replace the stream for the readers of one layer; afterwards it is what it would have been. The edits of a layer
    share state, so use them together, in one forward pass at a time."""
    removed: dict[str, Tensor] = {}  # the part that is put back

    def take(x: Tensor, hook: Any, *, carried: bool) -> Tensor:
        new = _replace(x, hook, stream=stream, replacement=replacement)
        removed["part"] = removed["part"] + (x - new) if carried else x - new
        return new

    def carry(H: Tensor, hook: Any) -> Tensor:
        removed["part"] = H @ removed["part"]
        return H

    pre, mid, post = (_hook(stream, layer, place) for place in ("pre", "mid", "post"))
    edits: dict[str, Edit] = {pre: partial(take, carried=False)}
    if stream_number(stream) is not None:
        edits |= {f"blocks.{layer}.{branch}_hc.hook_res": carry for branch in ("attn", "mlp")}
    return edits | {mid: partial(take, carried=True), post: lambda x, hook: x + removed.pop("part")}


def hook_names(stream: str, n_layers: int) -> tuple[str, ...]:
    """Hooks where a stream is read: pre and mid of every layer, post of the last."""
    names = [_hook(stream, layer, place) for layer in range(n_layers) for place in ("pre", "mid")]
    return (*names, _hook(stream, n_layers - 1, "post"))


def _hook(stream: str, layer: int, place: str) -> str:
    return f"blocks.{layer}.hook_{stream if stream_number(stream) is None else 'streams'}_{place}"


def _edits(stream: str, replacement: Replacement, names: Iterable[str]) -> dict[str, Edit]:
    return dict.fromkeys(names, partial(_replace, stream=stream, replacement=replacement))


def _replace(x: Tensor, hook: Any, *, stream: str, replacement: Replacement) -> Tensor:
    index = stream_number(stream)
    if index is None:
        return replacement(hook.name, x)
    new = x.clone()
    new[:, :, index] = replacement(hook.name, x[:, :, index])
    return new
