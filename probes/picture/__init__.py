"""Draw the attention of one prompt: chosen heads over all tokens, or all heads from one word.

    python -m probes.picture runs/lfa --text "Leo found a bag and a chisel. He used it"
    python -m probes.picture runs/lfa --text "Leo found a bag and a chisel. He used it" --query used
    python -m probes.picture runs/lfa --text "Leo found a bag and a chisel. He used it" --heads L2.H3 top3:induction
    python -m probes.picture runs/lfa --suite competing --prompt 3 --heads top3:pds --figure picture.html

Weights are A_h[q, k] of `hook_pattern`, shares of attention: the row of a query sums to 1 over the keys k ≤ q it can
see. Without --heads, or with --query, every row of the picture is a head and all look from one token: that of --query,
else the prompt's own query (the pronoun), else the last token. With --heads alone each head is a map, query × key. One
prompt is one observation: nothing here has an interval, `probes.heads` and `probes.coreference` have.
"""

from collections.abc import Mapping
from typing import ClassVar

from streamscope.cli.bounds import AnyInt, Names
from streamscope.cli.errors import InputError, unknown
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.data import Data, Opened, Prompts, Text
from streamscope.instruments.figures import HeadMap
from streamscope.models.head_spec import score_names

SCORES = ("pds", "previous", "first", "duplicate", "induction")
"""What --heads ranks by: `probes.pds` on the suite, `probes.heads` on random sequences."""


@instrument("picture", Text(max_tokens=128), Prompts())
class Picture(Instrument):
    """Which token looks at which in one prompt: attention of every head from one token, or maps of chosen heads.

    A_h[q, k] of `hook_pattern`, shares of the query's attention. One prompt is one observation, without an interval.
    """

    prompt: AnyInt | str | None = None
    """Which prompt of the suite: its place, from 0, or its id. Default: the first, where no text is given."""
    heads: Names = ()
    """L2.H3, L2.*, all, top3:SCORE of pds (ranked on the suite), induction, previous, first, duplicate. Default:
    all heads, from one token."""
    query: AnyInt | str | None = None
    """The token to look from: a word of the text, or a position (0 is BOS)."""

    figures: ClassVar = (
        HeadMap("attention", table="attention", each=("prompt",), rows="head", columns="key", names="label",
                title="Attention of every head from one token"),
        HeadMap("attention", table="maps", each=("prompt", "head"), rows="query", columns="key",
                names="label", row_names="query_label", title="Attention of each token (row) to the tokens before it"),
    )  # fmt: skip
    planted: ClassVar = "tests/probes/test_picture.py::test_every_head_from_the_last_token"

    def __post_init__(self) -> None:
        super().__post_init__()
        if strange := sorted(score_names(self.heads) - set(SCORES)):
            raise unknown("head score", strange[0], list(SCORES))

    def unread(self, data: Mapping[type[Data], Data]) -> dict[type[Data], str]:
        """The suite where texts are given and no heads are ranked on it, else what limits texts."""
        if not getattr(data[Text], "text", True):
            return {Text: "the prompt is of the suite, whole"}
        return {} if "pds" in score_names(self.heads) else {Prompts: "--text gives the prompt"}

    def with_resolved_heads(self, data: Opened) -> "Picture":
        """There is nothing to compare with a control."""
        raise InputError("--control: one prompt is one observation; to see two models beside each other, name both")


main = main_of(Picture, __doc__)
