"""Ablate groups of heads and compare which tasks suffer in a model and in its control (PLS Table 2).

    python -m interventions.ablation_effects
    python -m interventions.ablation_effects runs/pls --control runs/c2 --out effects.parquet
    python -m interventions.ablation_effects runs/pls --control runs/c2 --groups found --tasks capitalization gender
    python -m interventions.ablation_effects runs/pls --groups L5.H4+L5.H5 early=L0.* --tasks winograd mine.jsonl

Δ = P(answer) with the group's outputs z at 0 minus P(answer) as it is, case by case; negative: the heads contributed;
also for the log-odds of answer against foil (`instruments.prompts.tasks` says how answers are scored). What the
unedited model does stands beside every effect: of a task that it cannot do, no head can be missed. Intervals, p and
Holm over task × group take the independent cases of a task as units; `control` is the mean effect of other random
groups of as many heads and p_rank the group's rank among them. --control adds the differences to another model of one
shape, case by case, and the ratios of spreads and means to its own; `found` groups are looked for in each model.
Diagonality: `interventions.ablation_effects.diagonality`.
"""

from typing import Annotated, ClassVar, Literal

from streamscope.cli.bounds import Count, Names, Only, Seed, Whole
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.data import Tasks
from streamscope.instruments.figures import HeadMap, Intervals

OF_FOUND = Only("groups", "found", "found-entity", "found-anchor", "found-semantic")


@instrument("ablation_effects", Tasks())
class AblationEffects(Instrument):
    """Remove groups of heads and measure how probable the answers of tasks still are.

    Δ = P_ablated(answer) − P(answer), and of the log-odds of answer against foil; beside what other random groups of
    as many heads cost (PLS §5.1, Table 2). Do tasks lean on heads of their own (§5.3)?
    """

    groups: Names = ("entity", "anchor", "semantic")
    """entity, anchor, semantic (PLS); found, found-entity, …; or heads as L5.H4+L5.H5, name=L4.*, top2:entity."""
    k: Annotated[Count, OF_FOUND] = 2
    """Heads in a found group."""
    layers: Annotated[Literal["last", "all"], OF_FOUND] = "last"
    """Where found groups are looked for."""
    diagonal: Names = ()
    """Own group of each task as TASK=GROUP; default: capitalization=entity gender=anchor, as in PLS."""
    draws: Whole = 39
    """Controls: other random groups of as many heads; 0: none."""
    seed: Seed = 0
    """Which random groups are drawn, and the permutations."""
    resamples: Count = 2000
    """Of the bootstrap intervals of Cohen's d."""

    figures: ClassVar = (
        HeadMap("delta", rows="task", columns="group",
                title="Change of the answer's probability from ablating groups of heads"),
        HeadMap("delta", "log_odds", rows="task", columns="group",
                title="Change of the answer's log-odds from ablating groups of heads"),
        Intervals("delta", label="group", beside="above", each=("task",),
                  title="Change of the answer's probability by group, with 95 % intervals"),
        Intervals("sd_ratio", "ratios", label="group", each=("measure", "task"),
                  title="How much more the effects vary than in the control"),
    )  # fmt: skip
    runs: ClassVar = ("stories/pls",)
    quick: ClassVar = {"draws": 2, "resamples": 100}
    planted: ClassVar = (
        "tests/interventions/test_ablation_effects.py::test_the_copier_takes_with_it_what_stands_on_paper"
    )


main = main_of(AblationEffects, __doc__)
"""`python -m interventions.ablation_effects`."""
