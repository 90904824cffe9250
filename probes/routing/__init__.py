"""Measure which head sends to which in the Kronecker routing matrices, layer by layer (DST §4.3).

    python -m probes.routing                                    the bundled dst-kron
    python -m probes.routing runs/dst-kron
    python -m probes.routing runs/dst-kron --out routing.parquet

W [H to, H from] of a Kronecker projection: W_ij scales the contribution of head j to head i (DST Eq. 5). Positive
weights excite, negative ones invert. Per layer and projection:

    max, mean      of |W_ij|, all cells; `diagonal` and `off` are the means of |W_ii| and of |W_ij|, i ≠ j
    norm           ‖W‖_F; off_norm = ‖W − diag W‖_F; off_share = off_norm² / norm²
    uneven         Gini coefficient of |W_ij|, i ≠ j: 0 if all pairs of heads are equally strong, near 1 if one pair has
                   everything; .414 for many normal weights, .40 ± .05 for 6 heads
    hub score      (Σ_{j≠i} |W_ij| + Σ_{j≠i} |W_ji|) / (2 Σ_{a≠b} |W_ab|): head i's share of the routing between
                   different heads. The scores of a layer sum to 1; uniform routing gives 1/H.

The paper calls head 0 a hub and says that weights grow with depth, without a measure for either. Here a hub is tested
against chance: the off-diagonal cells are shuffled, and p is the share of shuffles whose largest hub score is at least
the layer's. Growth is the slope over layers of the largest |W_ij|, with a t interval over the layers of this one model;
other seeds may differ by more.
"""

from typing import Any, ClassVar

from streamscope.cli.bounds import Count, Seed
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.figures import Curve, HeadMap, Intervals


@instrument("routing")
class Routing(Instrument):
    shuffles: Count = 2000
    """Number of shuffles of a matrix's cells for the p of its hub."""
    seed: Seed = 0
    """Seed of the shuffles."""

    runs: ClassVar = ("stories/dst-kron",)
    figures: ClassVar = (
        HeadMap("value", table="cells", each=("projection", "layer"), rows="to", columns="from",
                title="Which head sends to which"),
        Intervals("over_even", table="heads", label="name", title="Hub score of each head, minus the uniform score"),
        Curve("max", x="layer", by="projection", title="Largest |W| of the routing matrices, by layer"),
    )  # fmt: skip
    reads_text: ClassVar = False
    planted: ClassVar = "tests/probes/test_routing.py::test_a_star_has_one_hub"

    @staticmethod
    def body() -> Any:
        from streamscope.probes.routing import measure

        return measure


main = main_of(Routing, __doc__)
