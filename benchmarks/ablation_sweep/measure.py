"""What `python -m benchmarks.ablation_sweep` measures and prints."""

import itertools
import json
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformer_lens.model_bridge.sources import build_bridge_from_module
from transformers import GPT2Config, GPT2LMHeadModel

from streamscope.benchmarks.ablation_sweep.options import Case, Options
from streamscope.benchmarks.timing import interleaved
from streamscope.interventions.edits import scale_heads
from streamscope.interventions.observe.answers import answer_log_probs
from streamscope.interventions.observe.documents import document_losses
from streamscope.models import build
from streamscope.models.head_spec import Head, parse_heads
from streamscope.models.hooks import edit
from streamscope.models.tensors import sha256
from streamscope.models.transformer import StreamTransformer
from streamscope.text.shards import FORMAT, TokenShards

UNITS = 3
"""Forward passes that are timed together."""
CHECKED = 24
"""Pairs that are compared with a pass of their own."""


def _measure(options: Options, vocab: int, case: Case) -> list[str]:
    """One row of the table."""
    shape: dict[str, Any] = {
        "n_layers": options.layers, "n_heads": options.heads, "d_model": options.width, "d_vocab": vocab,
        "n_ctx": options.length, "init_std": 0.1,
    }  # fmt: skip
    model = build("std-t", **shape)
    tokens = torch.randint(vocab, (options.batch, options.length + 1), generator=torch.Generator().manual_seed(0))
    heads = parse_heads("all", options.layers, options.heads)
    groups = list(itertools.combinations(heads, 2)) if case == "pairs" else [(head,) for head in heads]
    sweep = [scale_heads(group, 0.0) for group in groups]
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        ours = _ours(model, tokens, sweep, None if case != "losses" else _shards(Path(folder), tokens, vocab), options)
        clock = time.process_time if options.clock == "cpu" else time.perf_counter
        found: list[np.ndarray] = []
        steps: dict[str, Callable[[], object]] = {
            "forward": lambda: [model(tokens[:, :-1]) for _ in range(UNITS)],
            "sweep": lambda: found.append(ours()),
        }
        if options.peer and case != "pairs":
            steps |= _peers(model, tokens, heads, losses=case == "losses")
        model(tokens[:, :-1])  # the first call of a process is slow
        seconds = interleaved(steps, rounds=options.rounds, clock=clock)
        difference = _difference(model, tokens, sweep, found[0], losses=case == "losses")
    for name in {"forward", "peer"} & set(seconds):
        seconds[name] = [s / UNITS for s in seconds[name]]
    ratio = _ratios(seconds, "sweep", "forward")
    peer = f"{median(_ratios(seconds, 'peer sweep', 'peer')):.1f}" if "peer" in seconds else "–"
    cells = [case, f"{vocab:,}", str(len(sweep)), *(f"{median(seconds[name]):.3f} s" for name in ("forward", "sweep"))]
    times = f"{median(_ratios(seconds, 'peer sweep', 'sweep')):.2f}" if "peer" in seconds else "–"
    return [*cells, f"{median(ratio):.2f}", f"{min(ratio):.2f} to {max(ratio):.2f}", peer, times, f"{difference:.1e}"]


def _ratios(seconds: dict[str, list[float]], step: str, unit: str) -> list[float]:
    return [a / b for a, b in zip(seconds[step], seconds[unit], strict=True)]


def _ours(
    model: StreamTransformer, tokens: Tensor, sweep: list, shards: TokenShards | None, options: Options
) -> Callable[[], np.ndarray]:
    """The sweep: ln p [1 + edits, rows] of the next token at the last position, or losses per token."""
    prompts, last = tokens[:, :-1].tolist(), [tokens.shape[1] - 2] * len(tokens)

    def answers() -> np.ndarray:
        return answer_log_probs(model, prompts, last, tokens[:, -1:].tolist(), sweep, budget=options.budget)[..., 0]

    def losses(shards: TokenShards) -> np.ndarray:
        found = document_losses(model, shards, sweep, batch_size=len(tokens), budget=options.budget)
        return np.concatenate([found.baseline[None], found.edited]) / found.tokens

    return answers if shards is None else lambda: losses(shards)


def _difference(model: StreamTransformer, tokens: Tensor, sweep: list, found: np.ndarray, *, losses: bool) -> float:
    """The largest difference to one whole pass per edit, of `CHECKED` edits spread over the sweep, or all of a few."""
    step = max(1, len(sweep) // CHECKED) if len(sweep) > 100 else 1
    worst = 0.0
    for e in range(0, len(sweep), step):
        with edit(model, sweep[e]):
            log_p = model(tokens[:, :-1]).log_softmax(-1).gather(2, tokens[:, 1:, None])[..., 0]
        expected = -log_p.double().mean(1) if losses else log_p[:, -1]
        worst = max(worst, float(np.abs(found[1 + e] - expected.numpy()).max()))
    return worst


def _shards(folder: Path, tokens: Tensor, vocab: int) -> TokenShards:
    """The rows as documents."""
    tokens.numpy().astype(np.uint16).tofile(folder / "tokens.bin")
    np.save(folder / "starts.npy", np.arange(len(tokens) + 1) * tokens.shape[1])
    sizes = {name: (folder / name).stat().st_size for name in ("tokens.bin", "starts.npy")}
    sums = {name: sha256(folder / name) for name in sizes}
    meta = {"format": FORMAT, "bytes": sizes, "sha256": sums, "dtype": "uint16", "d_vocab": vocab, "pad_id": 0}
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    return TokenShards(folder)


def _peer_name() -> str:
    return f"transformer-lens {version('transformer-lens')}, transformers {version('transformers')}"


def _peers(
    model: StreamTransformer, tokens: Tensor, heads: list[Head], *, losses: bool
) -> dict[str, Callable[[], object]]:
    """TransformerLens' forward pass and its sweep, a pass per head."""
    bridge, x = as_bridge(model), tokens[:, :-1]
    torch.testing.assert_close(bridge(x), model(x), rtol=0, atol=1e-3)

    def sweep() -> None:
        for head in heads:

            def ablate(z: Tensor, hook: Any, index: int = head.head) -> Tensor:
                z = z.clone()
                z[:, :, index] = 0
                return z

            logits = bridge.run_with_hooks(x, fwd_hooks=[(f"blocks.{head.layer}.attn.hook_z", ablate)])
            if losses:
                torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
            else:
                logits[:, -1].log_softmax(-1)

    return {"peer": lambda: [bridge(x) for _ in range(UNITS)], "peer sweep": sweep}


def as_bridge(model: Any) -> Any:
    """A `TransformerBridge` around GPT-2 with the weights of a `std-t`: LayerNorm, learned positions, no biases."""
    c = model.config
    config = GPT2Config(
        n_layer=c.n_layers, n_head=c.n_heads, n_embd=c.d_model, n_inner=c.d_mlp, vocab_size=c.d_vocab,
        n_positions=c.n_ctx, activation_function="gelu", layer_norm_epsilon=model.ln_final.eps,
    )  # fmt: skip
    gpt2 = GPT2LMHeadModel(config).eval()
    weights = {name: torch.zeros_like(w) for name, w in gpt2.state_dict().items()}
    weights |= {"transformer.wte.weight": model.embed.weight, "lm_head.weight": model.head}
    weights["transformer.wpe.weight"] = model.pos_embed.weight
    norms = {"transformer.ln_f": model.ln_final}
    for i, block in enumerate(model.blocks):
        name = f"transformer.h.{i}"
        norms |= {f"{name}.ln_1": block.ln1, f"{name}.ln_2": block.ln2}
        attn, mlp = block.attn, block.mlp
        weights[f"{name}.attn.c_attn.weight"] = torch.cat([p.matrix() for p in (attn.q, attn.k, attn.v)], 1)
        weights[f"{name}.attn.c_proj.weight"] = attn.o.matrix()
        weights |= {f"{name}.mlp.c_fc.weight": mlp.up.matrix(), f"{name}.mlp.c_proj.weight": mlp.down.matrix()}
    for name, norm in norms.items():
        weights |= {f"{name}.weight": norm.weight, f"{name}.bias": norm.bias}
    gpt2.load_state_dict(weights)
    return build_bridge_from_module(gpt2, "GPT2LMHeadModel", hf_config=config)


def measure(options: Options) -> None:
    """Measure and print."""
    table = Table(
        "case",
        "vocabulary",
        "edits",
        "forward",
        "sweep",
        "forwards",
        "rounds",
        "peer's forwards",
        "peer / ours",
        "max Δ, nats",
    )
    for vocab, case in itertools.product(options.vocab, options.cases):
        table.add_row(*_measure(options, vocab, case))
    print(
        f"torch {torch.__version__}, CPU, {torch.get_num_threads()} threads, float32; {options.layers} layers, "
        f"{options.heads} heads, width {options.width}, {options.batch} x {options.length} tokens, "
        f"{options.clock} time; peer: {_peer_name()}"
    )
    Console(width=132).print(table)
    print(f"largest memory of the process, both sides: {getrusage(RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB")
