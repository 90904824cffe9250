"""Scale heads down, one at a time, and measure what the model loses, beside what it loses without other heads.

    python -m interventions.ablate --heads                          every head of the bundled LFA
    python -m interventions.ablate runs/lfa --heads
    python -m interventions.ablate runs/lfa --heads L4.* L5.H2 --scale 0 0.5 1 --data valid.txt --out heads.parquet
    python -m interventions.ablate runs/lfa --heads L5.H0-2 top3:pds --together --method mean
    python -m interventions.ablate runs/lfa --heads --measure sps coherence --suite competing

Each row is one head (or, with --together, the group) at one scale g: its output z is multiplied by g, and
`delta` is the change of the loss in nats per token, with a 95 % interval over documents. The control of a head is
the mean delta of all other heads, one at a time (of a group: of random groups as large, LFA App. D), and `above
control` is the difference. With --method mean or resample, z moves to its mean or to another row's z instead of 0:
g z + (1−g) z'. SPS and coherence (LFA Eq. 8, `probes.coherence`) are compared prompt by prompt, with minimal pairs as
units. p_holm corrects over heads.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from interventions.ablate_tables import PROMPT_UNITS, UNITS, ablate_heads, ablate_on_prompts, plot
from models.cli import command, parse
from probes.command import INTERVAL, DocumentOptions, check_options, open_run, progress_bar, show, write_results

if TYPE_CHECKING:
    import pandas as pd

    from interventions.ablate_tables import MakeEdits
    from models.transformer import StreamTransformer

ABOVE = "above control"


@dataclass(frozen=True, kw_only=True)
class Options(DocumentOptions):
    """Arguments of `python -m interventions.ablate`."""

    heads: tuple[str, ...] = ("all",)
    """Heads: L5.H4, L4.*, L4-5.H0-2, all, random3:7, top3:pds. --heads alone means all."""
    scale: tuple[float, ...] = (0.0,)
    """Factors g on the heads' outputs."""
    together: bool = False
    """Scale all the heads at once instead of one at a time."""
    method: Literal["zero", "mean", "resample"] = "zero"
    """What the heads are scaled towards: 0, their mean over the measured data, or what they wrote in another row."""
    measure: tuple[Literal["loss", "sps", "coherence"], ...] = ("loss",)
    """What to measure."""
    draws: int = 39
    """Controls: other random sets of as many heads to compare each row with, all where fewer exist; 0: none."""
    seed: int = 0
    """Which random sets are drawn, and which rows trade places under --method resample."""
    suite: str = "competing"
    """Prompts of sps, coherence and top3:pds: competing, stories, a JSONL file, or FORMAT:PATH."""
    max_documents: int | None = 200
    """Use at most this many documents; None for all."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, print, write."""
    options = parse(Options, argv, __doc__)
    check_options(options)

    from interventions.selection import pds_scores, pds_table
    from models.head_spec import parse_heads, score_names
    from probes.prompts import align, check_tokenizer, load_suite

    name, model = open_run(options)
    specs = options.heads or ("all",)
    prompts = [m for m in dict.fromkeys(options.measure) if m != "loss"]
    scores = {}
    if prompts or "pds" in score_names(specs):
        tokenizer = check_tokenizer(model)
        aligned = align(load_suite(options.suite), tokenizer, model.config.n_ctx)
        if "pds" in score_names(specs):
            scores["pds"] = pds_scores(pds_table(model, aligned, tokenizer))
    heads = parse_heads(specs, model.config.n_layers, model.config.n_heads, scores)
    groups = [heads] if options.together else [[head] for head in heads]
    tables: dict[str, Any] = {}
    figure, about = None, {"method": options.method, "seed": options.seed, "draws": options.draws}
    if "loss" in options.measure or not prompts:
        table, source = _losses(options, name, model, groups)
        tables[""], about["data"] = (table, UNITS), source
        figure = plot(table, f"{name}: what the loss gains without a head") if (table["layer"] >= 0).any() else None
    if prompts:
        make = _maker(options, model, aligned.tokens)
        how: dict[str, Any] = {"draws": options.draws, "seed": options.seed, "progress": progress_bar("prompts")}
        found = ablate_on_prompts(model, aligned, tokenizer, prompts, groups, options.scale, make=make, **how)
        title = f"{name} on {options.suite}: {len(aligned.prompts)} prompts"
        for measure, table in found.items():
            columns = ("head", "scale", "baseline", "difference", INTERVAL, "d", "d_z", "p_holm", "control", *_ABOVE)
            _print(f"{title}; {measure}, {options.method} ablation", table, columns)
            tables[measure] = (table, PROMPT_UNITS)
    write_results(options, tables, figure, **about)


_ABOVE = (ABOVE, "p_above_holm")


def _losses(options: Options, name: str, model: "StreamTransformer", groups: list) -> "tuple[pd.DataFrame, Any]":
    """The table of the loss, printed, and the description of its data."""
    from interventions.reference import document_rows
    from models.checkpoint import run_folder
    from models.text.shards import document_batches, truncated_documents
    from models.training.data import evaluation_shards

    shards = evaluation_shards(run_folder(options.run), model._text(), options.data)
    limits: dict[str, Any] = {"max_documents": options.max_documents, "batch_size": options.batch_size}
    rows = document_rows(document_batches(shards, model.config.n_ctx, options.batch_size, options.max_documents))
    limits |= {"draws": options.draws, "seed": options.seed, "progress": progress_bar("loss")}
    table = ablate_heads(model, shards, groups, options.scale, make=_maker(options, model, rows), **limits)
    cut = truncated_documents(shards, model.config.n_ctx, options.max_documents)
    one = table.iloc[0]
    title = f"{name}: loss {one['baseline']:.4f} nats/token; {one['n']} documents, {one['tokens']:,} tokens, "
    title += f"{cut} documents cut at {model.config.n_ctx}; {options.method} ablation; "
    title += f"control: {table['draws'].max()} other random sets of as many heads"
    _print(title, table, ("head", "scale", "loss", "delta", INTERVAL, "p_holm", "control", *_ABOVE, "p_rank"))
    return table, shards.meta["source"]


def _print(title: str, table: "pd.DataFrame", columns: tuple[str, ...]) -> None:
    """A table with its intervals in one column each, and why cells are undefined."""
    from probes.undefined import legend

    above = zip(table["above"], table["above_low"], table["above_high"], strict=True)
    text = ["undefined" if a != a else f"{a:+.4f} ({low:+.4f} … {high:+.4f})" for a, low, high in above]
    show(table.assign(**{ABOVE: text}), title, columns, digits=4)
    if lines := legend(table):
        print(lines)


def _maker(options: Options, model: "StreamTransformer", rows: Iterable[Sequence[int]]) -> "MakeEdits":
    """What builds the edits of --method; `rows` are the reference of the mean."""
    from interventions.edits import replace_heads, resample_heads, scale_heads
    from interventions.reference import mean_outputs

    if options.method == "mean":
        means = mean_outputs(model, rows)
        return lambda heads, g: replace_heads(heads, means, g)
    if options.method == "resample":
        return lambda heads, g: resample_heads(heads, g, seed=options.seed)
    return scale_heads


if __name__ == "__main__":
    command(main)
