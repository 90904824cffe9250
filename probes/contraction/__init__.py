"""Measure how far apart parallel streams are, layer by layer, and how far mixing contracts them.

    python -m probes.contraction                                  the bundled KromCanon
    python -m probes.contraction runs/kromhc --data valid.txt --out contraction.parquet
    python -m probes.contraction runs/kromhc@all --max-documents 50 --figure contraction.html

Streams X [n, D] of a position begin equal; each module m mixes them and writes to them, X ← H_m X + W_m. After every
module, over the positions of documents that have a target, with X̄ the mean of the streams:

    spread      mean_t ‖X − X̄‖ / ‖X‖; 0 for copies of one stream
    rank        mean_t exp(−Σ p ln p), p the squared singular values of X over their sum: 1 for copies, at most n
    contracted  1 − Σ_t ‖X − X̄‖ / Σ_t ‖Y − Ȳ‖, Y = Σ_m W_m: compared with H_res = I, which keeps every write
    predicted   mean_t 1 − Π_m σ₂(H_m), m > 0: a lower bound on the contraction of the first module's write
    acts        whether the module's mixing can change an output; not for the first module, whose streams are equal, nor
                for the last one if only the sum is read (the mixing of these two is changed by decay alone)

The blog (KROM) computes Π |1 − 2s| and reads one minus it as the contraction of all differences ("diminishing
returns"). But most differences are written by later modules, after which few mix. Changes of the writes themselves are
not in `contracted`: for those run the model with `--edit` of `hook_res`. Units of intervals are documents.
"""

from typing import Any, ClassVar

from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument, need_streams
from streamscope.instruments.data import Documents
from streamscope.instruments.figures import Curve


@instrument("contraction", Documents(max_documents=200))
class Contraction(Instrument):
    figures: ClassVar = (
        Curve("spread", x="module", title="How far apart the streams are, by depth"),
        Curve("contracted", x="module", reference="predicted",
              title="How much of the streams' difference mixing has contracted"),
    )  # fmt: skip
    runs: ClassVar = ("stories/kromcanon",)
    planted: ClassVar = "tests/probes/test_contraction.py::test_what_is_known_on_paper"

    def check(self, model: Any) -> None:
        need_streams(model, self.name)

    @staticmethod
    def body() -> Any:
        from streamscope.probes.contraction import measure

        return measure


main = main_of(Contraction, __doc__)
