"""Measure how much context a prediction needs: what the last few tokens alone predict (PLS §4.2).

    python -m features.needed_context
    python -m features.needed_context runs/pls --windows 2 8 32 --depths 0 1-2 3-5 6 --out needed.parquet
    python -m features.needed_context runs/pls --control runs/c2

Attention says where a layer looks, not whether what it sees there matters. So the text is taken away: a token is kept
under a window of w tokens where the model, shown the document's first token and the last w tokens up to the query and
nothing else, says what it says of the whole context. Tokens are told apart by k*, the layer from which on their
prediction stays the same. A token of which the model is sure keeps its prediction under any disturbance, and sure ones
settle early; therefore `beyond` is the same over what all tokens of about as much confidence keep (ten bins of equal
size, the group's own tokens among them). Beside it `pairs`: one group of depths minus another. Which word is predicted
is not held equal; intervals take documents and predicted words as units, two-way, for both are drawn. Windows move a
token towards the beginning of its text, in all groups alike; tokens before --least are left out, so that all have far
more before them than a window holds.
"""

from typing import Any, ClassVar

from streamscope.cli.bounds import Count, Names
from streamscope.cli.errors import InputError
from streamscope.instruments.about_model import need_parts
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.data import Tokens
from streamscope.instruments.figures import Curve


@instrument("needed_context", Tokens(max_tokens=2000))
class NeededContext(Instrument):
    """Take the text away but for its last tokens, and see which predictions stay: early ones, or late ones.

    kept_w = share of tokens with argmax p(· | first, last w tokens) = argmax p(· | whole context), by k* (PLS §4.2).
    """

    windows: tuple[Count, ...] = (1, 4, 16)
    """Tokens that are left, the query among them."""
    depths: Names = ()
    """Groups of k* as 0, 1-2, 6; they may overlap. Default: early, middle and late as in PLS Table 1."""
    least: Count = 32
    """Tokens at earlier positions are left out; more than the largest window."""

    figures: ClassVar = (
        Curve("kept", x="window", by="depths", log=True, title="Share of predictions that the last tokens alone give"),
    )  # fmt: skip
    planted: ClassVar = "tests/features/test_needed_context.py::test_a_model_that_reads_one_token_keeps_all"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.windows:
            raise InputError("give at least one of --windows")
        if max(self.windows) > self.least:
            raise InputError(f"--windows {max(self.windows)}: at most --least {self.least}, so that it leaves text out")

    def check(self, model: Any) -> None:
        """Raise `InputError` for a model in a bridge, and for one that no token is far enough in."""
        need_parts(model, self.name)
        if self.least >= model.config.n_ctx:
            raise InputError(f"--least {self.least}: less than the context, {model.config.n_ctx}")


main = main_of(NeededContext, __doc__)
