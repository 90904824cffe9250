"""The Markdown pages of results: what `pages.toml` says with the numbers of the tables, through one template."""

import math
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from streamscope.cli.terminal import LINE_ENDS, visible
from streamscope.papers.pages.strips import Strip, templates

LINE = 150
"""Characters of a line of text."""
MATHS = ((r"\(", ""), (r"\)", ""), (r"\approx", "≈"), (r"\pm", "±"), (r"\times", "×"), (r"\alpha", "α"), ("$", ""))
"""Marks of LaTeX in quotations, and the signs that replace them."""
UNITS = ("M parameters", "parameters", "MiB in fp32", "nats/token", "nats per token", "nats", "tokens", "layers")
"""Units that are written after their number."""
QUOTE = 110
"""Characters of a quotation in a table; the interactive page has it whole."""


class Raw(str):
    """Text of a table that is Markdown already."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a page: text, a figure, a table."""

    title: str
    text: str = ""
    figure: Strip | None = None
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page: title, one lead, one figure, sentences, sections, and how it was made."""

    title: str
    lead: str = ""
    figure: Strip | None = None
    sentences: Sequence[str] = ()
    sections: Sequence[Section] = ()
    made: Sequence[str] = ()
    """Commands, each once, with {arm} and {seed}."""
    note: str = ""
    """What stands above them."""

    def text(self) -> str:
        """The page in Markdown."""
        found = templates()
        found.filters |= {"wrapped": wrapped, "command": command, "table": table}
        text = found.get_template("page.md.j2").render(page=self)
        return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


# ---- what the template does with texts ---------------------------------------------------------


def wrapped(text: str) -> str:
    """A paragraph in lines of at most `LINE` characters."""
    return textwrap.fill(" ".join(text.split()), LINE, break_long_words=False, break_on_hyphens=False)


def command(line: str) -> str:
    """A command, broken with a backslash where it is longer than `LINE` characters."""
    kept = re.sub(r"'[^']*'", lambda quoted: quoted[0].replace(" ", "\0"), visible(line))  # no break inside quotes
    parts = textwrap.wrap(kept, LINE - 6, break_long_words=False, break_on_hyphens=False)
    return " \\\n    ".join(parts).replace("\0", " ")


def cell(text: object) -> str:
    """A cell of a table: text in which Markdown sees no mark of its own."""
    if isinstance(text, Raw):
        return text
    plain = visible(LINE_ENDS.sub(" ", str(text)))
    return re.sub(r"([\\`*_{}\[\]<>#$~^|])", r"\\\1", plain).strip()


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; what is not `Raw` is escaped."""
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    return "\n".join([*lines, *(f"| {' | '.join(map(cell, row))} |" for row in rows)])


def short(quote: str, most: int = QUOTE) -> str:
    """A quotation without marks of LaTeX, cut after a word."""
    for mark, sign in MATHS:
        quote = quote.replace(mark, sign)
    quote = re.sub(r"(α(?:=\d+)?)\1(?!\d)", r"\1", quote)  # a formula of a web page is there twice, once as LaTeX
    quote = re.sub(r"\)\d(Yes|No)$", ")", quote)  # the next cells of a printed table
    return textwrap.shorten(quote, most, placeholder=" …")


def number(claim: Any) -> str:
    """What was measured for a claim, with its interval; a share in percent where the paper prints it so.

    A share of seeds that was counted is "0 of 3".
    """
    if claim.value != claim.value:
        return str(claim.measured)
    if claim.unit == "seeds" and claim.ci_low != claim.ci_low:
        return f"{claim.value * int(claim.n):.0f} of {claim.n}"
    percent = "%" in claim.printed
    own, *ends = (
        three_digits(100 * x if percent else x) + " %" * percent for x in (claim.value, claim.ci_low, claim.ci_high)
    )
    return f"{own} ({ends[0]} to {ends[1]})" if claim.ci_low < claim.ci_high else own  # a count is the same in all runs


def with_unit(text: str, unit: str) -> str:
    """A number and its unit, where it has one that is not seen anyway."""
    seen = "%" in text or text.endswith(UNITS)
    return f"{text} {unit}" if text and unit in UNITS and not seen else text


def three_digits(x: float) -> str:
    """A number with three significant digits, whole ones with separators."""
    if x == 0 or not math.isfinite(x):
        return "0" if x == 0 else "undefined"
    if abs(x) >= 1000:
        return minus(f"{x:,.0f}")
    decimals = 2 - math.floor(math.log10(abs(x)))
    text = f"{x:.{max(decimals, 0)}f}" if decimals <= 7 else f"{x:.1e}"
    return minus(text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text)


def minus(text: str) -> str:
    """Text with a minus sign in place of the hyphen."""
    return text.replace("-", "−")
