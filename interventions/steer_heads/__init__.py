"""Scale groups of heads down and up and measure how a behaviour follows (PLS §5.2).

    python -m interventions.steer_heads
    python -m interventions.steer_heads runs/pls --control runs/c2 --out steering.parquet
    python -m interventions.steer_heads runs/pls --groups entity anchor --tasks capitalization gender --scales 0 0.5 3

z ← g z for the heads of a group at every position. This equals scaling their attention weights without renormalising,
because z = A V is linear in A: 0 ablates, 1 changes nothing, above 1 amplifies. Over the scales g, per measure m
(P(answer), log-odds of answer against foil, loss of documents):

    control range  max_g m̄(g) − min_g m̄(g) of the mean curve, over the scales within bounds (PLS: 0 to 1.5)
    monotonicity   Spearman's ρ between g and m within each case, averaged over cases; cases without change are left
                   out and counted. 1: every case rises with g
    leverage       control range of a model / control range of its control, on the same cases (--control)

A range is never negative, and noise widens it, so it is compared with the ranges of random groups of as many heads.
Intervals of ranges and leverage resample whole independent cases (`estimators.statistic_interval`). A leverage is
undefined if the control does not change. To add directions to the stream use `interventions.steer`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import MinLen

from streamscope.cli.bounds import Count, Names, Only, Seed, Whole
from streamscope.cli.errors import InputError
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.data import Data, Documents, Tasks
from streamscope.instruments.figures import Curve, Intervals

OF_FOUND = Only("groups", ("found", "found-entity", "found-anchor", "found-semantic"))


@instrument("steer_heads", Tasks(tasks=("capitalization",)), Documents(max_documents=20))
class SteerHeads(Instrument):
    groups: Names = ("entity",)
    """entity, anchor, semantic (PLS); found, found-entity, …; or heads: L5.H4+L5.H5, name=L4.*, top2:entity."""
    scales: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
    """Factors g for the heads' outputs; 1 is always included."""
    within: tuple[float, float] = (0.0, 1.5)
    """Lowest and highest scale for range and monotonicity; 0 to 1.5 in the paper."""
    measures: Annotated[tuple[Literal["task", "loss"], ...], MinLen(1)] = ("task", "loss")
    """task: P(answer) and log-odds; loss: of documents under the same scales."""
    k: Annotated[Count, OF_FOUND] = 2
    """Number of heads in a found group."""
    layers: Annotated[Literal["last", "all"], OF_FOUND] = "last"
    """Layers to search for found groups."""
    draws: Whole = 9
    """Number of random groups of as many heads to compare the ranges with; 0: none."""
    seed: Seed = 0
    """Seed of the random groups."""

    figures: ClassVar = (
        Curve("level", x="scale", by="group", each=("task",),
              title="{level} as heads are turned down and up"),
        Curve("level", "log_odds", x="scale", by="group", each=("task",),
              title="{level} as heads are turned down and up"),
        Curve("level", "loss", x="scale", by="group", title="{level} as heads are turned down and up"),
        Intervals("range", "curves", label="group", reference="random_range", each=("measure", "task"),
                  title="Range over scales, compared with random heads"),
    )  # fmt: skip
    quick: ClassVar = {"scales": (0.0, 1.5), "draws": 1}
    planted: ClassVar = "tests/interventions/test_steer_heads.py::test_levels_and_changes_are_those_on_paper"

    def __post_init__(self) -> None:
        super().__post_init__()
        chosen, (low, high) = self.chosen, self.within
        if len(chosen) < 2:
            raise InputError(f"--scales {list(self.scales)}: give at least one scale besides 1")
        if not low < high or sum(low <= g <= high for g in chosen) < 2:
            raise InputError(f"--within {low:g} {high:g}: fewer than two of the scales {list(chosen)} lie there")

    def unread(self, data: Mapping[type[Data], Data]) -> dict[type[Data], str]:
        reasons = {Tasks: ("task", "--measures is only loss"), Documents: ("loss", "--measures is only task")}
        return {kind: reason for kind, (measure, reason) in reasons.items() if measure not in self.measures}

    @property
    def chosen(self) -> tuple[float, ...]:
        return tuple(sorted({*self.scales, 1.0}))

    @staticmethod
    def body() -> Any:
        from streamscope.interventions.steer_heads import measure

        return measure


main = main_of(SteerHeads, __doc__)
