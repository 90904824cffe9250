"""A user's own code by name: what `FILE.py:NAME` holds, executed as it would be by Python.

    found = members("previous.py")          every name that the file defines itself
    one = member("halve.py:halve", is_edit, "edit")

The file is a module of its own, called own_FILE, so that it hides none of ours or of Python's; what lies beside it can
be imported. Nothing heavy is imported here.
"""

import hashlib
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from streamscope.cli.errors import InputError, unknown


def split(spec: str) -> tuple[Path, str]:
    """FILE.py and NAME ("" where it is left out) of FILE.py[:NAME]. Raises `InputError` where there is no such file."""
    name, _, wanted = spec.partition(":") if not Path(spec).is_file() else (spec, "", "")
    path = Path(name)
    if path.suffix != ".py":
        raise InputError(f"{spec!r} is no FILE.py:NAME; give a Python file, and what in it is meant")
    if not path.is_file():
        raise InputError(f"{spec!r}: there is no file {path}; check the path")
    return path, wanted


def is_own(word: str) -> bool:
    """Whether a word of a command line is FILE.py or FILE.py:NAME, be the file there or not."""
    return word.partition(":")[0].endswith(".py")


def members(path: Path) -> dict[str, Any]:
    """What the file defines, by name, without what it imports.

    Raises `InputError`, with the line, where it cannot be executed.
    """
    title = f"own_{path.stem}"
    made = spec_from_file_location(title, path)
    assert made is not None and made.loader is not None
    module = sys.modules[title] = module_from_spec(made)
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)  # last, so that nothing of Python's or ours is hidden
    try:
        made.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise InputError(f"{path} cannot be executed: {error_line(error, path)}") from error
    return {name: one for name, one in vars(module).items()
            if not name.startswith("_") and getattr(one, "__module__", title) == title}  # fmt: skip


def member(spec: str, fits: Callable[[Any], bool], what: str, hint: str = "") -> Any:
    """The one member of FILE.py:NAME that `fits`; NAME may be left out where the file has one.

    Raises `InputError` as `split` and `members`, for a name that is not there, and, with the `hint`, for one that does
    not fit.
    """
    path, wanted = split(spec)
    found = members(path)
    fitting = {name: one for name, one in found.items() if fits(one)}
    if wanted in fitting:
        return fitting[wanted]
    if wanted in found:
        raise InputError(f"{wanted} of {path} is no {what}: it is a {type(found[wanted]).__name__}{hint}")
    if wanted:
        raise unknown(f"{what} of {path}", wanted, list(fitting))
    if len(fitting) != 1:
        raise InputError(f"{path} holds {len(fitting)} {what}s ({', '.join(fitting) or 'none'}); "
                         f"name one as {path}:NAME")  # fmt: skip
    return next(iter(fitting.values()))


def error_line(error: BaseException, path: Path) -> str:
    """An error of the user's code in one line, with the last line of the file that it came through."""
    at, trace = "", error.__traceback__
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename).resolve() == path.resolve():
            at = f", line {trace.tb_lineno}"
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and error.lineno is not None:
        at = f", line {error.lineno}"
    said = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}{f': {said}' if said else ''}{at}"


def digest(path: Path) -> str:
    """sha256 of the file, for what is measured with it."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
