"""`streamscope completion SHELL`: tyro's script that completes commands, their options and the values of these."""

import io
from contextlib import redirect_stdout, suppress
from typing import Annotated, Any, Union

from streamscope.cli import parse
from streamscope.cli.commands import commands, entry, first_line
from streamscope.cli.errors import InputError

SHELLS = ("bash", "zsh", "fish", "tcsh")


def script(shell: str = "", *more: str) -> str:
    """The script for a shell."""
    import tyro

    if shell not in SHELLS or more:
        raise InputError(f"name your shell: streamscope completion {'|'.join(SHELLS)}")
    typed = []
    for name, module in commands().items():
        options = options_of(module)
        if options is not None:
            typed.append(Annotated[options, tyro.conf.subcommand(name=name, description=first_line(module))])
    app: Any = Union[tuple(typed)]  # noqa: UP007
    output = io.StringIO()
    with redirect_stdout(output), suppress(SystemExit):
        tyro.cli(
            app,
            prog="streamscope", args=["--tyro-print-completion", shell],
            config=(tyro.conf.AvoidSubcommands,),
        )  # fmt: skip
    return output.getvalue()


def options_of(module: str) -> Any:
    """The class of a command's options; None where it reads its words itself."""
    parse.COLLECTED = []
    try:
        with redirect_stdout(io.StringIO()), suppress(SystemExit):
            entry(module)(["--help"])
        return next(iter(parse.COLLECTED), None)
    finally:
        parse.COLLECTED = None
