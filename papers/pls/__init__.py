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

from streamscope.papers.pls.options import Options
from streamscope.papers.scales import comparison_main

main = comparison_main(Options, __doc__, "papers.pls runs/pls-0 runs/c2-0")
