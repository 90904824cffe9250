"""In a clone `models.x` is the same module object as `streamscope.models.x`.

Without this, what is imported under both names would exist twice: `isinstance` and `except InputError` would miss. Each
room's `__init__` ends with

    if __name__ == "models":
        alias("models")
"""

import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType
from typing import Any

_ROOMS: set[str] = set()


class _Finder(MetaPathFinder, Loader):
    """Hands out the module of the long name for the short one."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in _ROOMS:
            return None
        real = find_spec(f"streamscope.{fullname}")
        if real is None:
            return None
        package = real.submodule_search_locations is not None
        return ModuleSpec(fullname, self, origin=real.origin, is_package=package)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(f"streamscope.{spec.name}")
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It is executed already; only its own specification is put back in place of the short name's."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state

    def get_code(self, fullname: str) -> CodeType | None:
        """For `python -m`."""
        spec = find_spec(f"streamscope.{fullname}")
        assert spec is not None and spec.loader is not None
        return spec.loader.get_code(spec.name)  # type: ignore[attr-defined]


_FINDER = _Finder()


def instrument_of(room: str, name: str) -> Any:
    """The instrument class `name` of a room, for `from streamscope.interventions import Ablate`.

    Raises `AttributeError` where the room has none of that name.
    """
    if name[:1].isupper():
        from streamscope.probes.contract import discover

        for found in discover().values():
            if found.__name__ == name and found.__module__.startswith(f"{room}."):
                return found
    raise AttributeError(f"module {room!r} has no attribute {name!r}")


def alias(room: str) -> None:
    """Make the room's short name mean the long one, for all that is imported from now on."""
    _ROOMS.add(room)
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    sys.modules[room] = import_module(f"streamscope.{room}")
