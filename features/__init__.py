"""Feature vectors per token that describe how the model processed it: extraction, clusters, profiles (PLS §2).

    from streamscope.features import Extract

All instruments of this package can be imported from here; each is loaded on first use.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers and editors
    from streamscope.features.cluster import Cluster as Cluster
    from streamscope.features.extract import Extract as Extract
    from streamscope.features.needed_context import NeededContext as NeededContext
    from streamscope.features.predict_effects import PredictEffects as PredictEffects
    from streamscope.features.profile import Profile as Profile


def __getattr__(name: str) -> Any:
    from streamscope.aliases import instrument_of

    return instrument_of(__name__, name)


def __dir__() -> list[str]:
    from streamscope.aliases import instruments_of

    return sorted({*globals(), *instruments_of(__name__)} - {"Any", "TYPE_CHECKING"})


if __name__ == "features":  # the folder of a clone, under its short name
    from streamscope.aliases import alias

    alias("features")
