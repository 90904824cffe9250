"""The residual stream after every block, per prompt, for each stream and for the readout.

    stream_states(model, rows).streams     ("resid",), ("token", "context", "resid"), ("s0", …, "s3", "resid")

"resid" is the input of the head at that point (`blocks.L.hook_resid_post`).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from streamscope.cli.errors import InputError, unknown
from streamscope.models.hooks import Query, capture, match, run

NAMED = ("token", "context")
PARALLEL = "streams"
RESID = "resid"
CHUNK = 32  # prompts whose activations are in memory at once

MASSIVE = 5.0
"""A norm above this multiple of the median is a massive activation. In 20 texts, SmolLM2 has them at the first word and
the first " the": 7 to 11 times the median in layers 2 to 8. All other tokens stay below 4 times."""

Pool = Literal["mean", "last"]


@dataclass(frozen=True)
class States:
    """Pooled activations of prompts, `values` [prompts, layers, streams, D], and how many positions with massive
    activations are left out of the means."""

    streams: tuple[str, ...]
    values: np.ndarray
    left_out: int = 0

    @property
    def parallel(self) -> tuple[str, ...]:
        """The streams without the readout; empty with a single stream."""
        return self.streams[:-1]

    def of(self, stream: str) -> np.ndarray:
        """[prompts, layers, D] of a stream; "joint" is [prompts, layers, N·D], the streams concatenated."""
        if stream == "joint":
            states = self.values[:, :, : len(self.parallel)]
            return states.reshape(*states.shape[:2], -1)
        return self.values[:, :, self.streams.index(stream)]

    @property
    def names(self) -> tuple[str, ...]:
        """All streams that `of` accepts: the parallel ones, joint if there are any, and resid."""
        return (*self.parallel, "joint", RESID) if self.parallel else (RESID,)


def stream_hooks(model: Any) -> tuple[str, ...]:
    """The streams of a model by its hooks: ("token", "context"), ("streams",), or () for a single stream."""
    return tuple(name for name in (*NAMED, PARALLEL) if f"blocks.0.hook_{name}_post" in model.hook_dict)


def streams_of(model: Any, chosen: Sequence[str] = ()) -> tuple[str, ...]:
    """The parallel streams of a model by name, or its single one: `chosen` (checked), or all."""
    have = stream_hooks(model) or (RESID,)
    if have == (PARALLEL,):
        have = tuple(f"s{i}" for i in range(model.config.residual.n))
    if strange := [stream for stream in chosen if stream not in have]:
        raise unknown("stream", strange[0], list(have))
    return tuple(dict.fromkeys(chosen)) or have


@dataclass(frozen=True)
class Place:
    """One stream at one hook."""

    hook: str
    stream: str
    layer: int

    @property
    def name(self) -> str:
        """The hook and, of parallel streams, the stream: `blocks.3.hook_streams_post:s0`."""
        return self.hook if self.part is None else f"{self.hook}:{self.stream}"

    @property
    def part(self) -> int | None:
        """The number of a parallel stream."""
        return int(self.stream[1:]) if self.stream[1:].isdigit() else None

    def of(self, x: Tensor) -> Tensor:
        """The stream's part of a hook's activation."""
        return x if self.part is None else x[..., self.part, :]

    def put(self, x: Tensor, index: Any, states: Float[Tensor, "*N D"]) -> Tensor:
        """A hook's activation with these states at some positions [B, T] of the stream."""
        out = x.clone()
        self.of(out)[index] = states.to(out)
        return out


def place_at(stream: str, layer: int, point: Literal["pre", "mid", "post"] = "post") -> Place:
    """A stream where it enters attention (pre) or the FFN (mid) of a layer, or after it."""
    return Place(f"blocks.{layer}.hook_{PARALLEL if stream[1:].isdigit() else stream}_{point}", stream, layer)


def places_of(model: Any, hooks: Sequence[str] = ()) -> list[Place]:
    """The streams after every layer, or at the given hooks. A pattern such as blocks.3.* stands for the streams among
    the hooks that it matches. Raises `InputError` for the name of a hook without a stream, or if no hook has one."""
    streams, kinds, places = streams_of(model), stream_hooks(model) or (RESID,), list[Place]()
    default = [f"blocks.{layer}.hook_{kind}_post" for layer in range(model.cfg.n_layers) for kind in kinds]
    examples = " or ".join(default[: len(kinds)])
    for name in match(model, hooks) if hooks else default:
        kind = name.rpartition(".")[2].removeprefix("hook_").rpartition("_")[0]
        if kind in kinds:
            of_hook = streams if kind == PARALLEL else (kind,)
            places += [Place(name, stream, int(name.split(".")[1])) for stream in of_hook]
        elif name in hooks:
            raise InputError(f"{name} is no stream that can be changed: give hooks as {examples}")
    if not places:
        raise InputError(f"{' '.join(hooks)}: no stream that can be changed; give hooks as {examples}")
    return places


def last_state(model: Any, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
    """The state after the last layer, before the final norm; with its derivatives where these are on."""
    if hasattr(model, "segment"):
        return model.readout(model.segment(model.embed_tokens(tokens), 0))
    name = f"blocks.{model.cfg.n_layers - 1}.hook_resid_post"
    with capture(model, [name], grad=torch.is_grad_enabled()) as captures:
        model(tokens)
    return captures[name]


@torch.no_grad()
def batch_states(
    model: Any, tokens: Int[Tensor, "B T"], places: Collection[Place]
) -> tuple[dict[Place, Float[Tensor, "B T D"]], Float[Tensor, "B T D"]]:
    """The state at every place and position of a batch, and that after the last layer."""
    with capture(model, list({place.hook for place in places})) as captures:
        last = last_state(model, tokens)
    return {place: place.of(captures[place.hook]) for place in places}, last


def stream_states(model: Any, rows: Sequence[Sequence[int]], pool: Pool = "mean", *, progress: Any = iter) -> States:
    """Run token ids (BOS first) and pool the streams after every block over positions, in float64.

    mean: over all positions except BOS, whose state no text can change, and those with massive activations (a norm of
    the readout above `MASSIVE` times the prompt's median in some layer), which would hide the others. last: the last
    position. Memory: a `CHUNK` of prompts and the result. Raises `InputError` for a row without a token after BOS.
    """
    if not rows or min(map(len, rows)) < 2:
        raise InputError("every prompt needs a token after BOS")
    streams = streams_of(model)
    kinds, layers = (*stream_hooks(model), RESID), range(model.cfg.n_layers)
    hooks = [[f"blocks.{layer}.hook_{kind}_post" for layer in layers] for kind in kinds]
    values, left_out = list[np.ndarray](), 0
    for start in progress(range(0, len(rows), CHUNK)):
        chunk = rows[start : start + CHUNK]
        captures = run(model, Query(tokens=chunk, hooks=tuple(chain.from_iterable(hooks)))).hooks
        for i in range(len(chunk)):
            of_kinds = [torch.stack([captures[name][i] for name in names]) for names in hooks]
            keep = ordinary(of_kinds[-1])
            left_out += int((~keep).sum()) if pool == "mean" else 0
            # [layers, T, streams, D]
            x = torch.cat([x.reshape(*x.shape[:2], -1, x.shape[-1]) for x in of_kinds], 2).double()
            values.append((x[:, 1:][:, keep].mean(1) if pool == "mean" else x[:, -1]).cpu().numpy())
    return States(streams if streams == (RESID,) else (*streams, RESID), np.stack(values), left_out)


def ordinary(resid: Float[Tensor, "L T D"]) -> Bool[Tensor, " T_minus_1"]:
    """Which positions after BOS have no massive activation in any layer; all, if none is left."""
    norm = resid[:, 1:].double().norm(dim=-1)
    keep = (norm <= MASSIVE * norm.median(1, keepdim=True).values).all(0)
    return keep | ~keep.any()
