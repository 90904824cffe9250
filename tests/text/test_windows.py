"""What is cut from packed tokens: training windows, their order, evaluation batches."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from streamscope.cli.errors import InputError
from streamscope.text.corpus import open_corpus
from streamscope.text.shards import (
    NO_TARGET,
    TokenShards,
    Windows,
    document_batches,
    epoch_order,
    pack,
)
from streamscope.text.tokenizer import Tokenizer

DRAW = random.Random(0)
WORDS = ["cat", "dog", "ran", "far", "\u00e9t\u00e9", "\U0001f600", "the", "end\n"]
DOCUMENTS = [" ".join(DRAW.choices(WORDS, k=DRAW.randrange(1, 30))).strip() for _ in range(300)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(DOCUMENTS, 270)


@pytest.fixture(scope="module")
def shards(tokenizer, tmp_path_factory) -> TokenShards:
    folder = tmp_path_factory.mktemp("corpus")
    return pack(open_corpus(write(folder / "a.txt", DOCUMENTS)), tokenizer, cache_dir=folder)


def write(path: Path, documents: list[str]) -> str:
    path.write_text("\n<|endoftext|>\n".join(documents), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("n_ctx", [1, 7, 64])
def test_stream_windows_are_the_concatenation_cut(shards, tokenizer, n_ctx):
    flat = [i for document in DOCUMENTS for i in tokenizer.encode(document)]
    naive = [flat[i : i + n_ctx + 1] for i in range(0, len(flat), n_ctx)]
    naive = [window for window in naive if len(window) == n_ctx + 1]
    windows = Windows(shards, n_ctx)
    assert len(windows) == len(naive)
    inputs, targets = windows.batch(range(len(windows)))
    assert inputs.dtype == targets.dtype == torch.int64
    assert inputs.tolist() == [window[:-1] for window in naive]
    assert targets.tolist() == [window[1:] for window in naive]
    if n_ctx == 64:
        assert (targets == tokenizer.bos_id).any()  # where a document ends is part of the task
    some = [3, 0, 3, len(windows) - 1]
    assert torch.equal(windows.batch(some)[0], inputs[some])


@pytest.mark.parametrize("n_ctx", [1, 7, 64])
def test_document_windows_hold_one_document(shards, tokenizer, n_ctx):
    naive = []
    for document in DOCUMENTS:
        ids = tokenizer.encode(document)
        naive += [ids[i : i + n_ctx + 1] for i in range(0, len(ids) - 1, n_ctx)]
    windows = Windows(shards, n_ctx, packing="document")
    assert len(windows) == len(naive)
    inputs, targets = windows.batch(np.arange(len(windows)))
    for row, target, chunk in zip(inputs.tolist(), targets.tolist(), naive, strict=True):
        assert target == chunk[1:] + [NO_TARGET] * (n_ctx + 1 - len(chunk))
        assert row == (chunk + [tokenizer.pad_id] * n_ctx)[:n_ctx]
    assert int((targets != NO_TARGET).sum()) == shards.n_tokens - shards.n_documents
    assert not (targets == tokenizer.bos_id).any()
    assert torch.equal(windows.batch([len(windows) - 1])[1], targets[-1:])


def test_windows_refuse_bad_input(shards, tokenizer, tmp_path):
    for packing in ("stream", "document"):
        windows = Windows(shards, 8, packing=packing)
        for indices in ([-1], [len(windows)]):
            with pytest.raises(IndexError):
                windows.batch(indices)
    short = pack(open_corpus(write(tmp_path / "a.txt", ["cat"])), tokenizer, cache_dir=tmp_path)
    with pytest.raises(InputError, match=rf"has {short.n_tokens} tokens, .* n_ctx \+ 1 = 65:"):
        Windows(short, 64)
    assert len(Windows(short, 64, packing="document")) == 1


GOLDEN_ORDER = [2, 4, 3, 6, 5, 0, 1, 7]  # a resumed run must find the order it was started with


def test_epoch_order_is_a_permutation_of_its_own_for_each_epoch():
    orders = [epoch_order(1000, seed, epoch) for seed in (0, 1) for epoch in (0, 1, 2)]
    assert all(np.array_equal(np.sort(order), np.arange(1000)) for order in orders)
    assert len({tuple(order) for order in orders}) == len(orders)
    assert np.array_equal(epoch_order(1000, 1, 2), orders[-1])
    assert epoch_order(8, 0, 0).tolist() == GOLDEN_ORDER


@pytest.mark.parametrize(("n_ctx", "batch_size", "limit"), [(5, 7, None), (64, 32, 40), (200, 1000, 1)])
def test_document_batches_give_each_document_once(shards, tokenizer, n_ctx, batch_size, limit):
    seen: list[int] = []
    lengths: list[int] = []
    for indices, inputs, targets in document_batches(shards, n_ctx, batch_size, limit):
        assert len(indices) <= batch_size and inputs.shape == targets.shape
        assert inputs.shape[1] == int((targets != NO_TARGET).sum(1).max()) <= n_ctx
        for i, row, target in zip(indices.tolist(), inputs.tolist(), targets.tolist(), strict=True):
            ids = tokenizer.encode(DOCUMENTS[i])[: n_ctx + 1]
            assert [t for t in target if t != NO_TARGET] == target[: len(ids) - 1] == ids[1:]
            assert row == (ids + [tokenizer.pad_id] * n_ctx)[: len(row)]
            lengths.append(len(ids))
        seen += indices.tolist()
    chosen = DOCUMENTS[:limit]
    assert sorted(seen) == list(range(len(chosen)))
    assert lengths == sorted(lengths, reverse=True)
