"""Probes: measurements that only observe.

    from streamscope.probes import Pds

Every instrument of the room is here under its class's name, imported on first use.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    if not name[:1].isupper():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from streamscope.probes.contract import discover

    for found in discover().values():
        if found.__name__ == name and found.__module__.startswith(f"{__name__}."):
            return found
    raise AttributeError(f"module {__name__!r} has no instrument {name!r}")


if __name__ == "probes":  # the folder of a clone, under its short name
    from streamscope.aliases import alias

    alias("probes")
