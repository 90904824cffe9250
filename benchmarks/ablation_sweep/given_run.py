"""`python -m benchmarks.ablation_sweep --run RUN`: a model of real size against TransformerLens, with memory.

Each side runs in processes of its own, round by round.
"""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from streamscope.benchmarks.ablation_sweep import Options
from streamscope.benchmarks.inputs import random_tokens, write_shards
from streamscope.benchmarks.timing import CLOCKS, SIDES_TITLES, compare_sides, in_a_process, machine
from streamscope.cli.terminal import print_grid
from streamscope.interventions.edits import scale_heads
from streamscope.interventions.observe import document_losses
from streamscope.models.checkpoint import HUGGING_FACE, load, model_config, run_folder
from streamscope.models.head_spec import Head, parse_heads
from streamscope.models.interop.export.write import export


def compare(options: Options) -> None:
    with tempfile.TemporaryDirectory() as folder:
        # a child's largest memory is at least that of its parent, so the export has a process of its own
        source, _ = in_a_process(transformers_folder, options.run, Path(folder))
        cells, losses = compare_sides(measured, options.rounds, options, source)
    row = [str(len(losses["ours"])), *cells, f"{np.abs(losses['ours'] - losses['peer']).max():.1e}"]
    print(f"{options.run}: {options.batch} x {options.length} tokens, {options.clock} time, {machine()}")
    print_grid(["edits", *SIDES_TITLES, "max Δ, nats"], [row], width=132)


def transformers_folder(run: str, folder: Path) -> str:
    """The folder of a run in the format of the transformers library: that of hf:FOLDER, or an export into `folder`."""
    if run.startswith(HUGGING_FACE):
        return run.removeprefix(HUGGING_FACE)
    export(run, folder / "model", native=True)
    return str(folder / "model")


def measured(side: str, options: Options, source: str) -> tuple[float, np.ndarray]:
    """Seconds of a side's sweep and its losses [edits, documents] per token; `source`: the peer's folder."""
    config = model_config(run_folder(str(options.run)))
    tokens, _ = random_tokens(config.d_vocab, options.batch, options.length + 1)
    heads = parse_heads("all", config.n_layers, config.n_heads)[:: options.every]
    clock = CLOCKS[options.clock]
    if side == "ours":
        model, sweep = load(str(options.run)), [scale_heads([head], 0.0) for head in heads]
        with tempfile.TemporaryDirectory() as folder:
            starts = np.arange(len(tokens) + 1) * tokens.shape[1]
            shards = write_shards(Path(folder), tokens.numpy(), starts, model.config.d_vocab)
            start = clock()
            sums = document_losses(model, shards, sweep, budget=options.budget)
            losses = sums.edited / sums.tokens
    else:
        from streamscope.models.interop.huggingface.bridged import bridge

        peer = bridge(source)
        start = clock()
        losses = np.array([_peer_losses(peer, row, heads) for row in tokens]).T
    return clock() - start, losses


def _peer_losses(bridge: Any, row: Tensor, heads: list[Head]) -> list[float]:
    return ablated(bridge, row[None, :-1], heads, lambda x: cross_entropy(x[0], row[1:]).item())


@torch.no_grad()
def ablated(bridge: Any, tokens: Tensor, heads: Sequence[Head], score: Callable[[Tensor], Any]) -> list[Any]:
    """TransformerLens' sweep: a forward pass per ablated head, and what `score` makes of its logits."""
    scores = []
    for head in heads:

        def ablate(z: Tensor, hook: Any, index: int = head.head) -> Tensor:
            z = z.clone()
            z[:, :, index] = 0
            return z

        scores.append(score(bridge.run_with_hooks(tokens, fwd_hooks=[(f"blocks.{head.layer}.attn.hook_z", ablate)])))
    return scores
