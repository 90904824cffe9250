"""Profile clusters of tokens: sizes, typical tokens, samples in context, and a map to explore.

    python -m features.extract --out features.parquet
    python -m features.cluster --features features.parquet --out modes.parquet
    python -m features.profile --features features.parquet --clusters modes.parquet --out p.parquet --figure map.html
    python -m features.profile --features a.parquet b.parquet --clusters modes.parquet     as they were clustered
    python -m features.profile --features features.parquet --labels mine.parquet --figure map.html     your own

One row per cluster: size, depth, tokens, predictions, kinds of tokens, heads; on disk also means of head activations,
probabilities by layer and core features. Beside it `distances`, how far tokens are from the centre of their cluster,
and whether farther than those of the others; `kinds`, which kinds of tokens a cluster holds more or less often;
`samples`, tokens nearest to its centre, and diverse ones by farthest point, in their texts; `tokens`, all of them. On
the map (where clusters have coordinates) the pointer shows each token in its text. Texts come from the feature table
itself; of several tables profiles and samples say which one tokens are from.

Labels of your own are parquet with the columns document, position (as in the table of features) and label (text, or a
whole number; null and −1 mean none). Tokens without one, and labels without a token, are counted in every title.
"""

from pathlib import Path
from typing import ClassVar

from streamscope.cli.bounds import Count
from streamscope.features.tables import FeatureTables
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.figures import HeadMap, Intervals, Points


@instrument("profile", FeatureTables())
class Profile(Instrument):
    """Say what each computational mode is: which tokens it holds, how deep they are, which heads are at work.

    Kinds of tokens: log-odds inside over outside, hypergeometric, Holm (PLS §4.3, App. C.5).
    """

    clusters: Path | None = None
    """Result of `features.cluster` of the same features; default: clustered now, by density."""
    labels: Path | None = None
    """Clusters of your own, instead: parquet with document, position, label. With --clusters the map is that one's."""
    umap: bool = True
    """Draw the map of tokens where --clusters brings none."""
    representative: Count = 8
    """Tokens nearest to the centre, per cluster."""
    diverse: Count = 15
    """Tokens by farthest point, per cluster; 15 in the paper."""

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


main = main_of(Profile, __doc__)
