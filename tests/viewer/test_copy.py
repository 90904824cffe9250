"""What a page hands over: lines of Python that give its numbers, and a tokenizer that gives Python's ids."""

import contextlib
import io
import json
import random
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from streamscope.models.checkpoint import load
from streamscope.text.tokenizer import BYTE_OF, Tokenizer
from streamscope.viewer.describe import describe, is_plain_bpe, python_template
from streamscope.viewer.session import Session, Shown, outputs

STATIC = Path(__file__).resolve().parents[2] / "viewer" / "static"
TEXTS = ('Lily had a "red" ball.\nShe said: it\'s {EDITS}', "Tim 🙂 saw a dog. It")
EDITS = {
    "stories/lfa": {
        "heads": {"L2.H3": {"scale": 0, "alpha": 4}}, "streams": {"token": "unembedding"}, "mixing": ["L1.v"],
    },
    "stories/pls": {"heads": {"L0.H1": {"gate": "open"}, "L5.H0": {"scale": -1}}, "streams": {"context": "everywhere"}},
    "stories/kromcanon": {"h_res": ["L3.mlp"], "canon": ["L0.a", "L2.d"], "streams": {"s1": "unembedding"}},
}  # fmt: skip


def filled_template(lines: str, text: str, edits: Any, layer: int, head: int, step: int | None = None) -> str:
    given = {"TEXT": repr(text), "EDITS": repr(edits), "LAYER": str(layer), "HEAD": str(head)}
    given["STEP"] = "" if step is None else f"@{step}"
    return re.sub(rf"\{{({'|'.join(given)})\}}", lambda found: given[found[1]], lines)


@pytest.mark.parametrize("name", EDITS)
def test_the_lines_of_python_give_the_numbers_shown(name: str) -> None:
    model = load(name)
    for text in TEXTS:
        lines = filled_template(python_template(name), text, EDITS[name], 2, 3)
        made: dict = {}
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(lines, made)
        tokens = torch.tensor([model.tokenizer.encode(text)])
        shown = outputs(model, tokens, EDITS[name])
        logp = torch.tensor(shown["logits"]).log_softmax(-1)
        loss = -logp[:-1].gather(-1, tokens[0, 1:, None])[:, 0]
        np.testing.assert_allclose(made["logits"][0].detach(), shown["logits"], atol=1e-4)
        np.testing.assert_allclose(made["pattern"].detach(), shown["patterns"][2, 3], atol=1e-4)
        np.testing.assert_allclose(made["loss"].detach(), loss, atol=1e-4)
        best = re.findall(r"^(\d\.\d{4}) ", printed.getvalue(), re.MULTILINE)
        np.testing.assert_allclose([float(p) for p in best], logp[-1].exp().topk(10).values, atol=1e-4)


def test_a_model_without_bos_has_none_in_the_page_and_in_the_lines() -> None:
    model = load("stories/lfa")
    shown = Shown("stories/lfa", "lfa", model)
    usual = describe(shown)
    model.tokenizer = model.tokenizer.with_bos("no")
    bare = describe(shown)
    assert usual["tokenizer"]["bos_id"] == model.tokenizer.bos_id and bare["tokenizer"]["bos_id"] is None
    made: dict = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(filled_template(bare["python"], TEXTS[0], {}, 2, 3), made)
    ids = Session([shown]).answer("tokenize", {"model": "lfa", "text": TEXTS[0]})
    assert made["tokens"][0].tolist() == ids["ids"]
    assert "with_bos" not in usual["python"]


def test_the_lines_open_a_snapshot() -> None:
    lines = python_template("stories/lfa", snapshots=True)
    assert "load_for_instruments('stories/lfa@1000')" in filled_template(lines, "a", {}, 0, 0, 1000)
    assert "load_for_instruments('stories/lfa')" in filled_template(lines, "a", {}, 0, 0)
    assert describe(Shown("stories/lfa", "lfa", load("stories/lfa"), (1000, 7200)))["python"] == lines


ALPHABET = [
    *"abcdefghij ABC  019 .,!?'\"-()\n\t_", "'s", "'ll", "'S", "\u0085", "\ufeff", "\u00a0", "\u2003", "é", "e\u0301",
    "ß", "ﷺ", "日本", "😀", "👩\u200d👧", "\u202e", "<|endoftext|>", "<img onerror=x>", "²", "Ⅷ", "١", "Ω", "\u200b",
]  # fmt: skip


def texts() -> list[str]:
    """A thousand: words and prose, and characters on which implementations differ."""
    rng = random.Random(0)
    words = ["Lily", "had", "a", "red", "ball.", "She", "said", "it's", "Tim's,", "don't!", "Once", "upon", "12"]
    prose = [" ".join(rng.choices(words, k=rng.randint(1, 30))) for _ in range(400)]
    return ["", " ", *prose, *("".join(rng.choices(ALPHABET, k=rng.randint(1, 40))) for _ in range(598))]


NODE = """
import { readFileSync } from "node:fs";
const { makeTokenizer } = await import(process.argv[1]);
const { files, texts } = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(files.map((file) => texts.map(makeTokenizer(JSON.parse(file)).encode))));
"""


def ids_of_the_page(tmp_path: Path, tokenizers: Sequence[Tokenizer], texts: Sequence[str]) -> list[list[list[int]]]:
    """What `tokenizer.js` gives in Node, [tokenizer][text]."""
    if (node := shutil.which("node")) is None:
        pytest.skip("no Node: the page's tokenizer is not compared with ours")
    (tmp_path / "tokenizer.mjs").write_text((STATIC / "tokenizer.js").read_text())
    asked = json.dumps({"files": [one.to_json() for one in tokenizers], "texts": texts})
    argv = [node, "--input-type=module", "-e", NODE, str(tmp_path / "tokenizer.mjs")]
    done = subprocess.run(argv, input=asked, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def with_added(prefix_space: bool, added: Sequence[AddedToken]) -> Tokenizer:
    backend = Backend.from_str(load("stories/lfa").tokenizer.to_json())  # type: ignore[union-attr]
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    backend.add_tokens(list(added))
    return Tokenizer.from_json(backend.to_str())


ADDED = ["<user>", "  ", "   ", "\t\t", "user", "Lily", "🙂", "a.b*", "<|endoftext|>s", "text|><", "é", " had ", "_"]
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def test_the_pages_tokenizer_gives_the_ids_of_ours(tmp_path: Path) -> None:
    """In Node: the tokenizer of the bundled models, one that puts a space first, and random added tokens."""
    rng = random.Random(1)
    tokenizers = [with_added(False, []), with_added(True, [])]
    for draw in range(12):
        spaced = draw % 2 == 0  # with rstrip the library panics where the next token begins with the space taken
        names = rng.sample([name for name in ADDED if spaced or not name[0].isspace()], rng.randint(2, 9))
        flags = [{flag: rng.random() < 0.4 and not (spaced and flag == "rstrip") for flag in FLAGS} for _ in names]
        tokenizers.append(with_added(draw % 3 == 0, [AddedToken(n, **f) for n, f in zip(names, flags, strict=True)]))
    alphabet = [*ALPHABET, *ADDED, *ADDED, " ", "\n"]
    mixed = ["".join(rng.choices(alphabet, k=rng.randint(1, 15))) for _ in range(400)]
    every = ["<user> Lily had a ball", *texts(), *mixed]
    found = ids_of_the_page(tmp_path, tokenizers, every)
    for tokenizer, rows in zip(tokenizers, found, strict=True):
        for text, ids in zip(every, rows, strict=True):
            assert ids == tokenizer.encode(text, bos=False), (text, tokenizer.to_json()[:3000])


def merging(merges: Sequence[tuple[str, str]], lacking: str = "") -> Tokenizer:
    """A byte-level BPE of these merges, whose vocabulary lacks some bytes."""
    alphabet = [byte for byte in sorted(BYTE_OF) if byte not in lacking]
    words = ["<|endoftext|>", *alphabet, *dict.fromkeys(a + b for a, b in merges)]
    backend = Backend(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=list(merges)))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return Tokenizer(backend)


def test_merges_that_training_would_not_make(tmp_path: Path) -> None:
    """A merge that needs a later one goes first once it can; a byte that the vocabulary lacks is not there at all."""
    made = [
        merging([("ab", "c"), ("d", "ab"), ("a", "b"), ("b", "ab")]),
        merging([("ba", "ba"), ("a", "bab"), ("b", "a"), ("ba", "b"), ("b", "b")]),
        merging([("a", "c"), ("d", "d")], lacking="b"), merging([("a", "c")], lacking="Ġ"), merging([], lacking="abc"),
    ]  # fmt: skip
    rng = random.Random(2)
    texts = ["", "b", "abc", "abab", "a bc", *("".join(rng.choices("abcd ", k=rng.randint(1, 12))) for _ in range(500))]
    for tokenizer, rows in zip(made, ids_of_the_page(tmp_path, made, texts), strict=True):
        assert is_plain_bpe(tokenizer.to_json())
        assert rows == tokenizer.encode_batch(texts, bos=False)


def test_which_tokenizers_the_page_has() -> None:
    ours = load("stories/lfa").tokenizer
    assert ours is not None and is_plain_bpe(ours.to_json())
    data = json.loads(ours.to_json())
    vocab = {token: i for token, i in data["model"]["vocab"].items() if token != "é"}  # lacks a byte, which is unk then
    for change in (
        {"model": {**data["model"], "unk_token": "a", "vocab": vocab}},
        {"normalizer": {"type": "NFC"}}, {"pre_tokenizer": {"type": "Digits", "individual_digits": True}},
        {"model": {**data["model"], "ignore_merges": True}}, {"model": {**data["model"], "type": "Unigram"}},
    ):  # fmt: skip
        assert not is_plain_bpe(json.dumps(data | change))
