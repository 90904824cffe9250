"""`python -m benchmarks.ablation_sweep --run RUN`: a model of real size against TransformerLens, with memory.

Each side runs in a process of its own, round by round, with the options as JSON: `worker` prints seconds, MiB and the
losses.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from streamscope.benchmarks.ablation_sweep import Options
from streamscope.benchmarks.inputs import random_tokens, write_shards
from streamscope.benchmarks.timing import CLOCKS, ratios
from streamscope.interventions.edits import scale_heads
from streamscope.interventions.observe import document_losses
from streamscope.models.checkpoint import HUGGING_FACE, load, model_config, run_folder
from streamscope.models.head_spec import Head, parse_heads

SIDES = ("ours", "peer")


def compare(options: Options) -> None:
    """Measure both sides in turn and print."""
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as folder:
        source = transformers_folder(str(options.run), Path(folder))
        work = [sys.executable, "-c", f"from {__name__} import worker; worker()"]
        for i in range(options.rounds):
            for side in SIDES if i % 2 == 0 else SIDES[::-1]:
                words = [*work, side, json.dumps(asdict(options)), source]
                done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
                found[side].append(json.loads(done.stdout))
    seconds = {side: [one["seconds"] for one in rounds] for side, rounds in found.items()}
    memory = {side: max(one["MiB"] for one in rounds) for side, rounds in found.items()}
    ratio, low, high = ratios(seconds["peer"], seconds["ours"])
    a, b = (np.array(found[side][0]["losses"]) for side in SIDES)
    table = Table("edits", "ours", "peer", "peer / ours", "rounds", "ours, MiB", "peer, MiB", "max Δ, nats")
    table.add_row(
        str(len(a)), *(f"{median(seconds[side]):.2f} s" for side in SIDES), f"{ratio:.2f}", f"{low:.2f} to {high:.2f}",
        *(f"{memory[side]:,.0f}" for side in SIDES), f"{np.abs(a - b).max():.1e}",
    )  # fmt: skip
    print(f"{options.run}: {options.batch} x {options.length} tokens, {options.clock} time, torch {torch.__version__}")
    Console(width=132).print(table)


def transformers_folder(run: str, folder: Path) -> str:
    """The folder of a run in the format of the transformers library: that of hf:FOLDER, or an export into `folder`.

    The export has a process of its own, because a child's largest memory is at least that of its parent.
    """
    if run.startswith(HUGGING_FACE):
        return run.removeprefix(HUGGING_FACE)
    code = "import sys; from pathlib import Path; from streamscope.models.interop.export.write import export; "
    code += "export(sys.argv[1], Path(sys.argv[2]), native=True)"
    subprocess.run([sys.executable, "-c", code, run, str(folder / "model")], stdout=subprocess.DEVNULL, check=True)
    return str(folder / "model")


def side(name: str, options: Options, source: str) -> dict[str, Any]:
    """Seconds of the sweep, largest memory of this process in MiB, and losses [edits, documents] per token.

    `source` is the folder of the transformers library's model, for the peer.
    """
    assert options.run is not None
    config = model_config(run_folder(options.run))
    tokens, _ = random_tokens(config.d_vocab, options.batch, options.length + 1)
    heads = parse_heads("all", config.n_layers, config.n_heads)[:: options.every]
    return _ours(options, tokens, heads) if name == "ours" else _peer(options, tokens, heads, source)


def _ours(options: Options, tokens: Tensor, heads: list[Head]) -> dict[str, Any]:
    model = load(str(options.run))
    with tempfile.TemporaryDirectory() as folder:
        starts = np.arange(len(tokens) + 1) * tokens.shape[1]
        shards = write_shards(Path(folder), tokens.numpy(), starts, model.config.d_vocab)
        sweep = [scale_heads([head], 0.0) for head in heads]
        start = CLOCKS[options.clock]()
        found = document_losses(model, shards, sweep, budget=options.budget)
        return _about(options, start, found.edited / found.tokens)


@torch.no_grad()
def _peer(options: Options, tokens: Tensor, heads: list[Head], source: str) -> dict[str, Any]:
    from streamscope.models.interop.huggingface.bridged import bridge

    model = bridge(source)
    start, losses = CLOCKS[options.clock](), np.zeros((len(heads), len(tokens)))
    for e, head in enumerate(heads):

        def ablate(z: Tensor, hook: Any, index: int = head.head) -> Tensor:
            z = z.clone()
            z[:, :, index] = 0
            return z

        for d, row in enumerate(tokens):
            logits = model.run_with_hooks(row[None, :-1], fwd_hooks=[(f"blocks.{head.layer}.attn.hook_z", ablate)])
            losses[e, d] = torch.nn.functional.cross_entropy(logits[0], row[1:])
    return _about(options, start, losses)


def _about(options: Options, start: float, losses: np.ndarray) -> dict[str, Any]:
    seconds, memory = CLOCKS[options.clock]() - start, getrusage(RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": seconds, "MiB": memory, "losses": losses.tolist()}


def read(words: Mapping[str, Any]) -> Options:
    """Options from JSON."""
    given: dict[str, Any] = {}
    for one in fields(Options):
        value = words[one.name]
        given[one.name] = tuple(value) if isinstance(value, list) else value
    return Options(**given)


def worker() -> None:
    """One side in this process: its name, the options and the transformers library's folder are the arguments."""
    print(json.dumps(side(sys.argv[1], read(json.loads(sys.argv[2])), sys.argv[3])))
