"""The runs of PLS' comparison: pairs of one seed, per-layer supervision against the same model without it."""

from collections.abc import Sequence

from streamscope.cli.errors import InputError
from streamscope.models.runs import flatten
from streamscope.papers.comparison.runs import Run, by_preset, must_agree, same_models

RUN, CONTROL = "pls", "c2"
PRESETS = (RUN, CONTROL)
OWN = "readout.supervision"


def open_runs(folders: Sequence[str]) -> list[Run]:
    """The runs by preset and seed.

    Raises `InputError` for no control, a seed without its partner, doubles, and runs that differ in more than the
    supervision: data, steps, scale, recipe, shape.
    """
    runs = by_preset(folders, PRESETS)
    seeds = {preset: {run.seed for run in runs if run.preset == preset} for preset in PRESETS}
    for preset, other in ((RUN, CONTROL), (CONTROL, RUN)):
        if not seeds[preset]:
            raise InputError(
                f"no run of {preset}: the comparison is of {RUN} and {CONTROL}, trained with the same seeds"
            )
        if lost := sorted(seeds[other] - seeds[preset]):
            raise InputError(
                f"seed {lost[0]} of {other} has no partner: give the {preset} of that seed, or leave it out"
            )
    first = runs[0]
    for run in runs[1:]:
        must_agree(first, run, first.conditions, run.conditions)
        must_agree(first, run, _architecture(first), _architecture(run))
    same_models(runs)
    return runs


def _architecture(run: Run) -> dict[str, object]:
    """The model's configuration without its name and supervision, which are what is compared."""
    return {k: v for k, v in flatten(run.config["model"]).items() if k != "name" and not k.startswith(OWN)}
