"""Cross-validated regression: equal to loops over scikit-learn's Ridge, and honest about documents."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

from streamscope.cli.errors import InputError
from streamscope.features.predict_effects.regression import PENALTIES, boosting, folds_of, ridge


def r2(y: np.ndarray, said) -> np.ndarray:
    return 1 - np.square(y - said.predicted).sum(0) / np.square(y - said.mean).sum(0)


def naive_ridge(x: np.ndarray, y: np.ndarray, folds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Nested loops over scikit-learn, one column at a time."""

    def fit(rows: np.ndarray, penalty: float, j: int):
        scaler = StandardScaler().fit(x[rows])
        model = Ridge(alpha=penalty * rows.sum()).fit(scaler.transform(x[rows]), y[rows, j])
        return lambda other: model.predict(scaler.transform(x[other]))

    predicted, chosen = np.zeros(y.shape), np.zeros((folds.max() + 1, y.shape[1]))
    for j in range(y.shape[1]):
        for f in range(folds.max() + 1):
            errors = []
            for penalty in PENALTIES:
                inner = [g for g in range(folds.max() + 1) if g != f]
                said = [(folds == g, fit((folds != g) & (folds != f), penalty, j)) for g in inner]
                errors.append(sum(np.square(y[rows, j] - model(rows)).sum() for rows, model in said))
            chosen[f, j] = PENALTIES[int(np.argmin(errors))]
            predicted[folds == f, j] = fit(folds != f, chosen[f, j], j)(folds == f)
    return predicted, chosen


def test_ridge_is_that_of_nested_loops_over_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(160, 6)) * [1, 100, 0.01, 1, 1, 0] + [0, 3, 0, 1e3, 0, 5]
    x[:, 4] = x[:, 0] + 1e-3 * rng.normal(size=160)  # nearly the same feature twice; the last is constant
    y = np.stack([x[:, 0] + rng.normal(size=160), 0.02 * x[:, 1] + rng.normal(size=160), rng.normal(size=160)], 1)
    folds = folds_of(np.repeat(np.arange(32), 5), 4, seed=1)
    said = ridge(x, y, folds)
    predicted, chosen = naive_ridge(x, y, folds)
    np.testing.assert_array_equal(said.chosen, chosen)
    np.testing.assert_allclose(said.predicted, predicted, atol=1e-7)
    for f in range(4):
        np.testing.assert_allclose(said.mean[folds == f], np.tile(y[folds != f].mean(0), (sum(folds == f), 1)))


def test_no_document_is_in_two_folds() -> None:
    groups = np.random.default_rng(0).integers(0, 23, 400)
    folds = folds_of(groups, 5, seed=3)
    assert all(len(set(folds[groups == g])) == 1 for g in range(23))
    assert set(folds) == set(range(5))
    assert np.bincount(folds).min() > 40
    with pytest.raises(InputError, match="3 documents"):
        folds_of(np.array([0, 1, 2]), 5, seed=0)


def test_leakage_across_documents_is_caught_by_grouping() -> None:
    """Features and effects name the document, nothing else: split by token they match, by document they do not."""
    rng = np.random.default_rng(0)
    documents = np.repeat(np.arange(40), 25)
    x, y = rng.normal(size=(40, 20))[documents], rng.normal(size=(40, 3))[documents]
    leaking, grouped = (
        r2(y, ridge(x + 0.01 * rng.normal(size=x.shape), y, folds_of(g, 5, seed=0)))
        for g in (np.arange(len(y)), documents)
    )
    assert (leaking > 0.25).all()
    assert (grouped < 0.05).all()
    rows = folds_of(np.arange(len(y)), 5, seed=0)
    assert r2(y[:, :1], boosting(x, y[:, :1], rows, steps=40))[0] > 0.95
    assert r2(y[:, :1], boosting(x, y[:, :1], folds_of(documents, 5, seed=0), steps=40))[0] < 0.1


@pytest.mark.slow  # ridge is quick
def test_boosting_finds_what_is_not_linear() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1500, 4))
    y = np.sign(x[:, :1]) * np.sign(x[:, 1:2]) + 0.1 * rng.normal(size=(1500, 1))
    folds = folds_of(np.repeat(np.arange(150), 10), 5, seed=0)
    assert r2(y, boosting(x, y, folds, steps=60))[0] > 0.85
    assert r2(y, ridge(x, y, folds))[0] < 0.05
