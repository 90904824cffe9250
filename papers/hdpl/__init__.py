"""Compare HDPL's dual-path projections with a dense model trained on the same data.

    python -m papers.hdpl runs/textbooks/llama-* runs/textbooks/hdpl-* --out results/hdpl_textbooks
    python -m papers.hdpl --tables results/hdpl_textbooks --out results/hdpl_textbooks
    python -m papers.hdpl --scale zoo --seeds 4            train what is missing, measure, judge, write

Losses at the end, and the curves: every evaluation of every run is in curves.parquet, and what the paper says of its
curves is judged at all of them. Runs whose attention.o or mlp.down is hybrid as well are arms of their own
(hdpl+o=hdpl+down=hdpl): the paper keeps these two dense.
The paper's two models did not see the same data: the hybrid trained first and both shared one iterator (SPEC §5). Here
runs of one seed see the same windows in the same order. Beside the losses stands what the penalty did: the paper's
clamp (max ln 2 per token) takes the KL term's gradient away wherever the KL is larger. With --tables an earlier
comparison's tables are judged and its page is written again, without a model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from streamscope.cli.parse import parse
from streamscope.papers.figures import drawn
from streamscope.papers.figures.options import FigureOptions
from streamscope.papers.scales import at_scale
from streamscope.papers.scales.options import ScaleOptions


@dataclass(frozen=True, kw_only=True)
class Options(FigureOptions, ScaleOptions):
    """Arguments of `python -m papers.hdpl`."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN…")] = ()
    """Run folders of llama and hdpl, with attention.o and mlp.down of either kind."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, read, print, write."""
    options = parse(Options, argv, __doc__)
    if options.scale is None and drawn("hdpl", options):
        return
    with at_scale("hdpl", options) as options:
        options.check("papers.hdpl runs/llama-0 runs/hdpl-0")

        from streamscope.papers.comparison.report import compare
        from streamscope.papers.hdpl.report import HDPL

        compare(HDPL, options)
