"""Errors that a user can cause, as one line that says what to change."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


class InputError(Exception):
    """Bad input: a name, a file, an option, a configuration.

    The message is one line that names the thing and the remedy. Commands print it and exit
    with code 2 (`cli.parse.command`); in a notebook it is an ordinary exception. Whatever reads what a person gave may
    raise it, and docstrings do not repeat that.
    """


class Undefined(InputError, AttributeError):
    """A quantity that this architecture does not define; the message gives the reason, and `hasattr` is False."""


class UnknownOption(InputError, TypeError):
    """An option that a class of options does not have, as Python's own `TypeError`, with the nearest ones."""


@contextmanager
def reading(path: object, remedy: str = "restore the file, or check the path") -> Iterator[None]:
    """The border: what reads something foreign stands in it, and whatever is raised there becomes one line.

    Files, networks, disks and libraries raise what they like there: a damaged file's `KeyError`, the tokenizers' bare
    `Exception`. The `InputError` has the name of the file, their words and the remedy; what was raised is its cause.
    An `InputError` passes, with the name in front if it has none.
    """
    try:
        yield
    except InputError as error:
        if str(path) in str(error):
            raise
        raise InputError(f"{path}: {error}") from error
    except Exception as error:
        words = f"it lacks {error}" if isinstance(error, KeyError) else getattr(error, "strerror", None) or str(error)
        words = "No such file or directory" if isinstance(error, FileNotFoundError) else words
        words = " ".join(re.sub(r"\x1b\[[\d;]*m", "", words).split()) or type(error).__name__
        raise InputError(f"{path} cannot be read ({words[:200]}); {remedy}") from error


def did_you_mean(name: str, names: Mapping[str, str] | Iterable[str], n: int = 3, cutoff: float = 0.5) -> str:
    """ "did you mean a or b?", the known names that are most like a wrong one; "" where none is.

    `names` may map names to what is printed of them.
    """
    import difflib

    shown = names if isinstance(names, Mapping) else {item: item for item in names}
    matches = difflib.get_close_matches(name, shown, n=n, cutoff=cutoff)
    return f"did you mean {' or '.join(shown[item] for item in matches)}?" if matches else ""


def unknown(kind: str, name: str, names: list[str]) -> InputError:
    hint = did_you_mean(name, names) or f"known: {', '.join(names[:40])}"
    return InputError(f"unknown {kind} {name!r}: {hint}")


def near_files(path: Path) -> str:
    """ "did you mean pairs.jsonl?", of what is in the folder of a file that is not there; "" where nothing is like it.

    Suffixes do not count, because all files of a folder may have the same.
    """
    try:
        files = {file.stem: str(file) for file in path.parent.iterdir() if file.is_file()}
    except OSError:  # no folder, or one that may not be read
        return ""
    return did_you_mean(path.stem, files, cutoff=0.6)
