"""Effects regressed on features: tokens joined, errors by document, R² with intervals over documents."""

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_float_dtype, is_integer_dtype

from streamscope.cli.errors import InputError, unknown
from streamscope.cli.terminal import counted
from streamscope.features.predict_effects import PredictEffects
from streamscope.features.predict_effects.explained_variance import baselines, explain
from streamscope.features.store import KEY, Features, not_finite
from streamscope.features.tables import EffectTable, FeatureTables, OpenEffects
from streamscope.instruments.contract import InstrumentData, Progress
from streamscope.instruments.data import Opened
from streamscope.instruments.observations import Estimates, Measure
from streamscope.instruments.table import Column, Table, described, key, number

R2 = Measure(name="R²", unit="share of variance", resolution=1e-6, factor=-1.0, shift=1.0, limits=(-np.inf, 1.0))
ROW = ["of", "measure", "edit"]
IDS = ["token_id", "target_id"]
MEASURES = ("delta_loss", "delta_log_p")


def observe(options: PredictEffects, model: object, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: effects × predictors. Units: documents, Σ (y − ŷ)² over Σ (y − ȳ)²."""
    features, effects = data[FeatureTables], data[EffectTable]
    x, tokens, counts = match_effects(features.found, effects, features.where)
    edits = list(effects.description["edits"])
    if missing := [name for name in options.edits if name not in edits]:
        raise unknown("edit", missing[0], edits)
    cases = list(product(dict.fromkeys(options.of), MEASURES, options.edits or edits))
    y = tokens[[f"{measure}_{edit}" for _, measure, edit in cases]].to_numpy(float)
    y = np.where([of == "absolute" for of, _, _ in cases], abs(y), y)
    predictors = baselines(*(tokens[name].to_numpy(float) for name in ("position", "loss", "log_p")))
    documents = tokens["document"].to_numpy()
    table, errors, around, varies = explain(
        x, y, predictors, documents, model=options.model, folds=options.folds, shuffles=options.shuffles,
        resamples=options.resamples, seed=options.seed, progress=progress,
    )  # fmt: skip
    rows = pd.DataFrame(cases, columns=ROW)
    cells = pd.concat([rows[varies].assign(columns=name) for name in errors], ignore_index=True)
    of, n, names = features.found.about, len(tokens), pd.unique(documents)  # as `explain` counts them
    about = {
        "model": f"{of['preset']} ({of['run']})", **counts,
        "title": f"R² on held-out documents; {counted(n, 'token', ',')} of {counted(len(names), 'document')}, "
        f"{counted(x.shape[1], 'feature')}; unmatched rows: {counts['unmatched']['features_only']:,} of the features, "
        f"{counts['unmatched']['effects_only']:,} of the effects; {counted(counts['repeated'], 'token', ',')} "
        f"({counts['repeated'] / n:.1%}) not held out: another document begins with the same text",
    }  # fmt: skip
    measurements, units = InstrumentData(about=about, extra=rows.join(table)), {"unit": names.astype(str)}
    total, size = np.concatenate(list(errors.values())), np.concatenate([around] * len(errors))
    measurements.add(R2, cells, pd.DataFrame(units).assign(cluster=names), total, size, block="r2", null=None)
    return measurements


def match_effects(
    feature_table: Features, effects: OpenEffects, features: str = "the features"
) -> tuple[np.ndarray, pd.DataFrame, dict[str, Any]]:
    """Join the rows of both tables; errors call the first `features`.

    (features [n, d], without columns that are zero by construction; document, position, loss, log_p and the effects
    `delta_loss_NAME`, `delta_log_p_NAME` of the same n tokens; counts). Counts: `unmatched` rows of each table, and
    `repeated`, rows whose text from the start of the document also begins another one: their features (except κ of the
    true token) and Δ ln p are the same there, possibly in another fold. Raises `InputError` for files of another kind,
    different models, missing or mistyped columns, different tokens (other data or cuts), repeated rows, missing or
    infinite values, and no row in common."""
    table, about, where = effects.table, effects.description, effects.where
    checkpoint, other_checkpoint = str(feature_table.about["checkpoint"]), str(about.get("checkpoint"))
    if checkpoint != other_checkpoint:
        raise InputError(
            f"{features} and {where} come from different models ({checkpoint[:8]}, {other_checkpoint[:8]}); use one run"
        )
    edits = tuple(about.get("edits") or ())
    values = [f"{measure}_{edit}" for measure in MEASURES for edit in edits] + ["loss", "log_p"]
    table = _with_types(table, where, values)
    if bad := not_finite(table[values].to_numpy()):
        raise InputError(f"{where}: {bad}; compute it again")
    if twice := int(table.duplicated(KEY).sum()):
        raise InputError(f"{where}: {counted(twice, 'position')} given twice; compute it again")
    index = feature_table.table[[*KEY, *IDS]].assign(row=np.arange(len(feature_table.table)))
    matches = index.merge(table, on=KEY, suffixes=("", "_effects"))
    if not len(matches):
        raise InputError(f"{features} and {where} have no token in common; compute both from the same data")
    same_ids = np.all([matches[name] == matches[f"{name}_effects"] for name in IDS], axis=0)
    if not same_ids.all():
        raise InputError(
            f"{int((~same_ids).sum())} of {len(matches)} tokens or targets differ: {features} and {where} come from "
            "different data, or the features were extracted with another --logits-row than query"
        )
    prefix = prefixes(feature_table.table)[matches["row"].to_numpy()]
    _, inverse, times = np.unique(prefix, return_inverse=True, return_counts=True)
    keep = [i for i, column in enumerate(feature_table.columns) if not column.constant]
    sizes = {"features_only": len(feature_table.table) - len(matches), "effects_only": len(table) - len(matches)}
    counts = {"repeated": int(((times[inverse] > 1) & (prefix >= 0)).sum()), "unmatched": sizes}
    return feature_table.X[matches["row"].to_numpy()][:, keep], matches[[*KEY, *values]], counts


def _with_types(table: pd.DataFrame, path: str, values: list[str]) -> pd.DataFrame:
    """The table with integer `KEY` and `IDS` and real `values`; `InputError` otherwise, and without edits."""
    if len(values) == 2:
        raise InputError(f"{path} names no edits; compute it again")
    for name in (*KEY, *IDS, *values):
        right, kind = (is_float_dtype, "real numbers") if name in values else (is_integer_dtype, "integers")
        if name not in table or not right(table[name]):
            problem = f"holds {table[name].dtype}" if name in table else "is missing"
            raise InputError(f"{path}: column {name} {problem}, it should hold {kind}; compute it again")
    return table[[*KEY, *IDS, *values]]


def prefixes(table: pd.DataFrame) -> np.ndarray:
    """[n] a number for the text from the document's start to each row, equal for equal texts; −1 if rows before are
    missing. `table` has columns document, position, token_id."""
    of, nodes = np.full(len(table), -1), dict[tuple[int, int], int]()
    order = np.lexsort((table["position"], table["document"]))
    rows = table[[*KEY, "token_id"]].to_numpy()[order].tolist()
    previous, node = (-1, -1), -1
    for i, (document, position, token) in zip(order, rows, strict=True):
        start, follows = position == 0, (document, position - 1) == previous
        parent = -1 if start else node
        node = nodes.setdefault((parent, token), len(nodes)) if start or (follows and node >= 0) else -1
        of[i], previous = node, (document, position)
    return of


def tables(options: PredictEffects, data: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
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
