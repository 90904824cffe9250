"""Train linear probes on activations, and compare them with a control task they can only memorise.

    python -m probes.linear runs/lfa                                      which of two nouns the pronoun means, by layer
    python -m probes.linear runs/lfa --task gender --groups antecedent    the gender of names the probe has not met
    python -m probes.linear runs/lfa --task position                      in which eighth of the context a word stands
    python -m probes.linear runs/lfa --labels mine.csv                    your own: text and label on each row
    python -m probes.linear runs/lfa --hooks "blocks.*.attn.hook_z" hook_embed --out linear.parquet
    python -m probes.linear runs/lfa --hooks DICTIONARY --latents 4       do four latents carry it?

For each hook, x [N, F] is the activation at N labelled positions (all axes but the position flattened), standardised by
the training folds; p = softmax(W x + b) with L2 penalty |W|²/(2C). Accuracy is measured on held-out folds; groups
(stories, words) are never on both sides. The control task gives each word type a random label, with the same label
frequencies; selectivity = accuracy − control accuracy (Hewitt & Liang 2019). It separates information in the activation
from words that the probe memorises. If no word recurs across groups, nothing can be memorised, and control and
selectivity are undefined by construction. chance = 1/classes; majority = share of the commonest label.

accuracy has Wilson's interval over groups and the p of a score test against the majority; both account for
the overlap of training folds (`measure.SHARED`), as do all intervals here.
"""

from typing import Annotated, Any, ClassVar

from annotated_types import Ge

from streamscope.cli.bounds import Count, Names, Positive, Seed
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.data import Labels
from streamscope.instruments.figures import Curve, Intervals


@instrument("linear", Labels())
class Linear(Instrument):
    hooks: Names = ("hook_embed", "blocks.*.hook_resid_post")
    """Names or patterns of activations with one position axis; the name gives the layer. FOLDER for all latents of a
    dictionary, FOLDER:17 or FOLDER:3,17-19 for some."""
    latents: Count | None = None
    """Of a dictionary, probe only so many latents, those whose means differ most between labels in the training folds
    (sparse probing)."""
    folds: Annotated[int, Ge(2)] = 5
    """Folds of the cross-validation; groups are not split, and labels are balanced as far as possible."""
    controls: Count = 3
    """Number of control tasks with different random labels; their accuracies are averaged."""
    c: Positive = 0.1
    """C, the inverse strength of the penalty; activations are standardised."""
    seed: Seed = 0
    """Seed of folds and control labels."""

    figures: ClassVar = (
        Intervals("accuracy", label="hook", reference="control",
                  title="Accuracy of linear probes, compared with the control task"),
        Curve("accuracy", x="layer", by="place", reference="control", title="Accuracy of linear probes by layer"),
        Intervals("selectivity", label="hook", title="Selectivity of linear probes"),
    )  # fmt: skip
    quick: ClassVar = {"folds": 3, "controls": 1, "hooks": ("hook_embed", "blocks.[01].hook_resid_post")}
    planted: ClassVar = "tests/probes/test_linear.py::test_planted_label"

    @staticmethod
    def body() -> Any:
        from streamscope.probes.linear import measure

        return measure


main = main_of(Linear, __doc__)
