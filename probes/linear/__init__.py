"""Train linear probes on activations, and compare them with a control task they can only memorise.

    python -m probes.linear runs/lfa                                      which of two nouns the pronoun means, by layer
    python -m probes.linear runs/lfa --task gender --groups antecedent    the gender of names the probe has not met
    python -m probes.linear runs/lfa --task position                      in which eighth of the context a word stands
    python -m probes.linear runs/lfa --hooks "blocks.*.attn.hook_z" hook_embed --out linear.parquet

For each hook: x [N, F], the activation at N labelled positions (all axes but the position flattened), standardised by
the training folds; p = softmax(W x + b) with L2 penalty |W|²/(2C); accuracy on held-out folds. Groups (stories, words)
are never on both sides. The control task gives each word type a label at random, labels as frequent as the true ones;
selectivity = accuracy − control accuracy (Hewitt & Liang 2019). It tells what the activation says from what the probe
memorises about words it has met; where no word recurs across groups there is nothing to memorise, and control and
selectivity are undefined by construction. chance = 1/classes; majority = share of the commonest label.

accuracy has Wilson's interval over groups and the score test's p that it is the majority's; both allow for cases that
train each other's probes (`cross_validation.SHARED`), as all intervals here do.
"""

from typing import Annotated, ClassVar

from streamscope.cli.bounds import Bounds, Count, Names, Positive, Seed
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.data import Labels
from streamscope.instruments.figures import Curve, Intervals


@instrument("linear", Labels())
class Linear(Instrument):
    """What a logistic regression reads from activations at labelled positions, beside what it could learn by heart.

    Accuracy on held-out folds, and selectivity = accuracy − accuracy on labels dealt to words at random (Hewitt &
    Liang 2019).
    """

    hooks: Names = ("hook_embed", "blocks.*.hook_resid_post")
    """Names or patterns of activations with one position axis; layers are told apart by name."""
    folds: Annotated[int, Bounds(low=2)] = 5
    """Folds of the cross-validation; groups are not split, labels balanced as far as that allows."""
    controls: Count = 3
    """Control tasks, each with other random labels; their accuracies are averaged."""
    c: Positive = 0.1
    """C, the inverse strength of the penalty; activations are standardised."""
    seed: Seed = 0
    """Of folds and control labels."""

    figures: ClassVar = (
        Intervals("accuracy", label="hook", beside="control",
                  title="Accuracy of linear probes, compared with the control task"),
        Curve("accuracy", x="layer", by="place", beside="control", title="Accuracy of linear probes by layer"),
        Intervals("selectivity", label="hook", title="Selectivity of linear probes"),
    )  # fmt: skip
    quick: ClassVar = {"folds": 3, "controls": 1, "hooks": ("hook_embed", "blocks.[01].hook_resid_post")}
    planted: ClassVar = "tests/probes/test_linear.py::test_planted_label"


main = main_of(Linear, __doc__)
