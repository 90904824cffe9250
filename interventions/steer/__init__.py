"""Steer a model along a direction in its residual streams, and measure how predictions change.

    python -m interventions.steer runs/lfa                                 the model's own direction, indoor − outdoor
    python -m interventions.steer runs/lfa --a happy --b sad --direction 2 --layers 2-4 --scale -0.1 0 0.1
    python -m probes.directions runs/kromcanon --out indoor.parquet
    python -m interventions.steer runs/kromcanon --direction indoor.safetensors --streams s0 s2 --raw --scale 5

After every block of --layers, x ← x + c·m·d at all positions of each of --streams. d is the unit direction, m the mean
norm of the residual stream after that block over the documents, or 1 with --raw. So the dose c is in norms of the
stream, once per layer: c = .1 adds a tenth of its length, and c = 1 as much as is there, which breaks most models. The
head reads the sum or mean of the additions to several streams. KL(P_c ‖ P_0), loss and the shift of d·x are per token
with 95 % intervals over documents. Any vector of that size disturbs a model: `random_kl` is the mean KL of random
directions, and `kl_above` the excess of the direction. Source: SPEC §1.8.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import MinLen

from streamscope.cli.bounds import Names, Only, Seed, Whole
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.data import Data, Documents, Sets
from streamscope.instruments.figures import Curve
from streamscope.probes.directions import check_direction_name, in_model


@instrument("steer", Documents(batch_size=16), Sets())
class Steer(Instrument):
    direction: str = "best"
    """Direction between the sets at layer best (by d), norm or a number; FILE[:LAYER|best|norm], a file of
    probes.directions; or FOLDER:17, a latent of a dictionary."""
    stream: str = "resid"
    """Stream of the direction: resid, s0, token, …"""
    method: Literal["mean", "svd"] = "mean"
    """How to find the direction: difference of means, or first singular vector."""
    layers: Names = ()
    """Layers after which to add it, as 3 or 2-4; default: the direction's own layer."""
    streams: Names = ()
    """Streams to add it to: resid; token, context; s0, s1, …; default: all."""
    scale: Annotated[tuple[float, ...], MinLen(1)] = (-0.2, -0.1, 0.0, 0.1, 0.2)
    """Doses c, in mean norms of the residual stream."""
    raw: bool = False
    """Give c in units of the residual stream instead of its mean norms."""
    draws: Whole = 3
    """Number of random directions to compare each scale with; 0: none."""
    prompt: str = "Once upon a time"
    """Prompt that the samples continue; empty for no samples."""
    sample_tokens: Annotated[Whole, Only("prompt")] = 40
    """Number of tokens per sample."""
    seed: Seed = 0
    """Seed of the samples and of the random directions."""

    figures: ClassVar = (
        Curve("kl", reference="random_kl", title="How far predictions move along the direction"),
        Curve("delta", reference="random_delta", title="Loss increase along the direction"),
        Curve("shift", title="Shift of the residual stream along the direction"),
    )  # fmt: skip
    quick: ClassVar = {"scale": (-1.0, 0.0, 1.0), "draws": 1, "sample_tokens": 2}
    planted: ClassVar = "tests/interventions/test_steer.py::test_the_table"

    def check_sources(self) -> None:
        check_direction_name(self.direction)

    def unread(self, data: Mapping[type[Data], Data]) -> dict[type[Data], str]:
        return {} if in_model(self.direction) else {Sets: "--direction is a file"}

    @staticmethod
    def body() -> Any:
        from streamscope.interventions.steer import measure

        return measure


main = main_of(Steer, __doc__)
