"""Escapes untrusted text (file names, fields of manifests, tokens, quotes) for display.

Terminals execute escape sequences, Markdown pages HTML, and rich reads "[/b]" as a style.
"""

import codecs
import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex

UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Control characters, line ends, text directions, invisible characters and lone surrogates."""
LINE_ENDS = re.compile(r"[\r\n\t]+")
TAG = re.compile(r"(?<!\\)((?:\\\\)*)<(?=[A-Za-z/!?])")
"""The start of HTML in Markdown, unless escaped by a backslash (which is itself not escaped)."""


def visible(text: object, keep: str = "") -> str:
    r"""Escape control and invisible characters as \x1b, \n, \u202e, except the text `keep`."""
    if keep:
        return keep.join(map(visible, str(text).split(keep)))
    return UNSEEN.sub(lambda match: match[0].encode("unicode_escape").decode(), str(text))


ASCII = {
    "−": "-", "–": "-", "—": "-", "…": "...", "·": "*", "×": "x", "⊗": "(x)", "⊙": "(.)", "→": "->",
    "←": "<-", "↔": "<->", "≤": "<=", "≥": ">=", "≠": "!=", "≈": "~", "±": "+-", "∞": "inf",
    "√": "sqrt", "½": "1/2", "‖": "||", "§": "sec. ",
    "ℓ": "l", "“": '"', "”": '"', "‘": "'", "’": "'", "′": "'", "∂": "d", "∅": "{}", "∈": " in ", "∫": "integral ",
    "⟦": "[[", "⟧": "]]", "∩": " and ", "∪": " or ", "⏎": "\\n", "⇥": "\\t", "␣": "_", "▁": "_", "█": "#", "─": "-",
    "│": "|", "\N{NO-BREAK SPACE}": " ",
}  # fmt: skip
"""How ASCII spells the symbols of our texts; Greek letters are their names, superscripts ^2, subscripts _2."""


def spelled(error: UnicodeError) -> tuple[str, int]:
    r"""The codecs' error handler of that name: what an encoding lacks is written in ASCII, or as \u65e5."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_in_ascii, error.object[error.start : error.end])), error.end


def _in_ascii(character: str) -> str:
    if character in ASCII:
        return ASCII[character]
    kind, _, base = unicodedata.decomposition(character).partition(" ")
    if kind in ("<super>", "<sub>"):
        return ("^" if kind == "<super>" else "_") + "".join(_in_ascii(chr(int(code, 16))) for code in base.split())
    if match := re.fullmatch(r"GREEK (SMALL|CAPITAL) LETTER (\w+)", unicodedata.name(character, "")):
        return match[2].lower() if match[1] == "SMALL" else match[2].capitalize()
    return character.encode("ascii", "backslashreplace").decode()


codecs.register_error("spelled", spelled)


def counted(n: SupportsIndex, noun: str, spec: str = "") -> str:
    """ "1 pair", "2 pairs", the number in a format such as ","."""
    return f"{n:{spec}} {noun}{'' if n == 1 else 's'}"


def without_html(text: str) -> str:
    return TAG.sub(r"\1\\<", text)


def cell(text: object) -> str:
    """Escape `text` for a cell of a Markdown table, on one line; other Markdown stays."""
    return visible(without_html(LINE_ENDS.sub(" ", str(text)))).replace("|", "\\|")


def code(text: object) -> str:
    """Make `text` a Markdown code span on one line; backticks are replaced."""
    plain = visible(LINE_ENDS.sub(" ", str(text))).replace("`", "′")
    return f"`{plain}`"


def yaml(text: str) -> str:
    """Make `text` a value of a YAML header, quoted unless it is one plain word."""
    return text if re.fullmatch(r"[A-Za-z_][\w.-]*", text, re.ASCII) else json.dumps(text)


def print_grid(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "", width: int | None = None
) -> None:
    """Print a table of plain text whose cells wrap."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=visible(title) or None, title_justify="left")
    for name in columns:
        table.add_column(visible(name), overflow="fold")
    for row in rows:
        table.add_row(*(visible(entry, keep="\n") for entry in row))
    Console(width=width, markup=False, emoji=False).print(table)
