"""Corpora that are no plain files: Hugging Face datasets and the built-in stories."""

import json
import sys
import types
from pathlib import Path

import pytest

import streamscope.text
from streamscope.text.corpus import Corpus, hub_dataset, open_corpus
from tests.tiny import refused


def read(source: str, **options) -> list[str]:
    return list(open_corpus(source, **options).documents())


@pytest.fixture
def dataset_folder(tmp_path) -> Path:
    folder = tmp_path / "hub_like"
    folder.mkdir()
    for split in ("train", "validation"):
        rows = [json.dumps({"text": f"{split} {i}", "label": i}) for i in range(3)]
        (folder / f"{split}.jsonl").write_text("\n".join(rows))
    return folder


def test_local_dataset_folder(dataset_folder):
    assert read(f"hf:{dataset_folder}") == ["train 0", "train 1", "train 2"]
    for source in (f"hf:{dataset_folder}:validation", f"hf:{dataset_folder}:default:validation"):
        corpus = open_corpus(source)
        assert list(corpus.documents()) == list(corpus.documents()) == [f"validation {i}" for i in range(3)]
        assert corpus.describe()["split"] == "validation"
    splits = {open_corpus(f"hf:{dataset_folder}:{split}").fingerprint() for split in ("train", "validation")}
    assert len(splits) == 2

    for name in ("test", "nothing"):
        with refused(f"cannot be read .*{name}"):
            read(f"hf:{dataset_folder}:{name}")
    with refused("no field 'story'; it has text, label"):
        read(f"hf:{dataset_folder}", text_field="story")


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
    monkeypatch.setitem(streamscope.text.corpus.VERSIONS, "stories", 4)
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
