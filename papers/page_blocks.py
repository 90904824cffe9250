"""What a section of `papers.page` holds: texts, verdicts, commands, figures, tables, samples, rows of tokens.

A block is data with a method `html(figures)`; a figure adds its plotly data to the list `figures`, which the page's
script draws. Every text is escaped; `code` and **bold** are marked up.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, Protocol

from streamscope.papers.page_style import INK, LINE, MUTED, accent

if TYPE_CHECKING:
    import pandas as pd


class Block(Protocol):
    """What `papers.page` asks of a block."""

    def html(self, figures: list[Any]) -> str:
        """Its HTML; figures are added to the list."""


def marked(text: str) -> str:
    """HTML of a text with `code` and **bold**."""
    safe = escape(text, quote=False).replace(" %", "\u00a0%")
    parts = re.split(r"`([^`]+)`", safe)
    bold = [re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", part) for part in parts[::2]]
    codes = [f"<code>{part}</code>" for part in parts[1::2]] + [""]
    return "".join(b + c for b, c in zip(bold, codes, strict=True))


@dataclass(frozen=True)
class Text:
    """Paragraphs."""

    text: str

    def html(self, figures: list[Any]) -> str:
        """<p> each."""
        return "".join(f"<p>{marked(p.strip())}</p>" for p in self.text.split("\n\n") if p.strip())


@dataclass(frozen=True)
class Verdict:
    """Sentences that say what was found; each is one line."""

    lines: Sequence[str]

    def html(self, figures: list[Any]) -> str:
        """A list with a rule at its side."""
        return '<ul class="verdict">' + "".join(f"<li>{marked(line)}</li>" for line in self.lines) + "</ul>"


@dataclass(frozen=True)
class Command:
    """Commands or code to copy, one per line."""

    lines: Sequence[str]

    def html(self, figures: list[Any]) -> str:
        """<pre>."""
        return f"<pre>{escape(chr(10).join(self.lines), quote=False)}</pre>"


@dataclass(frozen=True)
class Figure:
    """A plotly figure without a title of its own: title and subtitle are text, which is never clipped."""

    title: str
    figure: Any
    subtitle: str = ""
    height: int = 360
    """Pixels."""


@dataclass(frozen=True)
class Panels:
    """Figures side by side where there is room, else below each other."""

    figures: Sequence[Figure]
    wide: bool = False
    """Each as wide as the page."""

    def html(self, figures: list[Any]) -> str:
        """A grid; the figures' data go to `figures`."""
        out = []
        for one in self.figures:
            small = f"<small>{marked(one.subtitle)}</small>" if one.subtitle else ""
            plot = f'<div class="plot" id="figure-{len(figures)}" style="height:{one.height}px"></div>'
            out.append(
                f'<figure class="panel"><figcaption><b>{marked(one.title)}</b>{small}</figcaption>{plot}</figure>'
            )
            figures.append(_spec(one.figure))
        return f'<div class="panels{" wide" if self.wide else ""}">{"".join(out)}</div>'


@dataclass(frozen=True)
class Table:
    """A table that scrolls inside itself. Cells without a value say "undefined", with the reasons below.

    Neighbouring columns `x_low`, `x_high` become one, "x low … high" (of `ci`: "95 % interval").
    """

    frame: "pd.DataFrame"
    caption: str = ""
    digits: int = 3
    units: dict[str, str] = field(default_factory=dict)
    """Shown when the pointer rests on a column's name."""
    wrap: bool = False
    """Break the lines of long cells, for a table that is mostly words."""

    def html(self, figures: list[Any]) -> str:
        """<table> in a scrolling box."""
        import pandas as pd

        from streamscope.probes.undefined import legend, printable

        reasons = legend(self.frame)
        shown = printable(self.frame)
        numeric = {c: pd.api.types.is_numeric_dtype(self.frame[c]) for c in shown}
        heads, columns = [], []
        for name in shown:
            stem = str(name).removesuffix("_low")
            if str(name).endswith("_high") and f"{str(name).removesuffix('_high')}_low" in shown:
                continue
            values = [cell(v, self.digits, str(name)) for v in shown[name]]
            label = str(name)
            if stem != name and f"{stem}_high" in shown:
                high = [cell(v, self.digits, str(name)) for v in shown[f"{stem}_high"]]
                values = [a if "undefined" in a else f"{a} … {b}" for a, b in zip(values, high, strict=True)]
                label = "95 % interval" if stem == "ci" else f"{stem} low … high"
            kind = ' class="n"' if numeric[name] else ""
            about = f' title="{escape(self.units[name])}"' if name in self.units else ""
            heads.append(f"<th{kind}{about}>{escape(label.replace('_', ' '))}</th>")
            columns.append([f"<td{kind}>{value}</td>" for value in values])
        rows = "".join(f"<tr>{''.join(row)}</tr>" for row in zip(*columns, strict=True))
        caption = f'<p class="caption">{marked(self.caption)}</p>' if self.caption else ""
        note = f'<p class="note">{marked(reasons).replace(chr(10), "<br>")}</p>' if reasons else ""
        style = ' class="wrap"' if self.wrap else ""
        body = f"<table{style}><thead><tr>{''.join(heads)}</tr></thead><tbody>{rows}</tbody></table>"
        long = " long" if len(self.frame) > 14 and not self.wrap else ""
        return f'{caption}<div class="scroll{long}" tabindex="0">{body}</div>{note}'


def cell(value: Any, digits: int, name: str = "") -> str:
    """HTML of a table's cell: a true minus sign, thousands, p below 0.001 as such, two digits of what is very small."""
    if isinstance(value, str):
        text = marked(value)
        return f'<span class="undefined">{text}</span>' if value in ("undefined", "NaN (unexplained)") else text
    if str(value) in ("True", "False"):
        return "yes" if value else "no"
    number = float(value)
    if number == int(number):
        return f"{int(number):,}".replace("-", "−")
    if name == "p" or name.startswith("p_"):
        return "&lt; 0.001" if number < 0.001 else f"{number:.3f}"
    if abs(number) < 10.0**-digits:
        mantissa, exponent = f"{number:.1e}".split("e")
        return f"{mantissa}e{int(exponent)}".replace("-", "−")
    return f"{number:.{digits}f}".replace("-", "−")


@dataclass(frozen=True)
class Samples:
    """Texts of the models: (name, number of the model, text)."""

    texts: Sequence[tuple[str, int, str]]

    def html(self, figures: list[Any]) -> str:
        """Cards side by side."""
        cards = [
            f'<figure style="--c:{accent(i)}"><b>{escape(name)}</b><blockquote>{escape(text)}</blockquote></figure>'
            for name, i, text in self.texts
        ]
        return f'<div class="samples">{"".join(cards)}</div>'


@dataclass(frozen=True)
class Token:
    """A token with the share of attention it gets, and its role ("" for none)."""

    text: str
    weight: float
    role: str = ""


@dataclass(frozen=True)
class TokenRow:
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
            inner = "".join(
                f'<i style="--w:{token.weight**0.5:.3f}" title="{token.weight:.3f}">'
                f"{escape(token.text.strip(' ').replace(chr(10), '⏎') or '·', quote=False)}</i>"
                for token in word
            )
            kind = "tok role" if role else "tok"
            boxes.append(f'<span class="{kind}"><span>{inner}</span><small>{escape(below)}</small></span>')
        title = f'<figcaption><span class="key"></span>{marked(self.title)}</figcaption>'
        return f'<figure class="tokens" style="--c:{accent(self.model)}">{title}<div>{"".join(boxes)}</div></figure>'


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
