"""The comparison of `papers.lfa`: architectures compared with the paper, claims judged."""

from collections.abc import Mapping, Sequence
from typing import Any

from streamscope.cli.errors import InputError
from streamscope.cli.provenance import pick_device
from streamscope.papers.comparison.options import settings_of
from streamscope.papers.comparison.report import Comparison, Tables, each_model, stack
from streamscope.papers.comparison.runs import Run
from streamscope.papers.figures.lfa import arms as all_arms
from streamscope.papers.figures.style import Style, note
from streamscope.papers.lfa import Options, Settings
from streamscope.papers.lfa.claims import architectures, claims, comparisons
from streamscope.papers.lfa.competence import competence, unable
from streamscope.papers.lfa.derived import DERIVED, derived
from streamscope.papers.lfa.measure import measure_run
from streamscope.papers.lfa.runs import CONTROL, Arms, in_arms, open_runs

TABLES = ("runs", "heads", "rules", "suppression", "controls", "suppress")
LATER = ("suppress",)
"""Those of them that comparisons of before have not."""


def measure(options: Options) -> tuple[list[Run], Tables, dict[str, Any]]:
    """Every table of the runs; the documents of the loss, and the settings."""
    runs, settings, measured = open_runs(options.runs), settings_of(Settings, options), []
    for run, model, shards, progress in each_model(runs, pick_device(options.device), options.data):
        measured.append((run.arm, run.seed, measure_run(model, shards, settings, progress)))
    meta, lengths, valid = shards.meta, shards.lengths, runs[0].manifest["data"]["valid"]
    documents = {
        "documents": shards.n_documents, "cut": int((lengths > runs[0].config["model"]["n_ctx"] + 1).sum()),
        "own": meta["corpus"] == valid["corpus"] and meta["rule"] == str(valid["rule"]), "corpus": meta["corpus"],
    }  # fmt: skip
    return runs, stack(measured), {"data": documents, "settings": vars(settings)}


def judged(runs: Sequence[Run], tables: Tables, facts: Mapping[str, Any]) -> Tables:
    """All tables. Raises `InputError` for one that is missing."""
    if missing := [name for name in TABLES if name not in (*tables, *LATER)]:
        raise InputError(f"--tables lacks {missing[0]}.parquet; restore it")
    arms, own = Arms(runs), tables["runs"]
    quantities = derived(own[~own["quantity"].str.fullmatch(DERIVED)], tables["heads"], arms)
    verdicts, able, means = claims(quantities, arms), competence(quantities), architectures(quantities)
    cannot = ["" if r.family == "suites" else unable(r.quantity, (r.preset,), able) for r in means.itertuples()]
    return {
        **{name: tables[name] for name in TABLES if name in tables}, "runs": quantities, "competence": able,
        "architectures": means.assign(cannot=cannot), "comparisons": comparisons(quantities, verdicts, arms),
        "claims": verdicts,
    }  # fmt: skip


def draw(runs: Sequence[Run], tables: Tables) -> Any:
    """The figure, with what arms differ in besides their architecture."""
    arms = Arms(runs)
    others = dict.fromkeys(arms.confounded(arms.pair(CONTROL, run.arm)[0], run.arm) for run in runs)
    canvas = all_arms(tables, Style("page"))
    if mixed := "; ".join(text for text in others if text):
        note(canvas, f"not of the architecture alone: {mixed}")
    return canvas


COMPARISON = Comparison(module="papers.lfa", settings=Settings, measure=measure, judge=judged, arms=in_arms, draw=draw)
