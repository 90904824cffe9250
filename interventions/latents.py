"""Change the latents of an HDPL model and measure what the model loses and says (HDPL §4.2.1).

    python -m interventions.latents runs/hdpl                      every global path switched off, one at a time
    python -m interventions.latents runs/hdpl --at L2.v *.up --scale 0 0.5 2 --out latents.parquet
    python -m interventions.latents runs/hdpl --at L2.v --dims 3 7 --clamp -2 0 2 --text "Lily had a red"
    python -m interventions.latents runs/hdpl --at L2.v --each --clamp 0
    python -m interventions.latents runs/hdpl --text "Lily had a red" --source "Leo found a big" --share 0 0.5 1

--scale multiplies z, --clamp sets it, --share moves it towards the z of another prompt at the same positions: 1 swaps,
less interpolates. Over documents `delta` is the change of the loss in nats per token, with a 95 % interval over
documents, and `kl` is KL(unedited ‖ edited) of the next token, mean over positions; p_holm corrects over rows of one
edit and value. On texts: KL at every position, and the most probable next tokens before and after.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from streamscope.interventions.latents_tables import (
    NEXT_UNITS,
    PROMPT_UNITS,
    UNITS,
    Cell,
    Kind,
    latents_on_documents,
    latents_on_prompts,
    plot_documents,
    plot_prompt,
)
from streamscope.models.bounds import AnyNumber, Count, Whole
from streamscope.models.cli import command, parse
from streamscope.models.errors import InputError
from streamscope.probes.command import (
    INTERVAL,
    DocumentOptions,
    check_options,
    open_run,
    progress_bar,
    show,
    write_results,
)

if TYPE_CHECKING:
    import pandas as pd

    from streamscope.models.transformer import StreamTransformer


@dataclass(frozen=True, kw_only=True)
class Options(DocumentOptions):
    """Arguments of `python -m interventions.latents`."""

    run: Annotated[str, tyro.conf.Positional] = "hdpl"
    """Run folder of a model with HDPL projections, or a bundled one."""
    at: tuple[str, ...] = ("all",)
    """Projections: L2.q, L2.*, L0-2.up, *.v, all."""
    dims: tuple[Whole, ...] = ()
    """Latent dimensions to change, from 0; default: all."""
    each: bool = False
    """Change one latent dimension at a time, of --dims or of all."""
    together: bool = False
    """Change all the projections at once instead of one at a time."""
    scale: tuple[AnyNumber, ...] = ()
    """Factors on z; 0 is the default when no other change is asked for."""
    clamp: tuple[AnyNumber, ...] = ()
    """Values for z; its prior is N(0, 1)."""
    share: tuple[AnyNumber, ...] = ()
    """Shares of the source's z: 1 swaps (the default when there are sources), less interpolates."""
    text: tuple[str, ...] = ()
    """Texts to predict the continuation of."""
    source: tuple[str, ...] = ()
    """For each text, the one whose latents it gets under --share."""
    position: tuple[Whole, ...] = ()
    """In texts, change these positions only, from BOS = 0; negative ones count from the end of either text."""
    k: Count = 5
    """Most probable next tokens to show."""
    max_documents: Count | None = 200
    """Use at most this many documents; None for all."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, print, write."""
    options = parse(Options, argv, __doc__)
    check_options(options)
    _check(options)

    name, model = open_run(options)
    cells = _cells(options, model)
    tables: dict[str, Any] = {}
    figure = None
    measured = [cell for cell in cells if cell.kind != "share"]
    if options.text:  # seconds, and bad positions raise before documents take minutes
        by_position, following = _prompts(options, name, model, cells)
        figure = plot_prompt(by_position, f"{name}: KL of the prediction under changed latents")
        tables["next" if measured else ""] = (following, NEXT_UNITS)
        tables["positions"] = (by_position, PROMPT_UNITS)
    if measured:
        tables[""] = (_documents(options, name, model, measured), UNITS)
        figure = plot_documents(tables[""][0], f"{name}: change of the loss under changed latents")
    write_results(options, tables, figure, texts=list(options.text), sources=list(options.source))


def _check(options: Options) -> None:
    """What can be wrong before a model is loaded."""
    if options.each and options.together:
        raise InputError("--each changes single dimensions of single projections: leave --together out")
    if options.share and not options.source:
        raise InputError("--share takes latents from another prompt: give --text and --source")
    if options.source and len(options.source) != len(options.text):
        raise InputError(
            f"{len(options.text)} --text and {len(options.source)} --source: give one source for each text"
        )
    if options.position and not options.text:
        raise InputError("--position is a position in a text: give --text")


def _cells(options: Options, model: "StreamTransformer") -> list[Cell]:
    from streamscope.interventions.edits.latents import check_dims, latent_widths, parse_places

    places = parse_places(options.at, model.config)
    check_dims(places, options.dims, model.config)
    widths = latent_widths(model.config)
    shares = options.share or ((1.0,) if options.source else ())
    scales = options.scale or (() if options.clamp or shares else (0.0,))
    changes: list[tuple[Kind, float]] = [("scale", v) for v in scales]
    changes += [("clamp", v) for v in options.clamp] + [("share", v) for v in shares]
    cells = []
    for kind, value in changes:
        for group in [tuple(places)] if options.together else [(place,) for place in places]:
            every = options.dims or tuple(range(widths[group[0].path]))
            for dims in [(d,) for d in every] if options.each else [options.dims or None]:
                cells.append(Cell(group, dims, kind, value))
    return cells


def _documents(options: Options, name: str, model: "StreamTransformer", cells: list[Cell]) -> "pd.DataFrame":
    from streamscope.models.checkpoint import run_folder
    from streamscope.models.training.data import evaluation_shards
    from streamscope.probes.undefined import legend

    shards = evaluation_shards(run_folder(options.run), model._text(), options.data)
    table = latents_on_documents(
        model,
        shards,
        cells,
        max_documents=options.max_documents,
        batch_size=options.batch_size,
        progress=progress_bar("documents"),
    )
    one = table.iloc[0]
    title = f"{name}: loss {one['baseline']:.4f} nats/token; {one['n']} documents, {one['tokens']:,} tokens"
    columns = ("place", "dims", "edit", "value", "loss", "delta", INTERVAL, "p_holm", "kl")
    show(table, title, columns, digits=4)
    if lines := legend(table):
        print(lines)
    return table


def _prompts(
    options: Options, name: str, model: "StreamTransformer", cells: list[Cell]
) -> "tuple[pd.DataFrame, pd.DataFrame]":
    from rich.markup import escape

    tokenizer = model._text()
    texts, sources = ([tokenizer.encode(t) for t in given] for given in (options.text, options.source))
    by_position, following = latents_on_prompts(
        model, texts, sources, cells, at=options.position, k=options.k, progress=progress_bar("texts")
    )
    for prompt, text in enumerate(options.text):
        wide = _wide(following[following["prompt"] == prompt], by_position[by_position["prompt"] == prompt])
        show(wide, f"{name}: after {escape(repr(text))}, next tokens with probability (unedited in brackets)", digits=4)
    return by_position, following


def _wide(following: "pd.DataFrame", by_position: "pd.DataFrame") -> "pd.DataFrame":
    """One row per edit of one text: KL over its positions, then the next tokens from left to right."""
    import pandas as pd
    from rich.markup import escape

    keys, rows = ["place", "dims", "edit", "value"], []
    kl = by_position.groupby(keys)["kl"]
    for key, one in following.groupby(keys, sort=False):
        place, dims, kind, value = key
        of_dims = "" if dims in ("", "all") else f" [{dims}]"
        row = {"change": escape(f"{place}{of_dims} {kind} {value:g}" if place else "none")}
        moved = kl.get_group(key) if place else by_position["kl"] * 0
        row |= {"kl mean": moved.mean(), "kl max": moved.max()}
        told = zip(one["rank"], one["token"], one["probability"], one["before"], strict=True)
        rows.append(row | {str(rank): escape(f"{token!r} {p:.2f} ({b:.2f})") for rank, token, p, b in told})
    return pd.DataFrame(rows)


if __name__ == "__main__":
    command(main)
