"""Project a direction out of every write to the residual stream, and save the edited model as a run.

    python -m interventions.abliterate stories/gpt2                        the model's own direction, indoor − outdoor
    python -m probes.directions runs/lfa --out indoor.parquet
    python -m interventions.abliterate runs/gpt2 --direction indoor.safetensors --to runs/gpt2-abliterated
    python -m interventions.abliterate runs/lfa --direction indoor.safetensors:3 --dense --embedding --to runs/lfa-3

The output matrices of attention and FFN become W' = W (I − d d^T), their biases likewise; --embedding also changes the
token embedding and the position table. Channelized output projections (as in lfa) need --dense. The direction is that
of the layer with the largest d on held-out prompts (best), with the largest norm (norm, as in SPEC §1.8), or of a given
layer. The tables show the loss and KL(after ‖ before) of next-token distributions per token, with 95 % intervals over
documents, the KL after projecting out random directions instead, and the largest |d·output| of each branch before and
after. --side read is the wrong side (SPEC §1.10 a): it leaves what is written along the direction.
Source: Arditi et al. 2024.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from streamscope.cli.bounds import Seed, Whole
from streamscope.cli.errors import InputError
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument, say
from streamscope.instruments.data import Data, Documents, Opened, Sets
from streamscope.instruments.figures import Intervals
from streamscope.probes.directions import check_direction_name, in_model

if TYPE_CHECKING:
    from streamscope.instruments.result import Result


@instrument("abliterate", Documents(max_documents=200), Sets())
class Abliterate(Instrument):
    direction: str = "best"
    """Direction between the sets at layer best (by d), norm or a number; or FILE[:LAYER|best|norm], a file of
    probes.directions."""
    to: Path | None = None
    """Folder for the changed model, written as a run."""
    stream: str = "resid"
    """Stream of the direction: resid, s0, token, …"""
    method: Literal["mean", "svd"] = "mean"
    """How to find the direction: difference of means, or first singular vector."""
    embedding: bool = False
    """Also project the token embedding and the position table; a tied head loses the direction, too."""
    dense: bool = False
    """Store identity, independent and Kronecker output projections as dense matrices, so that they can be projected."""
    side: Literal["write", "read"] = "write"
    """write: the outputs of the matrices. read: the wrong side, the input of attention's output matrix (SPEC §1.10
    a)."""
    draws: Whole = 3
    """Number of random directions to compare with; 0: none."""
    seed: Seed = 0
    """Seed of the random directions."""

    runs: ClassVar = ("stories/gpt2",)
    figures: ClassVar = (
        Intervals("kl", label="what", reference="random_kl",
                  title="How far predictions move when the direction is removed"),
    )  # fmt: skip
    quick: ClassVar = {"draws": 1}
    planted: ClassVar = "tests/interventions/test_abliterate.py::test_nothing_is_written_along_the_direction"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.side == "read" and self.embedding:
            raise InputError(
                "--side read changes the input of attention's output matrix, an embedding has none: "
                "leave out --embedding"
            )

    def check_sources(self) -> None:
        check_direction_name(self.direction)

    def unread(self, data: Mapping[type[Data], Data]) -> dict[type[Data], str]:
        return {} if in_model(self.direction) else {Sets: "--direction is a file"}

    def with_resolved_heads(self, data: Opened) -> "Abliterate":
        if self.to is not None:
            raise InputError("--to writes one changed model; measure the control without it")
        return self

    def run(self, data: Opened, progress: Callable[[Iterable], Iterable] = iter) -> "Result":
        """Measure, then write the changed model if a folder is given and the measurement was not interrupted."""
        result = super().run(data, progress)
        if self.to is not None and getattr(progress, "interrupted", None):
            say(progress, f"{self.to} is not written")
        elif self.to is not None:
            self.body().write(self, data.model, result)
        return result

    @staticmethod
    def body() -> Any:
        from streamscope.interventions.abliterate import measure

        return measure


main = main_of(Abliterate, __doc__)
