"""Measure whether a head looks at a token for what it is or for where it stands: the PDS (LFA).

    python -m probes.pds runs/lfa                                        60 competing-noun prompts, threshold 0.075
    python -m probes.pds runs/lfa --reference runs/std-t --out pds.parquet
    python -m probes.pds runs/lfa --suite stories --n 500 --threshold own

PDS of a head = |mean over pairs of α(query → target | target last) − mean of α(query → target | target first)| (LFA Eq.
7, App. C). A head that attends to the last noun has 1, and so has one that attends to the first: `prefers` says which,
and only the former is a recency head. A head that follows the target wherever it stands has 0. A head that attends to
neither, or uniformly, also has 0: read PDS together with `probes.coreference`. The title counts the BOS sinks, heads
with at least 90 % of their attention on BOS: their PDS is near 0 whatever the text says.

Suites of several categories or relations also have rows of each. The best head of a category is chosen on one half of
its pairs and scored on the other.
"""

from typing import Any, ClassVar, Literal

from streamscope.cli.bounds import NotNegative
from streamscope.cli.errors import InputError
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import instrument
from streamscope.instruments.data import Prompts
from streamscope.instruments.figures import HeadMap, Histogram, Intervals
from streamscope.models.run_names import run_folder
from streamscope.probes.probe import Probe

FIXED = 0.075
"""The paper's threshold, μ+σ of its Std-T (LFA §3.2)."""
NOUNS = ("first", "last")
"""The noun that a head attends to more, for a difference last − first below and above 0."""


@instrument("pds", Prompts())
class Pds(Probe):
    per_pair: bool = False
    """Use the mean over pairs of |last − first| instead of |mean difference|. Opposite pairs then do not cancel, but
    neither does noise."""
    threshold: NotNegative | Literal["own"] | None = None
    """Heads above it count as position-dependent: a number (default 0.075), or own, μ+σ of these heads."""
    reference: str | None = None
    """Take the threshold, mean plus one standard deviation of PDS over heads, from this run."""

    figures: ClassVar = (
        HeadMap("pds", "models", each=("model",),
                title="How much each head follows a word's place, the first or the last (PDS)"),
        Histogram("pds", "models", at="threshold", each=("model",),
                  title="Heads by how much they follow a word's place, first or last (PDS)"),
        HeadMap("difference", title="Attention to the target, standing last minus standing first"),
        HeadMap("pds", title="How much each head follows a word's place, the first or the last (PDS)"),
        Histogram("pds", at="threshold", title="Heads by how much they follow a word's place, first or last (PDS)"),
        Intervals("difference", title="Attention to the target, standing last minus standing first"),
        HeadMap("difference", "categories", each=("category",),
                title="Attention to the target, standing last minus standing first, by category"),
        Intervals("best", "best", label="category", ranked=False, title="PDS of each category's best head, held out"),
    )  # fmt: skip
    planted: ClassVar = "tests/probes/test_pds.py::test_planted_heads"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reference is not None and self.threshold is not None:
            raise InputError("--reference sets the threshold: leave out --threshold, or --reference")

    def check_sources(self) -> None:
        if self.reference is not None:
            run_folder(self.reference)

    @staticmethod
    def body() -> Any:
        from streamscope.probes.pds import measure

        return measure


main = main_of(Pds, __doc__)
