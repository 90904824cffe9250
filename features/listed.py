"""The instruments of this room, each by its class."""

from streamscope.features.cluster import Cluster as Cluster
from streamscope.features.dictionaries import Dictionaries as Dictionaries
from streamscope.features.dictionary_quality import DictionaryQuality as DictionaryQuality
from streamscope.features.extract import Extract as Extract
from streamscope.features.needed_context import NeededContext as NeededContext
from streamscope.features.predict_effects import PredictEffects as PredictEffects
from streamscope.features.profile import Profile as Profile
