"""A model beside its control over the same cases: tasks and prompts without heads, patches (`model_differences`)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from streamscope.interventions.effects import holm
from streamscope.interventions.groups import Group
from streamscope.interventions.hydra_tables import FEW, UNSURE, Decomposition, known_direct, layer_values, part_values
from streamscope.interventions.model_differences import CASES, NAN, NUMBERS, compare_cases, shared_cases, units_of
from streamscope.interventions.observe import SMALLEST
from streamscope.interventions.patch_tables import RESOLUTION
from streamscope.interventions.patching import Patched
from streamscope.probes.prompts.suite import Unit
from streamscope.probes.prompts.tasks import Task
from streamscope.probes.stats.estimators import BOOTSTRAP_CLUSTERS, ratio, read_clusters, statistic_interval
from streamscope.probes.undefined import note

PART_UNITS = units_of("nats of answer − foil (log_odds), share of the direct effect (made_up)", CASES)
PROMPT_UNITS = units_of("attention, target − competitor (sps), nats of log-odds (coherence)", CASES)
PATCH_UNITS = units_of("nats of log-odds (effect, attribution), share (recovery, attributed)", CASES)
NO_GROUP = "only one of the models has such a group, or such a layer after it; name found heads as NAME=top2:entity"
NO_EDGE = "in one of the models this reader does not read what the sender writes"


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


def compare_patches(
    labels: tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]],
    found: tuple[Patched | None, Patched | None],
    guessed: tuple[np.ndarray | None, np.ndarray | None],
    gaps: tuple[np.ndarray, np.ndarray],
    clusters: Sequence[Unit],
    threshold: float,
    family: Sequence[str],
    direction: str,
) -> pd.DataFrame:
    """One row per measure and cell or path: run, control, run − control with 95 % over shared independent pairs.

    effect (nats) and recovery as in `patch_tables`, or without exact patches what attribution says of both, as
    attribution and attributed. Values are means over the pairs that both models define: recovery where |clean −
    corrupt| (`gaps` [pairs]) reaches `threshold` in both. `labels` name the rows of each model, matched by their
    values; p_holm corrects over the rows that agree in `family`.
    """
    values: dict[str, list[list[np.ndarray]]] = {}
    clear = [np.abs(gap) >= threshold for gap in gaps]
    for one, guess, gap, use in zip(found, guessed, gaps, clear, strict=True):
        if one is not None:
            shown = {"effect": one.effect, "recovery": one.recovery(threshold)}
        else:
            assert guess is not None
            start = 0.0 if direction == "denoise" else 1.0
            share = np.where(use, start + guess / np.where(use, gap, 1.0), np.nan)
            shown = {"attribution": guess, "attributed": share}
        for measure, rows in shown.items():
            values.setdefault(measure, []).append(list(rows))
    keys = [[tuple(label.items()) for label in some] for some in labels]
    missing = f"in no pair do clean and corrupted differ by {threshold:g} nats in both models, or none has the position"
    tables = []
    for measure, (run, control) in values.items():
        mine, theirs = (dict(zip(k, rows, strict=True)) for k, rows in zip(keys, (run, control), strict=True))
        every = _labels(mine, theirs)
        x, y = ([one.get(key) for key in every] for one in (mine, theirs))
        about = [{"direction": direction, **dict(key)} for key in every]
        table = compare_cases(about, measure, x, y, clusters, resolution=RESOLUTION, missing=missing, absent=NO_EDGE)
        tables.append(holm(table, family))
    return pd.concat(tables, ignore_index=True)


def _labels(mine: Mapping[Any, Any], theirs: Mapping[Any, Any]) -> list[Any]:
    """The rows of both models, in order, each once."""
    return list(dict.fromkeys([*mine, *theirs]))
