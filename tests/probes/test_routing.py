"""Kronecker routing set by hand: hubs, growth with depth, and what has no value."""

from itertools import permutations

import numpy as np
import pytest
import torch
from scipy import stats

from streamscope.models.make import build
from streamscope.probes.routing import Routing
from streamscope.probes.routing.measure import cells, growth, hub_scores, hubs, layers, matrices, observed, unevenness
from tests.probes.planted import tables_of


def planted(*W: np.ndarray) -> dict:
    """The matrices of a model whose layers have W as their routing of values."""
    model = build("dst-kron", "tiny", n_layers=len(W), n_heads=len(W[0]), d_model=8 * len(W[0]))
    with torch.no_grad():
        for block, values in zip(model.blocks, W, strict=True):
            block.attn.v.weight.copy_(torch.from_numpy(values))
    return {place: values for place, values in matrices(model).items() if place[0] == "attn.v"}


def star(n: int, hub: int) -> np.ndarray:
    """Everybody sends to the hub, and the hub to everybody."""
    W = np.zeros((n, n))
    W[hub, :] = W[:, hub] = 1.0
    return W


def test_a_star_has_one_hub() -> None:
    """Every weight touches the hub, so its score is 1/2; each other head has a share 1/(2(H−1))."""
    found = planted(star(6, 4), star(6, 4), star(6, 4))
    (first, *_) = layers(found).to_dict("records")
    assert (first["hub"], first["hub_score"]) == ("H4", pytest.approx(0.5))
    assert first["hub_p"] < 0.01 and first["hub_chance"] < 0.4
    assert layers(found, shuffles=9)["hub_p"].tolist() == [0.1] * 3, "the layer's own weights are one arrangement"
    table = hubs(found)
    own = table[table["layer"] == 1].set_index("head")
    assert own.loc["L1.H4", ["into", "out_of"]].tolist() == [5.0, 5.0]
    assert own.loc["L1.H0", "score"] == pytest.approx(0.1)
    assert own["score"].sum() == pytest.approx(1.0)


def test_rows_receive_and_columns_send() -> None:
    """W_ij is what head j gives to head i (DST Fig. 3), and the model computes with it so."""
    W = np.zeros((4, 4))
    W[1, 3] = -2.0
    found = planted(W)
    one = hubs(found).set_index("index")
    assert one["into"].tolist() == [0, 2, 0, 0] and one["out_of"].tolist() == [0, 0, 0, 2]
    (cell,) = cells(found).query("value != 0").to_dict("records")
    assert (cell["to"], cell["from"], cell["value"]) == (1, 3, -2.0)
    model = build("dst-kron", "tiny")
    with torch.no_grad():
        model.blocks[0].attn.v.weight.copy_(torch.from_numpy(W))
    x = torch.zeros(1, 1, 4, 8)
    x[..., 3, :] = 1.0
    y = model.blocks[0].attn.v(x.flatten(-2)).unflatten(-1, (4, 8))
    assert y[0, 0, :, 0].tolist() == [0, -2, 0, 0]


def test_norms_by_hand_and_hubs_without_sign_and_diagonal() -> None:
    W = np.array([[3.0, -4.0, 0], [0, 0, 0], [0, 0, 0]])
    (row,) = layers(planted(W), shuffles=20).to_dict("records")
    expected = {"max": 4, "mean": 7 / 9, "diagonal": 1, "off": 4 / 6, "norm": 5, "off_norm": 4, "off_share": 16 / 25,
                "negative": 1 / 9}  # fmt: skip
    assert {k: row[k] for k in expected} == pytest.approx(expected)
    W = np.random.default_rng(0).normal(size=(5, 5))
    np.testing.assert_allclose(hub_scores(W), hub_scores(np.abs(W * 7) + 100 * np.eye(5)))


def test_growth_is_the_slope_over_layers() -> None:
    """Largest weights 1, 1.5, 2, 3.5: the least-squares slope by hand is .8, exact lines have no interval."""
    found = planted(*(np.diag([m, 1.0, 1.0]) for m in (1.0, 1.5, 2.0, 3.5)))
    top, off, _ = growth(layers(found)).to_dict("records")
    assert top["slope"] == pytest.approx(0.8) and (top["first"], top["last"]) == (1.0, 3.5)
    assert top["slope_low"] < 0.8 < top["slope_high"] and 0 < top["slope_p"] < 0.1
    error = np.sqrt(sum(e**2 for e in (0.2, -0.1, -0.4, 0.3)) / 2 / 5)  # SE² = Σ e² / df / Σ (x − x̄)²
    assert top["slope_high"] == pytest.approx(0.8 + stats.t.ppf(0.975, 2) * error)
    assert np.isnan(off["slope_p"]) and "exactly on a line" in off["undefined"]


def test_how_uneven_pairs_of_heads_are() -> None:
    """Alike: 0; all in one of n pairs: 1 − 1/n; normal weights: √2 − 1; and by the double sum, off the diagonal."""
    same = np.full((5, 5), -0.3)
    one = np.diag([9.0] * 5)
    one[1, 3] = -2
    assert unevenness(same) == pytest.approx(0) and unevenness(one) == pytest.approx(1 - 1 / 20)
    W = np.random.default_rng(0).normal(size=(300, 300))
    assert unevenness(W) == pytest.approx(2**0.5 - 1, abs=0.01)
    x = np.abs(W[:6, :6][~np.eye(6, dtype=bool)])
    assert unevenness(W[:6, :6]) == pytest.approx(np.abs(x[:, None] - x).sum() / (2 * len(x) * x.sum()))
    assert np.isnan(unevenness(np.eye(4)))
    rows = layers({("attn.v", layer): (1 + layer) * W[:6, :6] for layer in range(3)})
    assert np.ptp(rows["uneven"]) < 1e-12, "the strength of all makes no structure"


def test_shuffles_hold_their_level() -> None:
    """On random matrices the p of a hub is uniform: about 10 % lie below .1."""
    rng = np.random.default_rng(1)
    found = {("attn.v", i): rng.normal(size=(6, 6)) for i in range(300)}
    p = layers(found, shuffles=99)["hub_p"]
    assert 0.05 < (p <= 0.1).mean() < 0.16 and 0.4 < p.mean() < 0.6


def test_a_shuffle_that_ties_counts() -> None:
    """Beside all 720 orders of the six cells of three heads, of which a fifth keep the cells that decide the score."""
    W, eye = np.random.default_rng(4).normal(size=(3, 3)), np.eye(3, dtype=bool)
    orders = np.zeros((720, 3, 3))
    orders[:, ~eye] = list(permutations(W[~eye]))
    above = hub_scores(orders).max(-1) - hub_scores(W).max()
    share, ties = (above >= -1e-12).mean(), (np.abs(above) < 1e-12).mean()
    assert ties == pytest.approx(0.2)
    assert layers({("attn.v", 0): W}, shuffles=1999)["hub_p"][0] == pytest.approx(share, abs=0.04)


def test_a_hub_in_every_layer_stands_out_among_heads() -> None:
    rng = np.random.default_rng(2)
    found = planted(*(star(6, 2) + 0.2 * rng.random((6, 6)) for _ in range(5)))
    how = Routing(shuffles=9)
    table = tables_of(how, observed(how, found))["heads"].frame.set_index("head")
    assert table["over_even"].idxmax() == "H2" and table.loc["H2", "over_even_p_holm"] < 0.01
    assert table.loc["H2", "over_even_low"] > 0 and table.loc["H2", "n"] == 5


def test_what_has_no_value_says_why() -> None:
    table = layers(planted(np.eye(4), np.ones((4, 4)), np.zeros((4, 4))), shuffles=9)
    reasons = table["undefined"].tolist()
    assert "between different heads" in reasons[0] and table["hub"].tolist() == ["", "H0", ""]
    assert "shuffling its cells changes nothing" in reasons[1]
    assert "W is zero" in reasons[2]
    two = growth(table[table["layer"] < 2])
    assert two["slope"].isna().all() and two["undefined"].str.contains("fewer than three layers").all()
