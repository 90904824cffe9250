"""The comparison of `papers.pls`: PLS against C2 over pairs of training seeds, claims judged of what models can do."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from streamscope.cli.provenance import pick_device
from streamscope.instruments.table import Column, short_columns
from streamscope.interventions.ablation_effects.diagonality import COLUMNS as MATRIX
from streamscope.interventions.ablation_effects.measure import columns_of
from streamscope.interventions.ablation_effects.ratios import COLUMNS as RATIOS
from streamscope.interventions.observe import UNIT
from streamscope.interventions.steer_heads.measure import LEVERAGE, MIXED
from streamscope.interventions.steer_heads.measure import columns_of as levels_of
from streamscope.papers.comparison.losses import against, losses
from streamscope.papers.comparison.options import settings_of
from streamscope.papers.comparison.report import Comparison, Tables, each_model, stack
from streamscope.papers.comparison.runs import Run
from streamscope.papers.figures.pls import runs as all_runs
from streamscope.papers.figures.style import Style
from streamscope.papers.pls import Options, Settings
from streamscope.papers.pls.competence import competence, roleless, unable, unfit
from streamscope.papers.pls.depth import with_second_peak
from streamscope.papers.pls.measure import measure_run
from streamscope.papers.pls.runs import CONTROL, open_runs
from streamscope.papers.pls.verdicts import claims, comparisons, pairs, presets, with_derived
from streamscope.probes.head_groups.measure import COLUMNS as ROLES


def measure(options: Options) -> tuple[list[Run], Tables, dict[str, Any]]:
    """Every table of the runs and of the pairs; the settings, and the cases of every task."""
    runs, settings = open_runs(options.runs), settings_of(Settings, options)
    measured = {
        (run.preset, run.seed): measure_run(model, shards, settings, progress)
        for run, model, shards, progress in each_model(runs, pick_device(options.device))
    }
    tables = stack((*key, one.tables) for key, one in measured.items()) | pairs(measured)
    tables["losses"] = losses(runs)
    return runs, tables, {"settings": vars(settings), "cases": next(iter(measured.values())).left_out}


def judged(runs: Sequence[Run], tables: Tables, facts: Mapping[str, Any]) -> Tables:
    """The tables with what follows from the quantities of the runs: means, differences, competence, verdicts.

    Ratios and leverage of pairs stay as they were measured.
    """
    quantities = with_derived(with_second_peak(tables["runs"], tables["depth"]), tables["losses"])
    able = competence(tables["baselines"])
    means = presets(quantities)
    roles = tables.get("roles")
    cannot = [
        roleless(r.quantity, (r.preset,), quantities, roles) or unable(r.quantity, (r.preset,), able)
        for r in means.itertuples()
    ]
    return {
        **tables, "loss": against(tables["losses"], CONTROL, {}), "competence": able, "runs": quantities,
        "presets": means.assign(cannot=cannot), "comparisons": comparisons(quantities),
        "claims": claims(quantities, unfit=unfit(quantities, able, roles)),
    }  # fmt: skip


def _of_measures(columns: Sequence[Column], unit: str, several: str) -> list[Column]:
    """Columns of a table with rows of several measures: it says so instead of naming one unit."""
    return [replace(one, unit=one.unit.replace(unit, several)) for one in columns]


COMPARISON = Comparison(
    module="papers.pls", settings=Settings, measure=measure, judge=judged,
    draw=lambda runs, tables: all_runs(tables, Style("page")),
    columns={
        "roles": short_columns(ROLES, "held_out"), "leverage": LEVERAGE, "ratios": RATIOS, "diagonality": MATRIX,
        "effects": _of_measures(
            short_columns(columns_of("probability"), "delta"), UNIT["probability"], "unit of the measure"
        ),
        "curves": _of_measures(short_columns(levels_of("loss")), UNIT["loss"], MIXED),
    },
)  # fmt: skip
