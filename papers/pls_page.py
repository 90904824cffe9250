"""What `papers.pls` prints and writes: tables, figure, and a README.md whose every number is in the tables."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from papers.comparison import LEAD, Report, commands, files_line, made_by, pictures, rule, shape, write_page
from papers.losses import page_rows
from papers.markdown import number, table
from papers.pls_measure import Settings
from papers.pls_printed import CARD
from papers.pls_runs import CONTROL, RUN
from papers.verdicts import verdicts

HEADS = {
    "named": "of the paper's heads",
    "all": "of processing depth",
    "found": "once more, of the heads that attention names in each model",
}
"""What the claims of a value of `heads` are about."""


@dataclass(frozen=True, kw_only=True)
class PlsReport(Report):
    """What the page tells of."""

    settings: Settings
    left_out: dict[str, str]
    """Task -> its cases, and what was left out."""


def page(report: PlsReport) -> str:
    """The page, in Markdown."""
    from papers.pls_sections import ablation, depth, hydra, routing, steering

    parts = [_head(report), _claims(report), _losses(report), ablation(report), routing(report), steering(report),
             hydra(report), depth(report), _heads(report), _undefined(report), commands(report)]  # fmt: skip
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(report: PlsReport) -> str:
    conditions = report.runs[0].conditions
    seeds = sorted({run.seed for run in report.runs})
    counts = {
        HEADS[heads]: ", ".join(f"{name}: {count}" for name, count in verdicts(some).items())
        for heads, some in report.tables["claims"].groupby("heads", sort=False)
    }
    one = " One pair only, so no interval over seeds." if len(seeds) == 1 else ""
    lines = [
        f"- Runs: {RUN} and {CONTROL}, seeds {', '.join(map(str, seeds))}; the two of a seed see the same windows in "
        f"the same order and begin alike.{one}",
        f"- Models: scale {conditions['scale']} ({shape(conditions)}), {conditions['steps']:,} steps on "
        f"`{report.runs[0].config['data']['data']}`. The paper's: 6 layers, 6 heads, width 384, grade-school text.",
        f"- Cases: {'; '.join(report.left_out.values())}. The paper's 8, 16 and 50 are not published; these are ours.",
        *(f"- Claims of the paper, {what}: {text}." for what, text in counts.items()),
        made_by(report.about),
        files_line(report.files),
    ]
    title = "# Per-layer supervision against none: PLS and C2, over training seeds"
    return "\n\n".join([title, LEAD.format(CARD), "\n".join(lines), *pictures(report.files)])


def _claims(report: PlsReport) -> str:
    from papers.pls_sections import value

    rows = []
    for r in report.tables["claims"].itertuples():
        measured, low, high = (value(x, r.unit) for x in (r.difference, r.ci_low, r.ci_high))
        signs = f", one sign in {r.alike}" if r.alike else ""
        rows.append([r.heads, r.claim, f"`{r.quantity}`", r.printed, r.where, measured + signs,
                     f"{low} … {high}" if r.ci_low == r.ci_low else "undefined", number(r.p_holm), r.direction,
                     r.size])  # fmt: skip
    text = (
        f"{rule('pairs of seeds', 'no difference (1 of a factor, 0 of a difference or limit)')} A factor is the "
        "geometric mean of |PLS| / |C2| over the pairs whose sizes are more than rounding, and says in how many both "
        "have one sign. The 0.9 of *monotonicity* is ours. *named* are the paper's heads L5.H4+L5.H5 and L5.H2+L5.H3, "
        "whose numbers mean nothing in another model; *found* are those of the last layer that attention names in each "
        "model (`probes.head_groups`), as the paper found its own. P(answer) in percentage points. Intervals are not "
        "corrected for the number of claims, p is (Holm over this table). The paper calls 6.32 % against 0.63 % a "
        "ratio of 10 in variance; it is that of standard deviations."
    )
    columns = ("heads", "claim", "quantity", "printed", "source", "measured", "95 % over pairs", "p Holm", "direction",
               "size")  # fmt: skip
    return f"## Claims of the paper\n\n{text}\n\n{table(columns, rows)}"


def _losses(report: PlsReport) -> str:
    return f"## Losses\n\n{page_rows(report.tables['loss'], report.tables['losses'], CONTROL, 'paper')}"


def _heads(report: PlsReport) -> str:
    heads = report.tables["heads"]
    groups = list(dict.fromkeys(heads["group"]))
    cells = heads.set_index(["preset", "seed", "group"])["heads"]
    rows = [[run.preset, run.seed, *(cells[run.preset, run.seed, g] for g in groups)] for run in report.runs]
    return f"## Heads\n\n{table(('preset', 'seed', *groups), rows)}"


def _undefined(report: PlsReport) -> str:
    """Every reason for a missing value of a run, with how many cells it has."""
    from probes.undefined import reasons

    quantities = report.tables["runs"]
    lost: dict[str, list[str]] = {}
    for r in quantities[quantities["value"].isna()].itertuples():
        lost.setdefault(reasons(r.undefined)["value"], []).append(f"{r.preset} seed {r.seed} `{r.quantity}`")
    lines = [
        f"- {why}: {cells[0]}" + (f" and {len(cells) - 1} more" if cells[1:] else "") for why, cells in lost.items()
    ]
    return "## Undefined\n\n" + "\n".join(lines or ["Every quantity has a value in every run."])


# ---- screen and disk ---------------------------------------------------------------------------


def show(report: PlsReport) -> None:
    """The comparison of effects, and the claims with their verdicts."""
    from probes.report import INTERVAL
    from probes.report import show as print_rows

    compared = report.tables["comparisons"]
    effects = compared[compared["family"].isin(["effect", "spread"]) & ~compared["quantity"].str.contains("_odds")]
    columns = ("quantity", "kind", "value", INTERVAL, "p", "p_holm", "n", "paper")
    print_rows(effects, f"{RUN} over {CONTROL}, pairs of training seeds", columns)
    claims = report.tables["claims"]
    short = claims.assign(direction=claims["direction"].str.slice(0, 40))
    shown = ("heads", "claim", "quantity", "printed", "unit", "difference", INTERVAL, "direction")
    print_rows(short, "claims of the paper, intervals over pairs of seeds", shown, 5)
    print(", ".join(f"{name}: {count}" for name, count in verdicts(claims).items()))


def write(report: PlsReport, figure: Any, folder: Path, static: str, html: bool) -> None:
    """Tables, figures and README.md."""
    from papers.pls_units import UNITS

    about = {**report.about, "settings": vars(report.settings), "cases": report.left_out}
    write_page(
        lambda files: page(replace(report, files=files)), report.tables, UNITS, about, folder, figure, static, html
    )
