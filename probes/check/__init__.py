"""Check that an instrument keeps the contract, one of the project or one in a file of yours.

    streamscope check previous.py:PreviousSentence
    streamscope check ablate

The instrument is measured twice on small data (`Data.small`, its `quick` options), saved, loaded, compared with itself
and drawn. Each check prints a line; the exit code is 1 if one fails. Notes below list what is easily overlooked:
figures without values in small data (a misspelt column?) and empty columns.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from streamscope.cli.parse import parse


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m probes.check`."""

    instrument: Annotated[str, tyro.conf.Positional]
    """The name of an instrument, or FILE.py:CLASS, which is executed."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the checks and print them; `SystemExit` with code 1 if one fails."""
    options = parse(Options, argv, __doc__)

    from streamscope.cli.user_code import is_own
    from streamscope.instruments.registry import REGISTERED, named
    from streamscope.instruments.user_instrument import instrument_in

    if not is_own(options.instrument):
        return _check(named(options.instrument))
    instrument = instrument_in(options.instrument)
    REGISTERED.setdefault(instrument.name, instrument)  # so that its loaded results have figures
    try:
        _check(instrument)
    finally:
        if REGISTERED[instrument.name] is instrument:
            del REGISTERED[instrument.name]


def _check(instrument: Any) -> None:
    from streamscope.cli.user_code import error_line
    from streamscope.probes.check.measure import CHECKS, measure_small, notes, problems, tests_elsewhere

    try:
        result, n_broken = measure_small(instrument), 0
    except Exception as error:  # raised by the user's code
        path = Path(sys.modules[instrument.__module__].__file__ or "")
        print(f"broken  measured: {error_line(error, path)}")
        print("it could not be measured, so nothing else was checked", file=sys.stderr)
        raise SystemExit(1) from None
    for name, check in CHECKS.items():
        if name == "planted" and tests_elsewhere(instrument):
            print(f"left out {name}: {instrument.planted} is in a clone of the repository, not in this installation")
            continue
        faults = problems(check, instrument, result)
        n_broken += bool(faults)
        print(f"{'broken' if faults else 'kept':7} {name}: {(check.__doc__ or '').splitlines()[0]}")
        for line in faults:
            print(f"        {line}")
    for line in notes(result):
        print(f"note    {line}")
    if n_broken:
        print(f"{n_broken} of {len(CHECKS)} checks failed", file=sys.stderr)
        raise SystemExit(1)
