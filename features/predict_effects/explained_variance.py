"""How much of the effects of interventions per-token features explain: R² on held-out documents.

R² = 1 − Σ (y − ŷ)² / Σ (y − ȳ)², ŷ by cross-validation over documents (`regression`), ȳ the mean of the training
documents: 0 is no better than the mean, below 0 is worse. 95 % intervals: expanded BCa bootstrap of documents
(`instruments.stats.estimators.cluster_bootstrap`), with predictions held fixed. In simulations without any relation,
under 1 % of the intervals lie above 0 and a third wholly below; the tests repeat a part of this. Comparisons are
predictors known without features (`baselines`) and features with shuffled effects (`shuffled`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from streamscope.cli.errors import InputError
from streamscope.cli.terminal import counted
from streamscope.features.predict_effects.regression import Predictions, Progress, boosting, folds_of, ridge
from streamscope.instruments.stats.estimators import (
    BOOTSTRAP_CLUSTERS,
    cluster_bootstrap,
    cluster_codes,
    cluster_totals,
)
from streamscope.instruments.undefined_cells import mark

ROUNDING = 1e-6
"""In nats: effects with a smaller sd are float32 rounding."""


@dataclass(frozen=True)
class ExplainedVariance:
    """How well features explain m effects on d documents."""

    table: pd.DataFrame
    """One row per effect."""
    errors: dict[str, np.ndarray]
    """Columns used (features, a baseline …) -> Σ (y − ŷ)² per document, [varying effects, d]."""
    around: np.ndarray
    """Σ (y − ȳ)² [varying effects, d]."""
    varies: np.ndarray
    """[m] whether an effect varies by more than rounding."""
    documents: np.ndarray
    """[d] names of the documents."""


def baselines(position: np.ndarray, loss: np.ndarray, log_p: np.ndarray) -> dict[str, np.ndarray]:
    """Predictors known without features: name -> [n, columns].

    position: q, ln(1 + q), 1 / (1 + q). loss: of the target, and its square. confidence: p, ln p of the prediction.
    """
    q, loss, log_p = (np.asarray(v, float) for v in (position, loss, log_p))
    return {
        "position": np.stack([q, np.log1p(q), 1 / (1 + q)], 1),
        "loss": np.stack([loss, loss**2], 1),
        "confidence": np.stack([np.exp(log_p), log_p], 1),
    }


def explain(
    x: np.ndarray, effects: np.ndarray, predictors: Mapping[str, np.ndarray], documents: np.ndarray, *,
    model: Literal["ridge", "boosting"] = "ridge", folds: int = 5, shuffles: int = 5, resamples: int = 2000,
    seed: int = 0, progress: Progress = iter,
) -> ExplainedVariance:  # fmt: skip
    """One row per column of `effects` [n, m]: R² from x [n, d], from `predictors`, both, and shuffled effects.

    Columns r2, r2_low, r2_high; one per entry of `predictors`; `baselines`, all of these; `both`, with the features;
    gain = both − max(baselines, 0), gain_low, gain_high; shuffled (mean), shuffled_max; spearman; `chosen`, the median
    penalty or number of trees; sd; n, documents; undefined. Raises `InputError` for fewer documents than folds or than
    eight, and if no effect varies.
    """
    codes = cluster_codes(documents, len(effects))
    n_documents, least = int(codes.max()) + 1, max(BOOTSTRAP_CLUSTERS, folds)
    if n_documents < least:
        raise InputError(
            f"{counted(n_documents, 'document')}: folds and intervals over documents need at least {least}"
        )
    split = folds_of(codes, folds, seed)
    fit, bar = (ridge, progress) if model == "ridge" else (partial(boosting, seed=seed, progress=progress), iter)
    varies = effects.std(0) > ROUNDING
    if not varies.any():
        raise InputError(f"no effect differs between tokens by more than rounding ({ROUNDING:g} nats)")
    y = np.asarray(effects[:, varies], float)
    all_predictors = np.concatenate(list(predictors.values()), 1)
    sets = {"features": x, **predictors, "baselines": all_predictors, "both": np.concatenate([x, all_predictors], 1)}
    fits = {name: fit(columns, y, split) for name, columns in sets.items()}
    errors = {name: _by_document(y - model_fit.predicted, codes) for name, model_fit in fits.items()}
    around = _by_document(y - fits["features"].mean, codes)
    r2 = {name: _r2(e, around) for name, e in errors.items()}
    bootstrap_options: dict[str, Any] = {"resamples": resamples, "seed": seed}
    low, high = cluster_bootstrap(_r2, errors["features"], around, **bootstrap_options)
    gain_low, gain_high = cluster_bootstrap(_gain, errors["both"], errors["baselines"], around, **bootstrap_options)
    rng = np.random.default_rng(seed)
    shuffled = [_shuffled(fit, x, rng.permutation(y), split) for _ in bar(range(shuffles))]
    columns = {
        "r2": r2.pop("features"), "r2_low": low, "r2_high": high, **r2,
        "gain": _gain(errors["both"], errors["baselines"], around), "gain_low": gain_low, "gain_high": gain_high,
        "shuffled": np.mean(shuffled, 0), "shuffled_max": np.max(shuffled, 0),
        "spearman": _rank_correlation(fits["features"].predicted, y), "chosen": np.median(fits["features"].chosen, 0),
    }  # fmt: skip
    table = pd.DataFrame(np.nan, index=range(len(varies)), columns=list(columns))
    table.loc[varies, :] = np.stack(list(columns.values()), 1)
    table = table.assign(sd=effects.std(0), n=len(effects), documents=n_documents)
    table = mark(table, list(columns), ~varies, "the effect differs between tokens by rounding only")
    for name in columns:
        table = mark(table, [name], varies & table[name].isna().to_numpy(), "no variation over resamples")
    names = np.asarray(documents)[np.unique(codes, return_index=True)[1]]
    return ExplainedVariance(table, errors, around, varies, names)


def _by_document(differences: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Sums of squares [m, documents] of differences [n, m]."""
    return cluster_totals(np.square(differences).T, codes)[0]


def _r2(errors: np.ndarray, around: np.ndarray, axis: int = -1) -> np.ndarray:
    return np.asarray(1 - errors.sum(axis) / around.sum(axis))


def _gain(errors: np.ndarray, baseline: np.ndarray, around: np.ndarray, axis: int = -1) -> np.ndarray:
    """R² minus that of the baselines, or minus 0 if the baselines are worse than the mean."""
    return np.asarray((np.minimum(baseline.sum(axis), around.sum(axis)) - errors.sum(axis)) / around.sum(axis))


def _shuffled(fit: Callable[..., Predictions], x: np.ndarray, y: np.ndarray, folds: np.ndarray) -> np.ndarray:
    """R² [m] for shuffled effects."""
    fitted = fit(x, y, folds)
    return _r2(np.square(y - fitted.predicted).T, np.square(y - fitted.mean).T)


def _rank_correlation(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Spearman's ρ [m] of columns; NaN if one is constant."""
    a, b = (rankdata(v, axis=0) - (len(v) + 1) / 2 for v in (a, b))
    spread = np.sqrt(np.square(a).sum(0) * np.square(b).sum(0))
    return np.where(spread > 0, (a * b).sum(0) / np.where(spread > 0, spread, 1), np.nan)
