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

    What is converted is said at `cli.bounds.check`.
    """

    __signature__: ClassVar[Any] = _Signature()

    def __new__(cls, *given: Any, **named: Any) -> Any:
        known = [one.name for one in fields(cls)]  # type: ignore[arg-type]
        for name in named:
            if name not in known:
                raise UnknownOption(str(unknown(f"option of {cls.__name__}", name, known)))
        return super().__new__(cls)

    def __post_init__(self) -> None:
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
