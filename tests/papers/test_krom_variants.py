"""KROM's comparison with other residual topologies: what is defined for them, what is not and why, eight streams."""

import json
import math
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from streamscope.instruments.prompts.sets import contrast, encode
from streamscope.instruments.undefined_cells import reasons
from streamscope.models.checkpoint import load
from streamscope.models.train import main as train
from streamscope.papers.comparison.report import Tables
from streamscope.papers.comparison.runs import Run
from streamscope.papers.krom import main
from streamscope.papers.krom.mixing import CONTRASTS
from streamscope.papers.krom.report import judged, open_runs, read, standard
from streamscope.papers.krom.similarity import claims as claims_of_directions
from streamscope.papers.krom.variants import FROZEN, NO_FACTORS, claims, differences, pairs, streams
from streamscope.probes.stream_states import stream_states
from tests.papers.pages import assert_same_tables, unexplained
from tests.tiny import arguments

PLAN = {
    "gpt2": (), "kromhc": (), "hc": ("residual=hc",), "mhc": ("residual=mhc",), "lite": ("residual=mhc_lite",),
    "frozen": ("residual.freeze_res=true",), "n8": ("residual.n=8",),
}  # fmt: skip
ARMS = ["gpt2", "kromhc", "kromhc+freeze_res", "kromhc+hc", "kromhc+mhc", "kromhc+mhc_lite", "kromhc+n=8"]


@pytest.fixture(scope="module")
def runs(corpus, tmp_path_factory) -> dict[str, Path]:
    """One seed each of gpt2, kromhc, and kromhc with every other topology."""
    folder = tmp_path_factory.mktemp("variants")
    for name, sets in PLAN.items():
        words = [word for one in sets for word in ("--set", one)]
        words += ["--steps", "4", "--eval-every", "4", "--log-every", "1"]
        train(arguments(corpus, folder / name, *words, preset="gpt2" if name == "gpt2" else "kromhc"))
    return {name: folder / name for name in PLAN}


@pytest.fixture(scope="module")
def opened(runs: dict[str, Path]) -> list[Run]:
    return open_runs([str(path) for path in runs.values()])


@pytest.fixture(scope="module")
def found(opened: list[Run]) -> Tables:
    return judged(opened, read(opened), {})


def test_every_topology_is_an_arm_whose_loss_is_compared(found: Tables, opened: list[Run]) -> None:
    assert [run.arm for run in opened] == ARMS and all(map(standard, opened))
    assert found["losses"]["preset"].tolist() == found["comparison"]["preset"].tolist() == ARMS
    gaps = found["losses"].set_index("preset")["loss"]
    for r in found["comparison"].itertuples():
        assert r.preset == "gpt2" or r.difference == pytest.approx(gaps[r.preset] - gaps["gpt2"])
    sizes = found["losses"].set_index("preset")["parameters"]
    assert sizes["kromhc+freeze_res"] < sizes["kromhc"] < sizes["kromhc+mhc_lite"]


def test_the_training_text_at_the_end_is_read_from_the_logs(found: Tables, opened: list[Run]) -> None:
    rows = found["online"].set_index("preset")
    assert rows.index.tolist() == ARMS
    for run in opened:
        steps = run.manifest["steps"]
        log = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
        last = [row["loss"] for row in log if row["kind"] == "train" and row["step"] > 0.95 * steps]
        assert rows.loc[run.arm, "loss"] == pytest.approx(np.mean(last))
    gap = found["online-gaps"].set_index("claim").loc["kromhc < gpt2", "difference"]
    assert gap == pytest.approx(rows.loc["gpt2", "loss"] - rows.loc["kromhc", "loss"])


def test_swaps_are_of_kronecker_factors_and_the_others_say_why_they_have_none(found: Tables) -> None:
    assert found["mixing"]["preset"].tolist() == ["kromhc", "kromhc+n=8"]
    per = found["factors"].groupby(["preset", "module"]).size()
    assert set(per["kromhc"]) == {2} and set(per["kromhc+n=8"]) == {3}, "log2 of the number of streams"
    table = found["topologies"].set_index("preset")
    assert table.index.tolist() == ["kromhc+freeze_res", "kromhc+hc", "kromhc+mhc", "kromhc+mhc_lite"]
    why = {name: reasons(text) for name, text in table["undefined"].items()}
    assert {name: one["swap"] for name, one in why.items()} == {
        "kromhc+freeze_res": FROZEN, "kromhc+hc": NO_FACTORS, "kromhc+mhc": NO_FACTORS, "kromhc+mhc_lite": NO_FACTORS,
    }  # fmt: skip
    assert why["kromhc+freeze_res"]["distance_static"] == FROZEN and math.isnan(table["b_res"].iloc[0])
    assert table["b_res"].iloc[1:].isna().tolist() == [True, False, False], "HC begins as I, without a bias"
    assert table["streams"].tolist()[0] == "none to mix" and table[["loss", "stream_cosine"]].notna().all(axis=None)


def test_the_distance_of_mhc_is_that_of_its_weights(found: Tables, runs: dict[str, Path]) -> None:
    """Sinkhorn by a plain loop over rows and columns, of every module but the first, whose streams are equal."""
    model = load(runs["mhc"], device="cpu")
    distances = []
    for block in model.blocks:
        for module in (block.attn_hc, block.mlp_hc):
            M = module.b["res"].detach().double().exp().numpy()
            for _ in range(20):
                M = M / M.sum(0, keepdims=True)
                M = M / M.sum(1, keepdims=True)
            distances.append(math.sqrt(((M - np.eye(4)) ** 2).sum()))
    table = found["topologies"].set_index("preset")
    assert table.loc["kromhc+mhc", "distance_static"] == pytest.approx(np.mean(distances[1:]), rel=1e-4)


def test_the_cosine_of_eight_streams_is_the_mean_over_28_pairs(found: Tables, runs: dict[str, Path]) -> None:
    model = load(runs["n8"], device="cpu")
    assert model.tokenizer is not None
    cosines = []
    for names in CONTRASTS:
        a, b = [encode(s, model.tokenizer, model.cfg.n_ctx).tokens for s in contrast(*names)]
        with torch.no_grad():
            x, y = (stream_states(model, tokens, "mean").values.mean(0) for tokens in (a, b))
        for layer in x - y:
            r = [layer[s] / np.linalg.norm(layer[s]) for s in range(8)]
            cosines.append(np.mean([p @ q for p, q in combinations(r, 2)]))
    row = found["mixing"].set_index("preset").loc["kromhc+n=8"]
    assert row["stream_cosine"] == pytest.approx(np.mean(cosines), abs=1e-6)


def test_what_is_missing_has_its_reason(runs: dict[str, Path], tmp_path: Path) -> None:
    main([*(str(path) for path in runs.values()), "--out", str(tmp_path), "--no-html"])
    reasons = " ".join(pd.read_parquet(tmp_path / "topologies.parquet")["undefined"])
    assert NO_FACTORS in reasons and FROZEN in reasons
    assert unexplained(tmp_path) == {}
    told = pd.read_parquet(tmp_path / "differences.parquet")
    assert set(told["finding"]) == {"undefined: one pair of seeds"} and len(told) == 5 * 3
    assert not (tmp_path / "variants.parquet").exists(), "of eight streams the blog speaks from −2 alone"
    main(["--tables", str(tmp_path), "--out", str(tmp_path / "again"), "--no-html"])
    assert_same_tables(tmp_path, tmp_path / "again")


ROW = {"storage": "fp32", "optimizer": "adamw", "lr": 0.005, "decay": 0.2, "steps": 1000}


def planted(preset: str, b_res: float, losses: list[float], cosine: float = 0.99, **more: object) -> pd.DataFrame:
    """Runs over seeds 0, 1, … of an arm, the cosines a little apart from seed to seed."""
    return pd.DataFrame(
        [
            {"preset": preset, "b_res": b_res, **ROW, **more, "seed": s, "loss": x, "stream_cosine": cosine + 1e-4 * s,
             "shuffled_cosine": cosine - 0.01 - 2e-4 * s**2}
            for s, x in enumerate(losses)
        ]
    )  # fmt: skip


def test_an_arm_is_held_against_the_same_recipe() -> None:
    """From −2 against −2; what has no bias against −8; without a counterpart there is no row."""
    nan, same = float("nan"), [5.0, 5.1, 5.2]
    table = streams(
        pd.concat([planted("kromhc", -8.0, same), planted("kromhc", -2.0, [4.0, 4.1, 4.2], 0.97),
                   planted("kromhc+n=8", -2.0, [4.001, 4.102, 4.2001], 0.96),
                   planted("kromhc", -1.0, [1.0, 1.0, 1.0]), planted("kromhc+mhc", -1.0, same, storage="bf16")]),
        planted("kromhc+freeze_res", nan, [5.5, 5.61, 5.69]),
    )  # fmt: skip
    assert [(one.preset, one.b_res, two.b_res) for one, two in pairs(table)] == [
        ("kromhc+n=8", -2.0, -2.0), ("kromhc+freeze_res", pytest.approx(nan, nan_ok=True), -8.0),
    ]  # fmt: skip
    found = claims(table).set_index(["claim", "quantity"])
    eight = [name for name in found.index.levels[0] if name.startswith("kromhc+n=8")]
    assert eight == ["kromhc+n=8 -2, fp32, adamw, 1,000 steps > kromhc -2, fp32, adamw, 1,000 steps"]
    loss, cosine = (found.loc[(eight[0], quantity)] for quantity in ("loss", "cosine"))
    assert loss["direction"] == "negligible: within ±0.01" and loss["printed"] == "identical"
    assert loss["difference"] == pytest.approx((0.001 + 0.002 + 0.0001) / 3)
    assert cosine["difference"] == pytest.approx(-0.01) and cosine["paper"] == pytest.approx(-0.002)
    other = differences(table)
    assert other["claim"].str.startswith("kromhc+freeze_res, fp32").all() and "direction" not in other
    frozen = other.set_index("quantity").loc["loss"]
    assert frozen["finding"] == "more" and frozen["difference"] == pytest.approx((0.5 + 0.51 + 0.49) / 3)


def test_the_blogs_claims_of_directions_are_judged_on_its_own_topology() -> None:
    rows = [planted("kromhc", -8.0, [5.0, 5.1]), planted("kromhc+n=8", -8.0, [5.0, 5.1])]
    both, alone = claims_of_directions(pd.concat(rows)), claims_of_directions(rows[0])
    pd.testing.assert_frame_equal(both, alone)
