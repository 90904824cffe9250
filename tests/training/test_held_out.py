"""What is held out of text without a validation file: documents, or the ends of blocks of a long one."""

import itertools
import json
import random
from pathlib import Path

import numpy as np
import pytest

from streamscope.models.checkpoint import load
from streamscope.models.train import main as train
from streamscope.models.training.data import evaluation_shards
from streamscope.models.training.prepare import prepare
from streamscope.text.corpus import open_corpus
from streamscope.text.shards import in_validation, pack, pieces
from streamscope.text.tokenizer import Tokenizer
from streamscope.text.windows import Windows
from tests.tiny import WORDS, arguments, assert_refused, with_options

BOS = 0


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One text in paragraphs, without a separator."""
    draw = random.Random(5)
    path = tmp_path_factory.mktemp("book") / "book.txt"
    path.write_text("\n\n".join(" ".join(draw.choices(WORDS, k=draw.randint(20, 60))) + "." for _ in range(60)))
    return path


@pytest.mark.parametrize("blocks", [1, 3, 10])
@pytest.mark.parametrize("fraction", [0.05, 0.3])
@pytest.mark.parametrize("n", [397, 1000])
def test_pieces_are_the_document_and_share_nothing(n: int, blocks: int, fraction: float) -> None:
    """Every token is a number of its own: what is on which side can be read off."""
    sides = {part: pieces([BOS, *range(1, n + 1)], part, fraction, blocks) for part in ("train", "valid")}
    assert all(piece[0] == BOS for side in sides.values() for piece in side)
    held = [i for piece in sides["valid"] for i in piece[1:]]
    if not held:
        assert sides["train"] == [[BOS, *range(1, n + 1)]] and fraction * n / blocks < 3
        return
    assert len(sides["valid"]) == blocks == len(sides["train"])
    assert sorted([i for piece in sides["train"] for i in piece[1:]] + held) == list(range(1, n + 1))
    for piece in (*sides["train"], *sides["valid"]):
        assert list(piece[1:]) == list(range(piece[1], piece[1] + len(piece) - 1))  # contiguous
    for i, piece in enumerate(sides["valid"]):  # the end of its block
        assert piece[-1] == (i + 1) * n // blocks
        assert len(piece) - 1 == pytest.approx(fraction * n / blocks, abs=1)


def test_shards_are_the_document_and_share_nothing(book: Path) -> None:
    corpus = open_corpus(str(book))
    tokenizer = Tokenizer.train(corpus.documents(), 300)
    whole = pack(corpus, tokenizer).document(0)[1:].tolist()
    parts = [pack(corpus, tokenizer, part=part, valid_fraction=0.2, valid_blocks=4) for part in ("train", "valid")]
    assert [part.n_documents for part in parts] == [4, 4]
    joined = [one.document(i)[1:].tolist() for i in range(4) for one in parts]
    assert [i for piece in joined for i in piece] == whole
    for part, packing in itertools.product(parts, ("stream", "document")):  # nor does a window
        windows = Windows(part, 16, packing=packing)
        inputs, _ = windows.batch(np.arange(len(windows)))
        seen = [row[row != tokenizer.pad_id].tolist() for row in inputs if tokenizer.bos_id not in row[1:]]
        texts = [f" {' '.join(map(str, part.document(i)))} " for i in range(4)]
        assert len(seen) > 10 and all(any(f" {' '.join(map(str, row))} " in text for text in texts) for row in seen)


def test_a_book_trains_without_a_separator(book: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    argv = arguments((book, book), out)
    at = argv.index("--valid")
    train([*argv[:at], *argv[at + 2 :], "--valid-fraction", "0.2"])
    told = " ".join(capsys.readouterr().err.split())
    assert "the last 0.2 of each of the 10 blocks of every document" in told
    assert "tokens in 10 parts of documents, " in told, "one book is not ten documents"
    manifest, config = (json.loads((out / name).read_text()) for name in ("manifest.json", "config.json"))
    assert manifest["data"]["valid"]["rule"] == "the last 0.2 of each of the 10 blocks of every document"
    assert manifest["data"]["train"]["rule"] == "all but the last 0.2 of each of the 10 blocks of every document"
    assert (config["data"]["valid_blocks"], config["data"]["valid_fraction"]) == (10, 0.2)
    shards = evaluation_shards(out, load(out).tokenizer, None)
    assert shards.n_documents == 10 and shards.n_tokens == manifest["data"]["valid"]["n_tokens"]
    train(["--resume", "--out", str(out)])
    assert "the run is complete" in capsys.readouterr().err


def test_a_part_that_validation_does_not_read_is_named(book: Path, corpus, tmp_path: Path, capsys) -> None:
    argv = arguments((Path(f"{corpus[0]}*1 + {book}*1"), book), tmp_path / "a")
    at = argv.index("--valid")
    train(with_options([*argv[:at], *argv[at + 2 :]], ["--steps", "1"]))
    assert f"no document of {book} is held out, so validation does not read it" in capsys.readouterr().err
    train(arguments((Path(f"{corpus[0]}*1 + {book}*1"), book), tmp_path / "b", "--steps", "1"))
    assert "is held out" not in capsys.readouterr().err


def test_paragraphs_are_held_out_as_documents(book: Path) -> None:
    data = prepare(str(book), None, None, 300, split_at="blank", valid_fraction=0.3)
    paragraphs = book.read_text().split("\n\n")
    held = [text for text in paragraphs if in_validation(text, 0.3)]
    assert data.source["valid_blocks"] is None and 0 < data.valid.n_documents == len(held) < 60
    texts = [data.tokenizer.decode(data.valid.document(i)[1:]) for i in range(len(held))]
    assert texts == held and data.train.n_documents == 60 - len(held)


def test_splits_that_cannot_be(book: Path) -> None:
    for valid, options, message in (
        (str(book), {"valid_blocks": 3}, "leave out --valid-fraction and --valid-blocks, or --valid"),
        (str(book), {"valid_fraction": 0.1}, "leave out --valid-fraction"),
        (None, {"valid_blocks": 5000}, "too little text for one side of the split: change --valid-fraction"),
    ):
        assert_refused(message, prepare, str(book), valid, None, 300, **options)
