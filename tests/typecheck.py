"""The type checks of the tests: beartype with Python's numeric tower, where an int is a float, and shapes."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, get_args, get_type_hints

import jaxtyping
from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True, violation_type=jaxtyping.TypeCheckError))
_shapes_too = jaxtyping.jaxtyped


def jaxtyped(fn: Any = None, *, typechecker: Callable) -> Any:
    """`jaxtyping.jaxtyped` for what names shapes, beartype alone for all else.

    The import hook wraps every function, and binding the arguments of those without shapes took a third of the tests'
    time. Shapes that a body checks by isinstance need the whole: there are none here.
    """
    if fn is None:
        return lambda one: jaxtyped(one, typechecker=typechecker)
    if inspect.isfunction(fn):
        return _checked(fn) or _shapes_too(fn, typechecker=typechecker)
    if dataclasses.is_dataclass(fn) and inspect.isfunction(fn.__init__) and (checked_init := _checked(fn.__init__)):
        fn.__init__ = checked_init
        return fn
    return _shapes_too(fn, typechecker=typechecker)


def _checked(fn: Callable) -> Callable | None:
    """`fn` behind beartype, None where an annotation has an array in it.

    What is imported for type checkers only is not known when the function runs, and not checked.
    """
    written = fn.__annotations__
    known = {name: _known(a, fn.__globals__) for name, a in written.items()}
    if any(_has_array(a) for a in known.values()):
        return None
    fn.__annotations__ = known
    wrapped = checked(fn)
    fn.__annotations__ = written
    return wrapped


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
