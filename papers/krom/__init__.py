"""Compare KROM models with GPT-2: Canon, hyper-connections, and what freezes mixing at bias −8.

    python -m papers.krom runs/textbooks/* --out results/krom_textbooks
    python -m papers.krom --tables results/krom_textbooks --out results/krom_textbooks
    python -m papers.krom --scale zoo --seeds 4            train what is missing, measure, judge, write

Two questions. Losses: vanilla, Canon, KromHC and KromCanon, trained alike, compared with the blog's; does its order of
them holds. Mixing: runs of kromhc or kromcanon that differ in the initial bias, the storage of the hyper-connections'
parameters, their optimiser and decay; how much of a logit's way was the loss's and how much decay's
(`papers.krom.mixing`), and whether the signs of the dynamic term agree over seeds (`papers.krom.signs`). Runs of a
recipe of their own (other steps, other rates of the hyper-connections) are in the mixing table and not in the losses.
Other topologies (HC, mHC, mHC-lite, H_res = I, eight streams) are arms of their own, held against the same preset
without the change (`papers.krom.variants`).
With --tables an earlier comparison's tables are judged and its page is written again, without a model.
"""

from dataclasses import dataclass
from typing import Annotated

import tyro

from streamscope.papers.figures.options import FigureOptions
from streamscope.papers.scales import comparison_main
from streamscope.papers.scales.options import ScaleOptions


@dataclass(frozen=True, kw_only=True)
class Options(FigureOptions, ScaleOptions):
    """Arguments of `python -m papers.krom`."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN…")] = ()
    """Run folders of gpt2, canon, kromhc and kromcanon, their streams mixed in any way."""
    html: bool = True
    """Write the interactive figure.html (5 MB) as well."""


main = comparison_main(Options, __doc__, "papers.krom runs/gpt2-0 runs/kromhc-0")
