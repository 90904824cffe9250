"""Text of others (names of files, fields of manifests, tokens, quotes) where it is shown: nothing in it acts.

A terminal obeys escape sequences, a Markdown page runs HTML, rich reads "[/b]" as a style. Names may hold all of it.
"""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Control characters, line ends, directions and invisible characters, and what is no character alone."""
LINE_ENDS = re.compile(r"[\r\n\t]+")
TAG = re.compile(r"(?<!\\)((?:\\\\)*)<(?=[A-Za-z/!?])")
"""Where HTML begins in Markdown: not behind a backslash, which a backslash before it takes away."""


def visible(text: object, keep: str = "") -> str:
    r"""`text` with what a terminal would obey, or not show, written as \x1b, \n, \u202e; characters in `keep` stay."""
    return UNSEEN.sub(lambda m: m[0] if m[0] in keep else m[0].encode("unicode_escape").decode(), str(text))


def without_html(text: str) -> str:
    """Markdown in which no HTML begins."""
    return TAG.sub(r"\1\\<", text)


def cell(text: object) -> str:
    """`text` as a cell of a Markdown table: on one line, no HTML, nothing unseen. Other marks of Markdown stay."""
    return visible(without_html(LINE_ENDS.sub(" ", str(text)))).replace("|", "\\|")


def code(text: object) -> str:
    """`text` as a code span on one line, which backticks in it do not end."""
    plain = visible(LINE_ENDS.sub(" ", str(text))).replace("`", "′")
    return f"`{plain}`"


def yaml(text: str) -> str:
    """`text` as a value of a YAML header: quoted unless it is one plain word."""
    return text if re.fullmatch(r"[A-Za-z_][\w.-]*", text, re.ASCII) else json.dumps(text)


def print_grid(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "", width: int | None = None
) -> None:
    """A table on the terminal whose cells are text: they fold, and hold no style."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=visible(title) or None, title_justify="left")
    for name in columns:
        table.add_column(visible(name), overflow="fold")
    for row in rows:
        table.add_row(*(visible(one, keep="\n") for one in row))
    Console(width=width, markup=False, emoji=False).print(table)
