"""Do the signs of α_res agree over training seeds, module by module, more than chance has it (KROM)?

    consistent   modules whose α_res has one sign in all seeds of an arm
    coins        their share if every sign were a fair coin: 2 · (1/2)^seeds
    dealt        their share if every seed had as many positive signs as it has, dealt to modules at random; p of that
                 many consistent ones or more, exact

α_res begins at +.01 in every module of every seed, so that positive signs can be many and agree for no other reason:
hence `dealt` and not `coins` alone. Modules that cannot act are left out: nothing but decay and rounding moves
their α. The sign alone does not say which way a module turns mixing: (α, W) and (−α, −W) are the same function.
"""

from collections.abc import Sequence
from math import comb
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from streamscope.instruments.stats.proportions import proportion
from streamscope.papers.comparison.verdicts import HOLDS, OPPOSITE, measured, with_verdicts
from streamscope.papers.krom.mixing import ARM, label
from streamscope.probes.mixing import short

NAN = float("nan")
OF = 16
"""Modules of the blog's models."""
LARGEST = "blocks.0.mlp_hc"
"""The module of which the blog says that it has the largest amplification in every run."""
WHERE = "Layer-specific modulation under milder initialization"


def consistent_when_dealt(positive: Sequence[int], modules: int) -> np.ndarray:
    """P(k modules have one sign in all seeds), k = 0 … modules, where a seed's positive signs are dealt at random.

    `positive` is how many each seed has. Exact: seed after seed, over how many modules were positive, and negative,
    throughout so far.
    """
    ways = {(positive[0], modules - positive[0]): 1.0}
    for a in positive[1:]:
        then: dict[tuple[int, int], float] = {}
        for (plus, minus), p in ways.items():
            rest = modules - plus - minus
            for i in range(min(plus, a) + 1):
                for j in range(max(0, a - i - rest), min(minus, a - i) + 1):
                    key = (i, minus - j)
                    way = comb(plus, i) * comb(minus, j) * comb(rest, a - i - j) / comb(modules, a)
                    then[key] = then.get(key, 0.0) + p * way
        ways = then
    chances = np.zeros(modules + 1)
    for (plus, minus), p in ways.items():
        chances[plus + minus] += p
    return chances


def _arms(factors: pd.DataFrame) -> list[tuple[Any, pd.DataFrame]]:
    """(a row of the arm, α_res [modules, seeds] of those that can act) of every arm of two seeds or more."""
    if "alpha_res" not in factors:  # of comparisons from before it was kept
        return []
    can = factors[factors["acts"] & factors["alpha_res"].notna()].drop_duplicates([*ARM, "seed", "module"])
    alphas = []
    for _, one in can.groupby(ARM, sort=False, dropna=False):
        if one["seed"].nunique() > 1:
            wide = one.pivot(index="module", columns="seed", values="alpha_res")
            alphas.append((next(one.itertuples()), wide.reindex(dict.fromkeys(one["module"]))))
    return alphas


def sign_agreement(factors: pd.DataFrame) -> pd.DataFrame:
    """One row per arm of two seeds or more: its consistent modules, with Wilson's interval over modules, and chance."""
    rows = []
    for arm, alpha in _arms(factors):
        plus = alpha > 0
        same = plus.all(axis=1) | ~plus.any(axis=1)
        modules, n = alpha.shape
        agreement, chance = proportion(same), consistent_when_dealt(plus.sum().tolist(), modules)
        rows.append({
            **{name: getattr(arm, name) for name in ARM}, "n": n, "seeds": ", ".join(map(str, alpha.columns)),
            "modules": modules, "positive": ", ".join(map(str, plus.sum())), "consistent": int(same.sum()),
            "share": agreement.mean, "share_low": agreement.ci_low, "share_high": agreement.ci_high,
            **{f"of_16{end}": OF * x for end, x in (("", agreement.mean), ("_low", agreement.ci_low),
                                                    ("_high", agreement.ci_high))},
            "coins": 2.0 ** (1 - n), "dealt": float(chance @ np.arange(modules + 1)) / modules,
            "p": float(chance[int(same.sum()):].sum()),
        })  # fmt: skip
    return pd.DataFrame(rows)


def by_module(factors: pd.DataFrame) -> pd.DataFrame:
    """One row per arm of two seeds or more and module that can act: in how many seeds α_res is positive, and largest.

    Largest by |α_res|, which bounds what the dynamic term can add to the swap.
    """
    rows = []
    for arm, alpha in _arms(factors):
        largest = alpha.abs().eq(alpha.abs().max())
        for name, own in alpha.iterrows():
            rows.append({
                **{c: getattr(arm, c) for c in ARM}, "module": name, "n": alpha.shape[1],
                "positive": int((own > 0).sum()), "consistent": bool((own > 0).all() or not (own > 0).any()),
                "alpha_low": own.min(), "alpha_high": own.max(), "largest": int(largest.loc[name].sum()),
            })  # fmt: skip
    return pd.DataFrame(rows)


def claims(factors: pd.DataFrame) -> pd.DataFrame:
    """What the blog says of the layers' pattern, per arm: most modules keep their sign (it denies that), and one module
    has the largest |α_res| in every seed. With two seeds, one pair of runs, there is no verdict.

    p that most keep it is that of half, and of as many by dealing, the larger one: signs that are all still positive
    are no pattern of layers.
    """
    rows: list[dict[str, Any]] = []
    instead: dict[int, str] = {}
    modules = by_module(factors)
    for arm in sign_agreement(factors).itertuples():
        few = "undefined: one pair of seeds" if arm.n < 3 else ""
        of_arm = {"where": WHERE, "paper": NAN, "smallest": NAN}
        most = {
            "claim": f"{label(arm)}: share of modules that keep their sign above 0.5",
            "quantity": "consistent",
            **of_arm,
        }
        share, low, high = (x - 0.5 for x in (arm.share, arm.share_low, arm.share_high))
        p = float(stats.binomtest(arm.consistent, arm.modules, 0.5).pvalue)
        p = max(p, arm.p) if share > 0 else p
        rows.append(measured({**most, "printed": f"5 of {OF}"}, share, low, high, p, str(arm.n), ""))
        if few:
            instead[len(rows) - 1] = few
        mine = (modules[ARM] == [getattr(arm, name) for name in ARM]).all(axis=1) & (modules["module"] == LARGEST)
        for times in modules.loc[mine, "largest"]:
            one = f"{label(arm)}: {short(LARGEST)} has the largest |α_res| in every seed"
            row = {"claim": one, "quantity": "largest", **of_arm, "printed": "3 of 3"}
            rows.append(measured(row, times / arm.n, NAN, NAN, NAN, str(arm.n), "counted in these seeds, not tested"))
            side = HOLDS if times == arm.n else OPPOSITE
            instead[len(rows) - 1] = few or f"{side}: in {times} of {arm.n} seeds, counted, not tested"
    return with_verdicts(rows, instead)
