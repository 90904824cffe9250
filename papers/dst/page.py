"""What `papers.dst` prints and writes: tables, figure, and a README.md whose every number is in the tables."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from streamscope.instruments.command import INTERVAL
from streamscope.instruments.command import show as print_rows
from streamscope.papers.comparison.losses import page_rows
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
from streamscope.papers.dst.measure import INITIAL_TOKENS, Settings
from streamscope.papers.dst.printed import (
    AREAS,
    BLIND,
    CARD,
    CONTROL,
    FROZEN,
    IND,
    PAPER_ALPHAS,
    PLACES,
    PRINTED_TWICE,
    STRAIGHT,
    STRAIGHT_FROM,
    TABLE4,
    TABLE4_PRESET,
    TABLE5,
    area,
    straightness,
)
from streamscope.papers.dst.units import UNITS


@dataclass(frozen=True, kw_only=True)
class DstReport(Report):
    """What the page tells of."""

    settings: Settings


def page(report: DstReport) -> str:
    """The page, in Markdown."""
    parts = [_head(report), _printed_twice(), _claims(report), _factors(report), _losses(report), _beginning(report),
             _streams(report), _layers(report), _amplification(report), _areas(report), commands(report)]  # fmt: skip
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(report: DstReport) -> str:
    conditions = report.runs[0].conditions
    have: dict[str, list[int]] = {}
    for run in report.runs:
        have.setdefault(run.arm, []).append(run.seed)
    runs = "; ".join(f"{preset} (seed {', '.join(map(str, seeds))})" for preset, seeds in have.items())
    one = [preset for preset, seeds in have.items() if len(seeds) == 1]
    first = report.tables["amplification"].iloc[0]
    lines = [
        *_reading(report),
        _doses(report),
        *_weaker(report),
        f"- Runs: {runs}." + (f" One seed only, so no interval over seeds: {', '.join(one)}." if one else ""),
        f"- Models: scale {conditions['scale']} ({shape(conditions)}), {conditions['steps']:,} steps on "
        f"`{report.runs[0].config['data']['data']}`. The paper's: 6 layers, 6 heads, width 516, grade-school text.",
        f"- Measured on {first['n']} validation documents, {first['tokens']:,} tokens; intervals of a run are over "
        "documents, of a preset over training seeds.",
        f"- Claims of the paper about these presets (those of streams once per reading): "
        f"{summary(report.tables['claims'])}",
        made_by(report.about),
        files_line(report.files),
    ]
    title = "# Streams taken away and attention sharpened: DST, Tables 4 and 5"
    return "\n\n".join([title, LEAD.format(CARD), "\n".join(lines), *pictures(report.files)])


def _reading(report: DstReport) -> list[str]:
    """First lines of the page: on what the verdict of Table 4 depends, and what it is in each reading and cell."""
    claims, cells = (report.tables[name] for name in ("claims", "factors"))
    about = list(dict.fromkeys(claims.loc[claims["quantity"].str.startswith("gap.zero"), "claim"]))
    lines = []
    for claim in [one for one in about if one.startswith(f"{TABLE4_PRESET} ")] or about:
        verdict = claims[claims["claim"] == claim].set_index("quantity")["direction"]
        said = []
        for where in reversed(PLACES):
            mine = cells[(cells["claim"] == claim) & (cells["quantity"] == f"gap.zero.{where}")]
            each = "; ".join(
                f"{r.cell}: the paper's sign in {r.runs} runs, {_share(r.difference)} of the loss"
                for r in mine.itertuples()
            )
            said.append(f"*{where}* {verdict[f'gap.zero.{where}']} ({each})")
        lines.append(
            f"- {claim.split(' ')[0]}: Table 4 is judged in each reading of where a stream is taken away, which the "
            "paper does not say, and only where the verdict is the same however the weights began and however long "
            f"they were trained. That the model loses more without x_t than without x_e is: {'; '.join(said)}."
        )
    return lines


def _share(x: float) -> str:
    """A share of the loss as signed percent."""
    return f"{100 * x:+.1f} %"


def _doses(report: DstReport) -> str:
    """How much the runs saw, and what they can do."""
    losses, vocabulary = report.tables["losses"]["loss"], report.runs[0].conditions["d_vocab"]
    ends = " to ".join(dict.fromkeys(f"{x:.2f}" for x in (losses.min(), losses.max())))
    return (
        f"- {dose(report.runs)[0].upper()}{dose(report.runs)[1:]}; the validation loss is then {ends} nats per token "
        f"(a uniform guess over {vocabulary:,} tokens: {np.log(vocabulary):.2f}). How a model without a stream fails "
        "after so few tokens need not be how one fails that was trained to the end."
    )


def _weaker(report: DstReport) -> list[str]:
    """How much weaker Kronecker maps start by each rule of initialization, at the page's scale and at the paper's."""
    found = report.tables.get("initialization")
    if found is None:
        return []
    texts = []
    for (init, name), rows in found.groupby(["init", "scale"], sort=False):
        ratios = rows.loc[rows["preset"] == TABLE4_PRESET, "ratio"]
        ends = " to ".join(dict.fromkeys(f"{x:.2g}" for x in (ratios.min(), ratios.max())))
        where = f"at the paper's width {rows['d_model'].iloc[0]}" if name == "paper" else f"at scale {name}"
        texts.append(f"{ends} {where} ({init})")
    return [
        f"- Before training, what layer 0's attention writes is smaller in {TABLE4_PRESET} than in {CONTROL} by a "
        f"factor of {', of '.join(texts)} (below): a Kronecker map sums over heads, a dense one over the width. Where "
        "the factor is large, part of what x_t and x_e carry may be how the maps began and how few steps followed."
    ]


def _printed_twice() -> str:
    return "## What the paper prints twice\n\n" + "\n".join(f"- {text}" for text in PRINTED_TWICE)


def _claims(report: DstReport) -> str:
    rows = [
        [r.claim, f"`{r.quantity}`", r.printed, r.where, *measured_cells(r), r.runs,
         number(r.p_holm, "p"), number(r.smallest), r.direction + _blind(r.quantity), r.alone, r.size]
        for r in report.tables["claims"].itertuples()
    ]  # fmt: skip
    text = (
        f"{rule('training seeds', 'no difference')} `runs`: how many runs have the paper's sign; with one seed it is "
        "all there is. Changes of the loss are shares of it; `gap.zero` is that under x_t → 0 minus "
        "that under x_e → 0, `gap.random` that under random words minus that under x_t → 0: the text says above 0, "
        "Table 4 below. The claims about streams are judged at both places, all rows in one family. "
        "16 % and 27 % are taken as rounded, 15.5 % to 27.5 %. "
        f"{_straight(report)}*Confounded* is a claim about one model where the "
        "paper's is in another mode, and one whose verdict is not the same in every cell of initialization and tokens, "
        "or that was not measured in several; it is no test and has no p."
    )
    columns = ("claim", "quantity", "printed", "source", "measured", "95 % over seeds", "runs", "p Holm", "smallest",
               "direction", "alone", "size")  # fmt: skip
    return f"## Claims of the paper\n\n{text}\n\n{table(columns, rows)}"


def _straight(report: DstReport) -> str:
    """What straight.… is, and what it is of the losses that the paper prints itself, where a claim is about it."""
    if not report.tables["claims"]["quantity"].str.startswith("straight.").any():
        return ""
    own = {name: f"{name}{FROZEN}" for name in (TABLE4_PRESET, IND)}
    said = ", ".join(
        f"{name} {' and '.join(f'{straightness(TABLE5[arm], axis=axis):.2f}' for axis in STRAIGHT)}"
        for name, arm in own.items()
    )
    return (
        "`straight.linear` and `straight.log2` are r² of the line through the loss over α and over log2 α; the paper "
        f"says of neither that it is meant, and the limit of {STRAIGHT_FROM} is ours: a curve straight over one axis "
        f"has {straightness(np.log2(PAPER_ALPHAS)):.2f} over the other. Of Table 5's losses they are {said}. "
    )


def _factors(report: DstReport) -> str:
    """What is measured of each model in every cell of its factors, cells beside each other."""
    cells, means = report.tables["factors"], report.tables["presets"].set_index(["quantity", "preset"])
    title = "## Initialization and tokens"
    several = cells.groupby("claim", sort=False)["preset"].transform("nunique") > 1
    if not several.any():
        only = dict.fromkeys(cells["cell"])
        return (
            f"{title}\n\nNo model here began in two ways or was measured after two amounts of text "
            f"({'; '.join(only)}). A claim about one model that would have a verdict here is therefore confounded with "
            "both: `--set init.weights=… --set init.embed=…` gives another beginning, RUN@STEP another dose."
        )
    parts = [
        f"{title}\n\nMean over seeds with its 95 % interval in every cell, shares of the loss (of `peak.16`: "
        "attention); behind it the verdict of each claim about it by its interval alone, not corrected "
        "(`factors.parquet`). A claim is judged where all cells have one verdict. A snapshot is of the same run, "
        "before its learning rate has come down."
    ]
    own = cells[several]
    own = own.assign(
        model=own["claim"].str.split(" ").str[0],
        alone=own["claim"].str.split(" ", n=1).str[1] + ": " + own["alone"],
    )
    for model, mine in own.groupby("model", sort=False):
        arms = mine.drop_duplicates("preset")
        alone = mine.groupby(["quantity", "preset"])["alone"].agg("; ".join)
        rows = [
            [f"`{q}`", *(_cell(means.loc[q, arm], alone.get((q, arm), "")) for arm in arms["preset"])]
            for q in dict.fromkeys(means.index.get_level_values("quantity"))
            if _by_cell(q)
        ]
        columns = ("quantity", *arms["cell"])
        parts.append(f"### {model}\n\n{table(columns, rows)}")
    return "\n\n".join(parts)


def _by_cell(quantity: str) -> bool:
    """Whether a quantity is shown by initialization and tokens: what Table 4 prints, and what claims are about."""
    stream = quantity.removeprefix("stream.").rpartition(".")[0]
    return stream in TABLE4 or quantity.startswith(("gap.", "straight.")) or quantity in ("degradation.16", "peak.16")


def _cell(one: Any, alone: str) -> str:
    """The mean of a cell with its interval, and the verdict by that interval alone."""
    if not one["n"]:
        return "undefined"
    ends = f" ({interval(one['ci_low'], one['ci_high'])})" if one["ci_low"] == one["ci_low"] else ""
    return f"{number(one['mean'])}{ends}" + (f", {alone}" if alone else "")


def _blind(quantity: str) -> str:
    """Said beside a verdict: both arms see no text."""
    return " (both models see no text)" if quantity == BLIND else ""


def _beginning(report: DstReport) -> str:
    found = report.tables.get("initialization")
    if found is None:
        return ""
    rows = [
        [r.preset, r.init, r.scale, r.d_model, r.seed, f"{r.std:.2e}", f"{r.ratio:.3g}"] for r in found.itertuples()
    ]
    text = (
        f"Standard deviation of what layer 0's attention writes, of freshly built models on {INITIAL_TOKENS[0]} × "
        f"{INITIAL_TOKENS[1]} random tokens (fewer in a shorter context); *weaker*: that of {CONTROL} over it. Weights "
        "of both begin by one rule; "
        "a Kronecker map sums over heads, a dense one over the width, so its sums are smaller."
    )
    columns = ("preset", "init", "scale", "width", "seed", "std", "weaker, ×")
    return f"## Before training\n\n{text}\n\n{table(columns, rows)}"


def _losses(report: DstReport) -> str:
    tables, control = report.tables, {"loss": CONTROL, "loss_frozen": f"{CONTROL}{FROZEN}"}
    titles = {"loss": "## Losses (Table 1)", "loss_frozen": "### Frozen token stream (Table 8)"}
    parts = [
        f"{title}\n\n{page_rows(tables[name], tables['losses'], control[name], 'paper')}"
        for name, title in titles.items()
        if name in tables
    ]
    if parts:
        return "\n\n".join(parts)
    rows = [
        [r.preset, r.seed, f"{r.parameters:,}", f"{r.loss:.4f}", f"{r.tokens:,}"]
        for r in report.tables["losses"].itertuples()
    ]
    text = f"At the end of training. With a run of {CONTROL} and another preset this is Table 1."
    return f"## Losses\n\n{text}\n\n{table(('preset', 'seed', 'parameters', 'loss, nats/token', 'tokens'), rows)}"


def _streams(report: DstReport) -> str:
    found = report.tables.get("streams")
    if found is None:
        return "## Streams (Table 4)\n\nNo run has a token and a context stream: there is nothing to take away."
    rows = []
    for place in PLACES:
        for r in found[found["where"] == place].itertuples():
            paper = TABLE4.get(r.definition)
            rows.append([
                r.preset, r.seed, r.definition, place, f"{r.baseline:.4f}", f"{r.loss:.4f}", _percent(r), r.draws or "",
                f"{paper[0]} ({paper[1]})" if paper else "",
            ])  # fmt: skip
    text = (
        "Change of the loss in percent of it, 95 % over documents (beside Table 4, where the baseline is 2.85). "
        "*everywhere*: nobody reads the stream; without x_t, or with random words for it, the model then sees no "
        "text. *head*: the final norm and the head alone read the change. Random words and other text are means over "
        "draws."
    )
    columns = ("preset", "seed", "ablation", "where", "baseline", "loss", "change, % (95 %)", "draws", "paper")
    return f"## Streams (Table 4)\n\n{text}\n\n{table(columns, rows)}"


def _percent(r: Any) -> str:
    """Change in percent with its interval."""
    return "undefined" if r.percent != r.percent else f"{r.percent:+.2f} ({r.percent_low:+.2f} … {r.percent_high:+.2f})"


def _layers(report: DstReport) -> str:
    """Layer by layer, mean over runs of a preset."""
    found = report.tables.get("streams")
    if found is None:
        return ""
    mine = found[found["layer"] >= 0]
    mean = mine.groupby(["preset", "definition", "reach", "layer"], sort=False)["percent"].mean().unstack("layer")
    rows = [
        [*key, *("undefined" if x != x else f"{x:+.1f}" for x in row)]
        for key, row in zip(mean.index, mean.to_numpy(), strict=True)
    ]
    text = (
        "Percent of the loss, mean over seeds. *layer*: that layer alone reads the change; *onwards*: the stream is "
        "changed where it enters the layer and stays so. Random words: one draw."
    )
    return f"### Layer by layer\n\n{text}\n\n" + table(("preset", "ablation", "reach", *(f"L{x}" for x in mean)), rows)


def _amplification(report: DstReport) -> str:
    found = report.tables["amplification"]
    rows = []
    for r in found.itertuples():
        paper = dict(zip((1.0, 2.0, 4.0, 8.0, 16.0), TABLE5.get(r.preset, ()), strict=False)).get(r.alpha)
        unchanged = "" if r.unchanged != r.unchanged else f"{r.unchanged:.3f}"
        rows.append([r.preset, r.seed, f"{r.alpha:g}", f"{r.loss:.4f}", "" if r.alpha == 1 else _percent(r),
                     f"{r.entropy:.3f}", unchanged, f"{paper:.2f}" if paper else ""])  # fmt: skip
    text = (
        "softmax(α · scores) in all heads. Degradation is 100 (loss(α) / loss(1) − 1), 95 % over documents; the "
        "paper's is 20 % dense, 16 % Kronecker, 27 % independent at α = 16, of frozen-token models: these are judged, "
        f"as PRESET{FROZEN}, and models of another mode stand beside them. *unchanged*: share "
        "of positions whose first key is the one at α = 1, after the first layer, where it is so by construction. "
        "Pictures of attention across α (Fig. 4): `python -m interventions.amplify`."
    )
    columns = ("preset", "seed", "α", "loss", "degradation, % (95 %)", "entropy, nats", "unchanged", "paper's loss")
    return f"## Amplification (Table 5, Fig. 2)\n\n{text}\n\n{table(columns, rows)}"


def _areas(report: DstReport) -> str:
    found, same = report.tables["areas"], tuple(sorted(report.settings.alphas)) == PAPER_ALPHAS
    rows = []
    for (kind, axis), some in found.groupby(["kind", "axis"], sort=False):
        cells = [
            f"{r.preset} seed {r.seed}: {r.area:.4g} ({r.ci_low:.4g} … {r.ci_high:.4g})" for r in some.itertuples()
        ]
        printed = "; ".join(f"{preset} {area(y, str(kind), str(axis)):.4g}" for preset, y in TABLE5.items())
        rows.append([kind, axis, "; ".join(cells), *([printed] if same else [])])
    said = "; ".join(f"{preset} {x:g}" for preset, x in AREAS.items())
    if not same:
        text = f"Over other α than the paper's, whose areas ({said}) are from 1 to 16: nothing to compare."
        return f"### Areas\n\n{text}\n\n" + table(("kind", "axis", "area (95 % over documents)"), rows)
    text = (
        f"The paper prints areas of {said}. In no reading do its own losses (last column) give them; its order, the "
        "Kronecker model first, is that of the areas over the loss at α = 1. Over α itself the "
        "losses as rounded leave open which of Kronecker and dense has the smaller raw area; over log α dense has it."
    )
    return f"### Areas\n\n{text}\n\n" + table(
        ("kind", "axis", "area (95 % over documents)", "of Table 5's losses"), rows
    )


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
    write_report(report, page, UNITS, figure, folder, static, html, settings=vars(report.settings))
