"""Compare DST models: the loss without a stream (Table 4) and under sharpened attention (Table 5).

    python -m papers.dst runs/tinystories/dst-kron-0 --out results/dst_tinystories
    python -m papers.dst runs/dst-dense-* runs/dst-kron-* runs/dst-ind-* --out results/dst
    python -m papers.dst runs/kron-0 runs/kron-0@1000 runs/kron-normal-0 …    by initialization and tokens
    python -m papers.dst --tables results/dst_tinystories --out results/dst_tinystories
    python -m papers.dst --scale zoo --seeds 4            train what is missing, measure, judge, write

Takes finished runs of any presets that differ in preset, mode (+frozen_token), head gates (+gate), number of heads and
seed only; and in how their weights began (init.weights, init.embed) and in the step of a snapshot RUN@STEP, which are
factors: a claim about one model is judged where every cell of them says the same, and is confounded elsewhere. Table 4
is judged on token-factor models, Table 5 on frozen-token ones, as the paper has them. Per run, with intervals over
documents: the loss with x_t or x_e at 0, random words', mean or other text's in its place, everywhere, for the head and
layer by layer (models with two streams); the loss at α = 1, 2, 4, 8, 16, its degradation, areas in every reading. Over
seeds: means with intervals, and whether the paper's claims hold. Several presets with dst-dense also give the losses of
Table 1, frozen-token ones those of Table 8. --scale measures a snapshot near half of the training as well, of what
began in more than one way. --tables judges the claims of an earlier comparison again and writes its page, from its
tables alone.
"""

from collections.abc import Sequence

from streamscope.cli.errors import InputError
from streamscope.cli.parse import parse
from streamscope.papers.dst.options import Options
from streamscope.papers.figures import drawn
from streamscope.papers.scales import at_scale


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, print, write."""
    options = parse(Options, argv, __doc__)
    if options.scale is None and drawn("dst", options):
        return
    if len(options.alphas) < 2:
        raise InputError("--alpha: areas go upwards from 1; give more than 1")
    with at_scale("dst", options) as options:
        options.check("papers.dst runs/dst-kron-0")

        from streamscope.papers.comparison.report import compare
        from streamscope.papers.dst.report import DST

        compare(DST, options)
