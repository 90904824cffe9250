"""What paper PLS prints of computational modes, and the claims that it makes of them (§2.3, §4.2, App. B.8, C.5).

Quantities are those of `papers.modes.measure`. All numbers but the depths are of the supervised model alone.
"""

from streamscope.papers.comparison.printed import Bound, Order, Printed
from streamscope.papers.pls.printed import PRINTED as OF_PLS

ARI = "The result is  $ARI = 0.008$ . The clusterings share almost no structure."
IDENTITY = "Raw activation clusters partition by token type"
WHICH = "Features capture how the transformer processes tokens, not which tokens appear."
HOMOGENEOUS = "**Clean depth separation:** Most clusters have  $\\sigma(k^*) \\approx 0$"

PRINTED: tuple[Printed, ...] = (
    Printed("pls", "hdbscan.clusters", "555", "C.5", "**555 clusters** identified"),
    Printed("pls", "hdbscan.coverage", "46.0%", "C.5", "**46.0% coverage** (54.0% unassigned as transitional)"),
    Printed("pls", "hdbscan.largest", "4953", "C.5", "The largest cluster (C547,  $n = 4953$ )"),
    Printed("pls", "hdbscan.variance", "73.9%", "C.4", "30 dimensions, retaining 73.9% of variance."),
    Printed("pls", "hdbscan.ari", "0.008", "§2.3, B.8", ARI),
    Printed("pls", "kmeans.ari", "0.008", "§2.3, B.8", ARI),
    *(one for one in OF_PLS if one.quantity.startswith("depth.")),
)  # fmt: skip

CLAIMS: tuple[Bound | Order, ...] = (
    Bound("hdbscan.ari", "pls", "below", "0.1", "§2.3, B.8", "The near-zero ARI indicates"),
    Bound("hdbscan.ari_clustered", "pls", "below", "0.1", "§2.3, B.8", "The near-zero ARI indicates"),
    Bound("kmeans.ari", "pls", "below", "0.1", "§2.3, B.8", "The near-zero ARI indicates"),
    Bound("hdbscan.identity_gap", "pls", "above", "0", "§2.3", IDENTITY),
    Bound("kmeans.identity_gap", "pls", "above", "0", "§2.3", IDENTITY),
    Bound("hdbscan.flat", "pls", "above", "0.5", "C.5", HOMOGENEOUS),
    Bound("hdbscan.identity", "pls", "below", "0.1", "§2.1, B.3", WHICH),
    Bound("kmeans.identity", "pls", "below", "0.1", "§2.1, B.3", WHICH),
    Order("hdbscan.coverage", "pls", "c2", "§4.3"),
)
"""The limit of "near zero" and of "not", 0.1, is ours; the paper has none. "Sharper functional boundaries in the
supervised model" are read as more tokens inside one. Claims of depth are judged by `papers.pls`."""
FLAT = "hdbscan.flat"
BY_CONSTRUCTION = (
    "undefined by construction: but for the layer k* the features are 0 in most columns, so a cluster has one k*"
)


def unfit(claim: Bound | Order) -> str:
    """Why a claim cannot be judged by these features, the text of its verdict; "" where it can."""
    return BY_CONSTRUCTION if claim.quantity == FLAT else ""


def printed(preset: str, quantity: str) -> Printed | None:
    """What the paper prints of a quantity, if it does."""
    return next((p for p in PRINTED if (p.preset, p.quantity) == (preset, quantity)), None)
