"""The blog's training curves: every evaluation of the runs, by arm, and which architecture lies below along the steps.

Of the curves the blog says what they end with ("both Canon and KromHC independently improve over vanilla; combining
them yields the best result"), which the order of losses judges. Here stands where on the way it holds.
"""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from streamscope.models.training.config import Training
from streamscope.papers.comparison.curves import curves, gaps, online
from streamscope.papers.comparison.runs import Run
from streamscope.papers.krom.claims import ORDER
from streamscope.papers.krom.mixing import arm

PAIRS = tuple((one.less, one.more) for one in ORDER if not one.instead)
DIFFERENCES = {
    "b_res": "bias {:g}", "storage": "{}", "optimizer": "{}", "lr": "rate {:g}", "decay": "decay {:g}",
    "steps": "{:,} steps",
}  # fmt: skip


def named(run: Run, steps: int) -> str:
    """The arm of a run: its preset, and what it has other than the runs of the loss comparison, which have `steps`."""
    default, hyper = Training(), "hc_dtype" in run.config["model"]["residual"]
    usual = {
        "b_res": -8.0, "storage": "fp32", "optimizer": default.hc_optimizer, "lr": default.hc_lr,
        "decay": default.hc_decay, "steps": steps,
    }  # fmt: skip
    own: dict[str, Any] = arm(run) if hyper else {"steps": int(run.manifest["steps"])}
    there = {name: x for name, x in own.items() if x == x}  # no bias where no logit of H_res begins with one
    other = [DIFFERENCES[name].format(there[name]) for name, value in usual.items() if there.get(name, value) != value]
    return ", ".join([run.arm, *other])


def of_arms(runs: Sequence[Run], steps: int) -> pd.DataFrame:
    """`comparison.curves.curves` of all runs, each by its arm."""
    return curves(runs, lambda run: named(run, steps))


def at_the_end(runs: Sequence[Run], steps: int) -> pd.DataFrame:
    """`comparison.curves.online` of all runs, each by its arm."""
    return online(runs, lambda run: named(run, steps))


def compared(table: pd.DataFrame) -> pd.DataFrame:
    """`comparison.curves.gaps` of the neighbours in the blog's orders that were both trained."""
    have = set(table["preset"]) if len(table) else set()
    return gaps(table, [pair for pair in PAIRS if set(pair) <= have])
