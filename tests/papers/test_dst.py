"""Paper DST: printed areas by hand, streams known on paper, attention scored another way, the command."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from scipy import stats

from streamscope.cli.errors import InputError
from streamscope.interventions.amplify.measure import AXES, trapezoid
from streamscope.interventions.streams.measure import PAPER
from streamscope.models.checkpoint import load
from streamscope.models.config.presets import preset as make
from streamscope.models.config.serialization import to_dict
from streamscope.models.hooks import edit
from streamscope.models.train import main as train
from streamscope.models.training.data import evaluation_shards
from streamscope.papers.claims import HERE, RESULTS
from streamscope.papers.claims.judged import judged as ledger_of
from streamscope.papers.comparison.printed import printed
from streamscope.papers.comparison.runs import Run, trained_runs
from streamscope.papers.dst import Settings, main
from streamscope.papers.dst.calibration import claims as calibrated
from streamscope.papers.dst.claims import (
    PAPER_ALPHAS,
    TABLE1,
    TABLE4,
    TABLE5,
    TABLE8,
    orders,
    printed_value,
    straightness,
)
from streamscope.papers.dst.factors import MODES, Cells, with_doses
from streamscope.papers.dst.measure import amplified, costs, dual, measure_run, straight
from streamscope.papers.dst.report import claims_judged, in_arms, losses_compared, open_runs
from tests.conftest import ROOT
from tests.papers.pages import changed, once_more, planted, refused, short_page, unexplained
from tests.tiny import arguments

SHORT = ["--steps", "2"]
DENSE, KRON, IND = (f"dst-{mixing}+frozen_token" for mixing in ("dense", "kron", "ind"))


# ---- what the paper prints ---------------------------------------------------------------------


def area(losses: tuple[float, ...], kind: str, axis: str) -> float:
    """Area under printed losses at α = 1, 2, 4, 8, 16 in a reading of `interventions.amplify.measure`."""
    y, a = np.asarray(losses), np.asarray(PAPER_ALPHAS)
    values = {"raw": y, "excess": y - y[0], "relative": 100 * (y / y[0] - 1), "perplexity": np.exp(y)}
    return float(a @ y if kind == "weighted" else trapezoid(AXES[axis](a)) @ values[kind])


def test_areas_under_the_printed_losses() -> None:
    """By hand: steps of α are 1, 2, 4 and 8; means of neighbours 1.83, 1.92, 2.035, 2.125 (dense)."""
    assert area(TABLE5[DENSE], "raw", "linear") == pytest.approx(1.83 + 2 * 1.92 + 4 * 2.035 + 8 * 2.125)
    found = {kind: {p: area(y, kind, "linear") for p, y in TABLE5.items()} for kind in ("raw", "excess", "weighted")}
    for kind, order in (("raw", False), ("excess", True), ("weighted", True)):
        kron_first = found[kind][KRON] < found[kind][DENSE] < found[kind][IND]
        assert kron_first == order, kind
        gap = {p: found[kind][p] - printed_value(p, "area.raw.linear") for p in (DENSE, KRON, IND)}
        assert all(abs(x) > 5 for x in gap.values()), "no reading gives the printed areas"
    relative = {p: area(y, "relative", "linear") for p, y in TABLE5.items()}
    assert relative[KRON] == pytest.approx(100 * found["excess"][KRON] / 1.84)
    assert area(TABLE5[DENSE], "perplexity", "log2") == pytest.approx(29.1, abs=0.05)  # SPEC 7.3


def test_printed_changes_follow_from_printed_losses() -> None:
    for definition, row in TABLE4.items():
        loss, change = printed(f"dst-t4-loss-{row}"), printed(f"dst-t4-change-{row}-everywhere")
        assert 100 * (loss / 2.85 - 1) == pytest.approx(change, abs=0.6), definition
    assert {printed(f"dst-t4-change-{row}-everywhere") for row in TABLE4.values()} == set(PAPER.values())
    assert [round(100 * printed_value(p, "degradation.16")) for p in TABLE5] == [20, 16, 27, 27]
    assert printed_value("dst-ind", "loss") == TABLE1["dst-ind"] and np.isnan(printed_value("lfa", "loss"))
    assert printed_value("dst-kron", "loss") == 2.48 and printed_value("dst-kron", "loss", "Table 2") == 2.67
    assert printed_value("dst-kron+16heads", "specialization", "Table 3") == 0.85
    assert {f"{n}+frozen_token": x for n, x in TABLE1.items()} == TABLE8
    assert printed_value(KRON, "loss") == 2.48 and printed_value(KRON, "loss", "Table 2") == 2.66
    assert np.isnan(printed_value("dst-kron", "degradation.16")), "Table 5 has frozen-token models alone"


def claims(table: pd.DataFrame, *alphas: tuple[float, ...]) -> pd.DataFrame:
    return claims_judged(table, *alphas)["claims"]


def test_heads_and_modes_are_arms_that_are_judged_as_tables_2_and_3_say() -> None:
    table = planted({
        ("dst-kron+4heads", "specialization"): [0.30, 0.33, 0.31],
        ("dst-kron+16heads", "specialization"): [0.6, 0.63, 0.6],
        ("dst-kron+4heads", "entropy"): [2.0, 2.1, 2.05], ("dst-kron+16heads", "entropy"): [2.5, 2.61, 2.55],
        ("dst-kron", "loss"): [2.0, 2.05, 2.02], ("dst-kron+single", "loss"): [1.9, 1.94, 1.92],
    })  # fmt: skip
    found = claims(table).set_index(["claim", "quantity"])
    assert found.loc[("dst-kron+16heads > dst-kron+4heads", "specialization"), "direction"] == "holds"
    assert found.loc[("dst-kron+16heads > dst-kron+4heads", "specialization"), "paper"] == pytest.approx(0.43)
    assert found.loc[("dst-kron+4heads > dst-kron+16heads", "entropy"), "direction"] == "opposite"
    loss = found.loc[("dst-kron > dst-kron+single", "loss")]
    assert loss["direction"] == "holds" and loss["paper"] == pytest.approx(0.09), "of Table 2, not of Table 1"


def test_costs_are_shares_of_the_dense_or_the_single_model_of_the_same_seed() -> None:
    """Losses on paper: dense 2, independent 2.2, all independent 2.6, so 10 % and 30 %, the FFN 10 points more."""
    loss = {"dst-dense": 2.0, "dst-ind": 2.2, "dst-full-ind": 2.6, "dst-kron": 2.1, "dst-kron+single": 1.75}
    loss |= {"dst-dense+frozen_token": 4.0, "dst-kron+frozen_token": 5.0, "dst-kron@1000": 9.0, "dst-kron+4heads": 9.0}
    found = costs(planted({(arm, "loss"): [x, 2 * x] for arm, x in loss.items()}))
    values = found.set_index(["preset", "quantity", "seed"])["value"]
    assert values["dst-ind", "cost", 0] == values["dst-ind", "cost", 1] == pytest.approx(0.1)
    assert values["dst-full-ind", "cost", 0] == pytest.approx(0.3)
    assert values["dst-full-ind", "cost.ffn", 0] == pytest.approx(0.1), "(2.6 − 2.2) − (2.2 − 2) of 2"
    assert values["dst-kron", "cost.single", 1] == pytest.approx(0.2)
    assert values[KRON, "cost", 0] == pytest.approx(0.25), "beside the dense model whose token stream is frozen too"
    assert set(found["preset"]) == {"dst-ind", "dst-full-ind", "dst-kron", KRON}, "no snapshot, no other width of head"
    assert not len(costs(planted({("lfa", "loss"): [1.0]})))


# ---- verdicts ----------------------------------------------------------------------------------


def test_streams_are_judged_at_both_places_and_areas_over_the_papers_alpha() -> None:
    table = planted({
        ("dst-kron", "gap.random.head"): [0.10, 0.12, 0.11], ("dst-kron", "degradation.16"): [0.16, 0.17, 0.18],
        ("dst-kron", "gap.zero.head"): [-0.9, -0.92, -0.91], ("dst-kron", "gap.zero.everywhere"): [0.33, 0.03, 0.12],
        (KRON, "degradation.16"): [0.16, 0.17, 0.18], (DENSE, "degradation.16"): [0.199, 0.207, 0.215],
        (DENSE, "area.excess.linear"): [3.0, 3.2, 3.1], (KRON, "area.excess.linear"): [3.3, 3.1, 3.4],
    })  # fmt: skip
    table.loc[table["quantity"].str.startswith("gap"), "family"] = "streams"
    found = claims(table)
    rows = found[(found["quantity"] == "gap.random.head")].set_index("claim")
    assert rows.loc["dst-kron above 0", "direction"] == "holds" and rows.loc["dst-kron above 0", "runs"] == "3 of 3"
    assert list(rows.index) == ["dst-kron above 0"], "Table 4's opposite reading is no claim of its own"
    zero = found[found["quantity"].str.startswith("gap.zero")].set_index("quantity")
    assert zero.loc["gap.zero.head", ["direction", "runs"]].tolist() == ["opposite", "0 of 3"]
    assert zero.loc["gap.zero.everywhere", ["direction", "runs"]].tolist() == ["not resolved at n=3 seeds", "3 of 3"]
    order = found[(found["quantity"] == "degradation.16") & (found["claim"] == f"{DENSE} > {KRON}")].iloc[0]
    assert (order["direction"], order["size"]) == ("holds", "printed value inside")  # 20 % − 16.3 %
    lost = found[found["quantity"] == "area.excess.linear"].iloc[0]
    assert lost["runs"] == "1 of 3" and lost["size"] == "" and np.isnan(lost["paper"])
    ordered = found[found["claim"].str.contains(">")]
    given = [o for o in orders() if {o.more, o.less} <= {KRON, DENSE, "dst-kron"}]
    assert len(ordered) == len(given) < len(orders()), "no claim about presets that are not given"
    other = claims(table, (1.0, 2.0))
    assert set(found["quantity"]) - set(other["quantity"]) == {
        *(f"area.{k}.linear" for k in ("raw", "excess", "relative")), "straight.linear", "straight.log2"
    }  # fmt: skip


def test_the_largest_weights_are_those_of_the_tables_and_of_fig_4s_layer() -> None:
    """Means over the heads of a layer by hand; a model without layer 3 has none, and its claim a reason."""
    curve = pd.DataFrame([
        {"preset": p, "seed": s, "alpha": a, "loss": 3.0, "peak": x, "entropy": 2 - x, "unchanged": x / a, "n": 100}
        for p, values in (("dst-kron", (0.9, 0.91, 0.92)), ("dst-ind", (0.4, 0.39, 0.38)))
        for s, peak in enumerate(values)
        for a, x in ((1.0, peak / 2), (16.0, peak))
    ])  # fmt: skip
    heads = pd.DataFrame([
        {"preset": "dst-kron", "seed": s, "alpha": 16.0, "layer": layer, "peak": x}
        for s, layer, x in ((0, 3, 0.8), (0, 3, 0.9), (0, 2, 0.1), (1, 3, 0.86))
    ])  # fmt: skip
    table = amplified(curve, heads)
    values = table.set_index(["preset", "seed", "quantity"])["value"]
    assert values["dst-kron", 0, "peak.L3.16"] == pytest.approx(0.85) and values["dst-kron", 0, "peak.1"] == 0.45
    assert values["dst-kron", 0, "spread.1"] == 1.55 and values["dst-kron", 0, "unchanged.16"] == 0.9 / 16
    assert ("dst-kron", 0, "unchanged.1") not in values.index, "the same keys by definition"
    found = claims(table).set_index(["quantity", "claim"])["direction"]
    assert found["peak.16", "dst-kron above 0.5"] == "holds" and found["peak.16", "dst-ind above 0.5"] == "opposite"
    assert found["peak.L3.16", "dst-ind above 0.5"] == "undefined: not measured on dst-ind"


def test_a_curve_is_straight_over_the_axis_that_it_was_drawn_on() -> None:
    """Planted lines over α and over log2 α, and r² as 1 − residual / total of a fit of another function."""
    alphas = [1.0, 2.0, 4.0, 8.0, 16.0]
    drawn = {KRON: lambda a: 2 + 0.05 * np.log2(a), "dst-ind": lambda a: 2 + 0.05 * a, "dst-dense": lambda a: 0 * a + 2}
    curve = pd.DataFrame([
        {"preset": arm, "seed": s, "alpha": a, "loss": float(f(a)) * (1 + s / 10)}
        for arm, f in drawn.items() for s in (0, 1, 2) for a in reversed(alphas)
    ])  # fmt: skip
    table = straight(curve)
    values = table.set_index(["preset", "seed", "quantity"])["value"]
    assert values[KRON, 1, "straight.log2"] == pytest.approx(1) == values["dst-ind", 1, "straight.linear"]
    x, y = np.array(alphas), np.log2(alphas)
    residual = y - np.polynomial.Polynomial.fit(x, y, 1)(x)
    other = 1 - (residual**2).sum() / ((y - y.mean()) ** 2).sum()
    assert values[KRON, 0, "straight.linear"] == pytest.approx(other) == values["dst-ind", 0, "straight.log2"]
    assert other < 0.95, "so the limit tells which axis it is"
    still = table[table["preset"] == "dst-dense"]
    assert still["value"].isna().all() and set(still["undefined"]) == {
        "value, sd, ci_low, ci_high: the loss does not move"
    }
    two = straight(curve[curve["alpha"] < 4])
    assert two["value"].isna().all() and set(two["undefined"]) == {"value, sd, ci_low, ci_high: fewer than three α"}
    assert round(straightness(TABLE5[KRON]), 2) == 0.83 and round(straightness(TABLE5[KRON], axis="log2"), 2) == 0.99


def test_only_the_kronecker_model_is_said_to_grow_along_a_line() -> None:
    """The paper does not say over which axis."""
    lines = {("dst-ind+frozen_token", "straight.linear"): [0.8, 0.81, 0.82]}
    lines |= {(KRON, "straight.linear"): [0.8, 0.81, 0.82], (KRON, "straight.log2"): [0.98, 0.985, 0.99]}
    found = claims(planted(lines)).query("quantity.str.startswith('straight')").set_index(["quantity", "claim"])
    assert found["direction"].to_dict() == {
        ("straight.log2", f"{KRON} above 0.95"): "holds", ("straight.linear", f"{KRON} above 0.95"): "opposite"
    }  # fmt: skip


def test_a_gap_within_the_smallest_effect_of_interest_is_negligible_however_sure() -> None:
    """Random words cost .016 % of the loss more than zero, in every seed: a sign, and nothing."""
    table = planted({("dst-kron", "gap.random.head"): [0.00016, 0.00018, 0.00015]})
    table["family"], table["unit"] = "streams", "share of the loss"
    row = claims(table).set_index("quantity").loc["gap.random.head"]
    assert row["ci_low"] > 0 and row["p"] < 0.05
    assert (row["direction"], row["smallest"]) == ("negligible: within ±0.01", 0.01)


def test_the_papers_own_degradations_keep_its_bounds() -> None:
    own = {
        ("dst-ind", "degradation.16"): [0.2727, 0.2728, 0.2726],
        ("dst-kron", "degradation.16"): [0.163, 0.164, 0.162],
    }
    found = claims(planted(own)).set_index("claim")["direction"]
    for claim in ("dst-ind below 27.5%", "dst-ind above 15.5%", "dst-kron above 15.5%"):
        assert found[claim] == "holds"


# ---- initialization and tokens as factors ------------------------------------------------------


def cell(init: str = "normal", steps: int = 200, seed: int = 0, preset: str = "dst-kron", **parts: Any) -> Run:
    """A run of a preset that began by a rule, as it was after some of its 200 steps of 4 × 32 tokens."""
    model = to_dict(make(preset, "tiny", **{"init.weights": init, "init.embed": init, **parts}))
    manifest = {"seed": seed, "scale": "tiny", "steps": steps, "of_steps": 200, "step": steps}
    config = {"model": json.loads(json.dumps(model)), "training": {"batch_size": 4}}
    return Run(Path(f"{preset}-{seed}"), preset, seed, manifest, config)


CROSSED = [(init, steps) for init in ("normal", "fan_in_normal") for steps in (100, 200)]
ARMS = ("dst-kron@100", "dst-kron", "dst-kron+fan_in_normal@100", "dst-kron+fan_in_normal")
BELOW, ABOVE, AROUND, LEAST = [-0.9, -0.92, -0.91], [0.3, 0.31, 0.33], [-0.2, 0.1, 0.2], [0.001, 0.002, 0.0015]


def crossed(values: dict[str, list[float]], quantity: str = "gap.zero.head", **parts: Any) -> dict[str, pd.DataFrame]:
    """Judged: a planted quantity of the cells named, three seeds each."""
    runs = [cell(*one, seed, **parts) for one in CROSSED for seed in range(3)]
    table = planted({(arm, quantity): x for arm, x in values.items()})
    given = Cells([run for run in in_arms(runs) if run.arm in values])
    tables = claims_judged(table.assign(family="streams", unit="share of the loss"), cells=given)
    return {name: one[one["quantity"] == quantity] for name, one in tables.items()}


def verdict(values: dict[str, list[float]]) -> str:
    return str(crossed(values)["claims"].set_index("quantity").loc["gap.zero.head", "direction"])


def test_runs_that_began_otherwise_or_are_snapshots_are_cells_of_their_model() -> None:
    runs = in_arms([cell(*one) for one in CROSSED] + [cell("normal", preset="dst-dense")])
    assert [run.arm for run in runs] == ["dst-dense", "dst-kron", "dst-kron+fan_in_normal", *ARMS[2::-2]]
    cells = Cells(runs)
    assert next(iter(cells.of("dst-kron"))) == "dst-kron" and set(cells.of("dst-kron")) == set(ARMS)
    assert cells.models([run.arm for run in runs]) == ["dst-dense", "dst-kron"]
    most = in_arms([cell("fan_in_normal", preset="dst-dense"), cell("fan_in_normal"), cell("normal")])
    assert [run.arm for run in most] == ["dst-dense", "dst-kron", "dst-kron+normal"], "what most arms have has no name"
    half: dict[str, Any] = {"init.weights": "fan_in_normal", "init.weights.gain": 0.5}
    assert in_arms([cell("normal"), cell(**half)])[1].arm == "dst-kron+fan_in_normal.gain=0.5/normal"
    assert [run.arm for run in in_arms([cell(steps=100)])] == ["dst-kron"], "the longest that is given"


def test_what_a_temperature_gives_back_is_judged_in_every_cell() -> None:
    runs = in_arms([cell(*one, seed, residual="frozen_token") for one in CROSSED for seed in range(3)])
    arms = list(dict.fromkeys(run.arm for run in runs))
    values = {(arm, "recovered.16"): [0.0, 0.01, 0.02] for arm in arms}
    values |= {(arm, "kept.16"): [0.7, 0.71, 0.72] for arm in arms}

    def directions() -> dict[str, str]:
        found = calibrated(planted(values), Cells(runs))
        assert len(found["factors"]) == 8 and len(found["claims"]) == 2
        return dict(found["claims"].set_index("quantity")["direction"])

    assert len(arms) == 4 and directions() == {"recovered.16": "opposite", "kept.16": "opposite"}
    values[arms[-1], "kept.16"] = [0.97, 0.98, 0.975]
    assert directions()["kept.16"].startswith("confounded: not one verdict over initialization and tokens")
    assert directions()["recovered.16"] == "opposite"


def test_a_verdict_that_every_cell_gives_is_one() -> None:
    tables = crossed(dict.fromkeys(ARMS, BELOW))
    row = tables["claims"].set_index("quantity").loc["gap.zero.head"]
    assert row["direction"] == "opposite" and row["claim"] == "dst-kron above 0" and row["p_holm"] == row["p"]
    found = tables["factors"]
    assert found["claim"].eq("dst-kron above 0").all() and list(found["preset"]) == [
        "dst-kron",
        *ARMS[3:],
        *ARMS[2::-2],
    ]
    assert list(found["init"]) == ["normal", "fan_in_normal", "fan_in_normal", "normal"]
    assert list(found["tokens"]) == [200 * 4 * 32, 200 * 4 * 32, 100 * 4 * 32, 100 * 4 * 32]
    low, high = stats.ttest_1samp(BELOW, 0).confidence_interval(0.95)
    assert np.allclose(found[["ci_low", "ci_high"]], [low, high]) and found["runs"].eq("0 of 3").all()
    assert found["alone"].eq("opposite").all()


OTHERS = [(ABOVE, "holds"), (AROUND, "not resolved"), (LEAST, "negligible")]


@pytest.mark.parametrize(
    ("arm", "other", "word"),
    [
        pytest.param(arm, *other, marks=[] if i % len(OTHERS) == j else pytest.mark.slow, id=f"{arm}-{other[1]}")
        for i, arm in enumerate(ARMS)
        for j, other in enumerate(OTHERS)
    ],
)
def test_a_verdict_that_changes_or_is_lost_in_a_cell_is_confounded(arm: str, other: list[float], word: str) -> None:
    """A change of sign, a cell that decides nothing, a negligible effect: in whichever cell."""
    values: dict[str, list[float]] = dict.fromkeys(ARMS, BELOW) | {arm: other}
    tables = crossed(values)
    row = tables["claims"].set_index("quantity").loc["gap.zero.head"]
    assert row["direction"].startswith("confounded: not one verdict over initialization and tokens (")
    assert row["direction"].count("opposite") == 3 and f": {word}" in row["direction"]
    own = stats.ttest_1samp(values["dst-kron"], 0).pvalue
    assert row["p"] == pytest.approx(own) == row["p_holm"] and row["size"] == "", "tested, whatever the cells say"
    assert row["difference"] == pytest.approx(np.mean(values["dst-kron"])), "what was measured is still told"
    assert set(tables["factors"]["alone"].str.extract(r"(\w+)")[0]) == {"opposite", word.split()[0]}


def test_one_initialization_or_one_dose_is_no_verdict_whatever_it_says() -> None:
    """Left out of the family by the design of the runs, and not by what they show."""
    both = "confounded: measured with one initialization and one amount of tokens (normal, 0.0256 M tokens)"
    assert verdict({"dst-kron": BELOW}).startswith(both)
    assert verdict(dict.fromkeys(ARMS[:2], BELOW)).startswith("confounded: measured with one initialization (")
    assert verdict(dict.fromkeys(ARMS[1::2], BELOW)).startswith("confounded: measured with one amount of tokens (")
    assert verdict({"dst-kron": AROUND}).startswith(both)
    assert verdict(dict.fromkeys(ARMS, AROUND)) == "not resolved at n=3 seeds"
    assert verdict({"dst-kron": [-0.9]}) == "undefined: one seed of dst-kron"


def test_sharpened_attention_is_judged_on_frozen_token_models_and_streams_on_token_factor_ones() -> None:
    low = {arm: [0.07, 0.06, 0.075] for arm in ARMS}
    found = crossed(low, "degradation.16")["claims"].set_index("claim")["direction"]
    said = "confounded: dst-kron is token-factor, the paper's model frozen-token"
    assert found["dst-kron above 15.5%"] == found["dst-kron below 27.5%"] == said, "not the one and keep the other"
    frozen = {arm.replace("dst-kron", KRON): x for arm, x in low.items()}
    found = crossed(frozen, "degradation.16", residual="frozen_token")["claims"].set_index("claim")["direction"]
    assert found[f"{KRON} above 15.5%"] == "opposite" and found[f"{KRON} below 27.5%"] == "holds"
    gap = {arm.replace("dst-kron", KRON): BELOW for arm in ARMS}
    found = crossed(gap, residual="frozen_token")["claims"].set_index("claim")["direction"]
    assert found[f"{KRON} above 0"] == f"confounded: {KRON} is frozen-token, the paper's model token-factor"


def test_a_preset_changed_in_one_run_only_is_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    other = tmp_path / "dst-kron-0"
    shutil.copytree(runs["dst-kron-0"], other)
    assert len(open_runs([str(runs["dst-dense-0"]), str(other)])) == 2
    changed("config.json", lambda c: c["model"].update(dropout=0.5))(other)
    with pytest.raises(InputError, match="dropout is None there, 0.5 here"):
        open_runs([str(runs["dst-dense-0"]), str(other)])


def test_snapshots_are_of_one_schedule(runs: dict[str, Path], tmp_path: Path) -> None:
    kron = str(runs["dst-kron-0"])
    assert [run.arm for run in open_runs([kron, f"{kron}@1"])] == ["dst-kron", "dst-kron@1"]
    longer = tmp_path / "longer"
    shutil.copytree(runs["dst-dense-0"], longer)
    changed("manifest.json", lambda m: m.update(step=3, steps=3))(longer)
    with pytest.raises(InputError, match="steps of the schedule is 2 there, 3 here|steps of the schedule is 3 there"):
        open_runs([kron, f"{kron}@1", str(longer)])
    both = [kron, str(runs["dst-kron-fan-in-0"]), str(runs["dst-dense-0"])]
    doses = with_doses(open_runs(both))
    assert sorted(doses) == sorted([*both, f"{both[0]}@1", f"{both[1]}@1"]), "of what began in two ways"
    assert with_doses(open_runs(both[1:])) == [str(run.folder) for run in open_runs(both[1:])]


# ---- a run -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(corpus: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny runs: dst-kron, in the other two modes, with other heads and begun otherwise too, dst-dense, the same with
    head gates and with a frozen token stream, and std-t; snapshots after the first of two steps."""
    folder = tmp_path_factory.mktemp("dst")
    fair = ("init.weights=fan_in_normal", "init.embed=fan_in_normal")
    settings: dict[str, tuple[str, ...]] = {
        "dst-kron-0": (), "dst-kron-single-0": ("residual=single",), "dst-kron-frozen-0": ("residual=frozen_token",),
        "dst-kron-heads-0": ("n_heads=8",), "dst-kron-fan-in-0": fair, "dst-dense-0": (),
        "dst-dense-frozen-0": ("residual=frozen_token",), "dst-dense-gated-0": ("attention.gate=gate",), "std-t-0": (),
    }  # fmt: skip
    for name, parts in settings.items():
        preset = "std-t" if name == "std-t-0" else "-".join(name.split("-")[:2])
        more = [word for part in parts for word in ("--set", part)]
        kept = ("--snapshots", "1", "--eval-every", "1")
        train(arguments(corpus, folder / name, *SHORT, "--seed", "0", *kept, *more, preset=preset))
    return {path.name: path for path in folder.iterdir()}


def test_streams_known_on_paper_and_attention_scored_another_way(runs: dict[str, Path]) -> None:
    """FFNs that write nothing: x_e is 0, so taking it away costs nothing; without x_t the head sees norm(0)."""
    net = load(runs["dst-kron-0"])
    shards = evaluation_shards(runs["dst-kron-0"], net._text(), None)
    with torch.no_grad():
        for block in net.blocks:
            for part, factor in ((block.attn.q, 40), (block.attn.v, 20), (block.attn.o, 20)):
                part.weight.mul_(factor)  # attention that α can sharpen, and that matters
            for parameter in block.mlp.down.parameters():
                parameter.zero_()
    settings = Settings(documents=6, alpha=(1.0, 4.0), draws=2)
    tables = measure_run(net, shards, settings, lambda label: iter)
    found = tables["runs"].set_index("quantity")["value"]
    texts = [torch.tensor(shards.document(d)[: net.config.n_ctx + 1].tolist()) for d in range(6)]

    def loss(logits_of) -> float:
        sums = [F.cross_entropy(logits_of(ids), ids[1:], reduction="sum").item() for ids in texts]
        return sum(sums) / sum(len(ids) - 1 for ids in texts)

    with torch.no_grad():
        nothing = F.linear(net.ln_final(torch.zeros(1, 1, net.config.d_model)), net.head)[0, 0]
        base, blind = loss(lambda ids: net(ids[None, :-1])[0]), loss(lambda ids: nothing.expand(len(ids) - 1, -1))
        edits = {f"blocks.{layer}.attn.hook_attn_scores": lambda x, hook: 4 * x for layer in range(net.config.n_layers)}
        with edit(net, edits), net.explicit_attention():
            sharp = loss(lambda ids: net(ids[None, :-1])[0])
    assert found["loss.documents"] == pytest.approx(base, abs=1e-5)
    for where in ("everywhere", "head"):
        assert found[f"stream.x_e → 0.{where}"] == pytest.approx(0, abs=1e-6)
        assert found[f"stream.x_t → 0.{where}"] == pytest.approx(blind / base - 1, abs=1e-5)
        assert found[f"gap.zero.{where}"] == pytest.approx(blind / base - 1, abs=1e-5)
    assert abs(sharp / base - 1) > 1e-4
    assert found["degradation.4"] == pytest.approx(sharp / base - 1, abs=1e-5)
    assert found["area.excess.linear"] == pytest.approx(3 * (sharp - base) / 2, abs=1e-4)
    layers = tables["streams"][tables["streams"]["layer"] >= 0]
    assert set(layers["reach"]) == {"layer", "onwards"} and set(layers["layer"]) == set(range(net.config.n_layers))


def test_at_a_scale_what_began_in_two_ways_is_measured_at_half_of_its_training_too(
    runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = tuple(str(runs[name]) for name in ("dst-dense-0", "dst-kron-0", "dst-kron-fan-in-0"))
    found: list[str] = []

    @contextmanager
    def trained(paper: str, options: Any) -> Iterator[Any]:
        yield replace(options, runs=folders)

    def measured(given: list[Run], device: str) -> None:
        found.extend(run.arm for run in given)
        raise InputError("enough")

    monkeypatch.setattr("streamscope.papers.scales.at_scale", trained)
    monkeypatch.setattr("streamscope.papers.dst.report.each_model", measured)
    for argv, doses in ((["--scale", "tiny"], ["dst-kron+fan_in_normal@1", "dst-kron@1"]), ([], [])):
        found.clear()
        with pytest.raises(InputError, match="enough"):
            main(argv)
        assert sorted(found) == sorted(["dst-dense", "dst-kron", "dst-kron+fan_in_normal", *doses])


# ---- the command -------------------------------------------------------------------------------

FAST = ["--documents", "5", "--draws", "1", "--static", "none", "--no-html", "--device", "cpu", "--alpha", "2", "16"]


@pytest.fixture(scope="module")
def out(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("out") / "dst"
    doses = [f"{runs[name]}@1" for name in ("dst-kron-0", "dst-kron-fan-in-0")]
    main([*map(str, runs.values()), *doses, "--out", str(folder), *FAST])
    return folder


@pytest.mark.slow
def test_the_tables_are_those_of_the_runs(out: Path, runs: dict[str, Path]) -> None:
    assert "python -m models.train {arm}" in short_page(out)
    tables = {path.stem: pd.read_parquet(path) for path in out.glob("*.parquet")}
    assert set(tables) == {
        "runs", "presets", "claims", "factors", "streams", "amplification", "heads", "areas", "losses", "loss",
        "loss_frozen",
    }  # fmt: skip
    whole = tables["streams"][tables["streams"]["where"] == "everywhere"]
    arms = ["std-t", "dst-dense", DENSE, "dst-dense+gate", "dst-kron", "dst-kron+fan_in_normal",
            "dst-kron+fan_in_normal@1", "dst-kron@1", "dst-kron+8heads", KRON, "dst-kron+single"]  # fmt: skip
    assert sorted(dict.fromkeys(tables["runs"]["preset"])) == sorted(arms)
    two = {*arms} - {"std-t", "dst-kron+single"}
    hss = tables["runs"][tables["runs"]["quantity"] == "specialization"]
    assert len(hss) == len(runs) + 2 and (hss["value"].between(0, 1)).all() and (hss["n"] > 1).all()
    assert set(whole["preset"]) == two and not dual(load(runs["std-t-0"]))
    said = set(tables["claims"]["direction"])
    assert "undefined: one seed of dst-kron" in said and "undefined: one pair of seeds" in said
    means = tables["presets"].set_index(["quantity", "preset"])["mean"]
    for r in tables["amplification"].itertuples():
        assert means[f"amplified.{r.alpha:g}", r.preset] == r.loss
    values = tables["runs"].set_index(["preset", "quantity"])["value"]
    percent = tables["amplification"].set_index(["preset", "alpha"])["percent"]
    assert values["std-t", "degradation.16"] == pytest.approx(percent["std-t", 16.0] / 100)
    losses = tables["losses"].set_index("preset")["loss"]
    assert values["std-t", "loss"] == losses["std-t"] != values["std-t", "loss.documents"]
    assert set(tables["loss"]["preset"]).isdisjoint({"dst-kron+fan_in_normal", "dst-kron@1"})
    assert set(tables["loss_frozen"]["preset"]) == {DENSE, KRON}
    dose = tables["factors"].drop_duplicates("preset").set_index("preset")["tokens"]
    assert dose["dst-kron"] == 2 * dose["dst-kron@1"] == dose["dst-kron+fan_in_normal"] > 0


def test_tables_judged_again_give_the_same_page_without_a_model(out: Path, tmp_path: Path) -> None:
    once_more(main, out, tmp_path)


def test_the_published_tables_judged_again_are_the_same(tmp_path: Path) -> None:
    folder = ROOT / "results" / "dst_tinystories"
    once_more(main, folder, tmp_path)
    said = pd.read_parquet(folder / "claims.parquet")["direction"]
    assert set(said.str.split(" ").str[0]) == {"confounded:"}, "one initialization, one dose, another mode"


def test_no_published_verdict_about_one_model_is_of_one_beginning_one_dose_or_another_mode() -> None:
    """Nor any of the ledger, which reads it there."""
    ledger = ledger_of(HERE, ROOT / "results").set_index("id")
    seen = 0
    for path in (ROOT / "results").glob("*/factors.parquet"):
        if "cell" not in (cells := pd.read_parquet(path)):
            continue  # KROM's factors are of Kronecker products
        claims = pd.read_parquet(path.with_name("claims.parquet"))
        for row in claims[claims["claim"].isin(cells["claim"])].itertuples():
            if row.quantity.split(".")[0] not in MODES:
                continue  # what one mixing costs beside others: an order
            own = cells[(cells["claim"] == row.claim) & (cells["quantity"] == row.quantity)]
            varied = (
                own["init"].nunique() > 1
                and own["tokens"].nunique() > 1
                and own["alone"].str.split(":").str[0].nunique() == 1
            )
            frozen = "+frozen_token" in row.claim
            verdict = row.direction.startswith(("holds", "opposite", "negligible"))
            assert not verdict or (varied and frozen != row.quantity.startswith("gap."))
            where = f"{path.parent.name}/claims.parquet; claim={row.claim}; quantity={row.quantity}; difference"
            said = ledger.loc[ledger["result"] == where, "verdict"]
            assert verdict or said.eq("inconclusive").all(), where
            seen += 1
    assert seen >= 8


def test_no_value_is_missing_without_a_reason(out: Path) -> None:
    assert unexplained(out) == {}


def test_one_run_of_one_stream_has_no_table_of_streams(runs: dict[str, Path], tmp_path: Path) -> None:
    main([str(runs["std-t-0"]), "--out", str(tmp_path / "one"), *FAST])
    short_page(tmp_path / "one")
    assert not (tmp_path / "one" / "streams.parquet").exists() and not (tmp_path / "one" / "loss.parquet").exists()


def test_bad_input_is_told_in_one_line_and_exits_2(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = str(runs["dst-kron-0"])
    other = tmp_path / "other"
    shutil.copytree(runs["dst-dense-0"], other)
    changed("manifest.json", lambda m: m["data"]["valid"].update(corpus="f" * 64))(other)
    for argv, message in (
        ([], "give run folders"),
        ([one, one], "are both dst-kron, seed 0"),
        ([one, str(other)], "validation data is"),
        ([str(tmp_path / "none")], "is not a run folder"),
        ([one, "--alpha", "0.5"], "--alpha must be at least 1"),
        ([one, "--alpha", "0"], "--alpha must be at least 1"),
        ([one, "--documents", "1"], "--documents must be at least 2"),
        ([one, "--out", str(other / "manifest.json")], "is a file"),
        ([one, "--tables", str(tmp_path)], "not both"),
        (["--tables", str(tmp_path)], "is no folder of a comparison"),
    ):
        assert message in refused(main, argv, monkeypatch, capsys)
    changed("manifest.json", lambda m: m.pop("outcome"))(other)
    with pytest.raises(InputError, match="is not finished"):
        open_runs([str(other)])


def test_losses_are_compared_where_runs_are_pooled() -> None:
    """Tables of runs that were measured one by one have no control: it follows from the losses of all."""
    folder = RESULTS / "dst_eighth"
    found = losses_compared(pd.read_parquet(folder / "losses.parquet"), Cells(in_arms(trained_runs(folder))))
    assert set(found) == {"loss", "loss_frozen"}
    for name, rows in found.items():
        pd.testing.assert_frame_equal(rows, pd.read_parquet(folder / f"{name}.parquet"), check_dtype=False)


def test_numbers_of_heads_are_judged_only_where_heads_are_as_wide_as_the_paper_asks() -> None:
    """At width 96 four heads have 24 channels; at width 512 sixteen have 32. Arms of one number of heads are judged."""
    runs = in_arms(trained_runs(RESULTS / "dst_eighth"))
    of_heads = [one for one in orders() if "heads" in one.more]
    others = [one for one in orders() if "heads" not in one.more + one.less]
    assert len(of_heads) > 2 and len(others) > 10
    assert all(Cells(runs).narrow(one).startswith("not measurable here: heads of ") for one in of_heads)
    assert not any(Cells(runs).narrow(one) for one in others)
    wide = [replace(run, config=run.config | {"model": run.config["model"] | {"d_model": 512}}) for run in runs]
    assert not any(Cells(wide).narrow(one) for one in of_heads)
