"""The residual stream after every block, per prompt, for each stream and for the readout.

    states = stream_states(model, rows, pool="mean")
    states.values                    [prompts, layers, streams, D], float64
    states.streams                   ("resid",), ("token", "context", "resid"), ("s0", …, "s3", "resid")

"resid" is the input of the head at that point (`blocks.L.hook_resid_post`). A single stream has only "resid".
"""

from collections.abc import Sequence
from dataclasses import dataclass
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
CHUNK = 32
"""Number of prompts whose activations are in memory at once."""

MASSIVE = 5.0
"""A norm above this multiple of the median is a massive activation. In 20 texts, SmolLM2 has them at the first word and
the first " the": 7 to 11 times the median in layers 2 to 8. All other tokens stay below 4 times."""

Pool = Literal["mean", "last"]


@dataclass(frozen=True)
class States:
    """Pooled activations of prompts; `values` [prompts, layers, streams, D]."""

    streams: tuple[str, ...]
    values: np.ndarray
    left_out: int = 0
    """Number of positions with massive activations, which are left out of the means."""

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
    kinds = stream_hooks(model)
    parallel = tuple(f"s{i}" for i in range(model.config.residual.n)) if kinds == (PARALLEL,) else ()
    have = parallel or kinds or (RESID,)
    for stream in chosen:
        if stream not in have:
            raise unknown("stream", stream, list(have))
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

    def add(self, x: Tensor, delta: Float[Tensor, "B D"], position: Int[Tensor, " B"]) -> Tensor:
        """The activation with delta added at each prompt's position."""
        out = x.clone()
        self.of(out)[torch.arange(len(delta), device=x.device), position] += delta.to(x)
        return out


def places_of(model: Any, hooks: Sequence[str] = ()) -> list[Place]:
    """The streams after every layer, or those of named hooks. Raises `InputError` for other hooks."""
    streams = streams_of(model)
    kind = "streams" if streams[0] == "s0" else None
    names = match(model, hooks) if hooks else [
        f"blocks.{layer}.hook_{name}_post"
        for layer in range(model.cfg.n_layers) for name in ([kind] if kind else streams)
    ]  # fmt: skip
    places = list[Place]()
    for name in names:
        stream = name.rpartition(".")[2].removeprefix("hook_").rpartition("_")[0]
        if stream not in ((kind,) if kind else streams):
            kind_names = kind or " or ".join(streams)
            raise InputError(f"{name} is no stream that can be changed: give hooks as blocks.3.hook_{kind_names}_post")
        places += [
            Place(name, place_stream, int(name.split(".")[1])) for place_stream in (streams if kind else (stream,))
        ]
    return places


def last_hook(layer: int) -> str:
    """The sum of the streams after a layer, as the head reads it."""
    return f"blocks.{layer}.hook_resid_post"


def last_state(model: Any, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
    """The state after the last layer, before the final norm; with its derivatives where these are on."""
    if hasattr(model, "segment"):
        return model.readout(model.segment(model.embed_tokens(tokens), 0))
    name = last_hook(model.cfg.n_layers - 1)
    with capture(model, [name], grad=torch.is_grad_enabled()) as captures:
        model(tokens)
    return captures[name]


def stream_states(model: Any, rows: Sequence[Sequence[int]], pool: Pool = "mean", *, progress: Any = iter) -> States:
    """Run token ids (BOS first) and pool the streams after every block over positions, in float64.

    mean: over all positions except BOS, whose state no text can change, and those with massive activations (a norm of
    the readout above `MASSIVE` times the prompt's median in some layer), which would hide the others. last: the last
    position. Memory: a `CHUNK` of prompts and the result. Raises `InputError` for a row without a token after BOS, and
    for non-finite activations.
    """
    if not rows or min(map(len, rows)) < 2:
        raise InputError("every prompt needs a token after BOS")
    streams, layers = streams_of(model), model.cfg.n_layers
    kinds, names = (*stream_hooks(model), RESID), streams if streams == (RESID,) else (*streams, RESID)
    states: list[np.ndarray] = []
    left_out = 0
    for start in progress(range(0, len(rows), CHUNK)):
        chunk = [list(row) for row in rows[start : start + CHUNK]]
        hooks = tuple(f"blocks.{layer}.hook_{kind}_post" for kind in kinds for layer in range(layers))
        state_captures = run(model, Query(tokens=chunk, hooks=hooks)).hooks
        for i in range(len(chunk)):
            resid = torch.stack([state_captures[f"blocks.{layer}.hook_{RESID}_post"][i] for layer in range(layers)])
            keep = ordinary(resid)
            left_out += int((~keep).sum()) if pool == "mean" else 0
            per_layer = []
            for layer in range(layers):
                parts = [pooled(state_captures[f"blocks.{layer}.hook_{kind}_post"][i], pool, keep) for kind in kinds]
                per_layer.append(torch.cat([x.reshape(-1, x.shape[-1]) for x in parts]))
            states.append(torch.stack(per_layer).cpu().numpy())
    values = np.stack(states)
    if not np.isfinite(values).all():
        raise InputError("the activations are not finite: the weights of this run are damaged")
    return States(names, values, left_out)


def ordinary(resid: Float[Tensor, "L T D"]) -> Bool[Tensor, " T_minus_1"]:
    """Which positions after BOS have no massive activation in any layer; all, if none is left."""
    norm = resid[:, 1:].double().norm(dim=-1)
    keep = (norm <= MASSIVE * norm.median(1, keepdim=True).values).all(0)
    return keep | ~keep.any()


def pooled(x: Tensor, pool: Pool, keep: Bool[Tensor, " T_minus_1"]) -> Tensor:
    """One prompt's activation [T, …, D] pooled over the positions to `keep`, float64 [(N,) D]."""
    return x[1:][keep].double().mean(0) if pool == "mean" else x[-1].double()
