"""Mixtures: every part has its share of the tokens, its windows come once before they come twice, order is by seed."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch

from streamscope.cli.errors import InputError
from streamscope.models.training.prepare import prepare
from streamscope.text.corpus import open_corpus
from streamscope.text.shards import pack
from streamscope.text.tokenizer import Tokenizer
from streamscope.text.windows import BLOCK, MixedWindows, Mixture, Windows, round_to_block
from tests.tiny import refused

WORDS = {"a": "ant bee cow", "b": "pig rat sow", "c": "yak zebu elk"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three corpora of words that no other has, the second a tenth as long."""
    folder = tmp_path_factory.mktemp("parts")
    found = {}
    for name, words in WORDS.items():
        documents = [f"{words} {i} {words}" for i in range(40 if name == "b" else 400)]
        found[name] = folder / f"{name}.txt"
        found[name].write_text("\n<|endoftext|>\n".join(documents))
    return found


@pytest.fixture(scope="module")
def tokenizer(files: dict[str, Path]) -> Tokenizer:
    return Tokenizer.train((path.read_text() for path in files.values()), 300)


def mixture(paths: Iterable[Path], tokenizer: Tokenizer, *weights: float) -> Mixture:
    corpus = open_corpus(" + ".join(f"{path}*{weight}" for path, weight in zip(paths, weights, strict=True)))
    assert corpus.parts
    return Mixture(corpus, [pack(part, tokenizer) for part in corpus.parts])


def parts_of(windows: MixedWindows, drawn: np.ndarray) -> Counter[int]:
    return Counter((np.searchsorted(windows.first, drawn, side="right") - 1).tolist())


def test_weights_are_shares_of_the_tokens(files, tokenizer) -> None:
    windows = MixedWindows(mixture(files.values(), tokenizer, 0.5, 0.3, 0.2), 16)
    drawn = windows.draw(3, 0, 5 * BLOCK)
    assert parts_of(windows, drawn) == {0: 2500, 1: 1500, 2: 1000}
    # in a batch as by chance: windows of a part are not in a row
    first = [parts_of(windows, drawn[i : i + 8])[0] for i in range(0, 4000, 8)]
    assert abs(np.mean(first) - 4) < 0.05 and 1.0 < np.std(first) < 1.8  # binomial: sqrt(8 · .5 · .5) = 1.41
    # told from the text alone
    _, targets = windows.batch(drawn[:1000])
    letters = Counter(c for row in targets.tolist() for c in tokenizer.decode(row) if c in "czr")
    assert letters["c"] > letters["r"] > 0 and letters["z"] > 0


def test_shares_of_targets_hold_where_windows_are_of_different_length(files, tokenizer, tmp_path) -> None:
    long = tmp_path / "long.txt"
    long.write_text("\n<|endoftext|>\n".join(f"{i} " + "elk " * 60 for i in range(60)))
    windows = MixedWindows(mixture((files["a"], long), tokenizer, 1, 1), 32, packing="document")
    drawn = windows.draw(0, 0, BLOCK)
    real = (windows.batch(drawn)[1] != -100).sum(1).numpy()
    assert abs(real[drawn < windows.first[1]].sum() / real.sum() - 0.5) < 0.02
    assert parts_of(windows, drawn)[0] > 1.5 * parts_of(windows, drawn)[1]  # shorter windows, so more of them


def test_every_phase_and_block_has_an_order_of_parts_of_its_own(files, tokenizer) -> None:
    windows = MixedWindows(mixture(files.values(), tokenizer, 1, 1, 1), 16)
    drawn = [windows.draw(0, block * BLOCK, BLOCK, phase) for phase in (0, 1) for block in (0, 1)]
    orders = [tuple(np.searchsorted(windows.first, draws, side="right") - 1) for draws in drawn]
    assert len(set(orders)) == 4


def test_a_part_is_read_to_its_end_before_it_is_read_again(files, tokenizer) -> None:
    windows = MixedWindows(mixture(files.values(), tokenizer, 1, 1, 1), 16)
    drawn = windows.draw(0, 0, 3 * BLOCK)
    for k, part in enumerate(windows.windows):
        mine = drawn[(drawn >= windows.first[k]) & (drawn < windows.first[k + 1])] - windows.first[k]
        epochs = [mine[i : i + len(part)].tolist() for i in range(0, len(mine) - len(part) + 1, len(part))]
        assert k != 1 or len(epochs) > 3  # the short one comes round several times
        assert all(sorted(epoch) == list(range(len(part))) for epoch in epochs)
        assert len({tuple(epoch) for epoch in epochs}) == len(epochs)


def test_draws_are_a_pure_function_of_seed_and_number(files, tokenizer) -> None:
    mixed = mixture(files.values(), tokenizer, 0.5, 0.3, 0.2)
    whole = MixedWindows(mixed, 16).draw(1, 0, 2500)
    for start, n in ((0, 8), (996, 8), (2000, 500), (1500, 4), (0, 8)):  # forth and back, over the ends of blocks
        fresh = MixedWindows(mixed, 16)
        assert np.array_equal(fresh.draw(1, start, n), whole[start : start + n])
    for other in (MixedWindows(mixed, 16).draw(2, 0, 500), MixedWindows(mixed, 16).draw(1, 0, 500, phase=1)):
        assert not np.array_equal(other, whole[:500])
    assert not np.array_equal(whole[:500], whole[1000:1500])


def test_batches_are_those_of_the_parts(files, tokenizer) -> None:
    mixed = mixture(files.values(), tokenizer, 1, 1, 1)
    windows = MixedWindows(mixed, 16)
    assert len(windows) == sum(len(Windows(part, 16)) for part in mixed.parts)
    for k, part in enumerate(mixed.parts):
        inputs, targets = Windows(part, 16).batch([0, 2])
        mine, next_ones = windows.batch(windows.first[k] + np.array([0, 2]))
        assert torch.equal(inputs, mine) and torch.equal(targets, next_ones)
    mixed_up = windows.first[:3] + 1
    assert torch.equal(windows.batch(mixed_up)[0], torch.cat([Windows(part, 16).batch([1])[0] for part in mixed.parts]))
    for bad in ([-1], [len(windows)]):
        with pytest.raises(IndexError, match="of"):
            windows.batch(bad)
    other = windows.at(32, (0, 1, 1))
    assert set(parts_of(other, other.draw(0, 0, BLOCK))) == {1, 2} and other.batch([0])[0].shape == (1, 32)


def test_counts_of_a_block() -> None:
    assert round_to_block([1, 1, 1]).tolist() == [334, 333, 333]
    assert round_to_block([2, 0, 2]).tolist() == [500, 0, 500]
    assert round_to_block([0.9994, 0.0006]).tolist() == [999, 1]
    with pytest.raises(InputError, match="at least 1/1000"):
        round_to_block([1, 1e-5])


def test_as_one_corpus_it_is_every_document_once_in_shares_until_a_part_ends(files) -> None:
    a, b = files["a"], files["b"]
    documents = list(open_corpus(f"{a}*3 + {b}*1").documents())
    assert len(set(documents)) == len(documents) == 440
    last = max(i for i, document in enumerate(documents) if "pig" in document)
    ants = [document for document in documents[: last + 1] if "ant" in document]
    assert sum(map(len, ants)) / sum(map(len, documents[: last + 1])) == pytest.approx(0.75, abs=0.01)
    assert len(list(open_corpus(f"{a}*1+{b}*1", max_documents=7).documents())) == 14
    half = open_corpus(f"{a}*.5 + {b}*.5")
    assert half.fingerprint() == open_corpus(f"{a}*2+{b}*2").fingerprint()
    for other in (f"{a}*.6 + {b}*.4", f"{b}*.5 + {a}*.5"):
        assert half.fingerprint() != open_corpus(other).fingerprint()
    told = half.describe()
    assert [part["weight"] for part in told["parts"]] == [0.5, 0.5] and told["fingerprint"] == half.fingerprint()
    assert told["parts"][0]["files"][0]["sha256"]
    odd = a.parent / "two+two*4"  # a path that is no mixture
    odd.mkdir()
    (odd / "x.txt").write_text("one")
    assert list(open_corpus(str(odd)).documents()) == ["one"]
    with pytest.raises(InputError, match="not an existing file"):
        open_corpus(f"{a.parent}/*.txt")


def test_bad_mixtures_are_one_line() -> None:
    for source, line in (
        ("stories*.5 + echo", "each with a weight"), ("stories + echo*.5", "each with a weight"),
        ("stories*.5", "at least two parts"), ("stories*.5 + *.5", "each with a weight"),
        ("stories*0 + echo*1", "weight of stories is 0"), ("stories*.5 + echo*-1", "weight of echo is -1"),
        ("stories*nan + echo*1", "weight of stories is nan"), ("stories*inf + echo*1", "weight of stories is inf"),
        ("stories*.5 + none.txt*.5", "none.txt is not an existing file"), ("stories*.5 + echo:0:0*.5", "zero stories"),
    ):  # fmt: skip
        with refused(line):
            open_corpus(source)


def test_an_empty_or_a_short_part_is_named(files, tokenizer, tmp_path: Path) -> None:
    empty, short = tmp_path / "empty.txt", tmp_path / "short.txt"
    empty.write_text("\n")
    short.write_text("ant")
    with pytest.raises(InputError, match="empty.txt has no text"):
        prepare(f"{files['a']}*1 + {empty}*1", str(files["b"]), None, 300)
    data = prepare(f"{files['a']}*1 + {short}*1", str(files["b"]), None, 300)
    assert isinstance(data.train, Mixture)
    with pytest.raises(InputError, match="short.txt.*fewer than one sequence"):
        MixedWindows(data.train, 16)
    good = mixture(files.values(), tokenizer, 1, 1, 1)
    for weights in ((1, 1), (0, 0, 0), (1, -1, 1), (1, float("nan"), 1)):
        with pytest.raises(InputError, match="one number from 0 for each of the 3 parts"):
            MixedWindows(good, 16, weights=weights)


def test_held_out_documents_are_in_no_part_and_the_manifest_names_all(files) -> None:
    data = prepare(f"{files['a']}*.5 + {files['c']}*.5", None, None, 300)
    assert isinstance(data.train, Mixture)
    decode = data.tokenizer.decode
    train = {decode(part.document(i)[1:].tolist()) for part in data.train.parts for i in range(part.n_documents)}
    valid = {decode(data.valid.document(i)[1:].tolist()) for i in range(data.valid.n_documents)}
    assert len(train) + len(valid) == 800 and not train & valid
    assert {document[:3] for document in valid} == {"ant", "yak"}
    told = data.description["train"]
    assert told["n_documents"] == len(train) and told["corpus"] == told["source"]["fingerprint"]
    assert [part["share"] for part in told["parts"]] == [0.5, 0.5] and all(part["sha256"] for part in told["parts"])
