"""Compare what all architectures cost and what they can do, in one table and one picture.

    python -m papers.scorecard runs/zoo/*-s0 --out scorecard
    python -m papers.scorecard --scale zoo --seeds 3                       every preset, and combinations no paper tried
    python -m papers.scorecard --tables scorecard --out scorecard          judge and write again, without a model

Takes finished runs of any presets that saw the same text for as many tokens; trained.json has the recipe of every run.
Per run, with the instruments of the other rooms: parameters, FLOPs and speed; the competence gate (loss, copying,
induction, position heads, tasks, depth, mixing); Top-1 over all keys and stability (LFA); what suppressing the position
head does against random heads; what single heads and pairs of them are worth; compensation (Hydra); specialization and
amplification (DST); computational modes (PLS); how far streams lie apart (KROM). Over seeds: per quantity how much of
the spread between runs is between architectures, with p of dealing the runs out anew, and which arms differ from the
control. With one seed there is no verdict on an architecture, and the page says so.
"""

from streamscope.papers.scales import comparison_main
from streamscope.papers.scorecard.options import Options

main = comparison_main(Options, __doc__, "papers.scorecard runs/lfa-0 runs/std-t-0")
