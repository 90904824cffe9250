"""Cluster tokens that a model processes in similar ways: computational modes (PLS §4.1).

    python -m features.extract --tier topk --out features.parquet
    python -m features.cluster --features features.parquet --out modes.parquet
    python -m features.cluster --features topk.parquet --raw topk-raw.parquet     beside clusters of raw activations
    python -m features.cluster --features features.parquet --method kmeans        ten clusters of all columns (§4.1)
    python -m features.cluster --features topk.parquet --parts 8 --against-samples 10       beside other parameters
    python -m features.cluster --features a.parquet b.parquet                     tokens of two corpora, together
    python -m features.cluster --features other.parquet --fitted modes.parquet    labels for new tokens, nothing fitted

One row per cluster: size, distinct vectors, processing depth k*. Beside it `summary`; `depth`, shares of tokens by k*,
in clusters and in none; `labels`, one row per token: cluster, −1 for noise, probability, k*, a UMAP position for
display; with --raw `agreement`, how far the clusters are those of raw activations under the same pipeline, and
`same_token`, how often one token lies in different ones; with --stability `stability`, how far they come back from
other seeds and from a part of the documents; with --parts `parts`, how many clusters parts of the documents have by
themselves, beside another way (`features.cluster.parts`). OUT.safetensors holds what --fitted reads.

Labels of several tables have a column `file`, the place of the token's table among them; documents are numbered on.
Columns that are zero by construction, and those with one value in all rows, are left out and counted. What the pipeline
does, and which library does it, is said in `features.cluster.modes`.
"""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from streamscope.cli.bounds import Bounds, Count, Only, Seed, Whole
from streamscope.cli.errors import InputError
from streamscope.features.tables import FeatureTables
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.figures import Curve, Histogram, Intervals


@instrument("cluster", FeatureTables())
class Cluster(Instrument):
    """Group the tokens that a model processes alike, by density or into a given number of clusters.

    z-scored features → principal components → HDBSCAN* or k-means (PLS §4.1, App. C.4).
    """

    method: Literal["hdbscan", "kmeans"] = "hdbscan"
    """hdbscan leaves tokens between clusters out (C.4), kmeans assigns every token (§4.1)."""
    components: Count | Literal["auto", "all"] = "auto"
    """Principal components, at most as many as columns; auto: 30 for hdbscan, all columns as they are for kmeans."""
    min_cluster_size: Annotated[int, Bounds(low=2), Only("method", "hdbscan")] = 10
    """Tokens of the smallest cluster (hdbscan)."""
    min_samples: Annotated[Count, Only("method", "hdbscan")] = 1
    """Neighbours that make a token dense (hdbscan)."""
    selection: Annotated[Literal["eom", "leaf"], Only("method", "hdbscan")] = "eom"
    """Clusters of most excess of mass, or the smallest ones (hdbscan)."""
    clusters: Annotated[int, Bounds(low=2), Only("method", "kmeans")] = 10
    """Clusters of kmeans."""
    seed: Seed = 0
    """Of kmeans, UMAP, resamples and subsamples."""
    umap: bool = True
    """Place tokens on a map (15 neighbours, minimal distance 0.1) for display."""
    raw: tuple[Path, ...] = ()
    """Raw activations of the same tokens (`features.extract --raw`), to cluster alike and compare; one per table."""
    resamples: Annotated[int, Bounds(low=100), Only("raw")] = 1000
    """Of the bootstrap over documents, for the agreement with raw activations."""
    stability: Whole = 0
    """Fits on other seeds (kmeans) and on random 80 % of the documents."""
    parts: Whole = 0
    """Disjoint parts of the documents that are clustered by themselves: the number of clusters gets an interval."""
    against: Path | None = None
    """Other features of the same tokens, clustered alike in the same --parts."""
    against_size: Annotated[Annotated[int, Bounds(low=2)] | None, Only("method", "hdbscan")] = None
    """Another --min-cluster-size, in the same --parts."""
    against_samples: Annotated[Count | None, Only("method", "hdbscan")] = None
    """Another --min-samples, in the same --parts."""
    fitted: Path | None = None
    """Clusters that were written before: the tokens get their labels, and nothing is fitted."""

    figures: ClassVar = (
        Intervals("share", "depth", label="depth", each=("group",), ranked=False,
                  title="Clusters by the depth at which their predictions settle"),
        Curve("held", x="largest", log=True, title="Share of tokens in the largest clusters"),
        Histogram("k_star_sd", at="dealt", title="Clusters by how much the depth k* varies within them"),
    )  # fmt: skip
    quick: ClassVar = {"umap": False, "stability": 1}
    planted: ClassVar = "tests/features/test_cluster.py::test_k_star_clusters_are_found"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fitted is not None and (self.raw or self.stability or self.parts):
            raise InputError("--fitted fits nothing that --raw, --stability or --parts could be of; leave them out")
        for name in ("method", "components", "min_cluster_size", "min_samples", "selection", "clusters"):
            if self.fitted is not None and getattr(self, name) != getattr(Cluster, name):
                raise InputError(f"--{name.replace('_', '-')} has no effect with --fitted: leave it out")
        if self.parts == 1 or (not self.parts and (self.against or self.against_size or self.against_samples)):
            raise InputError("--parts: two at least, also for --against, --against-size and --against-samples")


main = main_of(Cluster, __doc__)
