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

from dataclasses import dataclass
from typing import Annotated

import tyro

from streamscope.papers.figures.options import FigureOptions
from streamscope.papers.scales import comparison_main
from streamscope.papers.scales.options import ScaleOptions


@dataclass(frozen=True, kw_only=True)
class Options(FigureOptions, ScaleOptions):
    """Arguments of `python -m papers.hdpl`."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN…")] = ()
    """Run folders of llama and hdpl, with attention.o and mlp.down of either kind."""


main = comparison_main(Options, __doc__, "papers.hdpl runs/llama-0 runs/hdpl-0")
