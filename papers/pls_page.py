"""What `papers.pls` prints and writes: tables, figure, and a README.md whose every number is in the tables."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from papers.losses import page_rows
from papers.markdown import number, table
from papers.pls_measure import Settings
from papers.pls_printed import CARD
from papers.pls_runs import CONTROL, RUN
from papers.runs import Run
from papers.verdicts import verdicts

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Report:
    """What the page tells of."""

    runs: Sequence[Run]
    tables: "dict[str, pd.DataFrame]"
    settings: Settings
    left_out: dict[str, str]
    """Task -> its cases, and what was left out."""
    about: dict[str, Any]
    files: Sequence[str]


def page(report: Report) -> str:
    """The page, in Markdown."""
    from papers.pls_sections import ablation, depth, hydra, routing, steering

    parts = [_head(report), _claims(report), _losses(report), ablation(report), routing(report), steering(report),
             hydra(report), depth(report), _heads(report), _undefined(report), _commands(report)]  # fmt: skip
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(report: Report) -> str:
    about, conditions = report.about, report.runs[0].conditions
    seeds = sorted({run.seed for run in report.runs})
    shape = ", ".join(f"{name} {conditions[name]}" for name in ("n_layers", "n_heads", "d_model", "d_vocab", "n_ctx"))
    counts = ", ".join(f"{name}: {count}" for name, count in verdicts(report.tables["claims"]).items())
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    one = " One pair only, so no interval over seeds." if len(seeds) == 1 else ""
    lines = [
        f"- Runs: {RUN} and {CONTROL}, seeds {', '.join(map(str, seeds))}; the two of a seed see the same windows in "
        f"the same order and begin alike.{one}",
        f"- Models: scale {conditions['scale']} ({shape}), {conditions['steps']:,} steps on "
        f"`{report.runs[0].config['data']['data']}`. The paper's: 6 layers, 6 heads, width 384, grade-school text.",
        f"- Cases: {'; '.join(report.left_out.values())}. The paper's 8, 16 and 50 are not published; these are ours.",
        f"- Claims of the paper: {counts}.",
        f"- Made by `{about['argv']}` at commit {about['commit'][:12]}{'+changes' if '+' in about['commit'] else ''}, "
        f"{about['started']}, {about['device']}; {versions}.",
        "- Files: " + ", ".join(f"`{name}`" for name in report.files) + ".",
    ]
    title = "# Per-layer supervision against none: PLS and C2, over training seeds"
    lead = f"{CARD}, measured on models trained here. This page is generated; every number is in the tables beside it."
    picture = [f"![comparison]({name})" for name in report.files if name in ("figure.svg", "figure.png")]
    return "\n\n".join([title, lead, "\n".join(lines), *picture])


def _claims(report: Report) -> str:
    from papers.pls_sections import value

    rows = []
    for r in report.tables["claims"].itertuples():
        measured, low, high = (value(x, r.unit) for x in (r.difference, r.ci_low, r.ci_high))
        rows.append([r.heads, r.claim, f"`{r.quantity}`", r.printed, r.where, measured,
                     f"{low} … {high}" if r.ci_low == r.ci_low else "undefined", number(r.p_holm), r.direction,
                     r.size])  # fmt: skip
    text = (
        "A claim *holds* when the 95 % interval over pairs of seeds lies on the side that the paper says, is "
        "*opposite* when it lies on the other, and *not resolved* when it holds no difference (1 of a factor, 0 of a "
        "difference or limit). A factor is the geometric mean of |PLS| / |C2| over pairs; of a limit, `measured` is "
        "how far the model lies on the claimed side. *named* are the paper's heads L5.H4+L5.H5 and L5.H2+L5.H3, whose "
        "numbers mean nothing in another model; *found* are those of the last layer that attention names in each model "
        "(`probes.head_groups`), as the paper found its own. P(answer) in percentage points. Intervals are not "
        "corrected for the number of claims, p is (Holm over this table). The paper calls 6.32 % against 0.63 % a "
        "ratio of 10 in variance; it is that of standard deviations."
    )
    columns = ("heads", "claim", "quantity", "printed", "source", "measured", "95 % over pairs", "p Holm", "direction",
               "size")  # fmt: skip
    return f"## Claims of the paper\n\n{text}\n\n{table(columns, rows)}"


def _losses(report: Report) -> str:
    return f"## Losses\n\n{page_rows(report.tables['loss'], report.tables['losses'], CONTROL, 'paper')}"


def _heads(report: Report) -> str:
    heads = report.tables["heads"]
    groups = list(dict.fromkeys(heads["group"]))
    cells = heads.set_index(["preset", "seed", "group"])["heads"]
    rows = [[run.preset, run.seed, *(cells[run.preset, run.seed, g] for g in groups)] for run in report.runs]
    return f"## Heads\n\n{table(('preset', 'seed', *groups), rows)}"


def _undefined(report: Report) -> str:
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


def _commands(report: Report) -> str:
    lines = [f"{run.command}   # commit {str(run.manifest.get('commit', 'unknown'))[:12]}" for run in report.runs]
    return "## Commands\n\n```\n" + "\n".join([*lines, report.about["argv"]]) + "\n```"


# ---- screen and disk ---------------------------------------------------------------------------


def show(report: Report) -> None:
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


def write(report: Report, figure: Any, folder: Path, static: str, html: bool) -> None:
    """Tables, figures and README.md, each whole or not at all; README.md last, when all it names is there."""
    from papers.figures import write_figures
    from papers.pls_units import UNITS
    from probes.tables import write_atomically, write_table

    about = {**report.about, "settings": vars(report.settings), "cases": report.left_out}
    files = []
    for name, rows in report.tables.items():
        if len(rows):
            units = {c: u for c, u in UNITS.get(name, {}).items() if c in rows}
            write_table(rows, folder / f"{name}.parquet", units=units, about=about)
            files.append(f"{name}.parquet")
    said = write_figures(figure, folder, static, html)
    files += [Path(line.split(" ", 1)[1]).name for line in said if line.startswith("figure ")]
    text = page(replace(report, files=files))
    write_atomically(folder / "README.md", lambda part: part.write_text(text, encoding="utf-8"))
    print("\n".join([*said, f"tables and {folder / 'README.md'}"]))
