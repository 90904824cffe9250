"""Data as users have them: folders with splits, licences and pointers; tables, compressed files and chats."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from streamscope.cli.errors import InputError
from streamscope.text.corpus import open_corpus
from tests.tiny import refused

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "How many legs has a dog?"},
    {"role": "assistant", "content": [{"type": "text", "text": "Four."}]},
]
SPOKEN = "System: Be brief.\nUser: How many legs has a dog?\nAssistant: Four."


def read(source: Path, **options: str) -> list[str]:
    return list(open_corpus(str(source), **options).documents())


def rows(path: Path, *texts: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pa.table({"text": list(texts)}), path)
    elif path.suffix == ".txt":
        path.write_text("\n<|endoftext|>\n".join(texts))
    elif path.suffix == ".csv":
        path.write_text("\n".join(["text", *texts]) + "\n")
    else:
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def zst(path: Path, content: bytes) -> None:
    with pa.CompressedOutputStream(str(path), "zstd") as file:
        file.write(content)


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
    zst(tmp_path / "d.jsonl.zst", b'{"text": "five"}\n{"text": "six"}\n')
    (tmp_path / "e.json").write_text('{"text": "seven"}\n{"text": "eight"}\n')
    (tmp_path / "f.tsv").write_text("text\tn\nnine\t1\n")
    (tmp_path / "g.csv.gz").write_bytes(gzip.compress(b"text\nten\n"))
    zst(tmp_path / "h.txt.zst", "elev\u00e9n\n".encode())
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
            zst(tmp_path / name, b"one")
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
    pyarrow.parquet.write_table(pa.table({"messages": [CHAT[:2]]}), tmp_path / "b.parquet")
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
