"""From runs to architectures (`papers.seeds`): each beside the paper, and against the control."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from papers.lfa_runs import CONTROL, PRESETS
from papers.seeds import FLAT, NAN, estimate, nothing, seeds_of
from probes.comparisons import SeedComparison, compare_seeds
from probes.effect_sizes import cohens_d
from probes.t_tests import constant
from probes.undefined import note, reasons

if TYPE_CHECKING:
    import pandas as pd

EXACT = {"parameters"}
"""Quantities that training does not change: their difference needs no interval."""
TESTED = ("ci_low", "ci_high", "t", "df", "p")


def with_reference(quantities: "pd.DataFrame", heads: "pd.DataFrame") -> "pd.DataFrame":
    """`quantities` with `pds.reference` and `pds.over.reference`: heads over μ+σ of Std-T (LFA §3.2, App. C).

    μ+σ (σ with n−1) over the heads of each Std-T run, averaged over its seeds, is one threshold for every run.
    Undefined without a Std-T run. `pds.reference` of a run is its own μ+σ.
    """
    import pandas as pd

    from papers.rows import ONE_PER_RUN
    from probes.pds import mean_plus_sd

    runs = {key: one for key, one in heads.groupby(["preset", "seed"], sort=False)}
    own = {key: mean_plus_sd(one) for key, one in runs.items()}
    control = [value for (preset, _), value in own.items() if preset == CONTROL]
    threshold = float(np.mean(control)) if control else NAN
    rows = []
    for (preset, seed), one in runs.items():
        of = {"preset": preset, "seed": seed, "family": "position", "sd": NAN, "ci_low": NAN, "ci_high": NAN, "n": 1}
        alone = note(dict.fromkeys(("sd", "ci_low", "ci_high"), ONE_PER_RUN))
        rows.append({**of, "quantity": "pds.reference", "unit": "attention", "value": own[preset, seed],
                     "detail": "μ+σ over its heads", "undefined": alone})  # fmt: skip
        over = float((one["pds"] > threshold).sum()) if control else NAN
        none = note(dict.fromkeys(("value", "sd", "ci_low", "ci_high"), f"no run of {CONTROL}"))
        rows.append({**of, "quantity": "pds.over.reference", "unit": "heads", "value": over,
                     "detail": f"threshold {threshold:.4f}" if control else "",
                     "undefined": alone if control else none})  # fmt: skip
    return pd.concat([quantities, pd.DataFrame(rows)[list(quantities.columns)]], ignore_index=True)


def _quantities(table: "pd.DataFrame") -> Any:
    """(quantity, family, unit), each once, in order of appearance."""
    return table.drop_duplicates("quantity")[["quantity", "family", "unit"]].itertuples(index=False)


def architectures(quantities: "pd.DataFrame") -> "pd.DataFrame":
    """One row per quantity and preset: n seeds, mean, sd, 95 % t interval, beside what the paper prints.

    Intervals of shares are cut at 0 and 1.
    """
    import pandas as pd

    from papers.lfa_printed import printed

    rows = []
    for quantity, family, unit in _quantities(quantities):
        for preset in PRESETS:
            values, left_out = seeds_of(quantities, quantity, preset)
            paper = printed(preset, quantity)
            if len(values):
                row = estimate(values)
                if unit.startswith("share") and ".minus_" not in quantity:  # NaN stays NaN
                    row |= {"ci_low": np.maximum(row["ci_low"], 0.0), "ci_high": np.minimum(row["ci_high"], 1.0)}
            elif paper is None and preset not in set(quantities["preset"]):
                continue
            else:
                missing = nothing(quantities, quantity, preset)
                row = {"n": 0, **dict.fromkeys(("mean", "sd", "ci_low", "ci_high"), NAN)}
                row["why"] = dict.fromkeys(("mean", "sd", "ci_low", "ci_high"), missing)
            why = row.pop("why")
            beside = {"paper": NAN, "printed": "", "where": ""}
            if paper is not None:
                beside = {"paper": paper.value, "printed": paper.text, "where": paper.where}
            else:
                why["paper"] = "the paper prints none"
            key = {"quantity": quantity, "family": family, "unit": unit, "preset": preset}
            rows.append({**key, **row, **beside, "left_out": ", ".join(left_out), "undefined": note(why)})
    return pd.DataFrame(rows)


def difference(quantities: "pd.DataFrame", quantity: str, a: str, b: str) -> SeedComparison | str:
    """Preset a against b over seeds (`comparisons.compare_seeds`, Welch), or why there is nothing to compare."""
    x, y = (seeds_of(quantities, quantity, preset)[0] for preset in (a, b))
    for values, preset in ((x, a), (y, b)):
        if not len(values):
            return nothing(quantities, quantity, preset)
    found = compare_seeds(x, y)
    if quantity in EXACT and constant(x) and constant(y):
        return found._replace(ci_low=found.difference, ci_high=found.difference)
    return found


def comparisons(quantities: "pd.DataFrame") -> "pd.DataFrame":
    """Each architecture against the control over seeds, per quantity: Welch's interval, p, Holm in its family, d.

    `d` is Cohen's, pooled over the seeds of the two (`effect_sizes.cohens_d`), positive where the architecture has
    more than the control. Holm's family: every comparison of one `family` of quantities.
    """
    import pandas as pd

    from probes.report import with_holm

    rows = []
    for quantity, family, unit in _quantities(quantities[quantities["family"] != "suites"]):
        for preset in (p for p in PRESETS if p != CONTROL and p in set(quantities["preset"])):
            found = difference(quantities, quantity, preset, CONTROL)
            key = {"family": family, "quantity": quantity, "unit": unit, "preset": preset, "control": CONTROL}
            if isinstance(found, str):
                names = ("mean", "control_mean", "difference", *TESTED, "d")
                empty = {**dict.fromkeys(names, NAN), "n": 0, "n_control": 0}
                rows.append({**key, **empty, "undefined": note(dict.fromkeys(names, found))})
                continue
            why = {k: r for k, r in reasons(found.undefined).items() if k in TESTED}
            if quantity in EXACT:
                why = {k: "parameters are counted" for k in why if k not in ("ci_low", "ci_high")}
            x, y = (seeds_of(quantities, quantity, p)[0] for p in (preset, CONTROL))
            d = cohens_d(x, y) if min(len(x), len(y)) > 1 else NAN
            if d != d:
                why["d"] = "one training seed" if min(len(x), len(y)) < 2 else FLAT
            rows.append(
                {
                    **key,
                    "mean": found.mean_a,
                    "control_mean": found.mean_b,
                    "difference": found.difference,
                    **{k: getattr(found, k) for k in TESTED},
                    "d": d,
                    "n": found.n_a,
                    "n_control": found.n_b,
                    "undefined": note(why),
                }
            )
    if not rows:
        return pd.DataFrame()
    families = [with_holm(one) for _, one in pd.DataFrame(rows).groupby("family", sort=False)]
    return pd.concat(families, ignore_index=True)


def seeds_by_preset(quantities: "pd.DataFrame", presets: Sequence[str] = PRESETS) -> dict[str, list[int]]:
    """The seeds of every preset; [] where there is no run."""
    found = quantities.drop_duplicates(["preset", "seed"])
    return {p: sorted(int(s) for s in found.loc[found["preset"] == p, "seed"]) for p in presets}
