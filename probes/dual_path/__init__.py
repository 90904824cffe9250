"""Measure both paths of HDPL's projections: output shares, KL by dimension, and active units.

    python -m probes.dual_path                                  the bundled hdpl
    python -m probes.dual_path runs/hdpl --data valid.txt --out paths.parquet
    python -m probes.dual_path runs/hdpl@all --max-documents 50 --figure paths.html

For each projection y = d + g, detail path d = x W_block, global path g = W_dec SiLU(z), over the positions t of
documents with a target (HDPL Eq. 1 to 9):

    kl         mean_t KL(N(μ, σ²) ‖ N(0, I)) = mean_t ½ Σ_r (μ_r² + σ_r² − 1 − ln σ_r²), nats per token; by dimension r
    clamped    share of positions with KL above ln 2, the paper's bound, where the penalty has no gradient
    along      Σ_t g·y / Σ_t y·y: the global path's share of the output along itself; the detail path has the rest
    power      Σ_t |g|² / Σ_t (|g|² + |d|²): the global path's share without cancellation
    active     dimensions with varying means: Var_t μ_r > .01, A_u of Burda, Grosse and Salakhutdinov 2016

and for the model the loss as in training, with z = μ + σ ε drawn at every position, minus the loss at z = μ as in
evaluation. Units of intervals are documents. A variance over all positions has no interval.
"""

from typing import Annotated, Any, ClassVar

from annotated_types import Ge

from streamscope.cli.bounds import Count, Seed
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument, need_parts
from streamscope.instruments.data import Documents
from streamscope.instruments.figures import HeadMap


@instrument("dual_path", Documents(max_documents=200))
class DualPath(Instrument):
    draws: Count = 4
    """Number of draws of all latents for the loss as in training."""
    active: Annotated[float, Ge(0.0)] = 0.01
    """Variance of a dimension's mean over positions above which it counts as active."""
    seed: Seed = 0
    """Seed of the draws."""

    figures: ClassVar = (
        HeadMap("along", rows="layer", columns="projection", title="Share of each output that the global path makes"),
        HeadMap("kl", rows="layer", columns="projection", title="KL of the latents of each projection"),
        HeadMap("kl", table="dimensions", rows="place", columns="dimension", title="KL of each latent dimension"),
    )  # fmt: skip
    runs: ClassVar = ("stories/hdpl",)
    quick: ClassVar = {"draws": 2}
    planted: ClassVar = "tests/probes/test_dual_path.py::test_paths_whose_shares_are_known"

    def check(self, model: Any) -> None:
        need_parts(model, self.name)
        self.body().projections_of(model)

    @staticmethod
    def body() -> Any:
        from streamscope.probes.dual_path import measure

        return measure


main = main_of(DualPath, __doc__)
