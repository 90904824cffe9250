"""Take a residual stream away and measure what the model loses: DST §4.1, Table 4.

    python -m interventions.streams                                the bundled LFA: x_t → 0, x_e → 0, x_t → random words
    python -m interventions.streams runs/kron --method zero random mean resample --out streams.parquet
    python -m interventions.streams runs/kron --where everywhere head --streams token
    python -m interventions.streams runs/kromhc --streams s0 s2 --where 2-4 --reach onwards
    python -m interventions.streams runs/lfa --control runs/kron --streams token

DST Table 4 evaluates trained models "with one stream removed or corrupted": x_t → 0, x_e → 0, x_t → random vocabulary
embeddings, and gives the change of the loss in percent of the baseline. It does not say where. So every place is
measured: `everywhere` nobody reads the stream; x_t → 0 is then a model that sees no text.
`head`: only the final norm and the head read the change. L3: layer 3, with --reach layer its own attention and FFN
only, the stream being put back after it; with --reach onwards the stream is changed where it enters layer 3 and stays
so, which in a model with a frozen token stream changes every later layer and the head.

Methods: zero; random, embeddings of random tokens, drawn --draws times (x_e does not begin as embeddings and has
none); mean, over the measured documents; resample, the stream of another stretch of the data, drawn --draws times.
With one stream there is nothing left when it is gone: --streams resid measures that, layer by layer, where asked for.
--control measures a second model on the same documents with the same draws, and the difference of the changes, paired
by document; it must have the streams, the tokenizer and the context of the run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from streamscope.interventions.control_run import (
    ControlOptions,
    check_tokens,
    named_with_control,
    open_runs,
    show_differences,
)
from streamscope.interventions.streams_tables import (
    EVERYWHERE,
    HEAD,
    UNITS,
    cells_of,
    empty_stream,
    stream_losses,
    stream_table,
)
from streamscope.models.bounds import Count, Seed
from streamscope.models.cli import command, parse
from streamscope.models.errors import InputError
from streamscope.probes.command import INTERVAL, DocumentOptions, check_options, progress_bar, show, write_results

if TYPE_CHECKING:
    import pandas as pd

    from streamscope.models.transformer import StreamTransformer

PERCENT = "percent (95 %)"


@dataclass(frozen=True, kw_only=True)
class Options(DocumentOptions, ControlOptions):
    """Arguments of `python -m interventions.streams`."""

    streams: tuple[str, ...] = ()
    """Streams to take away: token, context; s0, s1, …; resid. Default: all that the model has."""
    method: tuple[Literal["zero", "random", "mean", "resample"], ...] = ("zero", "random")
    """What stands in its place."""
    where: tuple[str, ...] = ()
    """Layers as 3 or 2-4, head, everywhere; default: all of these."""
    reach: tuple[Literal["layer", "onwards"], ...] = ("layer", "onwards")
    """Of a layer: only that layer reads the change, or everything from there on."""
    draws: Count = 3
    """Draws of random and resample."""
    seed: Seed = 0
    """Of the draws."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, print, write."""
    options = parse(Options, argv, __doc__)
    check_options(options)
    if not options.method or not options.reach:
        raise InputError("give at least one --method and one --reach")

    from streamscope.interventions.streams_plot import plot
    from streamscope.models.checkpoint import run_folder
    from streamscope.models.text.shards import truncated_documents
    from streamscope.models.training.data import evaluation_shards

    opened = open_runs(options)
    model = opened[0][1]
    check_tokens(options, opened, context=True)
    places = parse_places(options.where, model.config.n_layers)
    streams = chosen_streams(model, options.streams)
    for _, other in opened[1:]:
        check_streams(options, other, streams)
    cells = cells_of(streams, options.method, places, options.reach)
    shards = evaluation_shards(run_folder(options.run), model._text(), options.data)
    limits: dict[str, Any] = {"max_documents": options.max_documents, "batch_size": options.batch_size}
    limits |= {"draws": options.draws, "seed": options.seed}
    cut = truncated_documents(shards, model.config.n_ctx, options.max_documents)
    tables, measured = [], []
    for one, net in opened:
        losses, index = stream_losses(net, shards, cells, **limits, progress=progress_bar(f"{one}: streams"))
        tables.append(stream_table(net, cells, losses, index))
        measured.append(losses)
        _print(one, tables[-1], cut)
    table = named_with_control([one for one, _ in opened], tables)
    written: dict[str, Any] = {"": (table, UNITS)}
    if len(opened) > 1:
        from streamscope.interventions.document_differences import STREAM_UNITS, compare_streams

        empty = [[empty_stream(net, cell) for cell in cells] for _, net in opened]
        found = compare_streams(cells, (measured[0], measured[1]), index, (empty[0], empty[1]))
        show_differences(found, [one for one, _ in opened], ("definition", "where", "reach"), units="documents")
        written["control"] = (found, STREAM_UNITS)
    title = f"{' and '.join(one for one, _ in opened)}: loss without a stream, {table['n'].iloc[0]} documents"
    about = {"data": shards.meta["source"], "seed": options.seed, "control": options.control}
    write_results(options, written, plot(table, title), **about)


def _print(name: str, table: "pd.DataFrame", cut: int) -> None:
    """The changes of a model's loss with their intervals, and why cells are undefined."""
    from streamscope.probes.undefined import legend

    one = table.iloc[0]
    print(f"{name}: loss {one['baseline']:.4f} nats/token; {one['n']} documents, {one['tokens']:,} tokens, {cut} cut")
    print("DST Table 4: x_t → 0 +36 %, x_e → 0 +9.5 %, x_t → random vocabulary +28 %; its model, its corpus, no place")
    bounds = table[["percent", "percent_low", "percent_high"]].itertuples(index=False)
    text = ["undefined" if a != a else f"{a:+.2f} ({low:+.2f} … {high:+.2f})" for a, low, high in bounds]
    columns = ("definition", "where", "reach", "loss", "delta", INTERVAL, PERCENT, "p_holm", "draws", "draw_sd")
    show(table.assign(**{PERCENT: text}), "change of the loss, 95 % over documents", columns, digits=4)
    if lines := legend(table.drop(columns="paper_percent").assign(undefined=_without_paper(table["undefined"]))):
        print(lines)


def check_streams(options: ControlOptions, control: "StreamTransformer", streams: Sequence[str]) -> None:
    """Raise `InputError` for a control that lacks one of the streams measured."""
    from streamscope.interventions.steering import streams_of

    have = streams_of(control)
    if missing := [stream for stream in streams if stream not in have]:
        raise InputError(
            f"--control {options.control} has no stream {missing[0]} (it has {', '.join(have)}); "
            "give --streams that both models have, or another control"
        )


def chosen_streams(model: "StreamTransformer", chosen: Sequence[str]) -> tuple[str, ...]:
    """The streams to take away. With a single stream, only `resid` by name.

    Raises `InputError` for a stream the model does not have, and for a single stream that was not asked for.
    """
    from streamscope.interventions.steering import streams_of

    streams = streams_of(model, chosen)
    if streams == ("resid",) and not chosen:
        raise InputError(
            f"{model.config.name} has one residual stream, and without it nothing is left: use interventions.ablate "
            "for its heads or interventions.patch for its layers, or --streams resid to measure it all the same"
        )
    return streams


def parse_places(specs: Sequence[str], n_layers: int) -> list[int | str]:
    """Layers ascending, then head and everywhere; all of them without specs. Raises `InputError` as `parse_layers`."""
    from streamscope.interventions.steer import parse_layers

    last = [name for name in (HEAD, EVERYWHERE) if name in specs or not specs]
    layers = [spec.replace("L", "") for spec in specs if spec not in (HEAD, EVERYWHERE)]
    for spec in layers:
        if not spec.replace("-", "").isdigit():
            raise InputError(f"--where {spec}: give layers as 3 or 2-4, head or everywhere")
    found = parse_layers(layers, n_layers, "--where") if specs else list(range(n_layers))
    return [*found, *last]


def _without_paper(texts: Any) -> list[str]:
    """The reasons of undefined cells, without the paper's column, which is not printed."""
    from streamscope.probes.undefined import note, reasons

    return [note({c: why for c, why in reasons(text).items() if c != "paper_percent"}) for text in texts]


if __name__ == "__main__":
    command(main)
