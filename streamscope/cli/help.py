"""What `--help` prints: a sentence, two examples, and the options in named groups, as wide as the terminal.

The options are those that tyro reads from the dataclass. Formula and protocol stand in the documentation of the module.
"""

import ast
import inspect
import re
import shutil
import textwrap
from collections import namedtuple
from collections.abc import Sequence
from dataclasses import is_dataclass
from functools import partial
from itertools import pairwise
from typing import Any, get_type_hints

from streamscope.cli.bounds import declared

COMMAND = re.compile(r"(?:python -m|torchrun|streamscope) ")
COLUMN = 26  # where the meanings of options begin
METAVARS = {"STR": "TEXT", "INT": "N", "FLOAT": "NUMBER"}
Group = namedtuple("Group", ("title",))
"""The title under which `--help` lists an option: `out: Annotated[Path | None, Group("Output")] = None`."""


def meanings(cls: type) -> dict[str, str]:
    """Field -> the docstring under it, a paragraph a line; own fields and inherited ones, as far as there is source."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        try:
            source = inspect.getsource(base)
        except (OSError, TypeError):  # made at run time, of a shell, built in
            continue
        tree = ast.parse("if True:\n" * source[:1].isspace() + source)  # of a class inside a function
        body = next(node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
        for line, doc in pairwise(body):
            if isinstance(line, ast.AnnAssign) and isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant):
                docs[ast.unparse(line.target)] = "\n\n".join(_paragraphs(str(doc.value.value)))
    return docs


def _paragraphs(text: str) -> list[str]:
    """The paragraphs of a text, each on one line."""
    return [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text.strip())]


def help_text(parser: Any, options: Any, doc: str, words: Sequence[str], more: str = "") -> str:
    """The help of a command, or of the subcommand that `words` name. `doc` is the documentation of its module, and
    `more` says where the rest of it is. `parser` is tyro's, which is argparse's by another name."""
    width = min(shutil.get_terminal_size().columns, 100)
    summary, examples = summary_of(doc, parser.prog, width)
    while (subcommands := _subcommands(parser)) and (chosen := [word for word in words if word in subcommands]):
        parser, words = subcommands[chosen[0]], words[words.index(chosen[0]) + 1 :]
        summary, examples = " ".join((parser.description or "").split()), []
    groups = _groups(parser, options)
    places = "".join(f" {_typed(action)}" for action in groups.get("Arguments", ()))
    usage = f"usage: {parser.prog}{' COMMAND' if subcommands else places} [options]"
    lines = [textwrap.fill(usage, width, subsequent_indent="    "), "", textwrap.fill(summary, width)]
    lines += ["", "Examples:", *(f"    {example}" for example in examples)] if examples else []
    sections = {"Commands": [(name, item.description or "") for name, item in subcommands.items()]}
    for title, actions in groups.items():
        sections[title] = [(_typed(action), _meaning(action)) for action in actions]
    for title, entries in sections.items():
        lines += ["", f"{title}:"] if entries else []
        lines += [line for typed, meaning in entries for line in _entry(typed, meaning, width)]
    return "\n".join([*lines, *(["", textwrap.fill(more, width)] if more and not subcommands else [])])


def summary_of(doc: str, prog: str, width: int) -> tuple[str, list[str]]:
    """The first sentence of a module's documentation, and two of its examples, first those of `prog`."""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(doc))
    joined = [re.sub(r"\n +", " ", textwrap.dedent(paragraph)).splitlines() for paragraph in paragraphs[1:]]
    blocks = [lines for lines in joined if all(map(COMMAND.match, lines))]
    commands = [re.sub(r"\s{2,}(?=[^\s#])", "  # ", line) for lines in blocks for line in lines]
    name = re.split(r"[. ]", prog)[-1]
    commands.sort(key=lambda line: (not re.search(rf"[. ]{re.escape(name)}\b", line), len(line) + 4 > width))
    return " ".join(paragraphs[0].split()), commands[:2]


def _subcommands(parser: Any) -> dict[str, Any]:
    choices = [action.choices for action in parser._actions if isinstance(action.choices, dict)]
    return dict(choices[0]) if choices else {}


def _groups(parser: Any, options: Any) -> dict[str, list[Any]]:
    """Title -> options: what has no name, the command's own, those of parts by their names, those of a `Group`."""
    hints = get_type_hints(options, include_extras=True) if is_dataclass(options) else {}
    marked = {name.replace("_", "-"): group.title for name, hint in hints.items() for group in declared(hint, Group)}
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


def _meaning(action: Any) -> str:
    meaning = re.sub(r"\s*\(default: (?:None|'')?\)$", "", (action.help or "").replace("%%", "%"))
    if len(action.option_strings) == 2:
        meaning = meaning.replace("(default: True)", "(default: on)").replace("(default: False)", "(default: off)")
    return meaning


def _entry(typed: str, meaning: str, width: int) -> list[str]:
    """An option and its meaning, on the same line, or below a long option."""
    wrap = partial(textwrap.wrap, break_long_words=False, break_on_hyphens=False)
    shown = wrap(typed if len(typed) <= width - 2 else typed.replace(",", ", "), width - 2, subsequent_indent="    ")
    below = [" " * COLUMN + line for text in _paragraphs(meaning) for line in wrap(text, width - COLUMN)]
    if below and len(typed) < COLUMN - 3:
        return [f"  {typed}".ljust(COLUMN) + below[0].lstrip(), *below[1:]]
    return [*(f"  {line}" for line in shown), *below]
