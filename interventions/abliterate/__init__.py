"""Project a direction out of every write to the residual stream, and save the edited model as a run.

    python -m interventions.abliterate stories/gpt2                        the model's own direction, indoor − outdoor
    python -m probes.directions runs/lfa --out indoor.parquet
    python -m interventions.abliterate runs/gpt2 --direction indoor.safetensors --to runs/gpt2-abliterated
    python -m interventions.abliterate runs/lfa --direction indoor.safetensors:3 --dense --embedding --to runs/lfa-3

Attention's output matrices and the FFN's become W' = W (I − d d^T), their biases likewise; with --embedding also the
token embedding and the position table. Channelized output projections (of lfa, for one) need --dense. The direction
is that of the layer with the largest d on held-out prompts (best), the largest norm (norm, as SPEC §1.8), or a layer.
Measured: the loss, and KL(after ‖ before) of next-token distributions, per token, 95 % over documents, beside the KL
after projecting out random directions instead; the largest |d·output| of each branch before and after.
--side read is the wrong side (SPEC §1.10 a): it leaves what is written along the direction.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from streamscope.cli.bounds import Seed, Whole
from streamscope.cli.errors import InputError
from streamscope.instruments.about_model import need_parts
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.data import Data, Documents, Opened, Sets
from streamscope.instruments.figures import Intervals

if TYPE_CHECKING:
    from streamscope.instruments.result import Result


@instrument("abliterate", Documents(max_documents=200), Sets())
class Abliterate(Instrument):
    """Project a direction out of all that the blocks write, W' = W (I − d d^T), and measure what that changes.

    Loss and KL(after ‖ before) per token, beside random directions; largest |d·output| (Arditi et al. 2024; SPEC §1.8).
    """

    direction: str = "best"
    """Between the sets, of the layer best (by d), norm or a number; or FILE[:LAYER|best|norm] of probes.directions."""
    to: Path | None = None
    """Run folder to write the changed model to."""
    stream: str = "resid"
    """Whose direction: resid, s0, token, …"""
    method: Literal["mean", "svd"] = "mean"
    """Difference of means, or first singular vector."""
    embedding: bool = False
    """Project the token embedding and the position table as well. A tied head loses the direction with them."""
    dense: bool = False
    """Store identity, independent and Kronecker output projections as the dense matrices they equal, to project."""
    side: Literal["write", "read"] = "write"
    """write: what the matrices write. read: the wrong side, what attention's output matrix reads (SPEC §1.10 a)."""
    draws: Whole = 3
    """Random directions to compare with: the KL after projecting them out instead; 0: none."""
    seed: Seed = 0
    """Of the random directions."""

    runs: ClassVar = ("stories/gpt2",)
    figures: ClassVar = (
        Intervals("kl", label="what", beside="random_kl",
                  title="How far predictions move when the direction is removed" ),
    )  # fmt: skip
    quick: ClassVar = {"draws": 1}
    planted: ClassVar = "tests/interventions/test_abliterate.py::test_nothing_is_written_along_the_direction"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.side == "read" and self.embedding:
            raise InputError("--side read changes what attention's output matrix reads; an embedding has no such side")

    def check(self, model: Any) -> None:
        """Direction of a file, projections that are dense or may become so, and the folder to write."""
        need_parts(model, self.name)
        self._body().check(self, model)

    def unread(self, data: Mapping[type[Data], Data]) -> dict[type[Data], str]:
        """Sets, where the direction is of a file."""
        return {} if self._body().in_model(self.direction) else {Sets: "--direction is a file's"}

    def with_resolved_heads(self, data: Opened) -> "Abliterate":
        """Nothing to settle; a control would be written over the run."""
        if self.to is not None:
            raise InputError("--to writes one changed model; measure the control without it")
        return self

    def run(self, data: Opened, progress: Callable[[Iterable], Iterable] = iter) -> "Result":
        """Measure, then write the changed model where a folder is given."""
        result = super().run(data, progress)
        if self.to is not None:
            self._body().write(self, data.model, result)
        return result


main = main_of(Abliterate, __doc__)
