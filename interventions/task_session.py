"""What the commands share that edit groups of heads and score tasks: their arguments, the models, their groups."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from streamscope.interventions.control_run import ControlOptions, open_runs
from streamscope.models.bounds import Count, Seed, Whole

NAMES = {"probability": "P(answer)", "log_odds": "log-odds of the answer, nats"}


@dataclass(frozen=True, kw_only=True)
class TaskOptions(ControlOptions):
    """Arguments of the commands that edit groups of heads and score tasks."""

    tasks: tuple[str, ...] = ("capitalization", "gender", "winograd")
    """capitalization, gender, winograd; the paper's sizes capitalization-8, gender-16; a JSONL file; FORMAT:PATH."""
    groups: tuple[str, ...] = ("entity", "anchor", "semantic")
    """entity, anchor, semantic (PLS); found, found-entity, …; or heads as L5.H4+L5.H5, name=L4.*, top2:entity."""
    k: Count = 2
    """Heads in a found group."""
    layers: Literal["last", "all"] = "last"
    """Where found groups are looked for."""
    draws: Whole = 39
    """Controls: other random groups of as many heads; 0: none."""
    seed: Seed = 0
    """Which random groups are drawn, and the permutations."""


@dataclass(frozen=True)
class Opened:
    """A model with the tasks in its tokens and its groups of heads."""

    name: str
    model: Any
    tasks: list[Any]
    groups: list[Any]


def open_models(options: TaskOptions) -> list[Opened]:
    """The run and, where one is given, its control.

    Raises `InputError` for a control of another shape, a group or task that does not exist.
    """
    from streamscope.interventions.groups import HeadFinder
    from streamscope.probes.prompts.alignment import check_tokenizer
    from streamscope.probes.prompts.tasks import load_tasks

    opened = []
    for name, model in open_runs(options):
        tokenizer = check_tokenizer(model)
        tasks = load_tasks(options.tasks, tokenizer, model.config.n_ctx)
        finder = HeadFinder(model, tokenizer, k=options.k, layers=options.layers)
        opened.append(Opened(name, model, tasks, finder.groups(options.groups)))
    return opened


def about(options: TaskOptions, opened: Sequence[Opened]) -> dict[str, Any]:
    """What a written table says of its tasks, groups and control."""
    return {
        "control": options.control,
        "tasks": {task.name: [task.source, task.title] for task in opened[0].tasks},
        "groups": {one.name: {group.name: group.label for group in one.groups} for one in opened},
        "draws": options.draws,
        "seed": options.seed,
    }
