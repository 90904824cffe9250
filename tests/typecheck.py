"""The type checks of the tests: beartype with Python's numeric tower, where an int is a float, and shapes."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import jaxtyping
from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True, violation_type=jaxtyping.TypeCheckError))
_shapes_too = jaxtyping.jaxtyped


def jaxtyped(fn: Any = None, *, typechecker: Callable) -> Any:
    """`jaxtyping.jaxtyped` for what names shapes, beartype alone for all else.

    The import hook wraps every function, and binding the arguments of those without shapes took a third of the tests'
    time.
    """
    if fn is None:
        return lambda one: jaxtyped(one, typechecker=typechecker)
    if inspect.isfunction(fn) and not _shapes(fn):
        return _checked(fn)
    if dataclasses.is_dataclass(fn) and inspect.isfunction(fn.__init__) and not _shapes(fn.__init__):
        fn.__init__ = _checked(fn.__init__)
        return fn
    return _shapes_too(fn, typechecker=typechecker)


def _shapes(fn: Callable) -> bool:
    """Whether an annotation has a jaxtyping array in it."""
    return any("[Tensor," in str(a) or "jaxtyping" in str(a) for a in fn.__annotations__.values())


def _checked(fn: Callable) -> Callable:
    """`fn` behind beartype; what is imported for type checkers only is not known when it runs, and not checked."""
    written = fn.__annotations__
    fn.__annotations__ = {name: _known(a, fn.__globals__) for name, a in written.items()}
    wrapped = checked(fn)
    fn.__annotations__ = written
    return wrapped


def _known(annotation: Any, names: dict[str, Any]) -> Any:
    def one(value: Any) -> None: ...

    one.__annotations__ = {"value": annotation}
    try:
        return get_type_hints(one, names, include_extras=True)["value"]
    except (NameError, TypeError, SyntaxError, AttributeError):
        return Any
