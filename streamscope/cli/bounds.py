"""Options whose values are checked: types and bounds by pydantic, options without effect by `Only`.

    lr: Positive | None = None
    beta1: Annotated[float, Ge(0), Lt(1)] = 0.9
    seed: Seed = 0
    clusters: Annotated[Count, Only("method", ("kmeans",))] = 10

Commands check their options when parsing (`cli.parse.parse`); instruments, data, parts of a model and `Training` check
themselves, so that a notebook gets the same line.
"""

import typing
from collections import namedtuple
from collections.abc import Hashable, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, cast

from annotated_types import Ge, Gt, Le, Lt
from typing_extensions import TypedDict

from streamscope.cli.errors import InputError

Declared = TypeVar("Declared")
LARGEST_FLOAT = float(2**127)  # half of the largest float32, the dtype of weights and activations
LARGEST_INT = 2**63 - 1
SplitAt = Literal["separator", "blank", "file"]
"""End of a document in a text file: after a line `<|endoftext|>`, before a blank line, or the end of the file."""


Only = namedtuple("Only", ("name", "values"), defaults=((),))
"""The option only has an effect if the option `name` has one of these values (or, without values, is given).

`check` refuses an option that is given (differs from its default) and has no effect."""

Positive = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]
Share = Annotated[float, Ge(0), Le(1)]
Count = Annotated[int, Ge(1)]  # 1, 2, 3, …
Whole = Annotated[int, Ge(0)]  # 0, 1, 2, …
Seed = Annotated[int, Ge(0), Lt(2**31)]  # seed of a generator; the upper limit allows to add to it

if TYPE_CHECKING:
    Names = str | Sequence[str]
else:
    Names = tuple[str, ...]
"""Names: several words on the command line; one string or a sequence in Python, converted to a tuple."""

LINES = {
    "greater_than_equal": "must be at least {ge:.10g}", "greater_than": "must be above {gt:.10g}",
    "less_than_equal": "must be at most {le:.10g}", "less_than": "must be below {lt:.10g}",
    "finite_number": "must be a finite number",
}  # fmt: skip
"""The kind of error in pydantic -> the words of our message."""


def check(options: Any, form: str = "", *, nested: bool = True) -> None:
    """Convert the values of a dataclass to their declared types; `InputError` for the first that is not allowed.

    A string becomes a tuple of one, lists and arrays become tuples, numpy numbers Python's; otherwise nothing is
    converted: True and "1" are not accepted as numbers. Dataclasses inside are checked too if `nested`. `form` is how
    the message names a field: as typed ("--{}", with dashes), "{} of a grid", or a part of a model with its kind.
    """
    from pydantic import ValidationError

    adapter, parts_of = _rules(cast(Hashable, type(options)))
    values: dict[str, Any] = {}
    for name, parts in parts_of.items():
        value = getattr(options, name)
        if is_dataclass(value):
            if nested:
                check(value, form)
            continue
        if type(value).__module__ == "numpy":
            value = value.tolist()
        if tuple in parts and isinstance(value, str | list):
            value = (value,) if isinstance(value, str) else tuple(value)
        values[name] = Path(value) if Path in parts and str not in parts and isinstance(value, str) else value
    try:
        values = adapter.validate_python(values, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        line = f": {first['msg'][0].lower()}{first['msg'][1:]}, got {values[name]!r}"
        if first["type"] == "too_short":
            line = ": give at least one"
        elif first["type"] in LINES:
            line = f" {LINES[first['type']].format(**first.get('ctx', {}))}, got {first['input']}"
        raise InputError(f"{_spelled(options, name, form)}{line}") from None
    for name, value in values.items():
        object.__setattr__(options, name, value)
        for number in value if isinstance(value, tuple) else (value,):
            largest = LARGEST_INT if isinstance(number, int) else LARGEST_FLOAT
            if isinstance(number, int | float) and abs(number) > largest:
                raise InputError(f"{_spelled(options, name, form)} is too large: {number} is beyond ±{largest:.3g}")
    for field in fields(options):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        for only in parts_of[field.name] if values.get(field.name, default) != default else ():
            if isinstance(only, Only) and (reason := _ineffective(only, getattr(options, only.name))):
                raise InputError(f"--{field.name.replace('_', '-')} has no effect {reason}")


def _ineffective(only: Only, setting: Any) -> str:
    """Why an option has no effect where the option that it depends on is this `setting`; "" where it has one."""
    name, settings = f"--{only.name.replace('_', '-')}", setting if isinstance(setting, tuple) else (setting,)
    if not only.values:
        return f"without {name}: leave it out, or give {name} too" if setting in (None, (), "", 0) else ""
    current, alternatives = " ".join(map(str, settings)), " or ".join(map(str, only.values))
    return "" if {*settings} & {*only.values} else f"with {name} {current}: leave it out, or give {name} {alternatives}"


def _spelled(options: Any, name: str, form: str) -> str:
    prefix = f"{options.kind}." if hasattr(options, "kind") else ""
    return form.format(name.replace("_", "-") if form == "--{}" else name) if form else f"{prefix}{name}"


@cache
def _rules(kind: Hashable) -> tuple[Any, dict[str, list[Any]]]:
    """Of a dataclass: pydantic's validator of its fields together, and the `_parts` of each field's type."""
    from pydantic import ConfigDict, TypeAdapter, with_config

    hints, types, parts_of = typing.get_type_hints(kind, include_extras=True), {}, {}
    for field in fields(cast(Any, kind)):
        types[field.name] = hints[field.name]
        parts_of[field.name] = _parts(hints[field.name])
    config = ConfigDict(allow_inf_nan=False, arbitrary_types_allowed=True)
    return TypeAdapter(with_config(config)(TypedDict("Fields", types, total=False))), parts_of  # type: ignore[operator]


def declared(hint: Any, kind: type[Declared]) -> list[Declared]:
    """What a type hint declares of a `kind` (such as `Only`), also inside unions and tuples."""
    return [declaration for declaration in _parts(hint) if isinstance(declaration, kind)]


def _parts(hint: Any) -> list[Any]:
    """A type hint, its origin, and both of everything inside it."""
    parts = [hint]
    for part in parts:  # grows on the way
        parts += filter(None, (typing.get_origin(part), *typing.get_args(part)))
    return parts
