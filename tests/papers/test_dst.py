"""Paper DST: printed areas by hand, streams known on paper, attention scored another way, the command."""

import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F

from streamscope.interventions.streams.measure import PAPER
from streamscope.models.checkpoint import load
from streamscope.models.errors import InputError
from streamscope.models.hooks import edit
from streamscope.models.make import build
from streamscope.models.train import main as train
from streamscope.models.training.data import evaluation_shards
from streamscope.papers.dst import main
from streamscope.papers.dst.measure import Settings, amplified, dual, initialization, measure_run
from streamscope.papers.dst.printed import AREAS, ORDERS, TABLE1, TABLE4, TABLE5, area, bounds, printed
from streamscope.papers.dst.report import open_runs
from streamscope.papers.dst.seeds import claims
from tests.conftest import ROOT
from tests.papers.pages import changed, once_more, planted, refused, unexplained
from tests.tiny import arguments

SHORT = ["--steps", "2"]
PAPER_TEXT = ROOT.parent / "shared" / "papers" / "000_f5aca6399040d6b7.txt"


# ---- what the paper prints ---------------------------------------------------------------------


def test_areas_under_the_printed_losses() -> None:
    """By hand: steps of α are 1, 2, 4 and 8; means of neighbours 1.83, 1.92, 2.035, 2.125 (dense)."""
    assert area(TABLE5["dst-dense"], "raw", "linear") == pytest.approx(1.83 + 2 * 1.92 + 4 * 2.035 + 8 * 2.125)
    found = {kind: {p: area(y, kind, "linear") for p, y in TABLE5.items()} for kind in ("raw", "excess", "weighted")}
    for kind, order in (("raw", False), ("excess", True), ("weighted", True)):
        kron_first = found[kind]["dst-kron"] < found[kind]["dst-dense"] < found[kind]["dst-ind"]
        assert kron_first == order, kind
        assert all(abs(found[kind][p] - said) > 5 for p, said in AREAS.items()), "no reading gives the printed areas"
    relative = {p: area(y, "relative", "linear") for p, y in TABLE5.items()}
    assert relative["dst-kron"] == pytest.approx(100 * found["excess"]["dst-kron"] / 1.84)
    assert area(TABLE5["dst-dense"], "perplexity", "log2") == pytest.approx(29.1, abs=0.05)  # SPEC 7.3


def test_printed_changes_follow_from_printed_losses() -> None:
    for definition, (loss, change) in TABLE4.items():
        assert 100 * (loss / 2.85 - 1) == pytest.approx(float(change.strip("+%")), abs=0.6), definition
    assert {float(change.strip("+%")) for _, change in TABLE4.values()} == set(PAPER.values())
    assert [round(100 * printed(p, "degradation.16")) for p in TABLE5] == [20, 16, 27, 27]
    assert printed("dst-ind", "loss") == TABLE1["dst-ind"].value and np.isnan(printed("lfa", "loss"))
    assert printed("dst-kron", "loss") == 2.48 and printed("dst-kron", "loss", "Table 2") == 2.67
    assert printed("dst-kron+16heads", "specialization", "Table 3") == 0.85


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


@pytest.mark.skipif(not PAPER_TEXT.is_file(), reason="no text of the paper beside the clone")
def test_every_quotation_stands_in_the_paper() -> None:
    text = re.sub(r"\s+", " ", PAPER_TEXT.read_text(encoding="utf-8")).lower()
    for bound in bounds(["dst-kron"], ["dst-kron"]):
        assert bound.quote.lower() in text, bound


# ---- verdicts ----------------------------------------------------------------------------------


def test_streams_are_judged_at_both_places_and_areas_over_the_papers_alpha() -> None:
    table = planted({
        ("dst-kron", "gap.random.head"): [0.10, 0.12, 0.11], ("dst-kron", "degradation.16"): [0.16, 0.17, 0.18],
        ("dst-kron", "gap.zero.head"): [-0.9, -0.92, -0.91], ("dst-kron", "gap.zero.everywhere"): [0.33, 0.03, 0.12],
        ("dst-dense", "degradation.16"): [0.199, 0.207, 0.215], ("dst-dense", "area.excess.linear"): [3.0, 3.2, 3.1],
        ("dst-kron", "area.excess.linear"): [3.3, 3.1, 3.4],
    })  # fmt: skip
    table.loc[table["quantity"].str.startswith("gap"), "family"] = "streams"
    found = claims(table)
    rows = found[(found["quantity"] == "gap.random.head")].set_index("claim")
    assert rows.loc["dst-kron above 0", "direction"] == "holds" and rows.loc["dst-kron above 0", "runs"] == "3 of 3"
    assert list(rows.index) == ["dst-kron above 0"], "Table 4's opposite reading is no claim of its own"
    zero = found[found["quantity"].str.startswith("gap.zero")].set_index("quantity")
    assert zero.loc["gap.zero.head", ["direction", "runs"]].tolist() == ["opposite", "0 of 3"]
    assert zero.loc["gap.zero.everywhere", ["direction", "runs"]].tolist() == ["not resolved at n=3 seeds", "3 of 3"]
    order = found[(found["quantity"] == "degradation.16") & (found["claim"] == "dst-dense > dst-kron")].iloc[0]
    assert (order["direction"], order["size"]) == ("holds", "printed value inside")  # 20 % − 16.3 %
    lost = found[found["quantity"] == "area.excess.linear"].iloc[0]
    assert lost["runs"] == "1 of 3" and lost["size"] == "" and np.isnan(lost["paper"])
    orders = found[found["claim"].str.contains(">")]
    given = [o for o in ORDERS if {o.more, o.less} == {"dst-kron", "dst-dense"}]
    assert len(orders) == len(given) < len(ORDERS), "no claim about presets that are not given"
    other = claims(table, (1.0, 2.0))
    assert set(found["quantity"]) - set(other["quantity"]) == {
        f"area.{k}.linear" for k in ("raw", "excess", "relative")
    }


def test_the_largest_weights_are_those_of_the_tables_and_of_fig_4s_layer() -> None:
    """Means over the heads of a layer by hand; a model without layer 3 has none, and its claim a reason."""
    curve = pd.DataFrame([
        {"preset": p, "seed": s, "alpha": a, "loss": 3.0, "peak": x, "n": 100}
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
    found = claims(table).set_index(["quantity", "claim"])["direction"]
    assert found["peak.16", "dst-kron above 0.5"] == "holds" and found["peak.16", "dst-ind above 0.5"] == "opposite"
    assert found["peak.L3.16", "dst-ind above 0.5"] == "undefined: not measured on dst-ind"


def test_a_gap_within_the_smallest_effect_of_interest_is_negligible_however_sure() -> None:
    """Random words cost .016 % of the loss more than zero, in every seed: a sign, and nothing."""
    table = planted({("dst-kron", "gap.random.head"): [0.00016, 0.00018, 0.00015]})
    table["family"], table["unit"] = "streams", "share of the loss"
    row = claims(table).set_index("quantity").loc["gap.random.head"]
    assert row["ci_low"] > 0 and row["p"] < 0.05
    assert (row["direction"], row["smallest"]) == ("negligible: within ±0.01", 0.01)


@pytest.mark.slow
def test_kronecker_maps_begin_weaker_than_dense_ones() -> None:
    """Beside layer 0's attention written out in plain torch; the same number every time."""
    shape = {"n_layers": 2, "n_heads": 4, "d_model": 64, "d_vocab": 100, "n_ctx": 128}
    table = initialization(shape, "tiny", [1, 0, 1])
    assert table.equals(initialization(shape, "tiny", [0, 1]))
    assert table[["scale", "preset", "seed"]].drop_duplicates().shape[0] == len(table) == 8
    own = table[table["scale"] == "tiny"].set_index(["preset", "seed"])
    for preset in ("dst-kron", "dst-dense"):
        model = build(preset, "tiny", seed=1, **shape)
        ids = torch.randint(0, 100, (2, 128), generator=torch.Generator().manual_seed(0))
        block = model.blocks[0]
        with torch.no_grad():
            _, cache = model.run_with_cache(ids)
            values = F.layer_norm(model.embed(ids).unflatten(-1, (4, 16)), (16,))  # channel norm: weights begin at 1
            mixed = (
                torch.einsum("kh,bthd->btkd", block.attn.v.weight, values)
                if preset == "dst-kron"
                else F.linear(values.flatten(-2), block.attn.v.weight).unflatten(-1, (4, 16))
            )
            z = torch.einsum("bhqk,bkhd->bqhd", cache["blocks.0.attn.hook_pattern"], mixed)
            out = (
                torch.einsum("kh,bthd->btkd", block.attn.o.weight, z)
                if preset == "dst-kron"
                else F.linear(z.flatten(-2), block.attn.o.weight)
            )
        assert own.loc[(preset, 1), "std"] == pytest.approx(out.std().item(), rel=1e-3)
    ratio = own["std"]["dst-dense"] / own["std"]["dst-kron"]
    assert own["ratio"]["dst-kron"].to_numpy() == pytest.approx(ratio.to_numpy()) and (ratio > 4).all()
    assert (table.loc[(table["scale"] == "paper") & (table["preset"] == "dst-kron"), "ratio"] > 50).all()


def test_the_papers_own_degradations_keep_its_bounds() -> None:
    own = {
        ("dst-ind", "degradation.16"): [0.2727, 0.2728, 0.2726],
        ("dst-kron", "degradation.16"): [0.163, 0.164, 0.162],
    }
    found = claims(planted(own)).set_index("claim")["direction"]
    for claim in ("dst-ind below 27.5%", "dst-ind above 15.5%", "dst-kron above 15.5%"):
        assert found[claim] == "holds"


def test_a_preset_changed_in_one_run_only_is_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    other = tmp_path / "dst-kron-0"
    shutil.copytree(runs["dst-kron-0"], other)
    assert len(open_runs([str(runs["dst-dense-0"]), str(other)])) == 2
    changed("config.json", lambda c: c["model"].update(dropout=0.5))(other)
    with pytest.raises(InputError, match="dropout is None there, 0.5 here"):
        open_runs([str(runs["dst-dense-0"]), str(other)])


# ---- a run -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(corpus: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny runs: dst-kron, in one stream and with other heads too, dst-dense, the same with head gates, and std-t."""
    folder = tmp_path_factory.mktemp("dst")
    gates = ("--set", "attention.gate=gate")
    others = {"dst-kron-single-0": ("--set", "residual=single"), "dst-kron-heads-0": ("--set", "n_heads=8")}
    plain: dict[str, tuple[str, ...]] = {"dst-kron-0": (), "dst-dense-0": (), "dst-dense-gated-0": gates, "std-t-0": ()}
    for name, more in {**plain, **others}.items():
        preset = name.removesuffix("-0").removesuffix("-gated").removesuffix("-single").removesuffix("-heads")
        train(arguments(corpus, folder / name, *SHORT, "--seed", "0", *more, preset=preset))
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
    settings = Settings(documents=6, alphas=(1.0, 4.0), draws=2)
    tables = measure_run(net, shards, settings, lambda label: iter)
    found = tables["quantities"].set_index("quantity")["value"]
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


# ---- the command -------------------------------------------------------------------------------

FAST = ["--documents", "5", "--draws", "1", "--static", "none", "--no-html", "--device", "cpu", "--alpha", "2", "16"]


@pytest.fixture(scope="module")
def out(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("out") / "dst"
    main([*map(str, runs.values()), "--out", str(folder), *FAST])
    return folder


@pytest.mark.slow
def test_the_page_says_what_the_tables_say(out: Path, runs: dict[str, Path]) -> None:
    text = (out / "README.md").read_text(encoding="utf-8")
    tables = {path.stem: pd.read_parquet(path) for path in out.glob("*.parquet")}
    assert set(tables) == {
        "runs", "presets", "claims", "streams", "amplification", "heads", "areas", "losses", "loss", "initialization",
    }  # fmt: skip
    whole = tables["streams"][tables["streams"]["where"] == "everywhere"]
    two = {"dst-kron", "dst-kron+8heads", "dst-dense", "dst-dense+gate"}
    arms = ["std-t", "dst-dense", "dst-dense+gate", "dst-kron", "dst-kron+8heads", "dst-kron+single"]
    assert list(dict.fromkeys(tables["runs"]["preset"])) == arms
    hss = tables["runs"][tables["runs"]["quantity"] == "specialization"]
    assert len(hss) == len(runs) and (hss["value"].between(0, 1)).all() and (hss["n"] > 1).all()
    assert set(whole["preset"]) == two and not dual(load(runs["std-t-0"]))
    for r in whole.itertuples():
        assert f"| {r.definition} | everywhere | {r.baseline:.4f} | {r.loss:.4f} | {r.percent:+.2f} (" in text
    for r in tables["amplification"].itertuples():
        assert f"| {r.preset} | 0 | {r.alpha:g} | {r.loss:.4f} |" in text
    assert "3.89 (+36%)" in text and "Table 4 says less" in text and "undefined: one seed of dst-kron" in text
    assert "undefined: one pair of seeds" in text and "## Losses (Table 1)" in text
    means = tables["presets"].set_index(["quantity", "preset"])["mean"]
    for r in tables["amplification"].itertuples():
        assert means[f"amplified.{r.alpha:g}", r.preset] == r.loss
    values = tables["runs"].set_index(["preset", "quantity"])["value"]
    percent = tables["amplification"].set_index(["preset", "alpha"])["percent"]
    assert values["std-t", "degradation.16"] == pytest.approx(percent["std-t", 16.0] / 100)
    losses = tables["losses"].set_index("preset")["loss"]
    assert values["std-t", "loss"] == losses["std-t"] != values["std-t", "loss.documents"]
    assert "Over other α than the paper's" in text
    for name in re.findall(r"`([\w.-]+\.parquet)`", text):
        assert (out / name).is_file()


def test_tables_judged_again_give_the_same_page_without_a_model(out: Path, tmp_path: Path) -> None:
    once_more(main, out, tmp_path)


def test_the_published_page_is_what_its_tables_say(tmp_path: Path) -> None:
    text = once_more(main, ROOT / "results" / "dst_tinystories", tmp_path)
    head, claims_at = text.split("## What the paper prints twice")[0], text.split("## Claims of the paper")[1]
    assert "depends on where a stream is taken away" in head and "2.4 M tokens seen each" in head
    assert "paper's sign in 0 of 3 runs" in head and "paper's sign in 3 of 3 runs" in head
    assert "(both models see no text)" in claims_at and "negligible: within ±0.01" in claims_at
    rows = [line for line in claims_at.split("\n## ")[0].splitlines() if line.startswith("| dst-kron")]
    assert len(rows) == 8 and all("| 0.0100 |" in row for row in rows), "the smallest effect of every claim"


def test_no_value_is_missing_without_a_reason(out: Path) -> None:
    assert unexplained(out) == {}


def test_one_run_of_one_stream_has_a_page_of_its_own(runs: dict[str, Path], tmp_path: Path) -> None:
    main([str(runs["std-t-0"]), "--out", str(tmp_path / "one"), *FAST])
    text = (tmp_path / "one" / "README.md").read_text(encoding="utf-8")
    assert "No run has a token and a context stream" in text and "this is Table 1" in text


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
        ([str(tmp_path / "none")], "is no run folder"),
        ([one, "--alpha", "0.5"], "areas go upwards from 1"),
        ([one, "--alpha", "0"], "must be positive"),
        ([one, "--documents", "1"], "--documents: at least 2"),
        ([one, "--out", str(other / "manifest.json")], "is a file"),
        ([one, "--tables", str(tmp_path)], "not both"),
        (["--tables", str(tmp_path)], "is no folder of a comparison"),
    ):
        assert message in refused(main, argv, monkeypatch, capsys)
    changed("manifest.json", lambda m: m.pop("outcome"))(other)
    with pytest.raises(InputError, match="is not finished"):
        open_runs([str(other)])
