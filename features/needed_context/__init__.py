"""Measure how much context a prediction needs: what the last few tokens alone predict (PLS §4.2).

    python -m features.needed_context
    python -m features.needed_context runs/pls --windows 2 8 32 --depths 0 1-2 3-5 6 --out needed.parquet
    python -m features.needed_context runs/pls --control runs/c2

Attention shows where a layer looks, not whether the prediction depends on it. Here the text itself is removed: a token
counts as kept under a window of w tokens if the model predicts the same from the document's first token and the last w
tokens as from the whole context. Tokens are grouped by k*, the layer from which on their prediction stays the same.
Confident predictions survive any disturbance and settle early, so `beyond` subtracts what tokens of similar confidence
keep (ten bins of equal size, including the group's own tokens). A second table, `pairs`, holds differences between
groups. The predicted word is not controlled for; intervals are two-way over documents and predicted words. Windows move
a token towards the start of its text, in all groups alike. Tokens before position --least are left out, so the context
is always longer than the window.
"""

from types import ModuleType
from typing import Annotated, Any, ClassVar

from annotated_types import MinLen

from streamscope.cli.bounds import Count, Names
from streamscope.cli.errors import InputError
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument, need_parts
from streamscope.instruments.data import Tokens
from streamscope.instruments.figures import Curve


@instrument("needed_context", Tokens(max_tokens=2000))
class NeededContext(Instrument):
    windows: Annotated[tuple[Count, ...], MinLen(1)] = (1, 4, 16)
    """Number of tokens that are kept, including the query."""
    depths: Names = ()
    """Groups of k*, as 0, 1-2 or 6; they may overlap. Default: early, middle and late as in PLS Table 1."""
    least: Count = 32
    """First position that counts; must be at least the largest window."""

    figures: ClassVar = (
        Curve("kept", x="window", by="depths", log=True, title="Share of predictions that the last tokens alone give"),
    )  # fmt: skip
    planted: ClassVar = "tests/features/test_needed_context.py::test_a_model_that_reads_one_token_keeps_all"

    def __post_init__(self) -> None:
        super().__post_init__()
        if max(self.windows) > self.least:
            raise InputError(f"--windows {max(self.windows)}: at most --least {self.least}, so that it removes text")

    def check(self, model: Any) -> None:
        """Raise `InputError` for a model in a bridge, and if --least exceeds the context."""
        need_parts(model, self.name)
        if self.least >= model.config.n_ctx:
            raise InputError(f"--least {self.least}: must be less than the context of {model.config.n_ctx} tokens")

    @staticmethod
    def body() -> ModuleType:
        from streamscope.features.needed_context import measure

        return measure


main = main_of(NeededContext, __doc__)
