"""What a command measured is safe: taken over only where every file has its content, never written over an input."""

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from streamscope.cli import provenance
from streamscope.cli.disk import sha256
from streamscope.cli.errors import InputError
from streamscope.cli.locks import locked
from streamscope.features.cluster import main as cluster
from streamscope.features.extract import Extract
from streamscope.features.profile import main as profile
from streamscope.instruments import command
from streamscope.instruments.command import Job
from streamscope.instruments.contract import Instrument
from streamscope.instruments.data import Documents, Prompts, Tasks, Tokens
from streamscope.instruments.result import Result
from streamscope.interventions.ablate import Ablate
from streamscope.interventions.ablate import main as ablate
from streamscope.models.checkpoint import ZOO, load, run_folder
from streamscope.probes.directions import main as directions
from streamscope.probes.heads import Heads
from streamscope.probes.heads import main as heads

QUICK = ["--sequences", "2", "--no-texts", "--device", "cpu"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("config.json", "manifest.json", "tokenizer.json", "model.safetensors"):
        shutil.copyfile(ZOO / "gpt2" / name, folder / name)
    return folder


def test_another_configuration_or_tokenizer_with_the_same_weights_is_another_task(run: Path) -> None:
    job = Job(str(run), None, Ablate(), [Documents(data="stories:1:9")], "cpu")
    weights, tasks = sha256(run / "model.safetensors"), {job.task}
    assert replace(job).task in tasks
    for path, end in ((run / "config.json", '"eps": 0.5'), (run / "tokenizer.json", "\n")):
        text = path.read_text()
        path.write_text(text.replace('"eps": 1e-05', end) if "eps" in end else text + end)
        tasks.add(replace(job).task)
    assert len(tasks) == 3 and sha256(run / "model.safetensors") == weights


def test_other_data_under_the_same_name_are_another_task(run: Path, tmp_path: Path) -> None:
    path, folder = tmp_path / "data.jsonl", tmp_path / "folder"
    folder.mkdir()
    for spec in (
        Documents(data=str(path)), Documents(data=f"{path}*.5 + stories:1:9*.5"), Documents(data=str(folder)),
        Prompts(suite=f"lambada:{path}"), Tasks(tasks=(str(path),)),
    ):  # fmt: skip
        tasks = set()
        for text in ("one", "two"):
            for file in (path, folder / "data.jsonl"):
                file.write_text(json.dumps({"text": text}))
            tasks.add(Job(str(run), None, Ablate(), [spec], "cpu").task)
        assert len(tasks) == 2, spec


def test_a_result_is_on_disk_before_it_is_printed_and_says_when_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    run = Instrument.run

    def closed(result: Result) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(provenance, "now", lambda: order.append("started") or "2026-01-01T00:00:00Z")
    monkeypatch.setattr(Instrument, "run", lambda *given: order.append("measured") or run(*given))
    monkeypatch.setattr(Result, "print", closed)
    with pytest.raises(BrokenPipeError):
        heads(["stories/gpt2", *QUICK, "--out", str(tmp_path / "x.parquet")])
    assert Result.load(tmp_path / "x.parquet").about["started"] == "2026-01-01T00:00:00Z"
    assert order == ["started", "measured"]


def test_a_killed_command_goes_on_with_the_runs_that_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, out, measured = ["stories/gpt2", "stories/std-t"], tmp_path / "x.parquet", []
    run, parts = Instrument.run, tmp_path / ".x.parquet.parts"

    def dying(how: Instrument, data: Any, *rest: Any) -> Result:
        measured.append(data.model.config.name)
        if len(measured) == 2:
            raise KeyboardInterrupt
        return run(how, data, *rest)

    monkeypatch.setattr(Instrument, "run", dying)
    with pytest.raises(KeyboardInterrupt):
        heads([*runs, *QUICK, "--out", str(out)])
    assert {path.suffix for path in parts.iterdir()} == {".parquet"} and not out.exists()
    heads([*runs, *QUICK, "--out", str(out)])
    assert measured == ["gpt2", "std-t", "std-t"] and not parts.exists()
    assert Result.load(out).about["model"] == runs


def test_what_workers_leave_the_command_does_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker measures the runs that no other process holds."""
    runs, out, parts = ["stories/gpt2", "stories/std-t"], tmp_path / "x.parquet", tmp_path / ".x.parquet.parts"

    def launch(options: Any, *_: Any, **__: Any) -> None:
        if options.launch != "local":
            return
        name = Job(runs[0], None, Heads(sequences=2, texts=False), list(Heads.takes), "cpu").task
        with locked(parts / f"{name}.lock"):
            heads([*runs, *QUICK, "--out", str(out), "--launch", "worker"])
        done = {path.stem.removesuffix("-observations") for path in parts.glob("*.parquet")}
        assert len(done) == 1 and name not in done

    monkeypatch.setattr(command, "launch", launch)
    heads([*runs, *QUICK, "--out", str(out), "--launch", "local"])
    assert Result.load(out).about["model"] == runs and not parts.exists()


HEADS = ("stories/gpt2", "--sequences", "2", "--no-texts")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table of features, text as a table, labels, and a run."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "data").mkdir()
    Extract(tier="core").measure(load("stories/pls"), Tokens(max_tokens=300)).save(folder / "f.parquet")
    shutil.copy(folder / "f.parquet", folder / "x-labels.parquet")
    text = pd.DataFrame({"text": ["Once upon a time there was a cat.", "She ran to the house."]})
    for name in ("t.parquet", "data/train.parquet"):
        text.to_parquet(folder / name)
    found = pd.read_parquet(folder / "f.parquet", columns=["document", "position"])
    found.assign(cluster=0).to_csv(folder / "labels.csv", index=False)
    shutil.copytree(run_folder("stories/gpt2"), folder / "run")
    (folder / "page.html").write_text("text")
    return folder


def state(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


COMMANDS: dict[str, tuple[Callable[[Sequence[str]], None], str, str]] = {
    "by another path": (cluster, "--features {}/f.parquet --no-umap --out {}/data/../f.parquet", "is an input"),
    "of a profile": (profile, "--features {}/f.parquet --out {}/f.parquet", "is an input"),
    "its labels": (profile, "--features {}/f.parquet --labels {}/labels.csv --out {}/labels.csv", "is an input"),
    "a table beside the main one": (
        cluster, "--features {}/x-labels.parquet --no-umap --out {}/x.parquet", r"x-labels\.parquet is an input"),
    "another instrument's": (heads, " ".join(HEADS) + " --out {}/f.parquet", "holds a table of extract"),
    "text": (ablate, "stories/gpt2 --heads L0.H0 --draws 0 --data {}/t.parquet --out {}/t.parquet", "is an input"),
    "text with a weight": (ablate, "stories/gpt2 --draws 0 --data {}/t.parquet*2 --out {}/t.parquet", "is an input"),
    "a figure": (heads, "stories/gpt2 --data {}/page.html --figure {}/page.html", "is an input"),
    "a file of a folder of text": (ablate, "stories/gpt2 --data {}/data --out {}/data/train.parquet", "is an input"),
    "the weights of a run": (directions, "{}/run --out {}/run/model.parquet", "model.safetensors"),
    "weights that are no input": (directions, "stories/gpt2 --out {}/run/model.parquet", "model.safetensors"),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_an_input_is_not_written_over(name: str, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main, words, said = COMMANDS[name]
    before = state(made)
    with pytest.raises(InputError, match=said):
        main(words.replace("{}", str(made)).split())
    assert state(made) == before


def test_a_result_does_not_take_the_place_of_another_instruments(made: Path, tmp_path: Path) -> None:
    shutil.copy(made / "f.parquet", tmp_path / "f.parquet")
    heads([*HEADS, "--out", str(tmp_path / "h.parquet")])
    found, before = Result.load(tmp_path / "h.parquet"), state(tmp_path)
    with pytest.raises(InputError, match="holds a table of extract"):
        found.save(tmp_path / "f.parquet")
    assert state(tmp_path) == before
    heads([*HEADS, "--out", str(tmp_path / "h.parquet")])  # its own it may write anew
    heads([*HEADS, "--out", str(tmp_path / "h.csv")])
    heads([*HEADS, "--out", str(tmp_path / "h.csv")])
    with pytest.raises(InputError, match="holds a table of heads"):
        ablate(f"stories/gpt2 --heads L0.H0 --draws 0 --out {tmp_path}/h.csv".split())
