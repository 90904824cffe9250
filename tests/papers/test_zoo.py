"""The bundled models: they load by name, are small, and do what their cards say."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from streamscope.interventions.observe.documents import document_losses
from streamscope.models import checkpoint
from streamscope.models.checkpoint import NAMES, ZOO, bundled, load, run_folder, runs_of
from streamscope.models.errors import InputError
from streamscope.models.training.data import _tokenizer_path, evaluation_shards
from streamscope.papers.zoo import bundle as zoo
from streamscope.papers.zoo import main
from streamscope.papers.zoo.card import SUITES, card, index
from streamscope.probes.contract import checkpoint_of, title_of
from streamscope.probes.stats.estimators import ratio_of_sums
from tests.tiny import some

ROW = {
    "parameters": 1234567, "loss": 1.25, "loss_low": 1.125, "loss_high": 1.375, "documents": 321,
    **{
        suite: {
            "head": "L4H3", "top1": 0.7, "chance": 0.5, "n": 2000, "clusters": 1000, "filtered": 0,
            "rules": {
                rule: {"rule_share": 0.5, "difference": 0.2, "ci_low": 0.175, "ci_high": 0.225, "p": 1e-9}
                for rule in ("recency", "first_mention", "longest")
            },
        }
        for suite in SUITES
    },
    "coherence": {"all": {"log_odds": 1.5, "ci_low": 1.25, "ci_high": 1.75, "share": 0.75, "n": 2000,
                          "elsewhere": 1.375, "due": 0.0625, "due_low": 0.05, "due_high": 0.075, "lift": 0.5,
                          "controls": 1800}},
    "events": {"log_odds": 0.25, "ci_low": 0.125, "ci_high": 0.375, "share": 0.5625, "n": 500,
               "elsewhere": 0.25, "due": 0.03125, "due_low": 0.025, "due_high": 0.0375, "lift": 0.25, "controls": 500},
    "induction": {"head": "L2H2", "mean": 0.375, "ci_low": 0.25, "ci_high": 0.5, "n": 32, "uniform": 0.03125},
    "looking": {"head": "L5H4", "semantic": 0.125, "distractor": 0.0625, "ci_low": 0.05, "ci_high": 0.07,
                "n": 2000},
    "pds": {"head": "L1H1", "pds": 0.0625, "ci_low": 0.05, "ci_high": 0.075, "n": 17},
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_bundled_model_is_small_and_complete(name: str) -> None:
    folder = run_folder(f"stories/{name}")
    assert folder == ZOO / name and f"stories/{name}" in bundled()
    assert sum(path.stat().st_size for path in folder.iterdir()) <= zoo.limit_of(name)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["outcome"] == "completed" and manifest["preset"] == load(f"stories/{name}").config.name
    assert name == manifest["preset"] or name.startswith(f"{manifest['preset']}-")
    assert "/" not in manifest["data"]["train"]["source"]["source"], "trained on something that nobody else has"


@pytest.mark.parametrize("name", some(NAMES, ["pls"]))
def test_the_loss_of_the_card_is_the_loss(name: str) -> None:
    model, folder = load(f"stories/{name}"), run_folder(f"stories/{name}")
    losses = document_losses(model, evaluation_shards(folder, model.tokenizer, None), [], max_documents=100)
    part = ratio_of_sums(losses.baseline, losses.tokens)
    found = re.search(r"\| loss, nats/token \| ([\d.]+) \| ([\d.]+) to ([\d.]+) \|", (folder / "README.md").read_text())
    assert found is not None
    spread = (float(found[3]) - float(found[2])) / 2 * (1000 / 100) ** 0.5
    assert abs(float(found[1]) - part.mean) < 2 * spread


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_card_is_what_the_command_writes(name: str) -> None:
    folder = run_folder(f"stories/{name}")
    assert card(name, folder, zoo.scores(folder)) == (folder / "README.md").read_text()


def test_a_folder_of_the_same_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lfa").mkdir()
    assert run_folder("lfa") == Path("lfa")
    with pytest.raises(InputError, match="lfaa is no run folder and no bundled model .stories/lfa, "):
        run_folder("lfaa")
    assert run_folder("stories/lfa") == ZOO / "lfa" and run_folder("pls") == ZOO / "pls"
    (tmp_path / "gpt2").mkdir()  # what is there is meant
    assert run_folder("gpt2") == Path("gpt2")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("gpt2", "gpt2 could be another's: stories/gpt2 is the bundled story model, hf:gpt2 is OpenAI's"),
        ("llama", "llama could be another's: stories/llama is the bundled"),
        ("stories/gpt3", "stories/gpt3 is no run folder and no bundled model"),
        ("stories/", "stories is no run folder"),
    ],
)
def test_names_that_could_be_taken_for_anothers(name: str, line: str) -> None:
    for call in (load, run_folder, lambda name: runs_of([name])):
        with pytest.raises(InputError, match=line) as caught:
            call(name)
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="could be another's" if name in ("gpt2", "llama") else "does not exist"):
        _tokenizer_path(name)


def test_both_names_of_a_bundled_model_are_one_run() -> None:
    with pytest.raises(InputError, match="stories/lfa is named twice"):
        runs_of(["lfa", "stories/lfa"])
    assert title_of(load("stories/gpt2")) == title_of(load(ZOO / "gpt2")) == "stories/gpt2"
    assert checkpoint_of(load("lfa"))["run"] == "stories/lfa"


def test_a_bundled_model_that_is_not_there_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ZOO / "lfa", tmp_path / "lfa")
    monkeypatch.setattr(checkpoint, "ZOO", tmp_path)
    assert bundled() == ("stories/lfa",) and load("lfa").config.name == "lfa"
    line = "stories/pls is not part of this installation, which has stories/lfa; give the folder models/zoo/pls"
    with pytest.raises(InputError, match=line):
        load("stories/pls")


def test_bundle_loads_and_the_card_says_what_was_measured(tiny_run: Path, tmp_path: Path) -> None:
    text = card("lfa", tiny_run, ROW)
    for said in (
        "1,234,567",
        "1.2500",
        "1.1250 to 1.3750",
        "L4H3",
        "70.0 %",
        "+20.0 points (+17.5 to +22.5)",
        "0.0625",
        "+0.062 nats | +0.050 to +0.075 | after other nouns +1.375; lift of both words +0.500 | 1800 prompts",
        "largest induction score (L2H2) | 0.375",
    ):
        assert said in text
    zoo.bundle(tiny_run, tmp_path / "zoo" / "lfa", lambda _: text)
    assert load(tmp_path / "zoo" / "lfa").n_params() == load(tiny_run).n_params()
    assert (tmp_path / "zoo" / "lfa" / "README.md").read_text() == text
    assert sorted(p.name for p in (tmp_path / "zoo").iterdir()) == ["lfa"]
    row = next(line for line in index([{"model": "lfa", **ROW}]).splitlines() if line.startswith("| lfa"))
    assert "+20.0 (+17.5 to +22.5)" in row and "75.0 %" in row


def test_a_bundled_model_is_measured_again_in_place(tiny_run: Path, tmp_path: Path) -> None:
    """`make cards`: a bundled model is a run, so its folder gets a new card and keeps its weights."""
    zoo.bundle(tiny_run, tmp_path / "lfa", lambda _: "old card")
    before = {path.name: path.read_bytes() for path in (tmp_path / "lfa").iterdir()}
    zoo.bundle(tmp_path / "lfa", tmp_path / "lfa", lambda _: "new card")
    after = {path.name: path.read_bytes() for path in (tmp_path / "lfa").iterdir()}
    assert after == {**before, "README.md": b"new card"}
    assert [path.name for path in tmp_path.iterdir()] == ["lfa"]


def test_too_large_a_model_is_refused(tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo, "LIMIT", 1000)
    with pytest.raises(InputError, match="bytes, more than the 1,000"):
        zoo.bundle(tiny_run, tmp_path / "lfa", lambda _: pytest.fail("measured what is not kept"))
    assert not any(tmp_path.iterdir())


def test_weights_are_rounded_once_and_measured_so(tiny_run: Path, tmp_path: Path) -> None:
    """The card is made of the rounded weights, and bundling what was bundled changes nothing."""
    seen = []

    def text(part: Path) -> str:
        seen.append({k: v.clone() for k, v in load(part).state_dict().items()})
        return "card"

    zoo.bundle(tiny_run, tmp_path / "lfa", text)
    zoo.bundle(tmp_path / "lfa", tmp_path / "again", text)
    wide, narrow = load(tiny_run).state_dict(), load(tmp_path / "lfa").state_dict()
    for k, x in wide.items():
        rounded = x.bfloat16().float() if x.is_floating_point() else x
        assert all(torch.equal(rounded, other[k]) for other in (narrow, *seen))
    assert any(not torch.equal(x, narrow[k]) for k, x in wide.items())
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (tiny_run, tmp_path / "lfa")]
    assert sizes[1] < 0.6 * sizes[0]


@pytest.mark.parametrize(
    ("argv", "message"),
    [([], "give run folders"), (["lfa", "lfa"], "give one"), (["std-t"], "is a run of lfa: call its folder lfa")],
)
def test_bad_input(tiny_run: Path, tmp_path: Path, argv: list[str], message: str) -> None:
    for name in set(argv):
        shutil.copytree(tiny_run, tmp_path / name)
    with pytest.raises(InputError, match=message):
        main([*(str(tmp_path / name) for name in argv), "--out", str(tmp_path / "zoo")])
    assert not (tmp_path / "zoo").exists()
