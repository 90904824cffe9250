"""Predict from features which tokens an ablation hurts, without running the ablation (PLS §5.4).

    python -m features.extract --out features.parquet
    python -m interventions.token_effects --out effects.parquet
    python -m features.predict_effects --features features.parquet --effects effects.parquet --out predicted.parquet
    python -m features.predict_effects runs/pls --edits L5.H4 L5.H5 --model boosting        both measured now

Rows of the two tables are joined by document and position. Every effect (per edit: change of the loss and of the
prediction's log-probability, signed and absolute) is regressed on the features. The table holds R² on held-out
documents with a 95 % interval over documents, R² from position, unedited loss and confidence alone, what features add
to these (`gain`), and R² with shuffled effects. Definitions: `features.predict_effects.explained_variance`.

Documents that begin with the same text have rows with equal features and effects, possibly in different folds. Such
rows are not held out. Their number is printed and kept with the table (`repeated`).
"""

from types import ModuleType
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, MinLen

from streamscope.cli.bounds import Count, Names, Seed
from streamscope.features.tables import EffectTable, FeatureTables
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.figures import Intervals


@instrument("predict_effects", FeatureTables(), EffectTable())
class PredictEffects(Instrument):
    edits: Names = ()
    """Names of the edits to explain; default: all."""
    of: Annotated[tuple[Literal["signed", "absolute"], ...], MinLen(1)] = ("signed", "absolute")
    """The effects Δ, their sizes |Δ|, or both."""
    model: Literal["ridge", "boosting"] = "ridge"
    """Ridge regression with a nested choice of the penalty, or boosted trees (slow: choose --edits)."""
    folds: Annotated[int, Ge(3)] = 5
    """Number of folds of documents."""
    shuffles: Count = 5
    """Number of controls with shuffled effects."""
    resamples: Count = 2000
    """Bootstrap samples of documents for the intervals."""
    seed: Seed = 0
    """Seed of folds, shuffles, bootstrap and trees."""

    figures: ClassVar = (
        Intervals("r2", label="edit", reference="baselines", each=("measure", "of"),
                  title="How well features predict which tokens an edit hits"),
        Intervals("gain", label="edit", each=("measure", "of"), title="What features add to the baselines"),
    )  # fmt: skip
    quick: ClassVar = {"edits": ("L5.H0", "L5.H1"), "of": ("absolute",), "shuffles": 1, "resamples": 100, "folds": 3}
    planted: ClassVar = "tests/features/test_predict_effects.py::test_a_known_share_of_variance_is_found"

    @staticmethod
    def body() -> ModuleType:
        from streamscope.features.predict_effects import measure

        return measure


main = main_of(PredictEffects, __doc__)
