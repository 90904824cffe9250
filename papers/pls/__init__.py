"""Compare per-layer supervision with the same model without it (C2), over training seeds (PLS).

    python -m papers.pls runs/tinystories/pls-{0,1,2} runs/tinystories/c2-{0,1,2} --out results/pls_tinystories
    python -m papers.pls runs/pls-0 runs/c2-0 --groups found --tasks capitalization gender winograd
    python -m papers.pls --tables results/pls_tinystories --out results/pls_tinystories
    python -m papers.pls --scale zoo --seeds 4            train what is missing, measure, judge, write

Takes finished runs of pls and c2, each seed of both, that differ in the supervision only. Per run: the effect of
ablating groups of heads on tasks and its spread between cases (Table 2, Fig. 4b), control curves (Fig. 3), task × group
matrix and diagonality (Fig. 4a), direct against total effect (Hydra), the depth at which predictions settle (Table 1).
Per pair of a seed: ratios with bootstrap intervals over cases; over pairs: intervals whose units are training seeds.
Per claim of the paper: whether it holds here, by a rule, for the paper's heads and for those that attention names in
all layers of each model (--layers). No claim is judged of a task that the models cannot do, or of heads whose roles are
not above shuffled ones: there is no such head. --tables judges the claims of an earlier comparison again and writes its
page, from its tables alone.
"""

from collections.abc import Sequence

from streamscope.cli.parse import parse
from streamscope.papers.figures import drawn
from streamscope.papers.pls.options import Options
from streamscope.papers.scales import at_scale


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, print, write."""
    options = parse(Options, argv, __doc__)
    if options.scale is None and drawn("pls", options):
        return
    with at_scale("pls", options) as options:
        options.check("papers.pls runs/pls-0 runs/c2-0")

        from streamscope.papers.comparison.report import compare
        from streamscope.papers.pls.report import PLS

        compare(PLS, options)
