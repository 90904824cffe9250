"""The comparison of `papers.dst`: streams taken away and attention sharpened, claims judged over seeds."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from streamscope.cli.provenance import pick_device
from streamscope.instruments.table import short_columns
from streamscope.interventions.amplify.measure import AREAS, CURVE, HEADS
from streamscope.interventions.streams.measure import COLUMNS as STREAMS
from streamscope.models.config.presets import PRESETS
from streamscope.papers.comparison.losses import against, losses
from streamscope.papers.comparison.options import settings_of
from streamscope.papers.comparison.report import Comparison, Tables, each_model, stack
from streamscope.papers.comparison.runs import Run, opened_in_arms, with_variants
from streamscope.papers.comparison.seeds import NAN, means
from streamscope.papers.comparison.verdicts import bound_row, order_row, with_verdicts
from streamscope.papers.dst import Options, Settings
from streamscope.papers.dst.claims import CONTROL, FROZEN, PAPER_ALPHAS, TABLE1, TABLE8, bounds, orders, printed_value
from streamscope.papers.dst.factors import FACTORS, Cells, agreeing, factors, with_cells, with_doses
from streamscope.papers.dst.measure import (
    amplified,
    costs,
    measure_run,
    straight,
    stripped,
    whole_loss,
)
from streamscope.papers.figures.dst import streams
from streamscope.papers.figures.style import Style

VARIED = ("attention.gate", "residual", "n_heads")
"""What runs may differ in, as arms of their own: dst-dense and dst-dense+gate; dst-kron+single; dst-kron+8heads."""


def open_runs(folders: Sequence[str]) -> list[Run]:
    """The runs by arm and seed. Raises `InputError` for doubles and for runs of other data, shape or recipe.

    They may differ in how their weights began, and be snapshots RUN@STEP of one schedule (`factors`).
    """
    return opened_in_arms(folders, list(PRESETS), in_arms, (*VARIED, *FACTORS), ["steps"])


def in_arms(runs: Sequence[Run]) -> list[Run]:
    """The runs with the names of their arms and cells, in the order of presets, variants (of heads by their number),
    cells and seeds."""
    order = list(PRESETS)

    def place(run: Run) -> tuple[Any, ...]:
        variant = run.variant.lstrip("+0123456789")  # 4 heads before 16
        return order.index(run.preset), variant, run.config["model"]["n_heads"], run.variant, run.cell, run.seed

    return sorted(with_cells(with_variants(runs, VARIED)), key=place)


def measure(options: Options) -> tuple[list[Run], Tables, dict[str, Any]]:
    """Every table of the runs, at a scale of their snapshots as well (`factors.with_doses`); the settings."""
    runs, settings = open_runs(options.runs), settings_of(Settings, options)
    if options.scale is not None:
        runs = open_runs(with_doses(runs))
    tables = stack(
        (run.arm, run.seed, measure_run(model, shards, settings, progress))
        for run, model, shards, progress in each_model(runs, pick_device(options.device))
    )
    rows = losses(runs)
    tables |= {"runs": pd.concat([tables["runs"], whole_loss(rows)], ignore_index=True), "losses": rows}
    return runs, tables, {"settings": {**vars(settings), "alphas": settings.alphas}}


def judged(runs: Sequence[Run], tables: Tables, facts: Mapping[str, Any]) -> Tables:
    """The tables with what follows from the quantities of the runs: means over seeds, losses against the dense model's,
    verdicts."""
    curve, alphas = tables["amplification"], tuple(facts["settings"]["alphas"])
    parts = [tables["runs"], costs(tables["runs"]), amplified(curve, tables["heads"]), straight(curve)]
    parts += [stripped(tables["streams"])] if "streams" in tables else []  # a model of one stream has none
    quantities = pd.concat(parts, ignore_index=True)
    presets = means(quantities, list(dict.fromkeys(quantities["preset"])))
    compared = losses_compared(tables["losses"], Cells(runs))
    return {**tables, **compared, "presets": presets, **claims_judged(quantities, alphas, Cells(runs))}


def losses_compared(rows: pd.DataFrame, cells: Cells) -> Tables:
    """`loss` and `loss_frozen`: losses of arms against the dense model's, in every mode and in the frozen one alone,
    where there are two arms and it is one."""
    whole = rows[rows["preset"].isin(cells.models(list(rows["preset"])))]
    frozen = whole[whole["preset"].str.endswith(FROZEN)]
    tables = {}
    for name, own, control, paper in (
        ("loss", whole, CONTROL, TABLE1), ("loss_frozen", frozen, f"{CONTROL}{FROZEN}", TABLE8)
    ):  # fmt: skip
        if control in set(own["preset"]) and own["preset"].nunique() > 1:
            tables[name] = against(own, control, paper)
    return tables


def claims_judged(
    quantities: pd.DataFrame, alphas: Sequence[float] = PAPER_ALPHAS, cells: Cells | None = None
) -> dict[str, pd.DataFrame]:
    """From runs to claims: training seeds are the units, pairs of one seed for two presets.

    `claims`: a row per claim about presets that are given: measured, interval over seeds, Holm over all, verdict;
    `factors`: the claims about one model in every cell of its factors, by which they are judged or confounded.

    `runs` counts those whose own value has the sign that the paper says; with one seed it is all there is.
    """
    names = list(dict.fromkeys(quantities["preset"]))
    dual = [p for p in names if ((quantities["preset"] == p) & (quantities["family"] == "streams")).any()]
    cells = cells or Cells()
    about = bounds(cells.models(names), cells.models(dual), alphas)
    by_cell = factors(quantities, about, cells)
    rows: list[dict[str, Any]] = []
    instead, withheld = dict[int, str](), dict[int, str]()
    for claim in about:
        row = bound_row(claim, quantities)
        if text := cells.instead(claim, row, by_cell):
            instead[len(rows)] = text
        elif text := cells.withheld(claim, row, by_cell):
            withheld[len(rows)] = text
        rows.append({**row, "runs": agreeing(claim, quantities, claim.preset)})
    for order in orders(alphas):
        if not {order.more, order.less} <= set(names):
            continue
        two = [printed_value(preset, order.quantity, order.where) for preset in (order.more, order.less)]
        paper = NAN if order.quantity.startswith("area.") else two[0] - two[1]  # areas are in no known unit
        row = order_row(order, quantities, paper=paper, printed=f"{two[0]:.4g} against {two[1]:.4g}")
        gaps = _by_seed(quantities, order.quantity, order.more) - _by_seed(quantities, order.quantity, order.less)
        gaps = gaps.dropna()
        if text := cells.narrow(order):
            instead[len(rows)] = text
        rows.append({**row, "runs": f"{int((gaps > 0).sum())} of {len(gaps)}"})
    return {"claims": with_verdicts(rows, instead, quantities, withheld), "factors": by_cell}


def _by_seed(quantities: pd.DataFrame, quantity: str, preset: str) -> pd.Series:
    mine = (quantities["quantity"] == quantity) & (quantities["preset"] == preset)
    return quantities[mine].set_index("seed")["value"]


COMPARISON = Comparison(
    module="papers.dst", settings=Settings, measure=measure, judge=judged, arms=in_arms,
    draw=lambda runs, tables: streams(tables, Style("page")),
    columns={
        "streams": short_columns(STREAMS, "delta"), "amplification": short_columns(CURVE, "delta"), "heads": HEADS,
        "areas": short_columns(AREAS, "area"),
    },
)  # fmt: skip
