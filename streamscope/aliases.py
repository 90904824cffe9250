"""In a clone `models.x` is the same module object as `streamscope.models.x`.

Without this, what is imported under both names would exist twice: `isinstance` and `except InputError` would miss. Each
room's `__init__` ends with

    if __name__ == "models":
        alias("models")
"""

import sys
from difflib import get_close_matches
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType
from typing import Any

WITH_INSTRUMENTS = ("probes", "interventions", "features")
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

    Raises `AttributeError` where the room has none of that name, with the room that has it, or the nearest names.
    """
    if not name[:1].isupper():
        raise AttributeError(f"module {room!r} has no attribute {name!r}")
    if name in (here := instruments_of(room)):
        return here[name]
    others = (other for other in WITH_INSTRUMENTS if name in instruments_of(f"streamscope.{other}"))
    if (other := next(others, None)) is not None:
        raise AttributeError(f"{name} is an instrument of streamscope.{other}, not of {room}")
    near = get_close_matches(name, here, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"its instruments are {', '.join(here)}"
    raise AttributeError(f"{room} has no instrument {name!r}: {hint}")


def instruments_of(room: str) -> dict[str, Any]:
    """The instrument classes of a room by name."""
    from streamscope.probes.contract import discover

    return {one.__name__: one for one in discover().values() if one.__module__.startswith(f"{room}.")}


def alias(room: str) -> None:
    """Make the room's short name mean the long one, for all that is imported from now on."""
    _ROOMS.add(room)
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    sys.modules[room] = import_module(f"streamscope.{room}")
