"""What the blog says of initial biases −8, −2, −1 and 0, judged over training seeds (KROM, "Bias sweep").

    mixed             mean static swap less what decay and storage alone make of it; the blog has no such control
    moved             its size: how far the loss moves the swap, in either direction
    swap.low, .high   the least and the largest static swap of the factors that can act, of one run
    best.low, .high   the same of the best swap that the dynamic term can reach
    in use            mean swap with the dynamic term, on the tokens of the monitor
    alpha             largest |α_res| of the modules that can act
    cosine.range      largest less least cosine of biases −2, −1 and 0, of one seed
    cosine.bend       what the cosine gains from −8 to −2, less what it gains from −2 to 0
    gain              the smaller of two, both claimed: what KromHC adds to Canon, and how much more Canon adds

A sentence that two biases do not differ holds where the whole interval lies within ± the smallest effect of interest,
and is opposite where the whole interval lies beyond it (`_without_difference`).

Units are seeds. A bias is compared within one preset, storage and recipe.
"""

from typing import Any

import numpy as np
import pandas as pd

from streamscope.papers.comparison.printed import Bound, Order, claims_to_judge, of_arms
from streamscope.papers.comparison.seeds import NAN, long_table
from streamscope.papers.comparison.verdicts import judge
from streamscope.papers.krom.mixing import ARM, of_blog

UNIT = {
    "loss": "nats/token", "cosine": "cosine",
    **dict.fromkeys(("mixed", "moved", "in use", "swap.low", "swap.high", "best.low", "best.high"), "probability"),
    "alpha": "α_res",
}  # fmt: skip
"""Quantities of a run."""
DERIVED = {"cosine.range": "cosine", "cosine.bend": "cosine", "gain": "nats/token"}
"""Quantities of the arms of one seed together."""
NAMES = {
    "stream_cosine": "cosine", "swap_dynamic": "in use", "swap_low": "swap.low", "swap_high": "swap.high",
}  # fmt: skip
"""Columns of the mixing table -> quantities."""
LOST = "not kept when these tables were made"
JUDGED = claims_to_judge("krom")
"""Claims whose arms are biases. Limits of .01 are ours: the blog says frozen, and near 0. The cosines that it calls
highest are .001 apart, so theirs is held against 0, as a range below .01 is. |α_res| begins at .01 and is .84 to .93 at
the end there; of it .05 is the smallest difference of interest, ours."""
SAME = ("loss", "alpha")
"""Quantities of which the blog says that two biases do not differ."""
TOGETHER = {"cosine.range": (-2.0, -1.0, 0.0), "cosine.bend": (-8.0, -2.0, 0.0)}
"""Quantities of several biases."""
GAIN = "canon first, KromHC a smaller further gain"


def quantities(mixing: pd.DataFrame, factors: pd.DataFrame, losses: pd.DataFrame) -> pd.DataFrame:
    """Every quantity of the sweep, one row per arm, seed and number; arms of other topologies are left out."""
    parts, cosines = [], []
    for key, one, arms in of_blog(mixing):
        acts = factors[factors["acts"]].groupby([*ARM, "seed"])
        best = acts.agg(**{"best.low": ("swap_best", "min"), "best.high": ("swap_best", "max")})
        best["alpha"] = acts["alpha_res"].agg(lambda x: x.abs().max()) if "alpha_res" in factors else NAN
        wide = one.merge(best.reset_index(), "left", [*ARM, "seed"]).rename(columns=NAMES)
        wide = wide.assign(preset=wide["b_res"].map(arms), mixed=wide["swap"] - wide["swap_without_gradient"])
        wide["moved"] = wide["mixed"].abs()
        parts.append(long_table(wide, UNIT, LOST))
        by = one.pivot(index="seed", columns="b_res", values="stream_cosine")
        for quantity, biases in TOGETHER.items():
            if set(biases) <= set(arms):
                x, bend = by[[*biases]].dropna(), quantity == "cosine.bend"
                value = 2 * x[-2.0] - x[-8.0] - x[0.0] if bend else x.max(axis=1) - x.min(axis=1)
                cosines.append(_derived(_of(key, biases), x, quantity, value))
    parts += cosines
    if len(losses) and {"gpt2", "canon", "kromcanon"} <= set(losses["preset"]):
        by = losses.pivot(index="seed", columns="preset", values="loss")[["gpt2", "canon", "kromcanon"]].dropna()
        more = by["canon"] - by["kromcanon"]
        parts.append(_derived(GAIN, by, "gain", np.minimum(more, by["gpt2"] - by["canon"] - more)))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["quantity"])


def _derived(name: str, by: pd.DataFrame, quantity: str, value: Any) -> pd.DataFrame:
    """The rows of a quantity that arms of one seed have together."""
    return long_table(pd.DataFrame({"preset": name, "seed": by.index, quantity: value}), {quantity: DERIVED[quantity]})


def claims(mixing: pd.DataFrame, numbers: pd.DataFrame) -> pd.DataFrame:
    """The blog's sentences, per preset and storage; one correction over all rows."""
    found: list[Bound | Order] = []
    for key, _, arms in of_blog(mixing):
        named = {f"{bias:g}": arm for bias, arm in arms.items()}
        named |= {_text(biases): _of(key, biases) for biases in TOGETHER.values() if set(biases) <= set(arms)}
        found += of_arms(JUDGED, named)
    if (numbers["quantity"] == "gain").any():
        found += of_arms(JUDGED, {GAIN: GAIN})
    return _without_difference(judge(found, numbers)) if found else pd.DataFrame()


def _without_difference(judged: pd.DataFrame) -> pd.DataFrame:
    """The rows of `SAME` with the verdicts of a sentence that says that there is no difference."""
    texts = list(judged["direction"])
    for i, r in enumerate(judged.itertuples()):
        if r.quantity not in SAME or not texts[i].startswith(("negligible", "holds", "opposite")):
            continue
        beyond = r.difference if r.ci_low != r.ci_low else max(r.ci_low, -r.ci_high)
        if texts[i].startswith("negligible"):
            texts[i] = texts[i].replace("negligible", "holds", 1)
        else:
            texts[i] = "opposite" if abs(beyond) > r.smallest else "not resolved beside the smallest effect of interest"
    same = judged["quantity"].isin(SAME)
    equal = judged["claim"].where(~same, judged["claim"].str.replace(" > ", " = "))
    return judged.assign(direction=texts, claim=equal)


def _of(key: tuple[str, str, int], biases: tuple[float, ...]) -> str:
    preset, storage, steps = key
    return f"{preset}, {storage}, {steps:,} steps, biases {_text(biases)}"


def _text(biases: tuple[float, ...]) -> str:
    return ", ".join(f"{one:g}" for one in biases)
