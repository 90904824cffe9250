"""Orders of two architectures that the papers claim and no page of theirs judges, on the runs of a scorecard.

All arms of one scorecard saw the same text by the same recipe, so that an order is of architectures; pairs are those of
a training seed. What an order is about must be there: where it needs a task, both arms have to do it, by the interval
over their seeds.
"""

import pandas as pd

from streamscope.papers.comparison.printed import Order
from streamscope.papers.comparison.seeds import estimate, seeds_of
from streamscope.papers.comparison.verdicts import CANNOT, order_row, with_verdicts

GATED = "attention.gate=gate"


COMPENSATE, SPECIALIZED, LOSS, CASES = 0.1, 0.05, 0.001, 0.05
"""LOSS is of one head, which is worth some hundredths of a nat at most: .01, as of whole models, would be all of it."""
ORDERS = (
    Order(
        "specialization", "dst-ind", "dst-dense", "DST §5.4", SPECIALIZED,
        "modest architectural constraints can encourage specialized computational patterns",
    ),
    Order(
        "top1.keys", "dst-ind", "dst-dense", "DST §4.5, Fig. 5", CASES,
        "Independent-Dense shows stronger differentiation between heads", "copying",
    ),
    Order(
        "hydra", "dst-dense", "dst-ind", "DST §4.5, §6.2", COMPENSATE,
        "distributed computation provides robustness through redundancy", "capitalization",
    ),
    Order(
        "hydra", "dst-kron", "dst-ind", "DST §4.3, §5.1", COMPENSATE,
        "The learned routing weights allow complementary heads to compensate", "capitalization",
    ),
    Order(
        "specialization", "pls", "c2", "PLS §6.1", SPECIALIZED,
        "creates conditions where specialization emerges naturally",
    ),
    Order(
        "specialization", f"dst-kron+{GATED}", "dst-kron", "PLS §3.4", SPECIALIZED,
        "regularizes attention toward discrete, interpretable patterns",
    ),
    Order(
        "heads.mean", "pls", "c2", "PLS §6.2", LOSS,
        "the control model's entangled routing may provide robustness through redundancy",
    ),
    Order(
        "hydra", "c2", "pls", "PLS §4.2", COMPENSATE,
        "This deferred computation pattern enables the Hydra effect",
        "capitalization",
    ),
)  # fmt: skip


def judged(quantities: pd.DataFrame) -> pd.DataFrame:
    """A row per order whose two arms are there, with its verdict (`comparison.verdicts`); Holm over all of them."""
    there = set(quantities["preset"])
    rows: list[dict[str, object]] = []
    instead: dict[int, str] = {}
    for one in ORDERS:
        if not {one.more, one.less} <= there:
            continue
        if one.task and (lack := [arm for arm in (one.more, one.less) if not _does(quantities, one.task, arm)]):
            instead[len(rows)] = f"{CANNOT}: {one.task} of {' and of '.join(lack)} is not shown above 0"
        rows.append(order_row(one, quantities, printed=one.quote))
    return with_verdicts(rows, instead)


def _does(quantities: pd.DataFrame, task: str, arm: str) -> bool:
    """Whether the interval of a task over the seeds of an arm lies above 0."""
    values, _ = seeds_of(quantities, task, arm)
    return len(values) > 1 and estimate(values)["ci_low"] > 0
