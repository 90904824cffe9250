"""What `papers.hdpl` prints and writes: tables, and a README.md whose every number is in the tables."""

import math
from collections.abc import Sequence
from pathlib import Path

from streamscope.instruments.command import INTERVAL
from streamscope.instruments.command import show as print_rows
from streamscope.instruments.undefined_cells import legend
from streamscope.papers.comparison import lengths as lengths_of
from streamscope.papers.comparison.curves import GAP_UNITS, POINT_UNITS, claim_rows, crossing, point_rows
from streamscope.papers.comparison.curves import UNITS as CURVE_UNITS
from streamscope.papers.comparison.losses import BUNDLED_UNITS, UNITS, curves, order_rows, page_rows
from streamscope.papers.comparison.markdown import table
from streamscope.papers.comparison.report import (
    LEAD,
    Report,
    commands,
    dose,
    files_line,
    made_by,
    shape,
    write_page,
)
from streamscope.papers.hdpl.report import KL_UNITS, ORDER, PRESETS, Found, as_theirs

CARD = "HDPL, hybrid dual-path linear layers"
AS_HERE, AS_THEIRS = 4.861, 4.717
"""Loss of a dense model after 250 steps at the scale of the bundled models, one seed, with each start (SPEC §9)."""
START = (
    "The dense model does not start as the authors' does: here its maps are N(0, .02), those that write to the "
    "residual divided by √(2L); in the authors' code they are uniform within ±1/√fan-in. Measured beside that code, "
    f"with one seed, this start alone cost a dense model {AS_HERE - AS_THEIRS:.2f} nats per token (scale of the "
    f"bundled models, step 250: {AS_HERE} against {AS_THEIRS}; SPEC §9)"
)


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
        "lengths": lengths_of.UNITS, "curves": CURVE_UNITS, "gaps": GAP_UNITS, "curve-points": POINT_UNITS,
    }  # fmt: skip
    write_page(lambda files: page(found, files), tables, units, found.about, folder, runs=found.runs)


def page(found: Found, files: Sequence[str]) -> str:
    """README.md."""

    run = found.runs[0]
    model = run.config["model"]
    columns = list(found.kl.columns)
    cells = [[f"{x:.4g}" if isinstance(x, float) else x for x in row] for row in found.kl.itertuples(index=False)]
    ends = [f"{x:.2f}" for x in (found.losses["loss"].min(), found.losses["loss"].max())]
    parts = [
        "# Hybrid dual-path projections against dense ones",
        *([] if as_theirs(found.runs) else [
            f"**No size on this page can be interpreted until the dense model is trained again.** {START}"
            f"{_beside(found)}. The verdict on the paper's order is withdrawn."
        ]),
        LEAD.format(CARD),
        f"{dose(found.runs)}; the paper trains for 20,000 steps. Models trained this little say little: losses are "
        f"{' to '.join(ends)} nats per token (guessing among {model['d_vocab']:,} tokens: "
        f"{math.log(model['d_vocab']):.2f}), and nothing here tests longer training. "
        f"{'' if len(found.gaps) else curves(found.bundled, *PRESETS)}".rstrip(),
        f"- Models: scale {run.manifest['scale']} ({shape(model)}); {run.manifest['steps']:,} steps of "
        f"{run.windows} on "
        f"`{run.config['data']['data']}`. The paper's: "
        "4 layers, width 512, 20,000 steps.\n"
        "- Same data, same order for both models of a seed; the paper's two saw different data (SPEC §5).\n"
        f"{made_by(found.about)}\n{files_line(files)}",
        f"## Losses\n\n{page_rows(found.comparison, found.losses, 'llama', 'paper')}",
        *([f"## The paper's order of losses\n\n{order_rows(found.order, 'paper')}"] if len(found.order) else []),
        *([lengths_of.section(found.lengths)] if len(found.lengths) else []),
        *([_curves(found)] if len(found.gaps) else []),
        "## The penalty\n\nThe last logged training step; `_first` is the first logged one. `kl_clamped` is the share "
        "of tokens and projections whose KL lies above the clamp, where it has no gradient.\n\n"
        f"{table(columns, cells)}",
        commands(Report(runs=found.runs, tables={}, about=found.about)),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _curves(found: Found) -> str:
    """Which arm lies below along the steps, and the paper's words on it."""
    said = [crossing(found.gaps, one.less, one.more) for one in ORDER]
    parts = ["## The curves", "\n".join(f"- {line}" for line in said if line)]
    if len(found.curve_claims):
        parts += [claim_rows(found.curve_claims), f"Points that the paper names, and the lowest loss of each run:\n\n"
                  f"{point_rows(found.curve_points)}"]  # fmt: skip
    return "\n\n".join(parts)


def _beside(found: Found) -> str:
    """The difference that is reported, beside what the start alone costs."""
    one = found.comparison[(found.comparison["preset"] == "hdpl") & found.comparison["difference"].notna()]
    if one.empty:
        return ""
    gap = abs(one["difference"].iloc[0])
    more = "more than" if gap < AS_HERE - AS_THEIRS else "beside"
    return f", {more} the {gap:.3f} by which the two models differ here"
