"""Every instrument by its name. Classes register themselves (`contract.instrument`); each room lists its own."""

from importlib import import_module
from typing import Any

from streamscope.cli.errors import unknown

ROOMS = ("streamscope.probes", "streamscope.interventions", "streamscope.features")
"""Rooms whose `__init__` imports their instruments. This room may not import them: they import it."""
REGISTERED: dict[str, type[Any]] = {}


def discover() -> dict[str, type[Any]]:
    """Every instrument of the house."""
    for room in ROOMS:
        import_module(room)
    return dict(sorted(REGISTERED.items()))


def named(name: str) -> type[Any]:
    """An instrument by its name; `InputError` for an unknown name."""
    known = discover()
    if name not in known:
        raise unknown("instrument", name, list(known))
    return known[name]
