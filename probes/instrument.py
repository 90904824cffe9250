"""An instrument of your own: a class in a file, measured by the command that every instrument has.

    python -m probes.instrument previous.py:PreviousSentence lfa --out previous.parquet
    python -m probes.instrument previous.py:PreviousSentence --help

The file holds a class with `@instrument(name, data…)` (`probes.contract`); its fields are the options. Control, several
runs, tables, files and figures are those of all instruments. Where the file has one instrument, :CLASS may be left out.
"""

import sys
from collections.abc import Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from streamscope.models.cli import command
from streamscope.models.errors import InputError, unknown
from streamscope.probes.command import main_of
from streamscope.probes.contract import REGISTERED, Instrument


def instrument_in(spec: str) -> type[Instrument]:
    """The instrument FILE.py:CLASS; the file is executed, as a module of its name.

    Raises `InputError` for a file that is not there or cannot be executed, and for a class that is no instrument.
    """
    name, _, wanted = spec.partition(":") if not Path(spec).is_file() else (spec, "", "")
    path = Path(name)
    if path.suffix != ".py" or not path.is_file():
        raise InputError(f"{spec!r} is no FILE.py:CLASS; give a Python file that holds an instrument")
    made = spec_from_file_location(path.stem, path)
    assert made is not None and made.loader is not None
    module = sys.modules[path.stem] = module_from_spec(made)
    before = set(REGISTERED)
    try:
        made.loader.exec_module(module)
    except Exception as error:
        raise InputError(f"{path} cannot be executed: {type(error).__name__}: {str(error).splitlines()[0]}") from error
    found = {one.__name__: one for one in vars(module).values() if isinstance(one, type) and issubclass(one, Instrument)
             and one.__module__ == path.stem and one.name}  # fmt: skip
    for name in set(REGISTERED) - before:
        del REGISTERED[name]  # it is no instrument of the house
    if wanted and wanted not in found:
        raise unknown(f"instrument of {path}", wanted, list(found))
    if len(found) != 1 and not wanted:
        raise InputError(
            f"{path} holds {len(found)} instruments ({', '.join(found) or 'none'}); name one as {path}:CLASS"
        )
    return found[wanted] if wanted else next(iter(found.values()))


def main(argv: Sequence[str] | None = None) -> None:
    """Find the class, then its own command."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print(f"usage: python -m probes.instrument FILE.py[:CLASS] [RUN…] [options]\n\n{(__doc__ or '').strip()}")
        return
    made = instrument_in(words[0])
    main_of(made, sys.modules[made.__module__].__doc__, ("streamscope.probes.instrument", words[0]))(words[1:])


if __name__ == "__main__":
    command(main)
