"""Suppress the position heads of a model and see whether meaning survives: the protocol of paper LFA.

    python -m interventions.suppress runs/lfa
    python -m interventions.suppress runs/lfa --select threshold --threshold own --measure sps coherence loss
    python -m interventions.suppress runs/lfa --k 1 3 --gates 1 0.5 0 --suite stories --n 200 --out suppress.parquet

Heads are ranked by PDS; the top k (or those over the threshold) have their outputs z multiplied by a gate g. Each
selection is compared with no intervention, with the k heads of the smallest PDS, and with random sets of k
heads. Units are minimal pairs. SPS cannot change in the layer of a gated head or before: such cells are undefined.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from streamscope.models.bounds import AnyNumber, Bounds, Count, NotNegative, Seed
from streamscope.models.cli import command, parse
from streamscope.models.errors import InputError
from streamscope.probes.command import progress_bar
from streamscope.probes.report import ProbeOptions, check_options, open_session, show, write

if TYPE_CHECKING:
    import pandas as pd

    from streamscope.interventions.protocol import Tables

MIN_DRAWS = 20
EFFECT = ("selection", "group", "measure", "part", "gate", "difference", "95 % interval", "d", "d_z", "p_holm")
UNITS = {
    "gate": "factor on z",
    "k": "heads",
    "difference": "units of the measure, edited − unedited",
    "d": "pooled standard deviations",
    "d_z": "standard deviations of the differences",
    "pds": "attention",
    "slope": "units of the measure per unit of the gate",
    "departure": "units of the measure",
    "selected": "units of the measure, edited − unedited",
    "bottom": "units of the measure, edited − unedited",
    "random": "units of the measure, edited − unedited",
    "first": "units of the measure, target first",
    "last": "units of the measure, target last",
    "loss": "nats/token",
}


@dataclass(frozen=True, kw_only=True)
class Options(ProbeOptions):
    """Arguments of `python -m interventions.suppress`."""

    select: Literal["topk", "threshold"] = "topk"
    """The k heads with the largest PDS, for every --k; or all over --threshold."""
    k: tuple[Count, ...] = (1, 2, 3, 5)
    """Heads to suppress, of topk."""
    threshold: NotNegative | Literal["own"] = 0.075
    """PDS that heads must exceed, of threshold; own is μ+σ over this model's heads."""
    gates: tuple[AnyNumber, ...] = (1.0, 0.75, 0.5, 0.25, 0.0)
    """Factors on the heads' outputs."""
    measure: tuple[Literal["sps", "coherence", "loss"], ...] = ("sps", "coherence")
    """What to measure under each gate; loss takes the run's validation data."""
    draws: Annotated[int, Bounds(low=MIN_DRAWS)] = 39
    """Random sets of heads per selection, at least 20; with 39 the smallest p_rank is 0.05."""
    draw_seed: Seed = 0
    """Seed of the random sets."""
    rank_on: str | None = None
    """Suite whose pairs rank the heads; default: --suite, as in the paper."""
    data: str | None = None
    """SOURCE to measure the loss on; default: the run's validation data."""
    max_documents: Count = 50
    """Documents to measure the loss on."""
    batch_size: Count = 32
    """Documents per batch."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, rank, sweep, print, write."""
    options = parse(Options, argv, __doc__)
    check_options(options)
    if not options.measure or not options.k:
        raise InputError("give at least one --measure and one --k")

    from streamscope.interventions.observe import observe_loss, observe_prompts
    from streamscope.interventions.protocol import design, plot, tables
    from streamscope.interventions.selection import over, pds_scores, pds_table, ranked

    session = open_session(options)
    model, tokenizer = session.model, session.tokenizer
    ranking = pds_table(model, _prompts_to_rank(options, session), tokenizer)
    scores = pds_scores(ranking)
    if options.select == "topk":
        selections = {f"top{k}": ranked(scores, k) for k in dict.fromkeys(options.k)}
    else:
        selections = {f"over {options.threshold}": over(scores, options.threshold)}
    protocol = design(scores, selections, options.gates, draws=options.draws, seed=options.draw_seed)
    bar = progress_bar(f"{len(protocol.edits)} edits")
    prompts = [m for m in dict.fromkeys(options.measure) if m != "loss"]
    observed = observe_prompts(model, prompts, protocol.edits, session.aligned, tokenizer, progress=bar)
    if "loss" in options.measure:
        from streamscope.models.checkpoint import run_folder
        from streamscope.models.training.data import evaluation_shards

        shards = evaluation_shards(run_folder(options.run), model._text(), options.data)
        limits = {"max_documents": options.max_documents, "batch_size": options.batch_size}
        observed["loss"] = observe_loss(model, protocol.edits, shards, **limits, progress=bar)
    found = tables(protocol, observed, model.config.n_layers, progress=progress_bar("statistics"))
    _print(session.title, options, ranking, found)
    parts = {
        "": found.effects, "controls": found.controls, "curves": found.curves, "asymmetry": found.asymmetry,
        "draws": found.draws, "ranking": ranking,
    }  # fmt: skip
    filled = {name: (table, UNITS) for name, table in parts.items() if len(table)}
    about = {"ranked_on": options.rank_on or options.suite, "draw_seed": options.draw_seed}
    write(options, session, filled, plot(found, session.title), **about)


def _prompts_to_rank(options: Options, session: Any) -> Any:
    """The session's prompts, or those of --rank-on."""
    if options.rank_on is None:
        return session.aligned
    from streamscope.probes.prompts import align, load_suite

    return align(load_suite(options.rank_on), session.tokenizer, session.model.config.n_ctx)


def _print(title: str, options: Options, ranking: "pd.DataFrame", found: "Tables") -> None:
    """Effects at the smallest gate, controls, curves, asymmetry, and why cells are undefined."""
    from streamscope.probes.undefined import legend

    effects = found.effects
    same = "the same prompts" if options.rank_on in (None, options.suite) else options.rank_on
    best = ", ".join(f"{h} {pds:.3f}" for h, pds in ranking[["head", "pds"]].head(5).itertuples(index=False))
    print(f"{title}\nheads by PDS, ranked on {same}: {best}")
    hard = min(options.gates)
    whole = effects[(effects["gate"] == hard) & (effects["kind"] != "layer")]
    show(whole, f"gate {hard:g}: edited − unedited, 95 % over pairs or documents", EFFECT)
    if (effects["kind"] == "layer").any():
        layers = effects[(effects["gate"] == hard) & (effects["kind"] == "layer")]
        grid = layers[layers["group"] == "selected"].pivot(index="selection", columns="part", values="difference")
        text = grid.map(lambda x: "undefined" if x != x else f"{x:+.4f}").reset_index()
        show(text, f"gate {hard:g}: change of SPS in the heads of each layer, selected heads")
    shown = ("selection", "measure", "baseline", "selected", "bottom", "random", "random_sd", "draws", "p_rank")
    show(found.controls, f"gate {hard:g}: controls; p_rank among the random sets, two-sided", shown, 4)
    if len(found.curves):
        columns = ("selection", "group", "measure", "slope", "slope_low", "slope_high", "r2", "departure")
        show(found.curves, "gate-response curves", columns, 4)
    if len(found.asymmetry):
        sides = ("selection", "group", "measure", "first", "last", "difference", "95 % interval", "p", "pairs")
        show(found.asymmetry, f"gate {hard:g}: on target-first prompts only, and target-last only", sides, 4)
    if lines := legend(whole):
        print(lines)


if __name__ == "__main__":
    command(main)
