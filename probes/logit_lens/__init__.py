"""Apply the logit lens: what each layer would predict if it were the last.

    python -m probes.logit_lens runs/lfa --text "The hammer was in the box, so he used the"
    python -m probes.logit_lens runs/lfa --text "Once upon a time" "She ran" --k 10 --out lens.parquet
    python -m probes.logit_lens runs/lfa --lens lenses.safetensors:tuned

z^(l) = head(norm_l(x^(l))), p = softmax z (nostalgebraist 2020; PLS App. A.5.1). x^(l) is the residual stream after
layer l (the readout of several streams), norm_l the final norm or the layer's own. For every position and layer the
tables hold the k most probable next tokens, and probability and rank of the true next token. With --lens x^(l) is first
mapped to the last layer's state, by a lens of `probes.lenses`.
"""

from typing import Any, ClassVar

from streamscope.cli.bounds import Count, Whole
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.data import Text
from streamscope.instruments.figures import Curve, HeadMap


@instrument("logit_lens", Text())
class LogitLens(Instrument):
    k: Count = 5
    """Number of predictions to keep per position and layer."""
    layers: tuple[Whole, ...] = ()
    """Layers to read; default: all."""
    lens: str = ""
    """FILE:KIND, a file of `streamscope lenses` and one of its kinds, such as lenses.safetensors:tuned; default: the
    logit lens."""

    figures: ClassVar = (
        HeadMap("probability", table="lens", each=("prompt",), columns="position", text="picture_text", names="read",
                title="The most probable next token after each layer"),
        Curve("loss", x="layer", title="Loss of the next token, read after each layer"),
    )  # fmt: skip
    planted: ClassVar = "tests/probes/test_logit_lens.py::test_planted_probabilities_and_ties"

    @staticmethod
    def body() -> Any:
        from streamscope.probes.logit_lens import measure

        return measure


main = main_of(LogitLens, __doc__)
