"""Cluster tokens that a model processes in similar ways: computational modes (PLS §4.1).

    python -m features.extract --tier topk --out features.parquet
    python -m features.cluster --features features.parquet --out modes.parquet
    python -m features.cluster --features topk.parquet --raw topk-raw.parquet     and clusters of raw activations
    python -m features.cluster --features features.parquet --method kmeans        ten clusters of all columns (§4.1)
    python -m features.cluster --features topk.parquet --parts 8 --against-samples 10       and other parameters
    python -m features.cluster --features a.parquet b.parquet                     tokens of two corpora, together
    python -m features.cluster --features other.parquet --fitted modes.parquet    labels for new tokens, nothing fitted

Features are standardised, projected on their principal components, and clustered by HDBSCAN* or k-means (App. C.4).
One row per cluster: size, distinct vectors, processing depth k*. Further tables: `summary`; `depth`, the share of
tokens by k*; `labels`, a row per token with its cluster (−1 for noise), probability, k* and position on a UMAP map.
--raw adds `agreement` with clusters of raw activations from the same pipeline, and `same_token`, how often one token
lies in different clusters. Tokens with massive activations (a norm above 5 times the median) are noise there and
counted. --stability adds `stability`: agreement with other seeds and with a part of the documents.
--parts adds `parts`: the number of clusters in disjoint parts of the documents (`features.cluster.checks`). --fitted
reads OUT.safetensors.

With several feature tables, `labels` has a column `file` with the number of the token's table. Columns that are zero by
construction or constant are left out and counted. `features.cluster.modes` documents the pipeline and its libraries.
"""

from pathlib import Path
from types import ModuleType
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge

from streamscope.cli.bounds import Count, Only, Seed, Whole
from streamscope.cli.errors import InputError
from streamscope.features.tables import FeatureTables
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.figures import Curve, Histogram, Intervals


@instrument("cluster", FeatureTables())
class Cluster(Instrument):
    method: Literal["hdbscan", "kmeans"] = "hdbscan"
    """hdbscan leaves tokens between clusters as noise (C.4); kmeans assigns every token (§4.1)."""
    components: Count | Literal["auto", "all"] = "auto"
    """Principal components. auto: 30 for hdbscan; for kmeans all columns without a projection."""
    min_cluster_size: Annotated[int, Ge(2), Only("method", ("hdbscan",))] = 10
    """Smallest number of tokens in a cluster (hdbscan)."""
    min_samples: Annotated[Count, Only("method", ("hdbscan",))] = 1
    """Number of neighbours that defines the density at a token (hdbscan)."""
    selection: Annotated[Literal["eom", "leaf"], Only("method", ("hdbscan",))] = "eom"
    """eom selects clusters by excess of mass; leaf selects the smallest clusters (hdbscan)."""
    clusters: Annotated[int, Ge(2), Only("method", ("kmeans",))] = 10
    """Number of clusters (kmeans)."""
    seed: Seed = 0
    """Seed of kmeans, UMAP, bootstrap and subsamples."""
    umap: bool = True
    """Draw the map of tokens (UMAP with 15 neighbours, minimal distance 0.1)."""
    raw: tuple[Path, ...] = ()
    """Raw activations of the same tokens (`features.extract --raw`), one file per table: cluster and compare them."""
    resamples: Annotated[int, Ge(100), Only("raw")] = 1000
    """Bootstrap samples of documents for the agreement with raw activations."""
    stability: Whole = 0
    """Number of further fits: on other seeds (kmeans) and on a random 80 % of the documents."""
    parts: Whole = 0
    """Cluster this many disjoint parts of the documents: gives an interval for the number of clusters."""
    against: Path | None = None
    """Other features of the same tokens, clustered in the same --parts for comparison."""
    against_size: Annotated[Annotated[int, Ge(2)] | None, Only("method", ("hdbscan",))] = None
    """Another --min-cluster-size to compare, in the same --parts."""
    against_samples: Annotated[Count | None, Only("method", ("hdbscan",))] = None
    """Another --min-samples to compare, in the same --parts."""
    fitted: Path | None = None
    """Result of an earlier run: its clusters label the tokens and nothing is fitted."""

    figures: ClassVar = (
        Intervals("share", "depth", label="depth", each=("group",), ranked=False,
                  title="Share of tokens by the depth at which their prediction settles"),
        Curve("held", x="largest", log=True, title="Share of tokens in the largest clusters"),
        Histogram("k_star_sd", at="dealt", title="Clusters by how much the depth k* varies within them"),
    )  # fmt: skip
    quick: ClassVar = {"umap": False, "stability": 1}
    planted: ClassVar = "tests/features/test_cluster.py::test_k_star_clusters_are_found"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fitted is not None and (self.raw or self.stability or self.parts):
            raise InputError("--fitted fits no clusters: leave out --raw, --stability and --parts")
        for name in ("method", "components", "min_cluster_size", "min_samples", "selection", "clusters"):
            if self.fitted is not None and getattr(self, name) != getattr(Cluster, name):
                raise InputError(f"--{name.replace('_', '-')} has no effect with --fitted: leave it out")
        if self.parts == 1 or (not self.parts and (self.against or self.against_size or self.against_samples)):
            raise InputError("--against, --against-size and --against-samples need --parts; --parts is at least 2")

    @staticmethod
    def body() -> ModuleType:
        from streamscope.features.cluster import measure

        return measure


main = main_of(Cluster, __doc__)
