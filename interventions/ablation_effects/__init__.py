"""Ablate groups of heads and compare which tasks suffer in a model and in its control (PLS Table 2).

    python -m interventions.ablation_effects
    python -m interventions.ablation_effects runs/pls --control runs/c2 --out effects.parquet
    python -m interventions.ablation_effects runs/pls --control runs/c2 --groups found --tasks capitalization gender
    python -m interventions.ablation_effects runs/pls --groups L5.H4+L5.H5 early=L0.* --tasks winograd mine.jsonl

Δ = P(answer) with the group's outputs z set to 0, minus P(answer) unedited, case by case; negative: the heads
contributed (§5.1). The same is measured for the log-odds of answer against foil (`instruments.prompts.tasks` defines
the scores). Check the unedited value next to every effect: a task that the model cannot do has nothing to lose.
Intervals, p and Holm's correction over tasks × groups use the independent cases of a task as units. `control` is the
mean effect of random other groups of as many heads, and p_rank the group's rank among them. --control adds the
case-by-case differences to a second model of the same shape, and the ratios of spreads and means; `found` groups are
searched for in each model. Diagonality, whether tasks rely on their own heads (§5.3):
`interventions.ablation_effects.measure`.
"""

from typing import Annotated, Any, ClassVar, Literal

from streamscope.cli.bounds import Count, Names, Only, Seed, Whole
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.data import Tasks
from streamscope.instruments.figures import HeadMap, Intervals

OF_FOUND = Only("groups", ("found", "found-entity", "found-anchor", "found-semantic"))


@instrument("ablation_effects", Tasks())
class AblationEffects(Instrument):
    groups: Names = ("entity", "anchor", "semantic")
    """entity, anchor, semantic (PLS); found, found-entity, …; or heads: L5.H4+L5.H5, name=L4.*, top2:entity."""
    k: Annotated[Count, OF_FOUND] = 2
    """Number of heads in a found group."""
    layers: Annotated[Literal["last", "all"], OF_FOUND] = "last"
    """Layers to search for found groups."""
    diagonal: Names = ()
    """The task's own group, as TASK=GROUP; default: capitalization=entity gender=anchor, as in PLS."""
    draws: Whole = 39
    """Number of control groups: random other groups of as many heads; 0: none."""
    seed: Seed = 0
    """Seed of the random groups and of the permutations."""
    resamples: Count = 2000
    """Bootstrap samples for the intervals of Cohen's d."""

    figures: ClassVar = (
        HeadMap("delta", rows="task", columns="group",
                title="Change of the answer's probability from ablating groups of heads"),
        HeadMap("delta", "log_odds", rows="task", columns="group",
                title="Change of the answer's log-odds from ablating groups of heads"),
        Intervals("delta", label="group", reference="above", each=("task",),
                  title="Change of the answer's probability by group, largest first"),
        Intervals("sd_ratio", "ratios", label="group", each=("measure", "task"),
                  title="How much more the effects vary than in the control"),
    )  # fmt: skip
    runs: ClassVar = ("stories/pls",)
    quick: ClassVar = {"draws": 2, "resamples": 100}
    planted: ClassVar = (
        "tests/interventions/test_ablation_effects.py::test_the_copier_takes_with_it_what_stands_on_paper"
    )

    @staticmethod
    def body() -> Any:
        from streamscope.interventions.ablation_effects import measure

        return measure


main = main_of(AblationEffects, __doc__)
