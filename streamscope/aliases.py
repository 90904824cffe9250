"""Where the rooms lie, and their short names in a clone: `models.x` is the same module as `streamscope.models.x`.

Without this, what is imported under both names would exist twice: `isinstance` and `except InputError` would miss. Each
room's `__init__` calls `lazy`; its names are imported at their first use.

A package that has a `main` is a command: `python -m probes.pds` runs it.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

_ROOMS: set[str] = set()
BARE: dict[str, ModuleType] = {}
"""Packages of others that were imported without their `__init__` (`models.interop.transformer_lens_core`)."""


class _Finder(MetaPathFinder, Loader):
    """Hands out the module of the long name for the short one, and the `__main__` of a package that has a `main`."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname in BARE and (spec := PathFinder.find_spec(fullname, path)) is not None:
            spec.loader.create_module = lambda spec: BARE.pop(spec.name)  # type: ignore[union-attr, method-assign]
            return spec  # its `__init__` runs in the module that already exists
        room = fullname.partition(".")[0]
        package, _, last = fullname.rpartition(".")
        if room not in {"streamscope", *_ROOMS}:
            return None
        if last == "__main__" and hasattr(sys.modules.get(package), "main"):
            return spec_from_file_location(fullname, Path(__file__).with_name("cli") / "package_main.py")
        real = find_spec(f"streamscope.{fullname}") if room != "streamscope" else None
        if real is None:
            return None
        return ModuleSpec(fullname, self, origin=real.origin, is_package=real.submodule_search_locations is not None)

    def exec_module(self, module: ModuleType) -> None:
        """The module of the long name takes the place of the new one."""
        sys.modules[module.__name__] = import_module(f"streamscope.{module.__name__}")

    def get_code(self, fullname: str) -> CodeType | None:
        """For `python -m`."""
        spec = find_spec(f"streamscope.{fullname}")
        assert spec is not None and spec.loader is not None
        return spec.loader.get_code(spec.name)  # type: ignore[attr-defined]


def folder_of(room: str) -> Path:
    """The folder of a room or of `datasets`, in a clone at its top, installed inside streamscope."""
    inside, *clone = [*map(Path, sys.modules["streamscope"].__path__)]
    return inside / room if (inside / room).is_dir() or not clone else clone[0] / room


def lazy(package: str, home: Mapping[str, str] | str = {}) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose names are imported at their first use.

    `home` is the module of each name, or one module that has all of them and whose names begin with a capital. For a
    room under its short name, all that is imported from now on gets the package of the long name.
    """

    def find(name: str) -> Any:
        module = home.get(name) if isinstance(home, Mapping) else home if name[:1].isupper() else None
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(module), name)

    def names() -> list[str]:
        known = home if isinstance(home, Mapping) else vars(import_module(home))
        return sorted({*vars(sys.modules[package]), *known})

    if package.partition(".")[0] != "streamscope":
        _ROOMS.add(package)
        sys.modules[package] = import_module(f"streamscope.{package}")
    return find, names


sys.meta_path.insert(0, _Finder())  # before Python's own, which would read the files again
