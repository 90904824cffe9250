"""Suppression of position heads on one run (LFA §3.3, §5.2, App. D, F), with its controls, as quantities and tables."""

from typing import TYPE_CHECKING, Any

from streamscope.papers.lfa_rows import HARD, MEASURES, OVER, UNITS, Settings
from streamscope.papers.rows import NAN, Progress, Rows, why_of
from streamscope.probes.pds import FIXED

if TYPE_CHECKING:
    import pandas as pd

    from streamscope.models.text.shards import TokenShards
    from streamscope.probes.prompts.alignment import Aligned

READINGS = "suppression, standardised"
"""The family of other readings of one change: d, d_z, by relation, asymmetry. They repeat its test in other units."""


def suppress(
    rows: Rows,
    model: Any,
    aligned: "Aligned",
    heads: "pd.DataFrame",
    shards: "TokenShards",
    settings: Settings,
    progress: Progress,
) -> "tuple[pd.DataFrame, pd.DataFrame]":
    """(effects, controls) of suppressing the top k heads by PDS and all over the threshold, and their quantities.

    Heads are ranked on the prompts that SPS is measured on, as in the paper. Effects: selected and bottom-k heads,
    all prompts and by relation and layer. Controls: selected beside bottom-k and `settings.draws` random sets.
    """
    from streamscope.interventions.observe import observe_loss, observe_prompts
    from streamscope.interventions.protocol import design, tables
    from streamscope.interventions.selection import over, pds_scores, ranked

    scores = pds_scores(heads)
    selections = {f"top{k}": ranked(scores, k) for k in settings.k}
    count = int((heads["pds"] > FIXED).sum())
    if 0 < count <= len(scores) // 2:
        selections[OVER] = over(scores, FIXED)
        why = ""
    else:
        why = f"{count} of {len(scores)} heads have PDS over {FIXED:g}, " + (
            "none to suppress" if not count else "too many"
        )
    protocol = design(scores, selections, (HARD,), draws=settings.draws, seed=settings.seed)
    observed = observe_prompts(
        model, ("sps", "coherence"), protocol.edits, aligned, model.tokenizer, progress=progress("suppression, prompts")
    )
    observed["loss"] = observe_loss(
        model, protocol.edits, shards, max_documents=settings.documents, batch_size=settings.batch_size,
        progress=progress("suppression, loss"),
    )  # fmt: skip
    bar = progress("suppression, statistics")
    found = tables(protocol, observed, model.config.n_layers, resamples=settings.resamples, progress=bar)
    for selection in (*selections, *((OVER,) if why else ())):
        for measure in MEASURES:
            if why and selection == OVER:
                _missing(rows, f"suppress.{OVER}.{measure}", measure, why)
            else:
                _effect(rows, found, selection, measure)
    return found.effects, found.controls


def _effect(rows: Rows, found: Any, selection: str, measure: str) -> None:
    """The change, Cohen's d, what exceeds the random sets, and for SPS the paper's other readings."""
    effects = found.effects
    mine = effects[
        (effects["selection"] == selection) & (effects["measure"] == measure) & (effects["group"] == "selected")
    ]
    one = mine[mine["part"] == "all"].iloc[0]
    name, unit, n, family = f"suppress.{selection}.{measure}", UNITS[measure], int(one["clusters"]), "suppression"
    why = why_of(one["undefined"])
    if one["difference"] != one["difference"]:
        _missing(rows, name, measure, why)
        return
    interval = (one["ci_low"], one["ci_high"])
    rows.add(name, family, unit, one["difference"], sd=one["sd"], interval=interval, n=n, detail=one["heads"], why=why)
    between = (one["d_low"], one["d_high"])
    family = READINGS
    rows.add(f"{name}.d", family, "pooled sd", one["d"], interval=between, n=n, detail=one["heads"], why=why)
    rows.add(f"{name}.abs_d", family, "pooled sd", abs(one["d"]), n=n, detail=one["heads"], why=why)
    rows.add(f"{name}.d_z", family, "sd of differences", one["d_z"], n=n, detail=one["heads"], why=why)
    controls = found.controls
    control = controls[(controls["selection"] == selection) & (controls["measure"] == measure)].iloc[0]
    detail = f"{control['draws']} random sets, p of the rank {control['p_rank']:.3f}"
    above = control["selected"] - control["random"]
    rows.add(f"{name}.above_random", "suppression", unit, above, n=n, detail=detail, why=why_of(control["undefined"]))
    if measure != "sps":
        return
    relations = mine[mine["kind"] == "relation"]
    parts = relations["d"].abs().dropna()
    empty = "" if len(parts) else "no relation has a d"
    biggest = parts.max() if len(parts) else NAN
    rows.add(f"{name}.abs_d_largest_relation", family, "pooled sd", biggest, n=n, why=empty)
    rows.add(f"{name}.abs_d_smallest_relation", family, "pooled sd", parts.min() if len(parts) else NAN, n=n, why=empty)
    sides = found.asymmetry
    side = sides[(sides["selection"] == selection) & (sides["measure"] == measure) & (sides["group"] == "selected")]
    lopsided, why = abs(float(side["difference"].iloc[0])), why_of(side["undefined"].iloc[0])
    rows.add(f"{name}.asymmetry", family, unit, lopsided, n=n, why=why)


def _missing(rows: Rows, name: str, measure: str, why: str) -> None:
    """Every quantity of a suppression that cannot be done or cannot act, undefined for the same reason."""
    unit = UNITS[measure]
    units = {"": unit, ".d": "pooled sd", ".abs_d": "pooled sd", ".d_z": "sd of differences", ".above_random": unit}
    if measure == "sps":
        units |= {".abs_d_largest_relation": "pooled sd", ".abs_d_smallest_relation": "pooled sd", ".asymmetry": unit}
    for part, one in units.items():
        family = "suppression" if part in ("", ".above_random") else READINGS
        rows.add(f"{name}{part}", family, one, NAN, n=0, why=why)
