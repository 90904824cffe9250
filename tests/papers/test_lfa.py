"""Paper LFA over seeds: planted numbers whose verdicts follow on paper, and the command on tiny runs."""

import json
import re
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

import streamscope.papers.lfa.measure
import streamscope.papers.lfa.report
import streamscope.papers.lfa.runs
import streamscope.probes.probe
import tests.tiny
from streamscope.cli.errors import InputError
from streamscope.instruments.prompts import align, load_suite
from streamscope.models.checkpoint import load
from streamscope.models.config.presets import preset as make
from streamscope.models.config.serialization import parse_set, to_dict
from streamscope.models.make import build
from streamscope.models.train import main as train
from streamscope.models.training.data import evaluation_shards
from streamscope.papers.comparison.printed import numbers
from streamscope.papers.comparison.report import write_figures
from streamscope.papers.comparison.runs import Run
from streamscope.papers.comparison.seeds import Rows
from streamscope.papers.comparison.verdicts import verdicts
from streamscope.papers.figures.lfa import arms
from streamscope.papers.figures.requests import draw, figures_of
from streamscope.papers.figures.style import Style
from streamscope.papers.lfa import Options, Settings, main
from streamscope.papers.lfa.claims import BOUNDS, ORDERS, architectures, claims, comparisons, contrast
from streamscope.papers.lfa.competence import competence, unable
from streamscope.papers.lfa.derived import DERIVED, bimodality, derived, with_reference
from streamscope.papers.lfa.runs import Arms, in_arms, open_runs
from streamscope.papers.scales.measured import sources
from streamscope.papers.scales.training import cells
from streamscope.probes.coreference import Coreference
from streamscope.probes.coreference.measure import summary
from streamscope.probes.probe import measure
from streamscope.text.tokenizer import Tokenizer
from tests.conftest import ROOT
from tests.papers.pages import NAN, assert_same_tables, changed, planted, short_page, unexplained

PAPER = ROOT.parent / "shared" / "papers" / "001_622b69835ff408ab.txt"
COMMITTED = ROOT / "results" / "lfa_tinystories"
FAST = ["--k", "1", "--documents", "4", "--resamples", "100", "--static", "none", "--device", "cpu"]


# ---- contrasts of two architectures ------------------------------------------------------------


def shifted(table: pd.DataFrame, preset: str, by: int) -> pd.DataFrame:
    """The table with other seeds of one preset."""
    return table.assign(seed=table["seed"] + by * (table["preset"] == preset))


def test_seeds_that_both_have_are_paired_and_others_are_compared_by_welch() -> None:
    lfa, std = [0.20, 0.23, 0.29], [0.05, 0.11, 0.10]
    table = planted({("lfa", "pds.max.L5"): lfa, ("std-t", "pds.max.L5"): std})
    for found, test in (
        (contrast(table, "pds.max.L5", "lfa", "std-t"), stats.ttest_rel(lfa, std)),
        (contrast(shifted(table, "lfa", 3), "pds.max.L5", "lfa", "std-t"), stats.ttest_ind(lfa, std, equal_var=False)),
    ):
        low, high = test.confidence_interval(0.95)
        assert (found.ci_low, found.ci_high, found.p) == pytest.approx((low, high, test.pvalue))
        assert found.difference == pytest.approx(np.mean(lfa) - np.mean(std)) and found.seeds == "3"
    assert contrast(table, "pds.max.L5", "lfa", "std-t").test == "paired by seed"
    assert contrast(shifted(table, "lfa", 3), "pds.max.L5", "lfa", "std-t").test == "Welch"
    flat = shifted(planted({("lfa", "pds.max.L5"): [0.2, 0.2], ("std-t", "pds.max.L5"): [0.1, 0.1]}), "lfa", 3)
    found = contrast(flat, "pds.max.L5", "lfa", "std-t")
    assert (found.why, found.difference) == ("seeds without spread", pytest.approx(0.1)) and np.isnan(found.p)


def test_what_all_seeds_share_vanishes_from_a_paired_contrast() -> None:
    order = [0.0, 0.5, -0.4]  # what the order of the data does to both
    lfa, std = np.array([1.0, 1.02, 1.01]) + order, np.array([0.9, 0.9, 0.9]) + order
    table = planted({("lfa", "loss"): list(lfa), ("std-t", "loss"): list(std)})
    assert contrast(table, "loss", "lfa", "std-t").ci_low > 0
    assert contrast(shifted(table, "lfa", 3), "loss", "lfa", "std-t").ci_low < 0


def test_one_seed_no_run_and_no_head_are_undefined() -> None:
    def verdict(table: pd.DataFrame) -> str:
        judged = claims(table).set_index(["claim", "quantity"])
        return str(judged.loc[("cfm > lfa", "loss"), "direction"])

    assert verdict(planted({("cfm", "loss"): [2.0], ("lfa", "loss"): [1.8, 1.9]})) == "undefined: one seed of cfm"
    assert (
        verdict(planted({("cfm", "loss"): [2.0, NAN], ("lfa", "loss"): [1.8, 1.9]})) == "undefined: one pair of seeds"
    )
    assert verdict(planted({("lfa", "loss"): [1.8, 1.9]})) == "undefined: no run of cfm"
    assert verdict(planted({("cfm", "loss"): [NAN, NAN], ("lfa", "loss"): [1.8, 1.9]})) == "undefined: no head"
    same = planted({("cfm", "loss"): [2.0, 2.1], ("lfa", "loss"): [1.75, 1.85]})
    assert verdict(same) == "holds: the same at n=2 seeds"


def test_parameters_are_exact() -> None:
    judged = claims(planted({("lfa", "parameters"): [3e6], ("cfm", "parameters"): [2e6, 2e6]}))
    row = judged[judged["quantity"] == "parameters"].iloc[2]
    assert (row["claim"], row["difference"], row["ci_low"], row["ci_high"]) == ("lfa > cfm", 1e6, 1e6, 1e6)
    assert row["direction"] == "holds: counted, not trained" and np.isnan(row["p"])


def test_what_is_counted_is_of_the_preset_itself_and_a_cost_may_be_a_gain() -> None:
    values = {("std-t", "parameters"): [9.0], ("std-t+rope+cln", "parameters"): [5.0], ("d-cas", "parameters"): [5.0]}
    row = claims(planted(values)).iloc[0]
    assert (row["claim"], row["difference"]) == ("std-t > d-cas", 4.0)
    gain = planted({("d-cas", "cost"): [-0.02, -0.021, -0.022]}).assign(unit="share of the loss", family="cost")
    found = architectures(gain).set_index("preset").loc["d-cas"]
    assert found["ci_low"] < found["mean"] < found["ci_high"] < 0


def test_one_family_one_correction() -> None:
    values = {("std-t", "loss"): [1.0, 1.1, 1.2], ("lfa", "loss"): [1.5, 1.61, 1.69], ("cfm", "loss"): [1.9, 2.0, 2.3],
              ("lfa", "sps"): [0.1, 0.2, 0.3], ("std-t", "sps"): [0.1, 0.3, 0.2]}  # fmt: skip
    judged = claims(planted(values))
    tested = judged[judged["p"].notna()].sort_values("p")
    assert list(tested["quantity"]) == ["loss"] * 2  # lfa > std-t, cfm > lfa; sps of lfa and std-t is no claim
    smaller, larger = tested["p"]
    assert tested["p_holm"].to_numpy() == pytest.approx([2 * smaller, max(2 * smaller, larger)])
    assert verdicts(judged).sum() == len(ORDERS) + len(BOUNDS)
    found = comparisons(planted(values), judged).set_index(["quantity", "preset"])
    claim = judged.set_index(["quantity", "claim"]).loc[("loss", "lfa > std-t")]
    assert tuple(found.loc[("loss", "lfa"), ["p", "p_holm"]]) == (claim["p"], claim["p_holm"])
    assert found.loc[("loss", "lfa"), "verdict"] == claim["direction"] == "holds"
    for key in (("loss", "cfm"), ("sps", "lfa")):  # no claims of the paper
        one = found.loc[key]
        assert one["p"] > 0 and np.isnan(one["p_holm"]) and one["verdict"].startswith("exploratory: not corrected")
    pooled = np.sqrt((np.var(values["lfa", "loss"], ddof=1) + np.var(values["std-t", "loss"], ddof=1)) / 2)
    assert found.loc[("loss", "lfa"), "d"] == pytest.approx(0.5 / pooled)


# ---- what is not judged ------------------------------------------------------------------------


def arm(preset: str, seed: int = 0, **parts: Any) -> Run:
    """A run of a preset, some of its parts changed."""
    manifest = {"preset": preset, "seed": seed, "scale": "tiny"}
    model = json.loads(json.dumps(to_dict(make(preset, "tiny", **parts))))
    return Run(Path(f"{preset}-{seed}"), preset, seed, manifest, {"model": model})


WITH_ROPE: dict[str, Any] = {"positions": "rope"}
WITH_BOTH: dict[str, Any] = {"positions": "rope", "norm": "channel"}


def test_std_t_with_rope_and_cln_differs_from_the_others_in_their_architecture_alone() -> None:
    for preset in ("d-cas", "lfa", "cfm"):
        assert Arms(in_arms([arm("std-t"), arm(preset)])).confounded(preset, "std-t") == (
            f"std-t has learned positions and LayerNorm, {preset} RoPE and CLN"
        )
        rope = Arms(in_arms([arm("std-t", **WITH_ROPE), arm(preset)]))
        assert rope.confounded("std-t+rope", preset) == f"std-t+rope has LayerNorm, {preset} CLN"
        assert Arms(in_arms([arm("std-t", **WITH_BOTH), arm(preset)])).confounded("std-t+rope+cln", preset) == ""
        for other in ("d-cas", "lfa", "cfm"):
            assert Arms(in_arms([arm(other), arm(preset)])).confounded(other, preset) == ""
    assert build("std-t", "tiny", **WITH_BOTH).n_params() == build("d-cas", "tiny").n_params()
    positions = 32 * 32  # the table of learned positions, context × width
    assert build("std-t", "tiny", norm="channel").n_params() == build("d-cas", "tiny").n_params() + positions


def test_the_arm_that_differs_least_is_the_control() -> None:
    runs = [arm("lfa"), arm("std-t"), arm("std-t", **WITH_ROPE)]
    assert Arms(in_arms(runs)).pair("lfa", "std-t") == ("lfa", "std-t+rope")
    assert Arms(in_arms([*runs, arm("std-t", **WITH_BOTH)])).pair("std-t", "lfa") == ("std-t+rope+cln", "lfa")
    learned = arm("lfa", positions="learned", norm="layer")
    assert Arms(in_arms([*runs, learned])).pair("lfa", "std-t") == ("lfa+learned+layer", "std-t")
    assert Arms(in_arms([*runs, learned, arm("cfm")])).pair("lfa", "cfm") == ("lfa", "cfm")
    assert Arms().pair("lfa", "std-t") == ("lfa", "std-t") and Arms().confounded("lfa", "std-t") == ""
    half = {"positions": "rope", "positions.fraction": 0.5}
    assert [run.arm for run in in_arms([arm("std-t", **half)])] == ["std-t+rope.fraction=0.5"]


def test_a_contrast_of_arms_that_differ_in_more_is_confounded_until_a_control_is_given() -> None:
    """The loss follows the positions alone: lfa seems better than std-t, and is not than std-t with RoPE and CLN."""
    gap = [0.0, 0.01, -0.01]
    values = {("std-t", "loss"): [3.0, 3.1, 3.2], ("lfa", "loss"): [2.8, 2.9, 3.0], ("d-cas", "loss"): [2.7, 2.75, 2.9],
              ("std-t", "parameters"): [9.0] * 3, ("d-cas", "parameters"): [8.0] * 3}  # fmt: skip
    runs = [arm(preset, seed) for preset in ("std-t", "d-cas", "lfa") for seed in range(3)]
    judged = claims(planted(values), Arms(in_arms(runs))).set_index(["quantity", "claim"])
    row = judged.loc[("loss", "lfa > std-t")]
    assert row["direction"] == "confounded: std-t has learned positions and LayerNorm, lfa RoPE and CLN"
    assert np.isnan(row["p"]) and row["difference"] == pytest.approx(-0.2) and row["size"] == ""
    assert not judged.loc[("loss", "lfa > d-cas"), "direction"].startswith("confounded")
    assert judged.loc[("parameters", "std-t > d-cas"), "direction"] == "holds: counted, not trained"
    assert judged.loc[("loss", "cfm > lfa"), "direction"] == "undefined: no run of cfm"
    values["std-t+rope+cln", "loss"] = [2.8 + gap[0], 2.9 + gap[1], 3.0 + gap[2]]
    runs += [arm("std-t", seed, **WITH_BOTH) for seed in range(3)]
    table, arms = planted(values), Arms(in_arms(runs))
    judged = claims(table, arms).set_index(["quantity", "claim"])
    assert judged.loc[("loss", "lfa > std-t+rope+cln"), "direction"] == "not resolved at n=3 seeds"
    assert not judged["direction"].str.startswith("confounded").any()
    found = comparisons(table, judged.reset_index(), arms).set_index(["quantity", "preset"])
    assert found["control"].to_dict()["loss", "lfa"] == "std-t+rope+cln"
    assert found["control"].to_dict()["loss", "std-t+rope+cln"] == "std-t"  # what positions and norm do


def test_as_many_heads_are_suppressed_as_the_paper_says() -> None:
    assert Options().k == Settings().k == (1, 2, 3, 5), "LFA §3.3, App. D"
    if PAPER.is_file():
        assert r"k\in\{1,2,3,5\}" in PAPER.read_text(encoding="utf-8")
    smallest = next(cell for cell in cells("lfa", "tiny", 1) if cell.argv[0] == "lfa")
    sets = [word for word in smallest.argv if word.startswith("n_layers=")]
    assert make("lfa", "tiny", **parse_set(sets)).n_layers * 4 >= 2 * 5, "five heads leave five others"


def test_std_t_is_trained_with_each_part_and_with_both() -> None:
    """By the grid: printed, RoPE, CLN, RoPE and CLN, and the arm with both is the control."""
    for scale in ("tiny", "zoo", "small", "paper"):
        made = []
        for cell in cells("lfa", scale, 1):
            sets = [cell.argv[i + 1] for i, word in enumerate(cell.argv) if word == "--set"]
            made.append(make(cell.argv[0], scale, **parse_set(sets)))
        std = {(one.positions.kind, one.norm.kind) for one in made if one.name == "std-t"}
        assert std == {("learned", "layer"), ("rope", "layer"), ("learned", "channel"), ("rope", "channel")}
        assert {(one.positions.kind, one.norm.kind) for one in made if one.name != "std-t"} == {("rope", "channel")}


def test_what_was_measured_among_the_candidates_only_is_withdrawn_and_not_judged_from_them() -> None:
    values = {(p, f"stability.{domain}.jaccard.competing"): [x, x + 0.01, x + 0.03]
              for p, x in (("lfa", 0.1), ("cfm", 0.5)) for domain in ("candidates", "keys")}  # fmt: skip
    values |= {(preset, "copying"): [2.0, 2.1, 2.2] for preset in ("lfa", "cfm")}
    keys = claims(planted(values)).set_index(["quantity", "claim"])
    assert keys.loc[("stability.keys.jaccard.competing", "lfa > cfm"), "direction"].startswith("opposite")
    only = claims(planted({k: x for k, x in values.items() if ".keys." not in k[1]})).set_index(["quantity", "claim"])
    row = only.loc[("stability.keys.jaccard.competing", "lfa > cfm")]
    assert row["direction"].startswith("withdrawn: measured among the candidates only") and np.isnan(row["difference"])


def test_where_heads_look_is_judged_only_of_arms_that_copy() -> None:
    """Planted: lfa and cfm copy, d-cas is at chance, of std-t nobody looked; heads differ the same way everywhere."""
    heads = {"lfa": 0.3, "std-t": 0.1, "cfm": 0.1, "d-cas": 0.1}
    same = ("pds.max.L5", "coreference.keys.best", "stability.keys.jaccard.competing", "loss")
    values = {(p, quantity): [x, x * 1.001, x * 1.003] for p, x in heads.items() for quantity in same}
    values |= {("lfa", "copying"): [2.0, 2.1, 2.2], ("cfm", "copying"): [1.0, 1.1, 0.9],
               ("d-cas", "copying"): [-0.5, 0.6, 0.1], ("std-t", "copying"): [NAN, NAN, NAN]}  # fmt: skip
    able = competence(planted(values)).set_index("preset")
    low, high = stats.ttest_1samp(values["d-cas", "copying"], 0).confidence_interval(0.95)
    assert able["cannot"].to_dict() == {
        "lfa": "", "cfm": "", "std-t": "copying of std-t not measured",
        "d-cas": f"copying +0.067 ({low:+.3f} … {high:+.3f}) of d-cas, not above 0",
    }  # fmt: skip
    assert able.loc["d-cas", ["ci_low", "ci_high"]].tolist() == pytest.approx([low, high])
    judged = claims(planted(values)).set_index(["quantity", "claim"])["direction"]
    assert judged["pds.max.L5", "lfa > cfm"] == judged["pds.max.L5", "lfa above 0.075"] == "holds"
    assert judged["pds.max.L5", "lfa > std-t"] == "holds"  # attention by position needs no copying
    cannot = "the model cannot do the task: copying of std-t not measured"
    assert judged["coreference.keys.best", "lfa > std-t"] == cannot
    assert judged["coreference.keys.best", "lfa > d-cas"].startswith("the model cannot do the task: copying +0.067")
    assert judged["loss", "lfa > d-cas"] == "holds" and judged["loss", "lfa > std-t"] == "holds"
    assert judged["sps", "cfm > lfa"].startswith("undefined: ")  # nothing there to be judged
    swapped = {p: {**values, (p, "copying"): [-0.5, 0.6, 0.1]} for p in ("lfa", "cfm")}
    verdict = {p: claims(planted(x)).set_index(["quantity", "claim"])["direction"] for p, x in swapped.items()}
    order = ("stability.keys.jaccard.competing", "lfa > cfm")
    assert verdict["cfm"][order] == "holds", "that CFM has no such heads is the claim"
    assert verdict["lfa"][order].startswith("the model cannot do the task: copying +0.067"), "LFA has to have them"


def test_tables_from_before_the_gate_are_asked_for_induction() -> None:
    values = {("lfa", "induction.max"): [0.9, 0.91, 0.95], ("cfm", "induction.max"): [0.31], ("d-cas", "induction.max"):
              [0.04, 0.05, 0.06], ("std-t", "induction.max"): [0.2, 0.9, 0.9]}  # fmt: skip
    able = competence(planted(values)).set_index("preset")["cannot"]
    assert able["lfa"] == able["cfm"] == "" and able["std-t"].startswith("not gated, induction +0.667 (")
    assert able["d-cas"] == "not gated, induction +0.050 (+0.025 … +0.075) of d-cas, not above 0.3"
    gates = competence(planted(values))
    assert unable("sps", ("lfa", "d-cas"), gates) == unable("sps", ("lfa", "d-cas"), gates, "d-cas") == able["d-cas"]
    assert unable("stability.keys.stable", ("lfa", "d-cas"), gates) == able["d-cas"]
    assert not unable("stability.keys.stable", ("lfa", "d-cas"), gates, "d-cas")
    assert not unable("loss", ("lfa", "d-cas"), gates) and not unable("pds.over", ("lfa", "d-cas"), gates)


def test_top1_and_stability_are_judged_over_all_keys() -> None:
    """Heads that look elsewhere and toss a coin between the candidates: half right among them, and nowhere else."""
    suites = {name: load_suite(name) for name in ("coreference", "competing")}
    words = Tokenizer.train([p.text for suite in suites.values() for p in suite.prompts], 756)
    net = build("std-t", "tiny", n_layers=9, n_ctx=64, d_vocab=words.d_vocab, tokenizer=words)
    coins = torch.Generator().manual_seed(0)

    def toss(x: torch.Tensor, hook: Any) -> torch.Tensor:
        rest = torch.rand(x.shape, generator=coins).tril()
        rest[..., 0] = 0
        rows = 0.1 * rest / rest.sum(-1, keepdim=True).clamp_min(1e-9)
        rows[..., 0] = 1 - rows.sum(-1)
        return rows.to(x)

    with pytest.MonkeyPatch.context() as patch:
        tossed = partial(measure, edits={"blocks.*.attn.hook_pattern": toss})
        patch.setattr(streamscope.papers.lfa.measure, "measure", tossed)
        rows, heads = Rows(), summary(measure(net, Coreference(), suites["coreference"]))[["head"]]
        aligned = {name: align(suite, words, 64) for name, suite in suites.items()}
        streamscope.papers.lfa.measure._coreference(rows, heads.copy(), net, aligned, Settings())
    found = {row["quantity"]: row for row in rows.rows}
    assert found["coreference.candidates.over30"]["value"] > 30  # of 36 heads
    assert found["stability.candidates.jaccard.competing"]["value"] == pytest.approx(1 / 3, abs=0.06)
    assert found["coreference.keys.over30"]["value"] == found["coreference.keys.best"]["value"] == 0
    lost = found["stability.keys.jaccard.competing"]
    assert lost["value"] != lost["value"] and "no head hits the target" in lost["undefined"]
    assert found["stability.keys.over_total.competing"]["value"] == 0
    judged = {q for c in (*ORDERS, *BOUNDS) if re.match("coreference|stability", q := c.quantity)}
    assert (
        judged
        and not [q for q in judged if ".keys." not in q and "top5" not in q]
        and judged - {"coreference.top5_layers"} <= set(found)
    )


def test_stability_of_a_pair_is_the_heads_that_keep_to_it_over_those_that_hit_it() -> None:
    suite = load_suite("coreference")
    words = Tokenizer.train([p.text for p in suite.prompts], 440)
    net = build("std-t", "tiny", n_ctx=64, d_vocab=words.d_vocab, tokenizer=words)
    cases = measure(net, Coreference(domain="keys"), suite)
    cases = cases[cases["category"] == "competing-nouns"].assign(hit=0.0)
    keeps, first = cases["head"].isin(["L0.H0", "L0.H1"]), cases["order"] == "target_first"
    box, basket = (cases["pair"].str.contains(nouns) for nouns in ("key-box-0", "hammer-basket-"))
    cases.loc[keeps & (box | basket), "hit"] = 1.0
    cases.loc[(cases["head"] == "L1.H0") & first & box, "hit"] = 1.0  # in one order alone
    rows = Rows()
    streamscope.papers.lfa.measure._pairs(rows, cases)
    found = {row["quantity"]: row for row in rows.rows}
    assert found["stability.keys.pair.key-box"]["value"] == pytest.approx(2 / 3)
    assert found["stability.keys.pair.key-box"]["n"] == 1  # in the other text no head hits
    assert (found["stability.keys.pair.hammer-basket"]["value"], found["stability.keys.pair.hammer-basket"]["n"]) == (
        1,
        2,
    )
    assert "no head hits" in found["stability.keys.pair.brush-bag"]["undefined"]
    assert found["stability.keys.stable"]["value"] == pytest.approx((2 + 2 + 2) / 6)


# ---- seeds -------------------------------------------------------------------------------------


def test_a_seed_without_a_value_is_left_out_and_said() -> None:
    found = architectures(planted({("lfa", "sps"): [0.1, NAN, 0.3]})).set_index("preset").loc["lfa"]
    assert (found["n"], found["mean"], found["left_out"]) == (2, pytest.approx(0.2), "seed 1: no head")
    assert found["printed"] == "0.0058"


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


def test_bimodality_is_what_the_moments_of_scipy_give() -> None:
    x = np.random.default_rng(0).gamma(2.0, size=36)
    g, k = stats.skew(x, bias=False), stats.kurtosis(x, bias=False)
    assert bimodality(x) == pytest.approx((g**2 + 1) / (k + 3 * 35**2 / (34 * 33)), rel=1e-12)
    apart = np.r_[np.linspace(0, 0.02, 30), np.linspace(0.28, 0.3, 30)]
    assert bimodality(apart) > 5 / 9 > bimodality(stats.norm.ppf(np.linspace(0.01, 0.99, 60)))
    assert np.isnan(bimodality(np.ones(9))) and np.isnan(bimodality(np.arange(3.0)))


def test_what_follows_from_heads_and_losses() -> None:
    six = np.arange(6)
    pds = np.where(
        (six == 2) | (six == 3), 0.1, 0.01
    )  # two heads of the layers between are over .075, and one of the last
    pds[5] = 0.2
    heads = pd.DataFrame({
        "preset": "lfa", "seed": 0, "head": [f"L{i}.H0" for i in six], "layer": six, "pds": pds, "over": pds > 0.075,
        "attention": [0.9, 0.1, 0.8, 0.7, 0.6, 0.5],
    })  # fmt: skip
    losses = {("lfa", "loss"): [2.1, 2.0], ("std-t", "loss"): [2.0], ("d-cas", "loss"): [1.0, 1.6],
              ("cfm", "loss"): [2.32, 2.5, 2.6]}  # fmt: skip
    found = derived(planted(losses), heads).set_index(["preset", "seed", "quantity"])["value"].sort_index()
    mine = found["lfa", 0]
    assert [mine[f"pds.over.L{i}"] for i in six] == [0, 0, 1, 1, 0, 1]
    assert mine["pds.over.middle-rest"] == 2 - 1 and mine["coreference.top5_layers"] == 5
    assert mine["cost"] == pytest.approx(0.05) and mine["cost.d-cas"] == pytest.approx(1.1)
    assert np.isnan(found["lfa", 1]["cost"]) and found["lfa", 1]["cost.d-cas"] == pytest.approx(0.25)
    assert found["d-cas", 0]["cost"] == pytest.approx(-0.5) and "cost" not in found["std-t", 0]
    assert found["cfm", 0]["cost.added"] == pytest.approx((2.32 - 2.1) / 2.0) and "cost.added" not in mine
    assert np.isnan([found["cfm", seed]["cost.added"] for seed in (1, 2)]).all()
    table = derived(planted(losses), heads)
    assert not (table["family"] == "position by layer").any()  # the figure draws that family as one curve
    named = {name for *_, name in found.index} - {"loss"}
    assert all(re.fullmatch(DERIVED, name) for name in named), named


# ---- what the paper prints ---------------------------------------------------------------------


def test_printed_numbers_come_from_the_ledger() -> None:
    assert numbers("lfa")["lfa", "pds.max.L5"] == ("lfa", "pds.max.L5", "0.276", "Table 4, §5.1")
    assert numbers("lfa")["std-t", "parameters"].value == 22.2e6
    assert numbers("lfa")["std-t", "suppress.top1.sps"].value == -0.008
    assert ("d-cas", "pds.over") not in numbers("lfa"), "of D-Cas the paper prints no heads"


# ---- the command on tiny runs ------------------------------------------------------------------


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


@pytest.mark.slow
def test_the_tables_are_those_of_the_runs(out: Path, runs: dict[str, Path]) -> None:
    assert "python -m models.train {arm}" in short_page(out)
    tables = {path.stem: pd.read_parquet(path) for path in out.glob("*.parquet")}
    assert set(tables) == {
        "runs", "competence", "architectures", "comparisons", "claims", "heads", "rules", "suppression", "controls",
        "suppress",
    }  # fmt: skip
    loss = tables["runs"][tables["runs"]["quantity"] == "loss"]
    assert len(loss) == 3
    mean = tables["architectures"].set_index(["quantity", "preset"]).loc[("loss", "lfa")]
    assert mean["mean"] == pytest.approx(loss.loc[loss["preset"] == "lfa", "value"].mean())
    assert mean["printed"] == "1.9063"
    said = set(tables["claims"]["direction"])
    assert "undefined: one seed of std-t" in said and "undefined: no run of d-cas" in said
    gates = tables["suppress"].query("group == 'selected' and selection == 'top1'")
    assert set(gates["gate"]) == {0, 0.25, 0.5, 0.75, 1} and len(gates) == 5 * len(runs)
    hard = tables["suppression"].query(
        "group == 'selected' and selection == 'top1' and measure == 'sps' and part == 'all'"
    )
    both = gates[gates["gate"] == 0].merge(hard, on=["preset", "seed"], suffixes=("", "_hard"))
    assert len(both) == len(runs) and np.allclose(both["edited"], both["edited_hard"])
    for number in ("1", "4", "7"):  # what is written today is drawn as the shipped tables are
        assert draw(figures_of("lfa")[number], Style(), out).data


@pytest.mark.slow
def test_the_quantities_are_those_of_the_instruments(out: Path, runs: dict[str, Path]) -> None:
    from streamscope.interventions.observe import document_losses

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


@pytest.mark.slow
def test_no_value_is_missing_without_a_reason(out: Path) -> None:
    # heads and rules hold columns of several probes; their own tests hold them
    assert unexplained(out, ("heads", "rules")) == {}


# ---- judged again ------------------------------------------------------------------------------


def test_the_committed_tables_judged_again_are_the_same(tmp_path: Path) -> None:
    main(["--tables", str(COMMITTED), "--out", str(tmp_path), "--static", "none", "--no-html"])
    assert_same_tables(COMMITTED, tmp_path)
    judged = pd.read_parquet(COMMITTED / "claims.parquet")
    assert verdicts(judged).sum() == len(ORDERS) + len(BOUNDS)
    by_position = judged["quantity"].str.startswith("pds.")
    assert not {"opposite", "not resolved", "negligible"} & set(verdicts(judged[~by_position]).index)
    assert (pd.read_parquet(COMMITTED / "competence.parquet")["cannot"] != "").all(), "none is shown to copy"
    chance = pd.read_parquet(COMMITTED / "runs.parquet").query("quantity == 'coreference.candidates.chance'")["value"]
    assert (chance.round(3) == 0.466).all()
    means = pd.read_parquet(COMMITTED / "architectures.parquet").query("n > 0")
    assert set(means.loc[means["cannot"] == "", "family"]) == {
        "size", "loss", "cost", "copying", "suites", "position", "position by layer", "heads by layer",
    }  # fmt: skip


@pytest.mark.slow
def test_tables_are_judged_again_without_a_model(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(streamscope.papers.lfa.report, "each_model", None)
    again = tmp_path / "again"
    shutil.copytree(out, again)
    main(["--tables", str(again), "--out", str(again), "--static", "none"])  # onto itself
    assert_same_tables(out, again)
    for argv, message in (
        (["--tables", str(again), "--seed", "3"], "--seed is for measuring"),
        (["--tables", str(again), "--data", "stories"], "--data is for measuring"),
        (["--tables", str(tmp_path / "none")], "is no folder of a comparison"),
        ([str(again), "--tables", str(again)], "not both"),
    ):
        with pytest.raises(InputError, match=message):
            main(argv)
    (again / "heads.parquet").unlink()
    with pytest.raises(InputError, match=r"lacks heads\.parquet"):
        main(["--tables", str(again)])


# ---- arms that differ in a part ----------------------------------------------------------------


@pytest.mark.slow
def test_std_t_trained_with_rope_and_cln_is_an_arm_of_its_own(
    runs: dict[str, Path], corpus: tuple[Path, Path], tmp_path: Path
) -> None:
    sets = ["--set", "positions=rope", "--set", "norm=channel", "--set", "n_ctx=160", "--seed", "0"]
    train(tests.tiny.arguments(corpus, tmp_path / "rope", *sets, preset="std-t"))
    opened = open_runs([*map(str, runs.values()), str(tmp_path / "rope")])
    assert [run.name for run in opened] == ["std-t, seed 0", "std-t+rope+cln, seed 0", "lfa, seed 0", "lfa, seed 1"]
    assert Arms(opened).pair("lfa", "std-t") == ("lfa", "std-t+rope+cln")
    assert Arms(opened).confounded("lfa", "std-t+rope+cln") == ""
    with pytest.raises(InputError, match=re.escape("are both std-t+rope+cln, seed 0")):
        open_runs([str(tmp_path / "rope"), str(tmp_path / "rope")])


@pytest.mark.slow
def test_the_claims_of_an_arm_of_its_own(runs: dict[str, Path], corpus: tuple[Path, Path], tmp_path: Path) -> None:
    sets = ["--set", "positions=rope", "--set", "norm=channel", "--set", "n_ctx=160", "--seed", "0"]
    train(tests.tiny.arguments(corpus, tmp_path / "rope", *sets, preset="std-t"))
    found = tmp_path / "found"
    main([str(runs["std-t-0"]), str(tmp_path / "rope"), str(runs["lfa-0"]), "--out", str(found), *FAST])
    claims = pd.read_parquet(found / "claims.parquet")
    assert claims["claim"].eq("lfa > std-t+rope+cln").any() and not claims["direction"].str.contains("confounded").any()
    reopened = tmp_path / "reopened"
    main(["--tables", str(found), "--out", str(reopened), "--static", "none"])
    assert_same_tables(found, reopened)


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
        ([str(tmp_path / "none")], "is not a run folder"),
        ([str(tmp_path), "--draws", "5"], "--draws must be at least 20"),
        ([str(tmp_path), "--k", "0"], "--k must be at least 1"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            main(argv)
        assert "\n" not in str(caught.value)


def test_without_kaleido_the_page_has_no_static_figure_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kaleido", None)
    table = planted({("lfa", "loss"): [1.8, 1.9], ("std-t", "loss"): [1.7, 1.75]})
    said = write_figures(arms({"runs": table, "architectures": architectures(table)}, Style("page")), tmp_path, "svg")
    assert (tmp_path / "figure.html").is_file() and not (tmp_path / "figure.svg").exists()
    assert said[1].startswith("no figure.svg: ") and "needs kaleido" in said[1] and "\n" not in said[1]


def test_code_words_and_prompts_that_measure_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The digest reads files by name: every one exists, and the measuring ones are among them."""
    read: list[str] = []
    whole = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(str(path)) or whole(path))
    assert len(sources()) == 64
    measuring = (
        "lfa/measure.py",
        "lfa/suppress.py",
        "comparison/seeds.py",
        "stories/text.toml",
        "probes/pds/measure.py",
    )
    for end in measuring:
        assert any(path.endswith(end) for path in read), end
