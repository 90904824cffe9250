"""The sweep of biases: planted runs whose numbers are known, and what the blog says of them."""

import numpy as np
import pandas as pd
import pytest

from streamscope.models.training.config import Training
from streamscope.papers.comparison.seeds import over_seeds
from streamscope.papers.krom import sweep

t = Training()
RECIPE = {"storage": "fp32", "optimizer": t.hc_optimizer, "lr": t.hc_lr, "decay": t.hc_decay, "steps": 100}
COSINES = {
    -8.0: [0.90, 0.92, 0.91],
    -2.0: [0.990, 0.991, 0.992],
    -1.0: [0.992, 0.993, 0.994],
    0.0: [0.995, 0.994, 0.996],
}
SWAPS = {-8.0: 0.001, -2.0: 0.20, -1.0: 0.3, 0.0: 0.5}
REST = {-8.0: 0.009, -2.0: 0.12, -1.0: 0.27, 0.0: 0.5}


def runs(**changes: object) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tables of mixing and of factors of three seeds at four biases; two factors of a run act, one does not."""
    rows, factors = [], []
    for bias, cosines in COSINES.items():
        for seed, cosine in enumerate(cosines):
            arm = {"preset": "kromcanon", "b_res": bias, **RECIPE, **changes, "seed": seed}
            swap = SWAPS[bias] + 0.002 * seed
            rows.append({
                **arm, "loss": 3.0 + 0.01 * seed + 0.001 * (bias == -8), "swap": swap, "swap_low": swap / 2,
                "swap_high": 1.5 * swap, "swap_without_gradient": REST[bias], "swap_dynamic": swap + 0.001,
                "stream_cosine": cosine, "shuffled_cosine": cosine - 0.001,
            })  # fmt: skip
            for k, (acts, best, alpha) in enumerate(((True, 0.1, -0.9), (True, 0.3, 0.5), (False, 0.9, 1.0))):
                factors.append(
                    {**arm, "module": f"m{k}", "acts": acts, "swap_best": best, "alpha_res": alpha - seed / 99}
                )
    return pd.DataFrame(rows), pd.DataFrame(factors)


def losses() -> pd.DataFrame:
    table = {"gpt2": [4.0, 4.1, 4.2], "canon": [3.5, 3.58, 3.71], "kromcanon": [3.4, 3.5, 3.6]}
    return pd.DataFrame([{"preset": p, "seed": s, "loss": x} for p, xs in table.items() for s, x in enumerate(xs)])


def test_the_quantities_of_planted_runs() -> None:
    found = sweep.quantities(*runs(), losses()).set_index(["quantity", "seed"])
    arm = found[found["preset"] == "kromcanon -2, fp32, adamw, 100 steps"]["value"]
    assert arm["mixed", 1] == pytest.approx(0.202 - 0.12) and arm["in use", 1] == pytest.approx(0.203)
    assert (arm["best.low", 0], arm["best.high", 0]) == (0.1, 0.3)  # of the factors that act
    assert arm["alpha", 2] == pytest.approx(0.9 + 2 / 99)
    whole = found["value"]
    assert whole["cosine.range", 2] == pytest.approx(0.996 - 0.992)
    assert whole["cosine.bend", 0] == pytest.approx((0.990 - 0.90) - (0.995 - 0.990))
    assert whole["gain", 1] == pytest.approx(3.58 - 3.5)  # what KromHC adds is less than how much more Canon does
    means = over_seeds(found.reset_index()).set_index(["quantity", "preset"])
    assert means.loc[("cosine", "kromcanon 0, fp32, adamw, 100 steps"), "mean"] == pytest.approx(np.mean(COSINES[0.0]))


def test_the_claims_of_planted_runs() -> None:
    mixing, factors = runs()
    numbers = sweep.quantities(mixing, factors, losses())
    judged = sweep.claims(mixing, numbers).set_index("quantity")
    said = [f"{quantity}: {text.split(' at ')[0].split(':')[0]}" for quantity, text in judged["direction"].items()]
    assert said == [
        "mixed: holds", "in use: holds", "best.high: opposite", "moved: holds",
        "swap.low: holds", "swap.high: opposite", "best.low: opposite", "best.high: holds",
        "cosine.range: holds", "cosine.bend: holds", "loss: holds", "alpha: not resolved",
        "cosine: holds", "in use: holds", "gain: holds",
    ]  # fmt: skip
    higher, lower = COSINES[0.0], COSINES[-2.0]
    one = judged.loc["cosine"]
    assert (
        one["difference"] == pytest.approx(np.mean(higher) - np.mean(lower)) and one["printed"] == "0.995 against 0.994"
    )
    assert one["claim"] == "kromcanon 0, fp32, adamw, 100 steps > kromcanon -2, fp32, adamw, 100 steps"


def test_another_recipe_another_topology_and_missing_biases_have_no_claims() -> None:
    for changes in ({"decay": 0.0}, {"optimizer": "sgd"}, {"preset": "kromcanon+n=8"}):
        mixing, factors = runs(**changes)
        numbers = sweep.quantities(mixing, factors, pd.DataFrame())
        assert numbers.empty and sweep.claims(mixing, numbers).empty
    mixing, factors = (table[table["b_res"] == -8.0] for table in runs())
    judged = sweep.claims(mixing, sweep.quantities(mixing, factors, pd.DataFrame()))
    assert set(judged["quantity"]) == {"mixed", "in use", "best.high"}
    old = sweep.quantities(mixing, factors.drop(columns="alpha_res"), pd.DataFrame())
    lost = old[old["quantity"] == "alpha"]
    assert lost["value"].isna().all() and lost["undefined"].str.contains("not kept").all()


@pytest.mark.parametrize(("loss", "said"), [([3.05, 3.06, 3.05], "opposite"), ([3.012, 3.013, 3.012], "not resolved")])
def test_biases_that_differ_are_not_alike(loss: list[float], said: str) -> None:
    """−8 has .05 more than −2, or .012 within an interval that holds the smallest effect of interest, .01."""
    mixing, factors = runs()
    mixing.loc[mixing["b_res"] == -8.0, "loss"] = np.add(loss, [0.0, 0.01, 0.02])
    mixing.loc[mixing["b_res"] == -2.0, "loss"] = np.subtract([3.0, 3.01, 3.02], [0.0, 0.001, -0.001])
    judged = sweep.claims(mixing, sweep.quantities(mixing, factors, losses()))
    row = judged[judged["quantity"] == "loss"].iloc[0]
    assert " = " in row["claim"] and row["direction"].startswith(said), row["direction"]
