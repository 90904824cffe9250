"""Find coreference heads: heads that look from a pronoun to its noun, wherever the noun stands.

    python -m probes.coreference runs/lfa                                29 instances in 13 prompts
    python -m probes.coreference runs/lfa --suite stories --n 1000 --out heads.parquet
    python -m probes.coreference runs/lfa --domain keys --top 5

Per head the mean attention to the antecedent (LFA Eq. 4), Top-1, the share of cases in which the antecedent gets most
attention (Eq. 5), and stability over minimal pairs (Eq. 6, App. G). Beside them stand chance and three rules without
meaning: the most recent candidate, the first-mentioned one, and the longest, the one with most tokens, which a head
that looks everywhere alike prefers. The best of many heads is best partly by luck, so a head is chosen on one half of
the cases and scored on the other; where a suite says which nouns its cases share, no noun is meant in both halves, and
intervals hold for new nouns. Prompts whose text up to the pronoun is asked with either answer (Winograd schemas,
Winogender) are left out and counted: there Top-1 is at most 50 % by construction.
"""

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from streamscope.cli.bounds import Count, Seed
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.data import Prompts
from streamscope.instruments.figures import HeadMap, Intervals

if TYPE_CHECKING:
    import pandas as pd

    from streamscope.instruments.prompts.alignment import Aligned
    from streamscope.instruments.prompts.suite import Suite
    from streamscope.models.hooks import Captures, Query


@instrument("coreference", Prompts(suite="coreference"))
class Coreference(Instrument):
    """Attention from a pronoun to its antecedent, for every head and every prompt that names one.

    Mean attention (LFA Eq. 4), Top-1 (Eq. 5) beside chance and rules of position, stability over minimal pairs (Eq. 6),
    and the best head of one half of the cases, scored on the other.
    """

    domain: Literal["candidates", "keys"] = "candidates"
    """Where the argmax of Top-1 looks. candidates: the target against the distractors, attention to each summed over
    its tokens. keys: all single tokens up to and including the query; a hit is any token of the target. The paper does
    not say which (SPEC §7.3)."""
    split_seed: Seed = 0
    """Which half of the cases chooses heads first."""
    top: Count = 10
    """Show this many heads; the file has all."""

    figures: ClassVar = (
        HeadMap("top1", title="How often each head looks most at the antecedent"),
        HeadMap("attention", title="Attention of each head to the antecedent"),
        Intervals("top1", title="How often each head looks most at the antecedent, with 95 % intervals"),
    )  # fmt: skip
    planted: ClassVar = "tests/probes/test_coreference.py::test_planted_heads"

    def plan(self, prompts: "Suite | Aligned", tokenizer: Any) -> "Query":
        """Patterns of the prompts with a target, and among candidates with a distractor: one candidate is no choice."""
        return self._body().plan(self, prompts, tokenizer)

    def read(self, captures: "Captures", query: "Query") -> "pd.DataFrame":
        """One row per prompt and head: `attention` to the target, `hit`, `tie`, and what the rules say of the prompt.

        A hit needs strictly more attention than everything else in the domain; within `attention.TIE` it is a `tie`
        and no hit. `recency` and `first_mention`: whether the target is the last or the first candidate;
        `longest`: whether it has most tokens, the last of equals; `chance`: 1/candidates, or the target's tokens /
        keys.
        """
        return self._body().read(self, captures, query)


main = main_of(Coreference, __doc__)
