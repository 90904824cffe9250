"""One self-contained HTML page: prose, figures, tables; light and dark, wide and narrow, on paper; no network.

    page = Page(title="…", lead="…", sections=[Section("Where heads look", [Text("…"), Panels([Figure(…)])])])
    write_page(page, Path("index.html"))

The blocks of a section are those of `papers.page_blocks`. plotly.js is inlined once and draws every figure, in the
colours of `papers.page_style`.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from streamscope.models.errors import InputError
from streamscope.papers.page_blocks import Block, marked
from streamscope.papers.page_style import SCRIPT, STYLE


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it, in order."""

    title: str
    blocks: Sequence[Block]

    @property
    def anchor(self) -> str:
        """The heading as a fragment of an address."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


@dataclass(frozen=True)
class Page:
    """A whole page."""

    title: str
    lead: str
    sections: Sequence[Section]
    footer: str = ""
    """How the page was made."""

    def __post_init__(self) -> None:
        anchors = [section.anchor for section in self.sections]
        if len(set(anchors)) < len(anchors) or not all(anchors):
            raise InputError(f"page {self.title!r}: give its sections different headings, with letters in them")


def render(page: Page) -> str:
    """The HTML of a page."""
    from plotly.offline import get_plotlyjs

    figures: list[Any] = []
    body, links = [], []
    for section in page.sections:
        inner = "".join(block.html(figures) for block in section.blocks)
        body.append(f'<section id="{section.anchor}"><h2>{marked(section.title)}</h2>{inner}</section>')
        links.append(f'<li><a href="#{section.anchor}">{marked(section.title)}</a></li>')
    data = json.dumps(figures, allow_nan=False).replace("<", "\\u003c")
    scripts = [
        f'<script type="application/json" id="figures">{data}</script>',
        f"<script>{get_plotlyjs()}</script><script>{SCRIPT}</script>",
    ]
    lead = "".join(f'<p class="lead">{marked(p.strip())}</p>' for p in page.lead.split("\n\n"))
    footer = f"<footer>{marked(page.footer)}</footer>" if page.footer else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{escape(page.title)}</title><style>{STYLE}</style></head>\n'
        f'<body><div class="frame"><header><h1>{marked(page.title)}</h1>{lead}</header>\n'
        f"<nav><b>On this page</b><ol>{''.join(links)}</ol></nav>\n<main>\n"
        + "\n".join(body)
        + f"\n{footer}<noscript><p>The figures need JavaScript; the tables are beside this page.</p></noscript>"
        f"</main></div>\n{''.join(scripts) if figures else ''}</body></html>\n"
    )


def write_page(page: Page, path: Path) -> None:
    """Write the page under a temporary name, then rename. Raises `InputError` for a path that cannot be written."""
    from streamscope.models.disk import write_atomically

    html = render(page)
    write_atomically(path, lambda part: part.write_text(html, encoding="utf-8"))
