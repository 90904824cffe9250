"""All figures of all papers on one page, which has plotly's script once."""

from html import escape
from pathlib import Path

from streamscope.cli.disk import write_text
from streamscope.papers.claims.ledger import PAPERS
from streamscope.papers.figures.options import RESULTS
from streamscope.papers.figures.requests import draw, figures_of, paths_of
from streamscope.papers.figures.style import Style

HEAD = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Figures of five papers</title>
<style>body { font-family: serif; margin: 1.5em; } h2 { clear: both; padding-top: 1em; }
figure { display: inline-block; vertical-align: top; margin: 0 1.2em 1.5em 0; width: 330px; }
figcaption { font-size: 13px; margin-top: 4px; }</style></head><body>
<h1>Figures of five papers, drawn of the tables of <code>results</code></h1>
<p>Open markers are what a paper prints.</p>
"""


def write_sheet(out: Path, *, grey: bool = False) -> None:
    """Write the page and say how many figures it has."""
    parts, n = [HEAD], 0
    for paper in PAPERS:
        parts.append(f"<h2>{paper.upper()}</h2>")
        for one in figures_of(paper).values():
            caption = f"<figcaption><b>{paper} {escape(one.number)}</b> {escape(one.title)}"
            script = "inline" if n == 0 else False
            drawn = draw(one, Style("column", grey)).to_html(
                full_html=False, include_plotlyjs=script, config={"displayModeBar": False}
            )
            of = ", ".join(str(path.relative_to(RESULTS).with_suffix("")) for path in paths_of(one, None))
            source = f" (<code>{of}</code>)" if of else ""
            parts.append(f"<figure>{drawn}{caption}{source}</figcaption></figure>")
            n += 1
    write_text(out, "\n".join([*parts, "</body></html>\n"]))
    print(f"{n} figures: written {out} ({out.stat().st_size / 1e6:.1f} MB)")
