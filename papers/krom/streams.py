"""Measure the blog's claims about streams and modules within a run, over training seeds (KROM).

    python -m papers.krom.streams runs/kromcanon-b2-* runs/kromcanon-b0-* runs/kromcanon-b8-bf16-*
    python -m papers.krom.streams runs/kromcanon-b2-* --steps 500 1000
    python -m papers.krom.streams --tables results/krom_streams --out results/krom_streams

Per run, on validation documents:

    stable          Spearman's ρ, over the modules whose mixing can act, of α_res at the two --steps of a run
    kept            share of these modules whose α_res has the same sign at both
    helps           Spearman's ρ, over these modules, of what the dynamic term adds to the swap (in use − static, mean
                    over factors) and of what the loss gains from mixing there, L(H_res → I) − L
    slope           least-squares slope over layers of the cosine between streams of the direction of a contrast
    slope.shuffled  the same with the labels of the two sets shuffled
    spread          mean of ‖X − X̄‖ / ‖X‖ of the streams after the last module (`probes.contraction`)

Directions of real and of shuffled labels are alike between streams for one reason, how alike the streams are; what
falls with depth for both is no signal of the contrast. Units are training seeds. That α is stable above .8 and that
streams of a spread below .01 are near copies are limits of ours: the blog has none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from streamscope.cli.bounds import Bounds
from streamscope.cli.parse import command, parse
from streamscope.papers.comparison.options import RunsOptions


@dataclass(frozen=True, kw_only=True)
class Options(RunsOptions):
    """Arguments of `python -m papers.krom.streams`."""

    steps: tuple[Annotated[int, Bounds(low=1)], Annotated[int, Bounds(low=1)]] = (1000, 2000)
    """Two snapshots of every run, between which α_res is compared."""
    documents: Annotated[int, Bounds(low=2, high=1_000_000)] = 50
    """Validation documents to measure on."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, judge, print, write."""
    options = parse(Options, argv, __doc__)
    options.check("papers.krom.streams runs/kromcanon-b2-0")

    from streamscope.papers.comparison.report import compare, of_quantities
    from streamscope.papers.krom.streams_measure import claims, measured

    compare(of_quantities("papers.krom.streams", "streams and modules, over seeds", measured, claims), options)


if __name__ == "__main__":
    command(main)
