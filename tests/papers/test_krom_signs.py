"""Signs of α_res over seeds: planted signs, chance by plain enumeration, and what a sign does not say."""

from itertools import combinations, product

import numpy as np
import pandas as pd
import pytest
import torch

from streamscope.models.make import build
from streamscope.models.mixing import connections
from streamscope.papers.krom.signs import LARGEST, by_module, claims, consistent_when_dealt, sign_agreement

ARM = {
    "preset": "kromcanon", "b_res": -2.0, "storage": "bf16", "optimizer": "adamw", "lr": 0.005, "decay": 0.2,
    "steps": 1000,
}  # fmt: skip
NAMES = [f"blocks.{i // 2}.{('attn', 'mlp')[i % 2]}_hc" for i in range(16)]


def planted(*seeds: list[float], **arm: object) -> pd.DataFrame:
    """A factor table of one arm: α_res of every module, seed by seed; the first module cannot act, its α is +9."""
    return pd.DataFrame(
        [
            {**ARM, **arm, "seed": seed, "module": name, "factor": factor, "acts": name != NAMES[0], "alpha_res": x}
            for seed, alpha in enumerate(seeds)
            for name, x in zip(NAMES, [9.0, *alpha], strict=False)
            for factor in (0, 1)
        ]
    )  # fmt: skip


def test_planted_signs_are_counted() -> None:
    """Of four modules that can act the first two agree over three seeds; L0 mlp is the largest in all."""
    found = planted([0.9, -0.1, 0.1, 0.1], [0.8, -0.2, -0.1, 0.1], [0.7, -0.3, -0.1, -0.1])
    (row,) = sign_agreement(found).itertuples()
    assert (row.n, row.seeds, row.modules, row.consistent, row.positive) == (3, "0, 1, 2", 4, 2, "3, 2, 1")
    assert (row.share, row.coins, row.of_16) == (0.5, 0.25, 8.0)
    each = by_module(found).set_index("module")
    assert each["positive"].tolist() == [3, 0, 1, 2] and each["consistent"].tolist() == [True, True, False, False]
    assert each["largest"].tolist() == [3, 0, 0, 0] and NAMES[0] not in each.index
    assert each.loc[LARGEST, ["alpha_low", "alpha_high"]].tolist() == [0.7, 0.9]
    table = claims(found).set_index("quantity")
    assert table.loc["largest", "direction"] == "holds: in 3 of 3 seeds, counted, not tested"
    assert table.loc["consistent", "direction"] == "not resolved at n=3 seeds"
    assert table.loc["consistent", "difference"] == 0 and table.loc["consistent", "p"] == 1


def test_the_chance_of_dealt_signs_is_that_of_all_deals() -> None:
    """Every way to deal 3, 2 and 2 positive signs to 4 modules, one after the other."""
    positive, modules = (3, 2, 2), 4
    found = np.zeros(modules + 1)
    deals = list(product(*(combinations(range(modules), a) for a in positive)))
    for deal in deals:
        plus = [[m in one for one in deal] for m in range(modules)]
        found[sum(all(row) or not any(row) for row in plus)] += 1 / len(deals)
    np.testing.assert_allclose(consistent_when_dealt(positive, modules), found, atol=1e-12)
    row = sign_agreement(planted([1, 1, 1, -1], [1, 1, -1, -1], [1, -1, 1, -1])).iloc[0]
    assert row["consistent"] == 2 and row["p"] == pytest.approx(found[2:].sum())
    assert row["dealt"] == pytest.approx((found @ range(5)) / 4)


def test_signs_that_are_all_still_positive_agree_by_chance() -> None:
    """15 of 15 with every sign positive is twice what coins allow and no pattern at all."""
    (row,) = sign_agreement(planted(*[[0.1] * 15] * 3)).itertuples()
    assert (row.consistent, row.modules, row.coins, row.dealt, row.p) == (15, 15, 0.25, 1.0, 1.0)
    held = claims(planted(*[[0.1] * 15] * 3)).set_index("quantity")
    assert (held.loc["consistent", "p"], held.loc["consistent", "direction"][:12]) == (1.0, "not resolved")
    kept = [[0.1 if i % 2 else -0.1 for i in range(15)]] * 3
    assert claims(planted(*kept)).set_index("quantity").loc["consistent", "direction"] == "holds", "not by dealing"


def test_coins_are_not_called_a_pattern() -> None:
    """Fair coins: p is at most .05 in no more than a twentieth of 400 draws, and half the modules are not reached."""
    rng = np.random.default_rng(0)
    rows = [sign_agreement(planted(*rng.choice([-1.0, 1.0], (3, 15)).tolist())).iloc[0] for _ in range(400)]
    assert np.mean([row["p"] <= 0.05 for row in rows]) <= 0.06
    assert np.mean([row["share"] for row in rows]) == pytest.approx(0.25, abs=0.02)
    few = [[1.0 if (i + seed) % 3 else -1.0 for i in range(15)] for seed in range(3)]
    assert claims(planted(*few)).set_index("quantity").loc["consistent", "direction"] == "opposite"


def test_one_pair_of_runs_gives_counts_and_no_verdict() -> None:
    found = planted([0.9, -0.1, 0.1], [0.8, -0.2, -0.1])
    assert sign_agreement(found).iloc[0]["consistent"] == 2
    assert set(claims(found)["direction"]) == {"undefined: one pair of seeds"} and claims(found)["p"].isna().all()
    assert sign_agreement(planted([0.9, -0.1, 0.1])).empty
    both = pd.concat([found, planted([0.1, 0.2, 0.3], b_res=-8.0)])
    assert sign_agreement(both)["b_res"].tolist() == [-2.0], "seeds of other arms are not taken together"
    assert sign_agreement(found.drop(columns="alpha_res")).empty, "a comparison from before α was kept"


def test_the_sign_alone_says_nothing_of_the_way() -> None:
    """(α, W) → (−α, −W) in every module: not a logit of the model changes."""
    model = build("kromhc", "tiny").eval()
    tokens = torch.arange(24).reshape(2, 12)
    with torch.no_grad():
        for module in connections(model).values():
            module.W["res"].normal_(generator=torch.Generator().manual_seed(0))
            module.alpha["res"].fill_(0.8)
        before = model(tokens)
        for module in connections(model).values():
            module.W["res"].neg_()
            module.alpha["res"].neg_()
        torch.testing.assert_close(model(tokens), before, rtol=0, atol=1e-6)
        next(iter(list(connections(model).values())[1:])).alpha["res"].neg_()
        assert (model(tokens) - before).abs().max() > 1e-4, "W alone decides nothing either"
