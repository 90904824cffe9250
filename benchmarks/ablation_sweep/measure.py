"""Measurements of `python -m benchmarks.ablation_sweep`."""

import itertools
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformer_lens.model_bridge.sources import build_bridge_from_module
from transformers import GPT2Config, GPT2LMHeadModel

from streamscope.benchmarks.ablation_sweep import Case, Options
from streamscope.benchmarks.ablation_sweep.given_run import ablated, compare
from streamscope.benchmarks.inputs import random_tokens, write_shards
from streamscope.benchmarks.timing import interleaved, machine
from streamscope.cli.terminal import print_grid
from streamscope.interventions.edits import scale_heads
from streamscope.interventions.observe import answer_log_probs, document_losses
from streamscope.models import build
from streamscope.models.head_spec import Head, parse_heads
from streamscope.models.hooks import edit
from streamscope.models.interop.huggingface.families import FAMILIES, native
from streamscope.models.interop.tables import give, shapes_of
from streamscope.models.transformer import StreamTransformer
from streamscope.text.shards import TokenShards

UNITS = 3
"""Number of forward passes timed together."""
CHECKED = 24
"""Number of pairs compared with a forward pass of their own."""


def _measure(options: Options, vocab: int, case: Case) -> list[str]:
    shape: dict[str, Any] = {
        "n_layers": options.layers, "n_heads": options.heads, "d_model": options.width, "d_vocab": vocab,
        "n_ctx": options.length, "init_std": 0.1,
    }  # fmt: skip
    model = build("std-t", **shape)
    x, y = random_tokens(vocab, options.batch, options.length)
    tokens = torch.cat([x, y[:, -1:]], 1)
    heads = parse_heads("all", options.layers, options.heads)
    groups = list(itertools.combinations(heads, 2)) if case == "pairs" else [(head,) for head in heads]
    sweep = [scale_heads(group, 0.0) for group in groups]
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        starts = np.arange(len(tokens) + 1) * tokens.shape[1]
        shards = write_shards(Path(folder), tokens.numpy(), starts, vocab) if case == "losses" else None
        outputs: list[np.ndarray] = []
        steps: dict[str, Callable[[], object]] = {
            "forward": lambda: [model(x) for _ in range(UNITS)],
            "sweep": lambda: outputs.append(_swept(model, tokens, sweep, shards, options)),
        }
        if options.peer and case != "pairs":
            steps |= _peers(model, tokens, heads, losses=case == "losses")
        model(x)  # the first call of a process is slow
        times = interleaved(steps, rounds=options.rounds, clock=options.clock)
        difference = _difference(model, tokens, sweep, outputs[0], losses=case == "losses")
    for name in {"forward", "peer"} & set(times):
        times[name] = [s / UNITS for s in times[name]]
    pairs = [("sweep", "forward"), ("peer sweep", "peer"), ("peer sweep", "sweep")]
    ratios = [str(times.ratio(*pair)) if set(pair) <= set(times) else "–" for pair in pairs]
    seconds = (f"{times.median(name):.3f} s" for name in ("forward", "sweep"))
    return [case, f"{vocab:,}", str(len(sweep)), *seconds, *ratios, f"{difference:.1e}"]


def _swept(
    model: StreamTransformer, tokens: Tensor, sweep: list, shards: TokenShards | None, options: Options
) -> np.ndarray:
    """ln p [1 + edits, rows] of the next token at the last position, or losses per token."""
    if shards is None:
        last = [tokens.shape[1] - 2] * len(tokens)
        return answer_log_probs(model, tokens[:, :-1].tolist(), last, tokens[:, -1:].tolist(), sweep)[..., 0]
    sums = document_losses(model, shards, sweep, batch_size=len(tokens), budget=options.budget)
    return np.concatenate([sums.baseline[None], sums.edited]) / sums.tokens


def _difference(model: StreamTransformer, tokens: Tensor, sweep: list, output: np.ndarray, *, losses: bool) -> float:
    """The largest difference to one whole pass per edit, over every edit of a short sweep or `CHECKED` spread ones."""
    step = max(1, len(sweep) // CHECKED) if len(sweep) > 100 else 1
    worst = 0.0
    for e in range(0, len(sweep), step):
        with edit(model, sweep[e]):
            log_p = model(tokens[:, :-1]).log_softmax(-1).gather(2, tokens[:, 1:, None])[..., 0]
        expected = -log_p.double().mean(1) if losses else log_p[:, -1]
        worst = max(worst, float(np.abs(output[1 + e] - expected.numpy()).max()))
    return worst


def _peers(
    model: StreamTransformer, tokens: Tensor, heads: list[Head], *, losses: bool
) -> dict[str, Callable[[], object]]:
    """TransformerLens' forward pass and its sweep, a pass per head."""
    bridge, x = as_bridge(model), tokens[:, :-1]
    torch.testing.assert_close(bridge(x), model(x), rtol=0, atol=1e-3)

    def score(logits: Tensor) -> None:
        if losses:
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
        else:
            logits[:, -1].log_softmax(-1)

    return {"peer": lambda: [bridge(x) for _ in range(UNITS)], "peer sweep": lambda: ablated(bridge, x, heads, score)}


def as_bridge(model: Any) -> Any:
    """A `TransformerBridge` around GPT-2 with the weights of a `std-t`, as an export writes them."""
    kind, gpt2_config, target_config = native(model.config)
    config, family = GPT2Config(**gpt2_config), FAMILIES[kind]
    gpt2 = GPT2LMHeadModel(config).eval()
    weights = {name: p.detach() for name, p in model.named_parameters()}
    converted = give(family.names(target_config, family.prefix), weights, shapes_of(target_config))
    missing, _ = gpt2.load_state_dict(converted, strict=False)
    assert missing in ([], ["lm_head.weight"])  # tied
    return build_bridge_from_module(gpt2, "GPT2LMHeadModel", hf_config=config)


def measure(options: Options) -> None:
    if options.run is not None:
        compare(options)
        return
    print(
        f"{machine()}, float32; {options.layers} layers, {options.heads} heads, width {options.width}, "
        f"{options.batch} x {options.length} tokens, {options.clock} time; peer: transformer-lens "
        f"{version('transformer-lens')}, transformers {version('transformers')}"
    )
    titles = ["case", "vocabulary", "edits", "forward", "sweep", "forwards", "peer's forwards", "peer / ours"]
    rows = [_measure(options, vocab, case) for vocab, case in itertools.product(options.vocab, options.cases)]
    print_grid([*titles, "max Δ, nats"], rows, width=132)
    print(f"largest memory of the process, both sides: {getrusage(RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB")
