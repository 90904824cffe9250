"""Find the heads that look at entities, at syntactic anchors and at content: PLS' three groups.

    python -m probes.head_groups --n 200                  two heads per group in the last layer of the bundled LFA
    python -m probes.head_groups runs/pls --k 3 --layers all --out groups.parquet

PLS (§5.1) names entity heads "tracking entity mentions", anchor heads "attending to syntactic anchors" and semantic
heads "integrating content", two each in the last layer, and states no rule. The rule here uses effective attention Ã =
ḡ A (PLS B.2; A without a gate) from the query of a prompt (a pronoun) to the words before it:

    entity     mentions of the candidates, by any occurrence of their words, and names (capitals inside a sentence)
    anchor     punctuation, determiners, prepositions, conjunctions, auxiliaries
    semantic   all other words; pronouns, BOS and the query itself belong to no class

    score = mass on the class − ḡ · (share of the tokens up to the query that belong to it)

so uniform attention scores 0. The groups are the three disjoint groups of --k heads with the largest summed score on
half of the cases; `held_out` is a head's score on the other half, with 95 % intervals over independent cases. Every
group gets its heads, also where no head prefers the class: ignore a group whose held-out score is not above 0.
`role_tests` tests each head against shuffled classes, in which every word form keeps one class.
"""

from typing import Any, ClassVar, Literal

from streamscope.cli.bounds import Count, Seed
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.data import Prompts
from streamscope.instruments.figures import HeadMap, Intervals


@instrument("head_groups", Prompts(suite="story-cases"))
class HeadGroups(Instrument):
    k: Count = 2
    """Number of heads in a group; two in the paper."""
    layers: Literal["last", "all"] = "last"
    """Layers to search: the last layer as in the paper, or all."""
    split: Seed = 0
    """Seed of the halves: one chooses, the other scores."""

    figures: ClassVar = (
        HeadMap("entity", title="How much each head looks at entities"),
        HeadMap("anchor", title="How much each head looks at syntactic anchors"),
        HeadMap("semantic", title="How much each head looks at content words"),
        Intervals("held_out", table="groups", title="How much the chosen heads look there on other prompts"),
    )  # fmt: skip
    planted: ClassVar = "tests/probes/test_head_groups.py::test_planted_heads_are_found_and_scored_on_the_other_half"

    @staticmethod
    def body() -> Any:
        from streamscope.probes.head_groups import measure

        return measure


main = main_of(HeadGroups, __doc__)
