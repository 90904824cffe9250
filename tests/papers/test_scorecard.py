"""The scorecard: planted quantities whose verdicts are known, η² beside its definition, what is compared with what."""

import json
import re
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from threading import Thread

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from streamscope.cli.errors import InputError
from streamscope.cli.output_lock import one_at_a_time
from streamscope.cli.parse import parse
from streamscope.instruments.data import Documents
from streamscope.instruments.open_data import open_data
from streamscope.instruments.stats.estimators import holm
from streamscope.models import load
from streamscope.models.checkpoint import run_folder
from streamscope.models.hooks import capture, edit
from streamscope.papers import scorecard
from streamscope.papers.comparison.report import rejudge, write_page
from streamscope.papers.comparison.seeds import Rows
from streamscope.papers.figures.scorecard import runs as figure
from streamscope.papers.figures.style import Style
from streamscope.papers.scales.training import cells
from streamscope.papers.scorecard import orders
from streamscope.papers.scorecard.measure import _streams, given_back
from streamscope.papers.scorecard.moderated import differences, prior
from streamscope.papers.scorecard.options import Settings
from streamscope.papers.scorecard.report import (
    COMPARISON as SCORECARD,
)
from streamscope.papers.scorecard.report import (
    between,
    contrasts,
    control,
    eta2,
    judged,
    logged,
    open_runs,
)
from tests.conftest import ROOT

PAPERS = ROOT.parent / "shared" / "papers"
ARMS = ("std-t+positions=rope", "lfa", "cfm")


def planted(seeds: int = 4) -> pd.DataFrame:
    """Three arms: `apart` differs between them, `luck` between seeds alone, `never` in no run, `same` nowhere."""
    rng = np.random.default_rng(7)
    parts = []
    for place, arm in enumerate(ARMS):
        for seed in range(seeds):
            rows = Rows()
            rows.add("apart", "planted", "nats", place + 0.01 * rng.normal())
            rows.add("luck", "planted", "nats", rng.normal())
            rows.add("same", "planted", "nats", 2.0)
            rows.add("never", "planted", "nats", float("nan"), why="no such part")
            parts.append(pd.DataFrame(rows.rows).assign(preset=arm, seed=seed))
    return pd.concat(parts, ignore_index=True)


def test_eta2_is_one_less_the_share_within() -> None:
    rng = np.random.default_rng(0)
    values, codes = rng.normal(size=30), np.repeat([0, 1, 2], [5, 10, 15])
    within = sum(((values[codes == c] - values[codes == c].mean()) ** 2).sum() for c in range(3))
    assert eta2(values, codes) == pytest.approx(1 - within / ((values - values.mean()) ** 2).sum(), abs=1e-12)
    assert eta2(codes.astype(float), codes) == pytest.approx(1.0)


def test_what_is_between_arms_is_found_and_luck_is_not() -> None:
    found = between(planted()).set_index("quantity")
    assert found.loc["apart", "eta2"] > 0.99 and found.loc["apart", "p_holm"] <= 0.002
    assert found.loc["luck", "p"] > 0.05
    assert "the same in every run" in found.loc["same", "undefined"]
    assert "fewer than two arms" in found.loc["never", "undefined"]
    one = between(planted(seeds=1)).set_index("quantity")
    assert one["p"].isna().all() and "one seed of every arm" in one.loc["apart", "undefined"]


def test_dealing_out_runs_as_they_were_counts() -> None:
    """Two runs in each of three arms: one of fifteen ways to pair six runs is the one observed."""
    assert between(planted(seeds=2)).set_index("quantity").loc["apart", "p"] == pytest.approx(1 / 15, abs=0.03)


def test_what_later_layers_give_back() -> None:
    direct = np.array([-2.0, 1.0, 0.0])
    assert given_back(direct, -direct) == 1.0
    assert given_back(direct, np.array([0.0, 0.0, 5.0])) == 0.0, "a head without an effect has nothing to repair"
    assert given_back(direct, 2 * direct) == -2.0
    assert np.isnan(given_back(np.zeros(2), np.ones(2)))


def test_how_far_streams_lie_apart() -> None:
    """Beside 1 − N ‖s̄‖² / Σ_n ‖s_n‖² in a loop over tokens; 0 where all streams are the same; none with one."""
    model, data = load("stories/kromcanon-b2"), Documents(max_documents=2)
    hook = f"blocks.{model.config.n_layers - 1}.hook_streams_post"
    opened, shares = open_data(data, model), []
    for ids in opened.rows():
        with torch.no_grad(), capture(model, [hook]) as found:
            model(torch.tensor([ids[: model.config.n_ctx]]))
        s = found[hook][0].double().numpy()
        own = [1 - s.shape[1] * np.square(t.mean(0)).sum() / np.square(t).sum() for t in s]
        shares.append(np.mean(own))
    _streams(rows := Rows(), model, opened)
    assert rows.rows[0]["value"] == pytest.approx(np.mean(shares), abs=1e-9) and 0 < np.mean(shares) < 1
    with edit(model, {hook: lambda streams, hook: streams.mean(2, keepdim=True).expand_as(streams)}):
        _streams(same := Rows(), model, opened)
    assert same.rows[0]["value"] == pytest.approx(0, abs=1e-9)
    _streams(none := Rows(), load("stories/lfa"), None)
    assert "no parallel streams" in none.rows[0]["undefined"]


def test_what_an_architecture_sets_is_not_tested() -> None:
    rows = planted().query("quantity == 'same'")
    rows = rows.assign(value=rows["preset"].map(ARMS.index).astype(float))
    row = between(rows).iloc[0]
    assert np.isnan(row["p"]) and "the same for every seed of an arm" in row["undefined"]


def test_p_is_uniform_where_nothing_is_between_arms() -> None:
    rng = np.random.default_rng(1)
    low = 0
    for draw in range(40):
        values = rng.normal(size=9)
        rows = [{"quantity": "x", "unit": "nats", "preset": ARMS[i // 3], "value": v} for i, v in enumerate(values)]
        low += between(pd.DataFrame(rows), seed=draw)["p"].iloc[0] <= 0.2
    assert 2 <= low <= 15, "a fifth of 40"


def test_arms_are_held_against_the_control_where_arms_differ() -> None:
    """`apart` is tested, `luck` is not; the difference is of means; an arm like the control is not significant."""
    rows = planted()
    twin = rows[rows["preset"] == ARMS[0]].assign(preset="d-cas", value=lambda t: t["value"] + 0.002)
    found = contrasts(both := pd.concat([rows, twin]), ARMS[0], ["apart"]).set_index(["arm", "quantity"])
    means = both[both["quantity"] == "apart"].groupby("preset")["value"].mean()
    row = found.loc[("cfm", "apart")]
    assert row["mean"] == pytest.approx(means["cfm"] - means[ARMS[0]]) and row["ci_low"] < row["mean"] < row["ci_high"]
    assert row["side"] == "higher" and found.loc[("d-cas", "apart"), "side"] == ""
    assert (
        np.isnan(found.loc[("lfa", "luck"), "p"]) and "not shown to differ" in found.loc[("lfa", "luck"), "undefined"]
    )
    assert set(found["control"]) == {ARMS[0]} and ARMS[0] not in found.index.get_level_values("arm")
    lone = contrasts(rows[rows["preset"] != ARMS[0]], ARMS[0], ["apart"])
    assert lone["mean"].isna().all() and lone["undefined"].str.contains("not measured on std-t").all()
    flat = contrasts(planted().query("quantity == 'same'"), ARMS[0], ["same"])
    assert flat["undefined"].str.contains("a common spread needs").all() and (flat["side"] == "").all()


def test_a_prior_of_variances_is_found_again() -> None:
    """s² of 4,000 arms, d 2, whose σ² are drawn with d₀ = 5 and s₀² = .3; of one σ² there is no d₀."""
    rng = np.random.default_rng(0)
    df = np.full(4000, 2.0)
    true = 5 * 0.3 / rng.chisquare(5, 4000)
    s0, d0 = prior(true * rng.chisquare(2, 4000) / 2, df)
    assert s0 == pytest.approx(0.3, rel=0.1) and d0 == pytest.approx(5, rel=0.15)
    same = rng.chisquare(2, 4000) / 2
    s0, d0 = prior(same, df)
    assert (np.isinf(d0) and s0 == pytest.approx(same.mean())) or d0 > 50


def test_a_moderated_t_by_hand() -> None:
    """One arm in plain numbers, with seeds of unequal number; an arm of one seed has the spread of all."""
    rng = np.random.default_rng(3)
    arms = {f"a{i}": rng.normal(0, 0.2 + 0.4 * i, size=3 + i % 2) for i in range(12)} | {"one": np.array([9.0])}
    found = differences(arms, "a0").set_index("arm")
    spread = np.array([x.var(ddof=1) for x in list(arms.values())[:-1]])
    s0, d0 = prior(spread, np.array([len(x) - 1.0 for x in list(arms.values())[:-1]]))
    v0, v1 = ((d0 * s0 + (len(arms[a]) - 1) * arms[a].var(ddof=1)) / (d0 + len(arms[a]) - 1) for a in ("a0", "a1"))
    t = (arms["a1"].mean() - arms["a0"].mean()) / np.sqrt(v0 / 3 + v1 / 4)
    assert np.isfinite(d0) and found.loc["a1", "p"] == pytest.approx(2 * stats.t.sf(abs(t), d0 + 2), rel=1e-9)
    t = (9 - arms["a0"].mean()) / np.sqrt(v0 / 3 + s0)
    assert found.loc["one", "p"] == pytest.approx(2 * stats.t.sf(abs(t), d0), rel=1e-9)
    assert (found["p_holm"] >= found["p"]).all()


def test_arms_alike_seldom_differ_from_the_control_and_one_apart_is_found() -> None:
    """22 arms, three seeds, spreads of a wide prior: any arm passes in some 5 % of tables, with Welch's degrees of
    freedom in over 10 %; of arms that are 6 σ₀ apart .3 to .9 are found."""
    rng = np.random.default_rng(2)
    false = found = welch = 0
    for _ in range(400):
        spread = np.sqrt(2.5 / rng.chisquare(2.5, 23))
        values = rng.normal(size=(23, 3)) * spread[:, None]
        values[1] += 6
        p = differences({str(i): x for i, x in enumerate(values)}, "0")["p_holm"]
        false, found = false + (p[1:] <= 0.05).any(), found + (p[0] <= 0.05)
        s0, d0 = prior(own := values.var(1, ddof=1), np.full(23, 2.0))
        v = np.full(23, s0) if np.isinf(d0) else (d0 * s0 + 2 * own) / (d0 + 2)
        t = np.abs(values.mean(1) - values[0].mean()) / np.sqrt((v + v[0]) / 3)
        df = (d0 + 2) * (v + v[0]) ** 2 / (v**2 + v[0] ** 2)
        welch += bool((holm(2 * stats.t.sf(t, df)[1:])[1:] <= 0.05).any())
    assert false / 400 < 0.09 and welch / 400 > 0.1 and 0.3 < found / 400 < 0.9


def test_written_and_judged_again(tmp_path: Path) -> None:
    runs = open_runs(["stories/lfa", "stories/std-t-rope"])
    assert [run.arm for run in runs] == ["std-t+positions=rope", "lfa"]
    quantities = planted(seeds=3).query("preset != 'cfm'").reset_index(drop=True)
    about = {
        "argv": "python -m papers.scorecard a b", "started": "2026-01-01T00:00:00Z", "commit": "c", "device": "cpu",
        "versions": {}, "settings": asdict(Settings()), "control": ARMS[0],
    }  # fmt: skip
    tables = judged(quantities, ARMS[0])
    (old := tmp_path / "losses.parquet").write_text("of an earlier comparison, whose table has no rows now")
    written = tables | {"losses": pd.DataFrame()}
    options = scorecard.Options(out=tmp_path, static="none", html=False)
    with one_at_a_time(tmp_path):  # as another command does that writes there
        page = Thread(target=write_page, args=(SCORECARD, runs, written, about, options), daemon=True)
        page.start()
        time.sleep(0.5)
        assert list(tmp_path.iterdir()) == [old], "it waits"
    page.join()
    assert not old.exists()
    assert "python -m papers.scorecard" in (tmp_path / "README.md").read_text()
    read, found, _ = rejudge(SCORECARD, tmp_path)
    assert [run.arm for run in read] == [run.arm for run in runs]
    for name, table in tables.items():
        pd.testing.assert_frame_equal(found[name].reset_index(drop=True), table.reset_index(drop=True))


def test_a_panel_of_one_value_has_an_axis_around_it() -> None:
    drawn = figure(judged(planted(), ARMS[0]), Style("page"))
    names = [a.text.split("<br>")[0] for a in drawn.layout.annotations]
    assert names == ["apart", "luck", "same"], "what no run has is no panel"
    low, high = drawn.layout.xaxis3.range
    assert low < 2 < high and high - low > 0.1 and drawn.layout.xaxis.range is None


def test_what_is_not_comparable_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "cfm"
    shutil.copytree(run_folder("stories/cfm"), other)
    manifest = json.loads((other / "manifest.json").read_text())
    manifest["data"]["train"]["corpus"] = "0" * 64  # other texts
    (other / "manifest.json").write_text(json.dumps(manifest))
    for argv, line in (
        (["stories/lfa", "stories/lfa"], "are both lfa, seed 0"),
        (["stories/lfa", str(other)], "cannot be compared"),
        (["stories/lfa", "--documents", "1"], "documents must be at least 2"),
        (["--scale", "tiny", "stories/lfa"], "trains the runs itself"),
        (["--tables", str(tmp_path)], "is no folder of a comparison"),
    ):
        with pytest.raises(InputError, match=line):
            scorecard.main(argv)
    with pytest.raises(InputError, match="unknown --control 'std-t'"):
        control(open_runs(["stories/lfa", "stories/cfm"]), "std-t")
    control(open_runs(["stories/lfa"]), "std-t")  # measured alone, to be pooled


@pytest.mark.parametrize("arm", ["other", "alone"])
def test_rows_of_one_arm_are_judged_without_a_control(arm: str) -> None:
    alone = planted_values({("alone", "loss"): [1.0, 2.0], ("alone", "entropy"): [0.5, 0.6]})
    found = judged(alone, arm)
    assert (found["against"]["side"] == "").all() and found["between"]["p"].isna().all()
    assert len(found["arms"]) == 2


@pytest.mark.parametrize("scale", ["eighth", "zoo", "small"])
def test_its_grid_has_every_preset_and_one_rule(scale: str) -> None:
    """The recipe as training takes it, and how weights begin: what a preset has of its own is overruled as well."""
    from streamscope.models.config.presets import PRESETS, preset
    from streamscope.models.config.serialization import parse_set, to_dict
    from streamscope.models.training.config import Options, with_recipe

    found = cells("scorecard", scale, 1)
    assert {cell.argv[0] for cell in found} == set(PRESETS)
    rules = set()
    for cell in found:
        name, *words = cell.argv
        options = parse(Options, [name, *words], "")
        size = options.scale
        init = to_dict(preset(name, size, **parse_set(list(options.set))))["init"]
        rules.add(json.dumps([asdict(with_recipe(options.training, name, size)), init], sort_keys=True, default=str))
    assert len(rules) == 1


def test_every_kind_of_residual_stream_has_an_arm_with_head_gates() -> None:
    """And no gate is put where the preset has its own."""
    from streamscope.models.config.presets import PRESETS, preset

    gated = {cell.argv[0] for cell in cells("scorecard", "zoo", 1) if "attention.gate=gate" in cell.argv}
    assert {preset(name).residual.kind for name in gated} == {preset(name).residual.kind for name in PRESETS}
    assert all(preset(name).attention.gate is None and preset(name, **GATED).attention.gate for name in gated)


GATED = {"attention.gate": "gate"}


def test_speed_is_that_of_the_log_and_no_verdict_rests_on_it(tmp_path: Path) -> None:
    shutil.copytree(run_folder("stories/cfm"), tmp_path / "cfm")
    log = tmp_path / "cfm" / "metrics.jsonl"
    told = [json.loads(line) for line in log.read_text().splitlines()]
    trained = [row for row in told if row["kind"] == "train"][:4]
    for row, rate in zip(trained, (1.0, 900.0, 800.0, 700.0), strict=True):
        row["tokens_per_second"] = rate
    log.write_text("".join(json.dumps(row) + "\n" for row in told if row["kind"] != "train" or row in trained))
    (run,) = open_runs([str(tmp_path / "cfm")])
    (row,) = logged(run).to_dict("records")
    assert (row["quantity"], row["value"], row["n"], row["detail"]) == ("speed", 750, 4, run.manifest["device"])
    log.unlink()
    assert "no training log has it" in logged(run).iloc[0]["undefined"]
    both = planted().replace({"quantity": {"apart": "speed"}})
    judgement = between(both).set_index("quantity").loc["speed"]
    assert np.isnan(judgement["p"]) and np.isnan(judgement["eta2"]) and "of the machine" in judgement["undefined"]
    assert (judged(both, ARMS[0])["against"].set_index("quantity").loc["speed", "side"] == "").all()


@pytest.mark.slow
def test_two_bundled_models(tmp_path: Path) -> None:
    argv = ["stories/std-t-rope", "stories/lfa", "--documents", "6", "--pairs", "4", "--modes", "300"]
    scorecard.main([*argv, "--out", str(tmp_path), "--no-html", "--static", "none"])
    runs = pd.read_parquet(tmp_path / "runs.parquet")
    assert len(runs["quantity"].unique()) == len(runs) / 2 > 25
    assert set(runs[runs["value"].isna()]["quantity"]) >= {"mixing", "streams.spread"}
    assert (runs.loc[runs["quantity"] == "speed", "value"] > 100).all()


def test_orders_that_papers_claim_are_judged_by_pairs_of_seeds_and_by_the_task_they_need() -> None:
    """Specialization apart by .3 in every pair; Top-1 apart, of models that copy and of models that do not."""
    values = {
        ("pls", "specialization"): [0.5, 0.52, 0.51], ("c2", "specialization"): [0.2, 0.219, 0.212],
        ("dst-ind", "top1.keys"): [0.5, 0.51, 0.52], ("dst-dense", "top1.keys"): [0.2, 0.211, 0.219],
        ("dst-ind", "copying"): [1.0, 1.1, 1.05], ("dst-dense", "copying"): [1.0, 1.2, 1.1],
        ("lfa", "hydra"): [0.5, 0.5, 0.5],
    }  # fmt: skip
    found = orders.judged(orders_of := planted_values(values)).set_index("claim")
    assert found.loc["pls > c2", "direction"].tolist() == ["holds", "undefined: not measured on pls"]
    top = found[found["quantity"] == "top1.keys"].loc["dst-ind > dst-dense"]
    assert top["direction"] == "holds" and top["difference"] == pytest.approx(0.3)
    orders_of.loc[orders_of["quantity"] == "copying", "value"] -= 1.0
    lost = orders.judged(orders_of)
    said = lost.loc[lost["quantity"] == "top1.keys", "direction"].item()
    assert said == "the model cannot do the task: copying of dst-ind and of dst-dense is not shown above 0"
    assert not len(orders.judged(planted())), "no order about arms that are not there"


@pytest.mark.skipif(not PAPERS.is_dir(), reason="no texts of the papers beside the clone")
def test_every_order_is_a_sentence_of_a_paper() -> None:
    texts = [re.sub(r"\s+", " ", path.read_text(encoding="utf-8")).replace("’", "'") for path in PAPERS.glob("*.txt")]
    for order in orders.ORDERS:
        assert any(order.quote in text for text in texts), order


def planted_values(of: dict[tuple[str, str], list[float]]) -> pd.DataFrame:
    parts = []
    for (arm, name), values in of.items():
        for seed, value in enumerate(values):
            rows = Rows()
            rows.add(name, "planted", "nats", value)
            parts.append(pd.DataFrame(rows.rows).assign(preset=arm, seed=seed))
    return pd.concat(parts, ignore_index=True)
