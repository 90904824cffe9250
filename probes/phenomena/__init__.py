"""Check whether models show the phenomena that claims need: the competence gate.

    python -m probes.phenomena                                     the bundled model
    python -m probes.phenomena runs/lfa runs/std-t --out phenomena.parquet
    python -m probes.phenomena runs/lfa@512 --only copying induction
    python -m probes.phenomena runs/lfa@all runs/std-t@all --only loss induction --out over.parquet

    loss         nats per token over documents
    lift         ln p of both words that could follow, with the text's nouns minus without them: copying without a
                 choice, over pairs of stories (`probes.coherence`)
    copying      log-odds of the coherent one that are due to the text's nouns: copying the word that is meant
    reserved     copying where no training story uses the nouns and names at all
    attention    share of attention that is neither uniform nor on one key: share of heads and positions from the ninth
                 on with an entropy between 5 and 95 % of uniform attention's. A head that is stuck at either end
                 selects nothing, and if most are, position and induction mean nothing
    induction-6, induction, induction-24   largest induction score of a head on repeated random words, 6, 12 or 24 of
                 them (`probes.heads`): words that the documents have five times, because a head cannot show on a word
                 that no text trained what it does on others
    repeats      how much better the repetition of the 24 words is predicted: loss the first time − the second time
    position, position-gender   largest PDS of a head over pairs of stories in which two nouns compete, or a girl's and
                 a boy's name, and the noun that the head prefers, the last or the first (`probes.pds`)
    coreference, coreference-gender, coreference-number, coreference-nouns   share of pairs of stories in which one
                 head attends most, of all tokens, to the noun that the pronoun means, in both orders of the two nouns;
                 all pairs, or those of a category
    coreference-reserved   the same with nouns and names that no training story has
    capitalization, gender, winograd   log-odds of a task's answer against its foil (`instruments.prompts.tasks`)
    depth        share of tokens whose prediction settles in another layer than the commonest: the first layer from
                 which on every layer predicts what the last one does (the logit lens; PLS B.1)
    mixing       share of hyper-connections that mix more than decay alone would make them (`mixing_monitor`)

A phenomenon is `present` if its whole 95 % interval lies above the limit, `absent` if none of it does, else
`undecided`. Limits: 0, but .5 for attention, .3 for induction, .075 for position (LFA), .25 for coreference (a head
that picks one of the two nouns at random) and .1 for depth. Heads are chosen on one half of the cases and scored on the
other. Intervals are over sequences, documents or prompts, clustered by the words that prompts share, and not corrected
for the number of lines: about one null line in forty is called present. A claim about a model needs its phenomenon: if
that is absent, an ablation or a difference cannot test the claim.

Each value is printed on stderr as soon as it is measured. A phenomenon that fails has its reason there and in the
table, and the others are still measured. On a large model `depth` is read at one token in k (column `head`).

For the snapshots of a training (RUN@all, or several RUN@STEP) the table `when` gives the two snapshots between which a
value passed the middle between its first and last value for good, and from which snapshot on, and after how many
tokens, a phenomenon stays present.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge

from streamscope.cli.bounds import Only
from streamscope.cli.errors import InputError
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.data import Data, Documents
from streamscope.instruments.figures import Curve, HeadMap

Name = Literal[
    "loss", "lift", "copying", "reserved", "attention", "induction-6", "induction", "induction-24", "repeats",
    "position", "position-gender", "coreference", "coreference-gender", "coreference-number", "coreference-nouns",
    "coreference-reserved", "capitalization", "gender", "winograd", "depth", "mixing",
]  # fmt: skip


PERIODS: dict[Name, int] = {"induction-6": 6, "induction": 12, "induction-24": 24}
"""Number of words that are repeated."""
POSITION: dict[Name, str] = {"position": "competing-nouns", "position-gender": "gender"}
COREFERENCE: dict[Name, str] = {
    "coreference": "", "coreference-gender": "gender", "coreference-number": "plurality",
    "coreference-nouns": "competing-nouns", "coreference-reserved": "",
}  # fmt: skip
"""Category of the pairs; "": all pairs."""
PAIRED = ("lift", "copying", "reserved", *POSITION, *COREFERENCE)
"""Phenomena that read pairs of stories."""

PHENOMENA: dict[Name, tuple[float | None, str]] = {
    "loss": (None, "nats per token"),
    **dict.fromkeys(("lift", "copying", "reserved"), (0.0, "nats")),
    "attention": (0.5, "share of heads and positions"),
    **dict.fromkeys(PERIODS, (0.3, "share of attention")),
    "repeats": (0.0, "nats per token"),
    **dict.fromkeys(POSITION, (0.075, "attention")),
    **dict.fromkeys(COREFERENCE, (0.25, "share of pairs")),
    **dict.fromkeys(("capitalization", "gender", "winograd"), (0.0, "nats")),
    "depth": (0.1, "share of tokens"),
    "mixing": (0.0, "share of modules"),
}
"""The limit above which each counts as present (None: no verdict), and its unit, in table order. The limit of
`position` is LFA's threshold, that of `depth` one token in ten, that of `attention` half."""
NAMES = tuple(PHENOMENA)


@instrument("phenomena", Documents())
class Phenomena(Instrument):
    only: tuple[Name, ...] = NAMES
    """Phenomena to measure; default: all."""
    n: Annotated[int, Ge(4), Only("only", PAIRED)] = 1000
    """Number of pairs from each suite of stories."""
    sequences: Annotated[int, Ge(4), Only("only", (*PERIODS, "repeats"))] = 64
    """Number of repeated sequences of random words of each length."""

    figures: ClassVar = (
        HeadMap("level", rows="model", columns="phenomenon", text="value_text",
                names="heading", over_runs=True, levels=((0.0, "absent"), (0.5, "undecided"), (1.0, "present")),
                title="Which phenomena the model shows"),
        Curve("value", x="step", by="run", each=("phenomenon",), over_runs=True, title="Phenomena over training"),
    )  # fmt: skip
    quick: ClassVar = {"only": ("loss", "repeats", "capitalization", "depth"), "sequences": 4}
    planted: ClassVar = "tests/probes/test_phenomena.py::test_a_planted_induction_head_is_found"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.only or len(set(self.only)) < len(self.only):
            raise InputError(f"--only: name each phenomenon once, at least one of {', '.join(NAMES)}")

    def unread(self, data: Mapping[type[Data], Data]) -> dict[type[Data], str]:
        readers = {"loss", "attention", "repeats", "depth", *PERIODS} & {*self.only}
        return {} if readers else {Documents: "nothing in --only reads documents"}

    @staticmethod
    def body() -> Any:
        from streamscope.probes.phenomena import measure

        return measure


main = main_of(Phenomena, __doc__)
