"""Every instrument by its name. Classes register themselves (`contract.instrument`); a room has them in `listed`."""

from importlib import import_module
from typing import Any

from streamscope.cli.errors import unknown

LISTED = ("streamscope.probes.listed", "streamscope.interventions.listed", "streamscope.features.listed")
"""What imports the instruments of a room. This room may not import them: they import it."""
REGISTERED: dict[str, type[Any]] = {}


def discover() -> dict[str, type[Any]]:
    """Every instrument of the house."""
    for module in LISTED:
        import_module(module)
    return dict(sorted(REGISTERED.items()))


def named(name: str) -> type[Any]:
    """An instrument by its name; `InputError` for an unknown name."""
    classes = discover()
    if name not in classes:
        raise unknown("instrument", name, list(classes))
    return classes[name]
