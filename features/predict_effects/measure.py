"""Effects regressed on features: tokens joined, errors by document, R² with intervals over documents."""

from collections.abc import Mapping
from itertools import product

import numpy as np
import pandas as pd

from streamscope.cli.errors import unknown
from streamscope.cli.terminal import counted
from streamscope.features.predict_effects import PredictEffects
from streamscope.features.predict_effects.explained_variance import baselines, explain
from streamscope.features.predict_effects.matched_tokens import MEASURES, match_effects
from streamscope.features.tables import EffectTable, FeatureTables
from streamscope.instruments.contract import InstrumentData, Progress
from streamscope.instruments.data import Opened
from streamscope.instruments.observations import Estimates, Measure, Observations, each
from streamscope.instruments.table import Column, Table, described, key, number

R2 = Measure(name="R²", unit="share of variance", resolution=1e-6, factor=-1.0, shift=1.0, limits=(-np.inf, 1.0))
ROW = ["of", "measure", "edit"]


def observe(options: PredictEffects, model: object, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: effects × predictors. Units: documents, Σ (y − ŷ)² over Σ (y − ȳ)²."""
    features, effects = data[FeatureTables], data[EffectTable]
    matched = match_effects(features.found, effects, features.where)
    if missing := [name for name in options.edits if name not in matched.edits]:
        raise unknown("edit", missing[0], list(matched.edits))
    cases = list(product(dict.fromkeys(options.of), MEASURES, options.edits or matched.edits))
    y = matched.table[[f"{measure}_{edit}" for _, measure, edit in cases]].to_numpy(float)
    y = np.where([of == "absolute" for of, _, _ in cases], abs(y), y)
    predictors = baselines(*(matched.table[name].to_numpy(float) for name in ("position", "loss", "log_p")))
    documents = matched.table["document"].to_numpy()
    result = explain(
        matched.x, y, predictors, documents, model=options.model, folds=options.folds, shuffles=options.shuffles,
        resamples=options.resamples, seed=options.seed, progress=progress,
    )  # fmt: skip
    rows = pd.DataFrame(cases, columns=ROW)
    cells = pd.concat([rows[result.varies].assign(columns=name) for name in result.errors], ignore_index=True)
    of, n, matches = features.found.about, len(matched.table), len(pd.unique(documents))
    return InstrumentData(
        {"r2": Observations(
            measure=R2, cells=cells,
            units=pd.DataFrame({"unit": [str(d) for d in result.documents], "cluster": result.documents}),
            total=np.concatenate(list(result.errors.values())),
            size=np.concatenate([result.around] * len(result.errors)),
        )},
        {"r2": each("r2", cells, null=None)},
        {
            "model": f"{of['preset']} ({of['run']})", "repeated": matched.repeated,
            "unmatched": {"features_only": matched.features_only, "effects_only": matched.effects_only},
            "title": f"R² on held-out documents; {counted(n, 'token', ',')} of {counted(matches, 'document')}, "
            f"{counted(matched.x.shape[1], 'feature')}; "
            f"unmatched rows: {matched.features_only:,} of the features, {matched.effects_only:,} of the effects; "
            f"{counted(matched.repeated, 'token', ',')} ({matched.repeated / n:.1%}) not held out: another document "
            "begins with the same text",
        },
        extra=rows.join(result.table),
    )  # fmt: skip


def tables(options: PredictEffects, data: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """One row per kind of effect and edit."""
    return {"predict_effects": Table.noted(data.extra, COLUMNS, data.about["title"])}


VARIANCE = "share of variance, held-out documents"


def _r2(name: str, title: str, doc: str, shown: bool = True) -> Column:
    return number(name, title, VARIANCE, doc, ".3f", shown)


COLUMNS = (
    key("of", "effect", "the signed effects Δ, or their sizes |Δ|"),
    key("measure", "measure", "change of the target's loss, or of the prediction's ln p"),
    key("edit", "edit", "the edit, named by its heads"),
    *described("r2", "R²", VARIANCE, "R² of the features", format=".3f", source="PLS §5.4"),
    _r2("position", "position", "R² of q, ln(1 + q) and 1 / (1 + q)"),
    _r2("loss", "loss", "R² of the unedited loss of the target, and its square"),
    _r2("confidence", "confidence", "R² of p and ln p of the prediction"),
    _r2("baselines", "baselines", "R² of position, loss and confidence together"),
    _r2("both", "features and baselines", "R² of features and baselines together", False),
    *described("gain", "gain over baselines", VARIANCE, "R² of features and baselines − that of baselines, or − 0",
               format="+.3f"),
    _r2("shuffled", "shuffled", "R² of the features with shuffled effects, mean"),
    _r2("shuffled_max", "shuffled, largest", "R² of the features with shuffled effects, largest", False),
    number("spearman", "Spearman ρ", "rank correlation", "correlation of effect and prediction", ".3f"),
    number("chosen", "chosen penalty", "penalty λ, or trees", "chosen penalty or number of trees, median over folds",
           ".3g", False),
    number("sd", "sd of effect", "nats", "standard deviation of the effect between tokens", ".4f", False),
    number("n", "tokens", "tokens", "number of tokens", "d", False),
    number("documents", "documents", "documents", "number of documents, the independent units", "d", False),
)  # fmt: skip
