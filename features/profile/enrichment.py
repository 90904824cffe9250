"""Which kinds of tokens are over- or under-represented in a cluster.

K of N tokens are of a kind, k of the n tokens in a cluster. The odds of the kind inside over those outside:

    log-odds = ln (k + ½)(N − K − n + k + ½) / ((n − k + ½)(K − k + ½))

p: hypergeometric, two-sided, min(1, 2 min(P(X ≤ k), P(X ≥ k))), Holm over all clusters and kinds. The test assumes
independent tokens; tokens of one document are not, so check `documents` in the profile as well.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy.stats import hypergeom

from streamscope.instruments.stats.estimators import holm

COLUMNS = ("cluster", "kind", "n", "k", "share", "share_elsewhere", "log_odds", "p", "p_holm")


def enrichment(clusters: np.ndarray, kinds: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """One row per cluster and kind, for kinds of some but not all tokens; no rows for a single cluster.

    clusters [N]; kind -> [N] booleans. Columns: `COLUMNS`.
    """
    names, codes, sizes = np.unique(clusters, return_inverse=True, return_counts=True)
    total, tables = len(clusters), []
    for kind, member in kinds.items():
        whole = int(member.sum())
        if not 0 < whole < total or len(names) < 2:
            continue
        k = np.bincount(codes[member], minlength=len(names))
        rest = total - whole - sizes + k
        odds = np.log((k + 0.5) * (rest + 0.5) / ((sizes - k + 0.5) * (whole - k + 0.5)))
        tails = np.minimum(hypergeom.cdf(k, total, whole, sizes), hypergeom.sf(k - 1, total, whole, sizes))
        row = {"cluster": names, "kind": kind, "n": sizes, "k": k, "share": k / sizes}
        row |= {"share_elsewhere": (whole - k) / (total - sizes), "log_odds": odds, "p": np.minimum(2 * tails, 1.0)}
        tables.append(pd.DataFrame(row))
    if not tables:
        return pd.DataFrame(columns=COLUMNS)
    table = pd.concat(tables, ignore_index=True)
    table["p_holm"] = holm(table["p"])
    return table.sort_values(["cluster", "p", "kind"], kind="stable", ignore_index=True)[list(COLUMNS)]
