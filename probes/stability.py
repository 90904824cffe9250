"""Stability: the heads that find the target in both orders of a minimal pair (LFA Eq. 6, App. G).

Reads the table of `probes.coreference`: columns pair, cluster, relation, order, layer, index, hit.
"""

from typing import TYPE_CHECKING

from streamscope.models.errors import InputError
from streamscope.probes.report import estimate

if TYPE_CHECKING:
    import pandas as pd


def by_order(table: "pd.DataFrame") -> "tuple[pd.DataFrame, pd.DataFrame] | None":
    """Hits (target first, target last): a row per complete pair, a column per head; None without pairs."""
    paired = table[(table["pair"] != "") & (table["order"] != "")]
    if paired.empty or paired["order"].nunique() < 2:
        return None
    wide = paired.pivot(index="pair", columns=["order", "layer", "index"], values="hit").dropna()
    return (wide["target_first"].astype(bool), wide["target_last"].astype(bool)) if len(wide) else None


def both_orders(table: "pd.DataFrame") -> "pd.DataFrame | None":
    """Whether the head (column) hits in both orders of the pair (row); App. G."""
    orders = by_order(table)
    return None if orders is None else orders[0] & orders[1]


def stability(table: "pd.DataFrame") -> "pd.DataFrame":
    """Per minimal pair, with S the heads that hit the target in that order: LFA Eq. 6 in both readings (SPEC §7.3).

    jaccard = |S_first ∩ S_last| / |S_first ∪ S_last|, the reading of the paper's numbers; undefined where no head hits
    in either order. over_total = |S_first ∩ S_last| / |heads|, the formula as printed. Raises `InputError` without
    pairs.
    """
    import pandas as pd

    from streamscope.probes.undefined import mark

    orders = by_order(table)
    if orders is None:
        raise InputError("stability compares the two orders of a minimal pair, but the table has no complete pair")
    first, last = (x.to_numpy() for x in orders)
    both, either = (first & last).sum(1), (first | last).sum(1)
    about = table.drop_duplicates("pair").set_index("pair").loc[orders[0].index]
    result = pd.DataFrame(
        {
            "pair": orders[0].index,
            "cluster": about["cluster"].to_numpy(),
            "relation": about["relation"].to_numpy(),
            "first": first.sum(1),
            "last": last.sum(1),
            "both": both,
            "either": either,
            "heads": first.shape[1],
            "jaccard": both / either.clip(1),
            "over_total": both / first.shape[1],
            "undefined": "",
        }
    )
    return mark(result, ["jaccard"], either == 0, "no head hits the target in either order")


def mean_stability(pairs: "pd.DataFrame") -> "pd.DataFrame":
    """Mean over pairs of both readings with intervals; pairs where a reading is undefined are left out and counted.

    Intervals over independent cases, cut at 0 and 1.
    """
    import pandas as pd

    from streamscope.probes.undefined import note, reasons

    columns = ("mean", "sd", "ci_low", "ci_high")
    rows = []
    for reading in ("jaccard", "over_total"):
        defined = pairs[pairs[reading].notna()]
        if len(defined):
            row = estimate(defined[reading], defined["cluster"])
            low, high = row["ci_low"], row["ci_high"]
            row |= {"ci_low": max(low, 0.0) if low == low else low, "ci_high": min(high, 1.0) if high == high else high}
            why = {name: reason for name, reason in reasons(row["undefined"]).items() if name in columns}
        else:
            row = dict.fromkeys(columns, float("nan"))
            why = dict.fromkeys(columns, "no head hits the target in any pair")
        counted = {"pairs": len(defined), "left_out": len(pairs) - len(defined), "undefined": note(why)}
        rows.append({"reading": reading, **{k: row[k] for k in columns}, **counted})
    return pd.DataFrame(rows)
