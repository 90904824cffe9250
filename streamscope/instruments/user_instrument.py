"""Measure with an instrument of your own: a class in a Python file.

    streamscope previous.py:PreviousSentence stories/lfa --out previous.parquet
    streamscope previous.py:PreviousSentence --help

The file holds a class with `@instrument(name, data…)` (`instruments.contract`). Its fields are
the options. Control, several runs, tables, files and figures work as in every instrument. If the
file has one instrument, leave out :CLASS.
"""

import inspect
import sys
from collections.abc import Sequence
from typing import Any

from streamscope.cli.parse import command
from streamscope.cli.user_code import member
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument
from streamscope.instruments.registry import REGISTERED


def instrument_in(spec: str) -> type[Instrument]:
    """The instrument FILE.py:CLASS; the file is executed (`cli.user_code`)."""

    def is_instrument(value: Any) -> bool:
        return isinstance(value, type) and issubclass(value, Instrument) and bool(value.name)

    house, hint = dict(REGISTERED), f"; an edit goes to an instrument, as in streamscope pds --edit {spec}@HOOK"
    try:
        return member(spec, is_instrument, "instrument", hint)
    finally:
        REGISTERED.clear()  # it is no instrument of the house, and takes the place of none
        REGISTERED.update(house)


def main(argv: Sequence[str] | None = None) -> None:
    """Find the class, then its own command."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print(f"usage: streamscope FILE.py[:CLASS] [RUN…] [options]\n\n{(__doc__ or '').strip()}")
        return
    instrument_class = instrument_in(words[0])
    docs = (sys.modules[instrument_class.__module__].__doc__, inspect.getdoc(instrument_class))
    text = "\n\n".join(doc.strip() for doc in docs if doc)
    main_of(instrument_class, text, ("streamscope.instruments.user_instrument", words[0]))(words[1:])


if __name__ == "__main__":
    command(main)
