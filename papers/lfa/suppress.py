"""Suppression of position heads on one run (LFA §3.3, §5.2, App. D, F), with its controls, as quantities and tables."""

from typing import Any

import pandas as pd

from streamscope.instruments.data import Documents
from streamscope.instruments.open_data import OpenDocuments, given_prompts
from streamscope.instruments.prompts.alignment import Aligned
from streamscope.interventions.suppress import Suppress
from streamscope.papers.comparison.seeds import NAN, Progress, Rows, why_of
from streamscope.papers.lfa import GATES, HARD, MEASURES, OVER, UNITS, Settings
from streamscope.probes.pds import FIXED
from streamscope.text.shards import TokenShards

READINGS = "suppression, standardised"
"""The family of other readings of one change: d, d_z, by relation, asymmetry. They repeat its test in other units."""


def suppress(
    rows: Rows,
    model: Any,
    aligned: Aligned,
    heads: pd.DataFrame,
    shards: TokenShards,
    settings: Settings,
    progress: Progress,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(effects, controls) of suppressing the top k heads by PDS and all over the threshold, and their quantities.

    Heads are ranked on the prompts that SPS is measured on, as in the paper. Effects: selected and bottom-k heads,
    all prompts and by relation and layer. Controls: selected against bottom-k and `settings.draws` random sets.
    """

    count = int((heads["pds"] > FIXED).sum())
    able = 0 < count <= len(heads) // 2
    why = "" if able else f"{count} of {len(heads)} heads have PDS over {FIXED:g}, " + (
        "none to suppress" if not count else "too many"
    )  # fmt: skip
    how = Suppress(
        select=("topk", "threshold") if able else ("topk",), k=settings.k, threshold=FIXED, gates=(HARD,),
        measures=MEASURES, draws=settings.draws, seed=settings.seed, resamples=settings.resamples,
    )  # fmt: skip
    limits = Documents(max_documents=settings.documents, batch_size=settings.batch_size)
    documents = OpenDocuments(limits, shards, model.config.n_ctx, model.tokenizer)
    result = how.measure(model, given_prompts(aligned, model), documents, progress=progress("suppression"))
    selections = [f"top{k}" for k in dict.fromkeys(settings.k)] + [OVER] * able
    tables = {name: result.table(name).short("delta") for name in ("effects", "parts", "controls")}
    tables["asymmetry"] = result.table("asymmetry").short()
    for selection in (*selections, *((OVER,) if why else ())):
        for measure in MEASURES:
            if why and selection == OVER:
                _missing(rows, f"suppress.{OVER}.{measure}", measure, why)
            else:
                _effect(rows, tables, selection, measure)
    return pd.concat([tables["effects"], tables["parts"]], ignore_index=True), tables["controls"]


def curves(model: Any, aligned: Aligned, shards: TokenShards, settings: Settings, progress: Progress) -> pd.DataFrame:
    """SPS with the top k heads by PDS at every gate (LFA App. D, Figs. 5 and 6), the table of `interventions.suppress`.

    The random sets belong to the hard gate (`suppress`); here is one, the fewest that the instrument draws.
    """
    how = Suppress(k=settings.k, gates=GATES, measures=("sps",), draws=1, seed=settings.seed)
    documents = OpenDocuments(Documents(max_documents=1), shards, model.config.n_ctx, model.tokenizer)
    result = how.measure(model, given_prompts(aligned, model), documents, progress=progress("gates"))
    return result.table("effects").frame


def _effect(rows: Rows, tables: dict[str, pd.DataFrame], selection: str, measure: str) -> None:
    """The change, Cohen's d, what exceeds the random sets, and for SPS the paper's other readings."""

    def mine(name: str) -> pd.DataFrame:
        table = tables[name]
        of = (table["selection"] == selection) & (table["measure"] == measure)
        return table[of & (table["group"] == "selected")] if "group" in table else table[of]

    one = mine("effects").iloc[0]
    name, unit, n, family = f"suppress.{selection}.{measure}", UNITS[measure], int(one["clusters"]), "suppression"
    why = why_of(one["undefined"])
    if one["delta"] != one["delta"]:
        _missing(rows, name, measure, why)
        return
    interval = (one["ci_low"], one["ci_high"])
    rows.add(name, family, unit, one["delta"], sd=one["sd"], interval=interval, n=n, detail=one["heads"], why=why)
    between = (one["d_low"], one["d_high"])
    family = READINGS
    rows.add(f"{name}.d", family, "pooled sd", one["d"], interval=between, n=n, detail=one["heads"], why=why)
    rows.add(f"{name}.abs_d", family, "pooled sd", abs(one["d"]), n=n, detail=one["heads"], why=why)
    rows.add(f"{name}.d_z", family, "sd of differences", one["d_z"], n=n, detail=one["heads"], why=why)
    control = mine("controls").iloc[0]
    detail = f"{control['draws']} random sets, p of the rank {control['p_rank']:.3f}"
    above = control["selected"] - control["random"]
    rows.add(f"{name}.above_random", "suppression", unit, above, n=n, detail=detail, why=why_of(control["undefined"]))
    if measure != "sps":
        return
    by_part = mine("parts")
    parts = by_part["d"][~by_part["part"].str.fullmatch(r"L\d+")].abs().dropna()
    empty = "" if len(parts) else "no relation has a d"
    biggest = parts.max() if len(parts) else NAN
    rows.add(f"{name}.abs_d_largest_relation", family, "pooled sd", biggest, n=n, why=empty)
    rows.add(f"{name}.abs_d_smallest_relation", family, "pooled sd", parts.min() if len(parts) else NAN, n=n, why=empty)
    side = mine("asymmetry").iloc[0]
    lopsided, why = abs(float(side["asymmetry"])), why_of(side["undefined"])
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
