"""Measure how far apart parallel streams are, layer by layer, and how far mixing contracts them.

    python -m probes.contraction                                  the bundled KromCanon
    python -m probes.contraction runs/kromhc --data valid.txt --out contraction.parquet
    python -m probes.contraction runs/kromhc@all --max-documents 50 --figure contraction.svg

Streams X [n, D] of a position begin equal; each module m mixes them and writes to them, X ← H_m X + W_m. After every
module, over the positions of documents that have a target, with X̄ the mean of the streams:

    spread      mean_t ‖X − X̄‖ / ‖X‖; 0 for copies of one stream
    rank        mean_t exp(−Σ p ln p), p the squared singular values of X over their sum: 1 for copies, at most n
    contracted  1 − Σ_t ‖X − X̄‖ / Σ_t ‖Y − Ȳ‖, Y = Σ_m W_m: the same with H_res = I, where every write is held
    predicted   mean_t 1 − Π_m σ₂(H_m), m > 0: of what the first module wrote, the least that is gone
    acts        whether the module's mixing can change an output: not the first one's, whose streams are equal, nor the
                last one's where only the sum is read; what these two mix is moved by decay alone

The blog computes Π |1 − 2s| and reads 1 less it as what is contracted of all that differs ("diminishing returns"); but
most of what differs is written by modules after which few mix. What mixing changes in the writes themselves is not in
`contracted`: for that, run the model anew with `--edit` of `hook_res`. Units of intervals are documents.
"""

from typing import Any, ClassVar

from streamscope.instruments.about_model import need_streams
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.data import Documents
from streamscope.instruments.figures import Curve


@instrument("contraction", Documents(max_documents=200))
class Contraction(Instrument):
    """Spread and effective rank of parallel streams by depth, and what mixing has contracted beside Π σ₂ of H_res.

    spread ‖X − X̄‖ / ‖X‖; contracted 1 − ‖X − X̄‖ / ‖Y − Ȳ‖, Y the streams with the same writes and no mixing (KROM).
    """

    figures: ClassVar = (
        Curve("spread", x="module", title="How far apart the streams are, by depth"),
        Curve("contracted", x="module", beside="predicted",
              title="How much of the streams' difference mixing has contracted"),
    )  # fmt: skip
    runs: ClassVar = ("stories/kromcanon",)
    planted: ClassVar = "tests/probes/test_contraction.py::test_what_is_known_on_paper"

    def check(self, model: Any) -> None:
        """The model has two streams or more that mix."""
        need_streams(model, self.name)


main = main_of(Contraction, __doc__)
"""`python -m probes.contraction`."""
