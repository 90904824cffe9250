"""Paper PLS: per-layer supervision against the same model without it (C2), over pairs of training seeds.

    python -m papers.pls runs/tinystories/pls-{0,1,2} runs/tinystories/c2-{0,1,2} --out results/pls_tinystories
    python -m papers.pls runs/pls-0 runs/c2-0 --groups found --tasks capitalization gender winograd
    python -m papers.pls --tables results/pls_tinystories --out results/pls_tinystories

Takes finished runs of pls and c2, each seed of both, that differ in the supervision only. Per run: the effect of
ablating groups of heads on tasks and its spread between cases (Table 2, Fig. 4b), control curves (Fig. 3), task × group
matrix and diagonality (Fig. 4a), direct against total effect (Hydra), the depth
at which predictions settle (Table 1). Per pair of a seed: ratios with bootstrap
intervals over cases; over pairs: intervals whose units are training seeds. Per claim of the paper: whether it holds
here, by a rule, for the paper's heads and for those that attention names in each model: no claim is judged of a task
that the models cannot do, or of heads whose roles are not above shuffled ones. --tables judges the claims of an earlier
comparison again and writes its page, from its tables alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streamscope.models.cli import command, parse
from streamscope.models.errors import InputError
from streamscope.papers.comparison import PageOptions

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from streamscope.papers.pls_page import PlsReport
    from streamscope.papers.runs import Run


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Arguments of `python -m papers.pls`."""

    tasks: tuple[str, ...] = ("capitalization", "gender", "winograd")
    """capitalization, gender, winograd; the paper's sizes capitalization-8, gender-16; a JSONL file; FORMAT:PATH."""
    groups: tuple[str, ...] = ("entity", "anchor", "semantic", "found")
    """entity, anchor, semantic (the paper's heads), found (by each model's attention), heads as L5.H4+L5.H5."""
    tokens: int = 10_000
    """Validation tokens whose processing depth is read, as many as in the paper."""
    draws: int = 19
    """Random groups of as many heads beside every ablation; 0: none."""
    seed: int = 0
    """Of the random groups and the permutations."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, print, write."""
    options = parse(Options, argv, __doc__)
    if options.draws < 0 or options.seed < 0 or options.tokens < 1:
        raise InputError("--draws and --seed: 0 or more; --tokens: at least 1")
    options.check_out()

    from streamscope.papers.pls_page import show, write
    from streamscope.papers.pls_runs import open_runs

    report = again(options.tables) if options.tables is not None else measure(options, open_runs(options.runs))
    show(report)
    if options.out is not None:
        from streamscope.papers.pls_figure import figure

        write(report, figure(report.tables), options.out, options.static, options.html)


def measure(options: Options, runs: "list[Run]") -> "PlsReport":
    """Every table, of the runs, of the pairs, and over seeds."""
    from streamscope.models.provenance import pick_device, provenance
    from streamscope.papers.comparison import each_model, stack
    from streamscope.papers.losses import against, losses
    from streamscope.papers.pls_measure import Measured, Settings, measure_run
    from streamscope.papers.pls_page import PlsReport
    from streamscope.papers.pls_runs import CONTROL
    from streamscope.papers.pls_seeds import pairs
    from streamscope.papers.runs import typed

    settings = Settings(
        tasks=options.tasks, groups=options.groups, tokens=options.tokens, draws=options.draws, seed=options.seed
    )
    device = pick_device(options.device)
    measured: dict[tuple[str, int], Measured] = {
        (run.preset, run.seed): measure_run(model, shards, settings, progress)
        for run, model, shards, progress in each_model(runs, device)
    }
    tables = stack((*key, one.tables) for key, one in measured.items())
    tables |= pairs(measured, settings.within)
    tables |= {"runs": tables.pop("quantities"), "losses": losses(runs)}
    tables["loss"] = against(tables["losses"], CONTROL, {})
    tables = judged(tables)
    about = {**provenance(device), "argv": typed("papers.pls", options, runs)}
    left_out = next(iter(measured.values())).left_out
    return PlsReport(runs=runs, tables=tables, settings=settings, left_out=left_out, about=about)


def judged(tables: "dict[str, pd.DataFrame]") -> "dict[str, pd.DataFrame]":
    """The tables with what follows from the quantities of the runs: means, differences, competence, verdicts."""
    from streamscope.papers.pls_competence import competence, of_effects, unfit
    from streamscope.papers.pls_depth import with_second_peak
    from streamscope.papers.pls_seeds import claims, comparisons, presets

    quantities = with_second_peak(tables["runs"], tables["depth"])
    baselines = tables["baselines"] if "baselines" in tables else of_effects(tables["effects"])
    able = competence(baselines)
    return {
        **tables, "baselines": baselines, "competence": able, "runs": quantities, "presets": presets(quantities),
        "comparisons": comparisons(quantities),
        "claims": claims(quantities, unfit=unfit(quantities, able, tables.get("roles"))),
    }  # fmt: skip


def again(folder: "Path") -> "PlsReport":
    """The report of an earlier comparison, judged anew from its tables; ratios and leverage of pairs as they were."""
    from streamscope.papers.comparison import reopen
    from streamscope.papers.pls_measure import Settings
    from streamscope.papers.pls_page import PlsReport

    runs, tables, about = reopen(folder, "papers.pls")
    given: dict[str, Any] = {name: tuple(x) if isinstance(x, list) else x for name, x in about["settings"].items()}
    tables = dict(sorted(judged(tables).items()))
    return PlsReport(runs=runs, tables=tables, settings=Settings(**given), left_out=about["cases"], about=about)


if __name__ == "__main__":
    command(main)
