"""Numbers of LFA that follow from the heads and the losses of runs that were measured, whenever that was.

    pds.over.L0, …           heads over .075 in a layer (Table 5 names L1, L2, L4 and L5)
    pds.over.middle-rest     heads over .075 in the layers that are neither early nor late, less all others (Fig. 1)
    pds.bimodality           Sarle's coefficient of PDS over heads (Fig. 4)
    coreference.top5_layers  layers in which the five heads with most attention to the antecedent are (§4.1)
    cost, cost.d-cas         loss over that of the control, or of D-Cas, of the same seed, − 1 (§5.4)
    cost.added               of CFM: loss less that of LFA, over that of the control, of the same seed (§5.4)

and those of `with_reference`.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from streamscope.papers.comparison.seeds import NAN, Rows
from streamscope.papers.lfa.runs import CONTROL, Arms
from streamscope.probes.pds.measure import mean_plus_sd

D_CAS, LFA, CFM = "d-cas", "lfa", "cfm"
DERIVED = (
    r"pds\.(over\.)?reference|pds\.over\.(L\d+|middle-rest)|pds\.bimodality|coreference\.top5_layers|"
    r"cost(\.d-cas|\.added)?"
)
"""Names of the quantities that are made here, a pattern."""
FEW = "fewer than four heads, or PDS without spread"


def derived(quantities: pd.DataFrame, heads: pd.DataFrame, arms: Arms | None = None) -> pd.DataFrame:
    """`quantities` with all that follows from them and from the table of heads."""
    table = with_reference(quantities, heads)
    parts = [table, *_of_heads(heads), *_costs(quantities, arms or Arms())]
    return pd.concat([part[list(table.columns)] for part in parts], ignore_index=True)


def with_reference(quantities: pd.DataFrame, heads: pd.DataFrame) -> pd.DataFrame:
    """`quantities` with `pds.reference` and `pds.over.reference`: heads over μ+σ of Std-T (LFA §3.2, App. C).

    μ+σ (σ with n−1) over the heads of each Std-T run, averaged over its seeds, is one threshold for every run.
    Undefined without a Std-T run. `pds.reference` of a run is its own μ+σ.
    """
    runs = {key: one for key, one in heads.groupby(["preset", "seed"], sort=False)}
    own = {key: mean_plus_sd(one) for key, one in runs.items()}
    control = [value for (preset, _), value in own.items() if preset == CONTROL]
    threshold = float(np.mean(control)) if control else NAN
    parts = [quantities]
    for key, one in runs.items():
        rows = Rows()
        rows.add("pds.reference", "position", "attention", own[key], detail="μ+σ over its heads")
        over = float((one["pds"] > threshold).sum()) if control else NAN
        detail, why = (f"threshold {threshold:.4f}", "") if control else ("", f"no run of {CONTROL}")
        rows.add("pds.over.reference", "position", "heads", over, detail=detail, why=why)
        parts.append(rows.of(*key)[list(quantities.columns)])
    return pd.concat(parts, ignore_index=True)


def bimodality(x: np.ndarray) -> float:
    """Sarle's coefficient b = (g² + 1) / (k + 3(n−1)² / ((n−2)(n−3))), g and k the sample skewness and excess kurtosis.

    5/9 of an even spread, more with two peaks, and of one peak with a long tail as well, so it is for comparing; NaN
    of fewer than four values and without spread (Pfister et al. 2013).
    """
    n = len(x)
    if n < 4 or np.ptp(x) == 0:
        return NAN
    z = (x - x.mean()) / x.std()
    m3, m4 = float((z**3).mean()), float((z**4).mean())
    g = m3 * np.sqrt(n * (n - 1)) / (n - 2)
    k = (n - 1) / ((n - 2) * (n - 3)) * ((n + 1) * m4 - 3 * (n - 1))
    return float((g**2 + 1) / (k + 3 * (n - 1) ** 2 / ((n - 2) * (n - 3))))


def _of_heads(heads: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """What the table of heads of every run says besides what was measured."""
    for (preset, seed), one in heads.groupby(["preset", "seed"], sort=False):
        rows, last = Rows(), int(one["layer"].max())
        over = one.groupby("layer")["over"].sum()
        for layer, count in over.items():
            rows.add(f"pds.over.L{layer}", "heads by layer", "heads", int(count))
        middle = int(over[(over.index > 1) & (over.index < last - 1)].sum())
        rows.add("pds.over.middle-rest", "position", "heads", 2 * middle - int(over.sum()))
        b = bimodality(one["pds"].to_numpy(float))
        rows.add("pds.bimodality", "position", "Sarle's coefficient", b, why="" if b == b else FEW)
        top = one.sort_values("attention", ascending=False, kind="stable").head(5)
        rows.add("coreference.top5_layers", "coreference", "layers", top["layer"].nunique(),
                 detail=" ".join(top["head"]))  # fmt: skip
        yield rows.of(str(preset), int(seed))


def _costs(quantities: pd.DataFrame, arms: Arms) -> Iterator[pd.DataFrame]:
    """What an architecture costs, as a share of the loss of the arm of std-t that differs least, of the same seed."""
    loss = quantities[quantities["quantity"] == "loss"].set_index(["preset", "seed"])["value"].to_dict()
    for (preset, seed), value in loss.items():
        if preset.split("+")[0] == CONTROL:
            continue
        rows, control = Rows(), arms.pair(CONTROL, preset)[0]
        compared = {"cost": control, **({"cost.d-cas": D_CAS} if preset == LFA else {})}
        for quantity, other in compared.items():
            share = value / loss.get((other, seed), NAN) - 1
            rows.add(quantity, "cost", "share of the loss", share, detail=f"beside {other}",
                     why="" if share == share else f"no run of {other}")  # fmt: skip
        if preset == CFM:
            less, of = loss.get((LFA, seed), NAN), loss.get((control, seed), NAN)
            share = (value - less) / of
            rows.add("cost.added", "cost", "share of the loss", share, detail=f"beside {LFA}, of {control}",
                     why="" if share == share else f"no run of {LFA if less != less else control}")  # fmt: skip
        yield rows.of(preset, seed)
