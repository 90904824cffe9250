"""What `--help` prints: a sentence, two examples, and the options in named groups, as wide as the terminal.

The options are those that tyro reads from the dataclass. Formula and protocol stand in the documentation of the module.
"""

import ast
import inspect
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_type_hints

from streamscope.cli.bounds import declared

COMMAND = re.compile(r"(?:python -m|torchrun|streamscope) ")
COLUMN = 26  # where the meanings of options begin
METAVARS = {"STR": "TEXT", "INT": "N", "FLOAT": "NUMBER"}


class Group(str):
    """The title under which `--help` lists an option: `out: Annotated[Path | None, Group("Output")] = None`."""


def meanings(cls: type) -> dict[str, str]:
    """Field -> the docstring under it, a paragraph a line; own fields and inherited ones, as far as there is source."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        body = _classes(getattr(sys.modules.get(base.__module__), "__file__", None)).get(base.__name__)
        if body is None:  # made at run time, of a shell, built in
            continue
        for line, next_node in zip(body.body, body.body[1:], strict=False):
            if not (isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)):
                continue
            if isinstance(next_node, ast.Expr) and isinstance(text := getattr(next_node.value, "value", None), str):
                paragraphs = re.split(r"\n\s*\n", text.strip())
                docs[line.target.id] = "\n\n".join(" ".join(words.split()) for words in paragraphs)
    return docs


@cache
def _classes(file: str | None) -> dict[str, ast.ClassDef]:
    """The classes in the source of a file, by name."""
    if file is None or not file.endswith(".py"):
        return {}
    nodes = ast.walk(ast.parse(Path(file).read_text(encoding="utf-8")))
    return {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}


@cache
def dataclasses_of(options: Any) -> list[type]:
    """`options` and the dataclasses inside it, its fields' or those of a union."""
    classes, inner = [], get_args(options)
    if isinstance(options, type) and is_dataclass(options):
        classes, inner = [options], (*get_type_hints(options).values(), *inner)
    return classes + [cls for hint in inner if get_args(hint) or is_dataclass(hint) for cls in dataclasses_of(hint)]


def describe(options: "type | UnionType", *, empty: bool = False) -> None:
    """Hand tyro the meanings of all options, which it would break where the lines of their source end.

    With `empty` none: tyro would read the source of every class, which takes a tenth of a second.
    """
    for cls in dataclasses_of(options):
        texts = {} if empty else meanings(cls)
        for option in fields(cls):
            option.metadata = {**option.metadata, "help": texts.get(option.name, "")}  # type: ignore[assignment]


def help_text(parser: Any, options: Any, doc: str, words: Sequence[str], more: str = "") -> str:
    """The help of a command, or of the subcommand that `words` name. `doc` is the documentation of its module, and
    `more` says where the rest of it is. `parser` is tyro's, which is argparse's by another name."""
    width = min(shutil.get_terminal_size().columns, 100)
    summary, examples, blocks = parts_of(doc, parser.prog, width)
    while subcommands := _subcommands(parser):
        if not (chosen := [word for word in words if word in subcommands]):
            break
        parser, words = subcommands[chosen[0]], words[words.index(chosen[0]) + 1 :]
        summary, examples, blocks = " ".join((parser.description or "").split()), [], []
    groups = _groups(parser, options)
    places = "".join(f" {_typed(action)}" for action in groups.get("Arguments", ()))
    usage = f"usage: {parser.prog}{' COMMAND' if subcommands else places} [options]"
    lines = [textwrap.fill(usage, width, subsequent_indent="    "), "", textwrap.fill(summary, width)]
    if examples:
        lines += ["", "Examples:", *(f"    {example}" for example in examples)]
    for block in blocks:
        lines += ["", block]
    if subcommands:
        lines += ["", "Commands:"]
        for name, item in subcommands.items():
            lines += _entry(name, " ".join((item.description or "").split()), width)
    for title, actions in groups.items():
        lines += ["", f"{title}:"] if actions else []
        for item in actions:
            meaning = re.sub(r"\s*\(default: (?:None|'')?\)$", "", (item.help or "").replace("%%", "%"))
            if len(item.option_strings) == 2:
                meaning = meaning.replace("(default: True)", "(default: on)").replace(
                    "(default: False)", "(default: off)"
                )
            lines += _entry(_typed(item), meaning, width)
    return "\n".join([*lines, *(["", textwrap.fill(more, width)] if more and not subcommands else [])])


def parts_of(doc: str, prog: str, width: int) -> tuple[str, list[str], list[str]]:
    """(summary, two examples, other indented blocks) of a module's documentation; examples of `prog` come first.

    A block follows the sentence that introduces it, if one does.
    """
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(doc))
    commands: list[str] = []
    blocks: list[str] = []
    for previous, paragraph in pairwise(paragraphs):
        lines = _joined(paragraph)
        if all(map(COMMAND.match, lines)):
            commands += [re.sub(r"\s{2,}(?=[^\s#])", "  # ", line) for line in lines]
        elif all(line.startswith("    ") for line in paragraph.splitlines()):
            sentence = re.split(r"(?<=\.) ", " ".join(previous.split()))[-1]
            blocks.append(
                (textwrap.fill(sentence, width) + "\n" if previous.endswith(":") else "") + paragraph.rstrip()
            )
    name = re.split(r"[. ]", prog)[-1]
    commands.sort(key=lambda line: (not re.search(rf"[. ]{re.escape(name)}\b", line), len(line) + 4 > width))
    return " ".join(paragraphs[0].split()), commands[:2], blocks


def _joined(paragraph: str) -> list[str]:
    """The lines of a paragraph, those that stand further in joined with the one that they go on from."""
    lines = paragraph.splitlines()
    merged_lines: list[str] = []
    for line in lines:
        if merged_lines and len(line) - len(line.lstrip()) > len(lines[0]) - len(lines[0].lstrip()):
            merged_lines[-1] += f" {line.strip()}"
        else:
            merged_lines.append(line.strip())
    return merged_lines


def _subcommands(parser: Any) -> dict[str, Any]:
    choices = [action.choices for action in parser._actions if isinstance(action.choices, dict)]
    return dict(choices[0]) if choices else {}


def _groups(parser: Any, options: Any) -> dict[str, list[Any]]:
    """Title -> options: what has no name, the command's own, those of parts by their names, those of a `Group`."""
    hints = get_type_hints(options, include_extras=True) if is_dataclass(options) else {}
    marked = {name.replace("_", "-"): group for name, hint in hints.items() for group in declared(hint, Group)}
    groups: dict[str, list[Any]] = {"Arguments": [], "Options": []}
    last: dict[str, list[Any]] = {}
    for group in parser._action_groups:
        name, _, kind = (group.title or "").removesuffix(" options").partition("-")
        title = name.capitalize() + (f" ({kind.replace('-', ' ')})" if kind else "")
        for action in group._group_actions:
            if action.dest == "help" or isinstance(action.choices, dict):
                continue
            if action.dest in marked and action.option_strings:
                last.setdefault(marked[action.dest], []).append(action)
            else:
                groups.setdefault("Arguments" if not action.option_strings else title, []).append(action)
    return {**groups, **dict(reversed(last.items()))}


def _typed(action: Any) -> str:
    """How an option is typed: `--umap / --no-umap`, `--heads TEXT …`."""
    value = action.metavar if isinstance(action.metavar, str) else ""
    value = re.sub(r"^\{(\[.*\])\}$", r"\1", value.replace("{None}|", "").replace("{None,", "{"))  # of an optional one
    value = re.sub(r"^\[?(\S+) \[\1 \.\.\.\]\]?$", r"\1 …", value)
    value = re.sub(r"\b(?:STR|INT|FLOAT)\b", lambda match: METAVARS[match[0]], value)
    return " ".join(filter(None, [" / ".join(action.option_strings), value]))


def _entry(typed: str, meaning: str, width: int) -> list[str]:
    """An option and its meaning, on the same line, or below a long option."""
    if len(typed) > width - 2:
        typed = typed.replace(",", ", ")
    shown = textwrap.wrap(typed, width - 2, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    indent = " " * COLUMN
    below: list[str] = []
    for paragraph in meaning.split("\n\n"):
        below += textwrap.wrap(paragraph, width - COLUMN, break_long_words=False, break_on_hyphens=False)
    first = f"  {shown[0]}" if len(shown) == 1 else ""
    if first and below and len(first) < COLUMN - 1:
        return [first.ljust(COLUMN) + below[0], *(indent + line for line in below[1:])]
    return [*(f"  {line}" for line in shown), *(indent + line for line in below)]
