"""KROM's comparison: what is the loss's and what is decay's, on replays, on weights set by hand, on trained runs."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy import stats

from streamscope.cli.errors import InputError
from streamscope.models.train import main as train
from streamscope.papers.comparison.losses import Below, against, order
from streamscope.papers.comparison.report import rejudge
from streamscope.papers.comparison.seeds import estimate
from streamscope.papers.krom import main
from streamscope.papers.krom.claims import ARCHITECTURES, OF_CONTROL, ORDER
from streamscope.papers.krom.mixing import arm, factors, judged, without_gradient
from streamscope.papers.krom.report import COMPARISON as KROM
from streamscope.papers.krom.report import judged as all_tables
from streamscope.papers.krom.report import open_runs, read
from tests.papers.pages import assert_same_tables, short_page
from tests.tiny import arguments

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture(scope="module")
def runs(corpus, tmp_path_factory) -> dict[str, Path]:
    """Two seeds of gpt2 and kromhc, kromhc stored in bf16, also with stochastic rounding, kromhc from −2."""
    folder = tmp_path_factory.mktemp("krom")
    plan = {
        "gpt2-0": ("gpt2", "--seed", "0"),
        "gpt2-1": ("gpt2", "--seed", "1"),
        "kromhc-0": ("kromhc", "--seed", "0"),
        "kromhc-1": ("kromhc", "--seed", "1"),
        "bf16-0": ("kromhc", "--seed", "0", "--set", "residual.hc_dtype=bf16"),
        "random-0": ("kromhc", "--seed", "0", "--set", "residual.hc_dtype=bf16", "--rounding", "stochastic"),
        "b2-0": ("kromhc", "--seed", "0", "--set", "residual.b_res=-2"),
    }
    for name, (preset, *more) in plan.items():
        train(arguments(corpus, folder / name, *more, preset=preset))
    return {name: folder / name for name in plan}


@pytest.mark.slow
def test_replay_without_gradient_is_decay_alone(runs: dict) -> None:
    """b ← b (1 − η_t λ): warm-up of a tenth of the run, then a cosine to a tenth, by hand."""
    (run,) = open_runs([str(runs["kromhc-0"])])
    t, steps = run.config["training"], run.manifest["steps"]
    warmup, b = min(t["warmup"], max(1, steps // 10)), -8.0
    for step in range(steps):
        share = (step + 1) / warmup
        if step >= warmup:
            share = 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warmup) / (steps - 1 - warmup)))
        b *= 1 - 0.005 * share * 0.2
    assert without_gradient(run) == (0.0, pytest.approx(b, abs=1e-5))
    (stored,) = open_runs([str(runs["bf16-0"])])
    assert without_gradient(stored) == (0.0, -8.0), "a step of 8e-3 rounds away beside an ulp of 0.03"
    both = open_runs([str(runs["bf16-0"]), str(runs["random-0"])])
    assert [arm(one)["storage"] for one in both] == ["bf16", "bf16, stochastic"]
    assert without_gradient(both[1]) == (0.0, pytest.approx(b, abs=1e-5))


def test_what_the_loss_did_is_what_lies_beyond_the_replay(runs: dict, tmp_path: Path) -> None:
    """Logits set by hand: the replay's in the controls, 0.3 more in one factor, 0.2 less in another."""
    planted = tmp_path / "planted"
    shutil.copytree(runs["kromhc-0"], planted)
    (run,) = open_runs([str(planted)])
    keep, swap = without_gradient(run)
    weights = planted / "model.safetensors"
    with_step = {"step": str(run.manifest["steps"])}
    tensors = load_file(weights)
    names = [n for n in tensors if n.endswith("_hc.b.res")]
    for name in names:
        tensors[name] = torch.tensor([[keep, swap], [keep, swap]])
    tensors["blocks.1.attn_hc.b.res"] = torch.tensor([[keep, swap + 0.3], [keep + 0.2, swap]])
    save_file(tensors, weights, metadata=with_step)
    manifest = json.loads((planted / "manifest.json").read_text())
    del manifest["weights"]  # these are not those that the training ended with
    (planted / "manifest.json").write_text(json.dumps(manifest))
    found = factors(run).set_index(["module", "factor"])
    assert found.loc[("blocks.1.attn_hc", 0), "by_loss"] == pytest.approx(0.3, abs=1e-5)
    assert found.loc[("blocks.1.attn_hc", 1), "by_loss"] == pytest.approx(-0.2, abs=1e-5)
    rest = found.drop(index=[("blocks.1.attn_hc", 0), ("blocks.1.attn_hc", 1)])
    assert rest["by_loss"].abs().max() < 1e-5
    assert not found.loc[("blocks.0.attn_hc", 0), "acts"] and found.loc[("blocks.1.attn_hc", 0), "acts"]
    assert found.loc[("blocks.1.attn_hc", 0), "swap"] == pytest.approx(1 / (1 + math.exp(keep - swap - 0.3)), rel=1e-4)


def test_losses_are_compared_seed_by_seed() -> None:
    """Differences −.1 and −.3 by hand: mean −.2, t interval of one degree of freedom."""
    rows = pd.DataFrame(
        {
            "preset": ["gpt2", "gpt2", "canon", "canon"], "seed": [0, 1, 1, 0], "loss": [5.0, 6.0, 5.7, 4.9],
            "parameters": 10,
        }
    )  # fmt: skip
    table = against(rows, "gpt2", {"gpt2": 6.0, "canon": 5.9}).set_index("preset")
    row = table.loc["canon"]
    assert row["difference"] == pytest.approx(-0.2) and row["printed_difference"] == pytest.approx(-0.1)
    half = 12.7062 * 0.1  # t of 1 degree of freedom times s/√2
    assert (row["ci_low"], row["ci_high"]) == (
        pytest.approx(-0.2 - half, abs=1e-3),
        pytest.approx(-0.2 + half, abs=1e-3),
    )
    assert row["all_seeds"] == "2 of 2" and "order" not in table, "no verdict without a correction"
    assert (row["loss"], row["loss_high"]) == (pytest.approx(5.3), pytest.approx(5.3 + 12.7062 * 0.4, abs=1e-3))
    sd = 0.8 / math.sqrt(2)
    ends = [sd / math.sqrt(stats.chi2.ppf(q, 1)) for q in (0.975, 0.025)]
    assert [row[f"loss_sd{end}"] for end in ("", "_low", "_high")] == pytest.approx([sd, *ends])
    alone = against(rows[rows["seed"] == 0], "gpt2", {}).set_index("preset").loc["canon"]
    assert math.isnan(alone["loss_low"]) and math.isnan(alone["loss_sd"]) and "loss_sd" in alone["undefined"]
    assert "the control itself" in table.loc["gpt2", "undefined"]


def test_a_loss_is_compared_with_the_control_that_is_printed_beside_it() -> None:
    """kromhc's 5.92 stands in a caption with 6.01 for the control, whose 6.016 is of another run."""
    rows = planted_losses(gpt2=[6.0, 6.1], kromhc=[5.9, 6.0])
    found = against(rows, "gpt2", ARCHITECTURES, OF_CONTROL).set_index("preset")
    assert found.loc["kromhc", "printed_difference"] == pytest.approx(-0.09)


def planted_losses(**losses: list[float]) -> pd.DataFrame:
    """Losses over seeds 0, 1, …"""
    return pd.DataFrame(
        [
            {"preset": preset, "seed": seed, "loss": x, "parameters": 10, "tokens": 100}
            for preset, values in losses.items()
            for seed, x in enumerate(values)
        ]
    )


def test_the_order_is_judged_pair_by_pair_with_one_correction() -> None:
    """Three seeds: a clear pair, one with a seed against it, one within .01 nats, and one that is withdrawn."""
    rows = planted_losses(
        a=[4.0, 4.1, 4.2], b=[4.5, 4.61, 4.69], c=[4.505, 4.611, 4.699], d=[4.6, 4.5, 4.8],
    )  # fmt: skip
    claims = [
        Below("a", "b", (4.0, 4.5), "Table 1"), Below("b", "c", (4.5, 4.6), "Table 1"),
        Below("c", "d", (4.6, 4.7), "Table 1"), Below("a", "d", (4.0, 4.1), "Table 1", "withdrawn: planted"),
        Below("a", "absent", (4.0, 4.1), "Table 1"),
    ]  # fmt: skip
    found = order(rows, claims).set_index("claim")
    assert len(found) == 4, "a preset that was not trained has no claim"
    p = {
        f"{x} < {y}": stats.ttest_rel(*(rows[rows["preset"] == z]["loss"] for z in (y, x))).pvalue
        for x, y in (("a", "b"), ("b", "c"), ("c", "d"))
    }
    for rank, claim in enumerate(sorted(p, key=lambda c: p[c])):  # Holm: times 3, 2, 1
        assert found.loc[claim, "p"] == pytest.approx(p[claim], rel=1e-6)
        if rank == 0:
            assert found.loc[claim, "p_holm"] == pytest.approx(3 * p[claim], rel=1e-6)
    assert found.loc["a < b", "direction"] == "holds"
    assert (found["size"] == "").all(), "no size of losses on other text"
    assert found.loc["b < c", "direction"] == "not resolved at n=3 seeds"
    assert found.loc["c < d", ["direction", "against"]].tolist() == ["not resolved at n=3 seeds", "1"]
    assert found.loc["a < d", "direction"] == "withdrawn: planted" and pd.isna(found.loc["a < d", "p"])
    close = order(planted_losses(a=[4.0, 4.1, 4.2], b=[4.004, 4.105, 4.206]), claims[:1])
    assert close["direction"].tolist() == ["negligible: within ±0.01"]


def test_two_seeds_of_which_one_contradicts_do_not_hold_the_blogs_order() -> None:
    """The losses of results/krom_textbooks: an uncorrected interval called three of four pairs the same."""
    rows = planted_losses(
        gpt2=[5.2490, 5.2439], canon=[4.9715, 4.9312], kromhc=[5.0411, 5.0470], kromcanon=[4.9282, 4.9447]
    )
    found = order(rows, ORDER).set_index("claim")
    assert found.loc["kromcanon < canon", ["direction", "against"]].tolist() == ["not resolved at n=2 seeds", "1"]
    others = found.drop(index=["kromcanon < canon", "canon < kromhc"])
    assert set(others["direction"]) == {"not resolved at n=2 seeds, corrected"} and set(others["alone"]) == {"holds"}
    assert found.loc["canon < kromhc", "direction"].startswith("no claim: the blog prints both orders")


def test_factors_that_can_act_are_counted_by_what_they_do() -> None:
    """Swaps of .05, .02, .004 where decay alone gives .02, and .5 in a module that cannot act."""
    key = {
        "preset": "kromhc", "b_res": -8.0, "storage": "fp32", "optimizer": "adamw", "lr": 0.005, "decay": 0.2,
        "steps": 1000, "seed": 0,
    }  # fmt: skip
    rest = math.log(0.02 / 0.98)
    rows = [(0.05, True), (0.025, True), (0.02, True), (0.004, True), (0.5, False)]
    found = pd.DataFrame([{**key, "swap": s, "acts": acts, "gap_without_gradient": rest} for s, acts in rows])
    table = judged(pd.DataFrame([{**key, "streams": "mix", "distance_static": 1.0}]), found).iloc[0]
    assert (table["n_mix"], table["n_decay"], table["n_still"]) == (1, 2, 1)
    assert "streams" not in table and table["decay"] == 0.2
    bare = judged(pd.DataFrame([key]), found.assign(gap_without_gradient=-8.0)).iloc[0]
    assert (bare["n_mix"], bare["n_decay"], bare["n_still"]) == (3, 0, 1), "without decay the same swaps are the loss's"


@pytest.mark.parametrize("name", ["krom_textbooks", "krom_sgd_search"])
def test_the_published_verdicts_are_those_of_the_published_tables(name: str) -> None:
    _, found, _ = rejudge(KROM, RESULTS / name)
    for table in ("mixing", "order", "comparison"):
        own = found[table]
        if len(own):
            pd.testing.assert_frame_equal(pd.read_parquet(RESULTS / name / f"{table}.parquet"), own, check_dtype=False)


@pytest.mark.slow
def test_an_earlier_comparison_is_judged_again_without_its_runs(runs: dict, tmp_path: Path) -> None:
    """The tables of runs that are gone give what the runs gave."""
    first, second = tmp_path / "first", tmp_path / "second"
    main([*(str(path) for path in runs.values()), "--out", str(first)])
    for path in first.iterdir():
        if path.name == "README.md":
            continue
        second.mkdir(exist_ok=True)
        shutil.copy(path, second)
    main(["--tables", str(second), "--out", str(second)])
    assert_same_tables(first, second)
    assert len(pd.read_parquet(second / "ways.parquet")) == 5 * 2, "five hyper-connected runs, two evaluations"
    with pytest.raises(InputError, match="not both"):
        main([str(runs["gpt2-0"]), "--tables", str(second)])
    with pytest.raises(InputError, match="no folder of a comparison"):
        main(["--tables", str(runs["gpt2-0"])])
    with pytest.raises(InputError, match="is a file"):
        main(["--tables", str(second), "--out", str(second / "README.md")])


def test_the_command_writes_a_page_from_its_tables(runs: dict, tmp_path: Path, capsys) -> None:
    out = tmp_path / "krom"
    main([*(str(path) for path in runs.values()), "--out", str(out)])
    assert "python -m models.train {arm}" in short_page(out)
    mixing = pd.read_parquet(out / "mixing.parquet")
    assert sorted(mixing["storage"]) == ["bf16", "bf16, stochastic", "fp32", "fp32", "fp32"]
    frozen = mixing[mixing["storage"] == "bf16"].iloc[0]
    assert frozen["swap"] == pytest.approx(1 / (1 + math.exp(8)), rel=0.05)
    arms = pd.read_parquet(out / "arms.parquet").set_index("storage")
    frozen_arm = arms.loc["bf16"]
    assert frozen_arm["swap_without_gradient"] == pytest.approx(frozen_arm["start"], rel=1e-6)
    way = mixing.set_index("storage").loc["bf16", "by_loss"]  # where decay rounds away, all of the way is the loss's
    assert frozen_arm["by_loss"] == pytest.approx(way)
    assert math.isnan(frozen_arm["share"]) if abs(way) <= 1e-3 else frozen_arm["share"] == pytest.approx(1, abs=1e-6)
    compared = pd.read_parquet(out / "comparison.parquet").set_index("preset")
    assert compared.loc["kromhc", "pairs"] == 2, "bf16, with either rounding, and −2 are no part of it"
    loss = json.loads((runs["gpt2-0"] / "metrics.jsonl").read_text().splitlines()[-1])
    assert compared.loc["gpt2", "printed"] == ARCHITECTURES["gpt2"]
    assert (mixing[["n_mix", "n_decay", "n_still"]].sum(axis=1) == mixing["factors"]).all()
    assert mixing["n_mix"].sum() == 0, "twelve steps add nothing beyond decay, not even from −2"
    assert loss and "validation loss" in capsys.readouterr().out


def test_runs_that_were_measured_one_by_one_are_one_comparison(runs: dict, tmp_path: Path, capsys) -> None:
    """Measured when its training ended, a run has its folder; of one without streams there is nothing to draw."""
    names = ("gpt2-0", "gpt2-1", "kromhc-0", "kromhc-1")
    for i, name in enumerate(names):
        main([str(runs[name]), "--out", str(tmp_path / "each" / f"{i}"), "--no-html"])
        assert ("no figure: no run mixes streams" in capsys.readouterr().out) == name.startswith("gpt2"), name
    main(["--tables", str(tmp_path / "each"), "--out", str(tmp_path / "pooled"), "--no-html"])
    main([*(str(runs[name]) for name in names), "--out", str(tmp_path / "together"), "--no-html"])
    assert_same_tables(tmp_path / "together", tmp_path / "pooled")


def test_every_arm_has_its_curves(runs: dict, tmp_path: Path) -> None:
    """All runs by arm and seed, as they stand in their logs; the sentences are of them, the figure of the four."""
    main([*map(str, runs.values()), "--out", str(tmp_path), "--no-html", "--figure", "curves", "--format", "html"])
    found = pd.read_parquet(tmp_path / "curves.parquet")
    names = {
        "gpt2-0": "gpt2", "gpt2-1": "gpt2", "kromhc-0": "kromhc", "kromhc-1": "kromhc",
        "bf16-0": "kromhc -8, bf16, adamw, 12 steps",
        "random-0": "kromhc -8, bf16, stochastic, adamw, 12 steps", "b2-0": "kromhc -2, fp32, adamw, 12 steps",
    }  # fmt: skip
    for name, run in runs.items():
        own = found[(found["preset"] == names[name]) & (found["seed"] == int(name[-1]))]
        logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert dict(zip(own["step"], own["loss"], strict=True)) == {
            row["step"]: row["loss"] for row in logged if row["kind"] == "eval"
        }
    assert len(found) == 2 * len(runs)
    gaps = pd.read_parquet(tmp_path / "gaps.parquet")
    assert list(gaps["claim"]) == ["kromhc < gpt2"] * 2 and list(gaps["n"]) == [2, 2]
    page = (tmp_path / "krom-figure-curves.html").read_text()
    assert "standard deviation over 2 seeds" in page and "bf16, adamw" not in page


def test_doubles_and_other_recipes_are_refused(runs: dict, corpus, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(runs["kromhc-0"], copy)
    with pytest.raises(InputError, match="one arm and seed"):
        open_runs([str(runs["kromhc-0"]), str(copy)])
    other = tmp_path / "other"
    train(arguments(corpus, other, "--lr", "2e-3", preset="gpt2"))
    with pytest.raises(InputError, match=r"training\.lr"):
        open_runs([str(runs["kromhc-0"]), str(other)])
    with pytest.raises(InputError, match="give run folders"):
        main([])


def test_without_the_control_there_is_only_the_mixing(runs: dict) -> None:
    one = open_runs([str(runs["kromhc-0"])])
    found = all_tables(one, read(one), {})
    assert found["comparison"].empty and len(found["mixing"]) == 1 and len(found["factors"]) == 8


def _arms(**columns: list) -> pd.DataFrame:
    """Planted runs, one per value of the longest column; the rest as in the recipe."""
    n = max(map(len, columns.values()))
    usual = {
        "preset": "kromhc", "optimizer": "adamw", "storage": "fp32", "lr": 0.005, "decay": 0.2, "steps": 1000,
        "b_res": -8.0, "by_loss": -0.5, "by_loss_sd": 0.0, "by_loss_max": 0.75, "towards": 3, "factors": 22,
        "swap": 0.006, "swap_dynamic": 0.008, "swap_without_gradient": 0.0096, "n_mix": 1, "stream_cosine": 0.97,
        "shuffled_cosine": 0.96,
    }  # fmt: skip
    return pd.DataFrame({name: columns.get(name, [value] * n) for name, value in usual.items()})


BIASES = [-8.0, -8.0, -2.0, -2.0]


def test_what_is_no_hyper_connection_is_refused(runs: dict, tmp_path: Path) -> None:
    def changed(name: str, source: str, **residual: str) -> str:
        folder = shutil.copytree(runs[source], tmp_path / name)
        config = json.loads((folder / "config.json").read_text())
        config["model"]["residual"] = residual or config["model"]["residual"] | {"dyn_act": "none"}
        (folder / "config.json").write_text(json.dumps(config))
        return str(folder)

    with pytest.raises(InputError, match="residual token_factor: this comparison is of a single stream and of hyper"):
        open_runs([changed("token", "gpt2-0", kind="token_factor")])
    bare, usual = changed("none", "kromhc-0"), str(runs["kromhc-0"])
    assert [run.arm for run in open_runs([bare, usual])] == ["kromhc", "kromhc+dyn_act=none"]
    with pytest.raises(InputError, match="one arm and seed"):
        open_runs([bare, usual, str(shutil.copytree(bare, tmp_path / "again"))])


def test_how_many_orders_are_tested_does_not_depend_on_what_they_show() -> None:
    """Four orders without any effect, the two texts alike: one table in twenty has a verdict, not one in five."""
    rng, some = np.random.default_rng(0), 0
    for _ in range(200):
        mine = {preset: rng.normal(2, 0.1, 3) for preset in ("gpt2", "canon", "kromhc", "kromcanon")}
        rows = pd.DataFrame({"preset": p, "seed": s, "loss": x[s]} for p, x in mine.items() for s in range(3))
        there = [{"claim": f"{one.less} < {one.more}", **estimate(mine[one.more] - mine[one.less])} for one in ORDER]
        online = pd.DataFrame(there).rename(columns={"mean": "difference"})
        some += bool(order(rows, ORDER, online)["direction"].isin(["holds", "opposite"]).any())
    assert some / 200 < 0.1


def test_an_order_is_decided_only_where_both_texts_agree() -> None:
    rows = pd.DataFrame(
        {"preset": preset, "seed": seed, "loss": loss + 0.001 * seed * (preset == "canon")}
        for preset, loss in (("gpt2", 2.0), ("canon", 2.1)) for seed in range(3)
    )  # fmt: skip
    (claim,) = (one for one in ORDER if (one.less, one.more) == ("canon", "gpt2"))
    online = pd.DataFrame({"claim": ["canon < gpt2"], "difference": [-0.2], "ci_low": [-0.3], "ci_high": [-0.1]})
    assert order(rows, [claim]).iloc[0]["direction"] == "opposite" == order(rows, [claim], online).iloc[0]["direction"]
    for unlike in ({"ci_high": [0.1]}, {"ci_low": [0.1], "ci_high": [0.3]}):
        found = order(rows, [claim], online.assign(**unlike)).iloc[0]
        assert found["direction"].startswith("not resolved on both texts: -0.200")
        assert found["p"] == found["p_holm"] < 0.05, "a test of the family, whatever the other text says"
    alone = order(rows[rows["seed"] == 0], [claim], online.assign(ci_low=[np.nan], ci_high=[np.nan])).iloc[0]
    assert alone["direction"] == "undefined: one pair of seeds", "and no interval of the other text is written"
