"""What `papers.pls` prints and writes: tables, figure, and a README.md whose every number is in the tables."""

from pathlib import Path
from typing import Any

import pandas as pd

from streamscope.instruments.command import INTERVAL
from streamscope.instruments.command import show as print_rows
from streamscope.papers.comparison.losses import page_rows
from streamscope.papers.comparison.markdown import number, table
from streamscope.papers.comparison.report import (
    LEAD,
    commands,
    dose,
    files_line,
    made_by,
    pictures,
    print_claims,
    rule,
    shape,
    undefined,
    write_report,
)
from streamscope.papers.comparison.verdicts import as_measured, summary
from streamscope.papers.pls.printed import CARD
from streamscope.papers.pls.report import PlsReport
from streamscope.papers.pls.runs import CONTROL, PRESETS, RUN
from streamscope.papers.pls.sections import ablation, depth, hydra, routing, steering, unedited, value
from streamscope.papers.pls.units import UNITS

LAYERS = {"last": "the last layer", "all": "all layers"}
READINGS = {
    "of its heads and of processing depth": ("named", "all"),
    "once more, of the heads that attention names in each model": ("found",),
}
"""What is counted together: a claim is in each once. Value: those of `heads`."""


def page(report: PlsReport) -> str:
    """The page, in Markdown."""

    parts = [_head(report), _claims(report), unedited(report), _losses(report), depth(report), ablation(report),
             routing(report), steering(report), hydra(report), _heads(report), undefined(report.tables["runs"]),
             commands(report)]  # fmt: skip
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(report: PlsReport) -> str:
    conditions = report.runs[0].conditions
    seeds = sorted({run.seed for run in report.runs})
    claims = report.tables["claims"]
    counts = {what: summary(claims[claims["heads"].isin(heads)], claims) for what, heads in READINGS.items()}
    one = " One pair only, so no interval over seeds." if len(seeds) == 1 else ""
    lines = [
        f"- {dose(report.runs)[0].upper()}{dose(report.runs)[1:]}. {_able(report.tables['competence'])}",
        f"- Runs: {RUN} and {CONTROL}, seeds {', '.join(map(str, seeds))}; the two of a seed see the same windows in "
        f"the same order and begin alike.{one}",
        f"- Models: scale {conditions['scale']} ({shape(conditions)}), {conditions['steps']:,} steps on "
        f"`{report.runs[0].config['data']['data']}`. The paper's: 6 layers, 6 heads, width 384, grade-school text.",
        f"- Cases: {'; '.join(report.left_out.values())}. The paper's 8, 16 and 50 are not published; these are ours.",
        *(f"- Claims of the paper, {what}: {text}" for what, text in counts.items()),
        made_by(report.about),
        files_line(report.files),
    ]
    title = "# Per-layer supervision against none: PLS and C2, over training seeds"
    return "\n\n".join([title, LEAD.format(CARD), "\n".join(lines), *pictures(report.files)])


def _able(able: pd.DataFrame) -> str:
    """Which tasks the models can do; the rest cannot tell of their heads."""
    said = []
    for task, one in able.groupby("task", sort=False):
        of = one.set_index("preset")
        p = " and ".join(f"{100 * of.loc[preset, 'probability']:.2g} %" for preset in PRESETS)
        odds = " and ".join(f"{of.loc[preset, 'log_odds']:+.2g}" for preset in PRESETS)
        rare = not of.loc[list(PRESETS), "cannot_log_odds"].any() and of["cannot"].any()
        verdict = "only in log-odds" if rare else "no" if of["cannot"].any() else "yes"
        said.append(f"{task}: {verdict} (P(answer) {p}, log-odds {odds} nats)")
    return f"Can the models ({' and '.join(PRESETS)}) do the tasks? {'; '.join(said)}."


def _claims(report: PlsReport) -> str:

    rows = []
    for r in report.tables["claims"].itertuples():
        measured, low, high = (value(x, r.unit) for x in as_measured(r.claim, r.difference, r.ci_low, r.ci_high))
        signs = f", one sign in {r.alike}" if r.alike else ""
        rows.append([r.heads, r.claim, f"`{r.quantity}`", r.printed, r.where, measured + signs,
                     f"{low} … {high}" if r.ci_low == r.ci_low else "undefined", number(r.p_holm, "p"),
                     value(r.smallest, r.unit).lstrip("+"), r.direction, r.alone, r.size])  # fmt: skip
    text = (
        f"{rule('pairs of seeds', 'no difference (1 of a factor, 0 of a difference or limit)')} A factor is the "
        "geometric mean of |PLS| / |C2| over the pairs whose sizes are more than rounding, and says in how many both "
        "have one sign. The 0.9 of *monotonicity* is ours. *named* are the paper's heads L5.H4+L5.H5 and L5.H2+L5.H3, "
        f"whose numbers mean nothing in another model; *found* are those of {LAYERS[report.settings.layers]} that "
        "attention names in each model (`probes.head_groups`), as the paper found its own, judged where their roles "
        "are above shuffled ones. Both are one family with one correction, and the two readings are counted apart: no "
        "claim counts twice. Depth "
        "is judged here alone, on as many tokens as in the paper. P(answer) in percentage points. The paper calls "
        "6.32 % against 0.63 % a ratio of 10 in variance; it is that of standard deviations."
    )
    columns = ("heads", "claim", "quantity", "printed", "source", "measured", "95 % over pairs", "p Holm", "smallest",
               "direction", "alone", "size")  # fmt: skip
    return f"## Claims of the paper\n\n{text}\n\n{table(columns, rows)}"


def _losses(report: PlsReport) -> str:
    return f"## Losses\n\n{page_rows(report.tables['loss'], report.tables['losses'], CONTROL, 'paper')}"


def _heads(report: PlsReport) -> str:
    heads = report.tables["heads"]
    groups = list(dict.fromkeys(heads["group"]))
    cells = heads.set_index(["preset", "seed", "group"])["heads"]
    rows = [[run.preset, run.seed, *(cells[run.preset, run.seed, g] for g in groups)] for run in report.runs]
    text = f"## Heads\n\n{table(('preset', 'seed', *groups), rows)}"
    if not any(g.startswith("found-") for g in groups):
        return text
    roles = report.tables.get("roles")
    if roles is None:
        return (
            f"{text}\n\nThe found heads of these runs are the best assignment of the last layer's heads to three "
            "roles, which gives every head one; they were not held against shuffled roles, so no claim about them is "
            "judged. On new runs this command holds them against shuffled roles."
        )
    rows = [
        [r.preset, r.seed, r.group, r.head, f"{r.held_out:+.3f}", f"{r.shuffled_95:+.3f}", f"{r.p_shuffled_holm:.3f}",
         "yes" if r.above_shuffled else "no such head"]
        for r in roles.itertuples()
    ]  # fmt: skip
    how = (
        f"Roles of the found heads, looked for in {LAYERS[report.settings.layers]}: excess of attention on the words "
        "of the role in cases that did not choose the head, beside 95 % of shuffles of the words' roles "
        "(`probes.head_groups`); p is corrected over the heads of a run."
    )
    columns = ("preset", "seed", "role", "head", "excess", "95 % of shuffles", "p Holm", "has its role")
    return f"{text}\n\n{how}\n\n{table(columns, rows)}"


# ---- screen and disk ---------------------------------------------------------------------------


def show(report: PlsReport) -> None:
    """The comparison of effects, and the claims with their verdicts."""

    compared = report.tables["comparisons"]
    effects = compared[compared["family"].isin(["effect", "spread"]) & ~compared["quantity"].str.contains("_odds")]
    columns = ("quantity", "kind", "value", INTERVAL, "p", "p_holm", "n", "paper")
    print_rows(effects, f"{RUN} over {CONTROL}, pairs of training seeds", columns)
    shown = ("heads", "claim", "quantity", "printed", "unit", "difference", INTERVAL, "direction")
    print_claims(report.tables["claims"], "claims of the paper, intervals over pairs of seeds", shown, 5)


def write(report: PlsReport, figure: Any, folder: Path, static: str, html: bool) -> None:
    """Tables, figures and README.md."""
    write_report(
        report, page, UNITS, figure, folder, static, html, settings=vars(report.settings), cases=report.left_out
    )
