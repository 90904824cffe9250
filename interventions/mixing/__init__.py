"""Change how parallel streams are mixed, read or written, and measure the loss increase (KROM).

    python -m interventions.mixing                        the bundled KromCanon: every change, everywhere and by module
    python -m interventions.mixing runs/kromhc --change res-identity res-mean --out mixing.parquet --figure mixing.html
    python -m interventions.mixing runs/kromhc --change permute average --where L2.attn *.mlp --draws 23
    python -m interventions.mixing runs/kromhc --control runs/mhc --where everywhere

    X ← H_res X + H_post ⊗ F(H_pre X)          streams X, around the branch F of every module, L2.attn or L2.mlp

    res-identity   H_res → I: streams are read and written but never mix
    res-mean       H_res → its mean over the tokens of the documents: it mixes independently of the token
    res-even       H_res → 1/n: every stream becomes the mean of the streams
    pre-mean, post-mean, both-mean       H_pre, H_post or both → their means over the tokens of the documents
    pre-even, post-even, both-even       H_pre → 1/n; H_post → the mean of post-mean over streams
    permute        streams are permuted where they enter the module and stay permuted: all permutations, or --draws
    average        each stream becomes their mean where it enters the module

A change at one module affects everything after it; `everywhere` changes every module at once, with one permutation.
delta is in nats per token with a 95 % interval over documents. Holm's p corrects over the modules of one change, and
over the changes everywhere. For permutations a number is their mean; its interval does not include their spread (sd of
draws). A change that cannot affect an output is undefined, not 0: streams are equal where they enter the first module,
so a doubly stochastic H_res, permuting and averaging do nothing there, and the last H_res has no effect if the head
reads only the sum. H_pre of equal streams only changes the scale, which the branch's norm removes up to its ε.
--control pairs the documents of two models with the same modules.
"""

from typing import Annotated, Any, ClassVar, Literal, get_args

from annotated_types import MinLen

from streamscope.cli.bounds import Count, Names, Only, Seed
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.data import Documents
from streamscope.instruments.figures import Curve, HeadMap, Intervals

Change = Literal[
    "res-identity", "res-mean", "res-even", "pre-mean", "pre-even", "post-mean", "post-even", "both-mean", "both-even",
    "permute", "average",
]  # fmt: skip


@instrument("mixing", Documents(max_documents=50))
class Mixing(Instrument):
    change: Annotated[tuple[Change, ...], MinLen(1)] = get_args(Change)
    """Changes to make, named by coefficient and replacement."""
    where: Names = ()
    """Modules, one at a time: L2.attn, L2.*, L0-2.mlp, *.attn, all; or everywhere, all at once. Default: both."""
    draws: Annotated[Count, Only("change", ("permute",))] = 5
    """Number of permutations of the streams; all, if there are fewer."""
    seed: Seed = 0
    """Seed of the permutations."""

    figures: ClassVar = (
        Intervals("delta", "everywhere", label="definition", ranked=False,
                  title="Loss increase when mixing is replaced everywhere"),
        HeadMap("delta", "modules", rows="definition", columns="where",
                title="Loss increase when mixing is replaced in one module"),
        Curve("delta", "modules", x="module", by="to", each=("of",),
              title="Loss increase when mixing is replaced, by module"),
    )  # fmt: skip
    runs: ClassVar = ("stories/kromcanon-b2",)
    quick: ClassVar = {"where": ("L0-1.*", "everywhere"), "draws": 2}
    planted: ClassVar = "tests/interventions/test_mixing.py::test_what_is_known_on_paper"

    @staticmethod
    def body() -> Any:
        from streamscope.interventions.mixing import measure

        return measure


main = main_of(Mixing, __doc__)
