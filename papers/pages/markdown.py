"""The Markdown pages of results: what `pages.toml` says with the numbers of the tables, through one template."""

import math
import re
import textwrap
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from streamscope.cli.terminal import LINE_ENDS, visible
from streamscope.papers.claims.judged import number_text
from streamscope.papers.pages.strips import Strip, templates

LINE = 150
"""Characters of a line of text."""
MATHS = {
    r"\(": "", r"\)": "", "$": "", "**": "", r"\approx": "≈", r"\pm": "±", r"\times": "×", r"\alpha": "α",
    r"\beta": "β", r"\mu": "μ", r"\sigma": "σ", r"\lambda": "λ", r"\Delta": "Δ", r"\subset": "⊂", r"\leq": "≤",
    r"\ell": "ℓ", r"\mathbf": "", r"\text": "", r"\max": "max", r"\%": "%",
}  # fmt: skip
"""Marks of LaTeX in quotations, and the signs that replace them."""
MARK = re.compile(r"\\[a-zA-Z%]|[_^]\{")
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
UNITS = ("M parameters", "parameters", "MiB in fp32", "nats/token", "nats per token", "nats", "tokens", "layers")
"""Units that are written after a printed number."""
SCORES = (
    "AMI", "ARI", "HSS", "SPS", "Spearman's ρ", "attention", "attention to the target", "cosine", "effective rank",
    "factor", "p", "r²", "slope", "|Spearman's ρ|", "|W|", "|cosine|", "α_res",
)  # fmt: skip
"""Names of what has no unit, which are written before a measured number."""


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
    """A page: title, one lead, one figure, sentences, details, sections, and how it was made."""

    title: str
    lead: str = ""
    figure: Strip | None = None
    sentences: Sequence[str] = ()
    details: Sequence[tuple[str, str]] = ()
    """Title and text of each."""
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


def wrapped(text: str, mark: str = "") -> str:
    """A paragraph in lines of at most `LINE` characters, or an item of a list that begins with a mark."""
    how: Any = {"break_long_words": False, "break_on_hyphens": False, "subsequent_indent": " " * len(mark)}
    return textwrap.fill(mark + " ".join(text.split()), LINE, **how)


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


def quotation(text: str) -> str:
    """A quotation in plain signs: without marks of LaTeX, each formula once, the cells of a printed table apart."""
    text = re.sub(r"^\\\((-?\d)\\\)", r"\1 ", text if r"\(" in text else _once(text))
    for mark, sign in MATHS.items():
        text = text.replace(mark, sign)
    text = re.sub(r"\^\{([\d-]+)\}", lambda found: found[1].translate(RAISED), text).replace("{", "").replace("}", "")
    text = re.sub(r"\)\d(Yes|No)$", ")", text)  # the next cells of a printed table
    apart = re.sub(r"(\d\.\d{3,4})(?=\d\.\d{3})", r"\1 ", re.sub(r"%(?=\d)", "% ", text))
    if apart != text:
        apart = re.sub(r"(\d\.\d{3})(\d)$", r"\1 \2", apart)
    return " ".join(apart.split())


def _once(text: str) -> str:
    """A formula that the text of a web page has twice, as read and then as LaTeX, as LaTeX alone: xtx_{t} is x_{t}."""
    at = 0
    while found := MARK.search(text, at):
        mark, at = found.span()
        begins = {i for i, sign in enumerate(text) if sign != " "}
        ends = {i + 1 for i in begins}
        middles = {i for i in begins & ends if i <= mark}
        spans = ((i, j, k) for j in middles for i in begins if i < j for k in ends if k > mark)
        same = [
            (len(_signs(text[i:j])), i - j, -k, i, j) for i, j, k in spans
            if "\\" not in text[i:j] and text[j:k].count("{") == text[j:k].count("}")
            and _signs(text[i:j]) == _signs(text[j:k]) != ""
        ]  # fmt: skip
        if same:
            _, less, end, begin, middle = max(same)
            text, at = text[:begin] + text[middle:], less - end
    return text


@cache
def _signs(formula: str) -> str:
    """The signs of a formula as one reads them, without what a copy from a web page loses."""
    for mark, sign in MATHS.items():
        formula = formula.replace(mark, sign)
    return unicodedata.normalize("NFKC", re.sub(r"[{}_^≈ -]", "", formula))


def number(claim: Any) -> str:
    """What was measured for a claim, with its interval; a share in percent.

    A share of seeds that was counted is "0 of 3".
    """
    if claim.value != claim.value:
        return str(claim.measured)
    if claim.unit == "seeds" and claim.ci_low != claim.ci_low:
        return f"{claim.value * int(claim.n):.0f} of {claim.n}"
    percent = in_percent(claim)
    own, *ends = (
        three_digits(100 * x if percent else x) + " %" * percent for x in (claim.value, claim.ci_low, claim.ci_high)
    )
    return f"{own} ({ends[0]} to {ends[1]})" if claim.ci_low < claim.ci_high else own  # a count is the same in all runs


def in_percent(claim: Any) -> bool:
    """Whether what was measured is written in percent: a share, or a probability that the paper prints so."""
    return claim.unit.startswith("share") or ("%" in claim.printed and claim.unit != "factor")


def measurement(claim: Any, levels: Sequence[float] | None = None) -> str:
    """What was measured for a claim, with its unit: "18.8 % (15.2 % to 22.4 %) of tokens", "r² 0.29 (0.24 to 0.35)".

    With the levels of a difference "52.6 % against 33.8 % of tokens, difference 18.8 points (15.2 to 22.4)"; if they
    are none, "difference 18.8 points (15.2 to 22.4)".
    """
    text, percent = number(claim), in_percent(claim)
    if claim.value != claim.value or not claim.unit:
        return text
    of = claim.unit.removeprefix("share").strip() if claim.unit.startswith("share") else "" if percent else claim.unit
    before, after = (of, "") if of in SCORES else ("", of)
    if levels is not None:
        own, *width = text.replace(" %", "").split(" ", 1)
        text = " ".join(["difference", own, *(["points"] if percent else []), *width])
        if levels:
            both = " against ".join(f"{three_digits(100 * x)} %" if percent else minus(number_text(x)) for x in levels)
            text, after = f"{both} {after}".rstrip() + f", {text}", ""
        elif percent:
            after = ""
    return " ".join(filter(None, (before, text, after)))


def with_unit(text: str, unit: str) -> str:
    """A printed number and its unit, where it has one that is not seen anyway."""
    seen = "%" in text or text.endswith((*UNITS, "seeds"))
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
