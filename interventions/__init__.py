"""Interventions: measurements that change the forward pass.

    from streamscope.interventions import Ablate

Every instrument of the room is here under its class's name, imported on first use.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    from streamscope.aliases import instrument_of

    return instrument_of(__name__, name)


def __dir__() -> list[str]:
    from streamscope.aliases import instruments_of

    return sorted({*globals(), *instruments_of(__name__)} - {"Any"})


if __name__ == "interventions":  # the folder of a clone, under its short name
    from streamscope.aliases import alias

    alias("interventions")
