"""Change the latents of an HDPL model and measure the loss and the text it writes (HDPL §4.2.1).

    python -m interventions.latents runs/hdpl                      every global path switched off, one at a time
    python -m interventions.latents runs/hdpl --at L2.v *.up --scale 0 0.5 2 --out latents.parquet
    python -m interventions.latents runs/hdpl --at L2.v --dims 3 7 --clamp -2 0 2 --text "Lily had a red"
    python -m interventions.latents runs/hdpl --at L2.v --each --clamp 0
    python -m interventions.latents runs/hdpl --text "Lily had a red" --source "Tim found a big" --blend 0 0.5 1
    python -m interventions.latents runs/hdpl --control stories/hdpl  and another model with the same projections

--scale multiplies z, --clamp sets it, --blend moves it towards the z of another prompt at the same positions (1 swaps).
Over documents `delta` is the change of the loss in nats per token and `kl` is KL(unedited ‖ edited) of the next token,
both with a 95 % interval over documents. Holm's p corrects over the rows of one edit and amount. For texts the tables
show KL at every position, and the most probable next tokens before and after. A blend is measured only on texts.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from annotated_types import MinLen

from streamscope.cli.bounds import Count, Names, Whole
from streamscope.cli.errors import InputError
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.data import Data, Documents, Text
from streamscope.instruments.figures import Curve, HeadMap


@instrument("latents", Documents(max_documents=200), Text())
class Latents(Instrument):
    at: Annotated[Names, MinLen(1)] = ("all",)
    """Projections: L2.q, L2.*, L0-2.up, *.v, all."""
    dims: tuple[Whole, ...] = ()
    """Latent dimensions to change, counted from 0; default: all."""
    each: bool = False
    """Change one latent dimension at a time, of --dims or of all dimensions."""
    together: bool = False
    """Change all projections at once instead of one at a time."""
    scale: tuple[float, ...] = ()
    """Factors on z; default 0 if no other change is given."""
    clamp: tuple[float, ...] = ()
    """Values to set z to; its prior is N(0, 1)."""
    blend: tuple[float, ...] = ()
    """Shares of the source's z: 1 swaps (default if --source is given), less interpolates."""
    source: Names = ()
    """For each text, the text whose latents it gets under --blend."""
    position: tuple[int, ...] = ()
    """Positions of texts to change, from BOS = 0; negative ones count from the end of each text."""
    k: Count = 5
    """Number of most probable next tokens to show."""

    figures: ClassVar = (
        Curve("delta", x="amount", by="latents", each=("edit",), title="Loss increase as latents are changed"),
        HeadMap("delta", rows="layer", columns="projection", by="amount", each=("edit",),
                title="Loss increase from changing the latents of each projection"),
        HeadMap("delta", rows="place", columns="dims", by="amount", each=("edit",),
                title="Loss increase by changed latent dimensions"),
        HeadMap("kl", "positions", each=("prompt",), rows="change", columns="position", names="token",
                title="How far predictions move at each position"),
    )  # fmt: skip
    runs: ClassVar = ("stories/hdpl",)
    quick: ClassVar = {"at": ("L1.*",)}
    planted: ClassVar = "tests/interventions/test_latents.py::test_only_the_dimension_that_is_read_matters"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.each and self.together:
            raise InputError("--each changes single dimensions of single projections: leave out --together")
        if self.blend and not self.source:
            raise InputError("--blend takes latents from another prompt: give --text and --source")

    def unread(self, data: Mapping[type[Data], Data]) -> dict[type[Data], str]:
        blends = bool(self.source) and not (self.scale or self.clamp)
        return {Documents: "--source applies to texts only"} if blends else {}

    @staticmethod
    def body() -> Any:
        from streamscope.interventions.latents import measure

        return measure


main = main_of(Latents, __doc__)
