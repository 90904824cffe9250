"""Figures of a few numbers with their intervals, as SVG that needs no program to draw: one row per number.

A dot is what was measured, a bar its 95 % interval, a diamond what the paper prints.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, cast

from jinja2 import Environment, FileSystemLoader, StrictUndefined

HERE = Path(__file__).parent
WIDTH, MARGIN, ROW, CHARACTER = 760, 34, 28, 7.2
"""Pixels: of the whole, at the right, per row, and per character of a label."""
COLOURS = ("ground", "ink", "muted", "line", "value", "printed")
LIGHT = dict(zip(COLOURS, ("#ffffff", "#1f2328", "#59636e", "#d1d9e0", "#0969da", "#bc4c00"), strict=True))
GROUPS = ("#0072b2", "#e69f00", "#cc79a7", "#56b4e9")
"""Colours of groups of tokens (Okabe and Ito), legible on both grounds."""
DARK = dict(zip(COLOURS, ("#0d1117", "#f0f6fc", "#9198a1", "#3d444d", "#4493f8", "#f0883e"), strict=True))


@dataclass(frozen=True)
class Row:
    """A number of a figure; `printed` is what the paper has in its place."""

    label: str
    value: float
    low: float = math.nan
    high: float = math.nan
    printed: float = math.nan


@dataclass(frozen=True)
class Strip:
    """A figure: its rows over one axis, with a line at a value of interest."""

    title: str
    unit: str
    rows: Sequence[Row]
    line: float = math.nan
    line_label: str = ""
    log: bool = False
    width: int = WIDTH
    heading: bool = True
    path: str = field(default="", compare=False)

    def svg(self, css: bool = True) -> str:
        """The figure; with `css` as a file of its own, which follows the reader's light or dark."""
        module: Any = templates().get_template("figure.svg.j2").module
        text: str = module.strip(self.drawn(), style() if css else "")
        return "\n".join(line for line in text.splitlines() if line.strip()) + "\n"

    def drawn(self) -> dict[str, Any]:
        """Where everything lies, in pixels."""
        numbers = [x for r in self.rows for x in (r.value, r.low, r.high, r.printed)] + [self.line]
        finite = [x for x in numbers if math.isfinite(x) and (x > 0 or not self.log)]
        scale = math.log10 if self.log else float
        ends = (min(finite, default=0.0), max(finite, default=1.0))
        ticks = _decades(*ends) if self.log else _ticks(*ends)
        low, high = (scale(x) for x in (min(ticks[0], ends[0]), max(ticks[-1], ends[1])))
        longest = max((len(r.label) for r in self.rows), default=0)
        left = round(min(24 + longest * CHARACTER, 0.55 * self.width))
        right = self.width - MARGIN
        top = 52 if self.heading else 22

        def x(value: float) -> float | None:
            if not math.isfinite(value) or (self.log and value <= 0):
                return None
            return round(left + (right - left) * (scale(value) - low) / ((high - low) or 1.0), 1)

        rows = [
            {"label": r.label, "y": round(top + ROW * (i + 0.5)), "value": x(r.value), "printed": x(r.printed),
             "low": x(r.low), "high": x(r.high)}
            for i, r in enumerate(self.rows)
        ]  # fmt: skip
        bottom = top + ROW * len(rows)
        return {
            "title": self.title, "heading": self.title if self.heading else "", "unit": self.unit, "rows": rows,
            "width": self.width, "height": bottom + 48, "top": top, "bottom": bottom, "left": left, "right": right,
            "ticks": [{"x": x(t), "text": f"{t:,.10g}".replace("-", "−")} for t in ticks],
            "line": {"x": x(self.line), "text": self.line_label} if x(self.line) is not None else None,
        }  # fmt: skip


@dataclass(frozen=True)
class TokenMap:
    """A map of tokens, coloured by group, with a text at the middle of each cluster."""

    title: str
    rows: Sequence[tuple[float, float, int, int]]
    """x, y, index of the group, cluster of every token."""
    groups: Sequence[str]
    path: str = field(default="", compare=False)

    def svg(self) -> str:
        """The figure as a file of its own, which follows the reader's light or dark."""
        (left, right), (bottom, top) = ((min(a), max(a)) for a in list(zip(*self.rows, strict=True))[:2])
        width, height, head = WIDTH, 480, 56

        def place(x: float, y: float) -> tuple[float, float]:
            across, down = (x - left) / ((right - left) or 1), (top - y) / ((top - bottom) or 1)
            return round(12 + across * (width - 24), 1), round(head + down * (height - head - 12), 1)

        at = [(*place(x, y), group, cluster) for x, y, group, cluster in self.rows]
        drawn = [
            {"label": name, "x": 18 + 150 * i, "path": "".join(f"M{x} {y}h0" for x, y, group, _ in at if group == i)}
            for i, name in enumerate(self.groups)
        ]
        marks = []
        for cluster in sorted({one[3] for one in at}):
            xs, ys = zip(*(one[:2] for one in at if one[3] == cluster), strict=True)
            marks.append({"x": round(median(xs), 1), "y": round(median(ys) - 9, 1), "text": str(cluster)})
        figure = {"title": self.title, "width": width, "height": height, "groups": drawn, "marks": marks}
        text: str = cast(Any, templates().get_template("figure.svg.j2").module).map(figure, style() + _groups())
        return "\n".join(line for line in text.splitlines() if line.strip()) + "\n"


def _groups() -> str:
    """The colours of up to four groups of tokens, for colour-blind readers too."""
    dots = "".join(f".g{i}{{stroke:{colour};stroke-linecap:round}}" for i, colour in enumerate(GROUPS))
    mark = f".mark{{fill:{LIGHT['ink']};font-weight:600;font-size:15px;paint-order:stroke;stroke:#fff;stroke-width:3}}"
    return f"path{{stroke-width:3.2;fill:none}}.key{{stroke-width:11}}{dots}{mark}"


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers that cover a range, four to seven of them."""
    span = (high - low) or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(span / 5))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if span / (power * m) <= 6)
    return [round(i * step, 12) for i in range(math.floor(low / step), math.ceil(high / step) + 1)]


def _decades(low: float, high: float) -> list[float]:
    return [10.0**i for i in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]


def style() -> str:
    """The colours of a figure that stands alone, in light and dark."""

    def rules(c: dict[str, str]) -> str:
        return (
            f".ground{{fill:{c['ground']}}}.title,.label{{fill:{c['ink']}}}.tick{{fill:{c['muted']}}}"
            f".grid{{stroke:{c['line']}}}.line{{stroke:{c['ink']};stroke-dasharray:4 3}}"
            f".interval{{stroke:{c['value']};stroke-width:3}}.value{{fill:{c['value']}}}"
            f".printed{{fill:none;stroke:{c['printed']};stroke-width:2}}"
        )

    return f"{rules(LIGHT)}@media(prefers-color-scheme:dark){{{rules(DARK)}}}"


@cache
def templates() -> Environment:
    """The templates of this folder. In HTML and SVG every value is escaped."""
    return Environment(
        loader=FileSystemLoader(HERE), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        autoescape=lambda name: name is not None and not name.endswith(".md.j2"),
    )  # fmt: skip
