"""Measurements of `python -m benchmarks.features`."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from streamscope.benchmarks.features import Options
from streamscope.benchmarks.inputs import write_shards
from streamscope.benchmarks.timing import interleaved, machine
from streamscope.cli.errors import InputError
from streamscope.cli.terminal import print_grid
from streamscope.features.extract import Extract
from streamscope.features.extract.measure import BATCH_TOKENS
from streamscope.features.store import read_features
from streamscope.instruments.data import Tokens
from streamscope.instruments.open_data import OpenDocuments
from streamscope.models import build
from streamscope.models.hooks import batches, pad
from streamscope.models.readout import map_logits
from streamscope.models.transformer import StreamTransformer

COMPARED = 1e-4  # largest allowed difference to the straightforward features; relative for values above 1 (spans)


def _measure(options: Options, vocab: int) -> list[str]:
    shape: dict[str, Any] = {"n_layers": options.layers, "d_model": options.width, "d_vocab": vocab}
    model = build(options.preset, **shape, n_ctx=options.length, init_std=0.1).eval()
    extract, generator = Extract(tier=options.tier), np.random.default_rng(1)
    starts = np.cumsum([0, *generator.integers(40, options.length + 1, size=options.documents) + 1])
    tokens = np.random.default_rng(0).integers(vocab, size=int(starts[-1]), dtype=np.uint16)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        shards, out = write_shards(Path(folder), tokens, starts, vocab), Path(folder) / "features.parquet"
        documents = [shards.document(i).tolist() for i in range(shards.n_documents)]
        naive: list[np.ndarray] = []

        def extraction(max_tokens: int | None = None) -> None:
            opened = OpenDocuments(Tokens(max_tokens=max_tokens), shards, model.config.n_ctx)
            extract.measure(model, opened).save(out)

        steps: dict[str, Callable[[], object]] = {
            "extraction": extraction,
            "bound": lambda: _bound(model, documents),
            "straightforward": lambda: naive.append(straightforward(model, documents, extract)),
        }
        extraction(len(documents[0]))  # first calls of a process are slow
        _bound(model, documents[:1])
        straightforward(model, documents[:1], extract)
        times = interleaved(steps, rounds=options.rounds, clock=options.clock)
        difference = float((np.abs(read_features(out).X - naive[0]) / np.maximum(np.abs(naive[0]), 1)).max())
    if not difference < COMPARED:
        raise InputError(f"the features differ from the straightforward ones by {difference:.1e}")
    n = int(starts[-1]) - options.documents
    cells = [f"{vocab:,}", f"{n:,}", f"{times.median('extraction'):.2f} s", f"{n / times.median('extraction'):,.0f}"]
    for peer in ("bound", "straightforward"):
        cells += [f"{times.median(peer):.2f} s", times.ratio(peer, "extraction")]
    return [*cells, f"{difference:.1e}"]


def _bound(model: StreamTransformer, documents: Sequence[Sequence[int]]) -> None:
    """One forward pass with explicit attention, L unembeddings, one softmax and top-2 over each; no lower bound."""
    inputs = [ids[:-1] for ids in documents]
    for batch in batches([len(ids) for ids in inputs], BATCH_TOKENS):
        tokens = pad([inputs[i] for i in batch])
        real = pad([[1] * len(inputs[i]) for i in batch]).bool()
        with model.explicit_attention():
            state = model.embed_tokens(tokens)
            for layer in range(model.config.n_layers):
                state = model.segment(state, layer, layer + 1)
                h = model.layer_norm(layer)(model.readout(state)[real])
                map_logits(h, model.head, lambda logits, rows: logits.softmax(-1).topk(2, -1).values)


def straightforward(model: StreamTransformer, documents: Sequence[Sequence[int]], options: Extract) -> np.ndarray:
    """Features X [n, d] of tiers structural, +position and topk with default options, in the most direct code.

    PLS B.6: `attn_slice = layer_attn[:, query_pos, :query_pos]`.
    """
    n_layers, n_heads, k = model.config.n_layers, model.config.n_heads, options.k
    X = []
    for ids in documents:
        _, cache = model.run_with_cache(torch.tensor([ids[:-1]]))
        top, p_of = [], []
        for layer in range(n_layers):
            normed = model.layer_norm(layer)(cache[f"blocks.{layer}.hook_resid_post"][0])
            p_of.append((normed @ model.W_U).softmax(-1))
            top.append(p_of[-1].topk(2, -1))
        for q in range(len(ids) - 1):
            predicted = [int(t.indices[q, 0]) for t in top]
            target, truth = predicted[-1], ids[q + 1]
            p = [float(p_of[i][q, target]) if predicted[i] == target else 0.0 for i in range(n_layers)]
            margin = [p[i] - float(top[i].values[q, 1]) for i in range(n_layers)]
            drops = [max(0.0, p[i - 1] - p[i]) for i in range(1, n_layers)]
            k_star = n_layers - 1
            while k_star > 0 and predicted[k_star - 1] == target:
                k_star -= 1
            k_star = n_layers if k_star == n_layers - 1 else k_star
            run = kappa = 0
            for token in predicted:
                run = run + 1 if token == truth else 0
                kappa = max(kappa, run)
            width = k if options.tier == "topk" else 1
            act, ent = np.zeros((2, n_layers, n_heads, width)), np.zeros((2, n_layers, n_heads))
            position = []
            for where, layer in enumerate((min(k_star, n_layers - 1), n_layers - 1)):
                attention = cache[f"blocks.{layer}.attn.hook_pattern"][0, :, q, :q]
                gate = torch.ones(n_heads)
                if f"blocks.{layer}.attn.hook_gate" in cache:
                    gate = cache[f"blocks.{layer}.attn.hook_gate"][0, q].mean(-1)
                effective = attention * gate[:, None]
                if q == 0:
                    position.append((0.0, 0.0))
                    continue
                peak = effective.max(-1).values
                if options.tier == "topk":
                    values = effective.sort(-1, descending=True).values[:, :k] * (gate >= options.theta_gate)[:, None]
                    act[where, layer, :, : values.shape[1]] = values.numpy()
                else:
                    act[where, layer, :, 0] = peak.numpy()
                a = effective / effective.sum(-1, keepdim=True)
                entropy = -torch.where(a > 0, a * a.log(), 0.0).sum(-1)
                ent[where, layer] = torch.where(peak < options.theta_entropy, 0.0, entropy).numpy()
                distance = q - torch.arange(q)
                spanned = float((effective * distance).sum() / effective.sum())
                position.append((spanned, float(effective[:, max(0, q - options.window) :].sum())))
            row = [*p, *margin, *drops, k_star, kappa, *act.ravel(), *ent.ravel()]
            X.append(row if options.tier == "structural" else [*row, *np.array(position).T.ravel()])
    return np.array(X, dtype=np.float32)


def measure(options: Options) -> None:
    shape = f"{options.preset}, {options.layers} layers, 6 heads, width {options.width}, context {options.length}"
    print(f"{machine()}, float32; {shape}; tier {options.tier}")
    titles = ["vocabulary", "tokens", "extraction", "tokens/s", "bound", "bound / extraction", "straightforward"]
    rows = [_measure(options, vocab) for vocab in options.vocab]
    print_grid([*titles, "times faster", "max Δ"], rows, width=150)
