"""The interactive page of claims: one HTML file that works offline, with the papers' figures in a folder next to it.

A claim is a line that opens: quotation, printed and measured value with its interval, a figure of both, the command.
Filters are by paper, verdict, model and any words. Without JavaScript the lines still open.
"""

import contextlib
import math
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from streamscope.cli.disk import check_folder, write_text
from streamscope.models.config.presets import PRESETS
from streamscope.papers.claims.judged import Tables, judged
from streamscope.papers.claims.ledger import HERE as LEDGER
from streamscope.papers.claims.words import MEANINGS, reason
from streamscope.papers.comparison.printed import number as printed_number
from streamscope.papers.figures.options import RESULTS
from streamscope.papers.figures.requests import draw, figures_of
from streamscope.papers.figures.style import Style
from streamscope.papers.pages.folder import general
from streamscope.papers.pages.markdown import measurement, quotation, with_unit
from streamscope.papers.pages.results import Source, levels_of, page_texts
from streamscope.papers.pages.strips import HERE, Row, Strip, templates
from streamscope.papers.pages.web_page import CSS

NAME = "index.html"
FIGURES = "figures"
QUOTE = 110
"""Characters of a quotation in the line of a claim that is not opened."""


def write_site(folder: Path, figures: bool = True) -> Path:
    """Write the page, and the figures of the papers into a folder next to it; gives the page's path."""
    check_folder(folder)
    claims = judged(LEDGER, RESULTS)
    drawn = write_figures(folder / FIGURES, sorted(set(claims["paper"]))) if figures else {}
    write_text(folder / NAME, html(claims, drawn))
    return folder / NAME


class Drawn(NamedTuple):
    """A figure of a paper in the folder of the page."""

    title: str
    height: int
    """Of the frame that shows all of it, in pixels."""


Figures = dict[str, dict[str, Drawn]]
"""Paper -> number -> figure."""
MARGIN = 20
"""Of a browser around a page, above and below, in pixels."""


def write_figures(folder: Path, papers: Sequence[str]) -> Figures:
    """Every figure that our tables have, with one copy of plotly's script."""
    found: Figures = {}
    folder.mkdir(parents=True, exist_ok=True)
    for paper in papers:
        for one in figures_of(paper).values():
            page = folder / f"{paper}-{one.number}.html"
            figure = draw(one, Style("column"))
            figure.write_html(page, include_plotlyjs="directory", config={"displayModeBar": False})
            found.setdefault(paper, {})[one.number] = Drawn(one.title, round(figure.layout.height) + MARGIN)
    return found


def html(claims: pd.DataFrame, figures: Figures) -> str:
    """The page. `figures` are those in its folder."""
    levels = levels_of(Source(Tables(RESULTS), claims))
    rows = [_claim(r, figures.get(r.paper, {}), levels.get(r.measurement)) for r in claims.itertuples()]
    counts = claims["verdict"].value_counts()
    page: str = (
        templates()
        .get_template("site.html.j2")
        .render(
            css=CSS.read_text(encoding="utf-8") + (HERE / "site.css").read_text(encoding="utf-8"),
            js=(HERE / "site.js").read_text(encoding="utf-8"),
            claims=rows,
            papers=[(name, page_texts()["paper"][name]["title"]) for name in dict.fromkeys(claims["paper"])],
            verdicts=[
                (word, meaning, int(counts[word]), kind)
                for kind, (word, meaning) in enumerate(MEANINGS.items())
                if word in counts.index
            ],
            models=sorted({model for row in rows for model in row["models"]}),
            figures=figures,
        )
    )
    return page


def _claim(claim: Any, figures: dict[str, Drawn], levels: Sequence[float] | None) -> dict[str, Any]:
    """What the template shows of a claim."""
    value = measurement(claim, levels)
    why = "; ".join(dict.fromkeys(part for part in (reason(claim.finding), claim.why) if part))
    facts = {
        "place": claim.place, "of": claim.configuration, "printed": with_unit(claim.printed, claim.unit),
        "measured": value, "n": f"{claim.n} ({claim.clusters} independent)" if claim.clusters else claim.n,
        "training": f"{claim.tokens} tokens, scale {claim.scale}" if claim.tokens else "",
        "table": f"results/{claim.table}" if claim.table else "", "commit": claim.commit, "why": why,
    }  # fmt: skip
    numbers = re.findall(r"Fig(?:ure|s)?\. (\d+)", claim.place)
    text = " ".join([claim.id, claim.quote, *map(str, facts.values()), claim.command]).casefold()
    return {
        "id": claim.id, "paper": claim.paper, "verdict": claim.verdict, "quote": quotation(claim.quote), "facts": facts,
        "short": textwrap.shorten(quotation(claim.quote), QUOTE, placeholder=" …"), "value": value,
        "command": general(claim.command), "text": text,
        "models": models(claim.configuration), "strip": strip(claim),
        "figures": [(n, figures[n]) for n in dict.fromkeys(numbers) if n in figures],
        "kind": list(MEANINGS).index(claim.verdict),
    }  # fmt: skip


def models(configuration: str) -> list[str]:
    """The presets that a claim names."""
    words = set(re.findall(r"[a-z0-9]+(?:-[a-z0-9]+)*", configuration.casefold()))
    return [name for name in PRESETS if name in words]


def strip(claim: Any) -> str:
    """The figure of a claim: what was measured and, where that is one number, what is printed; "" without a number."""
    if claim.value != claim.value:
        return ""
    printed = math.nan
    if claim.kind == "number":
        with contextlib.suppress(ValueError):
            printed = printed_number(claim.printed.replace("−", "-").replace(",", ""))
            printed /= 1e6 if claim.unit.startswith("M ") and printed > 1e6 else 1
    row = Row("measured", claim.value, claim.ci_low, claim.ci_high, printed)
    line = 0.0 if claim.kind in ("order", "direction") else math.nan
    title = f"measured and printed value of {claim.id}"
    return Strip(title=title, unit=claim.unit, rows=[row], line=line, width=520, heading=False).svg(css=False)
