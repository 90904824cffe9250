"""The checks of shapes in the tests: jaxtyping's, by beartype with Python's numeric tower, where an int is a float."""

import functools
import inspect
import sys
from collections.abc import Callable, Hashable
from types import CodeType, NoneType
from typing import Any, get_args, get_type_hints

import jaxtyping
import numpy as np
import torch
from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True, violation_type=jaxtyping.TypeCheckError))
_shapes_too = jaxtyping.jaxtyped


def jaxtyped(fn: Any = None, *, typechecker: Callable) -> Any:
    """`jaxtyping.jaxtyped` of what names shapes; the rest is as it was, since mypy has checked it (`make lint`)."""
    if fn is None:
        return lambda one: jaxtyped(one, typechecker=typechecker)
    where = _place(fn) if inspect.isfunction(fn) else fn
    if where not in _has_shapes:
        names = vars(sys.modules[fn.__module__])
        _has_shapes[where] = any(_has_array(_known(a, names)) for a in fn.__annotations__.values())
    if not _has_shapes[where]:
        return fn
    return once_per_kind(fn, typechecker) if inspect.isfunction(fn) else _shapes_too(fn, typechecker=typechecker)


Place = tuple[str, str, CodeType]
"""Module, name and code of a function: closures made at one place share it, like-named `__init__` of classes do not."""


def _place(fn: Callable) -> Place:
    return fn.__module__, fn.__qualname__, fn.__code__


_has_shapes: dict[Hashable, bool] = {}
"""Whether an annotation of a function, or of a class, names an array."""

_passed: dict[Place, tuple[set[Hashable], set[Hashable]]] = {}
"""Per function, or per place where closures are made: the kinds of calls and of (call, result) that passed."""


def once_per_kind(fn: Callable, typechecker: Callable) -> Callable:
    """`fn` behind jaxtyping's check of shapes, left out where the same one has passed before.

    The check is a function of what `_kind` keeps of the arguments and of the result, and a model's layers are called
    with the same shapes over and over: half of the tests' time went into asking again. A function that returns another
    shape than it did for arguments of the same kind is checked anew.
    """
    calls, returns = _passed.setdefault(_place(fn), (set(), set()))
    results: list[Any] = []
    whole = functools.cache(lambda: _shapes_too(fn, typechecker=typechecker))
    result = functools.cache(
        lambda: _shapes_too(functools.wraps(fn)(lambda *_, **__: results.pop()), typechecker=typechecker)
    )

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        call = None if torch.compiler.is_compiling() else _kind((*args, "**", kwargs) if kwargs else args)
        if call is None or call not in calls:
            out = whole()(*args, **kwargs)
            if call is not None:
                calls.add(call)
                returns.add((call, _kind(out)))
            return out
        out = fn(*args, **kwargs)
        kind = _kind(out)
        if kind is None or (call, kind) not in returns:
            results.append(out)
            result()(*args, **kwargs)
            returns.add((call, kind))
        return out

    return wrapped


def _kind(value: Any) -> Hashable | None:
    """What type checks can see of a value: type, dtype and shape, members of small containers; None where too much."""
    cls = type(value)
    how = _HOW.get(cls) or _HOW.setdefault(cls, _how(cls))
    if how == "type":
        return cls
    if how == "array":
        return cls, value.dtype, value.shape
    if how == "value":
        return cls, value
    members = (*value.keys(), *value.values()) if how == "mapping" else tuple(value)
    kinds = tuple(map(_kind, members))
    return None if len(kinds) > 64 or None in kinds else (cls, kinds)


_HOW: dict[type, str] = {}


def _how(cls: type) -> str:
    if issubclass(cls, torch.Tensor | np.ndarray):
        return "array"
    if issubclass(cls, str | int | type | NoneType):
        return "value"
    if issubclass(cls, dict):
        return "mapping"
    return "members" if issubclass(cls, list | tuple | set | frozenset) else "type"


def _has_array(annotation: Any) -> bool:
    if isinstance(annotation, type) and issubclass(annotation, jaxtyping.AbstractArray):
        return True
    inside = annotation if isinstance(annotation, list | tuple) else get_args(annotation)
    return any(_has_array(part) for part in inside)


def _known(annotation: Any, names: dict[str, Any]) -> Any:
    def one(value: Any) -> None: ...

    one.__annotations__ = {"value": annotation}
    try:
        return get_type_hints(one, names, include_extras=True)["value"]
    except (NameError, TypeError, SyntaxError, AttributeError):
        return Any
