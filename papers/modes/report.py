"""The comparison of `papers.modes`: computational modes of PLS and C2 over pairs of training seeds."""

from collections.abc import Mapping, Sequence
from typing import Any

from streamscope.cli.provenance import pick_device
from streamscope.papers.comparison.options import settings_of
from streamscope.papers.comparison.printed import Bound, Order, Ratio, claims_to_judge
from streamscope.papers.comparison.report import Comparison, Tables, each_model, stack
from streamscope.papers.comparison.runs import Run
from streamscope.papers.figures.pls import modes
from streamscope.papers.figures.style import Style
from streamscope.papers.modes.measure import measure_run
from streamscope.papers.modes.options import Options, Settings
from streamscope.papers.pls.claims import printed
from streamscope.papers.pls.depth import with_second_peak
from streamscope.papers.pls.runs import open_runs
from streamscope.papers.pls.verdicts import claims, comparisons, presets

CLAIMS = claims_to_judge("modes")
"""The limit of "near zero" and of "not", 0.1, is ours; the paper has none. "Sharper functional boundaries in the
supervised model" are read as more tokens inside one. Claims of depth are judged by `papers.pls`."""
FLAT = "hdbscan.flat"
BY_CONSTRUCTION = (
    "undefined by construction: but for the layer k* the features are 0 in most columns, so a cluster has one k*"
)


def unfit(claim: Bound | Order | Ratio) -> str:
    """Why a claim cannot be judged by these features, the text of its verdict; "" where it can."""
    return BY_CONSTRUCTION if claim.quantity == FLAT else ""


def measure(options: Options) -> tuple[list[Run], Tables, dict[str, Any]]:
    """Every table of the runs, and the settings; the documents where they are others than those of the runs."""
    runs, settings, measured = open_runs(options.runs), settings_of(Settings, options), []
    for run, model, shards, progress in each_model(runs, pick_device(options.device), options.data):
        measured.append((run.preset, run.seed, measure_run(model, shards, settings, progress)))
    other = {"data": {"documents": shards.n_documents, "corpus": shards.meta["corpus"]}} if options.data else {}
    return runs, stack(measured), {"settings": vars(settings), **other}


def judged(runs: Sequence[Run], tables: Tables, facts: Mapping[str, Any]) -> Tables:
    """The tables with what follows from the quantities of the runs: means, differences, verdicts."""
    quantities = with_second_peak(tables["runs"], tables["depth"])
    return {
        **tables, "runs": quantities, "presets": presets(quantities, printed),
        "comparisons": comparisons(quantities, printed),
        "claims": claims(quantities, CLAIMS, printed, unfit),
    }  # fmt: skip


COMPARISON = Comparison(
    module="papers.modes",
    settings=Settings,
    measure=measure,
    judge=judged,
    draw=lambda runs, tables: modes(tables, Style("page")),
)
