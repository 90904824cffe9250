"""The report of `papers.hdpl`: losses of trained runs by seed and step, the paper's order, and what the penalty did."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from streamscope.cli.provenance import provenance
from streamscope.instruments.command import INTERVAL, progress_bar
from streamscope.instruments.command import show as print_rows
from streamscope.instruments.undefined_cells import legend
from streamscope.models.config import ModelConfig
from streamscope.models.config.presets import preset
from streamscope.models.config.serialization import from_dict
from streamscope.models.training.run import read_metrics
from streamscope.papers.comparison import lengths
from streamscope.papers.comparison.curves import GAP_UNITS, POINT_UNITS, curves, gaps
from streamscope.papers.comparison.curves import UNITS as CURVE_UNITS
from streamscope.papers.comparison.curves import judged as judged_curves
from streamscope.papers.comparison.losses import BUNDLED_UNITS, UNITS, Below, Printed, against, bundled, losses, order
from streamscope.papers.comparison.printed import printed
from streamscope.papers.comparison.report import reopen, write_page
from streamscope.papers.comparison.runs import Run, all_agree, fields_of, no_doubles, opened, with_variants
from streamscope.papers.hdpl.convergence import printed_points, readings

PRESETS = ("llama", "hdpl")
VARIED = ("attention.o", "mlp.down")
"""Projections of which runs may have either kind, as arms of their own: hdpl and hdpl+o=hdpl."""
TABLE1 = "Table 1, final validation loss"
ARCHITECTURES = {name: Printed(printed(f"hdpl-t1-loss-{name}"), TABLE1) for name in ("llama", "hdpl")}
DENSE = "§1, §2.4, §3"
"""Where o and down stay dense "to preserve full-rank feature mixing"."""
ORDER = (
    Below("hdpl", "llama", (printed("hdpl-t1-loss-hdpl"), printed("hdpl-t1-loss-llama")), TABLE1),
    *(Below("hdpl", f"hdpl+{more}", None, DENSE) for more in ("o=hdpl", "down=hdpl", "o=hdpl+down=hdpl")),
)
WITHDRAWN = "withdrawn: the dense model does not start as the authors' does"
KL_UNITS = {
    "kl": "nats, the part of the training loss",
    "kl_nats": "nats per token and projection",
    "kl_clamped": "share",
}


@dataclass(frozen=True)
class Found:
    """The runs, their tables, and who made them."""

    runs: list[Run]
    about: dict[str, Any]
    losses: pd.DataFrame
    comparison: pd.DataFrame
    order: pd.DataFrame
    kl: pd.DataFrame
    curves: pd.DataFrame
    """Every evaluation of the runs; of comparisons from before it was kept, empty, as what follows from it."""
    gaps: pd.DataFrame
    curve_claims: pd.DataFrame
    curve_points: pd.DataFrame
    lengths: pd.DataFrame
    """Losses in windows of most steps and in longer ones; empty where all had the whole context."""
    bundled: pd.DataFrame
    """Loss curves of the bundled models."""


def open_runs(folders: Sequence[str]) -> list[Run]:
    """The runs by arm and seed. Raises `InputError` for doubles, and for what differs in more than the arm."""
    runs = in_arms([opened(folder, PRESETS) for folder in folders])
    no_doubles(runs)
    all_agree(runs, fields_of(runs, VARIED))
    return runs


def in_arms(runs: Sequence[Run]) -> list[Run]:
    """The runs with the names of their arms (hdpl, hdpl+o=hdpl, …), in order of preset, arm and seed."""
    return sorted(with_variants(runs, VARIED), key=lambda run: (PRESETS.index(run.preset), run.variant, run.seed))


def read(runs: list[Run]) -> Found:
    """The tables of all runs."""
    tables = {"losses": losses(runs), "kl": kl(runs)}
    if lengths.short(runs):
        found = lengths.lengths(runs, progress_bar("lengths"))
        tables |= {"lengths": found, "curves": lengths.curves(runs, progress_bar("curves"))}
        tables["losses"] = tables["losses"].assign(loss=found["loss"], tokens=found["tokens"])
    else:
        tables["curves"] = curves(runs)
    return judge(runs, tables, {**provenance("cpu"), "argv": "python -m papers.hdpl"})


def again(folder: Path) -> Found:
    """An earlier comparison, judged again. Raises `InputError` for a folder without one."""
    runs, tables, about = reopen(folder, "papers.hdpl")
    return judge(in_arms(runs), tables, about)


def judge(runs: list[Run], tables: dict[str, pd.DataFrame], about: dict[str, Any]) -> Found:
    """What follows from measured tables: differences to the dense model, the paper's order, its words on curves."""
    rows, none = tables["losses"], pd.DataFrame()
    steps, withdrawn = tables.get("curves", none), "" if as_theirs(runs) else WITHDRAWN
    arms = set(steps["preset"]) if len(steps) else set()
    said = [one._replace(instead=withdrawn) for one in readings(steps, runs)] if arms >= set(PRESETS) else []
    claims = [one._replace(instead=withdrawn * (one.more == "llama")) for one in ORDER]
    return Found(
        runs=runs,
        about=about,
        losses=rows,
        comparison=against(rows, "llama", ARCHITECTURES),
        order=order(rows, claims),
        kl=tables["kl"],
        curves=steps,
        gaps=gaps(steps, [(one.less, one.more) for one in ORDER if {one.less, one.more} <= arms]),
        curve_claims=judged_curves(said) if said else none,
        curve_points=printed_points(steps, runs) if said else none,
        lengths=tables.get("lengths", none),
        bundled=bundled(PRESETS),
    )


def kl(runs: Sequence[Run]) -> pd.DataFrame:
    """The last logged training row of every HDPL run: the penalty, the KL in nats, and the share that is clamped."""

    rows = []
    for run in (r for r in runs if r.preset == "hdpl"):
        logged = [row for row in read_metrics(run.folder) if row["kind"] == "train"]
        ends: dict[str, Any] = {name: logged[-1].get(name, float("nan")) for name in KL_UNITS}
        first = {f"{name}_first": logged[0].get(name, float("nan")) for name in ("kl_nats", "kl_clamped")}
        rows.append({"preset": run.arm, "seed": run.seed, "step": logged[-1]["step"], **ends, **first})
    return pd.DataFrame(rows, columns=["preset", "seed", "step", *KL_UNITS, "kl_nats_first", "kl_clamped_first"])


def as_theirs(runs: Sequence[Run]) -> bool:
    """Whether every model started by the rules of its preset, which are those of the authors' code (SPEC §5, §9)."""
    return all(from_dict(ModelConfig, run.config["model"]).init == preset(run.preset).init for run in runs)


# ---- screen and disk ---------------------------------------------------------------------------


def show(found: Found) -> None:
    """The comparison, the order, and the penalty."""
    columns = ("preset", "parameters", "n", "loss", "difference", INTERVAL, "all_seeds", "printed_difference")
    print_rows(found.comparison, "validation loss, difference to llama by seed", columns, 4)
    print_rows(
        found.order, "the paper's order: higher − lower loss", ("claim", "by_seed", "difference", "direction"), 4
    )
    for rows in (found.comparison, found.order):
        if lines := legend(rows):
            print(lines)
    if len(found.curve_claims):
        judged = ("claim", "quantity", "at", "difference", INTERVAL, "p_holm", "direction")
        print_rows(found.curve_claims, "the paper's words on curves, positive as claimed", judged, 4)
    print_rows(found.kl, "the penalty at the end of training", tuple(found.kl.columns), 4)


def write(found: Found, folder: Path) -> None:
    """Tables, then README.md; each whole or not at all."""
    tables = {
        "losses": found.losses, "comparison": found.comparison, "order": found.order, "bundled": found.bundled,
        "kl": found.kl, "lengths": found.lengths, "curves": found.curves, "gaps": found.gaps,
        "curve-claims": found.curve_claims, "curve-points": found.curve_points,
    }  # fmt: skip
    units = {
        "losses": UNITS, "comparison": UNITS, "order": UNITS, "bundled": BUNDLED_UNITS, "kl": KL_UNITS,
        "lengths": lengths.UNITS, "curves": CURVE_UNITS, "gaps": GAP_UNITS, "curve-points": POINT_UNITS,
    }  # fmt: skip
    write_page(tables, units, found.about, folder, runs=found.runs)
