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
    """The class of modules for a part."""
    return _MODULES[type(spec)]
