"""Sharpen attention to softmax(α · scores) and measure whether the model still works (DST §4.2).

    python -m interventions.amplify                                       the bundled LFA at α = 1, 2, 4, 8, 16
    python -m interventions.amplify runs/kron --alpha 0.5 2 32 --out amplify.parquet
    python -m interventions.amplify runs/kron --heads L3.* --text "Eva and Max waved. She"
    python -m interventions.amplify runs/lfa --control runs/std-t

At large α a head attends to one token. Loss and degradation, 100 (loss(α)/loss(1) − 1) percent, have 95 % intervals
over documents. The area under the curve is given in every reading (`interventions.amplify.measure`), because no reading
gives the paper's numbers. `unchanged` is the share of positions whose most attended key is the one at α = 1; in the
first amplified layer it is 1 by construction. Further tables hold areas, heads, samples, and the attention in one text
at each α. --control gives the difference between two models at every α and of their areas, paired by document; it must
have the run's tokenizer and context. Source: DST §2.3, Eq. 17.
"""

from typing import Annotated, Any, ClassVar

from annotated_types import MinLen

from streamscope.cli.bounds import Names, Only, Positive, Seed, Whole
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.data import Documents
from streamscope.instruments.figures import Curve, HeadMap


@instrument("amplify", Documents())
class Amplify(Instrument):
    alpha: Annotated[tuple[Positive, ...], MinLen(1)] = (1.0, 2.0, 4.0, 8.0, 16.0)
    """Factors on the attention scores; 1 is always included."""
    heads: Annotated[Names, MinLen(1)] = ("all",)
    """Heads to amplify: L5.H4, L4.*, L4-5.H0-2, all, random3:7 (three, drawn with seed 7)."""
    text: str = "No boy bowed like Neil, and no girl danced like Kate. He"
    """Text whose attention is drawn; empty for none."""
    picture: Annotated[Names, Only("text")] = ()
    """Heads to draw; default: the head of the middle layer with the largest entropy at α = 1."""
    prompt: str = "Once upon a time"
    """Prompt that the samples continue; empty for no samples."""
    sample_tokens: Annotated[Whole, Only("prompt")] = 40
    """Number of tokens per sample."""
    seed: Seed = 0
    """Seed of the samples."""

    figures: ClassVar = (
        Curve("percent", x="alpha", log=True, title="Loss increase against the factor on attention scores"),
        Curve("loss", x="alpha", log=True, title="Loss against the factor on attention scores"),
        Curve("entropy", x="alpha", log=True, title="Entropy of attention against the sharpening factor"),
        Curve("unchanged", x="alpha", log=True, title="Share of queries whose most attended key stays the same"),
        Curve("entropy", "heads", x="alpha", by="head", log=True,
              title="Entropy of each head's attention against the sharpening factor"),
        HeadMap("attention", "picture", each=("head",), rows="query", columns="key", root=True,
                names="key_token", row_names="query_token",
                title="Attention in one text, by the factor on its scores"),
    )  # fmt: skip
    quick: ClassVar = {"alpha": (2.0, 8.0), "heads": ("L4-5.*",), "sample_tokens": 2}
    planted: ClassVar = "tests/interventions/test_amplify.py::test_planted_attention_sharpens_as_on_paper"

    @property
    def alphas(self) -> list[float]:
        return sorted({1.0, *self.alpha})

    @staticmethod
    def body() -> Any:
        from streamscope.interventions.amplify import measure

        return measure


main = main_of(Amplify, __doc__)
