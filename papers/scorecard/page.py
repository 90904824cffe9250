"""What `papers.scorecard` prints and writes: table, picture, and a README.md whose numbers are in the tables."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from streamscope.instruments.command import show as print_rows
from streamscope.instruments.parquet import probability
from streamscope.papers.comparison.markdown import interval, number, table
from streamscope.papers.comparison.report import (
    LEAD,
    commands,
    dose,
    files_line,
    made_by,
    pictures,
    rule,
    shape,
    undefined,
    write_report,
)
from streamscope.papers.scorecard import measure
from streamscope.papers.scorecard.report import Scorecard

OF_THE_ROW = "the unit of the row"
_NUMBERS = dict.fromkeys(("mean", "value", "sd", "ci_low", "ci_high"), OF_THE_ROW)
UNITS = {
    "runs": {**_NUMBERS, "n": "cases, documents, heads or pairs"},
    "arms": {**_NUMBERS, "n": "training seeds"},
    "between": {"eta2": "share of the variance over runs", "runs": "runs", "arms": "arms", "p": "p", "p_holm": "p"},
    "against": {**_NUMBERS, "n": "pairs of seeds", "p": "p", "p_holm": "p"},
    "orders": {**dict.fromkeys(("difference", "ci_low", "ci_high", "smallest"), OF_THE_ROW), "seeds": "pairs of seeds"},
}
LEVEL = 0.05


def page(report: Scorecard) -> str:
    """The page, in Markdown."""
    parts = [_head(report), _conclusions(report), _table(report), _between(report), _orders(report), _meaning(),
             undefined(report.tables["runs"]), commands(report)]  # fmt: skip
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(report: Scorecard) -> str:
    conditions = report.runs[0].conditions
    have: dict[str, list[int]] = {}
    for run in report.runs:
        have.setdefault(run.arm, []).append(run.seed)
    runs = "; ".join(f"{arm} (seed {', '.join(map(str, seeds))})" for arm, seeds in have.items())
    text = report.runs[0].config["data"]["data"]
    lines = [
        *_luck(report),
        *(f"- Recipes differ in `{name}`: {'; '.join(values)}." for name, values in report.recipes.items()),
        f"- Runs: {runs}; {dose(report.runs)}, {conditions['steps']:,} steps on `{text}`.",
        f"- Models: scale {conditions['scale']} ({shape(conditions)}).",
        f"- {report.settings.documents} validation documents, {report.settings.pairs} pairs of heads, "
        f"{report.settings.modes:,} tokens clustered. Intervals of a run are over documents, cases or pairs, of an arm "
        "over training seeds.",
        made_by(report.about),
        files_line(report.files),
    ]
    lead = LEAD.format("Every architecture here on the same text")
    return "\n\n".join(["# Scorecard", lead, "\n".join(lines), *pictures(report.files)])


def _luck(report: Scorecard) -> list[str]:
    if report.tables["between"]["p"].notna().any():
        return []
    return [
        "- **One seed of every arm**: what differs between architectures here may be luck, and nothing is concluded."
    ]


def _conclusions(report: Scorecard) -> str:
    between, arms = report.tables["between"], report.tables["arms"]
    against = report.tables["against"]
    lines = []
    for name, one in report.tables["runs"].groupby("quantity", sort=False):
        said = [_differs(r, arms) for r in _resolved(between, name)]
        found = sorted(_resolved(against, name), key=lambda r: -abs(r["mean"]))
        if said or found:
            lines.append(f"- `{name}` ({one['unit'].iloc[0]}) {said[0] if said else ''}".rstrip())
        for side, sign in (("more", 1), ("less", -1)):
            if own := [_apart(r) for r in found if r["mean"] * sign > 0]:
                lines.append(f"    - {side} than {report.control}: {'; '.join(own)}.")
    tested = int(between["p"].notna().sum()), int(against["p"].notna().sum()) if len(against) else 0
    lines.append(
        f"- {tested[0]} quantities were tested between architectures and {tested[1]} differences to {report.control}, "
        "each family corrected by Holm; what is not named above is not resolved."
    )
    return "## Conclusions\n\n" + "\n".join(lines)


def _resolved(table: Any, name: Any) -> list[dict[Any, Any]]:
    return table[(table["quantity"] == name) & (table["p_holm"] <= LEVEL)].to_dict("records") if len(table) else []


def _differs(r: dict[Any, Any], arms: Any) -> str:
    of = arms[(arms["quantity"] == r["quantity"]) & arms["mean"].notna()]
    most, least = of.loc[of["mean"].idxmax()], of.loc[of["mean"].idxmin()]
    return (
        f"differs between architectures: {r['eta2']:.0%} of its variance over {r['runs']} runs, "
        f"p Holm {probability(r['p_holm'])}; most {most['arm']} {_value(most)}, least {least['arm']} {_value(least)}."
    )


def _apart(r: dict[Any, Any]) -> str:
    """How far an arm is from the control, without the sign."""
    low, high = sorted((abs(r["ci_low"]), abs(r["ci_high"])))
    return f"{r['arm']} by {number(abs(r['mean']), r['unit'])} ({interval(low, high, r['unit'])}, {r['n']} seeds)"


def _value(one: Any) -> str:
    text = number(one["mean"], one["unit"])
    return (
        f"{text} ({interval(one['ci_low'], one['ci_high'], one['unit'])})" if one["ci_low"] == one["ci_low"] else text
    )


def _table(report: Scorecard) -> str:
    arms = report.tables["arms"]
    names = list(dict.fromkeys(arms["arm"]))
    rows = []
    for name, one in arms.groupby("quantity", sort=False):
        by = one.set_index("arm")
        cells = [_cell(report, str(name), by.loc[arm]) if arm in by.index else "" for arm in names]
        rows.append([f"`{name}`", one["unit"].iloc[0], *cells])
    note = "Mean over seeds with its 95 % interval; of a single run its own interval, where it has one."
    return f"## Table\n\n{note}\n\n" + table(["quantity", "unit", *names], rows)


def _cell(report: Scorecard, name: str, one: Any) -> str:
    if one["mean"] != one["mean"]:
        return "–"
    if one["n"] > 1:
        return _value(one)
    runs = report.tables["runs"]
    own = runs[(runs["quantity"] == name) & (runs["preset"] == one.name) & runs["value"].notna()].iloc[0]
    return _value({**own, "mean": own["value"]})


def _between(report: Scorecard) -> str:
    rows = [
        [f"`{r['quantity']}`", r["runs"], r["arms"], number(r["eta2"]), probability(r["p"]), probability(r["p_holm"])]
        for r in report.tables["between"].to_dict("records") if r["p"] == r["p"]
    ]  # fmt: skip
    if not rows:
        return "## Architecture or luck\n\nNot testable: no arm has a second seed."
    return (
        "## Architecture or luck\n\nη²: share of the variance over runs that is between arms; p by dealing the runs "
        "out "
        "anew over the arms.\n\n" + table(["quantity", "runs", "arms", "η²", "p", "p Holm"], rows)
    )


def _orders(report: Scorecard) -> str:
    if "orders" not in report.tables:
        return ""
    unit = report.tables["runs"].drop_duplicates("quantity").set_index("quantity")["unit"]
    rows = [
        [r["claim"], f"`{r['quantity']}`", r["where"], number(r["difference"], unit[r["quantity"]]),
         interval(r["ci_low"], r["ci_high"], unit[r["quantity"]]), r["seeds"], r["direction"], r["alone"]]
        for r in report.tables["orders"].to_dict("records")
    ]  # fmt: skip
    columns = ["claim", "quantity", "where", "difference", "95 % over seeds", "pairs", "verdict", "alone"]
    return f"## Orders that papers claim\n\n{rule('pairs of seeds', '0')}\n\n{table(columns, rows)}"


def _meaning() -> str:
    text = (measure.__doc__ or "").split("\n\n", 1)[1]
    return f"## What each line is\n\n```\n{text.rstrip()}\n```"


def show(report: Scorecard) -> None:
    """Means over seeds on the screen, an arm per column; then what is between arms."""
    arms = report.tables["arms"]
    wide = arms.pivot_table(index="quantity", columns="arm", values="mean", sort=False, dropna=False)
    rows = wide.map(lambda x: f"{x:.4g}" if x == x else "–").reset_index()
    print_rows(rows, f"scorecard, {dose(report.runs)}", tuple(rows.columns), 3)
    between = report.tables["between"]
    if between["p"].notna().any():
        print_rows(between, "between arms", ("quantity", "runs", "arms", "eta2", "p", "p_holm"), 4)


def write(report: Scorecard, figure: Any, folder: Path, static: str, html: bool) -> None:
    """Tables, figures and README.md."""
    facts = {"settings": asdict(report.settings), "control": report.control}
    write_report(report, page, UNITS, figure, folder, static, html, **facts)
