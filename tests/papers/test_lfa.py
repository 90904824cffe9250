"""Paper LFA over seeds: planted numbers whose verdicts follow on paper, and the command on tiny runs."""

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import papers.lfa_measure
import papers.lfa_runs
import tests.tiny
from models.checkpoint import load
from models.errors import InputError
from models.train import main as train
from models.training.data import evaluation_shards
from papers.figures import write_figures
from papers.lfa import main
from papers.lfa_claims import claims, judge_order
from papers.lfa_figure import figure
from papers.lfa_printed import BOUNDS, ORDERS, PRINTED, SETUP
from papers.lfa_runs import PRESETS, open_runs
from papers.lfa_seeds import architectures, comparisons, with_reference
from papers.printed import Bound, Order, number
from papers.seeds import estimate
from papers.verdicts import direction, judge_bound, size, verdicts
from tests.conftest import ROOT
from tests.papers.pages import NAN, changed, planted, unexplained

PAPER = ROOT.parent / "shared" / "papers" / "001_622b69835ff408ab.txt"
FAST = ["--k", "1", "--documents", "4", "--resamples", "100", "--static", "none", "--device", "cpu"]


# ---- the rule ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.1, 0.3, "holds"),
        (-0.3, -0.1, "opposite"),
        (-0.1, 0.3, "not resolved at n=3 seeds"),
        (0.0, 0.3, "not resolved at n=3 seeds"),
        (-0.3, 0.0, "not resolved at n=3 seeds"),
    ],
)
def test_direction_follows_from_the_interval(low: float, high: float, verdict: str) -> None:
    assert direction(low, high, "3") == verdict


def test_direction_without_an_interval_says_why() -> None:
    assert direction(NAN, NAN, "1", "one seed of cfm") == "undefined: one seed of cfm"
    with pytest.raises(ValueError, match="reason"):
        direction(NAN, NAN, "1")
    with pytest.raises(ValueError, match="turned round"):
        direction(0.3, 0.1, "3")


def test_size_says_where_the_printed_difference_lies() -> None:
    assert size(0.2, 0.1, 0.3) == "printed value inside"
    assert size(0.2, 0.3, 0.4) == "larger than printed"
    assert size(0.2, -0.1, 0.1) == "smaller than printed"
    assert size(NAN, 0.1, 0.3) == size(0.2, NAN, NAN) == ""


def test_an_order_is_judged_by_welchs_interval() -> None:
    lfa, std = [0.20, 0.23, 0.29], [0.05, 0.11, 0.10]
    row = judge_order(
        Order("pds.max.L5", "lfa", "std-t", ""), planted({("lfa", "pds.max.L5"): lfa, ("std-t", "pds.max.L5"): std})
    )
    test = stats.ttest_ind(lfa, std, equal_var=False)
    low, high = test.confidence_interval(0.95)
    assert (row["ci_low"], row["ci_high"], row["p"]) == pytest.approx((low, high, test.pvalue))
    assert (row["direction"], row["size"]) == ("holds", "printed value inside")  # printed 0.276 − 0.058
    turned = judge_order(
        Order("pds.max.L5", "lfa", "std-t", ""), planted({("lfa", "pds.max.L5"): std, ("std-t", "pds.max.L5"): lfa})
    )
    assert (turned["direction"], turned["size"]) == ("opposite", "")


def test_a_bound_is_judged_by_students_interval_on_its_side() -> None:
    seeds = [0.10, 0.13, 0.12]
    table = planted({("lfa", "pds.max.L5"): seeds})
    above = judge_bound(Bound("pds.max.L5", "lfa", "above", "0.075", "", ""), table)
    test = stats.ttest_1samp(seeds, 0.075)
    low, high = test.confidence_interval(0.95)
    assert (above["ci_low"], above["ci_high"]) == pytest.approx((low - 0.075, high - 0.075))
    assert above["p"] == pytest.approx(test.pvalue)
    assert above["direction"] == "holds"
    assert judge_bound(Bound("pds.max.L5", "lfa", "below", "0.075", "", ""), table)["direction"] == "opposite"
    assert judge_bound(Bound("pds.max.L5", "lfa", "below", "0.12", "", ""), table)["direction"].startswith("not res")


def test_seeds_that_all_give_one_number_are_judged_by_it() -> None:
    order = Order("loss", "cfm", "lfa", "")
    for cfm, verdict in ((2.0, "holds: the same at n=2 seeds"), (1.5, "opposite: the same at n=2 seeds"),
                         (1.8, "not resolved at n=2 seeds")):  # fmt: skip
        row = judge_order(order, planted({("cfm", "loss"): [cfm] * 2, ("lfa", "loss"): [1.8] * 2}))
        assert row["direction"] == verdict and np.isnan([row["ci_low"], row["p"]]).all()
    row = judge_bound(Bound("loss", "lfa", "below", "1.9", "", ""), planted({("lfa", "loss"): [1.8] * 3}))
    assert row["direction"] == "holds: the same at n=3 seeds" and "without spread" in row["undefined"]


def test_one_seed_no_run_and_no_head_are_undefined() -> None:
    order = Order("loss", "cfm", "lfa", "")
    one = planted({("cfm", "loss"): [2.0], ("lfa", "loss"): [1.8, 1.9]})
    assert judge_order(order, one)["direction"] == "undefined: one seed of cfm"
    assert judge_order(order, planted({("lfa", "loss"): [1.8, 1.9]}))["direction"] == "undefined: no run of cfm"
    lost = planted({("cfm", "loss"): [NAN, NAN], ("lfa", "loss"): [1.8, 1.9]})
    assert judge_order(order, lost)["direction"] == "undefined: no head"
    assert judge_bound(Bound("loss", "cfm", "above", "1", "", ""), one)["direction"] == "undefined: one seed of cfm"


def test_parameters_are_exact() -> None:
    table = planted({("lfa", "parameters"): [3e6], ("cfm", "parameters"): [2e6, 2e6]})
    row = judge_order(Order("parameters", "lfa", "cfm", ""), table)
    assert (row["direction"], row["difference"], row["ci_low"], row["ci_high"]) == ("holds", 1e6, 1e6, 1e6)


def test_holm_over_the_table_of_claims_and_the_count_of_verdicts() -> None:
    table = claims(planted({
        ("std-t", "loss"): [1.0, 1.1, 1.2], ("lfa", "loss"): [1.5, 1.6, 1.4], ("cfm", "loss"): [1.9, 2.0, 2.2]
    }))  # fmt: skip
    tested = table[table["p"].notna()].sort_values("p")
    assert list(tested["quantity"]) == ["loss"] * 2  # lfa > std-t, cfm > lfa
    smaller, larger = tested["p"]
    assert tested["p_holm"].to_numpy() == pytest.approx([2 * smaller, max(2 * smaller, larger)])
    counts = verdicts(table)
    assert counts.sum() == len(ORDERS) + len(BOUNDS)
    assert counts["holds"] == 2 and counts["undefined"] == len(table) - 2


# ---- seeds -------------------------------------------------------------------------------------


def test_the_interval_over_seeds_is_students() -> None:
    x = np.array([1.8, 1.9, 2.3])
    low, high = stats.t.interval(0.95, 2, x.mean(), x.std(ddof=1) / np.sqrt(3))
    found = estimate(x)
    assert (found["mean"], found["ci_low"], found["ci_high"]) == pytest.approx((2.0, low, high))
    assert estimate(x[:1])["why"]["ci_low"] == "one seed"
    assert estimate(np.array([2.0, 2.0]))["why"]["ci_low"] == "seeds without spread"


def test_a_seed_without_a_value_is_left_out_and_said() -> None:
    found = architectures(planted({("lfa", "sps"): [0.1, NAN, 0.3]})).set_index("preset").loc["lfa"]
    assert (found["n"], found["mean"], found["left_out"]) == (2, pytest.approx(0.2), "seed 1: no head")
    assert found["printed"] == "0.0058"


def test_comparison_with_the_control_and_holm_in_its_family() -> None:
    values = {("std-t", "loss"): [1.0, 1.1, 1.3], ("lfa", "loss"): [1.4, 1.5, 1.8], ("cfm", "loss"): [1.2, 1.3, 1.1]}
    found = comparisons(planted(values)).set_index("preset")
    for preset in ("lfa", "cfm"):
        a, b = np.array(values[preset, "loss"]), np.array(values["std-t", "loss"])
        assert found.loc[preset, "p"] == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue)
        pooled = np.sqrt((a.var(ddof=1) + b.var(ddof=1)) / 2)
        assert found.loc[preset, "d"] == pytest.approx((a.mean() - b.mean()) / pooled)
    smaller, larger = sorted(found["p"])
    assert sorted(found["p_holm"]) == pytest.approx([2 * smaller, max(2 * smaller, larger)])


def test_the_reference_threshold_is_that_of_std_t() -> None:
    heads = pd.DataFrame({
        "preset": ["std-t"] * 4 + ["lfa"] * 2, "seed": [0, 0, 1, 1, 0, 0], "pds": [0.0, 0.2, 0.1, 0.1, 0.16, 0.18]
    })  # fmt: skip
    found = with_reference(planted({("lfa", "loss"): [1.0]}), heads)
    over = found[found["quantity"] == "pds.over.reference"].set_index(["preset", "seed"])["value"]
    # μ+σ: 0.1 + 0.2/√2 and 0.1 + 0, mean 0.1707
    assert over.to_dict() == {("std-t", 0): 1, ("std-t", 1): 0, ("lfa", 0): 1}
    alone = with_reference(planted({("lfa", "loss"): [1.0]}), heads[heads["preset"] == "lfa"])
    lost = alone[alone["quantity"] == "pds.over.reference"].iloc[0]
    assert lost["value"] != lost["value"] and "no run of std-t" in lost["undefined"]


# ---- what the paper prints ---------------------------------------------------------------------


def test_printed_numbers_are_read_from_their_text() -> None:
    assert [number(t) for t in ("22.2M", "48.3%", "-0.158", "+0.00215", "7")] == pytest.approx(
        [22.2e6, 0.483, -0.158, 0.00215, 7]
    )
    with pytest.raises(ValueError, match="no printed number"):
        number("about 3")


def test_every_printed_number_stands_in_its_quotation_once_per_model() -> None:
    for one in (*PRINTED, *BOUNDS):
        assert one.text == "0" or one.text.removeprefix("-") in one.quote, one
        assert one.preset in PRESETS
    keys = [(p.preset, p.quantity) for p in PRINTED]
    assert len(keys) == len(set(keys))


@pytest.mark.skipif(not PAPER.is_file(), reason="no text of the paper beside the clone")
def test_every_quotation_stands_in_the_paper() -> None:
    def plain(text: str) -> str:
        return re.sub(r"\s+", " ", text)

    paper = plain(PAPER.read_text(encoding="utf-8"))
    for quote in {SETUP, *(one.quote for one in (*PRINTED, *BOUNDS))}:
        assert plain(quote) in paper, quote


# ---- the command on tiny runs ------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def _same_code() -> Iterator[None]:
    """Someone who edits the measuring code while the tests run would have everything measured again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(papers.lfa_runs, "sources", lambda: "the code")
        yield


@pytest.fixture(scope="module")
def runs(corpus: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Finished tiny runs: one seed of std-t, two of lfa."""
    folder = tmp_path_factory.mktemp("lfa")
    for name in ("std-t-0", "lfa-0", "lfa-1"):
        preset, seed = name.rsplit("-", 1)
        train(tests.tiny.arguments(corpus, folder / name, "--set", "n_ctx=160", "--seed", seed, preset=preset))
    return {path.name: path for path in folder.iterdir()}


@pytest.fixture(scope="module")
def out(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command writes for all of them."""
    folder = tmp_path_factory.mktemp("out") / "lfa"
    main([*map(str, runs.values()), "--out", str(folder), *FAST])
    return folder


def test_the_page_says_what_the_tables_say(out: Path, runs: dict[str, Path]) -> None:
    text = (out / "README.md").read_text(encoding="utf-8")
    tables = {path.stem: pd.read_parquet(path) for path in out.glob("*.parquet")}
    assert set(tables) == {
        "runs", "architectures", "comparisons", "claims", "heads", "rules", "suppression", "controls"
    }  # fmt: skip
    loss = tables["runs"][tables["runs"]["quantity"] == "loss"]
    assert len(loss) == 3
    for row in loss.itertuples():
        assert f"| {row.value:.4f} | {row.ci_low:.4f} … {row.ci_high:.4f} |" in text
    mean = tables["architectures"].set_index(["quantity", "preset"]).loc[("loss", "lfa")]
    assert mean["mean"] == pytest.approx(loss.loc[loss["preset"] == "lfa", "value"].mean())
    assert f"| {mean['mean']:.4f} ({mean['ci_low']:.4f} … {mean['ci_high']:.4f}); paper 1.9063 |" in text
    for row in tables["claims"].itertuples():
        assert f"| {row.claim} | `{row.quantity}` |" in text and row.direction in text
    assert "One seed only, so no interval: std-t." in text and "No run of d-cas, cfm." in text
    assert "undefined: one seed of std-t" in text and "undefined: no run of d-cas" in text
    for name in re.findall(r"`([\w.-]+\.(?:parquet|html|svg))`", text):
        assert (out / name).is_file()
    assert "python -m models.train lfa --data" in text


def test_the_quantities_are_those_of_the_instruments(out: Path, runs: dict[str, Path]) -> None:
    from interventions.sweep import document_losses

    found = pd.read_parquet(out / "runs.parquet")
    found = found[(found["preset"] == "lfa") & (found["seed"] == 1)].set_index("quantity")["value"]
    heads = pd.read_parquet(out / "heads.parquet")
    heads = heads[(heads["preset"] == "lfa") & (heads["seed"] == 1)]
    assert found["pds.max"] == heads["pds"].max()
    assert found["pds.over"] == (heads["pds"] > 0.075).sum()
    model = load(runs["lfa-1"])
    losses = document_losses(model, evaluation_shards(runs["lfa-1"], model._text(), None), [])
    assert found["loss"] == pytest.approx(losses.baseline.sum() / losses.tokens.sum())
    assert found["parameters"] == model.n_params()
    assert found["sps"] == pytest.approx(heads["sps"].mean())


def test_no_value_is_missing_without_a_reason(out: Path) -> None:
    # heads and rules hold columns of several probes; their own tests hold them
    assert unexplained(out, ("heads", "rules")) == {}


def test_what_was_measured_is_not_measured_again(
    out: Path, runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(papers.lfa_measure, "measure_run", never)
    main([str(runs["lfa-0"]), str(runs["std-t-0"]), "--out", str(tmp_path / "two"), *FAST])
    before, now = (pd.read_parquet(folder / "heads.parquet") for folder in (out, tmp_path / "two"))
    same = before[(before["seed"] == 0) & before["preset"].isin(["lfa", "std-t"])].reset_index(drop=True)
    pd.testing.assert_frame_equal(same, now)
    with pytest.raises(AssertionError, match="measured again"):
        main([str(runs["lfa-0"]), *FAST, "--seed", "1"])
    monkeypatch.setattr(papers.lfa_runs, "sources", lambda: "other code")
    with pytest.raises(AssertionError, match="measured again"):
        main([str(runs["lfa-0"]), *FAST])


# ---- bad input ---------------------------------------------------------------------------------


MIXED = {
    "steps": (changed("manifest.json", lambda m: m.update(step=24, steps=24)), "steps is 12 there, 24 here"),
    "scale": (changed("manifest.json", lambda m: m.update(scale="zoo")), "scale is tiny there, zoo here"),
    "data": (changed("manifest.json", lambda m: m["data"]["train"].update(corpus="f" * 64)), "training data is"),
    "validation": (
        changed("manifest.json", lambda m: m["data"]["valid"].update(corpus="f" * 64)),
        "validation data is",
    ),
    "tokenizer": (changed("manifest.json", lambda m: m["data"]["tokenizer"].update(sha256="f" * 64)), "tokenizer is"),
    "unfinished": (changed("manifest.json", lambda m: m.pop("outcome")), "is not finished"),
    "stopped": (changed("manifest.json", lambda m: m.update(step=6)), "is not finished"),
    "preset": (changed("manifest.json", lambda m: m.update(preset="pls")), "is a run of pls"),
    "same seed": (changed("manifest.json", lambda m: m.update(seed=0)), "are both lfa, seed 0"),
    "vocabulary": (
        changed("config.json", lambda c: c["model"].update(d_vocab=301)),
        "d_vocab is 300 there",
    ),
    "recipe": (changed("config.json", lambda c: c["training"].update(lr=1.0)), "training.lr is"),
    "architecture": (
        changed("config.json", lambda c: c["model"]["residual"].update(values="combined")),
        "residual.values is token there, combined here",
    ),
}


@pytest.mark.parametrize("case", MIXED)
def test_runs_that_do_not_belong_together_are_refused(case: str, runs: dict[str, Path], tmp_path: Path) -> None:
    change, message = MIXED[case]
    other = tmp_path / "lfa-1"
    shutil.copytree(runs["lfa-1"], other)
    assert len(open_runs([str(runs["lfa-0"]), str(other)])) == 2
    change(other)
    with pytest.raises(InputError, match=re.escape(message)):
        open_runs([str(runs["lfa-0"]), str(other)])


def test_bad_arguments_are_told_in_one_line(tmp_path: Path) -> None:
    for argv, message in (
        ([], "give run folders"),
        ([str(tmp_path / "none")], "is no run folder"),
        ([str(tmp_path), "--draws", "5"], "at least 20 random sets"),
        ([str(tmp_path), "--k", "0"], "--k, --batch-size: at least 1"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            main(argv)
        assert "\n" not in str(caught.value)


def test_without_kaleido_the_page_has_no_static_figure_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kaleido", None)
    table = planted({("lfa", "loss"): [1.8, 1.9], ("std-t", "loss"): [1.7, 1.75]})
    said = write_figures(figure(table, architectures(table)), tmp_path, "svg")
    assert (tmp_path / "figure.html").is_file() and not (tmp_path / "figure.svg").exists()
    assert said[1].startswith("no figure.svg: the static figure needs kaleido") and "\n" not in said[1]
