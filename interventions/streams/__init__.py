"""Remove a residual stream and measure the loss increase (DST §4.1, Table 4).

    python -m interventions.streams                                the bundled LFA: x_t → 0, x_e → 0, x_t → random words
    python -m interventions.streams runs/kron --method zero random mean resample --out streams.parquet
    python -m interventions.streams runs/kron --where everywhere head --streams token
    python -m interventions.streams runs/kromhc --streams s0 s2 --where 2-4 --reach onwards
    python -m interventions.streams runs/lfa --control runs/kron --streams token

DST Table 4 evaluates trained models "with one stream removed or corrupted" (x_t → 0, x_e → 0, x_t → random vocabulary
embeddings) and prints the change of the loss in percent. It does not say where, so every place is measured. everywhere:
nothing reads the stream; with x_t → 0 the model sees no text. head: only the final norm and the head read the change.
L3 with --reach layer: only the attention and FFN of layer 3, after which the stream is put back; with --reach onwards
the stream stays changed from layer 3 on, so a frozen token stream changes for every later layer and the head.

Methods: zero; random, embeddings of random tokens (--draws times; x_e does not begin as embeddings and has none); mean,
over the documents; resample, the stream of another part of the data (--draws times). A single stream is only measured
with --streams resid, layer by layer. --control gives the difference to a second model's changes with the same draws,
paired by document; it must have the run's streams, tokenizer and context.
"""

from typing import Annotated, Any, ClassVar, Literal

from annotated_types import MinLen

from streamscope.cli.bounds import Count, Names, Only, Seed
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.data import Documents
from streamscope.instruments.figures import Curve, Intervals

Method = Literal["zero", "random", "mean", "resample"]


@instrument("streams", Documents())
class Streams(Instrument):
    streams: Names = ()
    """Streams to remove: token, context; s0, s1, …; resid. Default: all of the model's."""
    method: Annotated[tuple[Method, ...], MinLen(1)] = ("zero", "random")
    """Replacement of the stream."""
    where: Names = ()
    """Layers as 3 or 2-4, head, everywhere; default: all of these."""
    reach: Annotated[tuple[Literal["layer", "onwards"], ...], MinLen(1)] = ("layer", "onwards")
    """For a layer: only that layer reads the change, or everything from there on."""
    draws: Annotated[Count, Only("method", ("random", "resample"))] = 3
    """Number of draws of random and resample."""
    seed: Seed = 0
    """Seed of the draws."""

    figures: ClassVar = (
        Curve("percent", x="layer", by="definition", each=("reach",), title="Loss increase without a stream, by layer"),
        Intervals("percent", label="definition", each=("where", "reach"), title="Loss increase without a stream"),
    )  # fmt: skip
    quick: ClassVar = {"where": ("1-2", "everywhere"), "draws": 2}
    planted: ClassVar = "tests/interventions/test_streams.py::test_what_is_known_on_paper"

    @staticmethod
    def body() -> Any:
        from streamscope.interventions.streams import measure

        return measure


main = main_of(Streams, __doc__)
