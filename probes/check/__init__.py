"""Does an instrument keep the contract? Of the house, or of a file of your own.

    streamscope check previous.py:PreviousSentence
    streamscope check ablate

It is measured on small data (`Data.small`, its `quick` options), twice, saved, loaded, set beside itself and drawn. A
line for each check; exit code 1 where one is broken.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from streamscope.models.cli import parse


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m probes.check`."""

    instrument: Annotated[str, tyro.conf.Positional]
    """The name of an instrument, or FILE.py:CLASS."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, check, print; `SystemExit` with code 1 where something is broken."""
    options = parse(Options, argv, __doc__)

    from streamscope.models.own_code import is_own
    from streamscope.probes.check.measure import CHECKS, measured, problems
    from streamscope.probes.contract import REGISTERED, named
    from streamscope.probes.instrument import instrument_in

    made = instrument_in(options.instrument) if is_own(options.instrument) else named(options.instrument)
    REGISTERED.setdefault(made.name, made)  # its results know its figures when they are loaded
    result, broken = measured(made), 0
    for name, check in CHECKS.items():
        found = problems(check, made, result)
        broken += bool(found)
        print(f"{'broken' if found else 'kept':7} {name}: {(check.__doc__ or '').splitlines()[0]}")
        for line in found:
            print(f"        {line}")
    if broken:
        print(f"{broken} of {len(CHECKS)} checks are broken", file=sys.stderr)
        raise SystemExit(1)
