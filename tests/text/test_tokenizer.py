import json
from pathlib import Path

import pytest
import tokenizers
import torch

from streamscope.cli.errors import InputError
from streamscope.text import tokenizer as module
from streamscope.text.tokenizer import Tokenizer

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "tokenizers"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="shared/data is not on this machine")

DOCUMENTS = [
    f"The {animal} sat on the {place}. \u201cHow odd,\u201d said Zo\u00eb to the {animal}.\n\nThe end."
    for animal in ("cat", "dog", "owl", "fox")
    for place in ("mat", "hill", "boat", "moon")
]
TEXTS = [
    "The cat sat.", "", " ", "caf\u00e9, na\u00efve, \u00dcbung", "before <|endoftext|> after",
    "nul \x00 and bell \x07", "a \U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 b",
    "line one\n\n\tline two\r\n  end  ", "\u65e5\u672c\u8a9e and \u0627\u0644\u0639\u0631\u0628\u064a\u0629",
]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(DOCUMENTS, 308)


def foreign(tokens: list[str], **parts: object) -> str:
    """A word-level tokenizer.json as another tool would write it."""
    vocabulary = {token: i for i, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token=tokens[0]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    for name, part in parts.items():
        setattr(backend, name, part)
    return backend.to_str()


def test_training(tokenizer):
    """The vocabulary is filled exactly, or as far as a small corpus goes, and the same each time."""
    assert tokenizer.d_vocab == 308
    assert tokenizer.bos_id == tokenizer.pad_id == 0
    assert len(tokenizer.encode("The cat", bos=False)) < len("The cat")
    assert Tokenizer.train(iter(DOCUMENTS), 308).sha256 == tokenizer.sha256
    assert Tokenizer.train(DOCUMENTS, 300).sha256 != tokenizer.sha256
    assert 260 <= Tokenizer.train(["hello hello world"], 300).d_vocab < 270

    def broken():
        yield "fine"
        raise InputError("line 2 is bad")

    for documents, size, line in ((DOCUMENTS, 100, "d_vocab=100 .* at least 257"), (broken(), 300, "line 2 is bad"),
                                  ([], 300, "too small for a vocabulary")):  # fmt: skip
        with pytest.raises(InputError, match=line):
            Tokenizer.train(documents, size)


def test_round_trip(tokenizer):
    draw = torch.Generator().manual_seed(0)
    points = torch.randint(0, 0x10FFFF, (200, 12), generator=draw).tolist()
    drawn = ["".join(chr(p) for p in row if not 0xD800 <= p < 0xE000) for row in points]
    for text in TEXTS + drawn:
        ids = tokenizer.encode(text)
        assert ids[0] == tokenizer.bos_id and tokenizer.bos_id not in ids[1:], "a special token cannot be typed"
        assert ids[1:] == tokenizer.encode(text, bos=False)
        assert tokenizer.decode(ids) == tokenizer.decode(torch.tensor(ids)) == text
    assert tokenizer.encode_batch(TEXTS) == [tokenizer.encode(text) for text in TEXTS]
    assert tokenizer.encode_batch([]) == []
    pieces = tokenizer.pieces(tokenizer.encode("The cat\n caf\u00e9 \U0001f600"))
    assert pieces[:3] == ["<|endoftext|>", "The", " cat"] and {"\\xf0", "\\x80"} <= set(pieces)


def test_bos_policy_survives_the_file(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "new" / "tokenizer.json")
    tokenizer.save(tmp_path)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["tokenizer.json"]  # no temporary left
    for path in (tmp_path / "new" / "tokenizer.json", tmp_path / "new", str(tmp_path)):
        again = Tokenizer.load(path)
        assert again.sha256 == tokenizer.sha256
        assert again.encode_batch(TEXTS) == tokenizer.encode_batch(TEXTS)
    plain = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert plain.encode("The cat").ids == tokenizer.encode("The cat")  # another library agrees


def test_byte_alphabet_is_the_librarys():
    assert set(module.BYTE_OF) == set(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    assert sorted(module.BYTE_OF.values()) == list(range(256))


@pytest.mark.parametrize("bos", [True, False])
def test_spans_cover_the_text(tokenizer, bos):
    for text in TEXTS:
        ids, spans = tokenizer.spans(text, bos=bos)
        assert ids == tokenizer.encode(text, bos=bos)
        if bos:
            assert spans.pop(0) == (0, 0)
            ids = ids[1:]
        assert {i for start, end in spans for i in range(start, end)} == set(range(len(text)))
        if text.isascii():
            assert tokenizer.pieces(ids) == [text[start:end] for start, end in spans]


def test_what_a_tokenizer_cannot_do_is_one_line(tokenizer):
    for call, arguments, line in (
        *((call, ("cat \ud800",), "lone surrogates") for call in (tokenizer.encode, tokenizer.spans)),
        *((call, ([5, i],), f"token id {i} is outside this tokenizer's 0 to 307")
          for i in (-1, 308, 10**9) for call in (tokenizer.decode, tokenizer.pieces)),
        *((tokenizer.align, ("The cat", *span), "no token covers characters")
          for span in ((3, 3), (3, 4), (50, 60), (5, 2))),
        (tokenizer.batch, ([],), "at least one text"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=line):
            call(*arguments)


def test_align_finds_a_word_by_its_characters(tokenizer):
    text = "The cat sat on the cat."
    start = text.index("cat")
    for span in [(start, start + 3), (start - 1, start + 4)]:  # spaces around it change nothing
        positions = tokenizer.align(text, *span)
        assert "".join(tokenizer.pieces([tokenizer.encode(text)[p] for p in positions])) == " cat"
    without = tokenizer.align(text, start, start + 3, bos=False)
    assert [p + 1 for p in without] == tokenizer.align(text, start, start + 3)
    assert tokenizer.align(text, 0, len(text)) == list(range(1, len(tokenizer.encode(text))))
    emoji = "a \U0001f600 b"
    assert "\U0001f600" in tokenizer.decode([tokenizer.encode(emoji)[p] for p in tokenizer.align(emoji, 2, 3)])


def test_batch_pads_on_the_right(tokenizer):
    texts = ["The cat sat on the mat.", "", "The dog"]
    ids, mask = tokenizer.batch(texts)
    assert ids.dtype == torch.int64 and mask.dtype == torch.bool and ids.shape == mask.shape
    for row, real, text in zip(ids, mask, texts, strict=True):
        n = int(real.sum())
        assert row[:n].tolist() == tokenizer.encode(text)
        assert real[:n].all() and (row[n:] == tokenizer.pad_id).all()
    assert mask.shape[1] == mask.sum(1).max()
    assert tokenizer.batch([""], bos=False)[0].shape == (1, 0)


def test_truncation_and_padding_of_a_foreign_file_are_dropped():
    backend = tokenizers.Tokenizer.from_str(foreign(["<s>", "a", "b"]))
    backend.enable_truncation(2)
    backend.enable_padding(length=7)
    assert Tokenizer.from_json(backend.to_str()).encode("a b a") == [0, 1, 2, 1]


def test_a_foreign_bos_is_kept_and_one_is_chosen_where_there_is_none():
    template = tokenizers.processors.TemplateProcessing(single="[GO] $A", special_tokens=[("[GO]", 2)])
    own = Tokenizer.from_json(foreign(["<s>", "a", "[GO]"], post_processor=template))
    assert own.bos_id == 2 and own.encode("a a") == [2, 1, 1]
    for name in module.BOS_NAMES:
        chosen = Tokenizer.from_json(foreign(["a", "b", name]))
        assert chosen.encode("b") == [2, 1]
        assert chosen.decode([2, 1]) == "b"
        assert Tokenizer.from_json(chosen.to_json()).sha256 == chosen.sha256


def test_a_file_without_a_usable_bos_is_refused():
    with pytest.raises(InputError, match=r"the vocabulary has no BOS token: add one of <\|endoftext\|>"):
        Tokenizer.from_json(foreign(["a", "b"]))
    template = tokenizers.processors.TemplateProcessing(
        single="[gMASK] [sop] $A", special_tokens=[("[gMASK]", 0), ("[sop]", 1)]
    )
    with pytest.raises(InputError, match="its post-processor puts several tokens first: remove it from the file"):
        Tokenizer.from_json(foreign(["[gMASK]", "[sop]", "a"], post_processor=template))


@pytest.mark.parametrize(
    ("single", "words", "bos"),
    [
        ("$A <eos>", ["<s>", "<eos>", "a"], "<s>"),
        ("$A <eos>", ["b", "<eos>", "a"], "<eos>"),
        ("[GO] $A <eos>", ["<s>", "<eos>", "a", "[GO]"], "[GO]"),
    ],
)
def test_what_a_post_processor_appends_is_left_out(single, words, bos):
    """A text is read as it goes on; the appended token is known as EOS, and begins texts where nothing else does."""
    specials = [(name, words.index(name)) for name in ("<eos>", "[GO]") if name in single]
    template = tokenizers.processors.TemplateProcessing(single=single, special_tokens=specials)
    tokenizer = Tokenizer.from_json(foreign(words, post_processor=template))
    assert tokenizer.encode("a a") == [words.index(bos), words.index("a"), words.index("a")]
    assert (tokenizer.bos_id, tokenizer.eos_id) == (words.index(bos), words.index("<eos>"))
    assert "ends texts with '<eos>', which is omitted" in tokenizer.note
    again = Tokenizer.from_json(tokenizer.to_json())
    assert again.sha256 == tokenizer.sha256 and not again.note


def test_a_tokenizer_of_a_padded_model_knows_its_unused_ids(tokenizer):
    padded = tokenizer.padded_to(400)
    assert padded.pieces([399, 300]) == ["<unused 399>", *tokenizer.pieces([300])]
    assert padded.decode([*tokenizer.encode("The cat"), 350, 399]) == "The cat"
    assert padded.d_vocab == tokenizer.d_vocab and padded.sha256 == tokenizer.sha256
    assert tokenizer.padded_to(400).padded_to(308).pieces([0]) == ["<|endoftext|>"]
    for one, i, last in ((padded, 400, 399), (tokenizer, 350, 307), (padded.padded_to(308), 350, 307)):
        with pytest.raises(InputError, match=f"token id {i} is outside this tokenizer's 0 to {last}"):
            one.pieces([i])


def test_gaps_in_the_ids_count_as_vocabulary():
    vocabulary = json.loads(foreign(["<s>", "a"]))
    vocabulary["model"]["vocab"]["a"] = 5
    tokenizer = Tokenizer.from_json(json.dumps(vocabulary))
    assert tokenizer.d_vocab == 6
    assert tokenizer.pieces([0, 5, 3]) == ["<s>", "a", "<unused 3>"]


def test_load_says_what_is_missing(tmp_path):
    for name, content, place, line in (
        (None, b"", "none", "tokenizer file or folder does not exist"), (None, b"", "", "add tokenizer.json, encoder."),
        ("a.json", b"{}", "a.json", "a.json"), ("b.json", b"\xff\xfe", "b.json", "b.json"),
        ("c.json", b"", "c.json", "c.json"), ("encoder.json", b"[]", "", "vocab.bpe is missing: put .* in"),
        ("vocab.bpe", b"#version: 0.2\n", "vocab.bpe", "cannot be read"),
    ):  # fmt: skip
        if name is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=line):
            Tokenizer.load(tmp_path / place)


@needs_data
def test_gpt2_files(tmp_path):
    """The pair by its folder or either file, and under its other names."""
    tokenizer = Tokenizer.load(DATA)
    assert (tokenizer.d_vocab, tokenizer.bos_id) == (50257, 50256)
    assert tokenizer.encode("Hello world", bos=False) == [15496, 995]
    assert tokenizer.encode("Hello world") == [50256, 15496, 995]
    assert [tokenizer.decode(tokenizer.encode(text)) for text in TEXTS] == TEXTS
    for old, new in [("encoder.json", "vocab.json"), ("vocab.bpe", "merges.txt")]:
        (tmp_path / new).write_bytes((DATA / old).read_bytes())
    tokenizer.save(tmp_path / "saved")
    for path in (DATA / "encoder.json", DATA / "vocab.bpe", tmp_path, tmp_path / "saved"):
        assert Tokenizer.load(path).sha256 == tokenizer.sha256


@needs_data
def test_smollm2_file():
    tokenizer = Tokenizer.load(DATA / "smollm2_tokenizer.json")
    assert tokenizer.d_vocab == 49152
    ids = tokenizer.encode("Once upon a time in 1984")
    assert tokenizer.pieces(ids) == ["<|endoftext|>", "Once", " upon", " a", " time", " in", " ", "1", "9", "8", "4"]
    assert [tokenizer.decode(tokenizer.encode(text)) for text in TEXTS] == TEXTS


def test_a_word_without_a_token_is_one_line() -> None:
    for words, line in (
        ({"<s>": 0, "cat": 1}, r"^the tokenizer has no token for a part of a text \(.*UNK.*\); its voc"),
        ({"<s>": 0, "cat": 1, "a": 2}, "no token for a part of a text"),  # "a" is there: it opens
    ):
        backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
        backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        for read in ("encode", "spans"):
            with pytest.raises(InputError, match=line):
                getattr(Tokenizer(backend), read)("cat dog")
