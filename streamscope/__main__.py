"""`streamscope COMMAND …`: every command of every room by its short name.

streamscope ablate stories/lfa --heads L4.*  as python -m streamscope.interventions.ablate
streamscope pds --help
streamscope my.py:MyProbe stories/lfa        an instrument of your own (`instruments.user_instrument`)
streamscope benchmarks training              with its room, as well
streamscope benchmarks                       the commands of a room
streamscope --help                           what there is, a line each
streamscope --version
streamscope completion bash                  a script that completes all this, for bash, zsh, fish or tcsh
"""

import sys
from collections.abc import Mapping, Sequence

from streamscope.cli.commands import ROOMS, commands, entry, first_line, unknown_command, whole_name
from streamscope.cli.provenance import version


def listed(room: str, modules: Mapping[str, str]) -> None:
    width = max(map(len, modules))
    print(f"{room}:")
    for name, module in modules.items():
        if module.split(".")[1] == room:
            print(f"  {name:{width}}  {first_line(module)}")


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command by name, or list them."""
    from streamscope.cli.errors import unknown
    from streamscope.cli.user_code import is_own

    words = list(sys.argv[1:] if argv is None else argv)
    modules = commands()
    if not words or words[0] in ("-h", "--help"):
        print("usage: streamscope COMMAND [options]; streamscope COMMAND --help says more")
        print("       streamscope FILE.py:CLASS [RUN…] [options]; an instrument of your own; the file is executed")
        print("       streamscope --version; streamscope completion bash|zsh|fish|tcsh\n")
        for room in ROOMS:
            listed(room, modules)
        return
    if words[0] == "--version":
        print(f"streamscope {version()}")
        return
    if words[0] == "completion":
        from streamscope.cli.parse import completion

        print(completion(*words[1:]), end="")
        return
    if words[0] in ROOMS and words[1:2] in ([], ["-h"], ["--help"]):
        listed(words[0], modules)
        return
    if (module := f"streamscope.{'.'.join(words[:2])}") in modules.values() and words[0] in ROOMS:
        modules = {" ".join(words[:2]): module}
        words[:2] = modules
    elif words[0] in ROOMS and not (words[0] in modules and words[1].startswith("-")):
        prefix = f"streamscope.{words[0]}."
        names = [module.removeprefix(prefix) for module in modules.values() if prefix in module]
        raise unknown(f"command of {words[0]}", words[1], names)
    if is_own(called := words[0]):
        name, arguments = "user_instrument", words
    else:
        called = name = whole_name(called, modules)
        arguments = words[1:]
    if name not in modules:
        raise unknown_command(name, modules)
    sys.argv = [f"streamscope {called}", *arguments]
    entry(modules[name])(arguments)


def script() -> None:
    from streamscope.cli.parse import command

    command(main)


if __name__ == "__main__":
    script()
