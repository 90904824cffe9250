"""What every edge is worth: m(clean run) − m(clean run with the edge patched), exactly or by gradients, per pair.

    exact               one run per edge; only what comes after its reader is computed again
    eap                 Σ c (out_u^clean − out_u^corrupt) ∂m/∂in_v, gradient at the clean run (Syed et al. 2023)
    eap-ig              the gradient averaged over m steps of the input from the corrupted to the clean embedding
                        (Hanna et al. 2024), at the `points` right 1/m … 1, left 0 … (m − 1)/m or midpoint
    eap-ig-activations  the gradient averaged over m steps of the sender's own layer, all before it clean
    acdc                edge by edge from the output back, each patched together with all that are pruned so far; those
                        that change the mean m by less than the threshold are pruned (after Conmy et al. 2023; here each
                        edge of a reader is tried alone, and then all small ones are pruned at once)
    random              random numbers, the baseline

Gradients hold the coefficients c at the clean run; what goes through a change of c is the edge to the mixing module.
Scores are [edges, pairs]. Apart from them memory holds one batch, and all batches with acdc.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.cli.terminal import counted
from streamscope.instruments.contract import say
from streamscope.interventions.circuits import Method, Metric, Points, metrics
from streamscope.interventions.circuits.graph import Graph, n_streams
from streamscope.interventions.circuits.metrics import Batch, batches_of
from streamscope.interventions.circuits.run import Run, run, start
from streamscope.interventions.patch.pairs import PatchPair

MEMORY = 2**29
"""Bytes of one batch's activations by part (`bytes_per_token`); one pair may exceed them."""


@dataclass(frozen=True)
class Pass:
    """Both runs of a batch, and the states of the clean one before each stage."""

    batch: Batch
    clean: Run
    corrupt: Run
    states: list[Run]
    logits: Float[Tensor, "B P V"]
    m: Float[Tensor, " B"]


@torch.no_grad()
def both_runs(model: Any, graph: Graph, batch: Batch, metric: Metric) -> Pass:
    corrupt = run(model, graph, batch.corrupt)
    clean, states = start(model, graph, batch.clean), []
    while clean.stage < 2 * model.config.n_layers:
        states.append(replace(clean))
        clean.step()
    logits = clean.logits(batch.at)
    return Pass(batch, clean, corrupt, [*states, replace(clean)], logits, metrics.value(metric, logits, batch, logits))


def bytes_per_token(model: Any, graph: Graph, method: Method) -> int:
    """Largest activations by part of one token, in bytes. Both runs keep the outputs of all senders. Exact scores and
    pruning also keep the residual state before each stage. With gradients every reader has an input, its norm, a
    gradient and two copies on the way, and the sum over steps."""
    D, S, R = model.config.d_model, len(graph.senders), len(graph.readers)
    more = 5 * R if "eap" in method else 2 * model.config.n_layers * n_streams(model.config.residual)
    return 4 * D * (2 * S + more)


def score_edges(
    model: Any, graph: Graph, pairs: Sequence[PatchPair], method: Method = "eap-ig",
    metric: Metric = "logit-difference", *, steps: int = 10, threshold: float = 0.01, seed: int = 0,
    points: Points = "right", progress: Callable[[Iterable], Iterable] = iter,
) -> Float[np.ndarray, "edges pairs"]:  # fmt: skip
    """The score of every edge and pair, in the metric's unit. Raises `InputError` for the metric kl where a method
    takes its gradient at the clean run alone."""
    # where on the way from the corrupted (0) to the clean run (1) gradients are taken
    shift = {"left": 0.0, "midpoint": 0.5, "right": 1.0}[points]
    alphas = [1.0] if method == "eap" else [(k + shift) / steps for k in range(steps)]
    if metric == "kl" and method.startswith("eap") and alphas == [1.0]:
        raise InputError("the gradient of kl is 0 at the clean run: use eap-ig with several steps, or exact")
    scores = np.zeros((len(graph.edges), len(pairs)), np.float32)
    if method == "random":
        scores[:] = np.random.default_rng(seed).random((len(scores), 1))
        return scores
    token_bytes = bytes_per_token(model, graph, method)
    batch_list = list(batches_of(pairs, metric, max(1, MEMORY // token_bytes), model.cfg.device))
    padded = [batch.clean.numel() for batch in batch_list]
    peak = token_bytes * (sum(padded) if method == "acdc" else max(padded))
    batches = f"{len(batch_list)} batch{'es' if len(batch_list) > 1 else ''} of up to {max(padded)} tokens"
    memory = f"about {peak / 1e6:,.1f} MB of memory next to the model"
    say(progress, f"{counted(len(graph.edges), 'edge', ',')} on {counted(len(pairs), 'pair')}, {batches}: {memory}")
    if method == "acdc":
        passes = [both_runs(model, graph, batch, metric) for batch in batch_list]
        return _prune(model, graph, passes, metric, threshold, progress)
    for batch in progress(batch_list):
        runs = both_runs(model, graph, batch, metric)
        if method == "exact":
            batch_scores = exact(model, graph, runs, metric)
        else:
            batch_scores = attribution(model, graph, runs, metric, method, alphas)
        scores[:, batch.rows] = batch_scores.cpu().numpy()
    return scores


@torch.no_grad()
def exact(model: Any, graph: Graph, runs: Pass, metric: Metric) -> Float[Tensor, "edges B"]:
    """m(clean) − m(one edge patched); the edges of one reader run together."""
    scores = runs.m.new_zeros(len(graph.edges), len(runs.m))
    B, T = runs.batch.clean.shape
    rows = max(1, 2**13 // (B * T))
    for v in range(len(graph.readers)):
        edges = np.flatnonzero(graph.edges[:, 1] == v)
        for group in np.split(edges, range(rows, len(edges), rows)):
            shift = -excess(graph, runs, v, graph.edges[group, 0]).flatten(0, 1)
            state = repeat_run(runs.states[graph.readers[v].stage], len(group), out=False)
            logits = replace(state, shifted=(v, shift)).finish().logits(runs.batch.at.repeat(len(group), 1))
            scores[group] = runs.m - metrics.value(metric, logits.unflatten(0, (-1, B)), runs.batch, runs.logits)
    return scores


def excess(graph: Graph, runs: Pass, v: int, senders: Sequence[int] | np.ndarray) -> Float[Tensor, "u B T *N_D"]:
    """c (out^clean − out^corrupt) of these senders, as reader v reads it: [u, B, T, D], for a mixing module
    [u, B, T, N, D]."""
    stage, index = graph.readers[v].stage, torch.as_tensor(senders)
    change = (runs.clean.out[:, index] - runs.corrupt.out[:, index]).transpose(0, 1)
    if graph.readers[v].part == "mix":
        return runs.clean.shares[stage][:, :, index].movedim(2, 0)[..., None] * change[..., None, :]
    c = runs.clean.coefficients.get(stage)
    return change if c is None else c[:, :, index].movedim(2, 0)[..., None] * change


def repeat_run(state: Run, n: int, *, out: bool) -> Run:
    """A run n times along the batch, to go on from its stage; without `out` the outputs of senders are not kept."""

    def many(x: Tensor) -> Tensor:
        return x.repeat(n, *[1] * (x.ndim - 1))

    X, A = many(state.X), many(state.A) if out and state.A is not None else None
    outputs = many(state.out) if out else state.out.new_zeros(len(X), 0, *state.out.shape[2:])
    entering = None if state.entering is None else many(state.entering)
    empty: dict[str, Any] = {name: {} for name in ("inputs", "mixed_inputs", "coefficients", "shares")}
    return replace(state, X=X, entering=entering, out=outputs, A=A, **empty)


def attribution(
    model: Any, graph: Graph, runs: Pass, metric: Metric, method: Method, alphas: Sequence[float]
) -> Float[Tensor, "edges B"]:
    """Σ over positions of the excess times a gradient of m, averaged over the points `alphas`."""
    scores = runs.m.new_zeros(len(runs.m), *graph.connected.shape)
    clean, corrupt = runs.clean.out, runs.corrupt.out
    stages = range(-1, 2 * model.config.n_layers)
    trainable = [p for p in model.parameters() if p.requires_grad]
    for p in trainable:
        p.requires_grad_(False)
    try:
        for stage in stages if method == "eap-ig-activations" else [-1]:
            writers = graph.written_at(stage)
            total: dict[int, list[Tensor]] = {}
            for alpha in alphas:
                between = corrupt[:, writers] + alpha * (clean[:, writers] - corrupt[:, writers])
                for v, parts in gradients(model, graph, runs, metric, stage, between).items():
                    total[v] = [a + b for a, b in zip(total[v], parts, strict=True)] if v in total else parts
            senders = writers if method == "eap-ig-activations" else slice(0, len(graph.senders))
            _contract(graph, runs, {v: [g / len(alphas) for g in parts] for v, parts in total.items()}, senders, scores)
    finally:
        for p in trainable:
            p.requires_grad_(True)
    return scores[:, graph.edges[:, 0], graph.edges[:, 1]].T


def gradients(
    model: Any, graph: Graph, runs: Pass, metric: Metric, stage: int, between: Float[Tensor, "B senders T D"]
) -> dict[int, list[Tensor]]:
    """∂m/∂in of all readers, by their stage, where a stage's senders write `between`. First that of branches or the
    unembedding [B, readers, T, D], then that of the mixing module [B, T, N, D]."""
    between = between.detach().requires_grad_()
    fields: dict[str, Any] = {"embedding": between[:, 0]} if stage < 0 else {"replaced": {stage: between}}
    with torch.enable_grad():
        state = start(model, graph, runs.batch.clean, split=True, **fields).finish()
        m = metrics.value(metric, state.logits(runs.batch.at), runs.batch, runs.logits)
        reads = [(place, x) for place, parts in state.inputs.items() for x in parts if x.requires_grad]
        mixes = [(place, x) for place, x in state.mixed_inputs.items() if x.requires_grad]
        slopes = torch.autograd.grad(m.sum(), [x for _, x in (*reads, *mixes)], allow_unused=True)
    out: dict[int, list[Tensor]] = {}
    for (place, x), g in zip((*reads, *mixes), slopes, strict=True):
        out.setdefault(place, []).append(torch.zeros_like(x) if g is None else g)
    n = {place: sum(1 for s, _ in reads if s == place) for place in out}
    return {place: [torch.cat(parts[: n[place]], 1), *parts[n[place] :]] for place, parts in out.items()}


def _contract(graph: Graph, runs: Pass, G: dict[int, list[Tensor]], senders: slice, scores: Tensor) -> None:
    change = runs.clean.out - runs.corrupt.out
    for stage, (g, *mixing) in G.items():
        u = slice(senders.start, min(senders.stop, graph.written_before(stage).stop))
        if u.start >= u.stop:
            continue
        part, c = change[:, u], runs.clean.coefficients.get(stage)
        weighted = part if c is None else part * c.mT[:, u, :, None]
        scores[:, u, graph.read_at(stage)] = (g.flatten(2) @ weighted.flatten(2).mT).mT
        for x in mixing:
            column = graph.mixing_at(stage)
            product = torch.einsum("butd,btnd->btun", part, x)
            scores[:, u, column] = (product * runs.clean.shares[stage][:, :, u]).sum((1, 3))


@torch.no_grad()
def _prune(
    model: Any, graph: Graph, passes: Sequence[Pass], metric: Metric, threshold: float,
    progress: Callable[[Iterable], Iterable],
) -> np.ndarray:  # fmt: skip
    scores = np.zeros((len(graph.edges), sum(len(pass_runs.m) for pass_runs in passes)), np.float32)
    patched = torch.zeros(graph.connected.shape, dtype=torch.bool)
    base = [pass_runs.m for pass_runs in passes]
    for v in progress(range(len(graph.readers) - 1, -1, -1)):
        edges = np.flatnonzero(graph.edges[:, 1] == v)
        senders = graph.edges[edges, 0]
        for pass_runs, m in zip(passes, base, strict=True):
            rows = max(1, MEMORY // (pass_runs.clean.out.numel() * pass_runs.clean.out.element_size()))  # runs at once
            scores[np.ix_(edges, np.array(pass_runs.batch.rows))] = np.concatenate([
                (m - _with_patched(graph, pass_runs, v, [[u] for u in chunk.tolist()], patched, metric)).cpu().numpy()
                for chunk in np.array_split(senders, -(-len(senders) // rows))
            ])  # fmt: skip
        small = np.abs(scores[edges].mean(1)) < threshold
        patched[senders[small], v] = True
        if small.any():
            base = [_with_patched(graph, pass_runs, v, [[]], patched, metric)[0] for pass_runs in passes]
    return scores


def _with_patched(
    graph: Graph, runs: Pass, v: int, more: Sequence[Sequence[int]], patched: Tensor, metric: Metric
) -> Float[Tensor, "n B"]:
    """m with the patched edges and, in each of n runs, those of some further senders to reader v. No earlier reader has
    a patched edge, so the clean run is the prefix."""
    n, B = len(more), len(runs.m)
    masks = patched.repeat(n, 1, 1)
    for i, extra_senders in enumerate(more):
        masks[i, list(extra_senders), v] = True
    state = repeat_run(runs.states[graph.readers[v].stage], n, out=True)
    patched_run = replace(
        state, patched=masks.repeat_interleave(B, 0).to(runs.m.device), other=runs.corrupt.out.repeat(n, 1, 1, 1)
    ).finish()
    logits = patched_run.logits(runs.batch.at.repeat(n, 1))
    return metrics.value(metric, logits.unflatten(0, (-1, B)), runs.batch, runs.logits)
