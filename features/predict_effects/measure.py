"""Effects regressed on features: tokens joined, errors by document, R² with intervals over documents."""

from collections.abc import Mapping
from itertools import product

import numpy as np
import pandas as pd

from streamscope.cli.errors import unknown
from streamscope.features.predict_effects import PredictEffects
from streamscope.features.predict_effects.explained import baselines, explain
from streamscope.features.predict_effects.matched import MEASURES, match_effects
from streamscope.features.tables import EffectTable, FeatureTables
from streamscope.instruments.contract import InstrumentData, Progress
from streamscope.instruments.data import Opened
from streamscope.instruments.observations import Contrast, Estimates, Measure, Observations
from streamscope.instruments.table import Column, Table, described, key

R2 = Measure(name="R²", unit="share of variance", resolution=1e-6, factor=-1.0, shift=1.0)
ROW = ["of", "measure", "edit"]


def observe(how: PredictEffects, model: object, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: effects and what they are predicted from; units: documents, Σ (y − ŷ)² over Σ (y − ȳ)²."""
    features, effects = data[FeatureTables], data[EffectTable]
    matched = match_effects(features.found, effects, features.where)
    if strange := [name for name in how.edits if name not in matched.edits]:
        raise unknown("edit", strange[0], list(matched.edits))
    cases = list(product(dict.fromkeys(how.of), MEASURES, how.edits or matched.edits))
    y = matched.table[[f"{measure}_{edit}" for _, measure, edit in cases]].to_numpy(float)
    y = np.where([of == "absolute" for of, _, _ in cases], abs(y), y)
    known = baselines(*(matched.table[name].to_numpy(float) for name in ("position", "loss", "log_p")))
    documents = matched.table["document"].to_numpy()
    found = explain(
        matched.x, y, known, documents, model=how.model, folds=how.folds, shuffles=how.shuffles,
        resamples=how.resamples, seed=how.seed, progress=progress,
    )  # fmt: skip
    rows = pd.DataFrame(cases, columns=ROW)
    cells, total = [], []
    for name, errors in found.errors.items():
        cells.append(rows[found.varies].assign(columns=name))
        total.append(errors)
    names = pd.unique(documents)
    of = features.found.about
    n, matches = len(matched.table), len(names)
    return InstrumentData(
        {"r2": Observations(
            measure=R2, cells=(every := pd.concat(cells, ignore_index=True)),
            units=pd.DataFrame({"unit": [str(d) for d in found.documents], "cluster": found.documents}),
            total=np.concatenate(total), size=np.concatenate([found.around] * len(total)),
        )},
        {"r2": [
            Contrast(quantity="r2", weights={i: 1.0}, labels=cell, null=None)
            for i, cell in enumerate(every.to_dict("records"))
        ]},
        {
            "model": f"{of['preset']} ({of['run']})", "repeated": matched.repeated,
            "unmatched": {"features_only": matched.features_only, "effects_only": matched.effects_only},
            "title": f"R² on held-out documents; {n:,} tokens of {matches} documents, {matched.x.shape[1]} features; "
            f"not matched: {matched.features_only:,} rows of the features, {matched.effects_only:,} of the effects; "
            f"{matched.repeated:,} tokens ({matched.repeated / n:.1%}) not unseen: another document begins with the "
            "same text up to them",
        },
        extra=rows.join(found.table),
    )  # fmt: skip


def tables(how: PredictEffects, seen: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """A row for every kind of effect and edit."""
    return {"predict_effects": Table.noted(seen.extra, COLUMNS, seen.about["title"])}


VARIANCE = "share of variance, held-out documents"


def _r2(name: str, title: str, doc: str, shown: bool = True) -> Column:
    return Column(name=name, title=title, unit=VARIANCE, format=".3f", doc=doc, shown=shown)


COLUMNS = (
    key("of", "of", "the effects Δ, or their sizes |Δ|"),
    key("measure", "measure", "change of the target's loss, or of ln p of the prediction"),
    key("edit", "edit", "heads that were scaled"),
    *described("r2", "R²", VARIANCE, "of the features", format=".3f", source="PLS §5.4"),
    _r2("position", "position", "of q, ln(1 + q) and 1 / (1 + q)"),
    _r2("loss", "loss", "of the unedited loss of the target, and its square"),
    _r2("confidence", "confidence", "of p and ln p of the prediction"),
    _r2("baselines", "baselines", "of position, loss and confidence together"),
    _r2("both", "both", "of features and baselines", False),
    *described("gain", "gain over baselines", VARIANCE, "R² of features with baselines − that of baselines, or 0",
               format="+.3f"),
    _r2("shuffled", "shuffled", "of the features, effects dealt out at random; mean"),
    _r2("shuffled_max", "shuffled, largest", "the same, the largest", False),
    Column(name="spearman", title="Spearman", unit="rank correlation", format=".3f", doc="of effect and prediction"),
    Column(name="chosen", title="chosen", unit="penalty λ, or trees", format=".3g", shown=False,
           doc="median over the folds"),
    Column(name="sd", title="sd", unit="nats", format=".4f", shown=False, doc="of the effect between tokens"),
    Column(name="n", title="n", unit="tokens", format="d", shown=False, doc="how many tokens"),
    Column(name="documents", title="documents", unit="documents", format="d", shown=False, doc="independent units"),
)  # fmt: skip
