"""The base of this room's instruments."""

from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

from streamscope.instruments.contract import Instrument


@dataclass(frozen=True, kw_only=True)
class Intervention(Instrument):
    """An instrument whose functions are in the module measure of its package."""

    @classmethod
    def body(cls) -> ModuleType:
        return import_module(f"{cls.__module__}.measure")
