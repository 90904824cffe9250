"""What the commands share that edit groups of heads and score tasks: their arguments, the models, their groups."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from models.errors import InputError
from probes.command import RunOptions, open_run

NAMES = {"probability": "P(answer)", "log_odds": "log-odds of the answer, nats"}


@dataclass(frozen=True, kw_only=True)
class TaskOptions(RunOptions):
    """Arguments of the commands that edit groups of heads and score tasks."""

    control: str | None = None
    """A control model of the same layers and heads to compare with: a run folder or a bundled model."""
    tasks: tuple[str, ...] = ("capitalization", "gender", "winograd")
    """capitalization, gender, winograd; the paper's sizes capitalization-8, gender-16; a JSONL file; FORMAT:PATH."""
    groups: tuple[str, ...] = ("entity", "anchor", "semantic")
    """entity, anchor, semantic (PLS); found, found-entity, …; or heads as L5.H4+L5.H5, name=L4.*, top2:entity."""
    k: int = 2
    """Heads in a found group."""
    layers: Literal["last", "all"] = "last"
    """Where found groups are looked for."""
    draws: int = 39
    """Controls: other random groups of as many heads; 0: none."""
    seed: int = 0
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

    Raises `InputError` for a control of another shape, a group or task that does not exist, and --draws below 0.
    """
    from interventions.groups import HeadFinder
    from models.checkpoint import run_folder
    from probes.align import check_tokenizer
    from probes.tasks import load_tasks

    if options.draws < 0 or options.k < 1:
        raise InputError("--draws must be 0 or more and --k at least 1")
    runs = [options.run, *([options.control] if options.control is not None else [])]
    for run in runs:
        run_folder(run)
    found = [open_run(options, run) for run in runs]
    shapes = [(m.config.n_layers, m.config.n_heads) for _, m in found]
    if len(set(shapes)) > 1:
        (a, b), (c, d) = shapes
        raise InputError(
            f"--control {options.control} has {c} layers of {d} heads, the model {a} of {b}; "
            "heads can be compared between models of one shape"
        )
    opened = []
    for name, model in found:
        tokenizer = check_tokenizer(model)
        tasks = load_tasks(options.tasks, tokenizer, model.config.n_ctx)
        finder = HeadFinder(model, tokenizer, k=options.k, layers=options.layers)
        opened.append(Opened(name, model, tasks, finder.groups(options.groups)))
    names = [one.name for one in opened]
    if len(set(names)) < len(names):
        opened[1] = Opened(f"{names[1]}, control", opened[1].model, opened[1].tasks, opened[1].groups)
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
