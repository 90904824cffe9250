"""Feature vectors per token that describe how the model processed it: extraction, clusters, profiles (PLS §2).

    from streamscope.features import Extract

Every instrument of this package is listed here (`instruments.registry.discover`).
"""

from streamscope.features.cluster import Cluster as Cluster
from streamscope.features.extract import Extract as Extract
from streamscope.features.needed_context import NeededContext as NeededContext
from streamscope.features.predict_effects import PredictEffects as PredictEffects
from streamscope.features.profile import Profile as Profile

if __name__ == "features":  # the folder of a clone, under its short name
    from streamscope.aliases import alias

    alias("features")
