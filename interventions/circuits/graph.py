"""The graph of a model: senders write to the residual state, readers read it, an edge is what one reads of another.

    in_v(t) = Σ_u c_{u→v}(t) out_u(t),      c_{u→v}(t) = Σ_s pre_v[s] A_u[s]

The state has N streams. A_u[s] says how much of sender u is in stream s when v reads, and pre_v[s] how much of stream
s v reads. One stream: both are 1. Token and context stream: u writes to one of them, v reads one or both.
Hyper-connections: A_u starts as H_post of u's module (1 for the embedding), each later module makes it H_res A_u, and
pre_v is H_pre of v's module; all are numbers per token.

Senders: the embedding (token and position: `input`), every head's part of the attention update (`a3.h1`), every FFN
(`m3`), and output biases, which have no edges. The whole attention layer (`a3`) is one sender where its update is not a
sum over heads: with HDPL output projections, and with a norm after the branch (OLMo 2). Readers: queries of every head
(`a3.h1<q>`), keys and values of every key-value head (`a3.h1<k>`; `a3.kv1<k>` if query heads share it), gates that read
the normed input or the values (`a3.h1<g>`), every FFN (`m3`), every mixing module of hyper-connections (`x3.attn`,
`x3.mlp`; one coefficient per stream), and the unembedding (`logits`).

An FFN whose latents are named is several senders that add up to its update: `m3.17`, what latent 17 of its dictionary
writes, z_17 W_dec[17], and `m3.rest`, all that the named latents leave. Its reader `m3` stays one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.cli.user_code import latents_in
from streamscope.models.config import DualStream, Hdpl, Hyper, TokenFactor
from streamscope.models.dictionaries import Dictionary, read_dictionary
from streamscope.models.hooks import edited_at, hooked_at
from streamscope.models.transformer import StreamTransformer

Part = Literal["input", "bias", "head", "attn", "mlp", "q", "k", "v", "g", "mix", "logits"]
ATTENTION: tuple[Part, ...] = ("q", "k", "v", "g")
"""Readers of an attention layer, in the order of the graph."""


@dataclass(frozen=True)
class Node:
    """What writes to the residual state (part input, bias, head, attn or mlp) or reads it (the others, or mlp).

    `stage` is 2ℓ for attention of layer ℓ and 2ℓ + 1 for its FFN, −1 for the input and 2L for the unembedding."""

    name: str
    part: Part
    stage: int
    head: int = 0

    @property
    def layer(self) -> int:
        """Layer, from 0; −1 for the input, L for the unembedding."""
        return self.stage // 2


@dataclass(frozen=True)
class Latents:
    """Latents of a dictionary of what an FFN writes; a transcoder reads the FFN's input."""

    dictionary: Dictionary
    chosen: list[int]

    def parts(self, x: Float[Tensor, "B T D"], update: Float[Tensor, "B T D"]) -> Float[Tensor, "B senders T D"]:
        """What each latent writes, z_i W_dec[i], and the rest of the update of an FFN that reads x."""
        d = self.dictionary
        z = d.encode(x if d.hook != d.target else update)[..., self.chosen]
        parts = z.movedim(-1, 1)[..., None] * d.W_dec[self.chosen].to(z)[:, None]
        return torch.cat([parts, (update - parts.sum(1))[:, None]], 1)


@dataclass(frozen=True)
class Graph:
    """Senders and readers in order of computation, and who reads whom."""

    senders: tuple[Node, ...]
    readers: tuple[Node, ...]
    connected: np.ndarray
    """[senders, readers] whether there is an edge."""
    latents: Mapping[int, Latents] = field(default_factory=dict)
    """The latents that are senders, by layer."""

    @cached_property
    def edges(self) -> np.ndarray:
        """[edges, 2] indices of sender and reader, by reader."""
        reader, sender = np.nonzero(self.connected.T)
        return np.stack([sender, reader], 1)

    @cached_property
    def names(self) -> list[str]:
        """The edges' names, as in MIB's files: a1.h0->a3.h2<v>."""
        return [f"{self.senders[u].name}->{self.readers[v].name}" for u, v in self.edges]

    def matrix(self, values: Iterable[Any], fill: Any = 0) -> np.ndarray:
        """Values of edges as [senders, readers]."""
        values = np.asarray(list(values))
        out = np.full(self.connected.shape, fill, values.dtype)
        out[tuple(self.edges.T)] = values
        return out

    def read_at(self, stage: int) -> slice:
        """The readers of a stage, without its mixing module."""
        return self._slice(self.readers, stage)

    def mixing_at(self, stage: int) -> int | None:
        """The mixing module of a stage, if there is one."""
        return next((i for i, v in enumerate(self.readers) if v.stage == stage and v.part == "mix"), None)

    def written_at(self, stage: int) -> slice:
        return self._slice(self.senders, stage)

    def written_before(self, stage: int) -> slice:
        return slice(0, sum(u.stage < stage for u in self.senders))

    @staticmethod
    def _slice(nodes: Sequence[Node], stage: int) -> slice:
        indices = [i for i, node in enumerate(nodes) if node.stage == stage and node.part != "mix"]
        return slice(indices[0], indices[-1] + 1)

    def pruned(self, mask: np.ndarray) -> np.ndarray:
        """The kept edges [edges] that lie on a path of kept edges from the input to the unembedding. The others change
        nothing that the circuit computes: as in MIB, they are patched but counted. An edge into a mixing module changes
        what all later parts read."""
        M = self.matrix(mask, fill=False)
        mixes = [v.part == "mix" for v in self.readers]
        while True:
            reads, writes = np.zeros(len(M), bool), np.array([v.part in ("mix", "logits") for v in self.readers])
            for i, u in enumerate(self.senders):
                scaled = [m and v.stage <= u.stage for m, v in zip(mixes, self.readers, strict=True)]
                reads[i] = u.part == "input" or M[:, self.parts_of[i]].any() or M[:, scaled].any()
                writes[self.parts_of[i]] |= M[i].any()
            new = M & reads[:, None] & writes
            if (new == M).all():
                return np.asarray(new[tuple(self.edges.T)])
            M = new

    @cached_property
    def parts_of(self) -> list[list[int]]:
        """For every sender, the readers that its output is computed from."""
        return [
            [
                i for i, v in enumerate(self.readers)
                if v.stage == u.stage and v.part != "mix" and (u.part != "head" or self._reads_for(v, u.head))
            ] if u.part != "bias" else []
            for u in self.senders
        ]  # fmt: skip

    def _reads_for(self, v: Node, head: int) -> bool:
        if v.part in ("q", "g"):
            return v.head == head
        heads = sum(u.stage == v.stage and u.part == "head" for u in self.senders)
        groups = sum(w.stage == v.stage and w.part == v.part for w in self.readers)
        return v.head == head * groups // heads


def check_model(model: Any) -> None:
    """Raise `InputError` for a model that cannot be taken apart: not of our parts, or with hooks of yours."""
    if not isinstance(model, StreamTransformer):
        raise InputError(
            "circuits need a model of our own parts (a preset, or a Hugging Face family that `hf:` converts); "
            "this one is open in TransformerLens' bridge"
        )
    if names := (*edited_at(model), *hooked_at(model)):
        raise InputError(f"circuits run a model in parts, so hooks would act in some runs only: remove {names[0]}")
    a = model.config.attention
    if a.qk_norm is not None and a.qk_norm_over == "layer" and "b" in model.config.canon_widths():
        raise InputError("circuits cannot split queries that a Canon-B layer and a norm over all heads both mix")


def sends_by_head(model: Any) -> bool:
    """Whether the attention update is a sum over heads."""
    return not isinstance(model.config.attention.o, Hdpl) and model.config.norm_place == "before"


def latents_of(specs: Sequence[str], model: Any) -> dict[int, Latents]:
    """The latents of dictionaries FOLDER:17,20-29, by layer. Raises `InputError` as `read_dictionary` does, and for a
    dictionary of anything but the output of an FFN, or a second one of the same."""
    latents: dict[int, Latents] = {}
    for spec in specs:
        folder, chosen = latents_in(spec) or (spec, [])
        dictionary = read_dictionary(str(folder), model)
        layer = next((i for i in range(model.cfg.n_layers) if dictionary.target == f"blocks.{i}.hook_mlp_out"), None)
        if layer is None or dictionary.hook not in (dictionary.target, f"blocks.{layer}.hook_mlp_in"):
            raise InputError(
                f"{spec} is of {dictionary.target}: circuits take latents of blocks.L.hook_mlp_out, read there or from "
                "blocks.L.hook_mlp_in"
            )
        if layer in latents:
            raise InputError(f"{spec}: the FFN of layer {layer} is taken apart once; give its latents together")
        if max(chosen, default=0) >= (n := len(dictionary.b_enc)) or not chosen:
            raise InputError(f"{spec}: name some of its latents, 0 to {n - 1}, as {folder}:17 or {folder}:3,17-19")
        latents[layer] = Latents(dictionary.to(model.cfg.device), sorted(set(chosen)))
    return latents


def graph_of(model: Any, latents: Sequence[str] = ()) -> Graph:
    """The graph of a model, with `latents` FOLDER:17 as senders. Raises `InputError` as `check_model` and `latents_of`
    do."""
    check_model(model)
    by_layer = latents_of(latents, model)
    c, residual = model.config, model.config.residual
    L, H, G = c.n_layers, c.n_heads, c.kv_heads
    gate = c.attention.gate
    gated, by_value = gate is not None and gate.source != "query", gate is not None and gate.source == "value"
    senders, readers = [Node("input", "input", -1)], list[Node]()
    for layer in range(L):
        a, m = 2 * layer, 2 * layer + 1
        if isinstance(residual, Hyper):
            readers.append(Node(f"x{layer}.attn", "mix", a))
        for part in ATTENTION[: 4 if gated else 3]:
            n = G if part in ("k", "v") else H
            label = "kv" if n < H else "h"
            readers += [Node(f"a{layer}.{label}{h}<{part}>", part, a, h) for h in range(n)]
        if sends_by_head(model):
            senders += [Node(f"a{layer}.h{h}", "head", a, h) for h in range(H)]
            senders.append(Node(f"a{layer}.bias", "bias", a))
        else:
            senders.append(Node(f"a{layer}", "attn", a))
        if isinstance(residual, Hyper):
            readers.append(Node(f"x{layer}.mlp", "mix", m))
        readers.append(Node(f"m{layer}", "mlp", m))
        latent_parts = [*by_layer[layer].chosen, "rest"] if layer in by_layer else []
        parts = [f"m{layer}.{part}" for part in latent_parts] or [f"m{layer}"]
        senders += [Node(name, "mlp", m) for name in parts]
    readers.append(Node("logits", "logits", 2 * L))
    connected = np.array([[is_read(residual, u, v, by_value) for v in readers] for u in senders])
    return Graph(tuple(senders), tuple(readers), connected, by_layer)


def is_read(residual: Any, sender: Node, reader: Node, by_value: bool = False) -> bool:
    """Whether the reader comes after the sender and reads a stream that it writes to; gates `by_value` read as values
    do."""
    if sender.part == "bias" or sender.stage >= reader.stage - (
        reader.part == "mlp" and getattr(residual, "order", "") == "parallel"
    ):
        return False
    part = "v" if by_value and reader.part == "g" else reader.part
    return bool(write_vector(residual, sender.part) @ read_vector(residual, part))


def n_streams(residual: Any) -> int:
    """N, the number of streams of a topology."""
    return residual.n if isinstance(residual, Hyper) else max(1, len(residual.streams))


def write_vector(residual: Any, part: Part) -> np.ndarray:
    """[N] the streams that a sender writes to; with hyper-connections any."""
    if not isinstance(residual, DualStream):
        return np.ones(n_streams(residual))
    to_token = part == "input" or (part != "mlp" and isinstance(residual, TokenFactor))
    return np.eye(2)[0 if to_token else 1]


def read_vector(residual: Any, part: Part) -> np.ndarray:
    """[N] the streams that a reader reads; with hyper-connections any (their sum or mean at the unembedding)."""
    n = n_streams(residual)
    if isinstance(residual, DualStream) and part == "v" and residual.values == "token":
        return np.eye(2)[0]
    if isinstance(residual, Hyper) and residual.reduce == "mean":
        return np.full(n, 1 / n)
    return np.ones(n)
