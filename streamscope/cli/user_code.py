"""Loads a user's code by name: `FILE.py:NAME`.

    names = members("previous.py")          every name that the file defines
    one = member("halve.py:halve", is_edit, "edit")

The file becomes a module called own_FILE, so that it hides no other module; it can import files of its folder. Nothing
heavy is imported here.
"""

import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from streamscope.cli.errors import InputError, near_files, unknown


def split(spec: str) -> tuple[Path, str]:
    """Split FILE.py[:NAME] into FILE.py and NAME (default: ""). Raises `InputError` if the file does not exist."""
    name, _, wanted = spec.partition(":") if not Path(spec).is_file() else (spec, "", "")
    path = Path(name)
    if path.suffix != ".py":
        raise InputError(f"{spec!r} is not FILE.py:NAME: give a Python file and a name in it")
    if not path.is_file():
        raise InputError(f"{spec!r}: the file {path} does not exist; {near_files(path) or 'check the path'}")
    return path, wanted


def edit_file(spec: str) -> Path:
    """The file of an edit: FILE.json, or that of FILE.py:NAME@HOOK. Raises `InputError` if it does not exist."""
    if not spec.endswith(".json"):
        return split(spec.partition("@")[0])[0]
    if not Path(spec).is_file():
        raise InputError(f"{spec!r}: the file does not exist; {near_files(Path(spec)) or 'check the path'}")
    return Path(spec)


def is_own(word: str) -> bool:
    """Whether a word of a command line is FILE.py or FILE.py:NAME, even if the file does not exist."""
    return word.partition(":")[0].endswith(".py")


def members(path: Path) -> dict[str, Any]:
    """The names that the file defines, without imported ones. Raises `InputError` with the line of an error in it."""
    title = f"own_{path.stem}"
    spec = spec_from_file_location(title, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[title] = module_from_spec(spec)
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)  # last, so that it hides no other module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise InputError(f"{path} cannot be executed: {error_line(error, path)}") from error
    return {name: one for name, one in vars(module).items()
            if not name.startswith("_") and getattr(one, "__module__", title) == title}  # fmt: skip


def member(spec: str, fits: Callable[[Any], bool], what: str, hint: str = "") -> Any:
    """The member of FILE.py:NAME that `fits`; NAME is optional if there is only one.

    Raises `InputError` like `split` and `members`, for an unknown name, and, with the `hint`, for one that does not
    fit.
    """
    path, wanted = split(spec)
    every = members(path)
    fitting = {name: one for name, one in every.items() if fits(one)}
    if wanted in fitting:
        return fitting[wanted]
    if wanted in every:
        raise InputError(f"{wanted} of {path} is not a valid {what}: it is a {type(every[wanted]).__name__}{hint}")
    if wanted:
        raise unknown(f"{what} of {path}", wanted, list(fitting))
    if len(fitting) != 1:
        raise InputError(f"{path} holds {len(fitting)} {what}s ({', '.join(fitting) or 'none'}); "
                         f"name one as {path}:NAME")  # fmt: skip
    return next(iter(fitting.values()))


def error_line(error: BaseException, path: Path) -> str:
    """One line about an error in the user's code, with the line number in the file."""
    at, trace = "", error.__traceback__
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename).resolve() == path.resolve():
            at = f", line {trace.tb_lineno}"
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and error.lineno is not None:
        at = f", line {error.lineno}"
    message = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}{f': {message}' if message else ''}{at}"
