import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from streamscope.cli.errors import InputError
from streamscope.text import shards as module
from streamscope.text.corpus import open_corpus
from streamscope.text.shards import NO_TARGET, TokenShards, document_batches, in_validation, pack
from streamscope.text.tokenizer import Tokenizer
from streamscope.text.windows import Windows, epoch_order

ROOT = Path(__file__).parents[2]
DRAW = random.Random(0)
WORDS = ["cat", "dog", "ran", "far", "\u00e9t\u00e9", "\U0001f600", "the", "end\n"]
DOCUMENTS = [" ".join(DRAW.choices(WORDS, k=DRAW.randrange(1, 30))).strip() for _ in range(300)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(DOCUMENTS, 270)


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> str:
    return write(tmp_path_factory.mktemp("corpus") / "a.txt", DOCUMENTS)


@pytest.fixture(scope="module")
def shards(source, tokenizer, tmp_path_factory) -> TokenShards:
    return pack(open_corpus(source), tokenizer, cache_dir=tmp_path_factory.mktemp("cache"))


def write(path: Path, documents: list[str]) -> str:
    path.write_text("\n<|endoftext|>\n".join(documents), encoding="utf-8")
    return str(path)


def texts(shards: TokenShards, tokenizer: Tokenizer) -> list[str]:
    return [tokenizer.decode(shards.document(i)) for i in range(shards.n_documents)]


def test_documents_come_back_each_after_bos(shards, source, tokenizer):
    assert shards.n_documents == len(DOCUMENTS)
    for i, document in enumerate(DOCUMENTS):
        assert shards.document(i).tolist() == tokenizer.encode(document)
        assert shards.document(i).dtype == np.int64
    assert shards.lengths.tolist() == [len(ids) for ids in tokenizer.encode_batch(DOCUMENTS)]
    assert shards.n_tokens == len(shards.tokens) == sum(shards.lengths)
    for i in (-1, len(DOCUMENTS)):
        with pytest.raises(IndexError):
            shards.document(i)
    meta = json.loads((shards.folder / "meta.json").read_text())
    assert meta["corpus"] == open_corpus(source).fingerprint() and meta["tokenizer"] == tokenizer.sha256
    assert (meta["part"], meta["rule"], meta["dtype"]) == ("all", "every document", "uint16")
    assert (meta["n_documents"], meta["n_tokens"]) == (shards.n_documents, shards.n_tokens)
    assert (meta["d_vocab"], meta["bos_id"], meta["pad_id"]) == (270, 0, 0)


def test_a_vocabulary_above_65536_takes_four_bytes(tmp_path):
    vocabulary = {"type": "WordLevel", "vocab": {"<s>": 0, "cat": 70_000}, "unk_token": "<s>"}
    content = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}}
    tokenizer = Tokenizer.from_json(json.dumps({**content, "model": vocabulary}))
    shards = pack(open_corpus(write(tmp_path / "a.txt", ["cat cat"])), tokenizer, cache_dir=tmp_path)
    assert shards.meta["dtype"] == "uint32"
    assert shards.document(0).tolist() == [0, 70_000, 70_000]


def test_a_packed_corpus_is_not_tokenized_again(source, tokenizer, tmp_path, monkeypatch):
    """Wherever it lies, which its record names; and what is interrupted leaves nothing behind."""

    def interrupt(*args, **options):
        raise KeyboardInterrupt

    first = pack(open_corpus(source), tokenizer, cache_dir=tmp_path / "cache")
    monkeypatch.setattr(Tokenizer, "encode_batch", interrupt)
    (tmp_path / "elsewhere").mkdir()
    copy = shutil.copy(source, tmp_path / "elsewhere")
    again = pack(open_corpus(str(copy)), tokenizer, cache_dir=tmp_path / "cache")
    assert again.folder == first.folder and np.array_equal(again.tokens, first.tokens)
    assert (first.meta["source"]["source"], again.meta["source"]["source"]) == (source, str(copy))
    with pytest.raises(KeyboardInterrupt):
        pack(open_corpus(source, max_documents=5), tokenizer, cache_dir=tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [first.folder.name]


def test_the_key_follows_everything_that_matters(source, tokenizer, tmp_path):
    corpus = open_corpus(source)
    other = Tokenizer.train(DOCUMENTS, 265)
    folders = [
        pack(corpus, tokenizer, cache_dir=tmp_path).folder,
        pack(corpus, other, cache_dir=tmp_path).folder,
        pack(open_corpus(source, max_documents=200), tokenizer, cache_dir=tmp_path).folder,
        pack(corpus, tokenizer, cache_dir=tmp_path, part="train").folder,
        pack(corpus, tokenizer, cache_dir=tmp_path, part="valid").folder,
        pack(corpus, tokenizer, cache_dir=tmp_path, part="valid", valid_fraction=0.2).folder,
    ]
    assert len(set(folders)) == len(folders)
    assert pack(corpus, tokenizer, cache_dir=tmp_path, valid_fraction=0.2).folder == folders[0]


def test_the_cache_is_where_the_environment_says(source, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setenv("STREAMSCOPE_CACHE", str(tmp_path / "new" / "cache"))
    assert pack(open_corpus(source), tokenizer).folder.parent == tmp_path / "new" / "cache"
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written .* set STREAMSCOPE_CACHE"):
        pack(open_corpus(source), tokenizer, cache_dir=tmp_path / "file")


@pytest.mark.parametrize("name", ["tokens.bin", "starts.npy", "meta.json"])
def test_a_damaged_entry_is_built_again(source, tokenizer, tmp_path, name):
    again = pack(open_corpus(source), tokenizer, cache_dir=tmp_path)
    expected, file = np.array(again.tokens), again.folder / name
    for damage in ("cut", "gone", "empty"):
        content = file.read_bytes()
        file.unlink()  # the memory map keeps the old file
        if damage != "gone":
            file.write_bytes(content[:-2] if damage == "cut" else b"")
        with pytest.raises(InputError, match="cannot be read|is damaged|is missing"):
            TokenShards(again.folder)
        again = pack(open_corpus(source), tokenizer, cache_dir=tmp_path)
        assert np.array_equal(again.tokens, expected)
        assert [path.name for path in tmp_path.iterdir()] == [again.folder.name]


PACK = """
import os, sys
from pathlib import Path
from streamscope.text import shards as module
from streamscope.text.corpus import open_corpus
from streamscope.text.shards import pack
from streamscope.text.tokenizer import Tokenizer
source, tokenizer, cache, said = sys.argv[1:]
children = []
for kill in (True, False, False):
    if not (child := os.fork()):
        words = Tokenizer.load(tokenizer)
        words.encode_batch = (lambda texts: os._exit(9)) if kill else words.encode_batch
        shards = pack(open_corpus(source), words, cache_dir=Path(cache))
        Path(said, str(len(children))).write_text(f"{shards.folder.name} {int(shards.tokens.sum())}")
        os._exit(0)
    children.append(child)
print(*(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


def test_killed_and_racing_processes_leave_one_sound_entry(source, tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    (said := tmp_path / "said").mkdir()
    argv = [sys.executable, "-c", PACK, source, str(tmp_path), str(tmp_path / "cache"), str(said)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=600, check=True)
    killed, *live = map(int, done.stdout.split())
    assert live == [0, 0], done.stderr
    found = [path.read_text() for path in sorted(said.iterdir())]
    assert (killed, len(found)) in ((9, 2), (0, 3))  # too late to be killed: it found the entry
    shards = pack(open_corpus(source), tokenizer, cache_dir=tmp_path / "cache")
    assert set(found) == {f"{shards.folder.name} {int(shards.tokens.sum())}"}


def test_the_split_is_disjoint_exhaustive_and_by_text(tokenizer, tmp_path):
    documents = DOCUMENTS + DOCUMENTS[:100]  # duplicates must not straddle
    corpus = open_corpus(write(tmp_path / "a.txt", documents))
    how = {"cache_dir": tmp_path, "valid_fraction": 0.2}
    train, valid = (pack(corpus, tokenizer, part=part, **how) for part in ("train", "valid"))
    kept, held = texts(train, tokenizer), texts(valid, tokenizer)
    assert sorted(kept + held) == sorted(documents)
    assert not set(kept) & set(held)
    assert held == [document for document in documents if in_validation(document, 0.2)]
    assert 0.1 < len(held) / len(documents) < 0.3
    assert "is below 2000" in valid.meta["rule"] and "is not below 2000" in train.meta["rule"]
    assert train.meta["n_documents"] == len(kept) and valid.meta["n_tokens"] == len(valid.tokens)
    backwards = open_corpus(write(tmp_path / "b.txt", documents[::-1]))
    assert texts(pack(backwards, tokenizer, part="valid", **how), tokenizer) == held[::-1]
    with pytest.raises(InputError, match="too little text for one side of the split"):
        pack(corpus, tokenizer, cache_dir=tmp_path, part="valid", valid_fraction=1e-9)


def test_documents_are_tokenized_in_groups_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group ends with the document that reaches the bound of characters, or of documents; none is lost."""
    monkeypatch.setattr(module, "GROUP_CHARACTERS", 10)
    monkeypatch.setattr(module, "GROUP_DOCUMENTS", 4)
    documents = ["aaaa"] * 5 + ["b"] * 6 + ["c" * 30, "d"]
    found = list(module._groups(iter(documents)))
    assert [len(group) for group in found] == [3, 4, 4, 1, 1]
    assert [document for group in found for document in group] == documents


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
        for index in (-1, len(windows)):
            with pytest.raises(IndexError):
                windows.batch([index])
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
