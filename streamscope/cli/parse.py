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
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from traceback import print_exc
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from streamscope.cli.bounds import check
from streamscope.cli.commands import commands, entry, first_line
from streamscope.cli.errors import InputError, did_you_mean
from streamscope.cli.help import help_text
from streamscope.cli.terminal import visible

Options = TypeVar("Options")
SCRIPT = "streamscope "
"""What `sys.argv[0]` begins with where a command is run by the entry point of the installed package."""

SHELLS = ("bash", "zsh", "fish", "tcsh")
COLLECTED: list[Any] | None = None
"""Where `parse` puts the options of a command instead of reading them, for `streamscope completion`."""
DEFECT = "This is a defect of streamscope: please report it, with the lines above and the command."
LONGEST = 160  # characters of an argument that an error repeats
OPTION = re.compile(r"(--(?:no-)?([\w-]+))(?:=(.*))?", re.DOTALL)
"""An option as a word: --NAME, --no-NAME or --NAME=VALUE."""


Option = namedtuple("Option", ("hint", "default", "markers"))
"""What a dataclass declares of an option: its type, its default, and tyro's markers."""


def parse(options: type[Options] | UnionType, argv: Sequence[str] | None, doc: str | None) -> Options:
    """Read `argv` into the dataclass `options`; its field docs are the help, its `Bounds` what numbers it takes."""
    import tyro

    spec, output = getattr(sys.modules["__main__"], "__spec__", None), io.StringIO()
    module = None if spec is None else spec.name.removesuffix(".__main__")
    is_script = sys.argv[0].startswith(SCRIPT)
    prog = sys.argv[0] if is_script else module and f"python -m {module}"
    if COLLECTED is not None:
        COLLECTED.append(options)
        raise SystemExit(0)
    words: Sequence[str] = sys.argv[1:] if argv is None else argv
    settings: Any = {"prog": prog, "config": (tyro.conf.AvoidSubcommands,)}
    if {"-h", "--help"} & set(words):
        with warnings.catch_warnings():  # tyro would rather print itself
            warnings.simplefilter("ignore", DeprecationWarning)
            parser = tyro.extras.get_parser(cast(Any, options), **settings)
        module = (commands().get(sys.argv[0].removeprefix(SCRIPT)) if is_script else None) or module
        more = f"Formulas, columns and more examples: python -m pydoc {module}" if module else ""
        print(spoken(help_text(parser, options, spoken(doc or ""), words, more)))
        raise SystemExit(0)
    known = declared_options(options)
    words = checked_words(words, known)
    columns, os.environ["COLUMNS"] = os.environ.get("COLUMNS"), "100000"  # so wide that tyro breaks no line
    try:
        with redirect_stderr(output):
            values: Any = tyro.cli(cast(Any, options), args=words, **settings)
    except SystemExit as end:
        if not end.code:
            raise
        message = _refusal(output.getvalue(), words, known)
        raise InputError(f"{message}; {prog or 'this command'} --help lists the options") from None
    finally:
        del os.environ["COLUMNS"]
        if columns is not None:
            os.environ["COLUMNS"] = columns
    check(values, "--{}")
    return values


def completion(shell: str = "", *more: str) -> str:
    """`streamscope completion SHELL`: tyro's script that completes commands, their options and the values of these."""
    global COLLECTED
    import tyro

    if shell not in SHELLS or more:
        raise InputError(f"name your shell: streamscope completion {'|'.join(SHELLS)}")
    typed, output = [], io.StringIO()
    for name, module in commands().items():
        COLLECTED = []
        with redirect_stdout(io.StringIO()), suppress(SystemExit):
            entry(module)(["--help"])
        known = tyro.conf.subcommand(name=name, description=first_line(module))
        typed += [Annotated[options, known] for options in COLLECTED[:1]]  # none where it reads its words itself
    COLLECTED = None
    app: Any = Union[tuple(typed)]  # noqa: UP007
    arguments = ["--tyro-print-completion", shell]
    with redirect_stdout(output), suppress(SystemExit):
        tyro.cli(app, prog="streamscope", args=arguments, config=(tyro.conf.AvoidSubcommands,))
    return output.getvalue()


def declared_options(options: Any) -> dict[str, Option]:
    """--option -> what is declared of it, of all fields of a dataclass (or several), also of those inside it."""
    known, hints = {}, [options]
    for hint in hints:  # grows on the way
        hints += get_args(hint)
        if isinstance(hint, type) and is_dataclass(hint):
            types, marked = get_type_hints(hint), get_type_hints(hint, include_extras=True)
            hints += types.values()
            for option in fields(hint):
                markers = getattr(marked[option.name], "__metadata__", ())
                known[f"--{option.name.replace('_', '-')}"] = Option(types[option.name], option.default, markers)
    return known


def checked_words(argv: Sequence[str], known: Mapping[str, Option]) -> list[str]:
    """The words, with all behind an option such as --heads that stands without a value and whose default is all.

    `InputError` for an empty path, which tyro takes for the working folder, and for an option that is given twice: tyro
    takes the last. --set and its like may repeat.
    """
    import tyro

    words, spellings = list[str](), dict[str, str]()
    for word, next_word in zip(argv, [*argv[1:], "--"], strict=False):
        words.append(word)
        match = OPTION.fullmatch(word)
        if match is None or "--" in words:
            continue
        spelling, name = match[1].replace("_", "-"), match[2].replace("_", "-")
        declared = known.get(spelling, Option(bool, None, ()))
        if not (next_word if match[3] is None else match[3]) and Path in (declared.hint, *get_args(declared.hint)):
            raise InputError("an empty path was given; name a file or a folder (. is the folder you are in)")
        if match[3] is None and next_word.startswith("--"):
            if declared.default == ():
                raise InputError(f"{word} has no value: give one, or leave {word} out")
            words += ["all"] if declared.default == ("all",) else []
        if name in spellings and tyro.conf.UseAppendAction not in declared.markers:
            if spellings[name] != spelling:
                raise InputError(f"{spellings[name]} and {spelling} contradict each other: give one")
            several = get_origin(declared.hint) is tuple
            raise InputError(f"{spelling} is given twice: give it once{', with all its values' * several}")
        spellings[name] = spelling
    return words


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


def _refusal(text: str, words: Sequence[str], known: Mapping[str, Option]) -> str:
    """One plain line of what tyro says: "--threshold takes a number or own, got 'x'", or with the nearest option."""
    import tyro

    message = _one_line(text)
    match = re.match(r"(--[\w-]+): |invalid choice .* for argument '(--[\w-]+)'", message)
    if match is not None and (option := match[1] or match[2]) in known:
        got = re.search(r"'([^']*)'", message.removeprefix(match[1] or ""))
        return f"{option} takes {_values(known[option].hint)}" + (f", got {got[1]!r}" if got else "")
    for option, value, next_word in zip(words, words[1:], words[2:], strict=False):
        hint = known[option].hint if option in known else bool
        several = hint is bool or any(get_origin(part) is tuple for part in (hint, *get_args(hint)))
        if not several and not next_word.startswith("--") and message.startswith(f"Unrecognized options: {next_word}"):
            line = f"{option} takes one value, but {next_word!r} follows {value!r}"
            return f"{line}: put quotes around a value with spaces"
    if "Unrecognized options" not in message:
        return message
    word = next((word.strip(",") for word in message.split() if word.startswith("--")), "")
    places = {option for option, declared in known.items() if tyro.conf.Positional in declared.markers}
    if word in places:
        return f"{message}: give its value without {word}"
    names = {option.removeprefix("--"): option for option in known if option not in places}
    return ", ".join(filter(None, [message, did_you_mean(word.removeprefix("--"), names, n=1, cutoff=0.6)]))


def _values(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "True or False", str: "text", Path: "a path"}
    inner = [arg for arg in get_args(hint) if arg is not type(None)]
    if get_origin(hint) is tuple and inner[-1] is ...:
        return f"one or more values, each {_values(inner[0])}"
    if get_origin(hint) is tuple:
        return f"{len(inner)} values: {', '.join(map(_values, inner))}"
    words = list(map(str if get_origin(hint) is Literal else _values, inner)) or [names.get(hint, "another value")]
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _one_line(message: str) -> str:
    """What tyro says in a box (or below a title, where there are no characters for one): the text above a rule."""
    lines = [line.strip(" │") for line in message.splitlines() if line[:1] not in ("╭", "╰")]
    sections = re.split(r"(?m)^[─-]+$", "\n".join(lines))
    section = sections[0] if "╭" in message or len(sections) == 1 else sections[1]
    return " ".join(section.split()).removeprefix("Error parsing ").rstrip(".")


class _Reader(io.FileIO):
    """A stream to a reader that may go, as in `| head`: what comes after that is dropped."""

    gone = False

    def write(self, data: Any) -> int:
        try:
            return len(data) if self.gone else super().write(data)
        except BrokenPipeError:
            self.gone = True
            return len(data)


def _shortened(line: str) -> str:
    """`line` with only the beginnings of long words that were typed, and its two ends if it is long all the same."""
    for word in sorted(sys.argv[1:], key=len, reverse=True):
        for part in (word, *re.split(r"[=:,@#\s]", word)):
            if len(part) > LONGEST:
                line = line.replace(visible(part), f"{visible(part[:LONGEST])}… ({len(part):,} characters)")
    return line if len(line) < 2000 else f"{line[:1000]} … {line[-400:]}"


def command(main: Callable[[], None]) -> None:
    """Run `main` as a process: bad input prints one line and exits 2, Ctrl-C exits 130, and so does SIGTERM.

    Writing never raises because nobody reads any more, or because the encoding lacks a character (`terminal.spelled`):
    a command that prints and then writes files must write them.

    --traceback also prints where bad input was noticed. Any other exception is a defect, and stays a traceback.
    """
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name)
        with suppress(AttributeError, OSError, ValueError):  # closed from the start, or no file at all, as under test
            buffer = io.BufferedWriter(_Reader(stream.fileno(), "w", closefd=False))
            stream.flush()
            lines = stream.line_buffering or name == "stderr"
            wrapped = io.TextIOWrapper(buffer, encoding=stream.encoding, errors="spelled", line_buffering=lines)
            setattr(sys, name, wrapped)
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
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        words = " ".join(str(error).split())[:200]
        if isinstance(error, MemoryError | RuntimeError) and "allocat" in words:  # torch has no class for it
            print(f"error: not enough memory ({words}); choose smaller sizes", file=sys.stderr)
            sys.exit(2)
        error.add_note(DEFECT)
        raise
