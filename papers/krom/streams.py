"""Measure the blog's claims about streams and modules within a run, over training seeds (KROM).

    python -m papers.krom.streams runs/kromcanon-b2-* runs/kromcanon-b0-* runs/kromcanon-b8-bf16-*
    python -m papers.krom.streams runs/kromcanon-b2-* --steps 500 1000
    python -m papers.krom.streams --tables results/krom_streams --out results/krom_streams

Per run, on validation documents:

    stable          Spearman's ρ, over the modules whose mixing can act, of α_res at the two --steps of a run
    kept            share of these modules whose α_res has the same sign at both
    helps           Spearman's ρ, over these modules, of what the dynamic term adds to the swap (in use − static, mean
                    over factors) and of what the loss gains from mixing there, L(H_res → I) − L
    slope           least-squares slope over layers of the cosine between streams of the direction of a contrast
    slope.shuffled  the same with the labels of the two sets shuffled
    spread          mean of ‖X − X̄‖ / ‖X‖ of the streams after the last module (`probes.contraction`)

Directions of real and of shuffled labels are alike between streams for one reason, how alike the streams are; what
falls with depth for both is no signal of the contrast. Units are training seeds. That α is stable above .8 and that
streams of a spread below .01 are near copies are limits of ours: the blog has none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from streamscope.cli.bounds import Bounds
from streamscope.cli.parse import command, parse
from streamscope.papers.comparison.options import RunsOptions

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from streamscope.papers.comparison.runs import Run

LAYERS = "Layer-specific modulation under milder initialization"
SURVIVE, MEANS = "Directions survive multi-stream coupling", "What this means"
STABLE, NEAR = "0.8", "0.01"
UNIT = {
    "stable": "Spearman's ρ", "kept": "share of modules", "helps": "Spearman's ρ", "slope": "cosine per layer",
    "slope.shuffled": "cosine per layer", "spread": "share of the streams' size",
}  # fmt: skip
STEEP = 0.001
"""The smallest slope of interest, in cosine per layer: ours."""
FEW = "fewer than three modules can act"
NO_SLOPE = "a layer has no direction, or there is one layer"
SAME = "every module has the same value"


@dataclass(frozen=True, kw_only=True)
class Options(RunsOptions):
    """Arguments of `python -m papers.krom.streams`."""

    steps: tuple[Annotated[int, Bounds(low=1)], Annotated[int, Bounds(low=1)]] = (1000, 2000)
    """Two snapshots of every run, between which α_res is compared."""
    documents: Annotated[int, Bounds(low=2, high=1_000_000)] = 50
    """Validation documents to measure on."""


def rho(x: "Sequence[float] | np.ndarray", y: "Sequence[float] | np.ndarray") -> tuple[float, str]:
    """Spearman's ρ, and why there is none: fewer than three modules, or one value in all of them."""
    import numpy as np
    from scipy import stats

    if len(x) < 3:
        return float("nan"), FEW
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan"), SAME
    return float(stats.spearmanr(x, y).statistic), ""


def slope(values: "Sequence[float] | np.ndarray") -> tuple[float, str]:
    """Least-squares slope of values at 0, 1, 2, …, and why there is none."""
    import numpy as np

    if len(values) < 2 or np.isnan(values).any():
        return float("nan"), NO_SLOPE
    return float(np.polyfit(np.arange(len(values)), values, 1)[0]), ""


def alphas(folder: Any) -> "pd.Series":
    """α_res of the modules whose mixing can act, by their names, of a run or of a snapshot RUN@STEP."""
    import pandas as pd

    from streamscope.models.checkpoint import load
    from streamscope.models.mixing import inert_modules, measure

    model = load(folder)
    by_module = {r["module"]: r["value"] for r in measure(model) if r["metric"] == "alpha_res"}
    return pd.Series(
        {name: float(x) for name, x in by_module.items() if name not in inert_modules(model) and x is not None}
    )


def added(run: "Run", model: Any) -> "pd.Series":
    """What the dynamic term adds to the swap, mean over a module's factors, at the kept weights, by module."""
    from streamscope.models.mixing import inert_modules
    from streamscope.probes.mixing import final, kept_step, log

    rows = final(model, log(run.folder), kept_step(run.folder))
    by = rows[rows["metric"].isin(("swap_static", "swap_dynamic"))].groupby(["module", "metric"])["value"].mean()
    wide = by.unstack()
    return (wide["swap_dynamic"] - wide["swap_static"]).drop(index=list(inert_modules(model)), errors="ignore")


def gained(model: Any, opened: Any, progress: Any) -> "pd.Series":
    """What the loss gains from the mixing of each module that can act, L(H_res → I) − L, by module."""
    from streamscope.interventions.mixing import Mixing
    from streamscope.models.mixing import connections

    result = Mixing(change=("res-identity",), where=("all",)).measure(model, opened, progress=progress)
    frame = result.table("modules").frame
    names = list(connections(model))
    frame = frame[frame["acts"] == "yes"]
    return frame.set_index(frame["module"].map(lambda number: names[number]))["delta"]


def measure_run(
    run: "Run", model: Any, opened: Any, steps: Sequence[int], progress: Any
) -> dict[str, tuple[float, str]]:
    """Every quantity of a run, and why it is undefined."""
    from streamscope.papers.krom.mixing import layer_cosines
    from streamscope.probes.contraction import Contraction

    before, after = (alphas(f"{run.folder}@{step}") for step in steps)
    extra, gain = added(run, model), gained(model, opened, progress("H_res → I"))
    by_layer = layer_cosines(model)
    spread = Contraction().measure(model, opened, progress=progress("spread")).table("modules").frame
    kept_signs = float(((before > 0) == (after.reindex(before.index) > 0)).mean()) if len(before) else float("nan")
    return {
        "stable": rho(before, after.reindex(before.index)),
        "kept": (kept_signs, "" if len(before) else FEW),
        "helps": rho(extra.reindex(gain.index), gain),
        "slope": slope(by_layer["stream_cosine"]),
        "slope.shuffled": slope(by_layer["shuffled_cosine"]),
        "spread": (float(spread.set_index("module")["spread"].sort_index().iloc[-1]), ""),
    }


def with_streams(folders: Sequence[str]) -> "list[Run]":
    """The runs by arm and seed. Raises `InputError` as `papers.krom.report.open_runs`, and for one without factors."""
    from streamscope.cli.errors import InputError
    from streamscope.papers.krom.mixing import by_factors
    from streamscope.papers.krom.report import open_runs

    runs = open_runs(folders)
    for run in runs:
        if not by_factors(run):
            raise InputError(f"{run.folder} has no streams that Kronecker factors mix: give kromhc or kromcanon")
    return runs


def measured(runs: "Sequence[Run]", steps: Sequence[int], documents: int) -> "pd.DataFrame":
    """One row per run and quantity, as `papers.comparison.seeds` reads them; `preset` is the arm in few words."""
    from types import SimpleNamespace

    import pandas as pd

    from streamscope.instruments.data import Documents
    from streamscope.instruments.open_data import OpenDocuments
    from streamscope.instruments.undefined_cells import note
    from streamscope.papers.comparison.report import each_model
    from streamscope.papers.krom.mixing import arm, label

    rows = []
    for run, model, shards, progress in each_model(runs, "cpu"):
        opened = OpenDocuments(Documents(max_documents=documents), shards, model.config.n_ctx, model.tokenizer)
        name = label(SimpleNamespace(**arm(run)))
        for quantity, (value, why) in measure_run(run, model, opened, steps, progress).items():
            rows.append((name, run.seed, quantity, UNIT[quantity], value, note({"value": why} if why else {})))
    return pd.DataFrame(rows, columns=["preset", "seed", "quantity", "unit", "value", "undefined"])


def claims(quantities: "pd.DataFrame") -> "pd.DataFrame":
    """The blog's sentences, of the arms that are there; one correction over all rows."""
    from streamscope.papers.comparison.printed import SMALLEST, Bound, Order
    from streamscope.papers.comparison.verdicts import bound_row, order_row, with_verdicts

    arms = list(dict.fromkeys(quantities["preset"]))
    rho_least = SMALLEST["Spearman's ρ"]

    def of(begin: str) -> str:
        return next((arm for arm in arms if arm.startswith(begin)), "")

    mild, deep, full = of("kromcanon -2, fp32"), of("kromcanon -8, bf16"), of("kromcanon 0, fp32")
    bounds = [
        Bound("stable", mild, "above", STABLE, LAYERS, rho_least),
        Bound("helps", mild, "above", "0", LAYERS, rho_least),
        Bound("slope", deep, "below", "0", SURVIVE, STEEP),
        Bound("spread", full, "below", NEAR, MEANS, 0.0),
    ]
    orders = [
        Order("slope", mild, deep, SURVIVE, STEEP),
        Order("spread", deep, full, MEANS, SMALLEST["share"]),
    ]
    rows = [bound_row(one, quantities) for one in bounds if one.preset]
    return with_verdicts(rows + [order_row(one, quantities) for one in orders if one.more and one.less])


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, judge, print, write."""
    options = parse(Options, argv, __doc__)
    options.check("papers.krom.streams runs/kromcanon-b2-0")

    from streamscope.papers.comparison.report import compare, of_quantities

    def measure(options: Options) -> "tuple[list[Run], pd.DataFrame]":
        runs = with_streams(options.runs)
        return runs, measured(runs, options.steps, options.documents)

    compare(of_quantities("papers.krom.streams", "streams and modules, over seeds", measure, claims), options)


if __name__ == "__main__":
    command(main)
