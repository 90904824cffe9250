"""The README.md of a comparison: every number in it comes from the tables beside it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from streamscope.papers.comparison.markdown import interval, number, table
from streamscope.papers.comparison.report import (
    LEAD,
    Report,
    dose,
    files_line,
    made_by,
    pictures,
    rule,
    shape,
    undefined,
    write_report,
)
from streamscope.papers.comparison.rows import ONE_PER_RUN
from streamscope.papers.comparison.verdicts import CANNOT, measured_cells, summary
from streamscope.papers.lfa.printed import CARD, SETUP
from streamscope.papers.lfa.rows import DOMAINS, HARD, Settings
from streamscope.papers.lfa.runs import CONTROL, Arms, in_order
from streamscope.papers.lfa.seeds import EXPLORED, PAIRED, WELCH, contrast, seeds_by_preset
from streamscope.papers.lfa.units import UNITS
from streamscope.probes.pds import FIXED

MAIN = (
    "parameters", "loss", "pds.max", "pds.max.L5", "pds.mean", "pds.over", "pds.over.late", "pds.over.reference", "sps",
    "coreference.keys.top1", "coreference.keys.minus_recency", "coreference.keys.best", "coreference.keys.over30",
    "coreference.keys.best_layer", "attention.best", "attention.tenth",
    "stability.keys.jaccard.coreference", "stability.keys.over_total.coreference", "stability.keys.jaccard.competing",
    "coreference.candidates.top1", "coreference.candidates.minus_recency", "coreference.candidates.best",
    "coreference.candidates.over30", "stability.candidates.jaccard.coreference",
    "stability.candidates.over_total.coreference", "stability.candidates.jaccard.competing",
    "induction.max",
)  # fmt: skip
"""Quantities of the first table and of the comparison; the parquet files have all."""
SUITES = ("prompts", "coreference")


@dataclass(frozen=True, kw_only=True)
class LfaReport(Report):
    """What the page tells of."""

    settings: Settings
    documents: dict[str, Any]


def page(report: LfaReport) -> str:
    """The page, in Markdown."""
    parts = [
        _head(report), _runs(report), _architectures(report), losses_by_part(report.tables["runs"]),
        _comparisons(report), _suppression(report), _claims(report),
        f"{undefined(report.tables['runs'])}\n\nA quantity of one run without an interval is {ONE_PER_RUN}.",
    ]  # fmt: skip
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(report: LfaReport) -> str:
    """What was run and how much of it, what the models cannot do yet, which claims are not judged, and the counts."""
    seeds = seeds_by_preset(report.tables["runs"])
    have = ", ".join(f"{p} (seed {', '.join(map(str, s))})" for p, s in seeds.items() if s)
    absent = [p for p, s in seeds.items() if not s]
    one = [p for p, s in seeds.items() if len(s) == 1]
    conditions = report.runs[0].conditions
    data = report.runs[0].config["data"]
    own = "the runs' own validation documents"
    where = own if report.documents["own"] else "not the documents the runs were validated on"
    lines = [
        "# The four architectures of LFA, over training seeds",
        LEAD.format(CARD),
        f"- Runs: {have}; {dose(report.runs)} ({conditions['steps']:,} steps on `{data['data']}`)."
        + (f" No run of {', '.join(absent)}." if absent else "")
        + (f" One seed only, so no interval: {', '.join(one)}." if one else ""),
        f"- {_copying(report)}",
        *(f"- {line}" for line in _not_judged(report)),
        f"- Claims of the paper, {len(report.tables['claims'])} in all: {summary(report.tables['claims'])}",
        f"- Models: scale {conditions['scale']} ({shape(conditions)}). The paper's: \u201c{SETUP}\u201d",
        f"- Loss: {report.documents['documents']:,} documents ({where}), each cut to the context, "
        f"{report.documents['cut']} of them longer.",
        made_by(report.about),
        files_line(report.files),
    ]  # fmt: skip
    return "\n\n".join([lines[0], lines[1], "\n".join(lines[2:]), *pictures(report.files)])


def _copying(report: LfaReport) -> str:
    """Which models copy: what is said of where heads look depends on it (`papers.lfa.competence`)."""
    able, found = report.tables["competence"], report.tables["runs"]
    induction = found[found["quantity"] == "induction.max"]
    even = found.loc[found["quantity"] == "induction.even", "value"].mean()
    scale = f"the largest induction score of any head is {induction['value'].max():.3f}, even attention has {even:.3f}"
    can, cannot = able.loc[able["cannot"] == "", "preset"], able.loc[able["cannot"] != "", "cannot"]
    if cannot.empty:
        return f"All models copy the noun that is meant ({scale})."
    who = f"Of the models {', '.join(can)} copy" if len(can) else "No model here is shown to copy"
    return (
        f"{who} ({'; '.join(cannot)}; {scale}). What does not look back for words cannot show how an architecture does "
        "so: claims about where its heads look are not judged, and their numbers are described."
    )


def _not_judged(report: LfaReport) -> list[str]:
    """The claims that are not judged, by reason, and how the confounded ones can be."""
    found = report.tables["claims"]
    lines = []
    kinds = {
        CANNOT: "their arms are not shown to copy",
        "withdrawn": "; judged when it is measured again",
        "confounded": "",
    }
    for kind, rest in kinds.items():
        mine = found[found["direction"].str.startswith(f"{kind}: ")]
        if mine.empty:
            continue
        each = dict.fromkeys(text.removeprefix(f"{kind}: ") for text in mine["direction"])
        why = rest if kind == CANNOT else "; ".join(each) + rest
        named = [
            f"{claim} in " + ", ".join(f"`{quantity}`" for quantity in rows["quantity"])
            for claim, rows in mine.groupby("claim", sort=False)
        ]
        how = {CANNOT: "Not judged", "withdrawn": "Withdrawn"}.get(kind, "Withdrawn as confounded")
        lines.append(f"{how}, {len(mine)} claim{'s' * (len(mine) > 1)} ({why}): {'; '.join(named)}.")
    if (found["direction"].str.startswith("confounded: ")).any():
        control = f"python -m models.train {CONTROL} --set positions=rope --set norm=channel"
        lines.append(
            f"Whether the architecture or the positions and the norm make these differences, a {CONTROL} with RoPE and "
            f"CLN would say: `{control}`, trained as the other runs; given beside them it is the control."
        )
    return lines


def _runs(report: LfaReport) -> str:
    rows = []
    quantities = report.tables["runs"].set_index(["preset", "seed", "quantity"])
    for run in report.runs:
        loss, size = (quantities.loc[run.arm, run.seed, q] for q in ("loss", "parameters"))
        most = quantities.loc[run.arm, run.seed, "pds.max"]
        commit = str(run.manifest.get("commit", "unknown"))
        rows.append([
            run.arm, run.seed, number(size["value"], "parameters"), f"{loss['value']:.4f}",
            f"{loss['ci_low']:.4f} … {loss['ci_high']:.4f}", int(loss["n"]), f"{most['value']:.3f} {most['detail']}",
            f"{run.manifest.get('wall_seconds', float('nan')) / 60:.0f}", commit[:12],
        ])  # fmt: skip
    columns = ("preset", "seed", "parameters", "loss, nats/token", "95 % over documents", "documents", "largest PDS",
               "training, min", "trained at commit")  # fmt: skip
    commands = "\n".join(run.command for run in report.runs)
    return f"## Runs\n\n{table(columns, rows)}\n\n```\n{commands}\n{report.about['argv']}\n```"


def _architectures(report: LfaReport) -> str:
    found = report.tables["architectures"].set_index(["quantity", "preset"])
    presets = in_order(r.arm for r in report.runs)
    rows = []
    for quantity in (q for q in MAIN if q in found.index.get_level_values(0)):
        cells = []
        for preset in presets:
            one = found.loc[quantity, preset]
            text = number(one["mean"], one["unit"])
            if one["ci_low"] == one["ci_low"]:
                text += f" ({interval(one['ci_low'], one['ci_high'], one['unit'])})"
            if one["n"] != len([r for r in report.runs if r.arm == preset]):
                text += f", {one['n']} seeds"
            cells.append(text + (f"; paper {one['printed']}" if one["printed"] else ""))
        rows.append([f"`{quantity}`", found.loc[quantity].iloc[0]["unit"], *cells])
    suites = report.tables["runs"][report.tables["runs"]["family"] == "suites"]
    rules = suites.groupby("quantity", sort=False)["value"].mean()
    named = {p: {n.removeprefix(f"{p}."): v for n, v in rules.items() if n.startswith(p)} for p in SUITES}
    beside = ", ".join(f"{name} {value:.3f}" for name, value in named["coreference"].items())
    prompts = ", ".join(f"{name} {value:.0f}" for name, value in named["prompts"].items())
    chance = {domain: named["coreference"][f"{domain}.chance"] for domain in DOMAINS}
    text = (
        "Mean over seeds with its 95 % t interval (units are seeds), beside what the paper prints. `top1` is the best "
        "head of one half of the cases scored on the other half; `best` is chosen and scored on all cases, as in the "
        "paper, and so partly luck. Top-1 and stability are over all keys, as in the paper's Eq. 5 and 6; among the "
        "candidates alone, which stand below, a head that looks at neither is right in about half of the cases.\n\n"
        "The 4.8 to 13.1 % of three Std-T heads (Table 3) cannot be shares among the candidates, where chance is "
        f"{chance['candidates']:.3f}, unless those heads shun the antecedent; over all keys chance is "
        f"{chance['keys']:.3f}.\n\n"
        f"Rules without meaning, on the same cases: {beside}. Prompts read: {prompts}. `induction.max` is the largest "
        "induction score on repeated random tokens."
    )
    return f"## Architectures\n\n{text}\n\n{table(('quantity', 'unit', *presets), rows)}"


def losses_by_part(quantities: pd.DataFrame) -> str:
    """The section that splits what turns the order of losses round; "" without std-t and a std-t of other parts.

    Every arm against every arm of std-t: along a row only positions and norm of what it is compared with change, down a
    column only the arm.
    """
    arms = in_order(quantities["preset"])
    controls = [arm for arm in arms if arm.split("+")[0] == CONTROL]
    if CONTROL not in controls or len(controls) < 2:
        return ""
    rows = []
    for arm in arms:
        cells = []
        for control in controls:
            found = contrast(quantities, "loss", arm, control)
            ends = f" ({interval(found.ci_low, found.ci_high, 'nats/token')})" if found.ci_low == found.ci_low else ""
            cells.append("" if arm == control else f"{found.difference:+.4f}{ends}")
        rows.append([arm, *cells])
    text = (
        f"Loss of the arm less that of each {CONTROL}, nats per token, 95 % over training seeds, not corrected. Where "
        f"a sign changes along a row, positions or norm of {CONTROL} make it, and not the architecture; the rows of "
        f"{CONTROL} say which of the two."
    )
    return f"## Losses by positions and norm\n\n{text}\n\n{table(('loss of', *controls), rows)}"


def _comparisons(report: LfaReport) -> str:
    found = report.tables["comparisons"]
    if found.empty:
        return f"## Against {CONTROL}\n\nNo other preset than {CONTROL}: nothing to compare."
    mine = found[found["quantity"].isin(MAIN)]
    rows = [
        [f"`{r.quantity}`", r.preset, r.control, number(r.difference, r.unit),
         interval(r.ci_low, r.ci_high, r.unit), number(r.p, "p"),
         "" if r.verdict == EXPLORED else number(r.p_holm, "p"), number(r.d), r.seeds, r.verdict.split(": ")[0]]
        for r in mine.itertuples()
    ]  # fmt: skip
    columns = ("quantity", "preset", "control", "difference", "95 %", "p", "p Holm", "d", "seeds", "as a claim")
    open_ = found[(found["verdict"] == EXPLORED) & found["p"].notna()]
    apart = int(((open_["ci_low"] > 0) | (open_["ci_high"] < 0)).sum())
    tests = " and ".join(t for t in (PAIRED, WELCH) if (found["test"] == t).any())
    text = (
        f"Difference to the control over training seeds, {tests}; d is Cohen's, pooled over seeds. A contrast that is "
        "a claim of the paper has the p, the corrected p and the verdict of the claim (below; undefined where it is "
        "not judged). All others are exploratory: their p is not corrected, they are described and not tested. In "
        f"`comparisons.parquet` there are {len(open_)} such intervals, many of them of the same measurements; {apart} "
        f"lie on one side of 0, and {len(open_) / 20:.0f} would by chance alone if nothing differed. "
        + _parts(found, report)
    )
    return f"## Against {CONTROL}\n\n{text}\n\n{table(columns, rows)}"


def _parts(found: Any, report: LfaReport) -> str:
    """In what the arms of the table differ besides their architecture."""
    arms, pairs = Arms(report.runs), found.drop_duplicates(["preset", "control"])
    mixed = [text for r in pairs.itertuples() if (text := arms.confounded(r.control, r.preset))]
    return f"Not of the architecture alone: {'; '.join(mixed)}." if mixed else ""


def _suppression(report: LfaReport) -> str:
    found = report.tables["architectures"]
    found = found[found["quantity"].str.startswith("suppress.") & found["preset"].isin([r.arm for r in report.runs])]
    controls, rows = report.tables["controls"], []
    each = found.set_index(["quantity", "preset"])
    for quantity in [q for q in found["quantity"].unique() if len(q.split(".")) == 3]:
        _, selection, measure = quantity.split(".")
        for preset in dict.fromkeys(found["preset"]):
            one, above, d, d_z = (each.loc[quantity + part, preset] for part in ("", ".above_random", ".d", ".d_z"))
            same = (controls[["preset", "selection", "measure"]] == [preset, selection, measure]).all(axis=1)
            beside = [number(controls.loc[same, name].mean()) for name in ("bottom", "random")]
            rows.append([
                selection, measure, preset, number(one["mean"]), interval(one["ci_low"], one["ci_high"]), *beside,
                interval(above["ci_low"], above["ci_high"]), number(d["mean"]), number(d_z["mean"]), one["n"],
            ])  # fmt: skip
    s = report.settings
    text = (
        f"Outputs of the heads with the largest PDS times {HARD:g} (LFA App. D); `over` are all heads over {FIXED:g} "
        f"(Table 5). Beside them the heads with the smallest PDS, and up to {s.draws} random sets of as many other "
        f"heads; loss on {s.documents} documents. Means and intervals are over the seeds in which the cell is defined. "
        "d is Cohen's, pooled, d_z that of the differences; control of both: the same prompts, nothing suppressed."
    )
    columns = (
        "heads",
        "measure",
        "preset",
        "change",
        "95 %",
        "bottom-k",
        "random",
        "change − random, 95 %",
        "d",
        "d_z",
    )
    return f"## Suppression of position heads\n\n{text}\n\n{table((*columns, 'seeds'), rows)}"


def _claims(report: LfaReport) -> str:
    found = report.tables["claims"]
    rows = [
        [r.claim, f"`{r.quantity}`", r.printed, r.where, *measured_cells(r),
         number(r.smallest), number(r.p, "p"), number(r.p_holm, "p"), r.direction, r.alone, r.size]
        for r in found.itertuples()
    ]  # fmt: skip
    columns = ("claim", "quantity", "printed", "source", "measured", "95 % over seeds", "smallest", "p", "p Holm",
               "direction", "alone", "size")  # fmt: skip
    tests = " and ".join(t for t in (PAIRED, WELCH) if (found["test"] == t).any())
    text = (
        f"{rule('training seeds', '0 or the limit')} Two arms are compared {tests or 'by nothing: there is no pair'}. "
        "Claims that are not judged have no p and are not among the tests. Size: where the printed difference lies; "
        "there is none of a claim that is opposite or not judged."
    )
    return f"## Claims of the paper\n\n{text}\n\n{table(columns, rows)}"


def write(report: LfaReport, figure: Any, folder: Path, static: str, html: bool) -> None:
    """Tables, figures and README.md."""
    write_report(
        report, page, UNITS, figure, folder, static, html, data=report.documents, settings=vars(report.settings)
    )
