"""Draw the attention of one prompt: chosen heads over all tokens, or all heads from one word.

    python -m probes.picture runs/lfa --text "No boy bowed like Neil, and no girl danced like Kate. He"
    python -m probes.picture runs/lfa --text "No boy bowed like Neil, and no girl danced like Kate. He" --query girl
    python -m probes.picture runs/lfa --text "Eva and Max waved. She" --heads L2.H3 top3:induction
    python -m probes.picture runs/lfa --suite competing --prompt 3 --heads top3:pds --figure picture.html

Weights are A_h[q, k] of `hook_pattern`, shares of attention: the row of a query sums to 1 over the keys k ≤ q. Without
--heads, or with --query, each row of the picture is a head, and all attend from one token: --query, else the prompt's
own query (the pronoun), else the last token. With --heads alone each head is a map, query × key. Colours go
from 0 to 1 by the square root of the weight, because in many heads BOS takes most of the attention. One prompt is one
observation without an interval; `probes.heads` and `probes.coreference` give intervals.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from streamscope.cli.bounds import Names
from streamscope.cli.errors import InputError, unknown
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.data import Data, Opened, Prompts, Text
from streamscope.instruments.figures import HeadMap
from streamscope.models.head_spec import score_names

SCORES = ("pds", "previous", "first", "duplicate", "induction")
"""Scores that --heads ranks by: `probes.pds` on the suite, `probes.heads` on random sequences."""


@instrument("picture", Text(max_tokens=128), Prompts())
class Picture(Instrument):
    prompt: int | str | None = None
    """Prompt of the suite, by its number from 0 or its id. Default: the first, if no text is given."""
    heads: Names = ()
    """L2.H3, L2.*, all, top3:SCORE with SCORE pds (ranked on the suite), induction, previous, first or duplicate.
    Default: all heads, from one token."""
    query: int | str | None = None
    """The token that attends: a word of the text, or a position (0 is BOS)."""

    figures: ClassVar = (
        HeadMap("attention", table="attention", each=("prompt",), rows="head", columns="key", names="label", root=True,
                title="Attention of every head from one token"),
        HeadMap("attention", table="maps", each=("prompt", "head"), rows="query", columns="key", root=True,
                names="label", row_names="query_label", title="Attention of each token (row) to the tokens before it"),
    )  # fmt: skip
    planted: ClassVar = "tests/probes/test_picture.py::test_every_head_from_the_last_token"

    def __post_init__(self) -> None:
        super().__post_init__()
        if strange := sorted(score_names(self.heads) - set(SCORES)):
            raise unknown("head score", strange[0], list(SCORES))

    def unread(self, data: Mapping[type[Data], Data]) -> dict[type[Data], str]:
        """The suite is not read if texts are given and no heads are ranked on it; else the options of texts are not."""
        if not getattr(data[Text], "text", True):
            return {Text: "the prompt comes from the suite"}
        return {} if "pds" in score_names(self.heads) else {Prompts: "--text gives the prompt"}

    def with_resolved_heads(self, data: Opened) -> "Picture":
        raise InputError("--control: one prompt is one observation; to compare two models, name both as runs")

    @staticmethod
    def body() -> Any:
        from streamscope.probes.picture import measure

        return measure


main = main_of(Picture, __doc__)
