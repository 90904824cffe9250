"""Arms with another residual topology than their preset's: HC, mHC, mHC-lite, streams that never mix, eight of them.

    kromhc+hc, kromhc+mhc, kromhc+mhc_lite     residual=KIND, another H_res
    kromhc+freeze_res                          H_res = I
    kromcanon+n=8                              eight streams

Against its counterpart, the same preset in the same recipe and from the same initial bias (where there is none: −8),
over the seeds that both have: the validation loss, the cosine between streams, and its excess over shuffled labels.
Swaps are of Kronecker factors alone: other kinds have what is defined for any H_res, its distance from I.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from streamscope.instruments.undefined_cells import note, reasons
from streamscope.models.checkpoint import load
from streamscope.papers.comparison.losses import final_loss
from streamscope.papers.comparison.printed import Order, printed
from streamscope.papers.comparison.runs import Run
from streamscope.papers.comparison.seeds import long_table
from streamscope.papers.comparison.verdicts import judge
from streamscope.papers.krom.mixing import ARM, NO_BIAS, arm, label, stream_cosines
from streamscope.papers.krom.similarity import quantities
from streamscope.probes.mixing_monitor.measure import overview, watch

EIGHT = {
    "cosine": f"{printed('krom-n8-cosine')} against {printed('krom-sweep-cosine-b2')}", "loss": "identical",
}  # fmt: skip
"""What the blog prints of eight streams against four, from bias −2."""
SURVIVE = "Directions survive multi-stream coupling"
NO_FACTORS = "H_res is no product of 2 × 2 factors"
FROZEN = "H_res = I by construction"
WORDS = {"holds": "more", "opposite": "less"}
DISTANCES = ("distance_static", "distance_dynamic", "distance_decay")


def topology_row(run: Run) -> dict[str, Any]:
    """One row of the table of other topologies: arm, seed, loss, distances of H_res from I, cosines, `streams`.

    `streams` counts modules by the rule of `probes.mixing`; what has no swap and no initial bias says why.
    """
    (seen,) = overview(watch(load(run.folder, device="cpu"))).to_dict("records")
    why = {name: text for name, text in reasons(seen["undefined"]).items() if name in DISTANCES}
    frozen = run.config["model"]["residual"]["freeze_res"]
    if frozen:
        why = dict.fromkeys(DISTANCES, FROZEN)
    own = arm(run)
    if own["b_res"] != own["b_res"]:
        why["b_res"] = NO_BIAS
    return {
        **own, "seed": run.seed, **final_loss(run), **{name: seen[name] for name in DISTANCES},
        "streams": seen["streams"], **stream_cosines(run),
        "undefined": note({"swap": FROZEN if frozen else NO_FACTORS, **why}),
    }  # fmt: skip


def streams(mixing: pd.DataFrame, topologies: pd.DataFrame) -> pd.DataFrame:
    """Every run of several streams, whatever its H_res: arm, seed, loss and both cosines."""
    columns = [*ARM, "seed", "loss", "stream_cosine", "shuffled_cosine"]
    parts = [part[columns] for part in (mixing, topologies) if len(part)]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def pairs(runs: pd.DataFrame) -> list[tuple[Any, Any]]:
    """(arm with another topology, its counterpart) of every arm in `streams` whose counterpart is there."""
    firsts = [next(one.itertuples()) for _, one in runs.groupby(ARM, sort=False, dropna=False)]

    def recipe(r: Any) -> tuple[Any, ...]:
        bias = -8.0 if r.b_res != r.b_res else r.b_res
        return (r.preset.split("+")[0], bias, *(getattr(r, name) for name in ARM[2:]))

    plain = {recipe(r): r for r in firsts if "+" not in r.preset}
    return [(r, plain[recipe(r)]) for r in firsts if "+" in r.preset and recipe(r) in plain]


def claims(runs: pd.DataFrame) -> pd.DataFrame:
    """A row per quantity of eight streams: does the arm have more than its counterpart? One correction over the rows.

    The blog prints of eight streams that the cosine holds "with identical eval loss": a difference that is negligible.
    """
    return _judged(runs, [pair for pair in pairs(runs) if _eight(pair[0])], EIGHT)


def differences(runs: pd.DataFrame) -> pd.DataFrame:
    """The same of every other pair, of which the blog claims nothing: `finding` is more, less, or why neither."""
    table = _judged(runs, [pair for pair in pairs(runs) if not _eight(pair[0])], {})
    if table.empty:
        return table
    table = table.assign(finding=table["direction"].replace(WORDS), alone=table["alone"].replace(WORDS))
    return table.drop(columns=["direction", "paper", "printed", "where", "size"])


def _eight(arm: Any) -> bool:
    """Whether the blog speaks of an arm."""
    return bool(arm.preset.endswith("+n=8") and arm.b_res == -2)


def _judged(runs: pd.DataFrame, of: Sequence[tuple[Any, Any]], prints: Mapping[str, str]) -> pd.DataFrame:
    """Loss, cosine and excess of pairs of arms, and what the blog prints of them."""
    losses = runs.assign(preset=[label(r) for r in runs.itertuples()])
    values = pd.concat([quantities(runs), long_table(losses, {"loss": "nats/token"})], ignore_index=True)
    return judge(
        [Order(name, label(one), label(two), SURVIVE if name in prints else "", quote=prints.get(name, ""))
         for one, two in of for name in ("loss", "cosine", "excess")], values,
    )  # fmt: skip
