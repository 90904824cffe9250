"""HDPL's claims about its training curves (§3.2, Fig. 2): how each is read and judged.

The paper draws one seed of 20,000 steps and prints a few points. Its steps are taken as shares of a run: 10,000 is half
of it, 17,000 is .85. Warm-up is that of the run's own schedule.
"""

from collections.abc import Sequence

import pandas as pd

from streamscope.papers.comparison.curves import Reading, last_until, loss_gaps, mean_over, points, token_gaps, wide
from streamscope.papers.comparison.printed import SMALLEST
from streamscope.papers.comparison.runs import Run

PLACE = "§3.2, Fig. 2"
LEAST = SMALLEST["nats/token"]
LEAST_SOONER = 0.05
"""ln of a ratio of tokens: about 5 % of them."""
HALF, PLATEAU = 0.5, 0.85


def at(runs: Sequence[Run]) -> dict[str, float]:
    """The points that the paper names, by their steps here."""
    steps = int(runs[0].manifest["steps"])
    return {"half": HALF * steps, "17/20": PLATEAU * steps, "last": float(steps)}


def readings(curves: pd.DataFrame, runs: Sequence[Run]) -> list[Reading]:
    """Every claim about the curves of llama and of hdpl."""
    dense, hybrid, both = "llama", "hdpl", "hdpl < llama"
    warmup = max(run.warmup for run in runs)
    tokens = curves.groupby("step")["tokens"].first()
    after = loss_gaps(curves, hybrid, dense, warmup)
    half = at(runs)["half"]
    own = {arm: wide(curves, arm).dropna(axis=1) for arm in (dense, hybrid)}
    rises = {arm: losses.iloc[:, -1] - wide(curves, arm).min(axis=1) for arm, losses in own.items()}
    return [
        Reading(
            "hdpl-f2-consistently", both, "loss at every evaluation after warm-up", "nats/token", PLACE, after,
            "at every evaluation after warm-up the interval lies above 0", LEAST,
        ),
        Reading(
            "hdpl-f2-order-10000", both, "loss at half of the steps", "nats/token", PLACE,
            last_until(loss_gaps(curves, hybrid, dense), half), "at the last evaluation in the first half of the steps "
            "the interval lies above 0", LEAST, "4.38 < 4.44", 4.44 - 4.38,
        ),
        Reading(
            "hdpl-f2-sample-efficiency", both, "tokens to every loss after warm-up, ln of their ratio", "", "Fig. 2",
            token_gaps(curves, hybrid, dense, warmup), "at every evaluation after warm-up the hybrid came to the "
            "higher of the two losses with fewer tokens: the interval lies above 0", LEAST_SOONER,
        ),
        Reading(
            "hdpl-s1-convergence", both, "mean loss over the tokens after warm-up", "nats/token", "§1, §4.1",
            mean_over(after, tokens), "the mean over the curve, not its end alone, has an interval above 0", LEAST,
        ),
        Reading(
            "hdpl-t1-min-is-final", f"{dense} and {hybrid} end at their lowest: rise below {LEAST:g}",
            "last loss less the lowest of a run", "nats/token", "Table 1", LEAST - pd.DataFrame(rises).dropna(),
            f"of both the interval lies below {LEAST:g}",
        ),
    ]  # fmt: skip


def printed_points(curves: pd.DataFrame, runs: Sequence[Run]) -> pd.DataFrame:
    """The losses of every arm at the points that the paper names, and its lowest."""
    return points(curves, at(runs))
