"""Corpora: files, folders with splits and licences, what datasets keeps, Hugging Face datasets, built-in stories."""

import gzip
import json
import random
import sys
import types
from functools import partial
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

import streamscope.text
from streamscope.cli.errors import InputError
from streamscope.text.corpus import Corpus, open_corpus
from streamscope.text.hub import hub_dataset
from tests.tiny import refused

END = "<|endoftext|>"
zstd = partial(pyarrow.compress, codec="zstd", asbytes=True)


def read(source: object, **options) -> list[str]:
    return list(open_corpus(str(source), **options).documents())


def parquet(path: Path, **columns: list) -> Path:
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


def jsonl(path: Path, rows: list) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


def test_text_file_is_cut_at_separators(tmp_path):
    """Also with the line ends of Windows and a byte order mark."""
    file = tmp_path / "a.txt"
    file.write_text(f"  one\n\nstill one \n{END}\n\n{END}\n two\n {END} \nthree{END}four", encoding="utf-8")
    assert read(file) == ["one\n\nstill one", "two", "three", "four"]
    file.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n<|endoftext|>\r\nthree\r\n")
    assert read(file) == ["one\ntwo", "three"]


PARAGRAPHS = b"One\none.\n\nTwo.\r\n \t\r\n\r\nThree.\r\rFour\rfour.\n<|endoftext|>\nFive.\n\n"


def test_text_files_are_split_at_blank_lines_or_not_at_all(tmp_path):
    file, other = tmp_path / "a.txt", tmp_path / "b.txt"
    file.write_bytes(b"\xef\xbb\xbf" + PARAGRAPHS)
    expected = ["One\none.", "Two.", "Three.", "Four\rfour.", "Five."]
    assert read(file, split_at="blank") == expected and len(read(file)) == 2
    (whole,) = read(file, split_at="file")
    assert whole.split() == " ".join(expected).split() and END not in whole
    other.write_text("Six.")
    assert read(tmp_path, split_at="file") == [whole, "Six."]
    assert read(f"{file}*1 + {other}*1", split_at="blank")[:1] == ["One\none."]
    rows = jsonl(tmp_path / "c.jsonl", [{"text": "one\n\nstill one"}])
    assert "one\n\nstill one" in read(f"{rows}*1 + {file}*1", split_at="blank"), "records are not split"
    found = {how: open_corpus(str(file), split_at=how) for how in ("separator", "blank", "file")}
    assert len({corpus.fingerprint() for corpus in found.values()}) == 3
    told = [found[how].describe().get("split_at") for how in ("blank", "separator")]
    assert told == ["blank", None]  # as it was recorded before there was another


def test_random_documents_come_back_twice_and_some_of_them(tmp_path):
    draw, alphabet = random.Random(0), "ab \n\u00e9\u4e2d\U0001f600"
    for trial in range(50):
        lengths = draw.choices(range(60), k=draw.randrange(1, 9))
        documents = [*("".join(draw.choices(alphabet, k=length)) for length in lengths), "never empty"]
        expected = [document.strip() for document in documents if document.strip()]
        file = tmp_path / f"{trial}.txt"
        file.write_text(f"\n{END}\n".join(documents), encoding="utf-8")
        rows = jsonl(tmp_path / f"{trial}.jsonl", [{"text": d} for d in documents])
        for path in (file, rows, parquet(tmp_path / f"{trial}.parquet", text=documents)):
            corpus = open_corpus(str(path))
            assert list(corpus.documents()) == list(corpus.documents()) == expected
            assert read(path, max_documents=3) == expected[:3]


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz"])
def test_the_byte_that_is_not_utf8_is_named(tmp_path, suffix):
    """Where a file is streamed, what stands before it is read."""
    draw, file = random.Random(1), tmp_path / f"a{suffix}"
    good = f"caf\u00e9 \U0001f600\r\n{END}\r\nword\n".encode() * 40
    for bad in (b"\xff", b"\xc3", b"\xf0\x9f\x98", b"\xed\xa0\x80") * 3:
        cut = good.index(b"o", draw.randrange(len(good) - 20))
        raw = good[:cut] + bad + good[cut:]
        with pytest.raises(UnicodeDecodeError) as whole:
            raw.decode("utf-8")
        file.write_bytes(gzip.compress(raw, mtime=0) if suffix.endswith("gz") else raw)
        with pytest.raises(InputError, match=rf"a{suffix}: not UTF-8 at byte {whole.value.start};"):
            read(file)
    if suffix == ".txt":
        file.write_bytes(b"fine\n<|endoftext|>\nfine " + "\U0001f600".encode()[:3])
        documents = open_corpus(str(file)).documents()
        assert next(documents) == "fine"
        with pytest.raises(InputError, match="not UTF-8 at byte 24;"):
            next(documents)


def test_folder_is_read_in_order_of_path(tmp_path):
    """Without notes and hidden files, and rows without text; notes alone are text."""
    texts = {"b/z.txt": "third", "a.txt": f"first\n{END}\nsecond", "notes.md": "# One\n\ntext", ".hidden/a.txt": "no"}
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    parquet(tmp_path / "c.parquet", text=["fourth", None, " "])
    corpus = open_corpus(str(tmp_path))
    assert list(corpus.documents()) == ["first", "second", "third", "fourth"]
    assert [file["name"] for file in corpus.describe()["files"]] == ["a.txt", "b/z.txt", "c.parquet"]
    assert read(tmp_path / "notes.md", split_at="blank") == ["# One", "text"]
    for name in ("a.txt", "b/z.txt", "c.parquet"):
        (tmp_path / name).unlink()
    assert read(tmp_path) == ["# One\n\ntext"]


def test_what_datasets_keeps(tmp_path):
    import datasets
    import pyarrow.ipc

    rows = datasets.Dataset.from_dict({"text": ["one", "two", "three"], "n": [1, 2, 3]})
    rows.select([2, 0]).save_to_disk(tmp_path / "one")  # the order is an index beside the rows, until it is saved
    assert read(tmp_path / "one") == ["three", "one"]
    datasets.DatasetDict(train=rows, validation=rows.select([1])).save_to_disk(tmp_path / "splits")
    assert read(tmp_path / "splits") == ["one", "two", "three"]
    assert read(f"hf:{tmp_path / 'splits'}:validation") == ["two"]
    with pytest.raises(InputError, match="no split 'test'; it has train, validation"):
        read(f"hf:{tmp_path / 'splits'}:test")

    cache = tmp_path / "cache"
    cache.mkdir()
    table = rows.data.table
    for name in ("mine-train.arrow", "cache-0123456789abcdef.arrow"):  # the second is what a `map` of theirs left
        with pyarrow.ipc.new_stream(str(cache / name), table.schema) as file:
            file.write_table(table)
    assert read(cache) == read(cache / "mine-train.arrow") == ["one", "two", "three"]
    with pytest.raises(InputError, match="no field 'story'; it has text, n"):
        read(cache, text_field="story")
    with pyarrow.ipc.new_file(str(cache / "mine-test.arrow"), table.schema) as file:
        file.write_table(table)
    assert read(cache / "mine-test.arrow") == ["one", "two", "three"]
    assert [file["name"] for file in open_corpus(str(cache)).describe()["files"]] == ["mine-train.arrow"]
    (tmp_path / "broken.arrow").write_bytes((cache / "mine-train.arrow").read_bytes()[:200])
    with pytest.raises(InputError, match="broken.arrow cannot be read .*; check the file"):
        read(tmp_path / "broken.arrow")


ROWS = b'{"text": "one"}\n\n'
EXPECTED = "a.jsonl:3: expected an object with a field .text. on each line, found"
CHATS: tuple[tuple[list, str], ...] = (
    ([{"role": "user"}], "message 1 has no content in text"), ([{"content": "a"}], "message 1 has no role"),
    ([{"role": "user", "content": "a"}, "no"], "message 2 is a str"),
    ([{"role": "user", "content": [{"type": "image", "url": "x"}]}], "message 1 has no content in text"),
    ([{"role": "user", "content": "\ud800"}], "lone surrogate"),
)  # fmt: skip
UNREADABLE = [
    ("a.txt", b"word \x00\x01\x02", "a.txt: NUL at byte 5; .*remove a stray NUL, leave out a binary file$"),
    ("a.txt", "a word".encode("utf-16-le"), "a.txt: NUL at byte 1; convert a UTF-16 file to UTF-8"),
    ("a.txt", "a word".encode("utf-16"), "a.txt: not UTF-8 at byte 0; convert"),
    ("a.txt", bytes(range(128, 256)) * 9, "a.txt: not UTF-8 at byte 0"),
    ("a.txt.gz", gzip.compress(b"word " * 1000, mtime=0)[:-12], "a.txt.gz cannot be read"),
    ("a.txt.zst", zstd(b"word " * 9999)[:-9], "a.txt.zst cannot be read"),
    *((f"a.txt.{packed}", b"plain text", f"a.txt.{packed} cannot be read") for packed in ("gz", "zst")),
    *(("a.txt", content, "a.txt has no text: give a source with text")
      for content in (b"", b"  \n", f"{END}\n{END}\n".encode())),
    ("a.jsonl", ROWS + b'{"text": "cut', EXPECTED),
    ("a.jsonl", ROWS + b'["text"]', EXPECTED),
    ("a.jsonl", ROWS + b'{"body": "x", "id": 7}', "a.jsonl:3: no field 'text'; it has body, id"),
    ("a.jsonl", ROWS + b"{}", "a.jsonl:3: no field 'text'; it has none"),
    ("a.jsonl", ROWS + b'{"text": 7}', "a.jsonl:3: the text is a int, not a string"),
    ("a.jsonl", ROWS + rb'{"text": "\ud800"}', "a.jsonl:3: the text holds a lone surrogate"),
    ("a.jsonl", ROWS + b'{"text": "\xff"}', "a.jsonl: not UTF-8 at byte 27;"),
    *(("a.jsonl", json.dumps({"messages": messages}).encode(), f"a.jsonl:1: .*{line}") for messages, line in CHATS),
    ("a.csv", b"story,n\nx,1\n", "a.csv: no field 'text'; it has story, n"),
    ("a.csv", b"text,n\nx,1\ny\n", "a.csv:3: 1 fields, but the first line has 2"),
    ("a.csv", b'text,n\n"x,1\n', "a.csv:2: .*end of data"),
    ("a.csv", b"text,text\nx,y\n", "a.csv: 2 columns are called 'text'; rename all but one"),
    ("a.csv", b"", "has no text"),
    ("a.json", b"{", "a.json cannot be read"),
    ("a.json", b'{"data": [{"text": "x"}]}', "a.json:1: no field 'text'; it has data"),
    ("a.json", b"[1]", "a.json: record 1: a JSON int"),
    ("a.json", b'[{"text": "x"}, {"story": "y"}]', "a.json: record 2: no field 'text'; it has story"),
    ("a.json", b'[{"text": "x"}', "a.json cannot be read"),
    ("a.parquet", b"PAR1 not really", "a.parquet cannot be read .*; check the file"),
    ("a.arrow", b"ARROW1 not really", "a.arrow cannot be read .*; check the file"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "message"), UNREADABLE)
def test_a_file_that_cannot_be_read_is_one_line(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with refused(message):
        read(tmp_path / name)


def test_a_source_that_names_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.docx").write_text("x")
    Path("empty").mkdir()
    for source, message in (
        ("", "the data source is empty"), ("no such thing", "no such thing is not an existing file or folder"),
        ("data/train.txt", "data/train.txt is not an existing file or folder"),
        ("./missing", "not an existing file or folder"), ("a/b/c", "not an existing file or folder"),
        ("empty", "no .txt, .* file in this folder"),
        ("a.docx", r"a.docx is not a supported kind of file \(.*\.jsonl"), ("hf:", "write hf:ID"),
        ("hf:a/b:c:d:e", "write hf:ID"), ("hf:/no/such/folder", "neither a folder nor a dataset id"),
        ("stories:x", "stories:SEED:N:SHARE with whole numbers"), ("stories:1:0", "zero stories"),
        ("stories:-1", "stories:SEED:N:SHARE with whole numbers"),
        ("stories:1:2:3:4", "stories:SEED:N:SHARE with whole numbers"),
        ("stories:1:9:2", "share is a number from 0 to 1"), ("echo:1:9:0", "echo:SEED:N with whole numbers"),
        ("stories4:1:9", "streamscope 0.1 wrote these"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            open_corpus(source)


def test_fingerprint_follows_the_content(tmp_path):
    def fingerprint(*where: str, **options) -> str:
        return open_corpus(str(tmp_path.joinpath(*where)), **options).fingerprint()

    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "a.txt").write_text("one")
    first = fingerprint("here")
    assert first == fingerprint("here") and len(first) == 64
    assert len({first, fingerprint("here", max_documents=5), fingerprint("here", split_at="blank")}) == 3
    (tmp_path / "here").rename(tmp_path / "there")
    assert first == fingerprint("there") == fingerprint("there", "a.txt"), "where it lies does not matter"
    (tmp_path / "there" / "a.txt").write_text("two")
    assert fingerprint("there") != first


def test_an_option_that_the_source_does_not_use_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("One.\n\nTwo.\n")
    Path("a.jsonl").write_text('{"story": "One."}\n')
    for source, name, value in (
        ("stories:0:3", "text_field", "story"), ("stories:0:3", "split_at", "blank"), ("a.txt", "text_field", "story"),
        ("a.jsonl", "split_at", "file"), ("a.txt*1 + stories:0:3*1", "text_field", "story"),
    ):  # fmt: skip
        line = f"^--{name.replace('_', '-')} .* is for .*; .* has none, so leave it out$"
        with pytest.raises(InputError, match=line):
            open_corpus(source, **{name: value})
    assert list(open_corpus("a.jsonl*1 + a.txt*1", text_field="story", split_at="blank").documents())


def test_local_dataset_folder(tmp_path):
    for split in ("train", "validation"):
        jsonl(tmp_path / f"{split}.jsonl", [{"text": f"{split} {i}", "label": i} for i in range(3)])
    assert read(f"hf:{tmp_path}") == ["train 0", "train 1", "train 2"]
    for source in (f"hf:{tmp_path}:validation", f"hf:{tmp_path}:default:validation"):
        corpus = open_corpus(source)
        assert list(corpus.documents()) == list(corpus.documents()) == [f"validation {i}" for i in range(3)]
        assert corpus.describe()["split"] == "validation"
    splits = {open_corpus(f"hf:{tmp_path}:{split}").fingerprint() for split in ("train", "validation")}
    assert len(splits) == 2
    with refused("cannot be read .*nothing"):
        read(f"hf:{tmp_path}:nothing")
    with refused("no field 'story'; it has text, label"):
        read(f"hf:{tmp_path}", text_field="story")


class FakeApi:
    def dataset_info(self, name: str, timeout: float) -> types.SimpleNamespace:
        if name != "org/name":
            raise OSError("404 Client Error\nnot found")
        return types.SimpleNamespace(sha="c0ffee")


def test_hub_dataset_is_streamed_at_its_revision(monkeypatch, tmp_path):
    asked = []

    def load_dataset(*args, **options):
        asked.append((args, options))
        return [{"text": "one"}, {"text": "two"}]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.HfApi", FakeApi)
    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    assert read("org/name") == read("hf:org/name:en") == ["one", "two"]
    assert asked[0] == (("org/name", None), {"split": "train", "streaming": True, "revision": "c0ffee"})
    assert asked[1][0] == ("org/name", "en")
    assert open_corpus("org/name").describe()["revision"] == "c0ffee"
    for call in (Corpus.describe, lambda corpus: list(corpus.documents())):
        with refused(r"org/typo is neither a local path.*404 Client Error\)"):
            call(open_corpus("org/typo"))


def test_hub_source_grammar():
    for source, config, split in (
        ("hf:a/b", None, "train"), ("hf:a/b:en", "en", "train"), ("hf:a/b:test", None, "test"),
        ("hf:a/b::odd", None, "odd"), ("hf:squad:plain:validation", "plain", "validation"),
    ):  # fmt: skip
        assert (hub_dataset(source).config, hub_dataset(source).split) == (config, split)


def test_built_in_stories(monkeypatch):
    fake = types.ModuleType("streamscope.text.stories")
    fake.documents = lambda seed, n, share: (f"story {seed} {i} {share}" for i in range(n))
    monkeypatch.setitem(sys.modules, "streamscope.text.stories", fake)
    monkeypatch.setattr(streamscope.text, "stories", fake, raising=False)
    assert read("stories:7:2") == ["story 7 0 0.1", "story 7 1 0.1"]
    assert read("stories:7:1:.5") == read("stories5:7:1:0.5") == ["story 7 0 0.5"]
    assert len(read("stories")) == 20_000
    assert open_corpus("stories").fingerprint() == open_corpus("stories:0:20000").fingerprint()
    assert open_corpus("stories:7:2").describe()["stories"] == "stories-v5-7-2-0.1"
    before = open_corpus("stories").fingerprint()
    monkeypatch.setitem(streamscope.text.corpus.STORIES, "stories", ("stories", 4))
    assert open_corpus("stories").fingerprint() != before


def test_a_hub_that_does_not_answer_is_read_from_its_cache(monkeypatch, tmp_path):
    kept = tmp_path / "hub" / "datasets--org--kept"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text("beef")
    snapshot = kept / "snapshots" / "beef"
    snapshot.mkdir(parents=True)
    (snapshot / "train.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.HfApi", FakeApi)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    assert read("org/kept") == ["one", "two"]
    told = open_corpus("org/kept").describe()
    assert told["revision"] == "beef" and told["cached"] == ["train.jsonl"]
    with refused("org/gone is neither a local path, nor in the hub's cache, nor found"):
        read("org/gone")


# ---- folders, tables, compressed files and chats, as users have them -------------------------------

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "How many legs has a dog?"},
    {"role": "assistant", "content": [{"type": "text", "text": "Four."}]},
]
SPOKEN = "System: Be brief.\nUser: How many legs has a dog?\nAssistant: Four."


def rows(path: Path, *texts: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        parquet(path, text=list(texts))
    elif path.suffix == ".txt":
        path.write_text("\n<|endoftext|>\n".join(texts))
    elif path.suffix == ".csv":
        path.write_text("\n".join(["text", *texts]) + "\n")
    else:
        jsonl(path, [{"text": text} for text in texts])


@pytest.mark.parametrize(
    ("train", "others"),
    [
        (["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"],
         ["data/validation-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"]),
        (["train.jsonl"], ["valid.jsonl", "test.jsonl"]),
        (["wiki.train.txt"], ["wiki.valid.txt", "wiki.test.txt"]),
        (["training/a.txt", "training/b.txt"], ["val/a.txt", "testing/a.txt"]),
        (["Train_1.csv"], ["dev_1.csv"]),
        (["TinyStoriesV2-GPT4-train.txt"], ["TinyStoriesV2-GPT4-valid.txt"]),
        (["train/eval.txt"], ["test/train.txt"]),
        (["en_train_v1.jsonl", "fr_train_v1.jsonl"], ["en_test_v1.jsonl", "fr_test_v1.jsonl"]),
    ],
)  # fmt: skip
def test_of_a_folder_with_splits_train_is_read(train: list[str], others: list[str], tmp_path: Path) -> None:
    for name in (*train, *others):
        rows(tmp_path / name, f"of {name}")
    corpus = open_corpus(str(tmp_path))
    assert list(corpus.documents()) == [f"of {name}" for name in train]
    assert [file["name"] for file in corpus.describe()["files"]] == train


def test_splits_without_train_or_beside_other_files_are_refused(tmp_path: Path) -> None:
    for name in ("test.jsonl", "validation.jsonl"):
        rows(tmp_path / "no" / name, name)
        assert read(tmp_path / "no" / name) == [name], "a file that is named is read"
    with refused("has the splits test, validation: name the file or folder of one"):
        open_corpus(str(tmp_path / "no"))
    for name in ("test.jsonl", "more.jsonl", "train.jsonl"):
        rows(tmp_path / "mixed" / name, name)
    with pytest.raises(InputError, match=r"has the splits test, train and more\.jsonl, which belongs to none: name"):
        open_corpus(str(tmp_path / "mixed"))


@pytest.mark.parametrize("names", [["test/a.txt", "test/b.txt"], ["a.txt", "the train to Ely.txt", "training-day.txt"],
                                   ["a-1.txt", "contest.txt", "latest.txt", "trainspotting.txt"],
                                   ["a long train ride.txt", "emma.txt", "the test of time.txt"]])  # fmt: skip
def test_one_split_or_none_is_the_whole_folder(names: list[str], tmp_path: Path) -> None:
    for name in names:
        rows(tmp_path / name, f"of {name}")
    assert read(tmp_path) == [f"of {name}" for name in names]


def test_files_of_every_kind_in_a_folder_are_read(tmp_path: Path) -> None:
    rows(tmp_path / "a.jsonl", "one")
    (tmp_path / "b.csv").write_bytes(b'\xef\xbb\xbfid,text\r\n1,"two, with a ""comma""\r\nand a line"\r\n2,\r\n')
    (tmp_path / "c.json").write_text(json.dumps([{"text": "three"}, {"text": "four"}], indent=2))
    (tmp_path / "d.jsonl.zst").write_bytes(zstd(b'{"text": "five"}\n{"text": "six"}\n'))
    (tmp_path / "e.json").write_text('{"text": "seven"}\n{"text": "eight"}\n')
    (tmp_path / "f.tsv").write_text("text\tn\nnine\t1\n")
    (tmp_path / "g.csv.gz").write_bytes(gzip.compress(b"text\nten\n"))
    (tmp_path / "h.txt.zst").write_bytes(zstd("elev\u00e9n\n".encode()))
    (tmp_path / "i.ndjson").write_text('{"text": "twelve"}')
    (tmp_path / "j.json").write_text('["thirteen", "fourteen"]')
    (tmp_path / "k.json").write_text('{\n "text": "fifteen"\n}\n')
    want = ["one", 'two, with a "comma"\nand a line', "three", "four", "five", "six", "seven", "eight", "nine",
            "ten", "elev\u00e9n", "twelve", "thirteen", "fourteen", "fifteen", "sixteen"]  # fmt: skip
    (tmp_path / "l.TXT").write_text("sixteen")
    assert read(tmp_path) == want


@pytest.mark.parametrize("names", [("a.txt", "a.txt.zst"), ("train.jsonl", "train.csv"), ("b/a.jsonl", "b/a.txt")])
def test_one_text_in_two_forms_is_not_read_twice(names: tuple[str, str], tmp_path: Path) -> None:
    """As gzip -k, or a conversion, leaves it; one that is not read, as of another split, does not matter."""
    for name in (*names, "test.jsonl", "test.txt") if names[0].startswith("train") else names:
        if name.endswith(".zst"):
            (tmp_path / name).write_bytes(zstd(b"one"))
        else:
            rows(tmp_path / name, "one")
    with pytest.raises(InputError, match=r"bear one name, so this may be one text twice: name the file to read, or"):
        open_corpus(str(tmp_path))
    (tmp_path / names[1]).unlink()
    assert read(tmp_path) == ["one"]


def test_what_is_about_the_data_is_no_document(tmp_path: Path) -> None:
    """Unless there is nothing else; beside Markdown too."""
    rows(tmp_path / "a.txt", "text")
    for name in ("LICENSE.txt", "License", "README.txt", "README.md", "NOTICE.txt", "COPYING.txt", "dataset_infos.json",
                 "CITATION.cff", "load.py", "sub/LICENSE-MIT.txt", "requirements.txt"):  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("as is, without warranty")
    assert read(tmp_path) == ["text"]
    assert read(tmp_path / "LICENSE.txt") == ["as is, without warranty"], "a file that is named is read"
    for name in ("a.md", "b.md", "LICENSE.txt", "README.md", "alone/README.md"):
        rows(tmp_path / "notes" / name, name)
    assert [text.split('"')[3] for text in read(tmp_path / "notes")] == ["a.md", "b.md"]
    assert len(read(tmp_path / "notes" / "alone")) == 1


def test_what_cannot_be_read_beside_the_rest_is_refused(tmp_path: Path) -> None:
    for name in ("more.jsonl.xz", "more.zip", "more.tar.gz", "more.gz", "more.txt.bz2", "more.pkl"):
        rows(tmp_path / name / "a.jsonl", "one")
        (tmp_path / name / name).write_bytes(b"other")
        with pytest.raises(InputError, match=f"{name} cannot be read .*: unpack it, or move it elsewhere"):
            open_corpus(str(tmp_path / name))


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.parquet", "a.csv", "a.json"])
def test_a_git_lfs_pointer_is_no_document(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(POINTER)
    for source in (str(tmp_path), str(tmp_path / name), f"hf:{tmp_path}"):
        for call in (lambda corpus: list(corpus.documents()), lambda corpus: corpus.fingerprint()):
            with pytest.raises(InputError, match=f"{name} is a Git LFS pointer, not the file itself; run git lfs pull"):
                call(open_corpus(source))


def test_chats(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": CHAT, "source": "x"}) + "\n")
    parquet(tmp_path / "b.parquet", messages=[CHAT[:2]])
    (tmp_path / "c.json").write_text(json.dumps([{"id": 1, "chat": CHAT}]))
    assert read(tmp_path / "a.jsonl") == read(tmp_path / "a.jsonl", text_field="messages") == [SPOKEN]
    assert read(tmp_path / "b.parquet") == [SPOKEN.rpartition("\n")[0]]
    assert read(tmp_path / "c.json", text_field="chat") == [SPOKEN]


def test_a_field_may_be_longer_than_the_limit_of_the_csv_library(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("text\n" + "word " * 100_000 + "\n")
    assert len(read(tmp_path / "d.csv")[0]) == 499_999


def test_linked_folders_are_read_and_one_that_leads_back_ends(tmp_path: Path) -> None:
    rows(tmp_path / "elsewhere" / "deep" / "b.txt", "b")
    folder = tmp_path / "data"
    rows(folder / "a.txt", "a")
    (folder / "shards").symlink_to(tmp_path / "elsewhere")
    (folder / "shards" / "deep" / "up").symlink_to(folder)
    assert read(folder) == ["a", "b"]
