"""Find coreference heads: heads that look from a pronoun to its noun, wherever the noun stands.

    python -m probes.coreference runs/lfa                                29 instances in 13 prompts
    python -m probes.coreference runs/lfa --suite stories --n 1000 --out heads.parquet
    python -m probes.coreference runs/lfa --domain keys --top 5

Per head: the mean attention to the antecedent (LFA Eq. 4); Top-1, the share of cases in which the antecedent gets most
attention (Eq. 5); and stability over minimal pairs (Eq. 6, App. G). They are compared with chance and three rules
without meaning: the most recent candidate, the first-mentioned one, and the one with most tokens, which uniform
attention prefers. The best of many heads is best partly by luck, so a head is chosen on one half of the cases and
scored on the other; if a suite names the nouns that cases share, the halves share no noun and intervals hold for new
nouns. A suite of several categories or relations also has rows of each, and the best head of each. Prompts whose text
up to the pronoun occurs with either answer (Winograd schemas, Winogender) are left out and counted, because their Top-1
is at most 50 % by construction.
"""

from typing import Any, ClassVar, Literal

from streamscope.cli.bounds import Count, Seed
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import instrument
from streamscope.instruments.data import Prompts
from streamscope.instruments.figures import HeadMap, Intervals
from streamscope.probes.probe import Probe


@instrument("coreference", Prompts(suite="coreference"))
class Coreference(Probe):
    domain: Literal["candidates", "keys"] = "candidates"
    """Domain of the argmax in Top-1. candidates: the target and the distractors, attention to each summed over its
    tokens. keys: all single tokens up to the query; a hit is any token of the target. The paper leaves this open (SPEC
    §7.3)."""
    split_seed: Seed = 0
    """Seed of the two halves of the cases."""
    top: Count = 10
    """Number of heads to show; the file has all."""

    figures: ClassVar = (
        HeadMap("top1", title="How often each head looks most at the antecedent"),
        HeadMap("attention", title="Attention of each head to the antecedent"),
        Intervals("top1", title="How often each head looks most at the antecedent, largest first"),
        HeadMap("top1", "categories", each=("category",),
                title="How often each head looks most at the antecedent, by category"),
        Intervals("best", "best", label="category", reference="recency", ranked=False,
                  title="Top-1 of each category's best head, held out"),
    )  # fmt: skip
    planted: ClassVar = "tests/probes/test_coreference.py::test_planted_heads"

    @staticmethod
    def body() -> Any:
        from streamscope.probes.coreference import measure

        return measure


main = main_of(Coreference, __doc__)
