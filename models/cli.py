"""What all commands share: parsing with tyro, one line and exit code 2 on bad input.

A command is a module with `main(argv=None)`:

    def main(argv: Sequence[str] | None = None) -> None:
        options = parse(Options, argv, __doc__)
        ...heavy imports and work...

    if __name__ == "__main__":
        command(main)
"""

import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from models.errors import InputError

Options = TypeVar("Options")


def parse(options: type[Options], argv: Sequence[str] | None, doc: str | None) -> Options:
    """Read `argv` into the dataclass `options`; its field docs are the help."""
    import tyro

    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return tyro.cli(
        options,
        prog=f"python -m {spec.name}" if spec is not None else None,
        args=argv,
        description=(doc or "").strip(),
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.AvoidSubcommands),
    )


def command(main: Callable[[], None]) -> None:
    """Run `main` as a process: bad input prints one line and exits 2, Ctrl-C exits 130."""
    try:
        main()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader of a pipe has gone, as in `| head`
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:  # a full disk, a folder that may not be written
        print(f"error: {error.strerror or error}: {error.filename or ''}".rstrip(": "), file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
