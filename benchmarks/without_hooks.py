"""A model of ours without its hook points: the peer that says what unused hooks cost."""

import copy
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from transformer_lens.hook_points import HookPoint

from streamscope.models.hooks import observe, read_point
from streamscope.models.transformer import StreamTransformer


def without_hooks(model: StreamTransformer) -> StreamTransformer:
    """A copy whose hook points are bare identities; run it under `hooks_disabled`."""

    class Bare:
        listening = False

        def __call__(self, x: Any) -> Any:
            return x

    bare = copy.deepcopy(model)
    for module in bare.modules():
        for name, child in list(module.named_children()):
            if isinstance(child, HookPoint):
                del module._modules[name]
                object.__setattr__(module, name, Bare())
    return bare


@contextmanager
def hooks_disabled() -> Iterator[None]:
    """`read_point` and `observe` do nothing inside this context."""
    disabled = {"read_point": (read_point, lambda point, x: x), "observe": (observe, lambda point, readout: None)}
    modules = [module for name, module in sys.modules.items() if name.startswith("streamscope.models.")]
    with ExitStack() as stack:
        for module in modules:
            for name, (real, bare) in disabled.items():
                if vars(module).get(name) is real:
                    stack.enter_context(patch.object(module, name, bare))
        yield
