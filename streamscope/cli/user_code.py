"""Loads a user's code by name: `FILE.py:NAME`.

    names = members("previous.py")          every name that the file defines
    one = member("halve.py:halve", is_edit, "edit")

The file becomes a module called own_FILE, so that it hides no other module; it can import files of its folder. Nothing
heavy is imported here.
"""

import re
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from streamscope.cli.errors import InputError, near_files, unknown


def split(spec: str) -> tuple[Path, str]:
    """Split FILE.py[:NAME] into FILE.py and NAME (default: "")."""
    name, _, member_name = spec.partition(":") if not Path(spec).is_file() else (spec, "", "")
    path = Path(name)
    if path.suffix != ".py":
        raise InputError(f"{spec!r} is not FILE.py:NAME: give a Python file and a name in it")
    if not path.is_file():
        raise InputError(f"{spec!r}: the file {path} does not exist; {near_files(path) or 'check the path'}")
    return path, member_name


def latents_in(spec: str, complete: bool = False) -> tuple[Path, list[int]] | None:
    """The folder and the latents of FOLDER:17 or FOLDER:3,17-19, None where it is no folder of a dictionary.

    Without latents, it is an error or means the `complete` dictionary."""
    name, _, numbers = spec.rpartition(":") if not Path(spec).is_dir() else (spec, "", "")
    if not (Path(name) / "cfg.json").is_file():
        return None
    if complete and not numbers:
        return Path(name), []
    ranges = [re.fullmatch(r"(\d+)(?:-(\d+))?", part) for part in numbers.split(",")]
    latents = [i for match in ranges if match for i in range(int(match[1]), int(match[2] or match[1]) + 1)]
    if not all(ranges) or not latents:
        raise InputError(f"{spec!r}: name latents of the dictionary, as {name}:17 or {name}:3,17-19")
    return Path(name), latents


def edit_file(spec: str) -> Path:
    """The file of an edit: FILE.json, the weights of the dictionary in FOLDER:17, or that of FILE.py:NAME@HOOK."""
    if latents := latents_in(spec):
        return latents[0] / "sae_weights.safetensors"
    if not spec.endswith(".json"):
        return split(spec.partition("@")[0])[0]
    if not Path(spec).is_file():
        raise InputError(f"{spec!r}: the file does not exist; {near_files(Path(spec)) or 'check the path'}")
    return Path(spec)


def is_own(word: str) -> bool:
    """Whether a word of a command line is FILE.py or FILE.py:NAME, even if the file does not exist."""
    return word.partition(":")[0].endswith(".py")


def members(path: Path) -> dict[str, Any]:
    """The names that the file defines, without imported ones."""
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
    return {name: value for name, value in vars(module).items()
            if not name.startswith("_") and getattr(value, "__module__", title) == title}  # fmt: skip


def member(spec: str, fits: Callable[[Any], bool], kind: str, hint: str = "") -> Any:
    """The member of FILE.py:NAME that `fits`; NAME is optional if there is only one."""
    path, member_name = split(spec)
    every = members(path)
    fitting = {name: value for name, value in every.items() if fits(value)}
    if member_name in fitting:
        return fitting[member_name]
    if member_name in every:
        kind_of = type(every[member_name]).__name__
        raise InputError(f"{member_name} of {path} is not a valid {kind}: it is a {kind_of}{hint}")
    if member_name:
        raise unknown(f"{kind} of {path}", member_name, list(fitting))
    if len(fitting) != 1:
        raise InputError(f"{path} holds {len(fitting)} {kind}s ({', '.join(fitting) or 'none'}); "
                         f"name one as {path}:NAME")  # fmt: skip
    return next(iter(fitting.values()))


def error_line(error: BaseException, path: Path) -> str:
    location, trace = "", error.__traceback__
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename).resolve() == path.resolve():
            location = f", line {trace.tb_lineno}"
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and error.lineno is not None:
        location = f", line {error.lineno}"
    message = ": ".join([type(error).__name__, *str(error).splitlines()[:1]])
    return f"{message.removesuffix(': ')}{location}"
