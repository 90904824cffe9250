"""What README.md and results/README.md say of results is what the tables hold: sentences are put together from them.

A table that changes under a sentence makes its test fail, and a sentence that is written anew needs its test anew.
"""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from streamscope.models.checkpoint import run_folder
from streamscope.models.config.presets import PRESETS
from streamscope.models.training.config import tokens_seen
from streamscope.papers.claims import HERE
from streamscope.papers.claims.judged import judged
from streamscope.papers.comparison.runs import opened
from streamscope.papers.comparison.verdicts import verdicts
from streamscope.papers.dst.printed import TABLE5, straightness
from streamscope.probes.routing.measure import unevenness
from tests.conftest import ROOT

RESULTS = ROOT / "results"
COUNT = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
         "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
         "nineteen")  # fmt: skip


def page(name: str) -> str:
    return re.sub(r"\s+", " ", (ROOT / name).read_text(encoding="utf-8"))


FRONT, SHELF = page("README.md"), page("results/README.md")


def table(name: str) -> pd.DataFrame:
    return pd.read_parquet(RESULTS / f"{name}.parquet")


def bare(x: float, digits: int = 3, sign: bool = False) -> str:
    """.411, −.04, 2.61; with `sign` +.70."""
    text = f"{abs(x):.{digits}f}".removeprefix("0")
    return ("−" if x < 0 else "+" if sign else "") + text


def says(text: str, *sentences: str) -> None:
    for sentence in sentences:
        assert sentence in text, f"not said, or not so: {sentence}"


# ---- README ------------------------------------------------------------------------------------


def test_readme() -> None:
    """Its table of papers counts the verdicts of the ledger; it fits on a screen and a half."""
    rows = judged(HERE, RESULTS)
    papers = rows.groupby("paper")["verdict"].value_counts().unstack(fill_value=0)
    for paper in papers.index:
        holds, opposite = papers.loc[paper, ["holds", "opposite"]]
        assert re.search(
            rf"\| {paper.upper()}\b[^\n]*\| {holds} \| {opposite} \|", (ROOT / "README.md").read_text("utf-8")
        )
    other = len(rows) - papers[["holds", "opposite"]].to_numpy().sum()
    models = len(GATE.index.get_level_values("run").unique())
    says(
        FRONT,
        f"The other {other} of {len(rows)} claims",
        f"{COUNT[models].capitalize()} small models come with the clone",
    )
    text = (ROOT / "README.md").read_text("utf-8")
    assert text.count("\n") <= 90 and len(text.split()) <= 700


# ---- comparisons -------------------------------------------------------------------------------


def test_lfa() -> None:
    found = table("lfa_tinystories/claims")
    n: Mapping[str, int] = verdicts(found).to_dict()
    cannot = n["the model cannot do the task"]
    holds = found[found["direction"] == "holds"]
    assert set(holds["quantity"]) == {"loss"} and sum(n.values()) == len(found)
    assert set(n) == {"the model cannot do the task", "holds", "confounded", "withdrawn", "undefined",
                      "counted, not trained"}  # fmt: skip
    said = f"of {len(found)} claims {n['holds']} hold (lfa's loss above d-cas', cfm's above lfa's), {cannot} are about "
    said += (
        f"where heads look in models of which none is shown to copy, {n['confounded']} are confounded (std-t has other "
    )
    said += f"positions and another norm), {n['withdrawn']} withdrawn (stability was measured among candidates), "
    said += f"{n['undefined']} undefined, {n['counted, not trained']} are parameter counts |"
    loss = holds.set_index("claim")
    first, second = loss.loc["lfa > d-cas"], loss.loc["cfm > lfa"]
    runs = table("lfa_tinystories/runs").groupby("quantity")["value"]
    largest, even = runs.max()["induction.max"], runs.mean()["induction.even"]
    ends = [
        f"{bare(one['difference'])} {{}} ({{}}{bare(one['ci_low'])} to {bare(one['ci_high'])})"
        for one in (first, second)
    ]
    assert (table("lfa_tinystories/competence")["cannot"] != "").all()
    says(
        SHELF,
        said,
        f"of its {len(found)} claims {n['holds']} hold, `lfa` "
        + ends[0].format("above `d-cas`", "95 % interval over pairs of seeds ")
        + f" and `cfm` {ends[1].format('above `lfa`', '')}; {cannot} are about where heads look, and are not "
        f"judged, because no model there is shown to copy (largest induction score {bare(largest)} of any head, even "
        f"attention {bare(even)}), {n['confounded']} are confounded, {n['withdrawn']} withdrawn (stability was "
        f"measured among the candidates), {n['undefined']} undefined, "
        f"{n['counted, not trained']} are parameter counts.",
    )


def test_lfa_with_its_control() -> None:
    found, means = table("lfa_eighth/claims"), table("lfa_eighth/architectures").set_index(["quantity", "preset"])
    against = table("lfa_eighth/comparisons").set_index(["quantity", "preset"])
    loss = found[found["quantity"] == "loss"].set_index("claim")

    def share(preset: str) -> str:
        one = means.loc[("cost", preset)]
        mean, low, high = (f"{100 * one[name]:.1f}".replace("-", "−") for name in ("mean", "ci_low", "ci_high"))
        return f"{mean} % of the loss ({low} to {high}; printed {one['printed'].replace('%', ' %')})"

    assert {part for claim in loss.index for part in claim.split(" > ") if "std-t" in part} == {"std-t+rope+cln"}
    says(SHELF, f"`d-cas` costs {share('d-cas')}, `lfa` {share('lfa')}")
    for claim, row in loss.iterrows():
        more, less = str(claim).split(" > ")
        low, high = bare(row["ci_low"]), bare(row["ci_high"])
        says(
            SHELF,
            f"`{more}` above `{less}` {bare(row['difference'])} ({low} to {high}), {row['direction'].split(' at ')[0]}",
        )
    for arm, words in (("std-t+rope", "RoPE"), ("std-t+cln", "CLN")):
        row = against.loc[("loss", arm)]
        assert row["control"] == "std-t" and row["verdict"].startswith("exploratory")
        change, low, high = (bare(row[name], sign=True) for name in ("difference", "ci_low", "ci_high"))
        says(SHELF, f"{words} alone changes the loss of `std-t` by {change} ({low} to {high})")
    size = means.loc["parameters", "mean"]
    says(SHELF, f"holds, with {100 * size['cfm'] / size['lfa']:.0f} % of its parameters.")
    n: Mapping[str, int] = verdicts(found).to_dict()
    held = found[found["direction"] == "holds"]
    assert (found["direction"] == "holds: counted, not trained").sum() == 3 and set(held["quantity"]) == {"loss"}
    whole, cannot = f"of {len(found)} claims {len(held)} hold", n["the model cannot do the task"]
    says(
        SHELF,
        f"{whole} beside three counts of parameters",
        f"{whole} and three counts of parameters are in the printed order; {cannot} are about where heads look, and",
        f"{cannot} are about where heads look in models of which none is shown to copy, {n['undefined']} are undefined",
        f"with RoPE it loses {bare(-against.loc[('loss', 'std-t+rope'), 'difference'])} nats less",
    )
    assert (table("lfa_eighth/competence")["cannot"] != "").all()


def test_dst() -> None:
    found, cells = table("dst_eighth/claims"), table("dst_eighth/factors")
    n: Mapping[str, int] = verdicts(found).to_dict()
    means = table("dst_eighth/presets").set_index(["quantity", "preset"])
    says(
        SHELF,
        f"of {len(found)} rows {n['holds']} hold, {n['opposite']} are opposite, {n['negligible']} is negligible, "
        f"{n['not resolved']} are not resolved and {n['confounded']} confounded",
        f"the loss grows by {100 * means.loc[('stream.x_e → 0.head', 'dst-kron'), 'mean']:.0f} % without the context "
        f"stream and by {100 * means.loc[('stream.x_t → 0.head', 'dst-kron'), 'mean']:.0f} % without the token stream",
    )
    about = cells[cells["claim"] == "dst-kron above 0"].groupby("quantity")
    head, everywhere = (about.get_group(f"gap.zero.{where}") for where in ("head", "everywhere"))
    assert head["alone"].tolist() == ["opposite"] * 4 and set(head["runs"]) == {"0 of 3"}
    assert set(everywhere["runs"]) == {"3 of 3"} and everywhere["alone"].eq("holds").sum() == 2
    verdict = found.set_index(["claim", "quantity"])["direction"]
    assert verdict["dst-kron above 0", "gap.zero.head"] == "opposite"
    frozen = "dst-kron+frozen_token"
    assert verdict[f"{frozen} above 0.5", "peak.16"] == "holds"
    assert verdict[f"{frozen} below 1.099", "spread.1"] == "opposite"
    peak = means.loc[("peak.16", frozen)]
    says(
        SHELF,
        f"puts {bare(peak['mean'])} ({bare(peak['ci_low'])} to {bare(peak['ci_high'])}) of its weight on one key",
        f"as over {math.exp(means.loc[('spread.1', frozen), 'mean']):.0f} equal tokens",
    )
    one, other = (
        [100 * means.loc[("degradation.16", arm)][name] for name in ("mean", "ci_low", "ci_high")]
        for arm in (frozen, f"{frozen}+normal")
    )
    early = [100 * means.loc[("degradation.16", f"{arm}@1000"), "mean"] for arm in (frozen, f"{frozen}+normal")]
    says(
        SHELF,
        "costs {:.0f} % ({:.0f} to {:.0f}) of the loss begun by fan-in and {:.0f} % ({:.0f} to {:.0f}) begun".format(
            *one, *other
        ),
        "after a third of the tokens {:.0f} and {:.0f} %".format(*early),
        f"{min(early):.0f} to {max(one[0], other[0]):.0f} % of the loss of the frozen-token Kronecker model",
    )
    losses = found[(found["quantity"] == "loss") & (found["seeds"] == "2")]
    assert losses["direction"].str.startswith("not resolved").all(), "two seeds resolve nothing about losses"


def test_how_straight_the_loss_of_sharpened_attention_is() -> None:
    frozen, claims = "dst-kron+frozen_token", table("dst_eighth/claims").set_index("quantity")["direction"]
    means = table("dst_eighth/presets").set_index(["quantity", "preset"])
    ends = {
        axis: [bare(means.loc[(f"straight.{axis}", frozen)][name]) for name in ("mean", "ci_low", "ci_high")]
        for axis in ("linear", "log2")
    }
    says(
        SHELF,
        "(r² {}, {} to {}; of Table 5's own losses {})".format(*ends["linear"], bare(straightness(TABLE5[frozen]))),
        "Over log2 α it is ({}, {} to {}), which holds".format(*ends["log2"]),
    )
    assert (claims["straight.linear"], claims["straight.log2"]) == ("opposite", "holds")
    cells = table("dst_eighth/factors").groupby("quantity")["alone"].agg(list)
    assert cells["straight.linear"] == ["opposite"] * 4 and cells["straight.log2"] == ["holds"] * 4
    others = means.loc["straight.log2"].loc[[f"dst-{one}+frozen_token" for one in ("dense", "ind", "full-ind")]]
    assert (others["mean"] > 0.95).all() and set(others["n"]) == {2}


def test_where_the_token_stream_costs_more() -> None:
    gaps = table("dst_eighth/runs").query("quantity == 'gap.zero.everywhere'").set_index("preset")["value"]
    mine = gaps[[name.split("@")[0] in ("dst-kron", "dst-kron+normal") for name in gaps.index]]
    others = len(gaps) - len(mine)
    assert (mine > 0).all()
    says(SHELF, f"{len(mine)} of {len(mine)} runs of the token-factor Kronecker model of six heads (not in "
                f"{(gaps < 0).sum()} of the {others} others)")  # fmt: skip


def test_what_sharpened_attention_costs() -> None:
    found = table("dst_calibration/claims").set_index(["quantity", "claim"])["direction"]
    arms = table("dst_calibration/arms").set_index(["quantity", "preset"])
    back, kept = found.loc["recovered.16"], found.loc["kept.16"]
    assert back.str.startswith("opposite").all() and kept.str.startswith("not resolved").all()
    share, words = arms.loc["recovered.16", "mean"] * 100, arms.loc["kept.16", "mean"] * 100
    one, hotter = arms.loc[("recovered.16", "dst-kron+frozen_token")], arms.loc["hotter.16", "mean"]
    mean, low, high = (bare(100 * one[name], 1) for name in ("mean", "ci_low", "ci_high"))
    least, most, cells = bare(share.min(), 1), bare(share.max(), 1), COUNT[len(back)]
    says(
        SHELF,
        f"gives back more than {most} % of the cost (mean of a cell), opposite in {len(back)} of {len(back)} cells",
        f"as many words are right as {words.min():.0f} to {words.max():.0f} % of those before",
        f"gives back {mean} % of it in the Kronecker model ({low} to {high}; {least} to {most} % in the {cells} cells "
        f"of six arms), opposite in all {cells}",
        f"the best of all is {bare(hotter.min(), 2)} to {hotter.max():.2f} times that at α = 1",
    )
    assert share.max() <= 1


def test_pls() -> None:
    found = table("pls_tinystories/claims")
    heads = verdicts(found[found["heads"] == "named"])
    assert set(heads.index) == {"the model cannot do the task", "not resolved"}
    cannot, open_ = heads["the model cannot do the task"], heads["not resolved"]
    assert verdicts(found[found["heads"] == "found"]).to_dict() == {"withdrawn": 17}
    of_heads = (
        f"f {cannot + open_} claims about heads {cannot} are of tasks that the models cannot do and {open_} are not"
    )
    says(SHELF, of_heads, f"so {cannot} of {cannot + open_} have no verdict and {open_} are not resolved")
    means = table("pls_tinystories/presets").set_index(["quantity", "preset"])
    early, late = (
        [round(100 * means.loc[(f"depth.{q}", p), "mean"]) for p in ("pls", "c2")] for q in ("early", "late")
    )
    says(SHELF, f"({early[0]} % against {early[1]} % of tokens early; that {late[0]} % against {late[1]} % settle late")
    depth = found[found["quantity"].str.startswith("depth.")].set_index(["quantity", "claim"])
    first = depth.loc[("depth.early", "pls > c2")]
    said = depth["direction"]
    assert first["direction"] == "holds"
    assert all(text.startswith("not resolved") for name, text in said.items() if name != ("depth.early", "pls > c2"))
    assert depth.loc[("depth.late", "c2 > pls"), "alone"] == "holds"
    assert depth.loc[("depth.second_peak", "c2 below 0"), "alone"] == "opposite"
    peaks = [means.loc[("depth.second_peak", preset)] for preset in ("pls", "c2")]
    mine, control = ([100 * one[name] for name in ("mean", "ci_low", "ci_high")] for one in peaks)
    says(
        SHELF,
        f"difference {bare(first['ci_low'])} to {bare(first['ci_high'])})",
        f"that fewer settle at the last layers ({late[0]} % against {late[1]} %) does not survive the correction over "
        f"{found['p'].notna().sum()} claims",
        f"({bare(mine[0], 1, True)} points, {bare(mine[1], 1)} to {bare(mine[2], 1)})",
        f"{control[0]:.1f} points ({control[1]:.1f} to {control[2]:.1f}), not resolved after correction",
        "C2 has one ({}, {} to {}), not resolved after correction".format(*(bare(x / 100) for x in control)),
    )
    able = table("pls_tinystories/competence").set_index(["task", "preset"])
    odds, share = ([able.loc[(task, preset), name] for preset in ("pls", "c2")] for task, name in
                   (("winograd", "log_odds"), ("capitalization", "probability")))  # fmt: skip
    says(
        SHELF,
        f"(log-odds {bare(odds[0])} and {bare(odds[1])} nats)",
        f"{bare(100 * share[0], 2)} % and {bare(100 * share[1], 2)} % of the probability",
    )


def test_pls_that_capitalizes() -> None:
    found = table("pls_eighth/claims").set_index(["quantity", "claim"])
    named = found[found["heads"] != "found"]
    n: Mapping[str, int] = verdicts(named).to_dict()
    means = table("pls_eighth/presets").set_index(["quantity", "preset"])
    able = table("pls_eighth/competence").set_index(["task", "preset"])
    both = [able.loc[("capitalization", preset)] for preset in ("pls", "c2")]
    assert all(one["cannot"] == "" for one in both) and verdicts(found[found["heads"] == "found"])["no such head"] == 17
    whole = {(q, p): 100 * means.loc[(f"depth.{q}", p), "mean"] for q in ("early", "late") for p in ("pls", "c2")}
    early, late, peak = (
        found.loc[key] for key in (("depth.early", "pls > c2"), ("depth.late", "c2 > pls"),
                                   ("depth.second_peak", "pls above 0"))
    )  # fmt: skip
    assert {one["direction"] for one in (early, late, peak)} == {"holds"}
    control = means.loc[("depth.second_peak", "c2")]
    assert found.loc[("depth.second_peak", "c2 below 0"), "direction"].startswith("not resolved")
    heads, loss = found.loc[("effect.capitalization.entity", "pls below 0")], found.loc[("loss", "c2 > pls")]
    assert heads["direction"].startswith("negligible") and loss["direction"].startswith("not resolved")
    ends = [bare(100 * peak[name], 1) for name in ("difference", "ci_low", "ci_high")]
    low, high = sorted(-100 * heads[name] for name in ("ci_low", "ci_high"))
    says(
        SHELF,
        f"log-odds {both[0]['log_odds']:+.1f} and {both[1]['log_odds']:+.1f} nats, P(answer) "
        f"{100 * both[0]['probability']:.1f} % and {100 * both[1]['probability']:.1f} %",
        f"{whole['early', 'pls']:.0f} % of tokens at layers 0–1 against {whole['early', 'c2']:.0f} % (difference "
        f"{bare(early['ci_low'])} to {bare(early['ci_high'])}), {whole['late', 'pls']:.0f} % at the last against "
        f"{whole['late', 'c2']:.0f} % ({bare(late['ci_low'])} to {bare(late['ci_high'])})",
        f"{ends[0]} points ({ends[1]} to {ends[2]}); all three hold",
        f"C2 has one of {100 * control['mean']:.1f}, not resolved after correction; the paper's entity heads",
        f"has one of {100 * control['mean']:.1f} points "
        f"({100 * control['ci_low']:.1f} to {100 * control['ci_high']:.1f})",
        f"changes by {bare(abs(100 * heads['difference']), 2)} points ({bare(low, 2)} to {bare(high, 2)}), negligible",
        f"{n['the model cannot do the task']} of {(named['heads'] == 'named').sum()} claims about the paper's heads",
        f"{bare(loss['difference'])} lower with supervision ({bare(loss['ci_low'])} to {bare(loss['ci_high'])}), not",
    )


def test_hdpl() -> None:
    sizes = table("hdpl_eighth/comparison").set_index("preset")
    order = table("hdpl_eighth/order").set_index("claim")
    arms = {"o hybrid as well it is": "o=hdpl", "down": "down=hdpl", "both": "o=hdpl+down=hdpl"}
    hybrid, more = sizes.loc["hdpl"], {name: order.loc[f"hdpl < hdpl+{arm}"] for name, arm in arms.items()}
    assert order.loc["hdpl < llama", "direction"] == "opposite" and hybrid["all_seeds"] == "0 of 3"
    assert (order.drop(index="hdpl < llama")["direction"] == "holds").all()
    lengths = table("hdpl_eighth/lengths").groupby("preset").mean(numeric_only=True)
    assert (lengths["window"] == 64).all()
    core = (
        f"the hybrid's loss lies {bare(hybrid['difference'])} nats above the dense model's ({bare(hybrid['ci_low'])} "
        f"to {bare(hybrid['ci_high'])}) in windows of 64 tokens, as 97 % of the steps had them, opposite at this dose"
    )
    far = {name: lengths.loc["hdpl", name] - lengths.loc["llama", name] for name in ("whole", "beyond")}
    says(
        SHELF,
        core,
        f"the hybrid has {100 * (1 - hybrid['parameters'] / sizes.loc['llama', 'parameters']):.0f} % fewer parameters",
        "; with " + ", with ".join(
            f"{name} {bare(row['difference'])} more ({bare(row['ci_low'])} to {bare(row['ci_high'])})"
            for name, row in more.items()
        ) + ", which hold",
        f"in windows of 128 it was {bare(far['whole'])}, for at the positions beyond 64 the hybrid lies "
        f"{bare(far['beyond'])} above",
    )  # fmt: skip
    long, steps = table("hdpl_zoo/order").iloc[0], set(table("hdpl_zoo/losses")["steps"])
    assert long["direction"] == "not resolved at n=2 seeds" and long["size"] == "smaller than printed"
    ends = [bare(-long[name]) for name in ("difference", "ci_high", "ci_low")]
    says(
        SHELF,
        f"for {steps.pop():,} steps (the paper: 20,000), two seeds",
        f"lies {ends[0]} above the dense model's ({ends[1]} to {ends[2]}), not resolved, and smaller than the .037",
        f"it lies {ends[0]} above ({ends[1]} to {ends[2]}), not resolved, with",
    )
    rows = judged(HERE, RESULTS)
    read = rows[rows["result"].str.startswith("hdpl_zoo/order")]
    assert len(read) == 9, "the order is read at the paper's steps, and says what was found at an eighth"
    assert read["why"].str.contains(f"lies {bare(hybrid['difference'])} above, opposite", regex=False).all()
    curves = table("hdpl_eighth/curve-claims").set_index("id")["direction"]
    assert curves["hdpl-t1-min-is-final"].startswith("holds") and curves["hdpl-f2-standard-curve"] == "opposite"
    assert curves.drop(["hdpl-t1-min-is-final", "hdpl-f2-standard-curve"]).str.startswith("not resolved").sum() == 4
    kl = table("hdpl_eighth/kl").query("preset == 'hdpl'")
    assert (kl[["kl_clamped_first", "kl_clamped"]] == 1).all(axis=None), "at both ends of the log"


def test_the_windows_of_losses() -> None:
    """Of every page whose name says so: 64 tokens in most steps, 128 in the last 3 %, with a context of 128."""
    for folder in ("dst", "hdpl", "krom", "lfa", "pls", "scorecard"):
        runs = json.loads((RESULTS / f"{folder}_eighth" / "trained.json").read_text(encoding="utf-8"))["runs"]
        for run in runs:
            phases = re.findall(r"(\d+):\d+x(\d+)", run["config"]["training"]["phases"])
            steps = {length: sum(int(n) for n, x in phases if x == length) for length in ("64", "128")}
            assert run["config"]["model"]["n_ctx"] == 128 and phases[-1][1] == "128"
            assert round(100 * steps["128"] / sum(steps.values())) == 3
            assert run["config"]["training"]["lr_floor"] == (0 if folder == "hdpl" else 0.1)
    says(SHELF, "had windows of 64 tokens, and the last 3 % of 128", "their rate ends at 0")


def test_how_much_less_than_the_papers_these_saw() -> None:
    """DST: 2 M samples of 512 tokens, three epochs (its Table 1 and appendix); the pages of an eighth 1.5 M tokens."""
    runs = json.loads((RESULTS / "dst_eighth" / "trained.json").read_text(encoding="utf-8"))["runs"]
    training = runs[0]["config"]["training"]
    seen = tokens_seen(training, 128, runs[0]["manifest"]["of_steps" if "of_steps" in runs[0]["manifest"] else "steps"])
    of_dst = 2e6 * 512 * 3
    assert round(of_dst / seen, -3) == 2000 and seen == 1_497_600
    says(SHELF, f"DST's models saw about {of_dst / 1e6:,.0f} M, about 2,000 times as many as those of an eighth")
    says(page("results/bundled_claims/README.md"), f"and DST's saw about {of_dst / 1e6:,.0f} M tokens")
    for name in ("krom_eighth", "krom_bundled"):
        run = json.loads((RESULTS / name / "trained.json").read_text(encoding="utf-8"))["runs"][0]
        assert re.findall(r":(\d+x\d+)", run["config"]["training"]["phases"]) == ["8x64", "8x64", "8x128"]
        says(page(f"results/{name}/README.md"), "steps of 8 × 64 tokens (97 % of them) and 8 × 128 (3 %) on")


def test_krom() -> None:
    found = table("krom_textbooks/alike")
    runs = found["excess_by_seed"].str.split(", ").explode().str.split(": ").str[1].astype(float)
    text = (ROOT / "results" / "krom_textbooks" / "README.md").read_text(encoding="utf-8").split("\n\n")[1]
    low, high, shuffled_low, shuffled_high = re.findall(r"0(\.\d{3}) to 0(\.\d{3})", text)[0] + re.findall(
        r"0(\.\d{3}) to 0(\.\d{3})", text
    )[1]  # fmt: skip
    assert found["cosine"].between(float("0" + low), float("0" + high)).all()
    assert found["shuffled"].between(float("0" + shuffled_low), float("0" + shuffled_high)).all()
    says(SHELF, f"real ones exceed them by {bare(runs.min())} to {bare(runs.max())} in {len(runs)} of {len(runs)} runs")
    assert (runs > 0).all()
    arms = table("krom_textbooks/arms").set_index(["preset", "b_res", "storage", "optimizer", "decay"])
    kept, moved = (arms.loc[("kromhc", -8.0, storage, "adamw", 0.2)] for storage in ("bf16", "fp32"))
    decay = bare(moved["swap_without_gradient"], 4)
    says(
        SHELF,
        f"(mean swap {bare(moved['swap'])}, decay alone {decay}, {COUNT[moved['n']]} runs); "
        f"stored in bf16 the swap stays ({bare(kept['swap'], 4)}, {COUNT[kept['n']]} run)",
    )


# ---- bundled models ----------------------------------------------------------------------------


GATE = table("specimens/phenomena").set_index(["run", "phenomenon"])


def present(phenomenon: str) -> list[str]:
    mine = GATE.xs(phenomenon, level="phenomenon")
    return [run.removeprefix("stories/") for run in mine.index[mine["verdict"] == "present"]]


def named(text: str) -> set[str]:
    return set(re.findall(r"`([\w-]+)`", text))


def trained_on(run: str) -> dict[str, Any]:
    return json.loads((run_folder(run) / "manifest.json").read_text(encoding="utf-8"))


def test_the_gate() -> None:
    runs = GATE.index.get_level_values("run").unique()
    copy, place, induce, gender, pairs = map(present, ("copying", "position", "induction", "gender", "winograd"))
    start = SHELF.index("**What there is to find.**")
    told = SHELF[start : SHELF.index("![LFA's four architectures", start)]
    says(told, f"Of the {COUNT[len(runs)]} bundled models {COUNT[len(copy)]} copy (", f"{len(GATE)} lines")
    assert (
        GATE.xs("capitalization", level="phenomenon")["verdict"].eq("present").all() and "all capitalize names" in told
    )
    for count, models, before, after in (
        (f"{COUNT[len(copy)]} copy", copy, "copy (", ": log-odds"),
        (f"{COUNT[len(place)]} have a head", place, "threshold (", ")"),
        (f"{COUNT[len(induce)]} an induction head of .3", induce, "induction head of .3 (", ")"),
        (f"{COUNT[len(gender)]} tell he from she", gender, "he from she (", ")"),
        (f"{COUNT[len(pairs)]} Winograd pairs apart", pairs, "pairs apart (", ")"),
    ):
        assert count in told, count
        place_of = told.index(before)
        assert named(told[place_of : told.index(after, place_of)]) == set(models), count
    assert not present("reserved") and not present("coreference") and "is shown in none" in told
    assert GATE.xs("attention", level="phenomenon")["verdict"].eq("present").all(), "say where it is stuck or even"


def test_real_stories() -> None:
    loss = table("specimens/zoo-tinystories").query("phenomenon == 'loss'").set_index("run")["value"]
    real = [run for run in loss.index if "tinystories" in json.dumps(trained_on(run)["data"])]
    read, others = loss[real], loss.drop(real)
    uniform = math.log(json.loads((run_folder("stories/lfa") / "config.json").read_text())["model"]["d_vocab"])

    def span(some: pd.Series) -> str:
        low, high = (f"{some[run]:.2f} (`{run.removeprefix('stories/')}`" for run in (some.idxmin(), some.idxmax()))
        return f"{low}) to {high}"

    assert list(others.index) == ["stories/dst-kron"]
    seen = pd.Series({run: opened(run, list(PRESETS)).tokens_seen for run in loss.index})
    says(
        SHELF,
        f"a uniform guess has {uniform:.2f} nats per token, and `dst-kron`, which never saw any, has "
        f"{others.iloc[0]:.2f}",
        f"the {COUNT[len(real)]} {span(read)}; `python",
        f"{COUNT[sum(seen == 11_980_800)]} saw 12.0 M tokens of built-in stories and real TinyStories, `llama` and "
        "`hdpl` 24.0 M, `dst-kron` 6.5 M of the built-in stories alone.",
    )
    assert list(seen[seen == 23_961_600].index) == ["stories/llama", "stories/hdpl"]


def within(row: Any, name: str, digits: int, opens: str = " (") -> str:
    """+2.61 (1.52 to 3.70, the number with its sign, the ends as they are, what comes between as told."""
    low, high = (bare(row[f"{name}_{end}"], digits) for end in ("low", "high"))
    return f"{bare(row[name], digits, True)}{opens}{low} to {high}"


def test_what_the_bundled_lfa_says() -> None:
    found = table("bundled/coherence").set_index("relation")
    whole, events = found.loc["all"], table("bundled/coherence-events").set_index("relation").loc["all"]
    odds = [bare(whole[f"log_odds_{end}"], 2) for end in ("low", "high")]
    share, chance = (
        [f"{100 * one[name]:.1f}" for name in ("share", "share_low", "share_high")] for one in (whole, events)
    )
    says(
        SHELF,
        f"the right noun rather than the other in {share[0]} % ({share[1]} to {share[2]}) of {whole['n']:,} prompts",
        f"(log-odds {bare(whole['log_odds'], 2, True)} nats, 95 % interval {odds[0]} to {odds[1]};",
        f"{within(whole, 'due', 2, ' nats (')}, {whole['controls']:,} prompts; same command)",
        f"{within(found.loc['tool-container'], 'due', 2)}) where the verb tells a tool from a container",
        f"of agents and patients ({within(found.loc['agent-patient'], 'due', 2, ', ')})",
        f"of what is possessed ({within(found.loc['possessor-possessed'], 'due', 2, ', ')}) it is not resolved",
        f"{chance[0]} % of {events['n']:,} ({chance[1]} to {chance[2]}; `--suite story-events`)",
    )
    assert events["share_low"] < 0.5 < events["share_high"]
    assert (found["due_low"] < 0).to_dict() == {
        "all": False, "tool-container": False, "agent-patient": True, "possessor-possessed": True,
    }  # fmt: skip


def test_heads_that_look_at_the_right_noun() -> None:
    found = table("bundled/coreference-stories-held-out").set_index("run")
    found = found[(found["rule"] == "recency") & (found["halves"] == "both")]

    def looks(run: str, over: str) -> tuple[str, str]:
        """80.2 %, and 30.2 points over the rule (24.2 to 36.3, with what stands before the interval as told."""
        row = found.loc[f"stories/{run}"]
        points, low, high = (f"{100 * row[name]:.1f}" for name in ("difference", "ci_low", "ci_high"))
        return f"{100 * row['top1']:.1f} %", f"{points} {over}{low} to {high}"

    says(
        SHELF,
        "in {}, {}; `python".format(*looks("lfa", 'points over the rule "take the most recent" (')),
        "`d-cas` has such a head ({}, {})".format(*looks("d-cas", "points over the rule, ")),
        *(f"`{run}` ({', '.join(looks(run, 'over, '))})" for run in ("kromcanon-bf16", "canon", "dst-kron")),
        "in `kromcanon-b2` the heads chosen, another one on either half and neither resolved alone, lead the rule "
        f"together by {looks('kromcanon-b2', 'points (')[1]};",
    )
    halves = table("bundled/coreference-stories-held-out").query("run == 'stories/kromcanon-b2' and rule == 'recency'")
    halves = halves[halves["halves"] != "both"]
    assert halves["head"].nunique() == 2 == len(halves) and (halves["ci_low"] <= 0).all()
    due = {run: GATE.loc[(f"stories/{run}", "copying")] for run in present("copying")}
    of_the_gate = {run: within(due[run], "value", 3 if run in ("dst-kron", "kromcanon-b2") else 2, "|") for run in due}
    says(
        SHELF,
        "all use the nouns: {} nats ({}), ".format(*of_the_gate["d-cas"].split("|")),
        *("{} ({})".format(*of_the_gate[run].split("|")) for run in ("kromcanon-bf16", "canon", "dst-kron")),
        "{}, {})".format(*of_the_gate["kromcanon-b2"].split("|")),
        *(f"`{run}` ({of_the_gate[run].replace('|', ', ')})" for run in ("std-t", "std-t-rope")),
    )
    says(SHELF, f"`kromhc` has such a head ({', '.join(looks('kromhc', 'over, '))}), and is not shown to use them.")
    assert (found["ci_low"] > 0).all() and {"stories/kromhc"} == set(found.index) - {f"stories/{run}" for run in due}
    rest = COUNT[len(GATE.index.unique("run")) - len(due) - 1]
    says(SHELF, f"The other {rest} show neither (thirty-eight intervals")
    assert GATE.index.unique("run").size == 19


def test_without_that_head() -> None:
    found = table("bundled/following").set_index("role")
    whole, chosen, mean, above = (found.loc[role] for role in ("whole", "chosen", "mean", "above"))
    assert whole["run"] == "dst-kron"
    less, rest = bare(-chosen["change"]), bare(-mean["change"])
    ends = [[bare(-one["ci_high"]), bare(-one["ci_low"])] for one in (chosen, above)]
    says(
        SHELF,
        f"Without that head of `dst-kron`, {chosen['who']}, {less} nats less are ({ends[0][0]} to {ends[0][1]}; "
        f"of {bare(whole['change'])} on the {whole['n']:,} prompts of ",
        f"without another head of its layer {rest} on average (difference {ends[1][0]} to {ends[1][1]})",
    )


# ---- the ledger --------------------------------------------------------------------------------


def test_what_overfits() -> None:
    arms = table("hdpl_overfit/arms").set_index(["preset", "quantity"])
    verdict = table("hdpl_overfit/claims").set_index("quantity")["direction"]
    assert verdict["overfit"] == verdict["matched"] == "holds"
    matched = table("hdpl_overfit/claims").set_index("quantity").loc["matched"]
    more = (
        f"{bare(matched['difference'])} more than the hybrid ({bare(matched['ci_low'])} to {bare(matched['ci_high'])})"
    )

    def of(arm: str, quantity: str) -> str:
        row = arms.loc[(arm, quantity)]
        return f"{bare(row['mean'])} ({bare(row['ci_low'])} to {bare(row['ci_high'])})"

    run = json.loads((RESULTS / "hdpl_overfit" / "trained.json").read_text(encoding="utf-8"))["runs"][0]
    train = run["manifest"]["data"]["train"]
    ((steps, size, length),) = re.findall(r"(\d+):(\d+)x(\d+)", run["config"]["training"]["phases"])
    assert round(int(steps) * int(size) * int(length) / train["n_tokens"]) == 10
    says(SHELF, f"where {train['n_documents']} stories are read about ten times")
    fit = [bare(arms.loc[(arm, "train"), "mean"], 2) for arm in ("hdpl", "llama")]
    says(
        SHELF,
        f"validation loss ends {of('llama', 'overfit').replace(' (', ' nats above its lowest (')}, the hybrid's "
        f"{of('hdpl', 'overfit')}, which holds",
        f"less in as many steps ({fit[0]} against {fit[1]} nats)",
        f"fits it as well it lies {of('llama', 'matched').replace(' (', ' above (')}, {more}, which holds too",
    )


def test_streams_within_a_run() -> None:
    arms = table("krom_streams/arms").set_index(["preset", "quantity"])
    found = table("krom_streams/claims")

    def of(arm: str, quantity: str) -> str:
        row = next(row for key, row in arms.iterrows() if key[0].startswith(f"kromcanon {arm}") and key[1] == quantity)
        return f"{bare(row['mean'], 2)} ({bare(row['ci_low'], 2)} to {bare(row['ci_high'], 2)}"

    assert found["direction"].str.startswith("not resolved").all()
    falls = arms.xs("slope", level="quantity")
    assert (falls["mean"] > 0).all()
    says(
        SHELF,
        f"{COUNT[len(found)]} claims, none resolved",
        f"agree by ρ = {of('-2, fp32', 'stable')})",
        f"more of it added by ρ = {of('-2, fp32', 'helps')}, not resolved after correction)",
        f"from 0 the streams' spread is {of('0, fp32', 'spread').replace(' (', ' of their size (')})",
        f"from −8, where nothing mixes, {of('-8, bf16', 'spread')})",
        "has a mean slope over depth above 0 in each arm",
    )


def test_claims_about_one_model() -> None:
    rows = judged(HERE, RESULTS)
    mine = rows[rows["result"].str.contains("bundled_claims/")]
    n = mine["verdict"].value_counts()
    assert n.sum() == len(mine)
    assert set(mine.loc[mine["verdict"] == "holds", "id"]) == {
        "pls-s54-features-predict", "pls-s23-same-token-different", "pls-s42-two-kinds", "pls-c5-depth-0",
        "pls-c5-depth-1-2", "pls-c5-depth-6", "dst-s26-gates-reveal", "pls-s34-gates-low-less",
    }  # fmt: skip
    assert set(mine.loc[mine["verdict"] == "opposite", "id"]) == {
        "hdpl-s41-bottleneck",
        "pls-c5-catch-all",
        "pls-s34-gates-low",
    }
    of_c2 = table("bundled_claims/needed_context-c2-pairs")
    assert (of_c2.loc[of_c2["window"].eq(6) & of_c2["other"].eq("6"), "beyond_low"] > 0).all()
    assert "negligible" not in set(n.index)
    said = (
        f"of {len(mine)} rows {COUNT[n['holds']]} hold (features of `pls` predict which tokens lean on its first "
        "entity head, one token lies in several clusters of them, gates of `pls` say at which tokens and in which "
        f"clusters a head does less, and in {COUNT[n['holds'] - 4]} what settles early needs less of the text, in `c2` "
        "too), "
        f"{COUNT[n['opposite']]} are opposite (HDPL's latents are no bottleneck "
        "by the paper's own bound, the largest cluster of `pls` is no catch-all, and where a head's gate is low "
        "throughout a cluster it is not inactive), "
        f"{n['not resolved']} are not resolved, {n['other value']} "
        f"have another value, {n['phenomenon absent']} are absent, {n['cannot do the task']} are of tasks that the "
        "models"
    )
    says(SHELF, said)
    says(SHELF, f"Every claim of the papers, some {100 * round(len(rows) / 100)}, stands in a ledger")
    assert "not measured yet" not in set(rows["verdict"])
    missing = rows[rows["verdict"] == "not measurable here"]
    assert missing["said"].str.len().gt(20).all() and len(missing)
    says(SHELF, "No row waits to be measured; one that cannot be measured here says what it would take")


def test_what_bundled_pls_needs_and_its_clusters() -> None:
    said = page("results/bundled_claims/README.md")

    def told(row: pd.Series, name: str, digits: int = 3, sign: int = 1) -> str:
        low, high = sorted(sign * row[f"{name}_{end}"] for end in ("low", "high"))
        return f"{bare(sign * row[name], digits)} ({bare(low, digits)} to {bare(high, digits)})"

    by, pairs = (table(f"bundled_claims/needed_context{end}").query("window == 6") for end in ("", "-pairs"))
    by, pairs = by.set_index("depths"), pairs.set_index(["depths", "other"])
    control = table("bundled_claims/needed_context-c2-pairs").query("window == 6").set_index(["depths", "other"])
    n, tokens = by["clusters"].iloc[0], by.loc["0-4", "tokens"] + by.loc["6", "tokens"]
    says(
        said,
        f"({n} documents, {tokens:,} tokens from position 32 on) {bare(by.loc['0-1', 'kept'])} of the",
        f"and {bare(by.loc['6', 'kept'])} of those that settle last",
        f"the difference is {told(pairs.loc['0-1', '6'], 'beyond')}, and it *holds*",
        f"over all later ones, {told(pairs.loc['0', '1-6'], 'beyond')}, for k* 1 and 2 over 6, "
        f"{told(pairs.loc['1-2', '6'], 'beyond').removesuffix(')')}; k* 0 is over them by "
        f"{told(pairs.loc['0', '1-2'], 'beyond').replace(' (', ', ').removesuffix(')')})",
        f"for all others over 6, {told(pairs.loc['0-4', '6'], 'beyond')}",
        f"the first of these is {told(control.loc['0-1', '6'], 'beyond')}",
    )
    same = table("bundled_claims/modes-pls-same_token").iloc[0]
    far = table("bundled_claims/profile-pls-distances").set_index("cluster").loc[0]
    finer, greedy, ghosts = (
        table(f"bundled_claims/{name}-parts").set_index("of") for name in ("finer", "aggressive", "ghosts")
    )
    fewer = ghosts.loc["clusters"]
    less = told(finer.loc["coverage"], "difference", sign=-1).replace(" (", " fewer of the tokens (")
    says(
        said,
        f"different clusters of features in {bare(same['features'])} of cases, in different clusters of raw "
        f"activations in {bare(same['raw'])} ({told(same, 'more').replace(' (', ' more, ')}: it *holds*",
        f"they lie {bare(-far['farther'], 2)} sds ({bare(-far['farther_high'], 2)} to {bare(-far['farther_low'], 2)})",
        f"give {finer.loc['clusters', 'difference']:.1f} more clusters than the largest alone "
        f"(−{-finer.loc['clusters', 'difference_low']:.1f} to +{finer.loc['clusters', 'difference_high']:.1f}, "
        f"of {finer.loc['clusters', 'own']:.0f}), *not resolved*, and hold {less}",
        f"there are {greedy.loc['clusters', 'difference']:.0f} more clusters "
        f"({greedy.loc['clusters', 'difference_low']:.0f} to {greedy.loc['clusters', 'difference_high']:.0f})",
        f"(ARI {told(greedy.loc['ari'], 'difference').replace(' (', ', ')}, *not resolved* after correction",
        f"there are {fewer['difference']:.0f} fewer clusters ({fewer['difference_low']:.0f} to "
        f"{fewer['difference_high']:.0f}), which hold {told(ghosts.loc['coverage'], 'difference', sign=-1)} more ",
        f"no less for certain (ARI −{bare(ghosts.loc['ari', 'difference'])}, "
        f"{bare(-ghosts.loc['ari', 'difference_high'])} to "
        f"{bare(-ghosts.loc['ari', 'difference_low'], sign=True)}), *not resolved*",
        f"in the {far['clusters']} documents that hold one",
    )
    rng, uneven = np.random.default_rng(0), table("bundled_claims/routing")["uneven"]
    drawn = np.array([unevenness(rng.normal(size=(6, 6))) for _ in range(4000)])
    low, high = np.quantile(drawn, (0.025, 0.975))
    assert uneven.max() < high
    slope = table("bundled_claims/claims").query("quantity.str.contains('uneven')").iloc[0]
    says(
        said,
        f"by {bare(-slope['difference'])} a layer ({bare(slope['ci_low'])} to {bare(slope['ci_high'], sign=True)})",
        f"30 normal weights have {bare(drawn.mean(), 2)} ({bare(low, 2)} to {bare(high, 2)} in 95 % of draws), and of "
        f"the {COUNT[len(uneven)]} matrices {COUNT[(uneven < low).sum()]} have less, none more "
        f"({bare(uneven.min())} to {bare(uneven.max())})",
    )
    anchor = table("bundled_claims/ablation_effects-c2").query("task == 'capitalization' and group == 'anchor'").iloc[0]
    loss = table("bundled_claims/steer_heads-loss").query("scale == 1.5").iloc[0]
    says(
        said,
        f"by {told(anchor, 'above', 4, -1).replace(' (', ' more than random pairs do (')}, *not resolved*",
        f"by {bare(loss['change'], 4)} nats ({bare(loss['change_low'], 4)} to +{bare(loss['change_high'], 4)};",
    )


def test_what_gates_and_streams_of_one_model_say() -> None:
    page = (RESULTS / "bundled_claims" / "README.md").read_text(encoding="utf-8")
    gates = table("bundled_claims/token_effects-gates").set_index("edit")
    every, heads = gates.loc["all heads"], gates.drop(index="all heads")
    told = heads["beyond_p_holm"] < 0.05
    assert (heads.loc[told, "beyond"] > 0).all()
    low, high = bare(every["own_low"]), bare(every["own_high"])
    ends = f"({bare(every['beyond_low'])} to {bare(every['beyond_high'])})"
    says(
        page,
        f"changes by {bare(every['own'])} nats more ({low} to {high}, mean of {len(heads)} heads, "
        f"{every['n']} documents)",
        f"by {bare(every['beyond'])} more {ends} than by the gate",
        f"told from 0 in {told.sum()} of {len(heads)} after correction, on the other side in none",
    )
    modes = table("bundled_claims/token_effects-modes").set_index("edit")
    every, heads = modes.loc["all heads"], modes.drop(index="all heads")
    told = heads["beyond_p_holm"] < 0.05
    assert (heads.loc[told, "beyond"] < 0).all() and (heads["low"] > 0.1).all() and heads["low"].notna().all()
    says(
        page,
        f"by {bare(every['low'], 2)} ({bare(every['low_low'], 2)} to {bare(every['low_high'], 2)}) of what it does",
        f"in the others by {every['other']:.2f}",
        f"of single heads {bare(heads['low'].min(), 2)} to {bare(heads['low'].max(), 2)}",
        f"by {bare(-every['own'], 2)} ({bare(-every['own_high'], 2)} to {bare(-every['own_low'], 2)})",
        f"by {bare(-every['beyond'], 2)} more ({bare(-every['beyond_high'], 2)} to {bare(-every['beyond_low'], 2)})",
        f"told from 0 in {told.sum()} of {len(heads)} after correction, on the other side in none. Documents",
    )
    at = {run: table(f"bundled_claims/linear-{run}").set_index("hook") for run in ("lfa", "std-t", "std-t-rope")}
    share = {run: 100 * frame["accuracy"] for run, frame in at.items()}
    last, own = at["lfa"].loc["blocks.5.hook_context_post"], share["lfa"]
    mixed, rope = (
        (share[run]["blocks.0.hook_resid_post"], share[run]["blocks.5.hook_resid_post"]) for run in at if run != "lfa"
    )
    says(
        page,
        f"the commonest eighth is {100 * last['majority']:.1f} %",
        f"in {100 * last['accuracy']:.1f} % of {last['n']:,} cases ({100 * last['accuracy_low']:.1f} to "
        f"{100 * last['accuracy_high']:.1f}) in the last layer and "
        f"{own['blocks.0.hook_context_post']:.1f} % in the first",
        f"From its token stream it tells {own['blocks.5.hook_token_post']:.1f} %",
        f"it tells {share['std-t']['blocks.0.hook_resid_pre']:.1f} % before layer 0, "
        f"{share['std-t']['blocks.1.hook_resid_post']:.1f} % behind layer 1 and {mixed[1]:.1f} % in the last",
        f"{rope[0]:.1f} % behind layer 0 and {rope[1]:.1f} % in the last",
    )


def test_the_bundled_pair_of_pls() -> None:
    found = table("pls_bundled/claims")
    by = {heads: verdicts(found[found["heads"] == heads]).to_dict() for heads in ("named", "found")}
    assert by["found"] == {"no such head": 17}
    cannot = by["named"]["the model cannot do the task"]
    odds = table("pls_bundled/competence").set_index(["task", "preset"])["log_odds"]
    says(
        SHELF,
        "of 17 claims about heads that attention finds none has its heads, for in every entity and anchor role one "
        "found head is not above shuffled roles",
        f"{cannot} of the others need telling he from she, which neither does",
        f"both capitalize names (log-odds {odds['capitalization', 'pls']:+.1f} and "
        f"{odds['capitalization', 'c2']:+.1f} nats)",
    )


def test_the_sweep_of_krom() -> None:
    order = table("krom_eighth/order").set_index("claim")
    first, second = order.loc["kromcanon < canon"], order.loc["canon < gpt2"]
    assert (first["direction"], second["direction"]) == ("holds", "opposite")
    below = f"{bare(first['difference'])} below canon's ({bare(first['ci_low'])} to {bare(first['ci_high'])})"
    above = f"{bare(-second['difference'])} above gpt2's ({bare(-second['ci_high'])} to {bare(-second['ci_low'])})"
    says(SHELF, f"kromcanon's loss lies {below}", f"canon's lies {above}, opposite")
    order = order[["difference", "ci_low", "ci_high", "direction"]]
    hyper, both = order.loc["kromhc < gpt2"], order.loc["kromcanon < kromhc"]
    assert (hyper["direction"], both["direction"]) == ("holds", "opposite")
    online = table("krom_eighth/online-gaps").set_index("claim")
    text, same = online.loc["canon < gpt2"], -online.loc["kromcanon < kromhc", ["difference", "ci_low", "ci_high"]]
    assert text["ci_low"] > 0 > same["ci_high"] and same["ci_low"] > 0
    other = table("krom_eighth/differences").query("quantity == 'loss'").copy()
    other.index = other["claim"].str.extract(r"kromhc\+(\w+)")[0]
    assert other.loc["hc", "finding"] == "less"
    assert other.drop(index="hc")["finding"].str.startswith("not resolved").all() and len(other) == 4

    def ends(row: pd.Series, sign: int = 1) -> str:
        low, high = sorted(sign * row[name] for name in ("ci_low", "ci_high"))
        return f"{bare(sign * row['difference'])} {{}}({bare(low)} to {bare(high)})"

    def beside(kind: str) -> str:
        return ends(other.loc[kind]).format("").replace(" (", ", ").rstrip(")")

    says(
        SHELF,
        f"kromhc's {ends(hyper).format('below gpt2’s ').replace('’', chr(39))}, as printed",
        f"kromcanon's {ends(both, -1).format('above kromhc’s ').replace('’', chr(39))}, opposite",
        f"canon lies {ends(text).format('below gpt2 ')}",
        "version 4 of the stories at a stage that the training text lacks (it has two others, version 3 and "
        "TinyStories)",
        f"unconstrained HC ends {ends(other.loc['hc'], -1).format('lower ')}",
        f"mHC ({beside('mhc')}), mHC-lite ({beside('mhc_lite')}) and streams that never mix "
        f"({beside('freeze_res')}) are not told from it",
        f"are not told apart ({bare(same['difference'])}, {bare(same['ci_high'])} to {bare(same['ci_low'])})",
    )
    run = json.loads((RESULTS / "krom_eighth" / "trained.json").read_text(encoding="utf-8"))["runs"][0]
    parts = [part.split("*")[0].strip() for part in run["config"]["data"]["data"].split(" + ")]
    assert [part.split(":")[0] for part in parts] == ["stories", "stories4", "stories4", "data/tinystories/train.txt"]
    stages = [part.split(":")[3] for part in parts if part.startswith("stories4")]
    assert stages == ["0", ".5"] and run["config"]["data"]["valid"] == "stories4:1:300", "a stage of 1, the default"
    rows = judged(HERE, RESULTS).set_index("id")
    assert f"canon lies {bare(text['difference'])} nats below" in rows.loc["krom-order-canon-below-gpt2", "why"]
    said = table("krom_eighth/sweep-claims")
    bf16 = said[said["claim"].str.contains("bf16") & said["quantity"].isin(["mixed", "in use"])]
    assert (bf16["direction"] == "holds").all() and len(bf16) == 2
    alike = said[said["quantity"] == "loss"].iloc[0]
    assert alike["direction"].startswith("holds: within ±0.01")
    ends = [bare(alike[name]) for name in ("difference", "ci_low", "ci_high")]
    means = table("krom_eighth/sweep").assign(arm=lambda t: t["preset"].str.split(", adamw").str[0])
    means = means.set_index(["quantity", "arm"])

    def at(quantity: str, arm: str, sign: int = 1) -> str:
        one = means.loc[(quantity, arm)]
        low, high = sorted(sign * one[name] for name in ("ci_low", "ci_high"))
        return f"{bare(sign * one['mean'])}{{}} ({bare(low)} to {bare(high)})"

    says(
        SHELF,
        f"({ends[0]}, {ends[1]} to {ends[2]}), as the blog says",
        f"−8 ends at {at('in use', 'kromcanon -8, fp32').format(' in use')} and −2 at "
        f"{at('in use', 'kromcanon -2, fp32').format('')}",
        f"static swap is {at('mixed', 'kromcanon -2, fp32', -1).format(' less than decay alone gives')}",
        f"({bare(means.loc[('in use', 'kromcanon -8, bf16'), 'mean'], 4)} in use; two claims hold)",
    )
    more = said[said["quantity"].eq("in use") & said["claim"].str.contains(" > ")].iloc[0]
    assert more["direction"].startswith("not resolved") and more["alone"] == "holds"
    streams = table("krom_eighth/alike-claims").set_index(["claim", "quantity"])
    jump = next(row for (claim, q), row in streams.iterrows() if " > " in claim and q == "cosine")
    left = next(row for (claim, q), row in streams.iterrows() if "-2" in claim and "above" in claim and q == "excess")
    assert jump["direction"] == "holds" and left["direction"].startswith("negligible")
    says(
        SHELF,
        f"is {bare(jump['difference'])} higher from −2 than from −8 "
        f"({bare(jump['ci_low'])} to {bare(jump['ci_high'])})",
        f"{bare(left['difference'])} ({bare(left['ci_low'])} to {bare(left['ci_high'])}), negligible",
    )
    signs = table("krom_eighth/signs").query("preset == 'kromcanon' and b_res == -2 and storage == 'fp32'").iloc[0]
    says(SHELF, f"Of {signs['modules']} modules that can act {signs['consistent']} keep the sign of α over three seeds "
                f"from −2, {signs['modules'] * signs['dealt']:.1f} by chance")  # fmt: skip
    largest = table("krom_eighth/signs-claims").query("quantity == 'largest'")
    assert largest[largest["claim"].str.startswith("kromcanon -2")]["direction"].str.contains("in 0 of 3 seeds").all()


def test_the_bundled_starts_of_krom() -> None:
    mixing = table("krom_bundled/mixing").set_index(["b_res", "storage"])
    best = table("krom_bundled/factors").groupby(["b_res", "storage"])["swap_best"].max()
    frozen, alive = best[-8, "bf16"], best[-8, "fp32"]
    mixes = mixing["n_mix"]
    says(
        SHELF,
        f"from −8 stored in bf16 no factor could swap more than {100 * frozen:.1f} % (printed: .4 %), stored in fp32 "
        f"up to {100 * alive:.0f} %",
        f"beyond what decay alone does {COUNT[mixes[-2, 'fp32']]} of {mixing.loc[(-2, 'fp32'), 'factors']} factors mix "
        f"from −2, {COUNT[mixes[-8, 'fp32']]} from −8 in fp32, {COUNT[mixes[-8, 'bf16']]} in bf16",
    )


@pytest.mark.parametrize("name", sorted(path.parent.name for path in RESULTS.glob("*/README.md")))
def test_every_folder_of_results_has_its_line(name: str) -> None:
    assert f"[{name}]({name}/README.md)" in SHELF and Path(RESULTS / name / "README.md").is_file()


def test_text_that_only_repeats() -> None:
    """The page's cells, and the rule of echo.toml on them: no setting passes in two of the three models."""
    gain, loss = (table(f"recipe/echo-{name}") for name in ("48", "loss"))
    gain = gain[gain["phenomenon"] == "repeats"].set_index("run")["value"]
    loss, text = loss.set_index("run")["value"], page("results/recipe/README.md")
    lines = {
        "e0": "no echo (control)",
        "e15": "15 % echo",
        "e30": "30 % echo",
        "late": "30 % echo in the last 30 % of it",
    }
    passed = dict.fromkeys(lines, 0)
    for end, name in lines.items():
        cells = []
        for preset in ("std-t", "d-cas", "lfa"):
            here, control = (f"{preset} (runs/echo/{preset}-{which}-s0)" for which in (end, "e0"))
            passes = end != "e0" and gain[here] - gain[control] >= 0.5 and loss[here] - loss[control] <= 0.06
            passed[end] += passes
            value = bare(gain[here], 2)
            cells.append(f"{f'**{value}**' if passes else value}, {loss[here]:.3f}")
        says(text, f"| {name} | {' | '.join(cells)} |")
    assert max(passed.values()) == 1


def test_the_scorecard_of_an_eighth() -> None:
    between, against, arms = (table(f"scorecard_eighth/{name}") for name in ("between", "against", "arms"))
    size = arms[arms["quantity"] == "loss"]
    assert len(size) == 23 and set(size["n"]) == {3}
    tested, found = ([int(x.sum()) for x in (one["p"].notna(), one["p_holm"] <= 0.05)] for one in (between, against))
    says(
        SHELF,
        "twenty-three arms of three seeds each",
        f"{tested[1]} of the {tested[0]} quantities that can be tested differ between architectures (Holm); "
        f"{found[1]} of {found[0]} differences to `std-t` with RoPE are resolved",
        "copying and gender are above 0 in no arm, and no module of hyper-connections mixes beyond decay",
    )
    assert not (arms[arms["quantity"].isin(["copying", "gender"])]["ci_low"] > 0).any()
    assert arms[arms["quantity"] == "mixing"]["mean"].dropna().tolist() == [0.0] * 4
