"""The comparison of `papers.hdpl`: losses by seed and step, the paper's order, and what the penalty did."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from streamscope.instruments.command import progress_bar
from streamscope.models.config import ModelConfig
from streamscope.models.config.presets import preset
from streamscope.models.config.serialization import from_dict
from streamscope.models.training.run import read_metrics
from streamscope.papers.comparison.curves import curves, gaps, has_short_windows, lengths, window_curves
from streamscope.papers.comparison.curves import judged as judged_curves
from streamscope.papers.comparison.losses import Below, against, losses, order
from streamscope.papers.comparison.printed import printed
from streamscope.papers.comparison.report import Comparison, Tables
from streamscope.papers.comparison.runs import Run, opened_in_arms, with_variants
from streamscope.papers.hdpl.convergence import printed_points, readings

PRESETS = ("llama", "hdpl")
VARIED = ("attention.o", "mlp.down")
"""Projections of which runs may have either kind, as arms of their own: hdpl and hdpl+o=hdpl."""
TABLE1 = "Table 1, final validation loss"
ARCHITECTURES = {name: printed(f"hdpl-t1-loss-{name}") for name in PRESETS}
DENSE = "§1, §2.4, §3"
"""Where o and down stay dense "to preserve full-rank feature mixing"."""
ORDER = (
    Below("hdpl", "llama", (ARCHITECTURES["hdpl"], ARCHITECTURES["llama"]), TABLE1),
    *(Below("hdpl", f"hdpl+{more}", None, DENSE) for more in ("o=hdpl", "down=hdpl", "o=hdpl+down=hdpl")),
)
WITHDRAWN = "withdrawn: the dense model does not start as the authors' does"
KL = ("kl", "kl_nats", "kl_clamped")


def open_runs(folders: Sequence[str]) -> list[Run]:
    """The runs by arm and seed. Raises `InputError` for doubles, and for what differs in more than the arm."""
    return opened_in_arms(folders, PRESETS, in_arms, VARIED)


def in_arms(runs: Sequence[Run]) -> list[Run]:
    """The runs with the names of their arms (hdpl, hdpl+o=hdpl, …), in order of preset, arm and seed."""
    return sorted(with_variants(runs, VARIED), key=lambda run: (PRESETS.index(run.preset), run.variant, run.seed))


def measure(options: Any) -> tuple[list[Run], Tables, dict[str, Any]]:
    """The tables of all runs: losses and curves, in the windows that most steps had, and the penalty."""
    runs = open_runs(options.runs)
    tables = {"losses": losses(runs), "kl": kl(runs), "kl-steps": kl_steps(runs)}
    if not has_short_windows(runs):
        return runs, {**tables, "curves": curves(runs)}, {}
    in_windows = lengths(runs, progress_bar("lengths"))
    tables |= {"lengths": in_windows, "curves": window_curves(runs, progress_bar("curves"))}
    tables["losses"] = tables["losses"].assign(loss=in_windows["loss"], tokens=in_windows["tokens"])
    return runs, tables, {}


def judged(runs: Sequence[Run], tables: Tables, facts: Mapping[str, Any]) -> Tables:
    """What follows from measured tables: differences to the dense model, the paper's order, its words on curves.

    Comparisons from before curves were kept have none.
    """
    rows, steps = tables["losses"], tables.get("curves", pd.DataFrame())
    withdrawn = "" if as_theirs(runs) else WITHDRAWN
    arms = set(steps["preset"]) if len(steps) else set()
    both = arms >= set(PRESETS)
    on_curves = [one._replace(instead=withdrawn) for one in readings(steps, runs)] if both else []
    claims = [one._replace(instead=withdrawn * (one.more == "llama")) for one in ORDER]
    return {
        **tables, "comparison": against(rows, "llama", ARCHITECTURES), "order": order(rows, claims),
        "gaps": gaps(steps, [(one.less, one.more) for one in ORDER if {one.less, one.more} <= arms]),
        "curve-claims": judged_curves(on_curves),
        "curve-points": printed_points(steps, runs) if both else pd.DataFrame(),
    }  # fmt: skip


def _logged(run: Run) -> list[dict[str, Any]]:
    """The training rows of a run's log."""
    return [row for row in read_metrics(run.folder) if row["kind"] == "train"]


def kl_steps(runs: Sequence[Run]) -> pd.DataFrame:
    """The KL in nats and the share that is clamped at every logged step of every HDPL run."""
    names = ("step", *KL[1:])
    rows = [(r.arm, r.seed, *map(row.get, names)) for r in runs if r.preset == "hdpl" for row in _logged(r)]
    return pd.DataFrame(rows, columns=["preset", "seed", *names])


def kl(runs: Sequence[Run]) -> pd.DataFrame:
    """The last logged training row of every HDPL run: the penalty, the KL in nats, and the share that is clamped."""

    rows = []
    for run in (r for r in runs if r.preset == "hdpl"):
        logged = _logged(run)
        ends: dict[str, Any] = {name: logged[-1].get(name, float("nan")) for name in KL}
        first = {f"{name}_first": logged[0].get(name, float("nan")) for name in ("kl_nats", "kl_clamped")}
        rows.append({"preset": run.arm, "seed": run.seed, "step": logged[-1]["step"], **ends, **first})
    return pd.DataFrame(rows, columns=["preset", "seed", "step", *KL, "kl_nats_first", "kl_clamped_first"])


def as_theirs(runs: Sequence[Run]) -> bool:
    """Whether every model started by the rules of its preset, which are those of the authors' code (SPEC §5, §9)."""
    return all(from_dict(ModelConfig, run.config["model"]).init == preset(run.preset).init for run in runs)


COMPARISON = Comparison(module="papers.hdpl", measure=measure, judge=judged, arms=in_arms)
