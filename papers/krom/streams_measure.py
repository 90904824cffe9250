"""Streams and modules within a run of KROM: what `papers.krom.streams` measures and judges."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from streamscope.cli.errors import InputError
from streamscope.instruments.data import Documents
from streamscope.instruments.open_data import OpenDocuments
from streamscope.instruments.undefined_cells import note
from streamscope.interventions.mixing import Mixing
from streamscope.models.checkpoint import load
from streamscope.models.mixing import connections, inert_modules, measure
from streamscope.papers.comparison.printed import claims_to_judge, of_arms
from streamscope.papers.comparison.report import each_model
from streamscope.papers.comparison.runs import Run
from streamscope.papers.comparison.seeds import NAN
from streamscope.papers.comparison.verdicts import judge
from streamscope.papers.krom.mixing import arm_label, by_factors, layer_cosines
from streamscope.papers.krom.report import open_runs
from streamscope.probes.contraction import Contraction
from streamscope.probes.mixing import final, kept_step, log

UNIT = {
    "stable": "Spearman's ρ", "kept": "share of modules", "helps": "Spearman's ρ", "slope": "cosine per layer",
    "slope.shuffled": "cosine per layer", "spread": "share of the streams' size",
}  # fmt: skip
FEW = "fewer than three modules can act"
NO_SLOPE = "a layer has no direction, or there is one layer"
SAME = "every module has the same value"


def rho(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> tuple[float, str]:
    """Spearman's ρ, and why there is none: fewer than three modules, or one value in all of them."""
    if len(x) < 3:
        return NAN, FEW
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return NAN, SAME
    return float(stats.spearmanr(x, y).statistic), ""


def slope(values: Sequence[float] | np.ndarray) -> tuple[float, str]:
    """Least-squares slope of values at 0, 1, 2, …, and why there is none."""
    if len(values) < 2 or np.isnan(values).any():
        return NAN, NO_SLOPE
    return float(np.polyfit(np.arange(len(values)), values, 1)[0]), ""


def alphas(folder: Any) -> pd.Series:
    """α_res of the modules whose mixing can act, by their names, of a run or of a snapshot RUN@STEP."""
    model = load(folder)
    by_module = {r["module"]: r["value"] for r in measure(model) if r["metric"] == "alpha_res"}
    return pd.Series(
        {name: float(x) for name, x in by_module.items() if name not in inert_modules(model) and x is not None}
    )


def added(run: Run, model: Any) -> pd.Series:
    """What the dynamic term adds to the swap, mean over a module's factors, at the kept weights, by module."""
    rows = final(model, log(run.folder), kept_step(run.folder))
    by = rows[rows["metric"].isin(("swap_static", "swap_dynamic"))].groupby(["module", "metric"])["value"].mean()
    wide = by.unstack()
    return (wide["swap_dynamic"] - wide["swap_static"]).drop(index=list(inert_modules(model)), errors="ignore")


def gained(model: Any, opened: Any, progress: Any) -> pd.Series:
    """What the loss gains from the mixing of each module that can act, L(H_res → I) − L, by module."""
    result = Mixing(change=("res-identity",), where=("all",)).measure(model, opened, progress=progress)
    frame = result.table("modules").frame
    names = list(connections(model))
    frame = frame[frame["acts"] == "yes"]
    return frame.set_index(frame["module"].map(lambda number: names[number]))["delta"]


def measure_run(run: Run, model: Any, opened: Any, steps: Sequence[int], progress: Any) -> dict[str, tuple[float, str]]:
    """Every quantity of a run, and why it is undefined."""
    before, after = (alphas(f"{run.folder}@{step}") for step in steps)
    extra, gain = added(run, model), gained(model, opened, progress("H_res → I"))
    by_layer = layer_cosines(model)
    spread = Contraction().measure(model, opened, progress=progress("spread")).table("modules").frame
    kept_signs = float(((before > 0) == (after.reindex(before.index) > 0)).mean()) if len(before) else NAN
    return {
        "stable": rho(before, after.reindex(before.index)),
        "kept": (kept_signs, "" if len(before) else FEW),
        "helps": rho(extra.reindex(gain.index), gain),
        "slope": slope(by_layer["stream_cosine"]),
        "slope.shuffled": slope(by_layer["shuffled_cosine"]),
        "spread": (float(spread.set_index("module")["spread"].sort_index().iloc[-1]), ""),
    }


def measured(options: Any) -> tuple[list[Run], pd.DataFrame]:
    """The runs, and a row per run and quantity, as `papers.comparison.seeds` reads them; `preset` is the arm's label.

    Raises `InputError` as `papers.krom.report.open_runs`, and for a run without Kronecker factors.
    """
    runs, rows = open_runs(options.runs), []
    for run in runs:
        if not by_factors(run):
            raise InputError(f"{run.folder} has no streams that Kronecker factors mix: give kromhc or kromcanon")
    for run, model, shards, progress in each_model(runs, "cpu"):
        data = Documents(max_documents=options.documents)
        opened = OpenDocuments(data, shards, model.config.n_ctx, model.tokenizer)
        for quantity, (value, why) in measure_run(run, model, opened, options.steps, progress).items():
            rows.append(
                (arm_label(run), run.seed, quantity, UNIT[quantity], value, note({"value": why} if why else {}))
            )
    return runs, pd.DataFrame(rows, columns=["preset", "seed", "quantity", "unit", "value", "undefined"])


def claims(quantities: pd.DataFrame) -> pd.DataFrame:
    """The blog's sentences, of the arms that are there; one correction over all rows."""
    names = ("kromcanon -2, fp32", "kromcanon -8, bf16", "kromcanon 0, fp32")
    first = {name: [arm for arm in quantities["preset"] if arm.startswith(name)][:1] for name in names}
    arms = {name: arm for name, found in first.items() for arm in found}
    return judge(of_arms(claims_to_judge("krom.streams"), arms), quantities)
