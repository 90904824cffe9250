"""Errors that a user can cause, as one line that says what to change."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


class InputError(Exception):
    """Bad input, in one line that names the thing and the remedy. Commands print it and exit with code 2.

    Whatever reads what a person gave may raise it, and docstrings do not repeat that.
    """


class Undefined(InputError, AttributeError):
    """A quantity that this architecture does not define; the message gives the reason, and `hasattr` is False."""


class UnknownOption(InputError, TypeError):
    """An option that a class of options does not have, as Python's own `TypeError`, with the nearest ones."""


@contextmanager
def reading(path: object, remedy: str = "restore the file, or check the path") -> Iterator[None]:
    """The border: whatever files, networks and libraries raise in it becomes an `InputError` with the name of the file,
    their words and the remedy. An `InputError` passes, with the name in front if it has none.
    """
    try:
        yield
    except InputError as error:
        if str(path) in str(error):
            raise
        raise InputError(f"{path}: {error}") from error
    except FileNotFoundError as error:
        raise InputError(f"{path} is missing: {remedy}") from error
    except Exception as error:
        words = f"it lacks {error}" if isinstance(error, KeyError) else getattr(error, "strerror", None) or str(error)
        words = " ".join(re.sub(r"\x1b\[[\d;]*m", "", words).split()) or type(error).__name__
        raise InputError(f"{path} cannot be read ({words[:200]}); {remedy}") from error


def did_you_mean(name: str, names: Mapping[str, str] | Iterable[str], n: int = 3, cutoff: float = 0.5) -> str:
    """ "did you mean a or b?", of names, or of what they map to, that are most like a wrong one; "" where none is."""
    import difflib

    shown = names if isinstance(names, Mapping) else {item: item for item in names}
    matches = difflib.get_close_matches(name, shown, n=n, cutoff=cutoff)
    return f"did you mean {' or '.join(shown[item] for item in matches)}?" if matches else ""


def unknown(kind: str, name: str, names: list[str]) -> InputError:
    hint = did_you_mean(name, names) or f"known: {', '.join(names[:40])}"
    return InputError(f"unknown {kind} {name!r}: {hint}")


def near_files(path: Path) -> str:
    """ "did you mean pairs.jsonl?", of the folder of a missing file, suffixes aside; "" where nothing is like it."""
    try:
        files = {file.stem: str(file) for file in path.parent.iterdir() if file.is_file()}
    except OSError:  # no folder, or one that may not be read
        return ""
    return did_you_mean(path.stem, files, cutoff=0.6)
