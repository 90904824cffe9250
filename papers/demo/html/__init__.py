"""One self-contained HTML page: prose, figures, tables; light and dark, wide and narrow, on paper; no network.

    page = Page(title="…", lead="…", sections=[Section("Where heads look", [Text("…"), Panels([Figure(…)])])])
    write_page(page, Path("index.html"))

A block of a section is data with a method `html(figures)`, which renders its macro of blocks.html.j2; a figure adds
its plotly data to the list `figures`. Every text is escaped; `code`, **bold** and links in the folder are marked up.
plotly.js is inlined once and draws every figure in the colours of the page (page.css, page.js): a figure names them as
`var(--ink)`, and `--m0` … `--m3` are those of the models, the same in every figure.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from streamscope.cli.disk import write_text
from streamscope.cli.errors import InputError
from streamscope.instruments.table import Table

HERE = Path(__file__).parent
INK, MUTED, LINE, SURFACE = "var(--ink)", "var(--muted)", "var(--line)", "var(--surface)"
MODELS = 4


def accent(i: int) -> str:
    """The colour of model i, in figures and in styles; they repeat after four."""
    return f"var(--m{i % MODELS})"


def marked(text: str) -> str:
    """HTML of a text with `code`, **bold** and [a page of this folder](page.html)."""
    safe = escape(text, quote=False).replace(" %", "\u00a0%")
    parts = re.split(r"`([^`]+)`", safe)
    linked = (re.sub(r"\[([^\]]+)\]\((\w+\.html)\)", r'<a href="\2">\1</a>', part) for part in parts[::2])
    bold = [re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", part) for part in linked]
    codes = [f"<code>{part}</code>" for part in parts[1::2]] + [""]
    return "".join(b + c for b, c in zip(bold, codes, strict=True))


@cache
def _templates() -> Any:
    """The templates of this folder, and the filters that they use; every other value is escaped."""

    made = Environment(loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined)
    filters: dict[str, Callable[[Any], Any]] = {
        "marked": lambda text: Markup(marked(text)),
        "lines": lambda text: Markup(text.replace("\n", "<br>")),
        "paragraphs": lambda text: [p.strip() for p in text.split("\n\n") if p.strip()],
        "data": lambda figures: Markup(json.dumps(figures, allow_nan=False).replace("<", "\\u003c")),
        "accent": accent,
    }
    made.filters |= filters
    return made


# ---- blocks ------------------------------------------------------------------------------------


class Block:
    """What stands in a section."""

    def html(self, figures: list[Any]) -> str:
        """Its HTML; figures are added to the list."""
        html: str = self._macro(self)  # Markup, so that the page does not escape it again
        return html

    def _macro(self, *given: Any) -> Any:
        """The macro of the block's name."""
        return getattr(_templates().get_template("blocks.html.j2").module, type(self).__name__)(*given)


@dataclass(frozen=True)
class Text(Block):
    """Paragraphs."""

    text: str


@dataclass(frozen=True)
class Verdict(Block):
    """Sentences that say what was found; each is one line, with a rule at its side."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Command(Block):
    """Commands or code to copy, one per line."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Figure:
    """A plotly figure without a title of its own: title and subtitle are text, which is never clipped."""

    title: str
    figure: Any
    subtitle: str = ""
    height: int = 360
    """Pixels."""


@dataclass(frozen=True)
class Panels(Block):
    """Figures side by side where there is room, else below each other."""

    figures: Sequence[Figure]
    wide: bool = False
    """Each as wide as the page."""

    def html(self, figures: list[Any]) -> str:
        """A grid; the figures' data go to `figures`."""
        first = len(figures)
        figures += [_spec(one.figure) for one in self.figures]
        html: str = self._macro(self, first)
        return html


@dataclass(frozen=True)
class TableBlock(Block):
    """A table that scrolls inside itself, with its title above and the reasons of undefined cells below."""

    table: Table
    wrap: bool = False
    """Break the lines of long cells, for a table that is mostly words."""

    def html(self, figures: list[Any]) -> str:
        """<table> in a scrolling box."""
        html: str = self._macro(self, *self.table.cells(), self.table.legend())
        return html


@dataclass(frozen=True)
class Samples(Block):
    """Texts of the models, as cards side by side: (name, number of the model, text)."""

    texts: Sequence[tuple[str, int, str]]


@dataclass(frozen=True)
class Token:
    """A token with the share of attention it gets, and its role ("" for none)."""

    text: str
    weight: float
    role: str = ""


@dataclass(frozen=True)
class TokenRow(Block):
    """A prompt, each token the darker the more attention it gets (by the square root of its share).

    Neighbours of one role are one word. Below it stand its role and the sum of its shares, from 0.1 on.
    """

    title: str
    model: int
    tokens: Sequence[Token]

    def html(self, figures: list[Any]) -> str:
        """Inline boxes that wrap like text."""
        words: list[list[Token]] = []
        for token in self.tokens:
            if words and token.role and words[-1][0].role == token.role:
                words[-1].append(token)
            else:
                words.append([token])
        boxes = []
        for word in words:
            role, share = word[0].role, sum(token.weight for token in word)
            below = f"{role} {share:.2f}" if role else f"{share:.2f}" if share >= 0.1 else ""
            boxes.append({"role": role, "tokens": word, "below": below})
        html: str = self._macro(self, boxes)
        return html


def _spec(figure: Any) -> dict[str, Any]:
    """{"data", "layout"} of a figure in the page's colours: transparent, without title and size, axes in `--line`."""
    spec = json.loads(figure.to_json())
    layout = spec["layout"]
    for name in ("template", "title", "width", "height"):
        layout.pop(name, None)
    axis = {"gridcolor": LINE, "zerolinecolor": MUTED, "linecolor": LINE, "automargin": True, "fixedrange": True,
            "exponentformat": "power", "minexponent": 4}  # fmt: skip
    for name in {"xaxis", "yaxis", *(n for n in layout if re.fullmatch(r"[xy]axis\d*", n))}:
        layout[name] = axis | layout.get(name, {})
    plain = {
        "autosize": True,
        "dragmode": False,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": INK, "size": 12, "family": "system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif"},
        "margin": {"l": 48, "r": 12, "t": 12, "b": 40},
        "hoverlabel": {"bgcolor": "var(--soft)", "bordercolor": LINE, "font": {"color": INK}},
    }
    spec["layout"] = plain | layout
    return {"data": spec["data"], "layout": spec["layout"]}


# ---- the page ----------------------------------------------------------------------------------


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

    css, js = (Markup((HERE / name).read_text(encoding="utf-8")) for name in ("page.css", "page.js"))
    figures: list[Any] = []
    made = _templates().get_template("page.html.j2")
    return str(made.render(page=page, css=css, js=js, figures=figures, plotly=Markup(get_plotlyjs()))) + "\n"


def write_page(page: Page, path: Path) -> None:
    """Write the page under a temporary name, then rename. Raises `InputError` for a path that cannot be written."""
    html = render(page)
    write_text(path, html)
