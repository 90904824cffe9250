"""Markdown of generated pages."""

from collections.abc import Iterable, Sequence
from typing import Any

from streamscope.cli.terminal import cell
from streamscope.instruments.parquet import LEAST_P, probability

SHARES = ("share of cases", "share of heads")


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table; "|" and HTML in a cell are escaped."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell(one) for one in row) + " |" for row in rows]
    return "\n".join(lines)


def number(x: float, unit: str = "") -> str:
    """A number for a table: whole ones with separators, others with as many decimals as they need."""
    if x != x:
        return "undefined"
    if unit == "p" and x < LEAST_P:
        return probability(x)
    if unit in ("parameters", "prompts") or (abs(x) >= 1000 and x == round(x)):
        return f"{x:,.0f}"
    if unit in ("heads", "layer"):
        return f"{x:.1f}"
    return f"{x:.4f}" if unit == "nats/token" or (abs(x) < 0.1 and unit not in SHARES) else f"{x:.3f}"


def interval(low: float, high: float, unit: str = "") -> str:
    """A 95 % interval, or "undefined"."""
    return f"{number(low, unit)} … {number(high, unit)}" if low == low and high == high else "undefined"
