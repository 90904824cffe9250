"""Ask which stream and layer holds a variable, by interchange: put it from one prompt into another.

    python -m interventions.interchange stories/lfa        which noun is meant: streams, layers, four bases
    python -m interventions.interchange stories/lfa --hooks blocks.3.hook_context_post --rank 4 --out found.parquet
    python -m interventions.interchange runs/smollm2 --suite pronouns --position target --basis whole means

The state of a source prompt at a hook and a position replaces that of a base prompt, h_base + P (h_source − h_base). If
the part P holds the variable, the base prompt gets the source's answer (Geiger et al. 2021). In every relation of a
suite the variable is what has two values there: which of two lists of answers is right; the kind of noun that is meant,
where each prompt names one of either kind (a tool, a container); or the order of the noun that is meant and the other.
A prompt has the value of the model's own answer (chosen), or of the right one. accuracy is the share of pairs with the
answer that the source's value calls for; flips are pairs of different values, stays those of equal ones. `nothing` is
the accuracy of the unedited model.

whole: P = 1. means: P = u uᵀ, u the difference of the means. das: P = U Uᵀ with orthonormal U of rank k that starts at
u and is trained until pairs of held-out words stop improving (distributed alignment search, Geiger et al. 2024).
random: a random U of that rank. arbitrary: das on a coin that says nothing of the variable. untrained: das in an
untrained model of the architecture. Directions come from prompts whose words no measured prompt has; the title counts
the prompts that are left out for it, and the places where das had no words to hold out. whole, means and random take a
minute or two for a bundled model; das is trained at every place, so name --hooks with it.
"""

from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, MinLen

from streamscope.cli.bounds import Count, Names, Only, Seed
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.data import Prompts
from streamscope.instruments.figures import Curve, HeadMap, Intervals

Basis = Literal["whole", "means", "das", "random", "arbitrary", "untrained"]


@instrument("interchange", Prompts("stories"))
class Interchange(Instrument):
    hooks: Names = ()
    """Hooks of streams to change, or patterns with *; default: every stream after every layer."""
    position: Literal["last", "query", "target", "distractor"] = "last"
    """The last token of a prompt, or the last token of a role."""
    basis: Annotated[tuple[Basis, ...], MinLen(1)] = ("whole", "means", "das", "random")
    """What is put into the base prompt."""
    rank: Annotated[Count, Only("basis", ("das", "random", "arbitrary", "untrained"))] = 1
    """Number of dimensions of das and of random."""
    variable: Literal["chosen", "right"] = "chosen"
    """The value that a prompt has: that of the model's own answer, or of the right one."""
    pairs: Annotated[int, Ge(8)] = 1000
    """Number of pairs of a base and a source prompt."""
    steps: Annotated[Count, Only("basis", ("das", "arbitrary", "untrained"))] = 150
    """Most steps of training das, on 64 pairs each."""
    seed: Seed = 0
    """Seed of pairs, of random directions and of training."""

    figures: ClassVar = (
        HeadMap("above", rows="relation", columns="layer", each=("basis", "stream"),
                title="Which stream and layer hold what: accuracy above doing nothing"),
        Curve("accuracy", x="layer", by="stream", each=("relation", "basis"), reference="nothing",
              title="Accuracy of the interchange, by layer"),
        Intervals("accuracy", label="basis", each=("relation", "hook"), title="Accuracy of the interchange"),
    )  # fmt: skip
    quick: ClassVar = {"basis": ("whole", "means"), "pairs": 40}
    planted: ClassVar = "tests/interventions/test_interchange.py::test_a_planted_direction_decides"

    @staticmethod
    def body() -> Any:
        from streamscope.interventions.interchange import measure

        return measure


main = main_of(Interchange, __doc__)
