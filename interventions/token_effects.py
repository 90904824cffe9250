"""What the removal of a head changes at every token: the table that `features.predict_effects` explains.

    python -m interventions.token_effects --out effects.parquet            every head of the bundled LFA, one at a time
    python -m interventions.token_effects runs/pls --groups found --data valid.txt --out effects.parquet
    python -m interventions.token_effects runs/pls --heads L5.* top3:pds --max-tokens 20000 --out effects.parquet

One row per position with a next token in its document, in the order of the data: document, position, token, target,
unedited `loss` of the target and `log_p` of the model's own prediction ŷ, and per edit
`delta_loss_L5H4` = ln p(target) unedited − edited, `delta_log_p_L5H4` = ln p(ŷ) edited − unedited, all in nats.
The outputs z of the heads are multiplied by --scale, 0 removes them (LFA App. D; PLS §5.1).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streamscope.models.bounds import AnyNumber, Count
from streamscope.models.cli import command, parse
from streamscope.models.errors import InputError
from streamscope.probes.command import INTERVAL, RunOptions, check_options, open_run, progress_bar, show

if TYPE_CHECKING:
    import pandas as pd

    from streamscope.interventions.groups import Group
    from streamscope.interventions.token_tables import Document

WINDOW = 128
"""Documents whose effects are in memory at a time; a row group of the file."""


COLUMNS = ("edit", "Δ loss", INTERVAL, "|Δ loss|", "Δ log p", "|Δ log p|", "tokens")


@dataclass(frozen=True, kw_only=True)
class Options(RunOptions):
    """Arguments of `python -m interventions.token_effects`."""

    heads: tuple[str, ...] | None = None
    """Heads, each alone: L5.H4, L4.*, all, random3:7, top3:pds. --heads alone, or neither --heads nor --groups: all."""
    groups: tuple[str, ...] = ()
    """Heads together: entity, anchor, semantic (PLS), found, or heads as L5.H4+L5.H5, name=L4.*, top2:entity."""
    scale: AnyNumber = 0.0
    """Factor on the heads' outputs."""
    data: str | None = None
    """SOURCE of the documents; default: the run's validation data."""
    text_field: str = "text"
    """Field of JSON lines, column of parquet, that holds the text."""
    max_tokens: Count | None = None
    """At most this many rows; None for all."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, write, print."""
    options = parse(Options, argv, __doc__)
    check_options(options)

    from streamscope.interventions.token_tables import Summary, documents, write_windows
    from streamscope.models.checkpoint import run_folder
    from streamscope.models.training.data import evaluation_shards

    name, model = open_run(options)
    groups = _groups(options, model)
    names = [group.name for group in groups]
    shards = evaluation_shards(run_folder(options.run), model._text(), options.data, text_field=options.text_field)
    chosen = list(documents(shards, model.config.n_ctx, options.max_tokens))
    if not chosen:
        raise InputError("no document of the data has a token to predict; give another --data")
    cut = sum(one.length - 1 > model.config.n_ctx for one in chosen)
    counts = {"documents": len(chosen), "cut": cut, "left_out": shards.n_documents - len(chosen)}
    summary = Summary(names)
    tables = summary.added(_tables(options, model, groups, chosen))
    if options.out is not None:
        about = _about(options, model, groups, shards.meta["source"] | counts)
        write_windows(tables, options.out, names=names, about=about)
    for _ in tables:
        pass
    print(f"{name}: {len(chosen)} documents, {cut} of them cut at {model.config.n_ctx}, {counts['left_out']} left out")
    title = f"change without the heads (scale {options.scale:g}), nats/token; 95 % over documents"
    show(_by_edit(summary.table()), title, COLUMNS, digits=4)
    if options.out is not None:
        print(f"table {options.out}")


def _by_edit(summary: "pd.DataFrame") -> "pd.DataFrame":
    """Both measures of an edit in one row: mean Δ loss with its interval, mean Δ log p, mean sizes."""
    loss, log_p = (rows.reset_index(drop=True) for _, rows in summary.groupby("measure", sort=False))
    more = {"Δ loss": loss["mean"], "|Δ loss|": loss["mean_abs"]}
    more |= {"Δ log p": log_p["mean"], "|Δ log p|": log_p["mean_abs"]}
    return loss.assign(tokens=loss["n"], **more)


def _groups(options: Options, model: Any) -> "list[Group]":
    """One group per head of --heads, then those of --groups."""
    from streamscope.interventions.groups import Group, HeadFinder
    from streamscope.probes.prompts.alignment import check_tokenizer

    finder = HeadFinder(model, check_tokenizer(model))
    specs = None if options.heads is None and options.groups else options.heads or ("all",)
    alone = finder.groups(["+".join(specs)])[0].heads if specs is not None else ()
    groups = [Group(head.label, (head,)) for head in alone]
    groups += finder.groups(options.groups) if options.groups else []
    if len({group.name for group in groups}) < len(groups):
        raise InputError("a group has the name of a single head; name it as NAME=SPEC")
    return groups


def _tables(
    options: Options, model: Any, groups: "Sequence[Group]", chosen: "Sequence[Document]"
) -> "Iterator[pd.DataFrame]":
    """The rows of the documents, window by window."""
    from streamscope.interventions.batch import ticks
    from streamscope.interventions.edits import scale_heads
    from streamscope.interventions.token_sweep import token_effects
    from streamscope.interventions.token_tables import table_of

    sweep = [scale_heads(group.heads, options.scale) for group in groups]
    rows = sum(len(one.ids) - 1 for one in chosen)
    done = ticks(progress_bar(f"{len(sweep)} edits"), rows * (1 + len(sweep)))
    for first in range(0, len(chosen), WINDOW):
        window = chosen[first : first + WINDOW]
        found = token_effects(model, [one.ids for one in window], sweep, done=done)
        yield table_of(list(zip(window, found, strict=True)), [group.name for group in groups])
    done(0)


def _about(options: Options, model: Any, groups: "Sequence[Group]", data: dict[str, Any]) -> dict[str, Any]:
    """What the written table says of itself."""
    from streamscope.models.checkpoint import run_folder
    from streamscope.models.derived import parent_of
    from streamscope.models.provenance import pick_device, provenance

    config, folder = model.config, run_folder(options.run)
    shape = {"preset": config.name, "n_layers": config.n_layers, "n_heads": config.n_heads}
    return {
        "kind": "token effects",
        "format": 1,
        "model": {"run": options.run, "checkpoint": parent_of(folder)["sha256"], **shape},
        "edits": {group.name: [head.label for head in group.heads] for group in groups},
        "scale": options.scale,
        "data": data,
        **provenance(pick_device(options.device)),
    }


if __name__ == "__main__":
    command(main)
