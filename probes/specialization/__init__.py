"""Measure how differently heads attend: DST's specialization score and the entropy of attention.

    python -m probes.specialization runs/lfa
    python -m probes.specialization runs/lfa --samples 500 --length 96 --data valid.txt --out heads.parquet

With a_h the attention pattern of head h, averaged over samples of equal length T and flattened (DST Eq. 16, 18):

    HSS = 1 / (H (H − 1)) · Σ_{i≠j} (1 − a_i·a_j / (|a_i| |a_j|))        0: the same patterns; 1: orthogonal ones

within every layer (`L0`, …), their mean (`layers`, DST Table 3), and over all pairs of heads of the model (`all`).
BOS sinks are heads with at least 90 % of their attention on BOS. They are all alike, so the title counts them, and
`without sinks` is HSS over all pairs of other heads. If no head is a sink, it equals `all`.
Entropy is −Σ_k A[q, k] ln A[q, k] in nats, the mean over queries q and samples (DST Table 3); uniform attention has the
mean of ln(q + 1). Intervals come from the delete-a-block jackknife over blocks of samples.

In a causal model the first row of every pattern is 1 on itself, so HSS stays below 1: two heads that never share
another key reach at most 1 − 1/T. HSS and entropy depend on T, so compare models at one length.
"""

from typing import Annotated, Any, ClassVar

from annotated_types import Ge

from streamscope.cli.bounds import Count
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.data import Documents
from streamscope.instruments.figures import HeadMap, Intervals, Matrix


@instrument("specialization", Documents(max_documents=None))
class Specialization(Instrument):
    samples: Count = 200
    """Largest number of documents to use that are long enough."""
    length: Annotated[int, Ge(2)] = 64
    """T: samples are cut to this many tokens including BOS; shorter ones are left out."""
    blocks: Annotated[int, Ge(2)] = 10
    """Number of blocks of samples for the jackknife."""

    figures: ClassVar = (
        Matrix("distance", table="pairs", title="How differently two heads attend"),
        HeadMap("entropy", table="entropy", title="Entropy of each head's attention"),
        Intervals("hss", label="scope", title="Head specialization score"),
    )  # fmt: skip
    quick: ClassVar = {"length": 16, "samples": 4}
    planted: ClassVar = "tests/probes/test_specialization.py::test_hss_and_entropy_of_planted_heads"

    @staticmethod
    def body() -> Any:
        from streamscope.probes.specialization import measure

        return measure


main = main_of(Specialization, __doc__)
