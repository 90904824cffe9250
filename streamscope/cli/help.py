"""What `--help` prints beyond what tyro does: meanings flow, and prose ends where the terminal does."""

import ast
import inspect
import io
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, get_args, get_type_hints

BOX = "│╭╰├"
"""What lines of a box begin with; their width is right already."""


def meanings(made: type) -> dict[str, str]:
    """Field -> the docstring under it, a paragraph a line; own fields and inherited ones, as far as there is source."""
    found: dict[str, str] = {}
    for one in reversed(made.__mro__):
        try:
            (body,) = ast.parse(textwrap.dedent(inspect.getsource(one))).body
        except (OSError, TypeError, SyntaxError):  # made at run time, of a shell, built in
            continue
        if not isinstance(body, ast.ClassDef):
            continue
        for line, under in zip(body.body, body.body[1:], strict=False):
            if not (isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)):
                continue
            if isinstance(under, ast.Expr) and isinstance(said := getattr(under.value, "value", None), str):
                paragraphs = re.split(r"\n\s*\n", said.strip())
                found[line.target.id] = "\n\n".join(" ".join(words.split()) for words in paragraphs)
    return found


def dataclasses_of(options: Any) -> Iterator[type]:
    """`options` and the dataclasses inside it, its fields' or those of a union."""
    if isinstance(options, type) and is_dataclass(options):
        yield options
        for hint in get_type_hints(options).values():
            yield from dataclasses_of(hint)
    for inner in get_args(options):
        yield from dataclasses_of(inner)


def describe(options: "type | UnionType") -> None:
    """Hand tyro the meanings of all options, which it would break where the lines of their source end."""
    for made in dataclasses_of(options):
        said = meanings(made)
        for one in fields(made):
            if one.name in said:
                one.metadata = {**one.metadata, "help": said[one.name]}  # type: ignore[assignment]


def examples(doc: str) -> str:
    """`doc` with its commands indented, as lines of their own, where they are all that follows its first line."""
    return re.sub(r"(?m)^(?=(?:python -m|torchrun|streamscope) )", "    ", doc)


class _Printed(io.StringIO):
    """What is printed, for a terminal like standard output."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return sys.__stdout__ is not None and sys.__stdout__.isatty()


@contextmanager
def wrapped() -> Iterator[None]:
    """Print with the prose between the boxes wrapped at words, 100 characters at most; examples stay as they are."""
    said, width = _Printed(), min(shutil.get_terminal_size().columns, 100)
    try:
        with redirect_stdout(said):
            yield
    finally:
        for line in re.sub(r"\n{3,}", "\n\n", said.getvalue()).splitlines():
            prose = len(line) > width and line[:1] not in BOX and line[:1] != " "
            print(textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False) if prose else line)
