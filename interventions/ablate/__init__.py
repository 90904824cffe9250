"""Ablate heads, alone or in sets, and compare the loss increase with ablating random heads.

    python -m interventions.ablate --heads                          every head of the bundled LFA
    python -m interventions.ablate runs/lfa --heads
    python -m interventions.ablate runs/lfa --heads L4.* L5.H2 --scale 0 0.5 1 --data valid.txt --out heads.parquet
    python -m interventions.ablate runs/lfa --heads L5.H0-2 top3:pds --together --method mean
    python -m interventions.ablate runs/lfa --heads --size 2        every pair: do heads stand in for each other?
    python -m interventions.ablate runs/lfa --heads --size 5 --sets 100 --measures sps coherence --suite competing
    python -m interventions.ablate stories/pls --control stories/c2  and a control: differences, paired by document
    python -m interventions.ablate runs/a runs/b runs/c --heads     several runs: one table, and their mean
    python -m interventions.ablate hf:FOLDER --screen attribution:30  the 30 heads with the largest gradient
    python -m interventions.ablate hf:FOLDER --budget 10m            random heads, as many as ten minutes allow

Each row is one head or a set of heads (--together: all given ones; --size K: every K of them, or --sets N random ones)
at one scale: the output z is multiplied by the scale, and `delta` is the change of the loss in nats per token, with a
95 % interval over documents. The control of a head is the mean delta of all other heads, one at a time (of a set: of
random sets of the same size, LFA App. D), and `above` is the difference. `interaction` is the change from a set minus
the sum over its heads alone; for the loss, a positive interaction means that the heads back each other up. With
--method mean or resample, z moves towards its mean or another row's z instead of 0: g z + (1−g) z'. SPS and coherence
(LFA Eq. 8, `probes.coherence`) are compared prompt by prompt, with minimal pairs as units. Holm's p corrects over the
heads or sets of one scale; p_rank is the rank of delta among the random sets. d is Cohen's d with pooled standard
deviations, d_z with the standard deviation of the differences.

On a large model, --screen attribution:N ranks all heads by one gradient, to first order Δ ≈ (g − 1) z · ∂loss/∂z, and
measures the first N and --draws random heads exactly. The title says how well attribution ranks the random heads, and
the largest effect among those that it did not select. Heads that were not measured may have larger ones.

--budget measures as many heads, drawn at random, as the time allows. Controls are drawn from the measured heads. The
title names or counts the heads left out. Several runs may measure different heads: the table `head_selection` says
which, and there is then no mean over runs.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import MinLen

from streamscope.cli.bounds import Count, Names, Seed, Whole
from streamscope.cli.errors import InputError
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.data import Data, Documents, Prompts
from streamscope.instruments.figures import Curve, HeadMap, Intervals, Matrix, Scatter
from streamscope.models.head_spec import score_names


@instrument("ablate", Documents(max_documents=200), Prompts())
class Ablate(Instrument):
    heads: Annotated[Names, MinLen(1)] = ("all",)
    """Heads: L5.H4, L4.*, L4-5.H0-2, all, random3:7 (three, drawn with seed 7), top3:pds (three of the largest PDS).

    --heads without values means all."""
    scale: Annotated[tuple[float, ...], MinLen(1)] = (0.0,)
    """Factors on the heads' outputs: 0 removes a head, 1 leaves it."""
    together: bool = False
    """Scale all heads at once instead of one at a time."""
    size: Count = 1
    """Number of heads to scale at once: 1 for each head alone, 2 for every pair."""
    sets: Count | None = None
    """With --size: number of random sets of that size; default: all sets."""
    method: Literal["zero", "mean", "resample"] = "zero"
    """What the heads are scaled towards: 0, their mean over the data, or their output on another document."""
    measures: Annotated[tuple[Literal["loss", "sps", "coherence"], ...], MinLen(1)] = ("loss",)
    """Quantities to measure: loss on documents; sps (attention to the right noun) and coherence on prompts."""
    draws: Whole = 39
    """How many random sets of other heads each result is compared with. If fewer exist, all are used. 0 turns the
    comparison off."""
    screen: str | None = None
    """attribution:N measures the N heads with the largest attribution, and --draws random heads to test the screen."""
    budget: str | None = None
    """Time for the sweep, as 90s, 10m or 1h: measure as many heads as fit, drawn at random. Default: all."""
    seed: Seed = 0
    """Seed of the random sets, and of the row exchange for --method resample."""

    figures: ClassVar = (
        HeadMap("delta", by="scale", title="{delta} from scaling each head"),
        Scatter("delta", x="alone", title="{delta} of each set against the sum of its heads alone"),
        Matrix("interaction", title="{delta} of two heads beyond the sum of each alone"),
        Intervals("delta", reference="control", by="scale",
                  title="{delta} from scaling each head, largest first"),
        Curve("delta", x="scale", by="head", title="{delta} against the factor on each head"),
        HeadMap("delta", "sps", by="scale", title="Change of SPS from scaling each head"),
        HeadMap("delta", "coherence", by="scale", title="Change of coherence from scaling each head"),
    )  # fmt: skip
    quick: ClassVar = {"heads": ("L5.*",), "draws": 2}
    planted: ClassVar = (
        "tests/interventions/test_ablate.py::"
        "test_a_head_that_writes_nothing_costs_nothing_and_the_planted_one_costs_its_share"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.together and (self.size != 1 or self.sets is not None):
            raise InputError("--together scales all heads at once: leave out --size and --sets, or --together")
        if self.sets is not None and self.size == 1:
            raise InputError("--sets draws sets of --size heads; give a --size of 2 or more (single heads: random3:7)")
        if self.screen is not None and self.budget is not None:
            raise InputError("--screen and --budget both choose heads: give one of them")
        given = "" if self.screen is self.budget else "--budget" if self.screen is None else "--screen"
        if given and (self.together or self.size != 1 or {*self.measures} != {"loss"}):
            raise InputError(f"{given} is for the loss of single heads: leave out --together, --size and --measures")
        if self.screen is not None and (self.method != "zero" or self.draws < 3):
            raise InputError("--screen needs --method zero, and --draws of at least 3 random heads to test it")
        if self.screen is not None:
            self.screened()
        if self.budget is not None:
            self.seconds()

    def screened(self) -> int:
        """N of --screen attribution:N; raises `InputError` for another text."""
        method, _, n = (self.screen or "").partition(":")
        if method != "attribution" or not n.isdigit() or int(n) < 1:
            raise InputError(f"--screen {self.screen}: give attribution:N, N the number of heads to measure exactly")
        return int(n)

    def seconds(self) -> float:
        """The seconds of --budget; raises `InputError` for another text."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", self.budget or "")
        if not match or not float(match[1]):
            raise InputError(f"--budget {self.budget}: give a time such as 90s, 10m or 1.5h")
        return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]

    def unread(self, data: Mapping[type[Data], Data]) -> dict[type[Data], str]:
        unread: dict[type[Data], str] = {}
        if "loss" not in self.measures:
            unread[Documents] = "no loss is among --measures"
        if {*self.measures} == {"loss"} and not score_names(self.heads):
            unread[Prompts] = "neither --measures nor --heads reads prompts"
        return unread

    @staticmethod
    def body() -> Any:
        from streamscope.interventions.ablate import measure

        return measure


main = main_of(Ablate, __doc__)
