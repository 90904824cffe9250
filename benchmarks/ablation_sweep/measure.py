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
from streamscope.models.head_spec import parse_heads
from streamscope.models.hooks import edit
from streamscope.models.interop.huggingface.families import FAMILIES, native
from streamscope.models.interop.tables import give, shapes_of

UNITS = 3  # number of forward passes timed together
CHECKED = 24  # number of edits compared with a forward pass of their own, at least


def _measure(options: Options, vocab: int, case: Case) -> list[str]:
    shape: dict[str, Any] = {
        "n_layers": options.layers, "n_heads": options.heads, "d_model": options.width, "d_vocab": vocab,
        "n_ctx": options.length, "init_std": 0.1,
    }  # fmt: skip
    model, losses = build("std-t", **shape), case == "losses"
    x, y = random_tokens(vocab, options.batch, options.length)
    heads = parse_heads("all", options.layers, options.heads)
    sweep = [scale_heads([head], 0.0) for head in heads]
    outputs: list[np.ndarray] = []  # [1 + edits, rows]: losses per token, or ln p of the last token
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        tokens = torch.cat([x, y[:, -1:]], 1).numpy()
        shards = write_shards(Path(folder), tokens, np.arange(len(tokens) + 1) * tokens.shape[1], vocab)

        def swept() -> None:
            if losses:
                sums = document_losses(model, shards, sweep, batch_size=len(x), budget=options.budget)
                outputs.append(np.concatenate([sums.baseline[None], sums.edited]) / sums.tokens)
            else:
                last = [options.length - 1] * len(x)
                outputs.append(answer_log_probs(model, x.tolist(), last, y[:, -1:].tolist(), sweep)[..., 0])

        steps: dict[str, Callable[[], object]] = {"forward": lambda: [model(x) for _ in range(UNITS)], "sweep": swept}
        if options.peer:
            bridge = as_bridge(model)
            torch.testing.assert_close(bridge(x), model(x), rtol=0, atol=1e-3)

            def score(logits: Tensor) -> None:
                if losses:
                    torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")
                else:
                    logits[:, -1].log_softmax(-1)

            steps["peer"] = lambda: [bridge(x) for _ in range(UNITS)]
            steps["peer sweep"] = lambda: ablated(bridge, x, heads, score)
        model(x)  # the first call of a process is slow
        times = interleaved(steps, rounds=options.rounds, clock=options.clock)
        difference = 0.0
        for e in range(0, len(sweep), max(1, len(sweep) // CHECKED)):
            with edit(model, sweep[e]):
                log_p = model(x).log_softmax(-1).gather(2, y[..., None])[..., 0]
            expected = -log_p.double().mean(1) if losses else log_p[:, -1]
            difference = max(difference, float(np.abs(outputs[0][1 + e] - expected.numpy()).max()))
    for name in {"forward", "peer"} & set(times):
        times[name] = [s / UNITS for s in times[name]]
    pairs = [("sweep", "forward"), ("peer sweep", "peer"), ("peer sweep", "sweep")]
    ratios = [times.ratio(*pair) if set(pair) <= set(times) else "–" for pair in pairs]
    seconds = (f"{times.median(name):.3f} s" for name in ("forward", "sweep"))
    return [case, f"{vocab:,}", str(len(sweep)), *seconds, *ratios, f"{difference:.1e}"]


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
