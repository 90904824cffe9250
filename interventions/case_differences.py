"""A model beside its control over the same cases: tasks and prompts without heads (`model_differences`)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from streamscope.interventions.effects import holm
from streamscope.interventions.groups import Group
from streamscope.interventions.hydra_tables import FEW, UNSURE, Decomposition, known_direct, layer_values, part_values
from streamscope.interventions.model_differences import CASES, NAN, NUMBERS, compare_cases, shared_cases, units_of
from streamscope.interventions.observe import SMALLEST
from streamscope.probes.prompts.tasks import Task
from streamscope.probes.stats.estimators import BOOTSTRAP_CLUSTERS, ratio, read_clusters, statistic_interval
from streamscope.probes.undefined import note

PART_UNITS = units_of("nats of answer − foil (log_odds), share of the direct effect (made_up)", CASES)
PROMPT_UNITS = units_of("attention, target − competitor (sps), nats of log-odds (coherence)", CASES)
NO_GROUP = "only one of the models has such a group, or such a layer after it; name found heads as NAME=top2:entity"


def compare_parts(
    tasks: tuple[Task, Task],
    groups: tuple[Sequence[Group], Sequence[Group]],
    found: tuple[Sequence[Decomposition], Sequence[Decomposition]],
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(parts, layers): run, control, run − control in nats with 95 % over shared independent cases, p, p_holm.

    One row per group and part (`hydra_tables.PARTS`), and per group, later layer and branch; groups are matched by
    name, and the run comes first. p_holm corrects over the groups of a part, and over all layers and groups. The rows
    with measure "made_up" compare the shares −Σ compensation / Σ direct, with a bootstrap interval of their difference;
    undefined where a model's mean direct effect cannot be told from 0. Raises `InputError` for fewer than two shared
    cases.
    """
    common, at = shared_cases(tasks[0].cases, tasks[1].cases, tasks[0].name)
    clusters = tasks[0].cases["cluster"].to_numpy()[common]

    def table(of: Callable[[Group, Decomposition], Mapping[Any, np.ndarray]], names: Sequence[str]) -> pd.DataFrame:
        mine, theirs = (
            {
                (group.name, *(key if isinstance(key, tuple) else (key,))): x[use]
                for group, one in zip(some, decomposed, strict=True)
                for key, x in of(group, one).items()
            }
            for some, decomposed, use in zip(groups, found, (common, at), strict=True)
        )
        labels = _labels(mine, theirs)
        heads = [{g.name: g.label for g in some} for some in groups]
        about = [
            {
                "task": tasks[0].name, "group": key[0], "heads": heads[0].get(key[0], ""),
                "control_heads": heads[1].get(key[0], ""), **dict(zip(names, key[1:], strict=True)),
            }
            for key in labels
        ]  # fmt: skip
        x, y = ([one.get(key) for key in labels] for one in (mine, theirs))
        return compare_cases(about, "log_odds", x, y, clusters, resolution=SMALLEST["log_odds"], absent=NO_GROUP)

    parts = holm(table(lambda _, one: part_values(one), ("part",)), ("part",))
    shares = parts[(parts["part"] == "compensation") & parts["difference"].notna()].to_dict("records")
    for share in shares:
        pair = []
        for some, decomposed, use in zip(groups, found, (common, at), strict=True):
            (one,) = (d for g, d in zip(some, decomposed, strict=True) if g.name == share["group"])
            pair.append((-one.compensation[use], one.direct[use]))
        share |= _share_difference(pair[0], pair[1], clusters)
    parts = pd.concat([parts, pd.DataFrame(shares)], ignore_index=True)
    return parts, holm(table(layer_values, ("layer", "part")), ("measure",))


def _share_difference(
    run: tuple[np.ndarray, np.ndarray], control: tuple[np.ndarray, np.ndarray], clusters: np.ndarray
) -> dict[str, Any]:
    """Σ undone / Σ direct [N] of the run minus the control's, whole independent cases resampled together in both."""
    row: dict[str, Any] = {"measure": "made_up", **dict.fromkeys((*NUMBERS, "p_holm"), NAN)}
    why = dict.fromkeys(("sd", "p", "p_holm"), "a share is of all cases together, it has an interval only")
    known = [known_direct(direct, clusters) for _, direct in (run, control)]
    for name, (undone, direct), sure in zip(("run", "control"), (run, control), known, strict=True):
        row[name] = float(undone.sum() / direct.sum()) if sure else NAN
        why |= {} if sure else dict.fromkeys((name, "difference", "ci_low", "ci_high"), UNSURE)
    if all(known):
        row["difference"] = row["run"] - row["control"]
        within = read_clusters(clusters, len(clusters))
        columns = within.totals(np.stack([*run, *control]))[0]
        low = high = np.array(NAN)
        if within.count >= BOOTSTRAP_CLUSTERS:
            low, high = statistic_interval(_two_shares, *columns, within=within)
        if np.isfinite(low) and np.isfinite(high):
            row |= {"ci_low": float(low), "ci_high": float(high)}
        else:
            why |= dict.fromkeys(("ci_low", "ci_high"), FEW)
    return {**row, "undefined": note(why)}


def _two_shares(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray, axis: int = -1) -> np.ndarray:
    return np.asarray(ratio(a, b, axis) - ratio(c, d, axis))


def _labels(mine: Mapping[Any, Any], theirs: Mapping[Any, Any]) -> list[Any]:
    """The rows of both models, in order, each once."""
    return list(dict.fromkeys([*mine, *theirs]))
