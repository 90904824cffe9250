"""Scale heads down, one at a time or in sets, and measure what the model loses, beside what it loses without others.

    python -m interventions.ablate --heads                          every head of the bundled LFA
    python -m interventions.ablate runs/lfa --heads
    python -m interventions.ablate runs/lfa --heads L4.* L5.H2 --scale 0 0.5 1 --data valid.txt --out heads.parquet
    python -m interventions.ablate runs/lfa --heads L5.H0-2 top3:pds --together --method mean
    python -m interventions.ablate runs/lfa --heads --size 2        every pair: do heads stand in for each other?
    python -m interventions.ablate runs/lfa --heads --size 5 --sets 100 --measure sps coherence --suite competing
    python -m interventions.ablate pls --control c2                 beside a control: differences, paired by document

Each row is one head (or a set of them: with --together all given, with --size K every K of them, or --sets N random
ones) at one scale g: its output z is multiplied by g, and `delta` is the change of the loss in nats per token, with a
95 % interval over documents. The control of a head is the mean delta of all other heads, one at a time (of a set: of
random sets as large, LFA App. D), and `above control` is the difference. `interaction` is what a set changes beyond the
sum of its heads, one at a time: of the loss, above 0 they stand in for one another (of coherence, below 0). With
--method mean or resample, z moves to its mean or to another row's z instead of 0: g z + (1−g) z'. SPS and coherence
(LFA Eq. 8, `probes.coherence`) are compared prompt by prompt, with minimal pairs as units. p_holm corrects over heads
or sets; p_rank is the rank of delta among the random sets'. d is Cohen's with pooled standard deviations, d_z with that
of the differences. With --control, the same heads of another model, over the same documents and prompts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from interventions.ablate_plots import draw
from interventions.ablate_show import ABOVE, print_ablations, print_differences
from interventions.ablate_tables import (
    UNITS,
    ablation_losses,
    ablation_table,
    observe_ablations,
    prompt_table,
    prompt_units,
)
from interventions.control_run import ControlOptions, check_tokens, named_with_control, open_runs
from models.bounds import AnyNumber, Count, Seed, Whole
from models.cli import command, parse
from models.errors import InputError, unknown
from probes.command import INTERVAL, DocumentOptions, check_options, progress_bar, write_results

if TYPE_CHECKING:
    from interventions.ablate_tables import MakeEdits
    from models.head_spec import Head
    from models.transformer import StreamTransformer
    from probes.align import Aligned

    Opened = Sequence[tuple[str, StreamTransformer]]
    Sets = Sequence[Sequence[Head]]


@dataclass(frozen=True, kw_only=True)
class Options(DocumentOptions, ControlOptions):
    """Arguments of `python -m interventions.ablate`."""

    heads: tuple[str, ...] = ("all",)
    """Heads: L5.H4, L4.*, L4-5.H0-2, all, random3:7, top3:pds. --heads alone means all."""
    scale: tuple[AnyNumber, ...] = (0.0,)
    """Factors g on the heads' outputs."""
    together: bool = False
    """Scale all the heads at once instead of one at a time."""
    size: Count = 1
    """How many of the heads to scale at once: 1 each alone, 2 every pair."""
    sets: Count | None = None
    """With --size: as many random sets of that size; default: all."""
    method: Literal["zero", "mean", "resample"] = "zero"
    """What the heads are scaled towards: 0, their mean over the measured data, or what they wrote in another row."""
    measure: tuple[Literal["loss", "sps", "coherence"], ...] = ("loss",)
    """What to measure."""
    draws: Whole = 39
    """Controls: other random sets of as many heads to compare each row with, all where fewer exist; 0: none."""
    seed: Seed = 0
    """Which random sets are drawn, and which rows trade places under --method resample."""
    suite: str = "competing"
    """Prompts of sps, coherence and top3:pds: competing, stories, a JSONL file, or FORMAT:PATH."""
    max_documents: Count | None = 200
    """Use at most this many documents; None for all."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, print, write."""
    options = parse(Options, argv, __doc__)
    check_options(options)
    if options.together and (options.size != 1 or options.sets is not None):
        raise InputError("--together scales all heads at once, --size and --sets some of them; give one or the other")

    if not options.scale:
        raise InputError("--scale: give at least one factor")
    if options.sets is not None and options.size == 1:
        raise InputError("--sets draws sets of --size heads; give a --size of 2 or more (single heads: random3:7)")

    from interventions.interactions import head_sets
    from interventions.selection import pds_scores, pds_table
    from models.head_spec import parse_heads, score_names
    from probes.prompts import align, check_tokenizer, load_suite

    opened = open_runs(options)
    model = opened[0][1]
    specs = options.heads or ("all",)
    prompts: list[str] = [m for m in dict.fromkeys(options.measure) if m != "loss"]
    check_tokens(options, opened, context=True)
    scores, scales = {}, tuple(dict.fromkeys(float(g) for g in options.scale))
    if strange := score_names(specs) - {"pds"}:
        raise unknown("head score", min(strange), ["pds"])
    if prompts or "pds" in score_names(specs):
        tokenizer = check_tokenizer(model)
        aligned = align(load_suite(options.suite), tokenizer, model.config.n_ctx)
        if "pds" in score_names(specs):
            scores["pds"] = pds_scores(pds_table(model, aligned, tokenizer))
    heads = parse_heads(specs, model.config.n_layers, model.config.n_heads, scores)
    groups = [heads] if options.together else head_sets(heads, options.size, options.sets, options.seed)
    tables: dict[str, Any] = {}
    figures: dict[str, Any] = {}
    about = {"method": options.method, "seed": options.seed, "draws": options.draws, "control": options.control}
    about |= {"suite": options.suite} if prompts else {}
    if "loss" in options.measure or not prompts:
        about["data"] = _losses(options, opened, groups, scales, tables, figures)
        about["max_documents"] = options.max_documents
    if prompts:
        _prompts(options, opened, groups, scales, prompts, aligned, tables, figures)
    write_results(options, tables, figures, **about)


def _losses(
    options: Options, opened: "Opened", groups: "Sets", scales: Sequence[float], tables: dict, figures: dict
) -> Any:
    """The loss of every model, its tables and figures; what the data are."""
    from interventions.reference import document_rows
    from models.checkpoint import run_folder
    from models.text.shards import document_batches, truncated_documents
    from models.training.data import evaluation_shards

    model = opened[0][1]
    shards = evaluation_shards(run_folder(options.run), model._text(), options.data)
    limits: dict[str, Any] = {"max_documents": options.max_documents, "batch_size": options.batch_size}
    batches = document_batches(shards, model.config.n_ctx, options.batch_size, options.max_documents)
    rows = list(document_rows(batches))
    cut = truncated_documents(shards, model.config.n_ctx, options.max_documents)
    found, measured = [], []
    for name, net in opened:
        limits |= {"draws": options.draws, "seed": options.seed, "progress": progress_bar(f"{name}: loss")}
        make = _maker(options, net, rows)
        sweep, losses = ablation_losses(net, shards, groups, scales, make=make, **limits)
        table = ablation_table(sweep, losses)
        one = table.iloc[0]
        title = f"{name}: loss {one['baseline']:.4f} nats/token; {one['n']} documents, {one['tokens']:,} tokens, "
        title += f"{cut} documents cut at {net.config.n_ctx}; {options.method} ablation; "
        title += f"control: {table['draws'].max()} other sets of as many heads" if options.draws else "no controls"
        print_ablations(title, table, "delta", ("loss", "delta", INTERVAL, "p_holm", *ABOVE, "p_rank"))
        found.append(table)
        measured.append(losses)
    names = [name for name, _ in opened]
    tables[""] = (named_with_control(names, found), UNITS)
    draw(figures, found[0], "delta", "nats/token", f"{names[0]}: loss, {options.method} ablation")
    if len(opened) > 1:
        from interventions.document_differences import HEAD_UNITS, compare_heads

        compared = compare_heads(sweep, (measured[0], measured[1]))
        tables["control"] = (compared, HEAD_UNITS)
        print_differences(compared, names, "documents")
        title = f"{names[0]} minus {names[1]}: loss, {options.method} ablation"
        draw(figures, compared[compared["measure"] == "delta"], "difference", "nats/token", title, "control")
    return shards.meta["source"]


def _prompts(
    options: Options, opened: "Opened", groups: "Sets", scales: Sequence[float], measures: list[str],
    aligned: "Aligned", tables: dict, figures: dict,
) -> None:  # fmt: skip
    """Every measure of the prompts, of every model, its tables and figures."""
    from interventions.observe import UNIT

    names, model = [name for name, _ in opened], opened[0][1]
    observed: dict[str, list[Any]] = {measure: [] for measure in measures}
    from probes.suite import population

    for name, net in opened:
        how: dict[str, Any] = {
            "draws": options.draws,
            "seed": options.seed,
            "progress": progress_bar(f"{name}: prompts"),
        }
        make = _maker(options, net, aligned.tokens)
        sweep, found = observe_ablations(net, aligned, model._text(), measures, groups, scales, make=make, **how)
        for measure, one in found.items():
            observed[measure].append(one)
    columns = ("baseline", "difference", INTERVAL, "d", "d_z", "p_holm", *ABOVE)
    for measure, both in observed.items():
        shown = [prompt_table(sweep, one, model.config.n_layers) for one in both]
        for name, table in zip(names, shown, strict=True):
            title = f"{name} on {options.suite}: {table['n'].max()} prompts, {population(aligned.prompts)}; "
            print_ablations(f"{title}{measure}, {options.method} ablation", table, "difference", columns)
        title = f"{measure} on {options.suite}, {options.method} ablation"
        draw(figures, shown[0], "difference", UNIT[measure], f"{names[0]}: {title}", measure)
        tables[measure] = (named_with_control(names, shown), prompt_units(measure))
        if len(both) > 1:
            from interventions.case_differences import PROMPT_UNITS, compare_prompts

            compared = compare_prompts(sweep, (both[0], both[1]), model.config.n_layers)
            tables[f"{measure}-control"] = (compared, PROMPT_UNITS)
            print_differences(compared, names, "independent cases")
            title, own = f"{names[0]} minus {names[1]}: {title}", compared[compared["measure"] == measure]
            draw(figures, own, "difference", UNIT[measure], title, f"{measure}-control")


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
