"""Options whose values are checked when they are made: the base of instruments and of specifications of data."""

import inspect
import typing
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar

from streamscope.cli.bounds import check
from streamscope.cli.errors import InputError, UnknownOption, unknown


class _Signature:
    """`__signature__` of a class of options: its fields with plain types, bounds left to the validation."""

    def __get__(self, instance: Any, owner: type) -> inspect.Signature:
        if "__init__" not in vars(owner):  # a base that is no dataclass: pydoc asks it, too
            raise AttributeError("__signature__")
        hints = typing.get_type_hints(owner)  # without Annotated and what stands in it
        _, *given = inspect.signature(vars(owner)["__init__"]).parameters.values()
        return inspect.Signature([one.replace(annotation=hints[one.name]) for one in given])


class ValidatedOptions:
    """Base of options: every field has the declared type and lies in its declared bounds, else `InputError` says so.

    A string becomes a tuple of one, lists and arrays become tuples, numpy numbers Python's; otherwise nothing is
    converted: True and "1" are not accepted as numbers.
    """

    __signature__: ClassVar[Any] = _Signature()

    def __new__(cls, *given: Any, **named: Any) -> Any:
        known = [one.name for one in fields(cls)]  # type: ignore[arg-type]
        for name in named:
            if name not in known:
                raise UnknownOption(str(unknown(f"option of {cls.__name__}", name, known)))
        return super().__new__(cls)

    def __post_init__(self) -> None:
        from pydantic import TypeAdapter, ValidationError

        hints = typing.get_type_hints(type(self))  # bounds are checked below
        for one in fields(self):  # type: ignore[arg-type]
            value = _plain(hints[one.name], getattr(self, one.name))
            try:
                value = TypeAdapter(hints[one.name]).validate_python(value, strict=True)
            except ValidationError as error:
                reason = error.errors()[0]["msg"]
                raise InputError(f"{one.name}: {reason[0].lower()}{reason[1:]}, got {value!r}") from None
            object.__setattr__(self, one.name, value)
        check(self)

    def check_sources(self) -> None:
        """Raise `InputError` for a file that the options name and that is not there; a command asks before its work.

        It imports nothing heavy: a name with a mistake is answered at once.
        """
        for one in fields(self):  # type: ignore[arg-type]
            value = getattr(self, one.name)
            for path in value if isinstance(value, tuple) else (value,):
                if isinstance(path, Path) and not path.expanduser().exists():
                    raise InputError(f"--{one.name.replace('_', '-')} {path} does not exist; check the path")


def _plain(hint: Any, value: Any) -> Any:
    """A value as the validator wants it: see `ValidatedOptions`."""
    if type(value).__module__ == "numpy":
        value = value.tolist()
    if _takes(hint, tuple):
        value = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value
    if isinstance(value, str) and _takes(hint, Path) and not _takes(hint, str):
        value = Path(value)
    return value


def _takes(hint: Any, kind: type) -> bool:
    """Whether a type hint is `kind`, or a union with it."""
    return kind in (hint, typing.get_origin(hint)) or any(_takes(inner, kind) for inner in typing.get_args(hint))
