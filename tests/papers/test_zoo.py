"""The bundled models: they load by name, are small, and do what their cards say."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from streamscope.cli.disk import read_rows
from streamscope.cli.errors import InputError
from streamscope.instruments.contract import checkpoint_of, title_of
from streamscope.models import checkpoint, run_names
from streamscope.models.checkpoint import NAMES, ZOO, bundled, load, run_folder, runs_of
from streamscope.models.training.prepare import _tokenizer_path
from streamscope.papers.zoo import bundle as zoo
from streamscope.papers.zoo import main
from streamscope.papers.zoo.card import card, index
from streamscope.probes.phenomena import Phenomena
from tests.tiny import refused, some

TINYSTORIES = "data/tinystories/train.txt", "5268122afd2c959a8013eb008ed474e248218c7d5aaa91e72efd92b31cba4983"


GATE = {"value_low": 0.25, "value_high": 0.5, "limit": 0.0, "verdict": "present", "unit": "nats", "head": "",
        "n": 2000, "clusters": 89, "undefined": ""}  # fmt: skip
"""A line of the gate as it is kept."""
ROW = {
    "parameters": 1234567,
    "tokens": 12057600,
    "phenomena": [
        {**GATE, "phenomenon": "loss", "value": 1.25, "limit": None, "verdict": "–", "unit": "nats per token"},
        {**GATE, "phenomenon": "copying", "value": 0.375},
        {**GATE, "phenomenon": "induction", "value": 0.03125, "limit": 0.3, "verdict": "absent", "head": "L2.H2"},
        {**GATE, "phenomenon": "mixing", "value": None, "verdict": "–", "undefined": "no hyper-connections"},
    ],
}


@pytest.mark.parametrize("name", NAMES)
def test_bundled_model_is_small_and_complete(name: str) -> None:
    folder = run_folder(f"stories/{name}")
    assert folder == ZOO / name and f"stories/{name}" in bundled()
    assert sum(path.stat().st_size for path in folder.iterdir()) <= zoo.limit_of(name)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["outcome"] == "completed" and manifest["preset"] == load(f"stories/{name}").config.name
    assert name == manifest["preset"] or name.startswith(f"{manifest['preset']}-")
    source = manifest["data"]["train"]["source"]
    for part in source.get("parts", [source]):  # nobody else has other files
        assert part["kind"] == "stories" or (part["source"], part["files"][0]["sha256"]) == TINYSTORIES


@pytest.mark.parametrize("name", ["lfa-192", "std-t-rope-192"])
def test_a_flagship_opens_by_the_path_on_its_card(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ZOO.parents[1])
    folder = Path("models/flagships") / name
    row, text = json.loads((folder / zoo.SCORES).read_text()), (folder / "README.md").read_text()
    assert text == card(name, folder, row) and f"load('{folder}')" in text
    assert load(folder).n_params() == row["parameters"]
    assert sum(path.stat().st_size for path in folder.iterdir()) <= zoo.limit_of(name)


@pytest.mark.parametrize("name", some(NAMES, ["pls"]))
def test_the_card_says_what_the_model_does(name: str) -> None:
    """The depth of the card is measured again, and the card is what its scores.json says.

    Cards are of the gate before it was made of trained words and categories; the next bundle has cards of this one.
    """
    folder = run_folder(f"stories/{name}")
    row = json.loads((folder / zoo.SCORES).read_text())
    assert card(name, folder, row) == (folder / "README.md").read_text()
    kept = next(one for one in row["phenomena"] if one["phenomenon"] == "depth")
    (found,) = Phenomena(only=("depth",)).measure(load(f"stories/{name}")).table().frame.to_dict("records")
    assert kept["value"] == pytest.approx(found["value"], abs=1e-5) and kept["head"] == found["head"]
    assert row["parameters"] == load(f"stories/{name}").n_params()


def test_the_page_of_all_is_what_the_cards_say() -> None:
    rows = [json.loads((run_folder(f"stories/{name}") / zoo.SCORES).read_text()) for name in NAMES]
    assert index(rows) == (ZOO / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_scores_are_what_the_command_measures(name: str) -> None:
    folder = run_folder(f"stories/{name}")
    kept, found = json.loads((folder / zoo.SCORES).read_text()), zoo.scores(folder)
    for one, other in zip(kept.pop("phenomena"), found.pop("phenomena"), strict=True):
        assert one == pytest.approx(other, abs=1e-4)
    assert kept == {"model": name, **found}


def test_a_folder_of_the_same_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("lfa", "gpt2"):  # what is there is meant
        (tmp_path / name).mkdir()
        assert run_folder(name) == Path(name)
    with pytest.raises(InputError, match="lfaa is not a run folder or bundled model .stories/lfa, "):
        run_folder("lfaa")
    assert run_folder("stories/lfa") == ZOO / "lfa" and run_folder("pls") == ZOO / "pls"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("gpt2", "gpt2 is ambiguous: stories/gpt2 is the bundled story model, hf:gpt2 is OpenAI's"),
        ("llama", "llama is ambiguous: stories/llama is the bundled"),
        ("stories/gpt3", "stories/gpt3 is not a run folder or bundled model"),
        ("stories/", "stories is not a run folder"),
    ],
)
def test_names_that_could_be_taken_for_anothers(name: str, line: str) -> None:
    for call in (load, run_folder, lambda name: runs_of([name])):
        with refused(line):
            call(name)
    with pytest.raises(InputError, match="is ambiguous" if name in ("gpt2", "llama") else "does not exist"):
        _tokenizer_path(name)


def test_both_names_of_a_bundled_model_are_one_run() -> None:
    with pytest.raises(InputError, match="stories/lfa is named twice"):
        runs_of(["lfa", "stories/lfa"])
    assert title_of(load("stories/gpt2")) == title_of(load(ZOO / "gpt2")) == "stories/gpt2"
    assert checkpoint_of(load("lfa"))["run"] == "stories/lfa"


def test_a_bundled_model_that_is_not_there_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ZOO / "lfa", tmp_path / "lfa")
    monkeypatch.setattr(run_names, "ZOO", tmp_path)
    assert bundled() == ("stories/lfa",) and load("lfa").config.name == "lfa"
    line = "stories/pls is not part of this installation, which has stories/lfa; give the folder models/zoo/pls"
    with pytest.raises(InputError, match=line):
        load("stories/pls")


def test_bundle_loads_and_the_card_says_what_was_measured(tiny_run: Path, tmp_path: Path) -> None:
    text = card("lfa", tiny_run, ROW)
    for said in (
        "1,234,567",
        "| loss | 1.250 | 0.250 to 0.500 | – | – | nats per token | – | 2000 | 89 |",
        "| copying | 0.375 | 0.250 to 0.500 | 0 | present | nats | – | 2000 | 89 |",
        "| induction | 0.031 | 0.250 to 0.500 | 0.3 | absent | nats | L2.H2 | 2000 | 89 |",
        "| mixing | – | – | – | no hyper-connections | nats |",
    ):
        assert said in text
    zoo.bundle(tiny_run, tmp_path / "zoo" / "lfa", lambda _: text)
    assert load(tmp_path / "zoo" / "lfa").n_params() == load(tiny_run).n_params()
    assert (tmp_path / "zoo" / "lfa" / "README.md").read_text() == text
    assert sorted(p.name for p in (tmp_path / "zoo").iterdir()) == ["lfa"]
    lines = index([{"model": "lfa", **ROW}]).splitlines()
    assert "| model | parameters | tokens seen | loss | copying > 0 | induction > 0.3 | mixing > 0 |" in lines
    assert "| lfa | 1,234,567 | 12,057,600 | 1.25 | **0.38** | 0.03 | – |" in lines


def test_a_run_gets_the_name_that_it_is_given(tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NAME=RUN; what was bundled before stays, on the page too; the history keeps every evaluation."""
    monkeypatch.setattr(zoo, "scores", lambda folder: ROW)
    monkeypatch.setattr(zoo, "LINES", 2)
    out = tmp_path / "zoo"
    for name in ("lfa", "lfa-other"):
        main([f"{name}={tiny_run}", "--out", str(out)])
    assert sorted(path.name for path in out.iterdir()) == ["README.md", "lfa", "lfa-other"]
    lines = (out / "README.md").read_text().splitlines()[-2:]
    assert [line.split(" | ")[0] for line in lines] == ["| lfa", "| lfa-other"]
    kinds = [[row["kind"] for row in read_rows(folder / "metrics.jsonl")] for folder in (tiny_run, out / "lfa")]
    assert kinds[1].count("eval") == kinds[0].count("eval") > 0 and 0 < kinds[1].count("train") <= 4
    assert json.loads((out / "lfa-other" / "scores.json").read_text()) == {"model": "lfa-other", **ROW}


def test_snapshots_are_rounded_and_bundled(tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, out = tmp_path / "run", tmp_path / "lfa"
    shutil.copytree(tiny_run, run)
    weights = load(tiny_run).state_dict()
    for step in (1, 2, 4):
        checkpoint.write_snapshot(run, {k: step * x for k, x in weights.items()}, step, "fp32")
    zoo.bundle(run, out, lambda _: "card", [1, 4])
    assert [row["step"] for row in checkpoint.snapshots(out)] == [1, 4]
    zoo.bundle(out, out, lambda _: "new card", [])  # measured again, it keeps them
    for step in (1, 4):
        for name, x in load(f"{out}@{step}").state_dict().items():
            assert torch.equal(x, (step * weights[name]).bfloat16().float() if x.is_floating_point() else x)
    with pytest.raises(InputError, match="has no snapshot 3; it has 0, 1, 2, 4, "):
        zoo.bundle(run, out, lambda _: "card", [3])
    monkeypatch.setattr(zoo, "SNAPSHOTS", 1000)
    with pytest.raises(InputError, match="more than the 1,000 of the snapshots of one"):
        zoo.bundle(run, out, lambda _: "card", [1])
    assert (out / "README.md").read_text() == "new card"


def test_weights_are_rounded_once_and_measured_so(tiny_run: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """The card is made of the rounded weights; a bundled model is a run whose folder gets a new card (`make cards`)."""
    seen = []

    def text(part: Path) -> str:
        seen.append({k: v.clone() for k, v in load(part).state_dict().items()})
        return f"card {len(seen)}"

    def files() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (tmp_path / "lfa").iterdir()}

    zoo.bundle(tiny_run, tmp_path / "lfa", text)
    before = files()
    zoo.bundle(tmp_path / "lfa", tmp_path / "lfa", text)
    assert files() == {**before, "README.md": b"card 2"} and [path.name for path in tmp_path.iterdir()] == ["lfa"]
    wide, narrow = load(tiny_run).state_dict(), load(tmp_path / "lfa").state_dict()
    for k, x in wide.items():
        rounded = x.bfloat16().float() if x.is_floating_point() else x
        assert all(torch.equal(rounded, other[k]) for other in (narrow, *seen))
    assert any(not torch.equal(x, narrow[k]) for k, x in wide.items())
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (tiny_run, tmp_path / "lfa")]
    assert sizes[1] < 0.6 * sizes[0]
    monkeypatch.setattr(zoo, "LIMIT", 1000)
    with pytest.raises(InputError, match="bytes, more than the 1,000"):
        zoo.bundle(tiny_run, tmp_path / "other", lambda _: pytest.fail("measured what is not kept"))
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("argv", "message"), [([], "give runs"), (["lfa", "lfa"], "give one"), (["std-t"], "is a run of lfa: give lfa=")]
)
def test_bad_input(tiny_run: Path, tmp_path: Path, argv: list[str], message: str) -> None:
    for name in set(argv):
        shutil.copytree(tiny_run, tmp_path / name)
    with pytest.raises(InputError, match=message):
        main([*(str(tmp_path / name) for name in argv), "--out", str(tmp_path / "zoo")])
    assert not (tmp_path / "zoo").exists()
