"""How much of the cosine between streams is the contrast's: real labels against shuffled ones, run by run (KROM).

    excess   cosine between streams of real labels − that of shuffled labels
    left     (1 − cosine of real labels) / (1 − cosine of shuffled labels), a factor: what is left of the disagreement

Streams that are alike have alike differences of any two sets of prompts, so the cosine alone says how homogeneous they
are. Near 1 a small excess can be a large part of what little the streams disagree about, which is why both stand here.
A training run is one unit, however many prompts, layers and shuffles its cosines are means of; the intervals are
Student's over the seeds of an arm. All runs read the same prompts: another contrast is not in the intervals.
"""

from typing import Any

import pandas as pd

from streamscope.instruments.undefined_cells import note
from streamscope.papers.comparison.printed import Bound, Order, claims_to_judge, of_arms
from streamscope.papers.comparison.seeds import estimate, long_table, paired, put_interval, seeds_of, spread
from streamscope.papers.comparison.verdicts import judge
from streamscope.papers.krom.mixing import ARM, NO_BIAS, label, of_blog

SHUFFLED = ", shuffled labels"
"""What follows an arm's label in the quantities where the labels are shuffled."""
EQUAL = "no layer in which the two sets differ in every stream"
SAME = 1e-12
"""A disagreement 1 − cosine up to this is rounding, and no ratio can be taken of it."""


def quantities(mixing: pd.DataFrame) -> pd.DataFrame:
    """The cosine and 1 − cosine of real and of shuffled labels, and the excess, one row per run and number."""
    arms, parts = pd.Series([label(r) for r in mixing.itertuples()], mixing.index, object), []
    names = ("cosine", "disagreement", "excess")
    for name, own, of in ((arms, "stream_cosine", names), (arms + SHUFFLED, "shuffled_cosine", names[:2])):
        wide = pd.DataFrame({"preset": name, "seed": mixing["seed"], "cosine": mixing[own]})
        wide = wide.assign(disagreement=1 - wide["cosine"], excess=wide["cosine"] - mixing["shuffled_cosine"])
        parts.append(long_table(wide, dict.fromkeys(of, "cosine"), EQUAL))
    return pd.concat(parts, ignore_index=True)


def stream_similarity(mixing: pd.DataFrame) -> pd.DataFrame:
    """One row per arm: both cosines and their difference over seeds, each with its interval, and what is left."""
    numbers, rows = quantities(mixing), []
    for _, runs in mixing.groupby(ARM, sort=False, dropna=False):
        first = next(runs.itertuples())
        arm = label(first)
        row: dict[str, Any] = {**{name: getattr(first, name) for name in ARM}, "n": len(runs)}
        row["seeds"] = ", ".join(map(str, sorted(runs["seed"])))
        why = {"b_res": NO_BIAS}
        for name, of in (("cosine", arm), ("shuffled", arm + SHUFFLED)):
            put_interval(row, why, name, estimate(seeds_of(numbers, "cosine", of)[0], EQUAL))
        put_interval(row, why, "cosine_sd", spread(seeds_of(numbers, "cosine", arm)[0]), "sd")
        put_interval(row, why, "excess", paired(numbers, "cosine", arm, arm + SHUFFLED))
        put_interval(
            row, why, "left", paired(numbers, "disagreement", arm, arm + SHUFFLED, ratio=True, resolution=SAME)
        )
        for name in ("excess", "left"):
            row[f"{name}_by_seed"] = _by_seed(runs, name)
        rows.append({**row, "undefined": note({k: text for k, text in why.items() if row[k] != row[k]})})
    return pd.DataFrame(rows)


def _by_seed(runs: pd.DataFrame, name: str) -> str:
    """The excess or what is left of every run: "0: +0.0042, 1: +0.0023"."""
    cells = []
    for r in runs.sort_values("seed").itertuples():
        gone, shuffled = 1 - r.stream_cosine, 1 - r.shuffled_cosine
        text = f"{shuffled - gone:+.4f}" if name == "excess" else f"{gone / shuffled:.2f}" if shuffled > SAME else "nan"
        cells.append(f"{r.seed}: {'undefined' if 'nan' in text else text}")
    return ", ".join(cells)


# ---- the blog's claims -------------------------------------------------------------------------


def claims(mixing: pd.DataFrame) -> pd.DataFrame:
    """What the blog says of directions in several streams, judged on arms in its recipe that are stored in fp32.

    Above 0 in `excess`: the contrast has more than shuffled labels have. Above .044 in `cosine`: the blog's own
    control, random directions, which shuffled labels pass as well. From bias −8 to −2: the jump of the cosine "to a
    plateau", and that of the excess, which streams that merely became alike do not make. One correction over all rows.
    """
    found: list[Bound | Order] = []
    for (_, storage, _), _, arms in of_blog(mixing):
        if storage == "fp32":
            found += of_arms(claims_to_judge("krom.directions"), {f"{bias:g}": arm for bias, arm in arms.items()})
    return judge(found, quantities(mixing))
