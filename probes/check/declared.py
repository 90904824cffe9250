"""Checks of an instrument's declaration: options, their errors, the planted case. Imports nothing heavy."""

import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from streamscope.cli.errors import InputError
from streamscope.instruments.contract import Instrument


def options(made: type[Instrument], result: Any) -> Iterator[str]:
    """Every option is declared in the class with a docstring below it, which is its help."""
    source = Path(sys.modules[made.__module__].__file__ or "").read_text(encoding="utf-8")
    for one in fields(made):
        _, found, after = source.partition(f"    {one.name}:")
        if not found:
            yield f"option {one.name} is declared elsewhere"
        elif not after.split("\n", 1)[1].lstrip().startswith('"""'):
            yield f'option {one.name} has no """docstring""" under it'


def values(made: type[Instrument], result: Any) -> Iterator[str]:
    """A value of another type, or NaN, is refused in one line that begins with the option."""
    for one in fields(made):
        wrong = [object(), float("nan"), {"a": 1}, 1 if one.type in (bool, "bool") else True]
        for bad in wrong:
            try:
                made(**{one.name: bad})
            except InputError as error:
                if "\n" in str(error) or not str(error).startswith(one.name):
                    yield f"option {one.name}: the error is {str(error)!r}"
            else:
                yield f"option {one.name} takes {bad!r}"


def planted_test(made: type[Instrument], result: Any) -> Iterator[str]:
    """`planted` names a test, FILE::NAME, of a case with a known answer, relative to the instrument's folder or
    above."""
    name, _, test = made.planted.partition("::")
    here = Path(sys.modules[made.__module__].__file__ or "").resolve()
    found = [folder / name for folder in here.parents if name and (folder / name).is_file()]
    if not found:
        yield f"there is no file {name!r} in the folder of {here.name} or above" if name else "planted names no test"
    elif f"def {test}(" not in found[0].read_text(encoding="utf-8"):
        yield f"{name} has no test {test!r}"
