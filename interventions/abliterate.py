"""Project a direction out of everything that the blocks write to the residual stream, into a new run folder.

    python -m probes.directions runs/lfa --out indoor.parquet
    python -m interventions.abliterate runs/gpt2 --direction indoor.safetensors --out runs/gpt2-abliterated
    python -m interventions.abliterate runs/lfa --direction indoor.safetensors:3 --dense --embedding --out runs/lfa-3

Attention's output matrices and the FFN's become W' = W (I − d d^T), their biases likewise; with --embedding also the
token embedding and the position table. Channelized output projections (of lfa, for one) need --dense. The direction
is that of the layer with the largest d on held-out prompts (best), the largest norm (norm, as SPEC §1.8), or a layer.
Printed: the largest |d·output| of each branch before and after, the loss, and KL(after ‖ before) of next-token
distributions, per token, 95 % over documents, beside the KL after projecting out random directions instead.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from streamscope.models.bounds import Count, Seed, Whole
from streamscope.models.cli import command, parse
from streamscope.models.errors import InputError
from streamscope.probes.command import INTERVAL, DocumentOptions, RunOptions, open_run, progress_bar, show

if TYPE_CHECKING:
    from streamscope.interventions.divergence import Divergence

CHECKED = 16
"""Documents on which outputs are checked."""


@dataclass(frozen=True, kw_only=True)
class Options(DocumentOptions):
    """Arguments of `python -m interventions.abliterate`."""

    direction: str | None = None
    """FILE[:LAYER|best|norm], written by probes.directions."""
    out: Path | None = None
    """Run folder to write."""
    stream: str = "resid"
    """Whose direction of the file: resid, s0, token, …"""
    method: Literal["mean", "svd"] = "mean"
    """Difference of means, or first singular vector."""
    embedding: bool = False
    """Project the token embedding and the position table as well. A tied head loses the direction with them."""
    dense: bool = False
    """Store identity, independent and Kronecker output projections as the dense matrices they equal, to project."""
    side: Literal["write", "read"] = "write"
    """write: what the matrices write. read: the wrong side, what attention's output matrix reads (SPEC §1.10 a)."""
    draws: Whole = 3
    """Random directions to compare with: the KL after projecting them out instead; 0: none."""
    seed: Seed = 0
    """Of the random directions."""
    max_documents: Count | None = 200
    """Use at most this many documents; None for all."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, project, measure, write, print."""
    options = parse(Options, argv, __doc__)
    if options.out is None or options.direction is None:
        raise InputError("give --direction FILE (of python -m probes.directions) and --out RUN")
    if options.side == "read" and options.embedding:
        raise InputError("--side read changes what attention's output matrix reads; an embedding has no such side")

    from streamscope.models.derived import check_new

    check_new(options.out)

    import torch

    from streamscope.interventions.divergence import document_divergence
    from streamscope.interventions.steering import random_direction
    from streamscope.interventions.weights import abliterated, largest_output
    from streamscope.models.checkpoint import run_folder
    from streamscope.models.derived import write_derived
    from streamscope.models.text.shards import document_batches
    from streamscope.models.training.data import evaluation_shards
    from streamscope.probes.direction_files import check_direction, read_direction

    direction = read_direction(options.direction, options.stream, options.method)
    folder = run_folder(options.run)
    name, model = open_run(RunOptions(run=options.run, device=options.device))
    check_direction(direction, model, folder)
    shards = evaluation_shards(folder, model._text(), options.data)
    d = direction.vector.to(model.cfg.device)
    how: dict[str, Any] = {"side": options.side, "embedding": options.embedding, "dense": options.dense}
    new = abliterated(model, d, **how)
    limits: dict[str, Any] = {"max_documents": options.max_documents, "batch_size": options.batch_size}
    random = [random_direction(len(d), options.seed, draw).to(d) for draw in range(options.draws)]
    variants = [new, *(abliterated(model, r, **how) for r in random)]
    result = document_divergence(model, shards, variants, **limits, progress=progress_bar("loss"))
    _, tokens, _ = next(iter(document_batches(shards, model.config.n_ctx, CHECKED, CHECKED)))
    outputs = [largest_output(m, tokens.to(model.cfg.device), d) for m in (model, new)]
    loss = float(result.loss[0].sum() / result.tokens.sum())
    about = {
        "direction": {**direction.about, "sha256": _digest(torch.as_tensor(direction.vector))},
        "abliteration": how,
    }
    write_derived(
        options.out, new, folder, loss=loss, tokens=int(result.tokens.sum()), **about, outcome="abliterated",
        largest_output={"before": outputs[0], "after": outputs[1]},
    )  # fmt: skip
    _print(name, options, direction.layer, result, outputs)
    print(f"run {options.out}")


def _digest(vector: Any) -> str:
    import hashlib

    return hashlib.sha256(vector.numpy().tobytes()).hexdigest()


def _print(name: str, options: Options, layer: int, result: "Divergence", outputs: list[dict[str, float]]) -> None:
    import pandas as pd

    from streamscope.interventions.divergence import per_token

    parts = {
        "loss before": result.baseline,
        "loss after": result.loss[0],
        "change of loss": result.loss[0] - result.baseline,
        "KL(after ‖ before)": result.kl[0],
    }
    if options.draws:
        parts["KL, random direction"] = result.kl[1:].mean(0)
    table = pd.DataFrame([{"nats per token": key, **per_token(x, result.tokens)} for key, x in parts.items()])
    n, tokens = len(result.tokens), result.tokens.sum()
    done = "written" if options.side == "write" else "read"
    print(f"{name}: direction of layer {layer} projected out of what is {done}; {n} documents, {tokens:,} tokens")
    show(table, "95 % over documents", ("nats per token", "mean", INTERVAL), digits=4)
    rows = [
        {"max |d·output|": part, "before": f"{was:.3g}", "after": f"{outputs[1][part]:.3g}"}
        for part, was in outputs[0].items()
    ]
    show(pd.DataFrame(rows), "largest output along the direction, units of the residual stream")
    if options.side == "read":
        print("the read side leaves what is written along the direction: use --side write to remove it")


if __name__ == "__main__":
    command(main)
