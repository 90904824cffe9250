"""Names of modules: the short ones of a clone, and those of an earlier release.

In a clone `models.x` is the same module object as `streamscope.models.x`.

Without this, what is imported under both names would exist twice: `isinstance` and `except InputError` would miss. Each
room's `__init__` ends with

    if __name__ == "models":
        alias("models")

or, where it has instruments, with `open_room`.

What moved keeps its old name for one release (`MOVED`): the same objects, with a DeprecationWarning.

A package that has a `main` and no file `__main__` is a command: `python -m probes.pds` runs it.
"""

import sys
import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType
from typing import Any

from streamscope.cli.errors import did_you_mean
from streamscope.rooms import WITH_INSTRUMENTS

MOVED: dict[str, tuple[str, ...]] = {
    "features.profile.enrichment": ("features.profile.token_kinds",),
    "features.profile.samples": ("features.profile.profiles",),
    "interventions.abliterate.weights": ("interventions.abliterate.measure",),
    "interventions.amplify.areas": ("interventions.amplify.measure",),
    "interventions.effects": ("interventions.controls",),
    "interventions.hydra.decomposition": ("interventions.hydra.measure",),
    "interventions.patch.attribution": ("interventions.patch.activations",),
    "interventions.streams.reference": ("interventions.streams.measure",),
    "interventions.token_effects.sweep": ("interventions.token_effects.measure",),
    "models.bounds": ("cli.bounds",),
    "models.cli": ("cli.parse",),
    "models.config.hyper": ("models.config",),
    "models.config.parts": ("models.config",),
    "models.disk": ("cli.disk",),
    "models.errors": ("cli.errors",),
    "models.export": ("models.interop.export",),
    "models.help": ("cli.help",),
    "models.hooks.own_edits": ("models.hooks.user_edits",),
    "models.hooks.capture_and_edit": ("models.hooks",),
    "models.hooks.query": ("models.hooks",),
    "models.huggingface": ("models.interop.huggingface",),
    "models.importers": ("models.interop.importers",),
    "models.launch": ("cli.launch",),
    "models.lens": ("models.interop.transformer_lens_api", "models.interop.activation_cache"),
    "models.own_code": ("cli.user_code",),
    "models.plain": ("cli.terminal",),
    "models.provenance": ("cli.provenance",),
    "models.text": ("text",),
    "probes.check.declared": ("probes.check.measure",),
    "probes.coherence.elsewhere": ("probes.coherence.measure",),
    "probes.command": ("instruments.command", "instruments.arguments"),
    "probes.contract": ("instruments.contract", "instruments.data", "instruments.options", "instruments.registry"),
    "probes.directions.contrast": ("probes.directions.measure",),
    "probes.documents": ("instruments.open_data",),
    "probes.drawing": ("instruments.figures.drawing",),
    "probes.figures": ("instruments.figures",),
    "probes.instrument": ("instruments.user_instrument",),
    "probes.observations": ("instruments.observations",),
    "probes.prompts": ("instruments.prompts",),
    "probes.result": ("instruments.result", "instruments.table"),
    "probes.stats": ("instruments.stats",),
    **dict.fromkeys(
        ("probes.stats.corrections", "probes.stats.effect_sizes", "probes.stats.permutations", "probes.stats.t_tests"),
        ("instruments.stats.estimators",),
    ),
    "probes.tables": ("instruments.table",),
    "probes.together": ("instruments.pool_results",),
    "probes.undefined": ("instruments.undefined_cells",),
}
"""Old name -> where its objects are now, without `streamscope.`; names below a package move with it."""
_ROOMS: set[str] = set()


def _moved(name: str) -> tuple[str, ...]:
    """The modules that hold the objects of an old name `streamscope.x`; () for a name that did not move.

    A short name `models.x` counts only in a clone: elsewhere `models` may be a package of the user.
    """
    top, _, rest = name.partition(".")
    if top != "streamscope" and top not in _ROOMS:
        return ()
    short = rest if top == "streamscope" else name
    if short in MOVED:
        return tuple(f"streamscope.{home}" for home in MOVED[short])
    for old, homes in MOVED.items():
        if short.startswith(f"{old}."):
            return (f"streamscope.{homes[0]}{short.removeprefix(old)}",)
    return ()


class _Finder(MetaPathFinder, Loader):
    """Hands out the module of the long name for the short one, and the new one for the old."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        homes = _moved(fullname)
        if not homes and fullname.partition(".")[0] not in _ROOMS:
            return None
        real = find_spec(homes[0] if homes else f"streamscope.{fullname}")
        if real is None:
            return None
        package = real.submodule_search_locations is not None
        return ModuleSpec(fullname, self, origin=real.origin, is_package=package)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        homes = _moved(spec.name)
        if homes:
            warnings.warn(f"{spec.name} is now {' and '.join(homes)}; the old name goes with the next release",
                          DeprecationWarning, stacklevel=2)  # fmt: skip
        modules = [import_module(home) for home in homes or (f"streamscope.{spec.name}",)]
        module = modules[0]
        if len(modules) > 1:  # the objects of one old module have several homes now
            module = ModuleType(spec.name, module.__doc__)
            for one in reversed(modules):
                vars(module).update({k: v for k, v in vars(one).items() if not k.startswith("__")})
        spec.loader_state = getattr(module, "__spec__", None)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It is executed already; only its own specification is put back in place of the other name's."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state or module.__spec__

    def get_code(self, fullname: str) -> CodeType | None:
        """For `python -m`."""
        spec = find_spec((_moved(fullname) or (f"streamscope.{fullname}",))[0])
        assert spec is not None and spec.loader is not None
        return spec.loader.get_code(spec.name)  # type: ignore[attr-defined]


_FINDER = _Finder()


class _CommandFinder(MetaPathFinder, Loader):
    """The `__main__` of a package that has a `main` and no file of that name."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        package, _, last = fullname.rpartition(".")
        home = sys.modules.get(package) if last == "__main__" and package.startswith("streamscope.") else None
        return None if home is None or not hasattr(home, "main") else ModuleSpec(fullname, self, origin=home.__file__)

    def get_code(self, fullname: str) -> CodeType:
        """For `python -m`."""
        package = fullname.removesuffix(".__main__")
        source = f"from streamscope.cli.parse import command\nfrom {package} import main\ncommand(main)\n"
        return compile(source, f"<{fullname}>", "exec")


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
    hint = did_you_mean(name, list(here)) or f"its instruments are {', '.join(here)}"
    raise AttributeError(f"{room} has no instrument {name!r}: {hint}")


def instruments_of(room: str) -> dict[str, Any]:
    """The instrument classes of a room by name."""
    from streamscope.instruments.registry import discover

    return {one.__name__: one for one in discover().values() if one.__module__.startswith(f"{room}.")}


def open_room(room: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a room, whose instruments are imported on first use; a short name is an alias."""
    if not room.startswith("streamscope."):
        alias(room)
    names = vars(sys.modules[room])
    return partial(instrument_of, room), lambda: sorted(
        {*names, *instruments_of(room)} - {"TYPE_CHECKING", "open_room"}
    )


def alias(room: str) -> None:
    """Make the room's short name mean the long one, for all that is imported from now on."""
    _ROOMS.add(room)
    sys.modules[room] = import_module(f"streamscope.{room}")


sys.meta_path.insert(0, _FINDER)
sys.meta_path.append(_CommandFinder())
