"""Small models with weights written by hand, in which the edges that compute the answer are known, and texts for them.

`datasets/planted` holds the specification and the card. An edge is true if patching it in the model without noise
changes the metric of a pair.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import torch
from scipy.linalg import hadamard

from streamscope.aliases import folder_of
from streamscope.cli.errors import unknown
from streamscope.interventions.circuits.graph import Graph, graph_of
from streamscope.interventions.circuits.scores import score_edges
from streamscope.interventions.patch.pairs import PatchPair
from streamscope.models import build
from streamscope.models.layers.norms import Norm

BOS = 0
"""The first token of every text; words are 1 … n."""


@cache
def specification() -> dict[str, Any]:
    return tomllib.loads((folder_of("datasets") / "planted" / "circuits.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Planted:
    """A model with a planted circuit, pairs of prompts, and which edges are true."""

    name: str
    model: Any
    pairs: list[PatchPair]
    graph: Graph
    true: np.ndarray
    """[edges] whether patching the edge in the model without noise changes the metric."""

    def accuracy(self) -> float:
        """Share of the clean prompts that the model answers right, among all words."""
        tokens = torch.tensor([pair.clean for pair in self.pairs])
        with torch.no_grad():
            best = self.model(tokens)[:, -1].argmax(-1).tolist()
        return sum(b in pair.answers for b, pair in zip(best, self.pairs, strict=True)) / len(self.pairs)


def plant(name: str, *, noise: float | None = None, seed: int = 0, pairs: int = 36) -> Planted:
    """A planted circuit, with noise in all weights; default: that of the specification. Raises `InputError` for an
    unknown name."""
    spec = specification()
    if name not in spec["circuits"]:
        raise unknown("planted circuit", name, list(spec["circuits"]))
    prompts = texts(spec["circuits"][name]["task"], pairs, seed)
    ideal = build_planted(name, 0.0, seed)
    graph = graph_of(ideal)
    scores = np.abs(score_edges(ideal, graph, prompts, "exact")).max(1)
    model = build_planted(name, spec["model"]["noise"] if noise is None else noise, seed)
    return Planted(name, model, prompts, graph, scores > 1e-3 * scores.max())


def build_planted(name: str, noise: float, seed: int = 0) -> Any:
    """The model of a planted circuit with noise of this share."""
    spec, size = specification()["circuits"][name], specification()["model"]
    n, chunks = size["words"], size["chunks"]
    H, D = len(chunks), n * len(chunks)
    config: dict[str, Any] = {
        "n_layers": size["layers"], "n_heads": H, "d_model": D, "d_vocab": n, "n_ctx": n, "positions": "learned",
        "norm": "rms", "readout.norm": "rms", "readout.tied": False, "mlp.d_mlp": D,
    }  # fmt: skip
    if "streams" in spec:
        config |= {"residual.n": spec["streams"], "residual.reduce": "sum"}
    model = build(spec["config"], "tiny", **config).eval()

    def at(chunk: str) -> slice:
        start = chunks.index(chunk) * n
        return slice(start, start + n)

    eye, scale = torch.eye(n), (D / 2) ** 0.5  # a normed state with two codes has codes of this size
    code = torch.tensor(hadamard(n), dtype=torch.float32) / n**0.5  # row i stands for word i, in every chunk
    strength = (size["score"] * n**0.5) ** 0.5 / scale
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
        for norm in (m for m in model.modules() if isinstance(m, Norm)):
            norm.weight.fill_(1.0)
        assert model.pos_embed is not None
        model.embed.weight[1:, at("token")] = code[1:]  # BOS has no content
        model.pos_embed.weight[:, at("position")] = code
        model.unembed.weight[:, at("answer")] = code
        for head_spec in spec["heads"]:
            attn, h = model.blocks[head_spec["layer"]].attn, head_spec["head"]
            rows = slice(h * n, (h + 1) * n)
            to = torch.arange(n)
            if head_spec["q"] == "position":  # the position before; in a text of pairs, BOS from the first of a pair
                to = torch.where(to % 2 == 0, to - 1, 0) if spec["task"] == "two-hop" else to - 1
            attn.q.weight[rows, at(head_spec["q"])] = strength * eye[to % n].T @ code
            attn.k.weight[rows, at(head_spec["k"])] = strength * code
            if attn.v.weight.shape == (H, H):
                attn.v.weight[h, chunks.index(head_spec["v"])] = scale**-0.5
                attn.o.weight[chunks.index(head_spec["to"]), h] = scale**-0.5
            else:
                attn.v.weight[rows, at(head_spec["v"])] = scale**-0.5 * code
                attn.o.weight[at(head_spec["to"]), rows] = scale**-0.5 * code.T
            if "open" in head_spec:
                w = torch.where(torch.arange(n) < head_spec["open"], 1.0, -1.0) / (strength * scale)
                attn.gate.weight[h] = 6.0 * w[:, None]
        if "streams" in spec:
            _connect(model, spec)
        # what a weight does, whatever its layer: q, k, v, o, gate, embed, …
        parameters = [
            (path.removesuffix(".weight").rpartition(".")[2], path, p) for path, p in model.named_parameters()
        ]
        planted: dict[str, list[torch.Tensor]] = {}
        for kind, _, p in parameters:
            planted.setdefault(kind, []).append(p[p != 0].flatten())
        generator = torch.Generator().manual_seed(seed)
        for kind, path, p in parameters:
            if p.ndim > 1:
                weights = torch.cat(planted[kind])
                reference = torch.cat(planted["o"]) if ".mlp." in path or not len(weights) else weights
                p.add_(noise * reference.square().mean().sqrt() * torch.randn(p.shape, generator=generator))
    return model


def _connect(model: Any, spec: dict[str, Any]) -> None:
    """Coefficients of hyper-connections: streams hardly mix, and are read with 1/n and written with 1. Layer 0's
    attention writes as the specification says."""
    for layer, block in enumerate(model.blocks):
        for hc in (block.attn_hc, block.mlp_hc):
            strengths = spec["writes"] if layer == 0 and hc is block.attn_hc else [1.0] * spec["streams"]
            hc.b["pre"].fill_(torch.tensor(1 / spec["streams"]).logit().item())
            hc.b["post"].copy_(torch.tensor([min(max(w, 0.02), 1.98) / 2 for w in strengths]).logit())
            hc.b["res"].copy_(hc.identity_logits())
            hc.norm_weight.fill_(1.0)
            for name in hc.alpha:
                hc.alpha[name].fill_(0.01)


def texts(task: str, n: int, seed: int = 0) -> list[PatchPair]:
    """Pairs of prompts of a task; what differs between clean and corrupted takes turns. induction: … A B … C D … A ->
    B. two-hop: … A B … B E … A -> E, pair after pair. gated: as induction, and the corrupted text may also end in a
    word that closes the gate."""
    size, rng, pairs = specification()["model"], Random(seed), []
    words = range(1, size["words"])
    for i in range(n):
        kind = i % 3
        half = size["words"] // 2
        A, C = rng.sample(range(1, half) if task == "gated" else words, 2)
        closing = rng.choice([w for w in words if w >= half and w not in (A, C)])
        fillers = [w for w in words if w not in (A, C, closing)]
        rng.shuffle(fillers)
        B, D, E, F, *more = fillers
        if task == "two-hop":
            units = [(A, B), (B, E), (C, D), (D, F), tuple(more[:2])]
            clean, right, wrong = _placed(units, [], A, size["length"], rng), E, F
            swaps = [{A: C, C: A}, {B: D, D: B}, {E: F, F: E}]
            corrupt = [swaps[kind].get(w, w) for w in clean[:-1]] + clean[-1:]
            if kind == 1:  # only the first hop leads elsewhere
                hops = {(A, B): D, (C, D): B}
                corrupt = [clean[0], *(hops.get(pair, pair[1]) for pair in pairwise(clean))]
        else:
            clean, right, wrong = _placed([(A, B), (C, D)], more, A, size["length"], rng), B, D
            if kind == 2:
                corrupt = [*clean[:-1], closing if task == "gated" and i % 2 else C]
            else:
                swap = {A: C, C: A} if kind == 0 else {B: D, D: B}
                corrupt = [swap.get(w, w) for w in clean[:-1]] + clean[-1:]
        pairs.append(PatchPair(id=f"{task}-{i}", cluster=f"{task}-{i}", clean=tuple(clean), corrupt=tuple(corrupt),
                               answers=(right,), foils=(wrong,)))  # fmt: skip
    return pairs


def _placed(pairs: Sequence[tuple[int, ...]], more: Sequence[int], last: int, length: int, rng: Random) -> list[int]:
    fillers = [(w,) for w in more[: max(0, length - 2 - sum(map(len, pairs)))]]
    units: list[tuple[int, ...]] = [*pairs, *fillers]
    rng.shuffle(units)
    return [BOS, *(w for unit in units for w in unit), last]
