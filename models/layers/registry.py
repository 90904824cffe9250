"""Maps the parts of a configuration to the modules that compute them.

@implements(config.Kronecker)
class KroneckerProjection(nn.Module): ...

module_for(spec)(spec, ...)     the class registered for the spec's type
"""

from collections.abc import Callable
from typing import Any, TypeVar

from streamscope.models.config import Part

_MODULES: dict[type[Part], Any] = {}
M = TypeVar("M", bound=type)


def implements(spec: type[Part]) -> Callable[[M], M]:
    """Class decorator: register the module that computes the part `spec`."""

    def register(module: M) -> M:
        _MODULES[spec] = module
        return module

    return register


def module_for(spec: Part) -> Any:
    """The module class for a part; a missing one is a programming error."""
    if type(spec) not in _MODULES:
        raise NotImplementedError(f"no module implements {type(spec).__name__}; import the file that does")
    return _MODULES[type(spec)]
