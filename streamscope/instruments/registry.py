"""Every instrument by its name. Classes register themselves (`contract.instrument`); none is listed by hand."""

from importlib import import_module
from typing import Any

from streamscope.cli.errors import unknown
from streamscope.rooms import WITH_INSTRUMENTS, folder_of

REGISTERED: dict[str, type[Any]] = {}


def discover() -> dict[str, type[Any]]:
    """Every instrument of the house, found in the source of its rooms."""
    for room in WITH_INSTRUMENTS:
        root = folder_of(room).parent
        for path in sorted((root / room).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if "\n@instrument(" in text:
                parts = path.relative_to(root).with_suffix("").parts
                import_module(".".join(("streamscope", *(parts[:-1] if parts[-1] == "__init__" else parts))))
    return dict(sorted(REGISTERED.items()))


def named(name: str) -> type[Any]:
    """An instrument by its name; `InputError` for an unknown name."""
    known = discover()
    if name not in known:
        raise unknown("instrument", name, list(known))
    return known[name]
