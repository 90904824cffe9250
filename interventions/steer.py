"""Steer a model along a direction: add c·d to its residual streams and see what its predictions become.

    python -m probes.directions runs/lfa --out indoor.parquet
    python -m interventions.steer runs/lfa --direction indoor.safetensors
    python -m interventions.steer runs/lfa --direction indoor.safetensors:2 --layers 2-4 --scale -3 -1 0 1 3
    python -m interventions.steer runs/kromcanon --direction indoor.safetensors --streams s0 s2 --raw --scale 5

After every block of --layers, x ← x + c·m·d at all positions, in each of --streams: d is the unit direction, m the mean
norm of the residual stream (what the head would read) after that block over the measured documents, or 1 with --raw. So
c = 1 adds as much as there is, once per layer. Adding to several streams adds to each: what the head reads moves by
their sum or mean. KL(P_c ‖ P_0), loss and the shift of d·x are per token with 95 % intervals over documents. Any
vector of that size disturbs a model: `random` is the mean KL of random directions, added in the same way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from streamscope.models.bounds import AnyNumber, Count, Seed, Whole
from streamscope.models.cli import command, parse
from streamscope.models.errors import InputError
from streamscope.probes.command import DocumentOptions, check_options, open_run, progress_bar, show, write_results

if TYPE_CHECKING:
    import pandas as pd

UNITS = {
    "scale": "mean residual norms, or units of the residual stream with raw",
    **dict.fromkeys(("kl", "kl_low", "kl_high", "baseline", "loss", "delta", "delta_low", "delta_high"), "nats/token"),
    **dict.fromkeys(("random_kl", "random_delta"), "nats/token, mean over random directions"),
    **dict.fromkeys(("shift", "shift_low", "shift_high"), "units of the residual stream"),
}


@dataclass(frozen=True, kw_only=True)
class Options(DocumentOptions):
    """Arguments of `python -m interventions.steer`."""

    direction: str | None = None
    """FILE[:LAYER|best|norm], written by probes.directions."""
    stream: str = "resid"
    """Whose direction of the file: resid, s0, token, …"""
    method: Literal["mean", "svd"] = "mean"
    """Difference of means, or first singular vector."""
    layers: tuple[str, ...] = ()
    """Layers after which to add it, as 3 or 2-4; default: the direction's own."""
    streams: tuple[str, ...] = ()
    """Streams to add it to: resid; token, context; s0, s1, …; default: all."""
    scale: tuple[AnyNumber, ...] = (-1.0, -0.5, 0.0, 0.5, 1.0)
    """Factors c."""
    raw: bool = False
    """c in units of the residual stream, not in mean norms."""
    draws: Whole = 3
    """Random directions to compare each scale with; 0: none."""
    prompt: str = "Once upon a time"
    """What the samples continue; empty for no samples."""
    sample_tokens: Whole = 40
    """Tokens of a sample."""
    seed: Seed = 0
    """Of the samples and of the random directions."""
    batch_size: Count = 16
    """Documents per batch."""


def parse_layers(specs: Sequence[str], n_layers: int, option: str = "--layers") -> list[int]:
    """Layers of "3" and "2-4" (inclusive), ascending, each once. Raises `InputError`, naming the option, otherwise."""
    found: set[int] = set()
    for spec in specs:
        first, dash, last = spec.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise InputError(f"{option} {spec}: give layers as 3 or 2-4")
        some = range(int(first), int(last or first) + 1)
        if not some or some[-1] >= n_layers:
            raise InputError(f"{option} {spec}: the model has layers 0 to {n_layers - 1}")
        found |= set(some)
    return sorted(found)


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, steer, measure, print, write."""
    options = parse(Options, argv, __doc__)
    check_options(options)
    if options.direction is None:
        raise InputError("give --direction FILE; python -m probes.directions RUN --out FILE writes one")

    from streamscope.interventions.reference import document_rows
    from streamscope.interventions.steering import continuations, mean_norms, plot, steer, steering_edits, streams_of
    from streamscope.models.checkpoint import run_folder
    from streamscope.models.text.shards import document_batches
    from streamscope.models.training.data import evaluation_shards
    from streamscope.probes.direction_files import check_direction, read_direction

    direction = read_direction(options.direction, options.stream, options.method)
    name, model = open_run(options)
    check_direction(direction, model, run_folder(options.run))
    layers = parse_layers(options.layers, model.config.n_layers) or [direction.layer]
    streams = streams_of(model, options.streams)
    room = model.config.n_ctx - len(model._text().encode(options.prompt))
    if options.prompt and not 0 < options.sample_tokens <= room:
        raise InputError(f"--sample-tokens {options.sample_tokens}: the context leaves room for 1 to {room}")
    shards = evaluation_shards(run_folder(options.run), model._text(), options.data)
    d = direction.vector.to(model.cfg.device)
    limits: dict[str, Any] = {"max_documents": options.max_documents, "batch_size": options.batch_size}
    norms = None
    if not options.raw:
        rows = document_rows(document_batches(shards, model.config.n_ctx, options.batch_size, options.max_documents))
        norms = mean_norms(model, rows)
    limits |= {"draws": options.draws, "seed": options.seed, "progress": progress_bar("steering")}
    table = steer(model, shards, d, layers, streams, options.scale, norms, **limits)
    where = f"layer{'s' if len(layers) > 1 else ''} {', '.join(map(str, layers))} to {', '.join(streams)}"
    title = f"{name}: direction of layer {direction.layer} added after {where}"
    _print(title, table)
    if options.prompt:
        sweep = [steering_edits(d, layers, streams, scale, norms) for scale in options.scale]
        texts = continuations(model, options.prompt, sweep, tokens=options.sample_tokens, seed=options.seed)
        table = table.assign(sample=texts)
        for scale, text in zip(options.scale, texts, strict=True):
            print(f"{scale:+g}: {text!r}")
    unit = "units of the stream" if options.raw else "mean residual norms"
    about = {"direction": direction.about, "layers": layers, "streams": list(streams), "norms": norms}
    write_results(options, {"": (table, UNITS)}, plot(table, title, unit), **about, data=shards.meta["source"])


def _print(title: str, table: "pd.DataFrame") -> None:
    """The table, intervals beside their means."""
    shown = table[["scale"]].copy()
    for name, heading in (("kl", "KL (95 %)"), ("delta", "change of loss (95 %)"), ("shift", "shift of d·x (95 %)")):
        parts = table[[name, f"{name}_low", f"{name}_high"]].itertuples(index=False)
        shown[heading] = [f"{a:.4f}" + (f" ({low:.4f} … {high:.4f})" if low == low else "") for a, low, high in parts]
    shown.insert(2, "random", table["random_kl"].map("{:.4f}".format).replace("nan", "undefined"))
    shown.insert(3, "loss", table["loss"])
    one = table.iloc[0]
    print(f"{title}; loss {one['baseline']:.4f} without; {one['documents']} documents, {one['tokens']:,} tokens")
    show(shown, "per token, 95 % over documents", digits=4)


if __name__ == "__main__":
    command(main)
