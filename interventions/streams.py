"""Take a residual stream away and measure what the model loses: DST §4.1, Table 4.

    python -m interventions.streams                                the bundled LFA: x_t → 0, x_e → 0, x_t → random words
    python -m interventions.streams runs/kron --method zero random mean resample --out streams.parquet
    python -m interventions.streams runs/kron --where everywhere head --streams token
    python -m interventions.streams runs/kromhc --streams s0 s2 --where 2-4 --reach onwards

DST Table 4 evaluates trained models "with one stream removed or corrupted": x_t → 0, x_e → 0, x_t → random vocabulary
embeddings, and gives the change of the loss in percent of the baseline. It does not say where. So every place is
measured: `everywhere` nobody reads the stream; x_t → 0 is then a model without any text, and its loss that of a guess.
`head`: only the final norm and the head read the change. L3: layer 3, with --reach layer its own attention and FFN
only, the stream being put back after it; with --reach onwards the stream is changed where it enters layer 3 and stays
so, which in a model with a frozen token stream changes every later layer and the head.

Methods: zero; random, embeddings of random tokens, drawn --draws times (x_e does not begin as embeddings and has
none); mean, over the measured documents; resample, the stream of another stretch of the data, drawn --draws times.
With one stream there is nothing left when it is gone: --streams resid measures that, layer by layer, where asked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from interventions.streams_tables import EVERYWHERE, HEAD, UNITS, ablate_streams, cells_of, plot
from models.cli import command, parse
from models.errors import InputError
from probes.command import INTERVAL, DocumentOptions, check_options, open_run, progress_bar, show, write_results

if TYPE_CHECKING:
    from models.transformer import StreamTransformer

PERCENT = "percent (95 %)"


@dataclass(frozen=True, kw_only=True)
class Options(DocumentOptions):
    """Arguments of `python -m interventions.streams`."""

    streams: tuple[str, ...] = ()
    """Streams to take away: token, context; s0, s1, …; resid. Default: all that the model has."""
    method: tuple[Literal["zero", "random", "mean", "resample"], ...] = ("zero", "random")
    """What stands in its place."""
    where: tuple[str, ...] = ()
    """Layers as 3 or 2-4, head, everywhere; default: all of these."""
    reach: tuple[Literal["layer", "onwards"], ...] = ("layer", "onwards")
    """Of a layer: only that layer reads the change, or everything from there on."""
    draws: int = 3
    """Draws of random and resample."""
    seed: int = 0
    """Of the draws."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, print, write."""
    options = parse(Options, argv, __doc__)
    check_options(options)
    if options.draws < 1:
        raise InputError(f"--draws {options.draws}: at least 1")
    if not options.method or not options.reach:
        raise InputError("give at least one --method and one --reach")

    from models.checkpoint import run_folder
    from models.text.shards import truncated_documents
    from models.training.data import evaluation_shards
    from probes.undefined import legend

    name, model = open_run(options)
    places = parse_places(options.where, model.config.n_layers)
    cells = cells_of(chosen_streams(model, options.streams), options.method, places, options.reach)
    shards = evaluation_shards(run_folder(options.run), model._text(), options.data)
    limits: dict[str, Any] = {"max_documents": options.max_documents, "batch_size": options.batch_size}
    limits |= {"draws": options.draws, "seed": options.seed, "progress": progress_bar("streams")}
    table = ablate_streams(model, shards, cells, **limits)
    one = table.iloc[0]
    cut = truncated_documents(shards, model.config.n_ctx, options.max_documents)
    print(f"{name}: loss {one['baseline']:.4f} nats/token; {one['n']} documents, {one['tokens']:,} tokens, {cut} cut")
    print("DST Table 4: x_t → 0 +36 %, x_e → 0 +9.5 %, x_t → random vocabulary +28 %; its model, its corpus, no place")
    bounds = table[["percent", "percent_low", "percent_high"]].itertuples(index=False)
    text = ["undefined" if a != a else f"{a:+.2f} ({low:+.2f} … {high:+.2f})" for a, low, high in bounds]
    columns = ("definition", "where", "reach", "loss", "delta", INTERVAL, PERCENT, "p_holm", "draws", "draw_sd")
    show(table.assign(**{PERCENT: text}), "change of the loss, 95 % over documents", columns, digits=4)
    if lines := legend(table.drop(columns="paper_percent").assign(undefined=_without_paper(table["undefined"]))):
        print(lines)
    figure = plot(table, f"{name}: loss without a stream, {one['n']} documents")
    write_results(options, {"": (table, UNITS)}, figure, data=shards.meta["source"], seed=options.seed)


def chosen_streams(model: "StreamTransformer", chosen: Sequence[str]) -> tuple[str, ...]:
    """The streams to take away. With a single stream, only `resid` by name.

    Raises `InputError` for a stream the model does not have, and for a single stream that was not asked for.
    """
    from interventions.steering import streams_of

    streams = streams_of(model, chosen)
    if streams == ("resid",) and not chosen:
        raise InputError(
            f"{model.config.name} has one residual stream, and without it nothing is left: use interventions.ablate "
            "for its heads or interventions.patch for its layers, or --streams resid to measure it all the same"
        )
    return streams


def parse_places(specs: Sequence[str], n_layers: int) -> list[int | str]:
    """Layers ascending, then head and everywhere; all of them without specs. Raises `InputError` as `parse_layers`."""
    from interventions.steer import parse_layers

    last = [name for name in (HEAD, EVERYWHERE) if name in specs or not specs]
    layers = [spec for spec in specs if spec not in (HEAD, EVERYWHERE)]
    for spec in layers:
        if not spec.replace("-", "").isdigit():
            raise InputError(f"--where {spec}: give layers as 3 or 2-4, head or everywhere")
    found = parse_layers(layers, n_layers, "--where") if specs else list(range(n_layers))
    return [*found, *last]


def _without_paper(texts: Any) -> list[str]:
    """The reasons of undefined cells, without the paper's column, which is not printed."""
    from probes.undefined import note, reasons

    return [note({c: why for c, why in reasons(text).items() if c != "paper_percent"}) for text in texts]


if __name__ == "__main__":
    command(main)
