"""Compare the four architectures of paper LFA over training seeds with the printed values.

    python -m papers.lfa runs/tinystories/*
    python -m papers.lfa runs/std-t-0 runs/std-t-1 runs/lfa-0 runs/lfa-1 --out results/lfa
    python -m papers.lfa --tables results/lfa --out results/lfa        judge and write again, without a model
    python -m papers.lfa --scale zoo --seeds 4            train what is missing, measure, judge, write

Takes finished runs of std-t, d-cas, lfa and cfm that differ in preset, seed, positions and norm only. Per run: loss,
PDS, coreference heads against chance, recency and the longest word, stability, SPS, and what suppressing the position
heads does against bottom-k and random controls. Per architecture: mean and interval over seeds, and against std-t,
paired by seed. Per claim of the paper: whether it holds here, by a rule. --out writes tables, figures and a short
README.md.

The presets differ in more than their architecture: std-t has learned positions and LayerNorm, the others RoPE and
ChannelLayerNorm. A std-t that differs in the architecture alone is made with --set; where given it is the control:

    python -m models.train std-t --set positions=rope --set norm=channel --seed 0 … --out runs/std-t-rope-cln-0
"""

from streamscope.papers.lfa.options import Options
from streamscope.papers.scales import comparison_main

main = comparison_main(Options, __doc__, "papers.lfa runs/std-t-0 runs/lfa-0")
