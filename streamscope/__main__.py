"""`streamscope COMMAND …`: every command of every room by its short name.

streamscope ablate stories/lfa --heads L4.*  as python -m streamscope.interventions.ablate
streamscope pds --help
streamscope my.py:MyProbe stories/lfa        an instrument of your own (`probes.instrument`)
streamscope papers lfa                       with its room, as well
streamscope papers                           the commands of a room
streamscope --help                           what there is, a line each
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path

ROOMS = ("models", "probes", "interventions", "features", "papers", "benchmarks")


def commands() -> dict[str, str]:
    """Command -> module, from the source of the rooms: what ends in `command(main)`.

    A name that two rooms have is said with its room, as `papers.hdpl`.
    """
    import streamscope

    found: dict[str, list[str]] = {}
    for room in ROOMS:
        for path in (Path(base) / room for base in streamscope.__path__ if (Path(base) / room).is_dir()):
            for file in sorted(path.rglob("*.py")):
                if "\n    command(main)" not in file.read_text(encoding="utf-8"):
                    continue
                parts = file.relative_to(path).with_suffix("").parts
                parts = parts[:-1] if parts[-1] == "__main__" else parts
                found.setdefault(".".join(parts), []).append(f"streamscope.{room}.{'.'.join(parts)}")
            break
    named = {name: modules[0] for name, modules in found.items() if len(modules) == 1}
    named |= {m.removeprefix("streamscope."): m for modules in found.values() if len(modules) > 1 for m in modules}
    return dict(sorted(named.items()))


def whole_name(word: str, known: dict[str, str]) -> str:
    """The command that ROOM.COMMAND means, as in `features.extract`; any other word as it is."""
    return next((name for name, module in known.items() if module == f"streamscope.{word}"), word)


def says(module: str) -> str:
    """The first line of a module's documentation, without importing it."""
    import ast
    from importlib.util import find_spec

    spec = find_spec(module)
    assert spec is not None and spec.origin is not None
    doc = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
    return doc.splitlines()[0] if doc else ""


def entry(module: str) -> Callable[[Sequence[str]], None]:
    """`main` of a command: of its module, or of the __main__ of a package that keeps it there."""
    found = import_module(module)
    main: Callable[[Sequence[str]], None] = (
        found.main if hasattr(found, "main") else import_module(f"{module}.__main__").main
    )
    return main


def listed(room: str, known: Mapping[str, str]) -> None:
    """Print the commands of a room, a line each."""
    width = max(map(len, known))
    print(f"{room}:")
    for name, module in known.items():
        if module.split(".")[1] == room:
            print(f"  {name:{width}}  {says(module)}")


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command by name, or list them."""
    from streamscope.models.errors import unknown
    from streamscope.models.own_code import is_own

    words = list(sys.argv[1:] if argv is None else argv)
    known = commands()
    if not words or words[0] in ("-h", "--help"):
        print("usage: streamscope COMMAND [options]; streamscope COMMAND --help says more")
        print("       streamscope FILE.py:CLASS [RUN…] [options]; an instrument of your own; the file is executed\n")
        for room in ROOMS:
            listed(room, known)
        return
    if words[0] in ROOMS and words[1:2] in ([], ["-h"], ["--help"]) and words[0] not in known:
        listed(words[0], known)
        return
    if (module := f"streamscope.{'.'.join(words[:2])}") in known.values() and words[0] in ROOMS:
        known = {" ".join(words[:2]): module}
        words[:2] = known
    elif words[0] in ROOMS and words[0] not in known:
        raise unknown(f"command of {words[0]}", words[1], [m.split(".", 2)[2] for m in known.values() if words[0] in m])
    called = words[0]
    if is_own(called):
        words.insert(0, "instrument")
    words[0] = whole_name(words[0], known)
    if words[0] not in known:
        raise unknown("command", words[0], list(known))
    sys.argv = [f"streamscope {called if is_own(called) else words[0]}", *words[1:]]
    entry(known[words[0]])(words[1:])


def script() -> None:
    """The entry point `streamscope`."""
    from streamscope.models.cli import command

    command(main)


if __name__ == "__main__":
    script()
