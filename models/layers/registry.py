"""Names the modules that compute the parts of a configuration: `part.module(part, ...)` makes one.

@implements(config.Kronecker)
class KroneckerProjection(nn.Module): ...
"""

from collections.abc import Callable
from typing import TypeVar

from streamscope.models.config import Part

M = TypeVar("M", bound=type)


def implements(part: type[Part]) -> Callable[[M], M]:
    """Class decorator: the module computes `part`."""

    def register(module: M) -> M:
        part.module = module
        return module

    return register
