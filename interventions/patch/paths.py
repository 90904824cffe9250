"""Path patching: the effect of one sender through one reader, by the direct edge between them (Wang et al. 2022).

    edges = edges_of(model, [Sender(1, 2)])
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
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.interventions.patch.activations import Activations, Direction, PatchResults, add, sweep_pairs
from streamscope.interventions.patch.pairs import PatchPair
from streamscope.models.config import DualStream, FrozenToken, Hdpl, Hyper
from streamscope.models.head_spec import Scores, parse_heads
from streamscope.models.hooks import Edit

Reader = Literal["attn_in", "attn_v_in", "mlp_in", "head"]
READERS: tuple[Reader, ...] = ("attn_in", "attn_v_in", "mlp_in")


@dataclass(frozen=True, order=True)
class Sender:
    """A head, a layer's attention (head None) or its FFN (`ffn`)."""

    layer: int
    head: int | None = None
    ffn: bool = False

    @property
    def label(self) -> str:
        return f"L{self.layer}" + (" mlp" if self.ffn else " attn" if self.head is None else f".H{self.head}")

    @property
    def hook(self) -> str:
        name = "hook_mlp_out" if self.ffn else "hook_attn_out" if self.head is None else "attn.hook_z"
        return f"blocks.{self.layer}.{name}"


@dataclass(frozen=True)
class Edge:
    """An edge from a sender to one reader of a layer, or to the head (layer = number of layers)."""

    sender: Sender
    reader: Reader
    layer: int

    @property
    def label(self) -> str:
        return "head" if self.reader == "head" else f"L{self.layer} {self.reader}"


def parse_senders(specs: Sequence[str], model: Any, scores: Scores | None = None) -> list[Sender]:
    """Senders from L2.H3 and the rest of the head grammar, L2.attn, L2.mlp. `InputError` for parts the model lacks."""
    senders: dict[Sender, None] = {}
    for spec in specs:
        if match := re.fullmatch(r"L(\d+)\.?(attn|mlp)", spec):
            layer = int(match[1])
            if layer >= model.config.n_layers:
                raise InputError(f"{spec!r}: this model has layers 0 to {model.config.n_layers - 1}")
            senders[Sender(layer, ffn=match[2] == "mlp")] = None
        else:
            for head in parse_heads([spec], model.config.n_layers, model.config.n_heads, scores):
                senders[Sender(head.layer, head.head)] = None
    return list(senders)


def connected(model: Any, edge: Edge) -> bool:
    """Whether the reader reads the stream that the sender writes, after the sender has written."""
    residual, sender = model.config.residual, edge.sender
    if edge.reader == "head":
        return True
    parallel = getattr(residual, "order", "") == "parallel"
    if edge.layer == sender.layer and (sender.ffn or edge.reader != "mlp_in" or parallel):
        return False
    if isinstance(residual, DualStream) and edge.reader == "attn_v_in" and residual.values == "token":
        return edge.layer > sender.layer and not sender.ffn and not isinstance(residual, FrozenToken)
    return edge.layer >= sender.layer


def every_edge(model: Any, senders: Sequence[Sender]) -> list[Edge]:
    """Edges from every sender to every reader of every layer, even if the reader does not read the sender's output."""
    n = model.config.n_layers
    every: list[tuple[Reader, int]] = [(reader, layer) for layer in range(n) for reader in READERS]
    return [Edge(sender, reader, layer) for sender in senders for reader, layer in (*every, ("head", n))]


def edges_of(model: Any, senders: Sequence[Sender]) -> list[Edge]:
    """All existing edges from the senders. Raises `InputError` for heads without an output of their own."""
    if any(sender.head is not None for sender in senders):
        model.no_norm_after()
        if isinstance(model.config.attention.o, Hdpl):
            raise InputError("a head has no output of its own through an HDPL output projection; send L2.attn instead")
    return [edge for edge in every_edge(model, senders) if connected(model, edge)]


def patch_edges(
    model: Any, pairs: Sequence[PatchPair], edges: Sequence[Edge], direction: Direction = "denoise", *,
    progress: Callable[[Iterable], Iterable] = iter,
) -> PatchResults:  # fmt: skip
    """Every edge of every pair: one run per edge, with δ added to the reader's input only."""
    names = list(dict.fromkeys(edge.sender.hook for edge in edges))
    if isinstance(model.config.residual, Hyper):
        for layer in range(min(edge.sender.layer for edge in edges), model.config.n_layers):
            names += [f"blocks.{layer}.{b}_hc.hook_{c}" for b in ("attn", "mlp") for c in ("pre", "res", "post")]

    def make(pair: PatchPair, recipient: Activations, source: Activations) -> list[dict[str, Edit] | None]:
        sender_deltas = {edge.sender: _change(model, edge.sender, recipient, source) for edge in edges}
        return [_edits(model, edge, sender_deltas[edge.sender], recipient) for edge in edges]

    return sweep_pairs(model, pairs, names, make, len(edges), direction, progress=progress)


@torch.no_grad()
def _change(model: Any, sender: Sender, recipient: Activations, source: Activations) -> Tensor:
    change = source[sender.hook] - recipient[sender.hook]
    if sender.head is None:
        return change
    return change[:, sender.head] @ model.blocks[sender.layer].attn.W_O[sender.head].to(change)


def _edits(model: Any, edge: Edge, delta: Tensor, recipient: Activations) -> dict[str, Edit]:
    residual, stream = model.config.residual, "resid"
    if isinstance(residual, Hyper):
        delta, stream = _through_connections(edge, delta, recipient, model.config.n_layers), "streams"
    elif isinstance(residual, DualStream):
        stream = "context" if edge.sender.ffn or isinstance(residual, FrozenToken) else "token"
    last = f"blocks.{model.config.n_layers - 1}.hook_{stream}_post"
    name = last if edge.reader == "head" else f"blocks.{edge.layer}.hook_{edge.reader}"
    return {name: partial(add, delta=delta)}


def _through_connections(edge: Edge, delta: Tensor, recipient: Activations, n_layers: int) -> Tensor:
    """δ through hyper-connections with this run's coefficients: [T, D] for a branch, [T, N, D] for the head."""
    steps = [(layer, branch) for layer in range(edge.sender.layer, n_layers) for branch in ("attn", "mlp")]
    start = steps.index((edge.sender.layer, "mlp" if edge.sender.ffn else "attn"))
    layer, branch = steps[start]
    D = recipient[f"blocks.{layer}.{branch}_hc.hook_post"][..., None] * delta[:, None]
    for layer, branch in steps[start + 1 :]:
        prefix = f"blocks.{layer}.{branch}_hc."
        if layer == edge.layer and edge.reader != "head" and (edge.reader == "mlp_in") == (branch == "mlp"):
            return (recipient[f"{prefix}hook_pre"][..., None] * D).sum(-2)
        D = recipient[f"{prefix}hook_res"] @ D
    return D
