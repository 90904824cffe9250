"""The report of `papers.dst`: every run measured, seeds summarised, claims judged; or an earlier one judged again."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from streamscope.cli.provenance import pick_device, provenance
from streamscope.instruments.command import INTERVAL
from streamscope.instruments.command import show as print_rows
from streamscope.models.config.presets import PRESETS
from streamscope.papers.comparison.losses import against, losses
from streamscope.papers.comparison.report import Report, each_model, print_claims, reopen, stack, write_report
from streamscope.papers.comparison.runs import (
    SHAPE,
    Run,
    all_agree,
    fields_of,
    no_doubles,
    opened,
    typed,
    with_variants,
)
from streamscope.papers.dst import seeds
from streamscope.papers.dst.claims import CONTROL, FROZEN, PLACES, TABLE1, TABLE8
from streamscope.papers.dst.factors import FACTORS, Cells, init_of, initial, with_cells
from streamscope.papers.dst.measure import (
    INITIAL,
    Settings,
    amplified,
    costs,
    initialization,
    measure_run,
    straight,
    stripped,
    whole_loss,
)
from streamscope.papers.dst.options import Options
from streamscope.papers.dst.units import UNITS

VARIED = ("attention.gate", "residual", "n_heads")
"""What runs may differ in, as arms of their own: dst-dense and dst-dense+gate; dst-kron+single; dst-kron+8heads."""


@dataclass(frozen=True, kw_only=True)
class DstReport(Report):
    """Runs, tables and settings of the comparison."""

    settings: Settings


def open_runs(folders: Sequence[str]) -> list[Run]:
    """The runs by arm and seed. Raises `InputError` for doubles and for runs of other data, shape or recipe.

    They may differ in how their weights began, and be snapshots RUN@STEP of one schedule (`factors`).
    """
    runs = in_arms([opened(f, list(PRESETS)) for f in folders])
    no_doubles(runs)
    all_agree(runs, [*fields_of(runs, (*VARIED, *FACTORS)), "steps"])
    return runs


def in_arms(runs: Sequence[Run]) -> list[Run]:
    """The runs with the names of their arms and cells, in the order of presets, variants (of heads by their number),
    cells and seeds."""
    order = list(PRESETS)

    def place(run: Run) -> tuple[Any, ...]:
        variant = run.variant.lstrip("+0123456789")  # 4 heads before 16
        return order.index(run.preset), variant, run.config["model"]["n_heads"], run.variant, run.cell, run.seed

    return sorted(with_cells(with_variants(runs, VARIED)), key=place)


def measure(options: Options, alphas: Sequence[float], runs: list[Run]) -> DstReport:
    """Every table, of the runs and over seeds."""

    settings = Settings(documents=options.documents, alphas=tuple(alphas), draws=options.draws, seed=options.seed)
    device = pick_device(options.device)
    tables = stack(
        (run.arm, run.seed, measure_run(model, shards, settings, progress))
        for run, model, shards, progress in each_model(runs, device)
    )
    rows = losses(runs)
    tables |= {"runs": pd.concat([tables.pop("quantities"), whole_loss(rows)], ignore_index=True), "losses": rows}
    whole = rows[rows["preset"].isin(Cells(runs).models(list(rows["preset"])))]
    if CONTROL in set(whole["preset"]) and whole["preset"].nunique() > 1:
        tables["loss"] = against(whole, CONTROL, TABLE1)
    frozen = whole[whole["preset"].str.endswith(FROZEN)]
    if f"{CONTROL}{FROZEN}" in set(frozen["preset"]) and frozen["preset"].nunique() > 1:
        tables["loss_frozen"] = against(frozen, f"{CONTROL}{FROZEN}", TABLE8)
    about = {**provenance(device), "argv": typed("papers.dst", options, runs)}
    return DstReport(runs=runs, tables=judged(tables, runs, settings.alphas), settings=settings, about=about)


def judged(tables: dict[str, pd.DataFrame], runs: list[Run], alphas: Sequence[float]) -> dict[str, pd.DataFrame]:
    """The tables with what follows from the quantities of the runs: means over seeds, verdicts; and how runs began."""

    curve = tables["amplification"]
    parts = [tables["runs"], costs(tables["runs"]), amplified(curve, tables["heads"]), straight(curve)]
    parts += [stripped(tables["streams"])] if "streams" in tables else []  # a model of one stream has none
    quantities = pd.concat(parts, ignore_index=True)
    found = {**tables, "presets": seeds.presets(quantities), **seeds.judged(quantities, alphas, Cells(runs))}
    if mine := [run for run in runs if run.preset in INITIAL]:
        shape = {name: runs[0].config["model"][name] for name in SHAPE}
        inits = {init_of(run): initial(run) for run in mine}
        found["initialization"] = initialization(shape, runs[0].manifest["scale"], [run.seed for run in runs], inits)
    return found


def again(folder: Path) -> DstReport:
    """The report of an earlier comparison, judged anew from its tables."""

    runs, tables, about = reopen(folder, "papers.dst")
    runs = in_arms(runs)
    settings = Settings(**{**about["settings"], "alphas": tuple(about["settings"]["alphas"])})
    tables = dict(sorted(judged(tables, runs, settings.alphas).items()))
    return DstReport(runs=runs, tables=tables, settings=settings, about=about)


# ---- screen and disk ---------------------------------------------------------------------------


def show(report: DstReport) -> None:
    """Both tables and the claims."""

    tables = report.tables
    if "streams" in tables:
        whole = tables["streams"][tables["streams"]["where"].isin(PLACES)]
        columns = (
            "preset",
            "seed",
            "definition",
            "where",
            "baseline",
            "loss",
            "percent",
            "percent_low",
            "percent_high",
        )
        print_rows(whole, "loss without a stream (Table 4), 95 % over documents", columns, 4)
    shown = ("preset", "seed", "alpha", "loss", "percent", "percent_low", "percent_high", "entropy", "unchanged")
    print_rows(tables["amplification"], "loss by α (Table 5), 95 % over documents", shown, 4)
    judged = ("claim", "quantity", "difference", INTERVAL, "runs", "direction")
    print_claims(tables["claims"], "claims of the paper", judged)


def write(report: DstReport, figure: Any, folder: Path, static: str, html: bool) -> None:
    """Tables, figures and README.md."""
    write_report(report, UNITS, figure, folder, static, html, settings=vars(report.settings))
