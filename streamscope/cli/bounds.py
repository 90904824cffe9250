"""Declares the allowed values of options, and checks them with one-line errors.

    lr: Positive | None = None
    beta1: Annotated[float, Bounds(low=0, below=1)] = 0.9
    seed: Seed = 0
    clusters: Annotated[Count, Only("method", "kmeans")] = 10

`check` refuses NaN and infinities, numbers beyond float32 or 64 bits, numbers outside `Bounds`, options that would
be ignored (`Only`), and an empty choice (`AtLeastOne`). Commands check their options when parsing
(`cli.parse.parse`); `Training` checks itself, so that a notebook gets the same error.
"""

import math
import typing
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, cast

from streamscope.cli.errors import InputError

Declared = TypeVar("Declared")
LARGEST_FLOAT = float(2**127)
"""Half of the largest float32, the dtype of weights and activations."""
LARGEST_INT = 2**63 - 1
SplitAt = Literal["separator", "blank", "file"]
"""End of a document in a text file: after a line `<|endoftext|>`, before a blank line, or the end of the file."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Limits of a number: `low` and `high` are inclusive, `above` and `below` exclusive."""

    low: float | None = None
    above: float | None = None
    high: float | None = None
    below: float | None = None

    def __contains__(self, x: float) -> bool:
        return (
            (self.low is None or x >= self.low)
            and (self.above is None or x > self.above)
            and (self.high is None or x <= self.high)
            and (self.below is None or x < self.below)
        )

    def __str__(self) -> str:
        if self == Bounds(above=0):
            return "positive"
        words = {"at least": self.low, "above": self.above, "at most": self.high, "below": self.below}
        return " and ".join(f"{word} {limit:.10g}" for word, limit in words.items() if limit is not None)


class Only:
    """The option only has an effect if the option `name` has one of these values (or, without values, is given).

    `check` refuses an option that is given (differs from its default) and has no effect.
    """

    def __init__(self, name: str, *values: Any) -> None:
        self.name, self.values = name, values

    def acts(self, other: Any) -> bool:
        """Whether it has an effect with this value (or these values) of the other option."""
        several = other if isinstance(other, tuple) else (other,)
        return any(one in self.values for one in several) if self.values else other not in (None, (), "", 0)

    def line(self, option: str, other: Any) -> str:
        """The message for an option without effect."""
        option, name = (f"--{one.replace('_', '-')}" for one in (option, self.name))
        if not self.values:
            return f"{option} has no effect without {name}: leave it out, or give {name} too"
        now = " ".join(map(str, other if isinstance(other, tuple) else (other,)))
        wanted = " or ".join(map(str, self.values))
        return f"{option} has no effect with {name} {now}: leave it out, or give {name} {wanted}"


class AtLeastOne:
    """The option takes several values, and not none."""


AnyNumber = Annotated[float, Bounds()]
"""Any finite number."""
Positive = Annotated[float, Bounds(above=0)]
NotNegative = Annotated[float, Bounds(low=0)]
Share = Annotated[float, Bounds(low=0, high=1)]
Count = Annotated[int, Bounds(low=1)]
"""1, 2, 3, …"""
Whole = Annotated[int, Bounds(low=0)]
"""0, 1, 2, …"""
AnyInt = Annotated[int, Bounds()]
"""Any integer."""
Seed = Annotated[int, Bounds(low=0, below=2**31)]
"""Seed of a generator; the upper limit allows to add to it."""

if TYPE_CHECKING:
    Names = str | Sequence[str]
else:
    Names = tuple[str, ...]
"""Names: several words on the command line; one string or a sequence in Python, converted to a tuple."""


def check(options: Any, spelled: Callable[[str], str] = str, *, nested: bool = True) -> None:
    """Raise `InputError` for the first value in a dataclass, also `nested`, that its declaration excludes.

    `spelled` converts field names for the message, for example to `--batch-size`.
    """
    for field in fields(options):
        value = getattr(options, field.name)
        if is_dataclass(value):
            if nested:
                check(value, spelled)
            continue
        limits, conditions, filled = _declared(cast(Hashable, type(options)))[field.name]
        if value == () and filled:
            raise InputError(f"{spelled(field.name)}: give at least one")
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, bool):
                if limits:  # of a number; true of a JSON file would be 1
                    raise InputError(f"{spelled(field.name)} must be a number, got {number}")
            elif isinstance(number, int | float):
                _check(spelled(field.name), number, limits)
        for only in conditions:
            usual = field.default if field.default_factory is MISSING else field.default_factory()
            if value != usual and not only.acts(other := getattr(options, only.name)):
                raise InputError(only.line(field.name, other))


@cache
def _declared(cls: Any) -> dict[str, tuple[list[Bounds], list[Only], bool]]:
    """The `Bounds` and the `Only` of every field, and whether it has `AtLeastOne`."""
    return {
        name: (list(declared(hint, Bounds)), list(declared(hint, Only)), any(declared(hint, AtLeastOne)))
        for name, hint in typing.get_type_hints(cls, include_extras=True).items()
    }


def _check(name: str, number: float, limits: list[Bounds]) -> None:
    if isinstance(number, float) and not math.isfinite(number):
        raise InputError(f"{name} must be a finite number, got {number}")
    for limit in limits:
        if number not in limit:
            raise InputError(f"{name} must be {limit}, got {number}")
    largest = LARGEST_INT if isinstance(number, int) else LARGEST_FLOAT
    if abs(number) > largest:
        raise InputError(f"{name} is too large: {number} is beyond ±{largest:.3g}")


def declared(hint: Any, kind: type[Declared] = Bounds) -> Iterator[Declared]:  # type: ignore[assignment]
    """The `Bounds`, `Only` or `AtLeastOne` in a type hint, also inside unions and tuples."""
    if typing.get_origin(hint) is Annotated:
        yield from (data for data in hint.__metadata__ if isinstance(data, kind))
        yield from declared(hint.__origin__, kind)
    else:
        for inner in typing.get_args(hint):
            yield from declared(inner, kind)
