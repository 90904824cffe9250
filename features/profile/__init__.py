"""Profile clusters of tokens: sizes, typical tokens, samples in context, and a map to explore.

    python -m features.extract --out features.parquet
    python -m features.cluster --features features.parquet --out modes.parquet
    python -m features.profile --features features.parquet --clusters modes.parquet --out p.parquet --figure map.html
    python -m features.profile --features a.parquet b.parquet --clusters modes.parquet     as they were clustered
    python -m features.profile --features features.parquet --labels mine.parquet --figure map.html     your own

One row per cluster: size, depth, tokens, predictions, kinds of tokens, heads; on disk also mean head activations,
probabilities by layer and core features. Further tables: `distances` of tokens to the centre of their cluster, compared
with the other clusters; `kinds`, which kinds of tokens a cluster holds more or less often (log-odds inside over
outside, hypergeometric test, Holm's correction; PLS §4.3, App. C.5); `samples`, the tokens nearest to the centre and
diverse ones by farthest point, in their texts; `tokens`, all of them. On the map (if clusters have coordinates) the
pointer shows each token in its text. Texts come from the feature table.

Your own labels are parquet with the columns document, position (as in the feature table) and label (text or a whole
number; null and −1 mean none). Titles count tokens without a label and labels without a token.
"""

from pathlib import Path
from types import ModuleType
from typing import ClassVar

from streamscope.cli.bounds import Count
from streamscope.features.tables import FeatureTables
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.figures import HeadMap, Intervals, Points


@instrument("profile", FeatureTables())
class Profile(Instrument):
    clusters: Path | None = None
    """Result of `features.cluster` on the same features; default: cluster them now by density."""
    labels: Path | None = None
    """Your own clusters instead: parquet with document, position, label. With --clusters, its map is used."""
    umap: bool = True
    """Draw the map of tokens without --clusters, whose own map is used if it has one."""
    representative: Count = 8
    """Number of tokens nearest to the centre, per cluster."""
    diverse: Count = 15
    """Number of diverse tokens by farthest point, per cluster; 15 in the paper."""

    figures: ClassVar = (
        Points("y", "tokens", color="label", text=("text", "prediction"), none="", typical="text",
               title="Map of tokens, by cluster and its typical tokens"),
        Points("y", "tokens", color="cluster", text=("text", "prediction"), none=-1, typical="text",
               title="Map of tokens, by cluster"),
        Points("y", "tokens", color="k_star", text=("text", "prediction"), ordered=True,
               title="Map of tokens, by the layer where their prediction settles"),
        Intervals("depth_mean", label="cluster", title="Layer where predictions settle, by cluster"),
        HeadMap("log_odds", "kinds", rows="cluster", columns="kind", title="Which kinds of tokens each cluster holds"),
    )  # fmt: skip
    quick: ClassVar = {"umap": False}
    planted: ClassVar = "tests/features/test_profiles.py::test_the_command_says_what_was_planted"

    @staticmethod
    def body() -> ModuleType:
        from streamscope.features.profile import measure

        return measure


main = main_of(Profile, __doc__)
