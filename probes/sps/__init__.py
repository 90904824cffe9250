"""Measure how much more attention the right noun gets than its competitor: the SPS (LFA).

    python -m probes.sps runs/lfa                         60 competing-noun prompts: all heads, each layer, each head
    python -m probes.sps runs/lfa --suite stories --n 500 --out sps.parquet
    python -m probes.sps runs/pls --attention gated

SPS = mean over prompts of α(query → semantic) − α(query → distractor) (LFA Eq. 8), from −1 to 1, averaged over heads.
In a minimal pair each noun stands last once, so a head that attends by position has 0. Uniform attention has 0 only if
the nouns have equally many tokens, which is often not so: `even` is its SPS, (tokens of the target − tokens of the
competitor) / keys; compare it with every SPS near 0. Prompts whose text up to the query occurs with either answer are
left out and counted, because their SPS is 0 by construction.

Suites of several categories or relations also have rows of each. The best head of a category is chosen on one half of
its prompts and scored on the other.
"""

from typing import Any, ClassVar, Literal

from streamscope.instruments.command import main_of
from streamscope.instruments.contract import instrument
from streamscope.instruments.data import Prompts
from streamscope.instruments.figures import HeadMap, Intervals
from streamscope.probes.probe import Probe


@instrument("sps", Prompts())
class Sps(Probe):
    attention: Literal["raw", "gated"] = "raw"
    """raw: α; gated: Ã = ḡ α, ḡ the mean of the head's gate over d_h at the query (SPEC §7.3)."""

    figures: ClassVar = (
        HeadMap("sps", table="heads", title="Preference of each head for the right noun (SPS)"),
        Intervals("sps", table="layers", title="Preference for the right noun (SPS), by layer"),
        HeadMap("semantic", "heads", title="Attention of each head to the right noun"),
        HeadMap("sps", "categories", each=("category",),
                title="Preference of each head for the right noun (SPS), by category"),
        Intervals("best", "best", label="category", ranked=False, title="SPS of each category's best head, held out"),
    )  # fmt: skip
    planted: ClassVar = "tests/probes/test_sps.py::test_planted_heads"

    @staticmethod
    def body() -> Any:
        from streamscope.probes.sps import measure

        return measure


main = main_of(Sps, __doc__)
