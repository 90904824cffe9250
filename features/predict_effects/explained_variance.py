"""How much of the effects of interventions per-token features explain: R² on held-out documents.

R² = 1 − Σ (y − ŷ)² / Σ (y − ȳ)², ŷ by cross-validation over documents, ȳ the mean of the training
documents: 0 is no better than the mean, below 0 is worse. 95 % intervals: expanded BCa bootstrap of documents
(`instruments.stats.estimators.cluster_bootstrap`), with predictions held fixed. In simulations without any relation,
under 1 % of the intervals lie above 0 and a third wholly below; the tests repeat a part of this. Comparisons are
predictors known without features (`baselines`) and features with shuffled effects (`shuffled`).

Rows of a group share a fold, so no row is predicted by a model that saw its document. Features are standardised and
effects centred by the training rows of each fold.
"""

from collections.abc import Mapping
from functools import partial
from itertools import combinations
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import GroupKFold

from streamscope.cli.errors import InputError
from streamscope.cli.terminal import counted
from streamscope.instruments.contract import Progress
from streamscope.instruments.stats.estimators import BOOTSTRAP_CLUSTERS, cluster_bootstrap, cluster_totals
from streamscope.instruments.table import mark

PENALTIES = tuple(10.0**e for e in range(-5, 4))
"""λ of ridge: minimise Σ (y − x w)² / n + λ |w|² over n training rows, x standardised; α = n λ in scikit-learn."""
SMALLEST = 1e-9  # a feature whose training sd is below this share of its overall sd counts as constant
ROUNDING = 1e-6  # in nats: effects with a smaller sd are float32 rounding


class Predictions(NamedTuple):
    """Predictions for each row from the other folds: `predicted`, `mean` [n, m]; `chosen` λ or trees [folds, m]."""

    predicted: np.ndarray
    mean: np.ndarray
    chosen: np.ndarray


def folds_of(groups: np.ndarray, k: int, seed: int) -> np.ndarray:
    """Fold 0..k−1 of each row [n]; a group is in one fold, at random."""
    folds = np.zeros(len(groups), int)
    for i, (_, test) in enumerate(GroupKFold(k, shuffle=True, random_state=seed).split(groups, groups=groups)):
        folds[test] = i
    return folds


class _Ridge:
    """Ridge regressions on one training set for every penalty, from its moments: ŷ = ȳ + (x − x̄) w.

    The moments of rows are ZᵀZ [1 + d + m, 1 + d + m] of Z = [1, x, y].
    """

    def __init__(self, train: np.ndarray, d: int) -> None:
        mean = train / train[0, 0]
        self.x, self.y = mean[0, 1 : d + 1], mean[0, d + 1 :]
        covariance = mean[1:, 1:] - np.outer(mean[0, 1:], mean[0, 1:])
        sd = np.sqrt(np.clip(np.diag(covariance)[:d], 0, None))
        self.scale = np.where(sd > SMALLEST, 1 / np.where(sd > SMALLEST, sd, 1), 0.0)
        self.values, self.vectors = np.linalg.eigh(covariance[:d, :d] * np.outer(self.scale, self.scale))
        self.projected = self.vectors.T @ (self.scale[:, None] * covariance[:d, d:])

    def weights(self, penalty: float) -> np.ndarray:
        """w [d, m] for a penalty."""
        shrunk = self.projected / (np.clip(self.values, 0, None) + penalty)[:, None]
        return self.scale[:, None] * (self.vectors @ shrunk)

    def errors(self, test: np.ndarray) -> np.ndarray:
        """Σ (y − ŷ)² [penalties, m] over test rows, from their moments."""
        sums = []
        for w in map(self.weights, PENALTIES):
            difference = np.vstack([self.x @ w - self.y, -w, np.eye(len(self.y))])  # y − ŷ = Z difference
            sums.append((difference * (test @ difference)).sum(0))
        return np.stack(sums)


def ridge(x: np.ndarray, y: np.ndarray, folds: np.ndarray) -> Predictions:
    """Cross-validated ridge regression of every column of y [n, m] on x [n, d]. λ of `PENALTIES` is chosen for each
    fold and column by nested cross-validation over the other folds; then one fit on all of them. One pass over the
    rows: the rest works on moments."""
    x, y = np.asarray(x, float), np.asarray(y, float)
    centre, sd = x.mean(0), x.std(0)
    x = (x - centre) / np.where(sd > 0, sd, 1)  # conditioning only: each fit standardises by its own rows
    k = folds.max() + 1
    z = np.hstack([np.ones((len(x), 1)), x, y])
    parts = [rows.T @ rows for rows in (z[folds == f] for f in range(k))]
    total, d = np.sum(parts, axis=0), x.shape[1]
    inner = np.zeros((k, len(PENALTIES), y.shape[1]))
    for a, b in combinations(range(k), 2):
        fitted = _Ridge(total - parts[a] - parts[b], d)
        inner[a] += fitted.errors(parts[b])
        inner[b] += fitted.errors(parts[a])
    best = inner.argmin(1)
    predicted, mean = np.zeros(y.shape), np.zeros(y.shape)
    for f in range(k):
        fitted, rows = _Ridge(total - parts[f], d), folds == f
        weights = np.zeros((x.shape[1], y.shape[1]))
        for i in np.unique(best[f]):
            weights[:, best[f] == i] = fitted.weights(PENALTIES[i])[:, best[f] == i]
        predicted[rows], mean[rows] = fitted.y + (x[rows] - fitted.x) @ weights, fitted.y
    return Predictions(predicted, mean, np.array(PENALTIES)[best])


def boosting(
    x: np.ndarray, y: np.ndarray, folds: np.ndarray, *, steps: int = 200, seed: int = 0, progress: Progress = iter
) -> Predictions:
    """Cross-validated gradient boosting (`HistGradientBoostingRegressor`), column by column. The number of trees, up to
    `steps`, minimises the error on the next fold with a model of the remaining folds; then one fit with that number on
    all other folds."""

    def trees(n: int) -> HistGradientBoostingRegressor:
        return HistGradientBoostingRegressor(max_iter=n, early_stopping=False, random_state=seed)

    k = folds.max() + 1
    predicted, mean, chosen = np.zeros(y.shape), np.zeros(y.shape), np.zeros((k, y.shape[1]))
    for j, f in progress([(j, f) for j in range(y.shape[1]) for f in range(k)]):
        rows, judge = folds == f, folds == (f + 1) % k
        tried = trees(steps).fit(x[~rows & ~judge], y[~rows & ~judge, j])
        errors = [np.square(y[judge, j] - guess).sum() for guess in tried.staged_predict(x[judge])]
        chosen[f, j] = 1 + int(np.argmin(errors))
        predicted[rows, j] = trees(int(chosen[f, j])).fit(x[~rows], y[~rows, j]).predict(x[rows])
        mean[rows, j] = y[~rows, j].mean()
    return Predictions(predicted, mean, chosen)


def baselines(position: np.ndarray, loss: np.ndarray, log_p: np.ndarray) -> dict[str, np.ndarray]:
    """Predictors known without features: name -> [n, columns]. position: q, ln(1 + q), 1 / (1 + q). loss: of the
    target, and its square. confidence: p, ln p of the prediction."""
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
) -> tuple[pd.DataFrame, dict[str, np.ndarray], np.ndarray, np.ndarray]:  # fmt: skip
    """(table, errors, around, varies) of m effects on D documents, from features x [n, d] and `predictors`.

    errors: columns used (features, a baseline …) -> Σ (y − ŷ)² per document, [varying effects, D]; around: Σ (y − ȳ)²;
    varies [m]: whether an effect varies by more than rounding. The table has a row per column of `effects` [n, m]: r2,
    r2_low, r2_high; one per entry of `predictors`; `baselines`, all of these; `both`, with the features; gain = both −
    max(baselines, 0), gain_low, gain_high; shuffled (mean), shuffled_max; spearman; `chosen`, the median penalty or
    number of trees; sd; n, documents; undefined. Raises `InputError` for fewer documents than folds or than eight, and
    if no effect varies.
    """
    codes = pd.factorize(documents)[0]
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
    interval, rng = partial(cluster_bootstrap, resamples=resamples, seed=seed), np.random.default_rng(seed)
    low, high = interval(_r2, errors["features"], around)
    gain_low, gain_high = interval(_gain, errors["both"], errors["baselines"], around)
    shuffled = []
    for _ in bar(range(shuffles)):
        fitted = fit(x, (dealt := rng.permutation(y)), split)
        shuffled.append(_r2(np.square(dealt - fitted.predicted).T, np.square(dealt - fitted.mean).T))
    columns = {
        "r2": r2.pop("features"), "r2_low": low, "r2_high": high, **r2,
        "gain": _gain(errors["both"], errors["baselines"], around), "gain_low": gain_low, "gain_high": gain_high,
        "shuffled": np.mean(shuffled, 0), "shuffled_max": np.max(shuffled, 0),
        "spearman": pd.DataFrame(fits["features"].predicted).rank().corrwith(pd.DataFrame(y).rank()).to_numpy(),
        "chosen": np.median(fits["features"].chosen, 0),
    }  # fmt: skip
    table = pd.DataFrame(columns, index=np.flatnonzero(varies)).reindex(range(len(varies)))
    table = table.assign(sd=effects.std(0), n=len(effects), documents=n_documents)
    table = mark(table, list(columns), ~varies, "the effect differs between tokens by rounding only")
    for name in columns:
        table = mark(table, [name], varies & table[name].isna().to_numpy(), "no variation over resamples")
    return table, errors, around, varies


def _by_document(differences: np.ndarray, codes: np.ndarray) -> np.ndarray:
    return cluster_totals(np.square(differences).T, codes)[0]


def _r2(errors: np.ndarray, around: np.ndarray, axis: int = -1) -> np.ndarray:
    return np.asarray(1 - errors.sum(axis) / around.sum(axis))


def _gain(errors: np.ndarray, baseline: np.ndarray, around: np.ndarray, axis: int = -1) -> np.ndarray:
    """R² minus that of the baselines, or minus 0 if the baselines are worse than the mean."""
    return np.asarray((np.minimum(baseline.sum(axis), around.sum(axis)) - errors.sum(axis)) / around.sum(axis))
