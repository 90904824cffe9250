"""Documents longer than the context, read in windows: what is scored, from how much, and whose cluster it is."""

import math
import random
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from streamscope.cli.errors import InputError
from streamscope.features.extract import Extract
from streamscope.features.store import raw_of, read_features, read_raw
from streamscope.instruments.data import Documents, Tokens
from streamscope.instruments.open_data import open_data
from streamscope.interventions.ablate import Ablate
from streamscope.interventions.edits import scale_heads
from streamscope.interventions.observe import document_losses
from streamscope.interventions.token_effects import TokenEffects
from streamscope.models.checkpoint import load
from streamscope.models.head_spec import Head
from streamscope.models.hooks import edit
from streamscope.models.readout import IGNORE
from streamscope.probes.specialization.measure import blocks_of_neighbours
from streamscope.text.shards import overlapping_windows
from tests.interventions import copiers
from tests.tiny import WORDS

HEADS: dict[str, Any] = {"anchor_heads": ("L1.H0",), "entity_heads": ("L1.H1",)}


@pytest.fixture(scope="module")
def model(tiny_run: Path) -> Any:
    return load(tiny_run)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two long documents and a short one."""
    draw = random.Random(3)
    documents = [" ".join(draw.choices(WORDS, k=k)) for k in (100, 5, 60)]
    path = tmp_path_factory.mktemp("text") / "long.txt"
    path.write_text("\n<|endoftext|>\n".join(documents))
    return path


def plainly(model: Any, ids: list[int], stride: int) -> list[float]:
    """−ln p of every token but the first, each from a forward pass of its own over what its window has before it."""
    n_ctx, losses = model.config.n_ctx, []
    for t in range(1, len(ids)):
        begin = next(b for b in range(0, t, stride) if b + n_ctx >= t)
        with torch.no_grad():
            logits = model(torch.tensor([ids[begin:t]]))[0, -1]
        losses.append(-float(torch.log_softmax(logits.double(), -1)[ids[t]]))
    return losses


@pytest.mark.parametrize("stride", [1, 7, 16, 32])
def test_every_token_is_scored_once_from_enough(model: Any, text: Path, stride: int) -> None:
    opened = open_data(Documents(str(text), stride=stride), model)
    shards, n_ctx = opened.shards, model.config.n_ctx
    assert n_ctx == 32 and shards.stride
    seen: dict[tuple[int, int], int] = {}
    for i in range(shards.n_documents):
        ids = shards.document(i)
        assert len(ids) <= n_ctx + 1
        whole = shards.documents.document(int(shards.source[i]))
        assert np.array_equal(ids, whole[shards.offset[i] :][: len(ids)])
        for target in range(int(shards.unscored[i]) + 1, len(ids)):
            at = int(shards.source[i]), int(shards.offset[i]) + target
            assert at not in seen
            seen[at] = target
    everything = {(d, t) for d in range(3) for t in range(1, int(shards.documents.lengths[d]))}
    assert set(seen) == everything
    assert all(n >= min(t, n_ctx - stride + 1) for (_, t), n in seen.items())


@pytest.mark.parametrize("stride", [20, *(pytest.param(n, marks=pytest.mark.slow) for n in (8, 32))])
def test_strided_losses_are_those_of_a_pass_per_token(model: Any, text: Path, stride: int) -> None:
    opened = open_data(Documents(str(text), stride=stride, batch_size=3), model)
    edits = scale_heads([Head(1, 0)], 0.0)
    found = document_losses(model, opened.shards, [edits], **opened.limits)
    units = opened.units()
    for d in range(3):
        ids = opened.shards.documents.document(d).tolist()
        mine = (units["document"] == d).to_numpy()
        assert found.tokens[mine].sum() == len(ids) - 1
        assert found.baseline[mine].sum() == pytest.approx(sum(plainly(model, ids, stride)), rel=1e-5)
        with edit(model, edits):
            assert found.edited[0, mine].sum() == pytest.approx(sum(plainly(model, ids, stride)), rel=1e-5)


def sums(tokens: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
    """Of each row: the ids of its targets, and its first token."""
    return {"ids": torch.stack([(targets * (targets != IGNORE)).sum(1), tokens[:, 0]])}


@pytest.mark.parametrize("stride", [0, 20])
def test_sums_are_in_the_order_of_documents_whatever_their_batches(model: Any, text: Path, stride: int) -> None:
    opened = open_data(Documents(str(text), stride=stride, batch_size=2), model)
    total, units = opened.sums("cpu", sums)
    unscored = opened.shards.unscored.tolist()
    rows = [row[context + 1 :] for row, context in zip(opened.rows(), unscored, strict=True)]
    assert total["ids"][0].tolist() == list(map(sum, rows)) and total["targets"].tolist() == list(map(len, rows))
    assert total["ids"][1].tolist() == [row[0] for row in opened.rows()]
    assert units.equals(opened.units())


def test_sums_leave_out_documents_without_a_target(model: Any, text: Path) -> None:
    opened = open_data(Documents(str(text), stride=0, batch_size=2), model)
    shards, (long, short) = copy(opened.shards), (opened.shards.document(i) for i in (0, 1))
    shards._hold(np.concatenate([short, long[:1], long]), np.cumsum([0, len(short), 1, len(long)]))
    total, units = replace(opened, shards=shards).sums("cpu", sums)
    whole = opened.sums("cpu", sums)[0]
    assert total["ids"].tolist() == whole["ids"][:, [1, 0]].tolist()
    assert [name.partition(":")[0] for name in units["unit"]] == ["0", "2"]
    shards._hold(long[:1], np.array([0, 1]))
    with pytest.raises(InputError, match="^no document has a token to predict$"):
        replace(opened, shards=shards).sums("cpu", sums)


def test_a_cue_just_outside_of_a_window_counts_with_a_stride(tmp_path: Path) -> None:
    """The copier says what form the word in its context has; without it, as if it was small. Worked out by hand."""
    model = copiers.model()
    words = ["then"] * 50
    words[30], words[39] = "Rose", "Bear"  # BOS is token 0: the cue is token 31, the last input of the first window
    (tmp_path / "a.txt").write_text(" ".join(words))
    n_ctx = model.config.n_ctx
    assert n_ctx == 32

    def loss(stride: int) -> float:
        opened = open_data(Documents(str(tmp_path / "a.txt"), stride=stride), model)
        found = document_losses(model, opened.shards, [], **opened.limits)
        assert found.tokens.sum() == 50
        return float(found.baseline.sum())

    def said(x: float) -> tuple[float, float]:
        """−ln p of a capital word, and of `then`, where x was added to feature 3."""
        capital = copiers.A * x / math.sqrt((38 + 2 * (1 + x) ** 2) / 40)
        total = math.log(10 * math.exp(capital) + 10 * math.exp(-capital) + len(copiers.VOCABULARY) - 20)
        return total - capital, total

    with_cue, without = said(copiers.DELTA), said(-copiers.DELTA)
    # tokens 33 to 40 are predicted without the cue, token 40 is a capital word itself, and behind it all are with one
    lost = 7 * (without[1] - with_cue[1]) + without[0] - with_cue[0]
    assert lost > 1
    assert loss(32) - loss(16) == pytest.approx(lost, abs=1e-4)


def test_windows_of_a_document_are_one_cluster(model: Any, text: Path) -> None:
    how = Ablate(heads=("L1.H0",), draws=0)
    result = how.measure(model, Documents(str(text), stride=16))
    row, units = result.table().frame.iloc[0], result.blocks["loss"].units
    assert row["clusters"] == 3 and row["n"] == len(units) > 8
    assert units["cluster"].nunique() == 3 and set(units["document"]) == {0, 1, 2}
    assert (units["offset"] == 16 * units["window"]).all()
    title = result.about["title"]["loss"]
    assert f"3 documents in {len(units)}" in title and "stride 16" in title
    halves = [open_data(Documents(str(text), stride=16).half(side), model).units() for side in (0, 1)]
    assert not set(halves[0]["document"]) & set(halves[1]["document"])
    assert set(pd.concat(halves)["unit"]) == set(units["unit"])


@pytest.mark.parametrize("data", [Documents(stride=0), Documents(stride=16), Tokens(stride=0), Tokens(stride=16)])
def test_copies_of_a_document_are_one_cluster(model: Any, text: Path, tmp_path: Path, data: Any) -> None:
    copies, separator = tmp_path / "copies.txt", "\n<|endoftext|>\n"
    copies.write_text(separator.join([text.read_text()] * 4))
    one, four = (open_data(replace(data, data=str(path)), model) for path in (text, copies))
    units = four.units()
    assert units["unit"].nunique() == len(units) == 4 * len(one.units())
    assert units["cluster"].nunique() == four.cases()["cluster"].nunique() == one.units()["cluster"].nunique() == 3
    assert one.cases()["cluster"].unique().tolist() == ["0", "1", "2"]
    halves = [set(four.half(side).units()["cluster"]) for side in (0, 1)]
    assert not halves[0] & halves[1] and len(halves[0] | halves[1]) == 3


def test_a_seed_chooses_the_documents_that_are_held_out(model: Any) -> None:
    documents = open_data(Documents("stories:1:24"), model)
    held_out = [tuple(documents.split(0.25, seed)[1].units()["cluster"].unique()) for seed in (0, 0, 1, 2)]
    assert [len(names) for names in held_out] == [6] * 4
    assert held_out[0] == held_out[1] and len(set(held_out)) == 3


def test_what_is_read_without_a_stride(model: Any, text: Path, tmp_path: Path) -> None:
    """Enough documents are cut; too few are read whole, in no more windows than documents were wanted."""
    cut = open_data(Documents(str(text), max_documents=3), model)
    lost = sum(max(len(cut.shards.document(i)) - 33, 0) for i in range(3))
    assert cut.title() == f"3 documents, 2 cut at 32 tokens ({lost:,} tokens not read: --stride)" and lost > 150
    assert not cut.shards.stride and len(list(cut.rows())) == 3
    assert cut.units().equals(open_data(Documents(str(text), max_documents=None, stride=0), model).units())
    few = open_data(Documents(str(text), max_documents=9), model)
    assert few.shards.stride == 16 and len(few.units()) == 9
    assert "windows not read" in few.title()
    assert few.units()["document"].nunique() == 3  # spread over all of the text
    every = open_data(Documents(str(text), stride=16), model)
    assert len(every.units()) == every.shards.possible > 9 and "not read" not in every.title()
    first = open_data(Documents(str(text), max_documents=2, stride=16), model).units()
    assert first.equals(every.units().query("document < 2"))
    short = tmp_path / "short.txt"
    short.write_text("the cat sat\n<|endoftext|>\non the tree")
    fits = open_data(Documents(str(short)), model)
    assert fits.title() == "2 documents, 0 cut at 32 tokens"
    same = overlapping_windows(fits.shards, 32, 16)
    assert [same.document(i).tolist() for i in range(2)] == [fits.shards.document(i).tolist() for i in range(2)]
    assert same.n_documents == 2 and not same.unscored.any()


def test_a_stride_beyond_the_context_is_one_line(model: Any, text: Path) -> None:
    with pytest.raises(InputError, match="stride 33: give 1 to 32, the context"):
        open_data(Documents(str(text), stride=33), model)


def test_rows_of_tokens_cover_the_document(model: Any, text: Path, tmp_path: Path) -> None:
    """Features and effects have a row per token, at its position in the document; losses are those of a plain pass."""
    data = Tokens(str(text), stride=8)
    shards = open_data(data, model).shards.documents
    effects = TokenEffects(heads=("L1.H0",)).measure(model, data)
    rows = effects.table("token_effects").frame
    features = Extract(**HEADS, tier="core").measure(model, data).table("features").frame
    for table in (rows, features):
        for d, some in table.groupby("document"):
            ids = shards.document(int(d))
            assert some["position"].tolist() == list(range(len(ids) - 1))
            assert some["token_id"].tolist() == ids[:-1].tolist() and some["target_id"].tolist() == ids[1:].tolist()
            assert (some["offset"] == 8 * some["window"]).all() and (some["position"] - some["offset"] < 32).all()
    losses = [x for d in range(3) for x in plainly(model, shards.document(d).tolist(), 8)]
    np.testing.assert_allclose(rows["loss"], losses, atol=1e-4)
    assert features["prediction_id"].tolist() == rows["prediction_id"].tolist()
    later = Extract(**HEADS, tier="core", logits_row="next").measure(model, data).table("features").frame
    for d, some in later.groupby("document"):
        assert some["position"].tolist() == list(range(len(shards.document(int(d))) - 2)), "one row less"
    assert effects.blocks["delta_loss"].units["cluster"].nunique() == 3
    with_raw = Extract(**HEADS, tier="core", raw=()).measure(model, data)
    depth, raw = with_raw.blocks["depth"], raw_of(with_raw)
    assert len(depth.units) == 3 and depth.total.sum() == len(rows) == len(raw.X)
    with_raw.save(tmp_path / "f.parquet")
    assert np.array_equal(read_raw(tmp_path / "f-raw.parquet").X, raw.X)
    assert read_features(tmp_path / "f.parquet").table["position"].tolist() == rows["position"].tolist()


@pytest.mark.parametrize("n", [5, 12])
def test_blocks_of_neighbours(n: int) -> None:
    dealt = blocks_of_neighbours(list(range(n)), 3)
    blocks = [dealt[b::3] for b in range(3)]
    assert [x for block in blocks for x in block] == list(range(n))
    assert max(map(len, blocks)) - min(map(len, blocks)) <= 1
