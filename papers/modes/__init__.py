"""Compare computational modes with and without per-layer supervision, over training seeds (PLS).

    python -m papers.modes runs/tinystories/pls-{0,1,2} runs/tinystories/c2-{0,1,2} --out results/pls_modes
    python -m papers.modes --tables results/pls_modes --out results/pls_modes

Takes finished runs of pls and c2, each seed of both, that differ in the supervision only. Per run: features of
validation tokens, clustered as in App. C.4 (455-D, HDBSCAN) and §4.1 (163-D, k-means); clusters, coverage, processing
depth; agreement with clusters of raw activations, and of both with token identity. Over pairs of seeds: means and
differences with intervals, and the paper's numbers. Per claim of the paper: whether it holds here, by a rule.
--tables judges the claims of an earlier comparison again and writes its page, from its tables alone.
"""

from collections.abc import Sequence

from streamscope.cli.errors import InputError
from streamscope.cli.parse import parse
from streamscope.papers.modes.options import LEAST, Options


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, print, write."""
    options = parse(Options, argv, __doc__)
    if min(options.tokens, options.kmeans_tokens) < LEAST:
        raise InputError(f"--tokens, --kmeans-tokens: at least {LEAST}")
    options.check("papers.modes runs/pls-0 runs/c2-0")

    from streamscope.papers.comparison.report import compare
    from streamscope.papers.modes.report import COMPARISON

    compare(COMPARISON, options)
