"""What `papers.modes` prints and writes: tables, figure, and a README.md whose every number is in the tables."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamscope.instruments.command import INTERVAL
from streamscope.instruments.command import show as print_rows
from streamscope.papers.comparison.markdown import interval, number, table
from streamscope.papers.comparison.report import (
    LEAD,
    Report,
    commands,
    dose,
    files_line,
    made_by,
    pictures,
    print_claims,
    rule,
    shape,
    write_report,
)
from streamscope.papers.comparison.verdicts import measured_cells, summary
from streamscope.papers.modes.measure import Settings
from streamscope.papers.modes.printed import CARD, PRINTED
from streamscope.papers.pls.depth import UNITS as DEPTH_UNITS
from streamscope.papers.pls.runs import CONTROL, PRESETS, RUN
from streamscope.papers.pls.units import UNITS as PLS_UNITS

HOW = """Tokens are those of the runs' validation documents, each in its whole context. `hdbscan` is App. C.4:
sorted top-5 features, 30 principal components, HDBSCAN with 10 and 1; `kmeans` is §4.1: 163 features, ten clusters. Raw
activations are [x_t; x_e] after the last layer, by the same pipeline. `ari` takes all tokens, noise as one cluster.
Where few tokens are in clusters of both it is an agreement on what is noise, hence `ari_clustered`: the tokens that are
in a cluster on both sides. `identity` is the AMI of the clusters of features with the token ids, `identity_raw` that of
the raw ones, on the same tokens. σ(k*) within clusters is 0 where every token of a cluster settles at one layer; most
columns are zero but at the layer k*, so this is how the features are built. PLS reads layers that were trained
to be read; a layer's prediction in C2 is the logit lens. Depth is judged on the page of `papers.pls`."""
UNITS: dict[str, dict[str, str]] = {
    **{name: PLS_UNITS[name] for name in ("runs", "presets", "comparisons", "claims")},
    "depth": DEPTH_UNITS,
    "clusters": {"n": "tokens", "share": "share of all tokens", "k_star_mean": "layers", "k_star_sd": "layers"},
    "agreement": {"value": "1: the same clusters, 0: as by chance", "n": "tokens", "documents": "documents"},
}


@dataclass(frozen=True, kw_only=True)
class ModesReport(Report):
    """What the page tells of."""

    settings: Settings


def page(report: ModesReport) -> str:
    """The page, in Markdown."""
    parts = [_head(report), _claims(report), _presets(report), _runs(report), commands(report)]
    return "\n\n".join(parts) + "\n"


def _head(report: ModesReport) -> str:
    conditions, settings = report.runs[0].conditions, report.settings
    seeds = sorted({run.seed for run in report.runs})
    one = " One pair only, so no interval over seeds." if len(seeds) == 1 else ""
    n = report.tables["runs"].set_index(["preset", "seed", "quantity"])["n"]
    tokens = sorted({int(n[run.preset, run.seed, "hdbscan.coverage"]) for run in report.runs})
    few = f" (asked: {settings.tokens:,})" if tokens != [settings.tokens] else ""
    lines = [
        f"- {dose(report.runs)[0].upper()}{dose(report.runs)[1:]}. No task is asked of the models here: these are "
        "descriptions of their features.",
        _alike(report),
        f"- Runs: {RUN} and {CONTROL}, seeds {', '.join(map(str, seeds))}; the two of a seed see the same windows in "
        f"the same order and begin alike.{one}",
        f"- Models: scale {conditions['scale']} ({shape(conditions)}), {conditions['steps']:,} steps on "
        f"`{report.runs[0].config['data']['data']}`. The paper's: 6 layers, 6 heads, width 384, grade-school text.",
        f"- Tokens: {', '.join(f'{t:,}' for t in tokens)} for HDBSCAN{few}, {settings.kmeans_tokens:,} for k-means, "
        "of validation documents. The paper's: 50,453 and 10,000.",
        f"- Claims of the paper: {summary(report.tables['claims'])}",
        made_by(report.about),
        files_line(report.files),
    ]
    title = "# Computational modes with and without per-layer supervision, over training seeds"
    return "\n\n".join([title, LEAD.format(CARD), "\n".join(lines), *pictures(report.files), HOW])


def _alike(report: ModesReport) -> str:
    """Whether the control clusters as the paper prints it of its supervised model, too."""
    mean = report.tables["presets"].set_index(["quantity", "preset"])
    compared = report.tables["comparisons"].set_index("quantity")
    names = [one.quantity for one in PRINTED if one.quantity.startswith("hdbscan.")]
    cells: list[str] = []
    nearer: list[str] = []
    apart: list[str] = []
    for name in names:
        ours, control = (mean.loc[(name, preset), "mean"] for preset in PRESETS)
        paper, low, high = mean.loc[(name, RUN), "paper"], compared.loc[name, "ci_low"], compared.loc[name, "ci_high"]
        label = name.removeprefix("hdbscan.")
        nearer += [label] if abs(control - paper) < abs(ours - paper) else []
        apart += [label] if low > 0 or high < 0 else []
        two = [f"{x:,.0f}" if x >= 10 else number(x) for x in (ours, control)]
        cells.append(f"{label} {two[0]} and {two[1]} ({mean.loc[(name, RUN), 'printed']})")
    return (
        f"- The paper prints clusters of the supervised model alone and claims no difference to {CONTROL} in these "
        f"numbers, so none is judged. {RUN} and {CONTROL} (printed): {', '.join(cells)}. {CONTROL} is the nearer to "
        f"the paper in {', '.join(nearer) or 'none'}; the interval of the difference, uncorrected, lies on one side of "
        f"0 in {', '.join(apart) or 'none'}. Where {CONTROL} has much the same number, having it is no sign of "
        "supervision."
    )


def _claims(report: ModesReport) -> str:
    mean = report.tables["presets"].set_index(["quantity", "preset"])["mean"]
    rows = [
        [r.claim, f"`{r.quantity}`", r.printed, r.where, *measured_cells(r),
         number(r.p_holm, "p"), number(r.smallest), r.direction, r.alone,
         " / ".join(number(mean[r.quantity, preset]) for preset in PRESETS)]
        for r in report.tables["claims"].itertuples()
    ]  # fmt: skip
    text = (
        f"{rule('pairs of seeds (of a limit: over seeds)', '0 or the limit')} 0.1 for near zero is ours. "
        "`identity_gap` above 0 says that raw clusters are more about token identity than those of features. The "
        f"last column has the means of both models: where {CONTROL} is on the same side, the claim is none about "
        "supervision."
    )
    columns = ("claim", "quantity", "printed", "source", "measured", "95 % over seeds", "p Holm", "smallest",
               "direction", "alone", f"{RUN} / {CONTROL}")  # fmt: skip
    return f"## Claims of the paper\n\n{text}\n\n{table(columns, rows)}"


def _presets(report: ModesReport) -> str:
    """Both models and their difference, a row per quantity."""
    mean = report.tables["presets"].set_index(["quantity", "preset"])
    rows = []
    for r in report.tables["comparisons"].itertuples():
        two = [mean.loc[r.quantity, preset] for preset in PRESETS]
        cells = [f"{number(one['mean'])} ({interval(one['ci_low'], one['ci_high'])})" for one in two]
        paper = " / ".join(one["printed"] or "–" for one in two) if any(one["printed"] for one in two) else ""
        rows.append([f"`{r.quantity}`", two[0]["unit"], *cells, number(r.value), interval(r.ci_low, r.ci_high), paper])
    columns = ("quantity", "unit", RUN, CONTROL, f"{RUN} − {CONTROL}", "95 % over pairs", "paper's")
    text = f"Means over seeds with 95 % intervals; differences over pairs of a seed. The paper's: {RUN} / {CONTROL}."
    return f"## Both models\n\n{text}\n\n{table(columns, rows)}"


def _runs(report: ModesReport) -> str:
    quantities = report.tables["runs"].set_index(["quantity", "preset", "seed"])
    names = list(dict.fromkeys(report.tables["runs"]["quantity"]))
    rows = []
    for name in names:
        cells = []
        for run in report.runs:
            one = quantities.loc[name, run.preset, run.seed]
            has = one["ci_low"] == one["ci_low"]
            cells.append(number(one["value"]) + (f" ({interval(one['ci_low'], one['ci_high'])})" if has else ""))
        rows.append([f"`{name}`", *cells])
    columns = ("quantity", *(run.name for run in report.runs))
    return f"## By run\n\nIn brackets: 95 % over documents.\n\n{table(columns, rows)}"


# ---- screen and disk ---------------------------------------------------------------------------


def show(report: ModesReport) -> None:
    """Both models, and the claims with their verdicts."""

    columns = ("quantity", "preset", "mean", INTERVAL, "printed", "n")
    print_rows(report.tables["presets"], "modes, means over seeds", columns)
    shown = ("claim", "quantity", "printed", "difference", INTERVAL, "direction")
    print_claims(report.tables["claims"], "claims of the paper, intervals over seeds", shown)


def write(report: ModesReport, figure: Any, folder: Path, static: str, html: bool) -> None:
    """Tables, figures and README.md."""
    write_report(report, page, UNITS, figure, folder, static, html, settings=vars(report.settings))
