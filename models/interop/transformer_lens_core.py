"""TransformerLens' hook points and tensor functions, without its `__init__`, which takes two seconds of every command.

That `__init__` imports transformers, datasets and pytest. It runs at the first `import transformer_lens` of anybody
else, on the same modules: the classes exist once.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

__all__ = ["FactoredMatrix", "HookPoint", "HookedRootModule", "Slice", "lm_cross_entropy_loss"]
_BARE: dict[str, ModuleType] = {}  # packages whose `__init__` has not run


class _Finder(MetaPathFinder):
    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Of a bare package: its `__init__` runs in the module that already exists."""
        spec = PathFinder.find_spec(fullname, path) if fullname in _BARE else None
        if spec is not None:
            spec.loader.create_module = lambda spec: _BARE.pop(spec.name)  # type: ignore[union-attr, method-assign]
        return spec


@contextmanager
def _bare(*packages: str) -> Iterator[None]:
    """In the block, packages are only folders of their modules; packages that are already imported do not change."""
    for name in packages:
        if name not in sys.modules and (spec := find_spec(name)) is not None:
            _BARE[name] = sys.modules[name] = module_from_spec(spec)
            parent, _, child = name.rpartition(".")
            if parent:
                setattr(sys.modules[parent], child, _BARE[name])
    try:
        yield
    finally:
        for name in _BARE:
            del sys.modules[name]


sys.meta_path.insert(0, _Finder())
with _bare("transformer_lens", "transformer_lens.utilities", "transformer_lens.conversion_utils"):
    from transformer_lens.utilities.devices import warn_if_mps
    from transformer_lens.utilities.slice import Slice, SliceInput
    from transformer_lens.utilities.tensors import remove_batch_dim

    if "transformer_lens.utilities" in _BARE:  # the names that HookedRootModule imports from there
        vars(_BARE["transformer_lens.utilities"]).update(
            Slice=Slice, SliceInput=SliceInput, remove_batch_dim=remove_batch_dim, warn_if_mps=warn_if_mps
        )
    from transformer_lens.FactoredMatrix import FactoredMatrix
    from transformer_lens.hook_points import HookPoint
    from transformer_lens.HookedRootModule import HookedRootModule
    from transformer_lens.utilities.lm_utils import lm_cross_entropy_loss
