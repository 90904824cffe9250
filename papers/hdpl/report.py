"""The report of `papers.hdpl`: losses of trained runs by seed, the paper's order, and what the penalty did."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from streamscope.models.config import ModelConfig
from streamscope.models.config.presets import preset
from streamscope.models.config.serialization import from_dict
from streamscope.models.provenance import provenance
from streamscope.models.training.run import read_metrics
from streamscope.papers.comparison.losses import Below, Printed, against, bundled, losses, order
from streamscope.papers.comparison.report import reopen
from streamscope.papers.comparison.runs import Run, all_agree, by_preset

PRESETS = ("llama", "hdpl")
TABLE1 = "Table 1, final validation loss"
ARCHITECTURES = {"llama": Printed(4.3206, TABLE1), "hdpl": Printed(4.2838, TABLE1)}
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
    bundled: pd.DataFrame
    """Loss curves of the bundled models."""


def open_runs(folders: Sequence[str]) -> list[Run]:
    """The runs by preset and seed. Raises `InputError` for doubles, and for a recipe that differs."""
    runs = by_preset(folders, PRESETS)
    all_agree(runs)
    return runs


def read(runs: list[Run]) -> Found:
    """The tables of all runs."""
    tables = {"losses": losses(runs), "kl": kl(runs)}
    return judge(runs, tables, {**provenance("cpu"), "argv": "python -m papers.hdpl"})


def again(folder: Path) -> Found:
    """An earlier comparison, judged again. Raises `InputError` for a folder without one."""
    return judge(*reopen(folder, "papers.hdpl"))


def judge(runs: list[Run], tables: dict[str, pd.DataFrame], about: dict[str, Any]) -> Found:
    """What follows from measured tables: differences to the dense model, and the paper's order."""
    rows = tables["losses"]
    return Found(
        runs=runs,
        about=about,
        losses=rows,
        comparison=against(rows, "llama", ARCHITECTURES),
        order=order(rows, _order(runs)),
        kl=tables["kl"],
        bundled=bundled(PRESETS),
    )


def kl(runs: Sequence[Run]) -> pd.DataFrame:
    """The last logged training row of every HDPL run: the penalty, the KL in nats, and the share that is clamped."""

    rows = []
    for run in (r for r in runs if r.preset == "hdpl"):
        logged = [row for row in read_metrics(run.folder) if row["kind"] == "train"]
        ends: dict[str, Any] = {name: logged[-1].get(name, float("nan")) for name in KL_UNITS}
        first = {f"{name}_first": logged[0].get(name, float("nan")) for name in ("kl_nats", "kl_clamped")}
        rows.append({"preset": run.preset, "seed": run.seed, "step": logged[-1]["step"], **ends, **first})
    return pd.DataFrame(rows, columns=["preset", "seed", "step", *KL_UNITS, "kl_nats_first", "kl_clamped_first"])


def as_theirs(runs: Sequence[Run]) -> bool:
    """Whether every model started by the rules of its preset, which are those of the authors' code (SPEC §5, §9)."""
    return all(from_dict(ModelConfig, run.config["model"]).init == preset(run.preset).init for run in runs)


def _order(runs: Sequence[Run]) -> tuple[Below, ...]:
    """The paper's order, withdrawn where a model did not start as the authors' does."""
    return (Below("hdpl", "llama", (4.2838, 4.3206), TABLE1, "" if as_theirs(runs) else WITHDRAWN),)
