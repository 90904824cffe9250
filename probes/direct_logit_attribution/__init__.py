"""Direct logit attribution: which heads and FFNs write the answer into the residual stream.

    python -m probes.direct_logit_attribution
    python -m probes.direct_logit_attribution runs/pls --tasks gender --out attribution.parquet

The logit of the answer minus that of the foil is a sum over everything written into the residual stream, if the scale s
of the final norm is held fixed:

    logit(answer) − logit(foil) = Σ_i (W_answer − W_foil) · (γ ⊙ (v_i − mean v_i) / s) + constant        (nats)

v_i is the embedding, the output of each head and FFN, or the output biases of attention (one part for all layers). With
RMSNorm no mean is subtracted. The constant comes from the bias of the final norm. Parts are direct effects: a head's
effect through later layers counts as theirs (`interventions.hydra` separates them). With hyper-connections v_i is
weighted along its path.
Source: nostalgebraist 2020; Elhage et al. 2021; Wang et al. 2022 for the logit difference.
"""

from typing import Any, ClassVar

from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.data import Tasks
from streamscope.instruments.figures import HeadMap, Intervals


@instrument("direct_logit_attribution", Tasks(tasks=("capitalization", "gender")))
class DirectLogitAttribution(Instrument):
    figures: ClassVar = (
        HeadMap("contribution", table="heads", each=("task",), title="What each head writes towards the answer"),
        Intervals("contribution", table="parts", label="part", each=("task",),
                  title="What each part of the model writes towards the answer"),
    )  # fmt: skip
    planted: ClassVar = "tests/probes/test_direct_logit_attribution.py::test_a_planted_copier_writes_what_it_is_set_to"

    @staticmethod
    def body() -> Any:
        from streamscope.probes.direct_logit_attribution import measure

        return measure


main = main_of(DirectLogitAttribution, __doc__)
