"""Suppress position heads, and measure whether the model still prefers what makes sense (LFA §3.3).

    python -m interventions.suppress runs/lfa
    python -m interventions.suppress runs/lfa --select topk threshold --threshold own --measures sps coherence loss
    python -m interventions.suppress runs/lfa --k 1 3 --gates 1 0.5 0 --suite stories --n 200 --out suppress.parquet
    python -m interventions.suppress runs/lfa --control runs/std-t          each suppressed in its own position heads

Position heads attend to places rather than words: recency heads to the last noun, others to the first, and every table
counts the latter. Heads are ranked by PDS, their dependence on position, whichever noun it is; the top k (or
those over the threshold) have their outputs z multiplied by a gate g. Each selection is compared with no intervention,
with the k heads of the smallest PDS, and with random sets of k heads. BOS sinks (`probes.pds`) are not among those of
the smallest PDS, because their PDS is near 0 whatever the text says. Units are prompts; the two orders of a minimal
pair are one case. The strongest gating is also broken down by layer, by the relation of the nouns and by whether the
right noun stands first (LFA App. F). With three gates or more, a slope and a curvature are fitted (App. D). SPS, the
attention to the right noun minus that to its competitor, is undefined in layers up to the first gated head, where it
cannot change. p_rank is a p-value from the rank among the random sets; with 39 sets it cannot be below 2/40 = 0.05.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import MinLen

from streamscope.cli.bounds import Count, NotNegative, Only, Seed
from streamscope.cli.errors import InputError
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.data import Data, Documents, Prompts
from streamscope.instruments.figures import Curve, HeadMap, Histogram
from streamscope.instruments.prompts import check_suite


@instrument("suppress", Prompts(), Documents(max_documents=50))
class Suppress(Instrument):
    select: Annotated[tuple[Literal["topk", "threshold"], ...], MinLen(1)] = ("topk",)
    """topk: the k heads that depend most on position (largest PDS, of either noun), for every --k; threshold: all those
    over --threshold."""
    k: Annotated[tuple[Count, ...], Only("select", ("topk",)), MinLen(1)] = (1, 2, 3, 5)
    """Numbers of heads to suppress (with topk)."""
    threshold: Annotated[NotNegative | Literal["own"], Only("select", ("threshold",))] = 0.075
    """PDS that heads must exceed (threshold); own is its mean plus one standard deviation over this model's heads."""
    gates: tuple[float, ...] = (1.0, 0.75, 0.5, 0.25, 0.0)
    """Factors on the heads' outputs: 0 removes a head, 1 leaves it."""
    measures: Annotated[tuple[Literal["sps", "coherence", "loss"], ...], MinLen(1)] = ("sps", "coherence")
    """Quantities to measure under each factor: sps is the attention to the right noun minus that to its competitor."""
    draws: Count = 39
    """Number of random sets per selection under the smallest gate; all, if there are fewer."""
    seed: Seed = 0
    """Seed of the random sets."""
    rank_on: str | None = None
    """Suite whose pairs rank the heads; default: --suite, as in the paper."""
    resamples: Count = 2000
    """Bootstrap samples for the intervals of Cohen's d."""

    figures: ClassVar = (
        Curve("delta", "effects", x="gate", by="group", each=("measure", "selection"), draws="draws",
              title="Change as position heads are scaled, compared with random heads"),
        Histogram("delta", "draws", at="selected", each=("measure", "selection"),
                  title="Change from scaling position heads (line) and random heads (bars)"),
        HeadMap("delta", "parts", rows="selection", columns="part", each=("measure", "group"),
                title="Change from scaling position heads, by relation and layer"),
    )  # fmt: skip
    quick: ClassVar = {"measures": ("sps", "loss"), "k": (1,), "gates": (1.0, 0.5, 0.0), "draws": 5, "resamples": 100}
    planted: ClassVar = (
        "tests/interventions/test_suppress.py::test_the_semantic_head_carries_sps_and_coherence_as_on_paper"
    )

    def check_sources(self) -> None:
        if self.rank_on is not None:
            check_suite(self.rank_on)

    def unread(self, data: Mapping[type[Data], Data]) -> dict[type[Data], str]:
        return {} if "loss" in self.measures else {Documents: "no loss is among --measures"}

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(set(self.gates)) < len(self.gates) or set(self.gates) <= {1.0}:
            raise InputError(f"gates {list(self.gates)}: give different finite numbers, not only 1")
        if min(self.gates) == 1:
            least = "random sets and parts are measured at the smallest, which changes nothing at 1"
            raise InputError(f"gates {list(self.gates)}: {least}; give one below 1")

    @staticmethod
    def body() -> Any:
        from streamscope.interventions.suppress import measure

        return measure


main = main_of(Suppress, __doc__)
