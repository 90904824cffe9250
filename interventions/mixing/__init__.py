"""Change how parallel streams are mixed, read or written, and measure the loss increase (KROM).

    python -m interventions.mixing                        the bundled KromCanon: every change, everywhere and by module
    python -m interventions.mixing runs/kromhc --change res-identity res-mean --out mixing.parquet --figure mixing.svg
    python -m interventions.mixing runs/kromhc --change permute average --where L2.attn *.mlp --draws 23
    python -m interventions.mixing runs/kromhc --control runs/mhc --where everywhere

    X ← H_res X + H_post ⊗ F(H_pre X)          streams X, around the branch F of every module, L2.attn or L2.mlp

    res-identity   H_res → I: streams are read and written, and never mix
    res-mean       H_res → its mean over the tokens of the documents: it mixes, and depends on no token
    res-even       H_res → 1/n: every stream becomes the mean of the streams
    pre-mean, post-mean, both-mean       H_pre, H_post or both → their means over the tokens of the documents
    pre-even, post-even, both-even       H_pre → 1/n; H_post → the mean of post-mean over streams, the same for all
    permute        the streams trade places where they enter the module, and keep them: all permutations, or --draws
    average        each stream becomes their mean where it enters the module

At one module all else goes on from there; `everywhere` every module is changed at once, by the same permutation. delta
is in nats per token, with a 95 % interval over documents; Holm's p corrects over the modules of one change, and over
the changes that are everywhere. Over permutations a number is their mean, and the interval does not hold their spread:
see sd of draws. What cannot change an output is undefined, and no finding of 0: where streams enter the first module
they are equal, so that a doubly stochastic H_res, permuting and averaging do nothing there; the last H_res is not seen
where the head reads the sum alone. H_pre of equal streams only scales what the branch's norm takes out, but for its ε.
--control pairs the documents of two models with the same modules.
"""

from typing import Annotated, Any, ClassVar, Literal, get_args

from streamscope.cli.bounds import Count, Names, Only, Seed
from streamscope.cli.errors import InputError
from streamscope.instruments.about_model import need_streams
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
    """Change how parallel streams are mixed, read or written, at one module or all, and measure what the model loses.

    X ← H_res X + H_post ⊗ F(H_pre X); delta = loss under the change − loss, KL(unedited ‖ edited) (KROM).
    """

    change: tuple[Change, ...] = get_args(Change)
    """What is changed, and into what."""
    where: Names = ()
    """Modules, each alone: L2.attn, L2.*, L0-2.mlp, *.attn, all; all of them at once: everywhere. Default: both."""
    draws: Annotated[Count, Only("change", "permute")] = 5
    """Permutations of the streams; all where there are no more."""
    seed: Seed = 0
    """Of the permutations."""

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

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.change:
            raise InputError("give at least one --change")

    def check(self, model: Any) -> None:
        """The streams and the modules are there."""
        need_streams(model, self.name)
        self._body().places(self.where, model.config.n_layers)


main = main_of(Mixing, __doc__)
"""`python -m interventions.mixing`."""
