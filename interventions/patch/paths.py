"""Path patching: the effect of one sender through one reader, by the direct edge between them (Wang et al. 2022).

    edges = edges_of(model, parse_senders(["L1.H2"], model))
    found = patch_edges(model, pairs, edges, "denoise")

The sender is a head, a layer's attention or its FFN. In the patched run, only the reader's input gets

    δ = (the sender's output in the source run) − (its output in this run)        [T, D], at every position

through its own hook: `hook_attn_in` (Q and K of a layer), `hook_attn_v_in` (V), `hook_mlp_in` (the FFN), or the streams
after the last layer, which only the final norm and the head read. Frozen at this run's values: all components between
sender and reader and all other readers, because none of them sees δ; also the coefficients of hyper-connections
(H_post, H_res, H_pre) that carry δ to the reader. Not frozen: the reader with its norm, and everything after it.
Patching a whole sender combines all its paths and their interactions; an edge is one path.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.interventions.circuits.graph import Node, Part, is_read
from streamscope.interventions.patch.activations import Activations, Direction, PatchResults, add, sweep_pairs
from streamscope.interventions.patch.pairs import PatchPair
from streamscope.models.config import DualStream, FrozenToken, Hdpl, Hyper
from streamscope.models.head_spec import Scores, parse_heads
from streamscope.models.hooks import Edit

READERS: dict[str, Part] = {"attn_in": "q", "attn_v_in": "v", "mlp_in": "mlp"}
"""The reading inputs of a layer, and a part of the circuit's graph that reads the same."""


class Edge(NamedTuple):
    """An edge from a sender (part head, attn or mlp) to one reader of a layer, or to the head (part logits)."""

    sender: Node
    reader: Node

    @property
    def kind(self) -> str:
        """The reading input of a layer, or head."""
        return self.reader.name.split()[-1]


def parse_senders(specs: Sequence[str], model: Any, scores: Scores | None = None) -> list[Node]:
    """Senders from L2.H3 and the rest of the head grammar, L2.attn, L2.mlp. `InputError` for parts the model lacks."""
    senders: dict[Node, None] = {}
    for spec in specs:
        if match := re.fullmatch(r"L(\d+)\.?(attn|mlp)", spec):
            layer = int(match[1])
            part: Part = "mlp" if match[2] == "mlp" else "attn"
            if layer >= model.config.n_layers:
                raise InputError(f"{spec!r}: this model has layers 0 to {model.config.n_layers - 1}")
            senders[Node(f"L{layer} {part}", part, 2 * layer + (part == "mlp"))] = None
        else:
            for head in parse_heads([spec], model.config.n_layers, model.config.n_heads, scores):
                senders[Node(head.label, "head", 2 * head.layer, head.head)] = None
    return list(senders)


def hook_of(sender: Node) -> str:
    name = {"mlp": "hook_mlp_out", "attn": "hook_attn_out", "head": "attn.hook_z"}[sender.part]
    return f"blocks.{sender.layer}.{name}"


def edges_of(model: Any, senders: Sequence[Node]) -> list[Edge]:
    """Edges from every sender to every reader of every layer, even if it does not read the sender (`is_read`).
    Raises `InputError` for heads without an output of their own."""
    if any(sender.part == "head" for sender in senders):
        model.no_norm_after()
        if isinstance(model.config.attention.o, Hdpl):
            raise InputError("a head has no output of its own through an HDPL output projection; send L2.attn instead")
    n = model.config.n_layers
    places = [(layer, kind, part) for layer in range(n) for kind, part in READERS.items()]
    readers = [Node(f"L{layer} {kind}", part, 2 * layer + (part == "mlp")) for layer, kind, part in places]
    return [Edge(sender, reader) for sender in senders for reader in (*readers, Node("head", "logits", 2 * n))]


def patch_edges(
    model: Any, pairs: Sequence[PatchPair], edges: Sequence[Edge], direction: Direction = "denoise", *,
    progress: Callable[[Iterable], Iterable] = iter,
) -> PatchResults:  # fmt: skip
    """Every edge of every pair: one run per edge, with δ added to the reader's input only; NaN for what is no edge."""
    names, residual = list(dict.fromkeys(hook_of(edge.sender) for edge in edges)), model.config.residual
    if isinstance(residual, Hyper):
        for layer in range(min(edge.sender.layer for edge in edges), model.config.n_layers):
            names += [f"blocks.{layer}.{b}_hc.hook_{c}" for b in ("attn", "mlp") for c in ("pre", "res", "post")]

    def make(pair: PatchPair, recipient: Activations, source: Activations) -> list[dict[str, Edit] | None]:
        deltas = {edge.sender: _change(model, edge.sender, recipient, source) for edge in edges}
        return [
            _edits(model, edge, deltas[edge.sender], recipient) if is_read(residual, *edge) else None for edge in edges
        ]

    return sweep_pairs(model, pairs, names, make, len(edges), direction, progress=progress)


@torch.no_grad()
def _change(model: Any, sender: Node, recipient: Activations, source: Activations) -> Tensor:
    change = source[hook_of(sender)] - recipient[hook_of(sender)]
    if sender.part != "head":
        return change
    return change[:, sender.head] @ model.blocks[sender.layer].attn.W_O[sender.head].to(change)


def _edits(model: Any, edge: Edge, delta: Tensor, recipient: Activations) -> dict[str, Edit]:
    residual, stream = model.config.residual, "resid"
    if isinstance(residual, Hyper):
        delta, stream = _through_connections(edge, delta, recipient), "streams"
    elif isinstance(residual, DualStream):
        stream = "context" if edge.sender.part == "mlp" or isinstance(residual, FrozenToken) else "token"
    last = f"blocks.{model.config.n_layers - 1}.hook_{stream}_post"
    name = last if edge.kind == "head" else f"blocks.{edge.reader.layer}.hook_{edge.kind}"
    return {name: partial(add, delta=delta)}


def _through_connections(edge: Edge, delta: Tensor, recipient: Activations) -> Tensor:
    """δ through hyper-connections with this run's coefficients: [T, D] for a branch, [T, N, D] for the head."""

    def coefficient(stage: int, name: str) -> Tensor:
        return recipient[f"blocks.{stage // 2}.{'mlp' if stage % 2 else 'attn'}_hc.hook_{name}"]

    sender, reader = edge
    D = coefficient(sender.stage, "post")[..., None] * delta[:, None]
    for stage in range(sender.stage + 1, reader.stage):
        D = coefficient(stage, "res") @ D
    return D if edge.kind == "head" else (coefficient(reader.stage, "pre")[..., None] * D).sum(-2)
