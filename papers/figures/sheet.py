"""All figures of all papers on one page, which has plotly's script once."""

from html import escape
from pathlib import Path

from streamscope.cli.disk import write_text
from streamscope.papers.claims.ledger import PAPERS
from streamscope.papers.figures.look import Look
from streamscope.papers.figures.options import RESULTS
from streamscope.papers.figures.requests import draw, figures_of, paths_of

HEAD = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Figures of five papers</title>
<style>body { font-family: serif; margin: 1.5em; } h2 { clear: both; padding-top: 1em; }
figure { display: inline-block; vertical-align: top; margin: 0 1.2em 1.5em 0; width: 330px; }
figcaption { font-size: 13px; margin-top: 4px; }</style></head><body>
<h1>Figures of five papers, drawn of the tables of <code>results</code></h1>
<p>Open markers are what a paper prints.</p>
"""


def write_sheet(out: Path, *, grey: bool = False) -> None:
    """Write the page and say how many figures it has and how many could not be drawn."""
    parts, n, without = [HEAD], 0, 0
    for paper in PAPERS:
        parts.append(f"<h2>{paper.upper()}</h2>")
        for one in figures_of(paper).values():
            caption = f"<figcaption><b>{paper} {escape(one.number)}</b> {escape(one.title)}"
            if one.draw is None or one.instead:
                parts.append(f"<figure>{caption}: {escape(one.instead)}</figcaption></figure>")
                without += 1
                continue
            script = "inline" if n == 0 else False
            drawn = draw(one, Look("column", grey)).to_html(
                full_html=False, include_plotlyjs=script, config={"displayModeBar": False}
            )
            of = ", ".join(str(path.relative_to(RESULTS).with_suffix("")) for path in paths_of(one, None))
            parts.append(f"<figure>{drawn}{caption} (<code>{of}</code>)</figcaption></figure>")
            n += 1
    write_text(out, "\n".join([*parts, "</body></html>\n"]))
    print(f"{n} figures, {without} that no table has: written {out} ({out.stat().st_size / 1e6:.1f} MB)")
