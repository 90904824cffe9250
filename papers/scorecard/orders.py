"""Orders of two architectures that the papers claim and no page of theirs judges, on the runs of a scorecard.

All arms of one scorecard saw the same text by the same recipe, so that an order is of architectures; pairs are those of
a training seed. What an order is about must be there: where it needs a task, both arms have to do it, by the interval
over their seeds.
"""

import pandas as pd

from streamscope.papers.comparison.printed import Order, claims_to_judge
from streamscope.papers.comparison.seeds import estimate, seeds_of
from streamscope.papers.comparison.verdicts import CANNOT, order_row, with_verdicts

ORDERS = tuple(claim for claim in claims_to_judge("scorecard") if isinstance(claim, Order))
"""One head is worth some hundredths of a nat at most, so its smallest effect of interest is that of no whole model."""


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
        rows.append(order_row(one, quantities))
    return with_verdicts(rows, instead)


def _does(quantities: pd.DataFrame, task: str, arm: str) -> bool:
    """Whether the interval of a task over the seeds of an arm lies above 0."""
    values, _ = seeds_of(quantities, task, arm)
    return len(values) > 1 and estimate(values)["ci_low"] > 0
