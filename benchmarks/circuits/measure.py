"""Runs both sides of `python -m benchmarks.circuits` and compares their scores."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from streamscope.benchmarks.circuits import Options
from streamscope.benchmarks.circuits.plain import PlainGpt2, plain_scores
from streamscope.benchmarks.timing import CLOCKS, SIDES_TITLES, compare_sides, machine
from streamscope.cli.errors import InputError
from streamscope.cli.terminal import print_grid
from streamscope.interventions.circuits import Circuits
from streamscope.interventions.circuits.graph import Graph, graph_of
from streamscope.interventions.circuits.measure import task_pairs
from streamscope.interventions.circuits.scores import score_edges
from streamscope.interventions.patch.pairs import PatchPair
from streamscope.models.checkpoint import load

GELU = {"gelu": "none", "gelu_tanh": "tanh"}  # our names of GPT-2's activation, and how torch approximates it


def plain_gpt2(model: Any) -> PlainGpt2:
    c = model.config
    return PlainGpt2(model.state_dict(), c.n_layers, c.n_heads, GELU[c.mlp.activation])


def measure(options: Options) -> None:
    _, pairs, graph = opened(options)
    rows = []
    for method in options.methods:
        cells, scores = compare_sides(measured, options.rounds, method, options)
        difference = np.abs(scores["ours"] - scores["peer"]).max()
        rows.append([method, f"{len(graph.edges):,}", str(len(pairs)), *cells, f"{difference:.1e}"])
    tokens = sorted({len(p.clean) for p in pairs})
    print(
        f"{options.run}, {options.task}: {tokens[0]} to {tokens[-1]} tokens, {options.steps} steps, {options.clock} "
        f"time, {machine()}; scores up to {np.abs(scores['ours']).max():.1f} nats"
    )
    print_grid(["method", "edges", "pairs", *SIDES_TITLES, "max Δ, nats"], rows, width=132)


def opened(options: Options) -> tuple[Any, Sequence[PatchPair], Graph]:
    """The model, the pairs of the task, and the graph. Raises `InputError` for a model that is no GPT-2."""
    model = load(options.run)
    c = model.config
    order = getattr(c.residual, "order", "")
    parts = (c.residual.kind, order, c.norm.kind, c.readout.norm.kind, c.norm_place, c.positions.kind)
    is_gpt2 = parts == ("single", "sequential", "layer", "layer", "before", "learned")
    is_gpt2 = is_gpt2 and c.readout.tied and c.mlp.gate is None and c.mlp.activation in GELU
    if not is_gpt2 or any(part is not None for part in (c.canon, c.attention.gate, c.attention.qk_norm)):
        raise InputError(f"--run {options.run} is no GPT-2: give stories/std-t, or hf:FOLDER of one")
    return model, task_pairs(Circuits(task=options.task, pairs=options.pairs), model)[0].pairs, graph_of(model)


def measured(side: str, method: str, options: Options) -> tuple[float, np.ndarray]:
    model, pairs, graph = opened(options)
    clock = CLOCKS[options.clock]
    if side == "ours":
        score_edges(model, graph, pairs[:1], "eap", steps=1)  # the first call of a process is slow
        start = clock()
        scores = score_edges(model, graph, pairs, "exact" if method == "exact" else "eap-ig", steps=options.steps)
    else:
        plain = plain_gpt2(model)
        alphas = [k / options.steps for k in range(1, options.steps + 1)] if method != "exact" else []
        peer_scores(plain, graph, pairs[:1], [1.0])
        start = clock()
        scores = peer_scores(plain, graph, pairs, alphas)
    return clock() - start, scores


def peer_scores(plain: PlainGpt2, graph: Graph, pairs: Sequence[PatchPair], alphas: Sequence[float]) -> np.ndarray:
    """The plain code's scores in the order of our edges; pairs of equally many tokens together."""
    senders = [i for i, u in enumerate(graph.senders) if u.part != "bias"]
    edges = [(senders.index(u), int(v)) for u, v in graph.edges]
    scores = np.zeros((len(edges), len(pairs)), np.float32)
    for length in {len(p.clean) for p in pairs}:
        columns = [i for i, p in enumerate(pairs) if len(p.clean) == length]
        batch = [pairs[i] for i in columns]
        clean, corrupt = (torch.tensor(ids) for ids in ([p.clean for p in batch], [p.corrupt for p in batch]))
        answers, foils = [p.answers for p in batch], [p.foils for p in batch]
        scores[:, columns] = plain_scores(plain, clean, corrupt, answers, foils, edges, alphas).numpy()
    return scores
