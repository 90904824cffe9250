"""Grouped cross-validation of ridge regression and boosted trees, with a nested choice of the penalty.

    folds = folds_of(documents, 5, seed=0)
    found = ridge(X, Y, folds)
    found.predicted [n, m], found.mean [n, m], found.chosen [5, m]

Rows of a group share a fold, so no row is predicted by a model that saw its document. Features are standardised and
effects centred by the training rows of each fold; `mean` is the prediction without features.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import GroupKFold

from streamscope.cli.errors import InputError
from streamscope.cli.terminal import counted

PENALTIES = tuple(10.0**e for e in range(-5, 4))
"""λ of ridge: minimise Σ (y − x w)² / n + λ |w|² over n training rows, x standardised; α = n λ in scikit-learn."""
SMALLEST = 1e-9
"""A feature whose training sd is below this share of its overall sd counts as constant."""

Progress = Callable[[Iterable], Iterable]


@dataclass(frozen=True)
class Predictions:
    """Predictions for each row from the other folds: `predicted`, `mean` [n, m]; `chosen` λ or trees [folds, m]."""

    predicted: np.ndarray
    mean: np.ndarray
    chosen: np.ndarray


def folds_of(groups: np.ndarray, k: int, seed: int) -> np.ndarray:
    """Fold 0..k−1 of each row [n]; a group is in one fold, at random. `InputError` for fewer than k groups."""
    n_groups = len(np.unique(groups))
    if k < 3 or n_groups < k:
        raise InputError(
            f"{k} folds of {counted(n_groups, 'document')}: use at least 3 folds, and at least one document per fold"
        )
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
    """Cross-validated ridge regression of every column of y [n, m] on x [n, d].

    λ of `PENALTIES` is chosen for each fold and column by nested cross-validation over the other folds; then one fit on
    all of them. One pass over the rows: the rest works on moments.
    """
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
    """Cross-validated gradient boosting (`HistGradientBoostingRegressor`), column by column.

    The number of trees, up to `steps`, minimises the error on the next fold with a model of the remaining folds; then
    one fit with that number on all other folds.
    """

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
