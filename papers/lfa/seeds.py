"""From runs to architectures (`papers.comparison.seeds`): each beside the paper, and against the control."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from streamscope.instruments.stats.comparisons import compare_seeds
from streamscope.instruments.stats.effect_sizes import cohens_d
from streamscope.instruments.stats.t_tests import constant
from streamscope.instruments.undefined_cells import note, reasons
from streamscope.papers.comparison.printed import numbers
from streamscope.papers.comparison.rows import ONE_PER_RUN
from streamscope.papers.comparison.seeds import FLAT, NAN, estimate, nothing, paired, seeds_of
from streamscope.papers.comparison.verdicts import COUNTED
from streamscope.papers.lfa.runs import CONTROL, PRESETS, Arms, in_order
from streamscope.probes.pds.measure import mean_plus_sd

EXACT = {"parameters"}
"""Quantities that training does not change: their difference needs no interval."""
PAIRED, WELCH = "paired by seed", "Welch"
EXPLORED = "exploratory: not corrected, described and not tested"


def renamed(quantities: pd.DataFrame, heads: pd.DataFrame) -> pd.DataFrame:
    """Quantities by today's names: before the domain stood in every name, it was the candidates where none stood.

    The layer of the best head over all keys (largest Top-1, then most attention) is taken from the table of heads.
    """

    if not (quantities["quantity"] == "coreference.best_layer").any():
        return quantities
    names = quantities["quantity"].str.replace(
        r"^stability\.(jaccard|over_total)\.", r"stability.candidates.\1.", regex=True
    )
    table = quantities.assign(quantity=names.replace({"coreference.best_layer": "coreference.candidates.best_layer"}))
    keys = table[table["quantity"] == "coreference.candidates.best_layer"].copy()
    order = heads.sort_values(["top1_keys", "attention"], ascending=False, kind="stable")
    best = order.drop_duplicates(["preset", "seed"]).set_index(["preset", "seed"])
    found = [best.loc[key] for key in zip(keys["preset"], keys["seed"], strict=True)]
    keys = keys.assign(
        quantity="coreference.keys.best_layer",
        value=[float(one["layer"]) for one in found],
        detail=[one["head"] for one in found],
    )
    return pd.concat([table, keys], ignore_index=True)


def with_reference(quantities: pd.DataFrame, heads: pd.DataFrame) -> pd.DataFrame:
    """`quantities` with `pds.reference` and `pds.over.reference`: heads over μ+σ of Std-T (LFA §3.2, App. C).

    μ+σ (σ with n−1) over the heads of each Std-T run, averaged over its seeds, is one threshold for every run.
    Undefined without a Std-T run. `pds.reference` of a run is its own μ+σ.
    """

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


def _quantities(table: pd.DataFrame) -> Any:
    """(quantity, family, unit), each once, in order of appearance."""
    return table.drop_duplicates("quantity")[["quantity", "family", "unit"]].itertuples(index=False)


def _each(table: pd.DataFrame, arms: Sequence[str]) -> Iterator[tuple[str, str, str, pd.DataFrame]]:
    """Every quantity with its family, its unit, and a table to look it up in: its own rows where all `arms` have one,
    which is quick, else the whole table, which knows why one has none."""
    own = dict(list(table.groupby("quantity", sort=False)))
    for quantity, family, unit in _quantities(table):
        rows = own[quantity]
        yield quantity, family, unit, rows if set(arms) <= set(rows["preset"]) else table


def architectures(quantities: pd.DataFrame) -> pd.DataFrame:
    """One row per quantity and preset: n seeds, mean, sd, 95 % t interval, beside what the paper prints.

    Intervals of shares are cut at 0 and 1, but for differences, as costs are.
    """

    rows, arms = [], in_order((*PRESETS, *quantities["preset"]))
    for quantity, family, unit, table in _each(quantities, arms):
        for preset in arms:
            values, left_out = seeds_of(table, quantity, preset)
            paper = numbers("lfa").get((preset, quantity))
            if len(values):
                row = estimate(values)
                if unit.startswith("share") and ".minus_" not in quantity and family != "cost":  # NaN stays NaN
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


class Contrast(NamedTuple):
    """One arm against another over training seeds; `why` says why there is no interval, `test` how there is one."""

    difference: float
    ci_low: float
    ci_high: float
    p: float
    seeds: str
    why: str
    test: str


def contrast(quantities: pd.DataFrame, quantity: str, a: str, b: str) -> Contrast:
    """x_a − x_b: paired by seed where both arms have runs of the same seeds, by Welch's interval where not.

    Runs of one seed share the order of their data. Parameters are counted: their difference is its own interval and
    there is no p.
    """
    x, y = (seeds_of(quantities, quantity, preset)[0] for preset in (a, b))
    for values, preset in ((x, a), (y, b)):
        if not len(values):
            return Contrast(NAN, NAN, NAN, NAN, "0", nothing(quantities, quantity, preset), "")
    both = seeds_by_preset(quantities)
    if quantity in EXACT and constant(x) and constant(y):
        gap = float(x.mean() - y.mean())
        return Contrast(gap, gap, gap, NAN, _counts(x, y), "", "")
    if both[a] == both[b]:
        found = paired(quantities, quantity, a, b)
        why = found["why"].get("ci_low", "")
        why = "one pair of seeds" if why == "one seed" else why
        seeds = str(found["n"])
        return Contrast(found["mean"], found["ci_low"], found["ci_high"], found["p"], seeds, why, PAIRED)
    apart = compare_seeds(x, y)
    few = [preset for preset, values in ((a, x), (b, y)) if len(values) < 2]
    why = f"one seed of {' and '.join(few)}" if few else reasons(apart.undefined).get("ci_low", "")
    return Contrast(apart.difference, apart.ci_low, apart.ci_high, apart.p, _counts(x, y), why, WELCH)


def _counts(x: np.ndarray, y: np.ndarray) -> str:
    return str(len(x)) if len(x) == len(y) else f"{len(x)} and {len(y)}"


def comparisons(quantities: pd.DataFrame, claims: pd.DataFrame, arms: Arms | None = None) -> pd.DataFrame:
    """Each arm against the control over seeds, per quantity: `contrast`, and d.

    The control is the arm of std-t that differs least from the other (`Arms.pair`); of another arm of std-t, std-t. A
    contrast that is a claim has the p, the corrected p and the verdict of the claim, here as there; of any other the p
    is not corrected (`EXPLORED`): it describes and tests nothing. `d` is Cohen's, pooled over the seeds of the two
    (`effect_sizes.cohens_d`), positive where the arm has more than the control.
    """

    arms = arms or Arms()
    judged = {(c.quantity, frozenset((c.more, c.less))): c for c in claims.itertuples() if c.less}
    have, rows = in_order(quantities["preset"]), []
    for quantity, family, unit, table in _each(quantities[quantities["family"] != "suites"], have):
        for arm in (p for p in have if p != CONTROL):
            control = CONTROL if arm.startswith(f"{CONTROL}+") else arms.pair(CONTROL, arm)[0]
            found = contrast(table, quantity, arm, control)
            claim = judged.get((quantity, frozenset((arm, control))))
            x, y = (seeds_of(table, quantity, p)[0] for p in (arm, control))
            cells = {
                "mean": float(x.mean()) if len(x) else NAN, "control_mean": float(y.mean()) if len(y) else NAN,
                "difference": found.difference, "ci_low": found.ci_low, "ci_high": found.ci_high,
                "p": found.p if claim is None else claim.p, "p_holm": NAN if claim is None else claim.p_holm,
                "d": cohens_d(x, y) if min(len(x), len(y)) > 1 else NAN,
            }  # fmt: skip
            why = {name: _missing(name, found, claim) for name, value in cells.items() if value != value}
            rows.append({
                "family": family, "quantity": quantity, "unit": unit, "preset": arm, "control": control, **cells,
                "seeds": found.seeds, "test": found.test, "verdict": _verdict(quantity, claim),
                "undefined": note(why),
            })  # fmt: skip
    return pd.DataFrame(rows)


def _verdict(quantity: str, claim: Any) -> str:
    if claim is not None:
        return str(claim.direction)
    return COUNTED if quantity in EXACT else EXPLORED


def _missing(name: str, found: Contrast, claim: Any) -> str:
    """Why a cell of a comparison has no value."""
    if name == "p_holm" and claim is None and found.test:
        return EXPLORED
    if name in ("p", "p_holm") and claim is not None:
        return reasons(claim.undefined).get(name) or found.why
    if name == "d":
        return found.why or ("parameters are counted" if not found.test else FLAT)
    return found.why or "parameters are counted"


def seeds_by_preset(quantities: pd.DataFrame) -> dict[str, list[int]]:
    """The seeds of every arm; [] where a preset has no run."""
    found = set(zip(quantities["preset"], quantities["seed"], strict=True))
    arms = in_order((*PRESETS, *(preset for preset, _ in found)))
    return {p: sorted(int(seed) for preset, seed in found if preset == p) for p in arms}
