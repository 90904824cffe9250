"""What `papers.krom` prints and writes: tables and a figure."""

from pathlib import Path

import numpy as np
import pandas as pd

from streamscope.instruments.command import INTERVAL
from streamscope.instruments.command import show as print_rows
from streamscope.instruments.undefined_cells import legend
from streamscope.papers.comparison.curves import GAP_UNITS
from streamscope.papers.comparison.curves import UNITS as CURVE_UNITS
from streamscope.papers.comparison.losses import BUNDLED_UNITS, UNITS
from streamscope.papers.comparison.report import write_page
from streamscope.papers.comparison.seeds import over_seeds
from streamscope.papers.krom import alike, signs, sweep, variants
from streamscope.papers.krom.figure import figure
from streamscope.papers.krom.found import CONTROL, Found
from streamscope.papers.krom.mixing import ARM, FACTOR_UNITS, RUN_UNITS


def arms(mixing: pd.DataFrame) -> pd.DataFrame:
    """One row per arm: means over seeds of its mixing, `start` swap, `share` of the way that the loss went."""

    rows = mixing.assign(start=1 / (1 + np.exp(-mixing["b_res"])))
    way = rows["gap"] - rows["b_res"]
    rows["share"] = np.where(way.abs() > 1e-3, rows["by_loss"] / way, np.nan)
    values = [
        "loss", "swap", "swap_dynamic", "start", "swap_without_gradient", "by_loss", "share", "by_loss_controls",
        "towards", "factors", "gradient", "stream_cosine", "shuffled_cosine",
    ]  # fmt: skip
    groups = rows.groupby(ARM, sort=False, dropna=False)
    found = groups[values].mean().reset_index()
    found["n"] = groups.size().to_numpy()
    found["seeds"] = groups["seed"].agg(lambda s: ", ".join(map(str, sorted(s)))).to_numpy()
    for name in ("n_mix", "n_decay", "n_still"):
        found[name] = groups[name].agg(lambda s: ", ".join(map(str, s))).to_numpy()
    return found


def show(found: Found) -> None:
    """The comparison and the arms."""

    if len(found.comparison):
        columns = ("preset", "n", "loss", "difference", INTERVAL, "all_seeds", "printed", "printed_difference")
        print_rows(found.comparison, f"validation loss, difference to {CONTROL} by seed", columns, 4)
        if lines := legend(found.comparison):
            print(lines)
        judged = ("claim", "by_seed", "difference", INTERVAL, "p_holm", "direction")
        print_rows(found.order, "the blog's order: higher − lower loss as claimed", judged, 4)
        if lines := legend(found.order):
            print(lines)
    if len(found.mixing):
        shown = (*ARM[:-1], "n", "start", "swap_without_gradient", "swap", "by_loss", "n_mix", "n_decay", "n_still")
        print_rows(arms(found.mixing), "mixing at the end, means over seeds and factors that can act", shown, 4)
    if len(agree := signs.signs(found.factors)):
        shown = (*ARM[:-1], "n", "modules", "positive", "consistent", "share", "coins", "dealt", "p")
        print_rows(agree, "modules whose α_res has one sign in all seeds, and how many chance gives", shown, 3)


def write(found: Found, folder: Path, html: bool = True) -> None:
    """Tables and figure, then README.md; each whole or not at all."""

    tables = {
        "losses": (found.losses, UNITS), "comparison": (found.comparison, UNITS), "order": (found.order, UNITS),
        "bundled": (found.bundled, BUNDLED_UNITS), "factors": (found.factors, FACTOR_UNITS),
        "curves": (found.curves, CURVE_UNITS), "gaps": (found.gaps, GAP_UNITS),
        "online": (found.online, CURVE_UNITS), "online-gaps": (found.online_gaps, GAP_UNITS),
        "ways": (found.ways, RUN_UNITS), "mixing": (found.mixing, RUN_UNITS),
        "topologies": (found.topologies, variants.UNITS),
    }  # fmt: skip
    if len(found.mixing):
        tables["arms"] = (arms(found.mixing), RUN_UNITS)
        tables["signs"] = (signs.signs(found.factors), signs.UNITS)
        tables["signs-modules"] = (signs.by_module(found.factors), signs.MODULE_UNITS)
        tables["signs-claims"] = (signs.claims(found.factors), signs.CLAIM_UNITS)
    if len(numbers := sweep.quantities(found.mixing, found.factors, found.losses)):
        tables["sweep"] = (over_seeds(numbers), sweep.UNITS)
        tables["sweep-claims"] = (sweep.claims(found.mixing, numbers), sweep.CLAIM_UNITS)
    if len(every := variants.streams(found.mixing, found.topologies)):
        tables["alike"] = (alike.alike(every), alike.UNITS)
        tables["alike-claims"] = (alike.claims(every), alike.CLAIM_UNITS)
        tables["variants"] = (variants.claims(every), variants.CLAIM_UNITS)
        tables["differences"] = (variants.differences(every), variants.CLAIM_UNITS)
    write_page(
        {k: v for k, (v, _) in tables.items()},
        {k: u for k, (_, u) in tables.items()}, found.about, folder, figure(found), "svg", html, found.runs,
    )  # fmt: skip
