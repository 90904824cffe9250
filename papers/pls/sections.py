"""The sections of PLS' page that tell of heads and of depth; text and tables of `papers.pls.page`."""

import pandas as pd

from streamscope.papers.comparison.markdown import interval, number, table
from streamscope.papers.comparison.printed import SMALLEST
from streamscope.papers.pls.competence import LEAST
from streamscope.papers.pls.depth import ranges
from streamscope.papers.pls.printed import factor, printed
from streamscope.papers.pls.report import PlsReport
from streamscope.papers.pls.runs import PRESETS
from streamscope.papers.pls.seeds import FACTOR

MEASURES = {"probability": "P(answer), percentage points", "log_odds": "log-odds of answer against foil, nats"}


def points(x: float) -> str:
    """A probability in percentage points, three digits."""
    return "undefined" if x != x else f"{100 * x:+.3g}"


def value(x: float, unit: str) -> str:
    """A number of a unit for a table: probabilities in percentage points, factors with ×."""
    if unit == "probability":
        return points(x)
    return f"{x:.3g} ×" if unit == FACTOR and x == x else number(x)


def without_edit(report: PlsReport, task: str, measure: str) -> str:
    """What the unedited models do on a task, PLS / C2, in the unit of the table beside."""
    of = report.tables["competence"].set_index(["task", "preset"])[measure]
    scale, form = (100, ".3g") if measure == "probability" else (1, ".3f")
    return " / ".join(f"{scale * of[task, preset]:{form}}" for preset in PRESETS)


def unedited(report: PlsReport) -> str:
    """What the models can do before anything is taken away: the floor under every effect."""
    rows = []
    for r in report.tables["competence"].itertuples():
        share = "not kept" if r.right != r.right else f"{100 * r.right:.1f} {_percent(r.right_low, r.right_high)}"
        rows.append([
            r.task, r.preset, f"{100 * r.probability:.3g} {_percent(r.probability_low, r.probability_high)}",
            f"{r.log_odds:+.3f} ({interval(r.log_odds_low, r.log_odds_high)})", share,
            "no: " + r.cannot_log_odds if r.cannot_log_odds else "yes", "no: " + r.cannot if r.cannot else "yes",
        ])  # fmt: skip
    text = (
        "Of the models as they are, means over seeds with 95 % intervals over seeds; *right*: share of cases with "
        "log-odds of answer against foil above 0. A model *does* a task when the interval of the log-odds lies above "
        f"0, the value of chance; for claims in probability P(answer) must also be at least {100 * LEAST:g} %, twice "
        "the smallest effect of interest: below that, heads that carry half of P(answer) would do nothing of interest. "
        "Both limits are ours. No claim is judged of a task that a model of it cannot do. `baselines.parquet` has "
        "every run."
    )
    columns = ("task", "model", "P(answer), % (95 %)", "log-odds, nats (95 %)", "right, %", "does it, in log-odds",
               "in P(answer)")  # fmt: skip
    return f"## What the models can do\n\n{text}\n\n{table(columns, rows)}"


def _percent(low: float, high: float) -> str:
    return "(undefined)" if low != low else f"({100 * low:.3g} … {100 * high:.3g})"


def ablation(report: PlsReport) -> str:
    """Table 2 and Fig. 4b: means and spreads of Δ in both models, and their ratios."""
    texts = []
    for measure, name in MEASURES.items():
        end = "" if measure == "probability" else "_odds"
        ratios = report.tables["ratios"]
        rows = []
        for task, group in _cells(ratios[ratios["measure"] == measure]):
            rows.append([task, group, without_edit(report, task, measure),
                         *_ratio(report, f"effect{end}.{task}.{group}", measure, "mean", task, group),
                         *_ratio(report, f"spread{end}.{task}.{group}", measure, "sd", task, group)])  # fmt: skip
        columns = ("task", "heads", "unedited, PLS / C2", "PLS mean Δ", "C2", "factor (95 % over pairs)", "paper",
                   "PLS sd", "C2",
                   "factor (95 % over pairs)", "of each pair (95 % over cases)", "paper")  # fmt: skip
        texts.append(f"### {name}\n\n{table(columns, rows)}")
    draws = report.settings.draws
    text = (
        "Δ = P without the heads − P with them, at the answer (Table 2, Fig. 4b); means over seeds, with the 95 % t "
        "interval over seeds where there is more than one. *factor* is the geometric mean over pairs of |PLS| / |C2|, "
        "`of each pair` has bootstrap intervals over independent cases. The paper's printed effect stands beside the "
        f"same task and heads. `effects.parquet` has every run, with {draws} random groups of as many heads beside."
    )
    return f"## Ablation effects (Table 2, Fig. 4b)\n\n{text}\n\n" + "\n\n".join(texts)


def _cells(rows: pd.DataFrame) -> list[tuple[str, str]]:
    return list(dict.fromkeys(zip(rows["task"], rows["group"], strict=True)))


def _ratio(report: PlsReport, quantity: str, measure: str, kind: str, task: str, group: str) -> list[str]:
    """PLS, C2, factor over pairs, (of sds: of each pair,) paper."""
    of = report.tables["presets"].set_index(["quantity", "preset"])
    compared = report.tables["comparisons"].set_index("quantity").loc[quantity]
    cells = []
    for preset in PRESETS:
        one = of.loc[quantity, preset]
        text = value(one["mean"], measure)
        if one["ci_low"] == one["ci_low"]:
            text += f" ({value(one['ci_low'], measure)} … {value(one['ci_high'], measure)})"
        cells.append(text + (f"; paper {one['printed']}" if one["printed"] and measure == "probability" else ""))
    cells.append(times(compared["value"], compared["ci_low"], compared["ci_high"]))
    if kind == "sd":
        ratios = report.tables["ratios"]
        mine = ratios[(ratios[["measure", "task", "group"]] == [measure, task, group]).all(axis=1)]
        each = [times(r.sd_ratio, r.sd_ratio_low, r.sd_ratio_high) for r in mine.itertuples()]
        cells.append("; ".join(each))
    paper = factor(quantity)
    return [*cells, f"{paper:g} ×" if paper == paper else ""]


def times(x: float, low: float, high: float) -> str:
    """A factor with its interval."""
    if x != x:
        return "undefined"
    return f"{x:.3g}" + (f" ({low:.2g} … {high:.2g})" if low == low else "")


def _own_tasks(text: str) -> list[str]:
    """The tasks of "capitalization=entity, gender=anchor"."""
    return [part.split("=")[0] for part in text.split(", ") if part]


def routing(report: PlsReport) -> str:
    """Fig. 4a: own cells minus others of the matrix, per run with p."""
    found = report.tables["diagonality"]
    if found.empty:
        return ""
    rows = [
        [r.heads, r.preset, r.seed, MEASURES[r.measure].split(",")[0], r.tasks, value(r.own, r.measure),
         value(r.other, r.measure), value(r.diagonality, r.measure), "undefined" if r.p != r.p else f"{r.p:.4f}",
         "; ".join(f"{t}: {without_edit(report, t, r.measure)}" for t in _own_tasks(r.tasks))]
        for r in found.itertuples()
    ]  # fmt: skip
    columns = ("heads", "preset", "seed", "measure", "own groups", "own", "other", "diagonality", "p",
               "unedited, PLS / C2")  # fmt: skip
    text = (
        "Mean |Δ| in the cells of a task with its own group minus that in the other cells "
        "(`interventions.ablation_effects`): positive where tasks lean on their own heads; p exchanges the groups "
        "within every case. P in percentage points, log-odds in nats. The paper prints no number for it."
    )
    return f"## Routing: the matrix task × group (Fig. 4a)\n\n{text}\n\n{table(columns, rows)}"


def steering(report: PlsReport) -> str:
    """Fig. 3: control ranges, leverage, monotonicity."""
    levers = report.tables["leverage"]
    if levers.empty:
        return ""
    of = report.tables["presets"].set_index(["quantity", "preset"])
    compared = report.tables["comparisons"].set_index("quantity")
    rows = []
    for measure in MEASURES:
        end = "" if measure == "probability" else "_odds"
        for task, group in _cells(levers[levers["measure"] == measure]):
            name = f"range{end}.{task}.{group}"
            mine = levers[(levers[["measure", "task", "group"]] == [measure, task, group]).all(axis=1)]
            one, paper = compared.loc[name], factor(name)
            ranges = [value(of.loc[name, preset]["mean"], measure).lstrip("+") for preset in PRESETS]
            rho = [of.loc[f"{kind}{end}.{task}.{group}", p] for kind in ("monotonicity", "rising") for p in PRESETS]
            each = "; ".join(times(r.leverage, r.leverage_low, r.leverage_high) for r in mine.itertuples())
            over = times(one["value"], one["ci_low"], one["ci_high"])
            rows.append([
                MEASURES[measure].split(",")[0], task, group, without_edit(report, task, measure), *ranges, over, each,
                f"{paper:g} ×" if paper == paper else "",
                *(f"{number(r['mean'])} ({interval(r['ci_low'], r['ci_high'])})" for r in rho),
            ])  # fmt: skip
    low, high = report.settings.within
    text = (
        f"The heads' outputs times g, {low:g} to {high:g}. *Range* is the largest minus the smallest mean over the "
        "scales (never negative, and noise widens it), *leverage* PLS' over C2's. *Monotonic* is |Spearman's ρ| of g "
        "and the mean over cases, 1 for a curve that never turns; *rising* is ρ within a case, mean over cases, 1 "
        "where every case rises with g. Both are means over seeds. A curve that spans less than "
        f"{100 * SMALLEST['probability']:g} points of P(answer) has no shape to speak of: monotonic or not, it is no "
        "evidence."
    )
    columns = ("measure", "task", "heads", "unedited, PLS / C2", "PLS range", "C2", "leverage (95 % over pairs)",
               "of each pair (95 % over cases)", "paper", "PLS monotonic", "C2", "PLS rising", "C2")  # fmt: skip
    return f"## Steering (Fig. 3)\n\n{text}\n\n{table(columns, rows)}"


def hydra(report: PlsReport) -> str:
    """§1, §5.4: is the ablation made up for?"""
    found = report.tables["hydra"]
    if found.empty:
        return ""
    of = report.tables["presets"].set_index(["quantity", "preset"])
    compared = report.tables["comparisons"].set_index("quantity")
    means = found.groupby(["task", "group", "preset", "part"], sort=False)["mean"].mean()
    rows = []
    for task, group in _cells(found):
        name = f"kept.{task}.{group}"
        parts = [number(means[task, group, p, part]) for p in PRESETS for part in ("direct", "compensation", "total")]
        shares = [of.loc[name, preset] for preset in PRESETS]
        one = compared.loc[name]
        rows.append([
            task, group, without_edit(report, task, "log_odds"), *parts, *(number(s["mean"]) for s in shares),
            number(one["value"]),
            interval(one["ci_low"], one["ci_high"]),
        ])  # fmt: skip
    text = (
        "Nats of answer minus foil: *direct* is what the heads wrote themselves, *compensation* what later attention "
        "and FFNs change, *total* what the log-odds lose; they differ also by the final norm. *kept* is the slope of "
        "total on direct over cases (McGrath et al. 2023): 1 where nothing is made up for, under 1 where the model "
        "repairs, over 1 where later layers needed the heads. After heads of the last layer there is only its FFN to "
        "compensate, so a Hydra of several layers cannot show in them."
    )
    columns = ("task", "heads", "unedited, PLS / C2", "PLS direct", "compensation", "total",
               "C2 direct", "compensation", "total", "PLS kept",
               "C2 kept", "difference", "95 % over pairs")  # fmt: skip
    return f"## Direct and total effects (Hydra)\n\n{text}\n\n{table(columns, rows)}"


def depth(report: PlsReport) -> str:
    """§4.2, Table 1, Fig. 2: where predictions stabilise."""
    of = report.tables["presets"].set_index(["quantity", "preset"])
    rows = []
    for name in ("early", "middle", "late", "second_peak"):
        quantity = f"depth.{name}"
        cells = []
        for preset in PRESETS:
            one, paper = of.loc[quantity, preset], printed(preset, quantity)
            cells += [f"{number(one['mean'])} ({interval(one['ci_low'], one['ci_high'])})", paper.text if paper else ""]
        compared = report.tables["comparisons"].set_index("quantity").loc[quantity]
        label = name.replace("_", " ")
        rows.append([label, *cells, number(compared["value"]), interval(compared["ci_low"], compared["ci_high"])])
    shares = report.tables["depth"]
    tokens, documents, last = (int(shares[name].max()) for name in ("n", "documents", "depth"))
    spans = ", ".join(f"{name} {k[0]}–{k[-1]}" if len(k) > 1 else f"{name} {k}" for name, k in ranges(last).items())
    text = (
        f"Share of {tokens:,} validation tokens ({documents} documents) by k*, the first layer whose prediction is the "
        f"final one and stays so: {spans}; {last} is a token that the last layer alone gets, as in the author's "
        f"tables (by the formula it is one less, in the same range), so k* = {last - 1} cannot occur. Means over "
        f"seeds. *Second peak*: the smaller of the largest early share and the share at k* = {last}, minus the "
        "smallest share between. Above 0 the distribution has two peaks, as Fig. 2 says of PLS, not of C2; the "
        "paper prints no number. "
        "Every layer is read through the final norm and the head, which C2 never trained its layers for."
    )
    columns = ("depth", "PLS", "paper", "C2", "paper", "difference", "95 % over pairs")
    return f"## Processing depth (Table 1, Fig. 2)\n\n{text}\n\n{table(columns, rows)}\n\n{_by_depth(shares)}"


def _by_depth(shares: pd.DataFrame) -> str:
    """The share of every k*, run by run: what the ranges and the peaks are of."""
    wide = shares.pivot(index=["preset", "seed"], columns="depth", values="share")
    wide = wide.loc[[key for preset in PRESETS for key in wide.index if key[0] == preset]]
    rows = [[*key, *(f"{100 * x:.1f}" for x in row)] for key, row in zip(wide.index, wide.to_numpy(), strict=True)]
    return "Percent of tokens by k*:\n\n" + table(("preset", "seed", *(f"k* = {k}" for k in wide)), rows)
