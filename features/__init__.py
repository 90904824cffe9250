"""Feature vectors per token that describe how the model processed it: extraction, clusters, profiles (PLS §2).

    from streamscope.features import Extract

All instruments of this package can be imported from here; each is loaded on first use.
"""

from typing import TYPE_CHECKING

from streamscope.aliases import open_room

if TYPE_CHECKING:  # for type checkers and editors
    from streamscope.features.cluster import Cluster as Cluster
    from streamscope.features.extract import Extract as Extract
    from streamscope.features.needed_context import NeededContext as NeededContext
    from streamscope.features.predict_effects import PredictEffects as PredictEffects
    from streamscope.features.profile import Profile as Profile

__getattr__, __dir__ = open_room(__name__)
