"""The commands of all rooms, found in their source."""

import ast
import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOMS = ("models", "text", "instruments", "probes", "interventions", "features", "viewer", "papers", "benchmarks")
MAIN = re.compile(r"^(main = |def main\()", re.MULTILINE)
"""What makes a package a command (`aliases`)."""


def commands() -> dict[str, str]:
    """Command -> module, from the source of the rooms: packages with a `main`, and files that end in `command(main)`.

    A name that two rooms have is listed with its room, as `papers.circuits`, and so is one that another room is called,
    as `benchmarks.viewer`. Where only one of two is no paper and no benchmark, that one keeps the short name. The
    version that ends the name of a package, as of `text.stories5`, is left out.
    """
    found: dict[str, list[str]] = {}
    for room in ROOMS:
        for path in (Path(base) / room for base in sys.modules["streamscope"].__path__ if (Path(base) / room).is_dir()):
            for file in sorted(path.rglob("*.py")):
                source, is_package = file.read_text(encoding="utf-8"), file.name == "__init__.py"
                if not (MAIN.search(source) if is_package else "\n    command(main)" in source):
                    continue
                parts = file.relative_to(path).with_suffix("").parts
                parts = parts[:-1] if is_package or parts[-1] == "__main__" else parts
                short = parts[1:] if parts[:1] == ("interop",) else parts
                name = ".".join(short).rstrip("0123456789") or room
                found.setdefault(name, []).append(".".join(("streamscope", room, *parts)))
            break
    named: dict[str, str] = {}
    for name, modules in found.items():
        own = [m for m in modules if m.split(".")[1] not in ("papers", "benchmarks")]
        single = modules[0] if len(modules) == 1 else own[0] if len(own) == 1 else None
        single = f"streamscope.{name}" if name in ROOMS else single
        named |= {name if m == single else m.removeprefix("streamscope."): m for m in modules}
    return dict(sorted(named.items()))


def whole_name(word: str, known: dict[str, str]) -> str:
    """The command that ROOM.COMMAND means, as in `features.extract`; any other word unchanged."""
    return next((name for name, module in known.items() if module == f"streamscope.{word}"), word)


def entry(module: str) -> Callable[[Sequence[str]], None]:
    """`main` of a command: of its module, or of the __main__ of a package that keeps it there."""
    found = import_module(module)
    main: Any = found.main if hasattr(found, "main") else import_module(f"{module}.__main__").main
    return main


def first_line(module: str) -> str:
    """The first line of a command's documentation, without importing it: of the module that has its `main`."""
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None
    path = Path(spec.origin)
    inner = path.with_name("__main__.py")
    if path.name == "__init__.py" and inner.is_file() and "\ndef main(" in inner.read_text(encoding="utf-8"):
        path = inner
    doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return doc.splitlines()[0] if doc else ""
