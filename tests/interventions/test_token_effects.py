"""Effects per token: closed form on a planted head, one pass per edit and sequence, the file and its bad input."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch

import streamscope.models
from streamscope.cli.errors import InputError
from streamscope.features.cluster import main as cluster
from streamscope.features.extract import main as extract
from streamscope.instruments.data import Tokens
from streamscope.instruments.observations import estimate
from streamscope.instruments.open_data import Document
from streamscope.instruments.table import read_about
from streamscope.interventions.edits import scale_heads
from streamscope.interventions.observe import document_losses
from streamscope.interventions.selection import Group
from streamscope.interventions.token_effects import TokenEffects, main
from streamscope.interventions.token_effects.measure import Halves, Modes, by_modes, gates_of, token_effects
from streamscope.models import load
from streamscope.models.head_spec import Head
from streamscope.models.training.data import evaluation_shards
from streamscope.probes.pds import Pds
from tests.interventions import copiers
from tests.interventions.passes import captured, under
from tests.tiny import randomise

torch.set_num_threads(1)


def test_a_head_that_matters_at_one_kind_of_position_only() -> None:
    """The copier, with v = (1 − f1)/2 + f2: 0 until a word of two forms, then ±1 by its form. All else is closed form.

    Behind the word the copier raises capitals to u = A δ / s(δ): Δ loss = ln p of the copied form + ln 28.
    """
    net, ids = copiers.model(), []
    with torch.no_grad():
        net.blocks[0].attn.v.weight[8, :3] = torch.tensor([0.5, -0.5, 1.0])
    texts = [t.split() for t in ("I see and Rose then again and", "then again I see", "see and rose then rose")]
    ids = [[copiers.VOCABULARY.index(w) for w in words] for words in texts]
    found = token_effects(net, ids, [scale_heads([copiers.COPIER], 0.0), scale_heads([Head(0, 2)], 0.0)])
    n, v = len(copiers.WORDS), len(copiers.VOCABULARY)

    def form(word: str) -> int:
        return (1 if word[0].isupper() else -1) if word.lower() in copiers.WORDS else 0

    for row, words in zip(found, texts, strict=True):
        assert np.abs(row.delta_loss[1]).max() < 1e-6  # nobody reads the other head
        for q, target in enumerate(words[1:]):
            c = next((form(word) for word in words[: q + 1] if form(word)), 0)
            u = copiers.A * copiers.DELTA * c / copiers.scale(copiers.DELTA * c)
            log_z = math.log(n * math.exp(u) + n * math.exp(-u) + v - 2 * n)
            assert row.loss[q] == pytest.approx(log_z - form(target) * u, abs=1e-4)
            assert row.delta_loss[0, q] == pytest.approx(math.log(v) - log_z + form(target) * u, abs=1e-4)
            assert row.delta_log_p[0, q] == pytest.approx(-math.log(v) - (abs(u) - log_z), abs=1e-4)
            assert c == 0 or copiers.VOCABULARY[row.prediction[q]][0].isupper() == (c == 1)


@pytest.mark.parametrize("preset", ["std-t", "lfa", "hdpl", "dst-kron", "kromcanon"])
def test_equals_one_pass_per_sequence_and_edit(preset: str) -> None:
    """To 1e-5 in float32, for sequences of every length, in one batch."""
    model = randomise(streamscope.models.build(preset, scale="tiny", seed=3, init_std=0.1), std=0.2)
    draw = np.random.default_rng(0)
    ids = [draw.integers(0, 256, size=n).tolist() for n in (2, 9, 17, 5, model.config.n_ctx + 1)]
    sweep = [scale_heads([Head(0, 1)], 0.0), scale_heads([Head(1, 0), Head(0, 2)], 0.5)]
    for row, one in zip(token_effects(model, ids, sweep), ids, strict=True):
        every = torch.arange(len(one) - 1)
        log_p = torch.stack([under(model, torch.tensor([one[:-1]]), edits)[0].double() for edits in ({}, *sweep)])
        log_p = log_p.log_softmax(-1)
        best, of_target = log_p[0].argmax(-1), log_p[:, every, one[1:]]
        of_best = log_p[:, every, best]
        assert row.prediction.tolist() == best.tolist()
        np.testing.assert_allclose(row.loss, -of_target[0], atol=1e-5)
        np.testing.assert_allclose(row.log_p, of_best[0], atol=1e-5)
        np.testing.assert_allclose(row.delta_loss, of_target[0] - of_target[1:], atol=1e-5)
        np.testing.assert_allclose(row.delta_log_p, of_best[1:] - of_best[0], atol=1e-5)
    assert np.abs(row.delta_loss).max() > 1e-3


def gated(gates: np.ndarray) -> Any:
    """A model of one layer that is nothing but its gates [tokens, heads]."""
    value = torch.tensor(gates)[None, :, :, None]
    return SimpleNamespace(
        config=SimpleNamespace(n_heads=2, n_layers=1), cfg=SimpleNamespace(device="cpu"),
        hook_dict={"blocks.0.attn.hook_gate": 0},
        run_with_cache=lambda ids, names_filter: (None, {"blocks.0.attn.hook_gate": value}),
    )  # fmt: skip


UNITS = pd.DataFrame({"unit": list("abc"), "cluster": list("abc")})


def test_a_gate_that_says_where_its_head_matters_and_one_that_does_not() -> None:
    """Planted: without head 0 every token loses its gate, without head 1 that of head 0 too, whatever its own says."""
    in_order, gate = np.arange(20) / 20, np.zeros(20)
    gate[1::2], gate[::2] = in_order[::2], in_order[1::2]  # alike by both halves
    net = gated(np.stack([gate, np.tile([0.0, 1.0], 10)], -1))
    groups = [Group("L0.H0", (Head(0, 0),)), Group("two", (Head(0, 0), Head(0, 1))), Group("L0.H1", (Head(0, 1),))]
    halves = Halves(net, groups, 3)
    assert halves.edits == (0, 2)
    for at in range(3):
        lost = gate * (1 + at / 10)
        halves.add(at, gates_of(net, Document(at, list(range(21)), 21)), np.stack([lost, lost, lost]))
    block, contrasts = halves.observe(UNITS)
    found = estimate(block, contrasts).wide(["edit"])[0].set_index("edit")
    own = (in_order[10:].mean() - in_order[:10].mean()) * 1.1
    other = (gate[1::2].mean() - gate[::2].mean()) * 1.1
    assert found.loc["L0.H0", "own"] == pytest.approx(own) and found.loc["L0.H1", "own"] == pytest.approx(other)
    assert found.loc["L0.H0", "beyond"] == pytest.approx(own - other) == -found.loc["L0.H1", "beyond"]
    assert found.loc["all heads", "own"] == pytest.approx((own + other) / 2)
    assert found.loc["all heads", "beyond"] == pytest.approx(0, abs=1e-12)


def planted_modes(tmp_path: Path, lost: dict[int, np.ndarray], **changed: object) -> Modes:
    """Of two heads, whose gates are low in modes 0 and 1, with `lost` [12] per head; two tokens have no mode."""
    mode = np.array([0, 0, 0, 1, 1, 1, 2, 2, 2, 2, -1, -1])
    dealt = np.array([9, 0, 1, 0, 9, 5, 1, 8, 2, 7, 6, 3]) / 1000  # in no other mode all are below the median
    gates = np.stack([np.where(mode == low, 0.1, 0.9) + dealt for low in (0, 1)], -1)
    net = gated(gates)
    documents = [Document(at, list(range(13)), 13) for at in range(3)]
    rows = pd.DataFrame({
        "document": np.repeat(range(3), 12), "position": np.tile(range(12), 3), "token_id": np.tile(range(12), 3),
        "cluster": np.tile(mode, 3),
    }).assign(**changed)  # fmt: skip
    rows.to_parquet(tmp_path / "labels.parquet")
    groups = [Group(f"L0.H{h}", (Head(0, h),)) for h in range(2)]
    modes = Modes(net, groups, documents, tmp_path / "labels.parquet")
    for at, one in enumerate(documents):
        modes.add(at, gates_of(net, one), np.stack([lost[h] * (1 + at / 10) for h in range(2)]))
    return modes


def test_a_head_that_does_nothing_in_the_modes_in_which_its_gate_is_low(tmp_path: Path) -> None:
    """Planted: without head 0 nothing is lost in mode 0, where its gate is low; without head 1 all modes lose alike."""
    mode = np.array([0, 0, 0, 1, 1, 1, 2, 2, 2, 2, -1, -1])
    lost = {0: np.where(mode == 0, 0.0, 0.05), 1: np.full(12, 0.2)}
    modes = planted_modes(tmp_path, lost)
    assert modes.own.tolist() == [[True, False, False], [False, True, False]]
    assert modes.neighbours.tolist() == modes.own[::-1].tolist()
    assert "2 of 2 heads have low modes, 1.0 of 3 on average; 30 of 36 tokens are in a mode" in modes.title
    block, contrasts = modes.observe(UNITS)
    estimates = estimate(block, contrasts)
    assert set(estimates.where(edit={"L0.H0", "L0.H1"}, quantity="own").frame["clusters"]) == {1}, "a single low mode"
    found = estimates.wide(["edit"])[0].set_index("edit")
    assert found["own_p"].drop("all heads").isna().all()
    assert found.loc["L0.H0", "low"] == 0 and found.loc["L0.H0", "other"] == pytest.approx(10 / 7)
    assert found.loc["L0.H0", "own"] == pytest.approx(-10 / 7)
    # by the gate of head 1, low in mode 1: 10/7 there, (4 · 10/7) / 7 elsewhere
    assert found.loc["L0.H0", "beyond"] == pytest.approx(-10 / 7 - (10 / 7 - 40 / 49))
    assert found.loc["L0.H1", ["low", "other"]].tolist() == pytest.approx([1, 1])
    assert found.loc["L0.H1", "beyond"] == pytest.approx(0, abs=1e-12)
    assert found.loc["all heads", "own"] == pytest.approx(-5 / 7)  # a head that costs four times as much counts alike


def test_heads_without_modes_of_both_kinds_do_not_count() -> None:
    """Three heads, one of them without a low mode: totals of the other two, by the modes of each."""
    rng = np.random.default_rng(0)
    part, tokens, low = rng.random((3, 9)), rng.integers(1, 5, 9), rng.random((3, 9)) < 0.5
    low[1] = False
    total, size = by_modes(part, tokens, low)
    for i, kind in enumerate((low, ~low)):
        assert total[i] == pytest.approx(part[0] * kind[0] + part[2] * kind[2])
        assert size[i] == pytest.approx(tokens * (1.0 * kind[0] + kind[2]))
    assert not by_modes(part[1:2], tokens, low[1:2]).any()


@pytest.mark.parametrize("column, value, said", [
    ("token_id", 3, "document 0 has other tokens"), ("cluster", -1, "none of the 3 documents has a token in a mode"),
    ("position", 0, "labels a token twice"),
])  # fmt: skip
def test_labels_of_other_tokens(tmp_path: Path, column: str, value: int, said: str) -> None:
    """Refused, in one line."""
    with pytest.raises(InputError, match=said):
        planted_modes(tmp_path, {0: np.ones(12), 1: np.ones(12)}, **{column: value})


def test_modes_of_a_model_from_features_to_the_table(tmp_path: Path) -> None:
    """Features, clusters, effects: what the table says of its heads, and labels of another model refused."""
    extract(["stories/pls", "--max-tokens", "1500", "--out", str(tmp_path / "f.parquet")])
    cluster(["--features", str(tmp_path / "f.parquet"), "--no-umap", "--out", str(tmp_path / "m.parquet")])
    how = ["--max-tokens", "1500", "--heads", "L5.*", "--modes", str(tmp_path / "m-labels.parquet")]
    main(["stories/pls", *how, "--out", str(tmp_path / "e.parquet")])
    table = pd.read_parquet(tmp_path / "e-modes.parquet").set_index("edit")
    assert len(table) == 7
    assert np.isfinite(table.loc["all heads", ["low", "other", "own", "beyond"]].astype(float)).all()
    said = table.loc["all heads"]
    assert said["own"] == pytest.approx(said["low"] - said["other"], abs=0.05)  # over the documents that have both
    with pytest.raises(InputError, match="another checkpoint"):
        main(["stories/c2", *how, "--out", str(tmp_path / "c.parquet")])


def test_a_model_without_gates_is_a_control_of_one_with_gates(tmp_path: Path) -> None:
    """It says why it has no value, and the gated model alone has the table of gates."""
    for run, control, gated in (("pls", "lfa", True), ("lfa", "pls", False)):
        out = tmp_path / f"{run}.parquet"
        main([f"stories/{run}", "--control", f"stories/{control}", "--max-tokens", "300", "--heads", "L5.H0",
              "--out", str(out)])  # fmt: skip
        assert out.with_name(f"{run}-gates.parquet").exists() == gated
        beside = pd.read_parquet(out.with_name(f"{run}-gate-control.parquet"))
        assert beside["undefined"].str.contains("no gate varies within a document").all()


def test_a_control_is_measured_without_the_heads_that_the_run_ranks() -> None:
    """Ranked again in the control, top1:pds would be another head there."""
    how, run, control = TokenEffects(heads=("top1:pds",)), load("stories/gpt2"), load("stories/lfa")
    ranked = Pds().measure(run).table("heads").frame.nlargest(1, "pds").iloc[0]
    fixed = how.with_resolved_heads(how.open(run, Tokens(max_tokens=50)))
    assert fixed.heads == (f"L{ranked['layer']}.H{ranked['index']}",)
    assert how.with_resolved_heads(how.open(control, Tokens(max_tokens=50))).heads != fixed.heads


def test_gates_by_hand_from_the_rows() -> None:
    """Of a gated model: its gates by a forward pass of each document, halves above and below each median."""
    model = randomise(streamscope.models.build("pls", scale="tiny", seed=3, init_std=0.3))
    rng = np.random.default_rng(1)
    ids = [rng.integers(0, 256, size=n).tolist() for n in (12, 9, 17)]
    groups = [Group(f"L1.H{h}", (Head(1, h),)) for h in range(2)]
    effects = token_effects(model, ids, [scale_heads(group.heads, 0.0) for group in groups])
    halves, high, low = Halves(model, groups, len(ids)), [], []
    for at, (one, found) in enumerate(zip(ids, effects, strict=True)):
        size, name = np.abs(found.delta_loss), "blocks.1.attn.hook_gate"
        halves.add(at, gates_of(model, Document(at, one, len(one))), size)
        gate = captured(model, torch.tensor([one[:-1]]), name)[name][0, :, 0].double().mean(-1).numpy()
        high += size[0][gate > np.median(gate)].tolist()
        low += size[0][gate < np.median(gate)].tolist()
    block, contrasts = halves.observe(UNITS)
    own = estimate(block, contrasts).wide(["edit"])[0].set_index("edit").loc["L1.H0", "own"]
    assert own == pytest.approx(np.mean(high) - np.mean(low), rel=1e-5)


def test_the_command_writes_every_position_in_order(tiny_run: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    out, names = tmp_path / "effects.parquet", ["L0.H1", "L1.H0", "L1.H1", "L1.H2", "L1.H3", "two"]

    def written(*options: str) -> pd.DataFrame:
        main([str(tiny_run), "--stride", "0", *options, "--out", str(out)])
        return pd.read_parquet(out)

    table = written("--heads", "L0.H1", "L1.*", "--groups", "two=L0.H0+L1.H2")
    model, about = load(tiny_run), read_about(out)
    shards = evaluation_shards(tiny_run, model.tokenizer, None)
    documents = [shards.document(d)[: model.config.n_ctx + 1].tolist() for d in range(shards.n_documents)]
    expected = [(d, q, *ids[q : q + 2]) for d, ids in enumerate(documents) for q in range(len(ids) - 1)]
    assert table[["document", "position", "token_id", "target_id"]].to_numpy().tolist() == list(map(list, expected))
    assert list(about["about"]["effects"]["edits"]) == names
    assert list(table.columns[7:]) == [f"{m}_{n}" for m in ("delta_loss", "delta_log_p") for n in names]
    assert about["units"]["delta_loss_two"].startswith("nats")
    assert {str(t) for t in table.dtypes[7:]} == {"float32"}
    losses = document_losses(model, shards, [scale_heads([Head(0, 0), Head(1, 2)], 0.0)])
    sums = table.groupby("document")[["loss", "delta_loss_two"]].sum()
    np.testing.assert_allclose(sums["loss"], losses.baseline, atol=1e-3)
    np.testing.assert_allclose(sums["delta_loss_two"], losses.edited[0] - losses.baseline, atol=1e-3)
    assert f"{shards.n_documents} documents" in capsys.readouterr().out
    monkeypatch.setattr("streamscope.interventions.token_effects.measure.AT_ONCE", 3)  # row groups of three documents
    columns, again = ["document", "position", "loss", "delta_loss_L0.H1"], written("--heads", "L0.H1")
    assert pq.ParquetFile(out).num_row_groups == -(-shards.n_documents // 3)
    for found in (again, written("--heads", "L0.H1", "--max-tokens", "70")):
        pd.testing.assert_frame_equal(found[columns], table[columns][: len(found)], atol=1e-5)
    assert (len(again), len(found)) == (len(table), 70)


def test_the_means_are_those_of_the_whole_table(tiny_run: Path) -> None:
    result = TokenEffects(heads=("L1.H1",), groups=("two=L0.H0+L1.H2",)).measure(
        tiny_run, Tokens(max_tokens=300, stride=0)
    )
    rows, edits = result.table().frame, result.table("edits").frame
    assert len(rows) == 300 and edits["edit"].tolist() == ["L1.H1", "two"]
    assert edits["layer"].tolist()[0] == 1 and edits["layer"].isna().tolist() == [False, True]
    for i, name in enumerate(edits["edit"]):
        for measure in ("delta_loss", "delta_log_p"):
            values, row = rows[f"{measure}_{name}"].astype(float), edits.iloc[i]
            got = [row[measure], row[f"abs_{measure}"], row["tokens"], row["n"]]
            np.testing.assert_allclose(got, [values.mean(), values.abs().mean(), 300, rows["document"].nunique()])
            assert row[f"{measure}_low"] < row[measure] < row[f"{measure}_high"]
