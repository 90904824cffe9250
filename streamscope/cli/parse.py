"""What all commands share: parsing with tyro, one line and exit code 2 on bad input.

A command is a module with `main(argv=None)`:

    def main(argv: Sequence[str] | None = None) -> None:
        options = parse(Options, argv, __doc__)
        ...heavy imports and work...

    if __name__ == "__main__":
        command(main)
"""

import io
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import fields
from itertools import pairwise, takewhile
from pathlib import Path
from traceback import print_exc
from types import UnionType
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from streamscope.cli.bounds import check
from streamscope.cli.commands import commands
from streamscope.cli.errors import InputError, did_you_mean
from streamscope.cli.help import dataclasses_of, describe, help_text
from streamscope.cli.terminal import visible

Options = TypeVar("Options")
SCRIPT = "streamscope "
"""What `sys.argv[0]` begins with where a command is run by the entry point of the installed package."""

COLLECTED: list[Any] | None = None
"""Where `parse` puts the options of a command instead of reading them, for `streamscope completion`."""
DEFECT = "This is a defect of streamscope: please report it, with the lines above and the command."
LONGEST = 160  # characters of an argument that an error repeats
OPTION = re.compile(r"(--(?:no-)?([\w-]+))(?:=.*)?", re.DOTALL)
"""An option as a word: --NAME, --no-NAME or --NAME=VALUE."""


def parse(options: type[Options] | UnionType, argv: Sequence[str] | None, doc: str | None) -> Options:
    """Read `argv` into the dataclass `options`; its field docs are the help, its `Bounds` what numbers it takes.

    Raises `InputError` for a word that is no option or no value of one, for an option that is given twice, for a number
    outside its bounds and for a path that is the empty string.
    """
    import tyro

    spec, output = getattr(sys.modules["__main__"], "__spec__", None), io.StringIO()
    prog = f"python -m {spec.name.removesuffix('.__main__')}" if spec is not None else None
    if sys.argv[0].startswith(SCRIPT):
        prog = sys.argv[0]
    words = with_all(sys.argv[1:] if argv is None else argv, options)
    if COLLECTED is not None:
        COLLECTED.append(options)
        raise SystemExit(0)
    settings: Any = {"prog": prog, "config": (tyro.conf.AvoidSubcommands,)}
    if {"-h", "--help"} & set(words):
        describe(options)
        with warnings.catch_warnings():  # tyro would rather print itself
            warnings.simplefilter("ignore", DeprecationWarning)
            parser = tyro.extras.get_parser(cast(Any, options), **settings)
        print(spoken(help_text(parser, options, spoken(doc or ""), words, _more(spec))))
        raise SystemExit(0)
    check_words(words, options)
    describe(options, empty=True)
    try:
        with redirect_stderr(output), _wide():
            values: Any = tyro.cli(cast(Any, options), args=words, **settings)
    except SystemExit as end:
        if not end.code:
            raise
        message = _refusal(output.getvalue(), words, options)
        raise InputError(f"{message}; {prog or 'this command'} --help lists the options") from None
    check(values, _typed)
    return values


def _typed(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@contextmanager
def _wide() -> Iterator[None]:
    """A terminal so wide that tyro breaks no line."""
    width = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100000"
    try:
        yield
    finally:
        del os.environ["COLUMNS"]
        if width is not None:
            os.environ["COLUMNS"] = width


def with_all(argv: Sequence[str], options: type | UnionType) -> list[str]:
    """The words, with all behind an option such as --heads that stands without a value and whose default is all.

    Raises `InputError` for an option without a value where that would mean the same as no option.
    """
    defaults = {_typed(option.name): option.default for cls in dataclasses_of(options) for option in fields(cls)}
    words = list[str]()
    for word, next_word in zip(argv, [*argv[1:], "--"], strict=False):
        value = defaults.get(word) if next_word.startswith("--") else None
        if value == ():
            raise InputError(f"{word} has no value: give one, or leave {word} out")
        words += [word, "all"] if value == ("all",) else [word]
    return words


def check_words(words: Sequence[str], options: Any) -> None:
    """Raise `InputError` for an empty path, which tyro takes for the working folder, and for an option that is given
    twice: tyro takes the last. --set and its like may repeat."""
    import tyro

    flags = _flags(options)
    for option, value in [*pairwise(words), *(word.split("=", 1) for word in words if "=" in word)]:
        if not value and Path in (flags.get(option), *get_args(flags.get(option))):
            raise InputError("an empty path was given; name a file or a folder (. is the folder you are in)")

    spellings: dict[str, str] = {}
    for match in map(OPTION.fullmatch, takewhile(lambda word: word != "--", words)):
        if match is None:
            continue
        spelling, option = (text.replace("_", "-") for text in (match[1], match[2]))
        if option in spellings and f"--{option}" not in _marked(options, tyro.conf.UseAppendAction):
            if spellings[option] != spelling:
                raise InputError(f"{spellings[option]} and {spelling} contradict each other: give one")
            several = get_origin(flags.get(spelling)) is tuple
            raise InputError(f"{spelling} is given twice: give it once{', with all its values' * several}")
        spellings[option] = spelling


def _more(spec: Any) -> str:
    module = commands().get(sys.argv[0].removeprefix(SCRIPT)) if sys.argv[0].startswith(SCRIPT) else None
    module = module or (spec.name.removesuffix(".__main__") if spec is not None else None)
    return f"Formulas, columns and more examples: python -m pydoc {module}" if module else ""


def spoken(text: str) -> str:
    """`text` with its commands written as the user typed this one: as `streamscope ablate`, or with python -m."""
    if not sys.argv[0].startswith(SCRIPT) or "python -m " not in text:
        return text
    names = {module.removeprefix("streamscope."): name for name, module in commands().items()}

    def command(match: re.Match[str]) -> str:
        if match[1] not in names:
            return match[0]
        typed = f"{SCRIPT}{names[match[1]]}"
        return typed.ljust(len(match[0])) if match[2] else typed  # what stands in columns behind it stays there

    return re.sub(r"python -m (?:streamscope\.)?(\w+(?:\.\w+)*)( {2,})?", command, text)


def _flags(options: Any, extras: bool = False) -> dict[str, Any]:
    """--option -> its type, of all fields of a dataclass (or several), also of those inside it."""
    hints = (get_type_hints(cls, include_extras=extras) for cls in dataclasses_of(options))
    return {_typed(name): hint for of_class in hints for name, hint in of_class.items()}


def _marked(options: Any, marker: Any) -> set[str]:
    """The options, as --option, whose types have this marker of tyro."""
    flags = _flags(options, extras=True)
    return {flag for flag, hint in flags.items() if marker in getattr(hint, "__metadata__", ())}


def _refusal(text: str, words: Sequence[str], options: Any) -> str:
    """One plain line of what tyro says: "--threshold takes a number or own, got 'x'", or with the nearest option."""
    import tyro

    message, flags = _one_line(text), _flags(options)
    match = re.match(r"(--[\w-]+): |invalid choice .* for argument '(--[\w-]+)'", message)
    if match is not None and (hint := flags.get(match[1] or match[2])) is not None:
        got = re.search(r"'([^']*)'", message.removeprefix(match[1] or ""))
        return f"{match[1] or match[2]} takes {_values(hint)}" + (f", got {got[1]!r}" if got else "")
    for option, value, next_word in zip(words, words[1:], words[2:], strict=False):
        hint = flags.get(option, bool)
        several = hint is bool or any(get_origin(part) is tuple for part in (hint, *get_args(hint)))
        if not several and not next_word.startswith("--") and message.startswith(f"Unrecognized options: {next_word}"):
            line = f"{option} takes one value, but {next_word!r} follows {value!r}"
            return f"{line}: put quotes around a value with spaces"
    if "Unrecognized options" not in message:
        return message
    word = next((word.strip(",") for word in message.split() if word.startswith("--")), "")
    places = _marked(options, tyro.conf.Positional)
    if word in places:
        return f"{message}: give its value without {word}"
    names = {flag.removeprefix("--"): flag for flag in flags if flag not in places}
    suggestion = did_you_mean(word.removeprefix("--"), names, n=1, cutoff=0.6)
    return f"{message}, {suggestion}" if suggestion else message


def _values(hint: Any) -> str:
    words = {int: "a whole number", float: "a number", bool: "True or False", str: "text", Path: "a path"}
    inner = [arg for arg in get_args(hint) if arg is not type(None)]
    if get_origin(hint) is Literal:
        return _either(list(map(str, inner)))
    if get_origin(hint) is tuple and inner[-1] is ...:
        return f"one or more values, each {_values(inner[0])}"
    if get_origin(hint) is tuple:
        return f"{len(inner)} values: {', '.join(map(_values, inner))}"
    return _either(list(map(_values, inner))) if inner else words.get(hint, "another value")


def _either(words: Sequence[str]) -> str:
    return " or ".join([*([", ".join(words[:-1])] if words[1:] else []), *words[-1:]])


def _one_line(message: str) -> str:
    """What tyro says in a box (or below a title, where there are no characters for one): the text above a rule."""
    sections: list[list[str]] = [[]]
    for line in (raw_line.strip(" │") for raw_line in message.splitlines()):
        if line and set(line) <= {"─", "-"}:
            sections.append([])
        elif line[:1] not in ("╭", "╰"):
            sections[-1].append(line)
    section = sections[0] if "╭" in message or len(sections) == 1 else sections[1]
    return " ".join(" ".join(section).split()).removeprefix("Error parsing ").rstrip(".")


class _Reader(io.FileIO):
    """A stream to a reader that may go, as in `| head`: what comes after that is dropped."""

    gone = False

    def write(self, data: Any) -> int:
        try:
            return len(data) if self.gone else super().write(data)
        except BrokenPipeError:
            self.gone = True
            return len(data)


def _until_the_reader_goes(stream: Any) -> Any:
    """`stream` (standard output or error) so that writing never raises because nobody reads any more, or because its
    encoding lacks a character (`terminal.spelled`): a command that prints and then writes files must write them."""
    try:
        descriptor = stream.fileno()
    except (AttributeError, OSError, ValueError):  # closed from the start, or no file at all, as under test
        return stream
    stream.flush()
    lines = stream.line_buffering or stream is sys.stderr
    buffer = io.BufferedWriter(_Reader(descriptor, "w", closefd=False))
    return io.TextIOWrapper(buffer, encoding=stream.encoding, errors="spelled", line_buffering=lines)


def _shortened(line: str) -> str:
    """`line` with only the beginnings of long words that were typed, and its two ends if it is long all the same."""
    for word in sorted(sys.argv[1:], key=len, reverse=True):
        for part in (word, *re.split(r"[=:,@#\s]", word)):
            if len(part) > LONGEST:
                line = line.replace(visible(part), f"{visible(part[:LONGEST])}… ({len(part):,} characters)")
    return line if len(line) < 2000 else f"{line[:1000]} … {line[-400:]}"


def command(main: Callable[[], None]) -> None:
    """Run `main` as a process: bad input prints one line and exits 2, Ctrl-C exits 130, and so does SIGTERM.

    --traceback also prints where bad input was noticed. Any other exception is a defect, and stays a traceback.
    """
    sys.stdout, sys.stderr = _until_the_reader_goes(sys.stdout), _until_the_reader_goes(sys.stderr)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was measured is kept, as after Ctrl-C
    if traceback := "--traceback" in sys.argv:
        sys.argv.remove("--traceback")
    try:
        main()
    except (InputError, OSError) as error:  # OSError: a full disk, a folder that may not be written
        if traceback:
            print_exc()
        of_system = isinstance(error, OSError) and f"{error.strerror or error}: {error.filename or ''}".rstrip(": ")
        print(f"error: {_shortened(visible(of_system or spoken(str(error))))}", file=sys.stderr)
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:  # torch has no class for the memory of the machine
        if "allocat" not in str(error):
            error.add_note(DEFECT)
            raise
        print(f"error: not enough memory ({' '.join(str(error).split())[:200]}); choose smaller sizes", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        error.add_note(DEFECT)
        raise
