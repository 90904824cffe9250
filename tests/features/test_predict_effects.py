"""Effects from features: planted relations of known R², none, one that baselines explain; files that do not match."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

from streamscope.cli.errors import InputError
from streamscope.features import Extract, PredictEffects
from streamscope.features.compute import columns
from streamscope.features.predict_effects import explained_variance as regression
from streamscope.features.predict_effects.measure import match_effects, prefixes
from streamscope.features.store import read_effects, read_features
from streamscope.features.tables import EffectTable, FeatureTables, OpenEffects
from streamscope.instruments.table import write_table
from tests.features.planted import planted_file

N, DOCUMENTS = 3000, 100
RNG = np.random.default_rng(0)
CODES = np.repeat(np.arange(DOCUMENTS), N // DOCUMENTS)
X = RNG.normal(size=(N, 12)) + RNG.normal(size=(DOCUMENTS, 12))[CODES]
KNOWN = regression.baselines(np.tile(np.arange(30), DOCUMENTS), RNG.exponential(size=N), -RNG.exponential(size=N))


def linear(share: float, seed: int) -> np.ndarray:
    """An effect of which a linear function of the features is `share` of the variance; noise by document and token."""
    rng = np.random.default_rng(seed)
    signal = X @ rng.normal(size=12)
    noise = rng.normal(size=N) + 0.3 * rng.normal(size=DOCUMENTS)[CODES]
    return signal / signal.std() * np.sqrt(share) + noise / noise.std() * np.sqrt(1 - share)


def test_a_known_share_of_variance_is_found() -> None:
    shares = np.repeat([0.9, 0.5, 0.1], 4)
    effects = np.stack([linear(share, seed) for seed, share in enumerate(shares)], 1)
    found = regression.explain(X, effects, KNOWN, CODES, resamples=400)[0]
    covered = (found["r2_low"] <= shares) & (shares <= found["r2_high"])
    assert covered.sum() >= 11
    np.testing.assert_allclose(found["r2"], shares, atol=0.06)
    assert (found["shuffled_max"] < 0.005).all() and (found["gain_low"] > 0).all()
    assert (found["r2_high"] - found["r2_low"] < 0.2).all()
    assert (found["n"] == N).all() and (found["documents"] == DOCUMENTS).all()
    assert (found["spearman"] > 0.2).all() and (found["baselines"].abs() < 0.02).all()
    np.testing.assert_allclose(found["gain"], found["both"] - found["baselines"].clip(lower=0), atol=1e-12)
    assert found["baselines"].min() < -1e-4, "worse than the mean"


def test_no_relation_is_not_found() -> None:
    """Noise, by document too, alone and on top of what baselines explain: of 80 intervals at most two above 0."""
    rng = np.random.default_rng(1)
    effects = rng.normal(size=(N, 80)) + rng.normal(size=(DOCUMENTS, 80))[CODES]
    effects[:, 40:] += 0.5 * KNOWN["loss"][:, :1] + 2 * KNOWN["position"][:, 2:]
    found = regression.explain(X, effects, KNOWN, CODES, resamples=400)[0]
    assert (found["r2_low"] > 0).sum() <= 2 and (found["gain_low"] > 0).sum() <= 2
    assert (found["r2_low"].le(0) & found["r2_high"].ge(0)).mean() > 0.5  # the others are below: worse than the mean
    assert found["r2"].abs().max() < 12 / DOCUMENTS / 2  # chance, of features of documents
    assert (found["shuffled"] <= 0.002).all() and found["shuffled"].mean() <= 0
    assert (found["baselines"][40:] > 0.05).all()


def test_what_baselines_explain_is_no_gain() -> None:
    """An effect of position and loss alone, which features follow as well: R² is theirs, nothing is added."""
    y = 2 * KNOWN["position"][:, 2] + KNOWN["loss"][:, 0]
    y = (y + 0.5 * y.std() * np.random.default_rng(2).normal(size=N))[:, None]
    x = np.concatenate([X, KNOWN["position"], KNOWN["loss"]], 1)
    row = regression.explain(x, y, KNOWN, CODES, resamples=400)[0].iloc[0]
    assert row["r2"] == pytest.approx(0.8, abs=0.03) and row["baselines"] == pytest.approx(0.8, abs=0.03)
    assert max(row["position"], row["loss"]) < row["baselines"] - 0.1 and abs(row["confidence"]) < 0.02
    assert abs(row["gain"]) < 0.01 and row["gain_low"] < 0.003


def test_r2_is_that_of_the_formula_and_a_constant_effect_has_none() -> None:
    effects = np.stack([linear(0.5, 7), np.full(N, 3.0)], 1)
    found = regression.explain(X, effects, KNOWN, CODES, resamples=100, seed=4)[0]
    said = regression.ridge(X, effects[:, :1], regression.folds_of(CODES, 5, seed=4))
    assert found["r2"][0] == pytest.approx(r2(effects[:, :1], said)[0])
    assert np.isnan(found["r2"][1]) and "rounding only" in found["undefined"][1] and not found["undefined"][0]
    with pytest.raises(InputError, match="no effect differs"):
        regression.explain(X, effects[:, 1:] + 1e-8 * effects[:, :1], KNOWN, CODES)
    with pytest.raises(InputError, match="at least 8"):
        regression.explain(X[:100], effects[:100], {k: v[:100] for k, v in KNOWN.items()}, CODES[:100])


def tokens(n: int = 400, documents: int = 20) -> pd.DataFrame:
    """Index columns of n tokens."""
    each = n // documents
    position = np.tile(np.arange(each), documents)
    ids = 100 + np.arange(n) % 350  # no two documents begin alike
    table = pd.DataFrame({"document": np.repeat(np.arange(documents), each), "position": position, "token_id": ids})
    return table.assign(token="x", target_id=1, target="y", prediction_id=2, prediction="z")


def files(folder: Path, *, index: Any = lambda table: table, **changes: Any) -> tuple[Path, Path, Any, Any]:
    """Features of 400 tokens, and effects of 380 of them and 10 others; L0.H0 follows the features, L1.H1 does not."""
    rng = np.random.default_rng(0)
    table = index(tokens())
    names = [c.name for c in columns(2, 2, Extract())]
    features = pd.concat([table, pd.DataFrame(rng.normal(size=(400, len(names))), columns=names)], axis=1)
    effects = table[["document", "position", "token_id", "target_id"]].copy()
    effects["loss"], effects["log_p"] = rng.exponential(size=400), -rng.exponential(size=400)
    signal = features["traj_prob_L0"] - 2 * features["k_star"]
    effects["delta_loss_L0.H0"] = signal + 0.3 * rng.normal(size=400)
    effects["delta_loss_L1.H1"], effects["delta_log_p_L1.H1"] = rng.normal(size=(2, 400))
    effects["delta_log_p_L0.H0"] = -signal
    extra = effects[:10].assign(document=99)
    effects = pd.concat([effects[20:], extra]).sample(frac=1, random_state=0)
    for name, change in changes.items():
        effects[name] = change(effects[name])
    about = {"effects": {"checkpoint": "abc", "edits": {"L0.H0": [], "L1.H1": []}}}
    write_table(effects, folder / "effects.parquet", units={}, about=about)
    return planted_file(folder / "features.parquet", table=features), folder / "effects.parquet", features, effects


def matched(features: Path, effects: Path) -> Any:
    return match_effects(read_features(features), OpenEffects(*read_effects(effects), str(effects)), str(features))


def test_rows_are_joined_by_document_and_position(tmp_path: Path) -> None:
    one, other, features, effects = files(tmp_path)
    x, tokens, counts = matched(one, other)
    assert len(tokens) == 380 and counts["unmatched"] == {"features_only": 20, "effects_only": 10}
    assert x.shape == (380, 23 - 4)  # two final columns of each head of layer 0 are 0 by construction
    for i in (0, 57, 379):
        row = tokens.iloc[i]
        mine = features[(features["document"] == row["document"]) & (features["position"] == row["position"])].iloc[0]
        theirs = effects[(effects["document"] == row["document"]) & (effects["position"] == row["position"])].iloc[0]
        assert x[i, 0] == np.float32(mine["traj_prob_L0"])
        assert row["delta_loss_L0.H0"] == theirs["delta_loss_L0.H0"]


def test_prefixes_are_equal_where_the_texts_are(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    table = pd.DataFrame({"document": np.repeat(np.arange(40), 6), "position": np.tile(np.arange(6), 40)})
    table["token_id"] = rng.integers(2, size=240)
    table = table.drop(index=[9, 60]).sample(frac=1, random_state=0).reset_index(drop=True)
    found = prefixes(table)
    tokens = {(d, p): t for d, p, t in table.to_numpy().tolist()}
    texts = [tuple(tokens.get((d, q), -9) for q in range(p + 1)) for d, p, _ in table.to_numpy().tolist()]
    for i, text in enumerate(texts):
        assert found[i] == -1 if -9 in text else all((found[i] == found[j]) == (text == texts[j]) for j in range(i))


def test_rows_of_documents_that_begin_alike_are_counted(tmp_path: Path) -> None:
    def same_beginnings(table: pd.DataFrame) -> pd.DataFrame:
        """Documents 2, 3 and 4 begin with the same four tokens, of 1 (whose effects are known) and 0 (not) five."""
        like = table["document"].isin([2, 3, 4]) & (table["position"] < 4)
        table["token_id"] = table["token_id"].mask(like, 60 + table["position"])
        like = table["document"].isin([0, 1]) & (table["position"] < 5)
        return table.assign(token_id=table["token_id"].mask(like, 80 + table["position"]))

    one, other, *_ = files(tmp_path, index=same_beginnings)
    assert matched(one, other)[2]["repeated"] == 3 * 4
    data = FeatureTables(features=(one,)), EffectTable(effects=other)
    result = PredictEffects(resamples=200, shuffles=1).measure(None, *data)
    assert "12 tokens (3.2%) not held out" in result.table().title and result.about["repeated"] == 12
    assert result.about["unmatched"] == {"features_only": 20, "effects_only": 10}
    table = result.table().frame.set_index(["of", "measure", "edit"])
    assert len(table) == 8
    assert table.loc[("signed", "delta_loss", "L0.H0"), "r2"] == pytest.approx(5 / 5.09, abs=0.03)
    assert table.loc[("signed", "delta_loss", "L1.H1"), "r2"] < 0.05
    assert table.loc[("absolute", "delta_log_p", "L0.H0"), "r2"] < 0.3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token_id": lambda v: v + 1}, "380 of 380 tokens or targets differ"),
        ({"target_id": lambda v: v.where(v.index != 50, 3)}, "1 of 380 tokens or targets differ"),
        ({"document": lambda v: v + 1000}, "no token in common"),
        ({"loss": lambda v: "much"}, "column loss holds (object|str)"),
        ({"position": lambda v: v + 0.5}, "column position holds float64"),
        ({"position": lambda v: v * 0}, "given twice"),
        ({"delta_loss_L0.H0": lambda v: v.where(v > 0)}, "rows with missing values; compute"),
    ],
)
def test_files_that_do_not_match(tmp_path: Path, changes: dict, message: str) -> None:
    one, other, features, _ = files(tmp_path, **changes)
    with pytest.raises(InputError, match=message):
        matched(one, other)
    planted_file(tmp_path / "features.parquet", table=features, checkpoint="other")
    with pytest.raises(InputError, match="different models"):
        matched(one, other)


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
            for penalty in regression.PENALTIES:
                inner = [g for g in range(folds.max() + 1) if g != f]
                said = [(folds == g, fit((folds != g) & (folds != f), penalty, j)) for g in inner]
                errors.append(sum(np.square(y[rows, j] - model(rows)).sum() for rows, model in said))
            chosen[f, j] = regression.PENALTIES[int(np.argmin(errors))]
            predicted[folds == f, j] = fit(folds != f, chosen[f, j], j)(folds == f)
    return predicted, chosen


def test_ridge_is_that_of_nested_loops_over_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(160, 6)) * [1, 100, 0.01, 1, 1, 0] + [0, 3, 0, 1e3, 0, 5]
    x[:, 4] = x[:, 0] + 1e-3 * rng.normal(size=160)  # nearly the same feature twice; the last is constant
    y = np.stack([x[:, 0] + rng.normal(size=160), 0.02 * x[:, 1] + rng.normal(size=160), rng.normal(size=160)], 1)
    folds = regression.folds_of(np.repeat(np.arange(32), 5), 4, seed=1)
    said = regression.ridge(x, y, folds)
    predicted, chosen = naive_ridge(x, y, folds)
    np.testing.assert_array_equal(said.chosen, chosen)
    np.testing.assert_allclose(said.predicted, predicted, atol=1e-7)
    for f in range(4):
        np.testing.assert_allclose(said.mean[folds == f], np.tile(y[folds != f].mean(0), (sum(folds == f), 1)))


def test_leakage_across_documents_is_caught_by_grouping() -> None:
    """Features and effects name the document, nothing else: split by token they match, by document they do not."""
    rng = np.random.default_rng(0)
    documents = np.repeat(np.arange(40), 25)
    x, y = rng.normal(size=(40, 20))[documents], rng.normal(size=(40, 3))[documents]
    x = x + 0.01 * rng.normal(size=x.shape)
    by_token, by_document = (regression.folds_of(groups, 5, seed=0) for groups in (np.arange(len(y)), documents))
    leaking, grouped = (r2(y, regression.ridge(x, y, folds)) for folds in (by_token, by_document))
    assert (leaking > 0.25).all() and (grouped < 0.05).all()
    leaking, grouped = (r2(y[:, :1], regression.boosting(x, y[:, :1], f, steps=40))[0] for f in (by_token, by_document))
    assert leaking > 0.95 and grouped < 0.1


def test_the_effects_of_a_fold_do_not_choose_its_trees() -> None:
    rng = np.random.default_rng(0)
    x, folds = rng.normal(size=(150, 2)), np.repeat([0, 1, 2], 50)
    y = x[:, :1] + rng.normal(size=(150, 1))
    turned = np.where(folds[:, None] == 1, -y, y)
    fits = [regression.boosting(x, effects, folds, steps=30) for effects in (y, turned)]
    assert fits[0].chosen[1] == fits[1].chosen[1] != fits[0].chosen[0]
    np.testing.assert_array_equal(*(fit.predicted[folds == 1] for fit in fits))


@pytest.mark.slow  # ridge is quick
def test_boosting_finds_what_is_not_linear() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1500, 4))
    y = np.sign(x[:, :1]) * np.sign(x[:, 1:2]) + 0.1 * rng.normal(size=(1500, 1))
    folds = regression.folds_of(np.repeat(np.arange(150), 10), 5, seed=0)
    assert r2(y, regression.boosting(x, y, folds, steps=60))[0] > 0.85
    assert r2(y, regression.ridge(x, y, folds))[0] < 0.05
