"""Check that an instrument keeps the contract, one of the project or one in a file of yours.

    streamscope check previous.py:PreviousSentence
    streamscope check ablate

It is measured on small data (`Data.small`, its `quick` options), twice, saved, loaded, set beside itself and drawn. A
line for each check; exit code 1 where one is broken. What is not broken but easily overlooked stands below:
figures that small data do not draw (a misspelt column?) and columns without any value.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from streamscope.cli.parse import parse


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m probes.check`."""

    instrument: Annotated[str, tyro.conf.Positional]
    """The name of an instrument, or FILE.py:CLASS; the file is executed."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, check, print; `SystemExit` with code 1 where something is broken."""
    options = parse(Options, argv, __doc__)

    from streamscope.cli.user_code import error_line, is_own
    from streamscope.instruments.registry import REGISTERED, named
    from streamscope.instruments.user_instrument import instrument_in
    from streamscope.probes.check.measure import CHECKS, measured, overlooked, problems

    made = instrument_in(options.instrument) if is_own(options.instrument) else named(options.instrument)
    REGISTERED.setdefault(made.name, made)  # its results know its figures when they are loaded
    try:
        result, broken = measured(made), 0
    except Exception as error:  # of the user's code
        where = Path(sys.modules[made.__module__].__file__ or "")
        print(f"broken  measured: {error_line(error, where)}")
        print("it could not be measured, so nothing else was checked", file=sys.stderr)
        raise SystemExit(1) from None
    for name, check in CHECKS.items():
        found = problems(check, made, result)
        broken += bool(found)
        print(f"{'broken' if found else 'kept':7} {name}: {(check.__doc__ or '').splitlines()[0]}")
        for line in found:
            print(f"        {line}")
    for line in overlooked(result):
        print(f"note    {line}")
    if broken:
        print(f"{broken} of {len(CHECKS)} checks are broken", file=sys.stderr)
        raise SystemExit(1)
