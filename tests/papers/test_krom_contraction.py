"""What differs between streams before training: beside plain arithmetic, on planted seeds, and by the command."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from streamscope.cli.errors import InputError
from streamscope.instruments.table import read_about
from streamscope.models.hooks import capture
from streamscope.models.make import build
from streamscope.papers.krom.contraction import main
from streamscope.papers.krom.contraction_measure import claims, differences, measured, set_bias, table


def net():
    return build("kromcanon", "tiny", seed=3, d_vocab=64)


def test_spread_and_rank_are_those_of_a_plain_implementation() -> None:
    model, tokens = net(), torch.randint(64, (2, 9), generator=torch.Generator().manual_seed(0))
    set_bias(model, -2.0)
    last = model.config.n_layers - 1
    with torch.no_grad(), capture(model, f"blocks.{last}.hook_streams_post") as found:
        model(tokens)
    X = found[f"blocks.{last}.hook_streams_post"].double().numpy().reshape(18, 4, -1)
    spread, rank, apart = [], [], []
    for x in X:
        away = math.sqrt(sum(((row - x.mean(0)) ** 2).sum() for row in x))
        p = np.linalg.eigvalsh(x @ x.T).clip(1e-300)
        p = p / p.sum()
        apart.append(away)
        spread.append(away / math.sqrt((x**2).sum()))
        rank.append(math.exp(-(p * np.log(p)).sum()))
    got = differences(model, tokens)
    assert got == pytest.approx({"spread": np.mean(spread), "rank": np.mean(rank), "apart": np.mean(apart)}, rel=1e-5)


def test_with_full_mixing_only_the_last_module_tells_streams_apart() -> None:
    """At bias 0 H_res is 1/4 everywhere: what is left is (H_post − its mean) ⊗ the last branch."""
    model, tokens = net(), torch.randint(64, (1, 8), generator=torch.Generator().manual_seed(1))
    set_bias(model, 0.0)
    block = f"blocks.{model.config.n_layers - 1}"
    with torch.no_grad(), capture(model, [f"{block}.hook_mlp_out", f"{block}.mlp_hc.hook_post"]) as found:
        model(tokens)
    weights, out = found[f"{block}.mlp_hc.hook_post"][0].double(), found[f"{block}.hook_mlp_out"][0].double()
    expected = (weights - weights.mean(-1, keepdim=True)).norm(dim=-1) * out.norm(dim=-1)
    assert differences(model, tokens)["apart"] == pytest.approx(float(expected.mean()), rel=1e-5)
    set_bias(model, -math.inf)
    assert differences(model, tokens)["apart"] > float(expected.mean())


def test_nothing_is_contracted_without_mixing_and_more_by_more() -> None:
    found = measured(2, "tiny", (-40.0, -8.0, -2.0, 0.0))
    value = found.set_index(["quantity", "preset", "seed"])["value"]
    assert value["contracted", "-40", 0] == pytest.approx(0, abs=1e-6)
    assert 0 < value["contracted", "-8", 0] < value["contracted", "-2", 0] < value["contracted", "0", 0] < 1
    gained = value["contracted", "-2", 1] - value["contracted", "-8", 1]
    assert value["gained", "-8 to -2", 1] == pytest.approx(gained)
    rows = table(found, 4, (-2.0, 0.0)).set_index("bias")
    assert rows.loc[-2.0, "predicted"] == pytest.approx(1 - (1 - 2 / (1 + math.exp(2))) ** 4)
    assert rows.loc[0.0, "predicted"] == 1 and rows.loc[0.0, "contracted_high"] > rows.loc[0.0, "contracted"]


def planted(**values: list[float]) -> pd.DataFrame:
    names = {"spread": ("-8", "spread"), "first": ("-8 to -2", "gained"), "then": ("-2 to 0", "gained")}
    return pd.DataFrame([
        {"preset": names[key][0], "quantity": names[key][1], "seed": s, "value": x, "unit": "share", "undefined": ""}
        for key, seeds in values.items() for s, x in enumerate(seeds)
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("spread", "first", "then", "said"),
    [
        (0.001, 0.97, 0.002, ["holds", "holds", "holds"]),  # as the blog has it
        (0.4, 0.5, 0.1, ["opposite", "holds", "opposite"]),
        (0.4, 0.3, 0.3, ["opposite", "negligible: within ±0.01", "opposite"]),
    ],
)
def test_verdicts_follow_from_planted_seeds(spread: float, first: float, then: float, said: list[str]) -> None:
    noise = np.array([-1e-4, 0, 2e-4, -2e-4, 1e-4])
    found = claims(planted(spread=list(spread + noise), first=list(first + noise[::-1]), then=list(then + noise)))
    assert found["direction"].tolist() == said


def test_the_command_writes_its_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "contraction.parquet"
    main(["--scale", "tiny", "--seeds", "2", "--out", str(out)])
    assert pd.read_parquet(out)["bias"].tolist() == [-8.0, -2.0, -1.0, 0.0]
    assert len(pd.read_parquet(tmp_path / "contraction-claims.parquet")) == 3
    assert read_about(out)["about"]["scale"] == "tiny" and "means over 2 untrained models" in capsys.readouterr().out
    with pytest.raises(InputError, match="seeds"):
        main(["--seeds", "1"])
