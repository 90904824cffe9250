"""What a command measured is safe, and an earlier call's is taken over only where every file still has its content."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streamscope.cli import provenance
from streamscope.cli.disk import sha256
from streamscope.cli.locks import locked
from streamscope.instruments import command
from streamscope.instruments.command import Job
from streamscope.instruments.contract import Instrument
from streamscope.instruments.data import Documents, Prompts, Tasks
from streamscope.instruments.result import Result
from streamscope.interventions.ablate import Ablate
from streamscope.models.checkpoint import ZOO
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
    config = json.loads((run / "config.json").read_text())
    config["model"]["norm"]["eps"] = 0.5
    (run / "config.json").write_text(json.dumps(config))
    tasks.add(replace(job).task)
    (run / "tokenizer.json").write_text((run / "tokenizer.json").read_text() + "\n")
    tasks.add(replace(job).task)
    assert len(tasks) == 3 and sha256(run / "model.safetensors") == weights


def test_other_data_under_the_same_name_are_another_task(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    for spec in (
        Documents(data=str(path)),
        Documents(data=f"{path}*.5 + stories:1:9*.5"),
        Documents(data=str(tmp_path / "folder")),
        Prompts(suite=f"lambada:{path}"),
        Tasks(tasks=(str(path),)),
    ):
        (tmp_path / "folder").mkdir(exist_ok=True)
        tasks = set()
        for text in ("one", "two"):
            for file in (path, tmp_path / "folder" / "data.jsonl"):
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
    """It keeps a table for each run."""
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
        name = Job(runs[0], None, *given[0][:2], "cpu").task
        with locked(parts / f"{name}.lock"):
            heads([*runs, *QUICK, "--out", str(out), "--launch", "worker"])
        files = [path.name for path in parts.glob("*.parquet")]
        assert files and not any(file.startswith(name) for file in files)

    given: list[Any] = []
    measure = command._measure

    def noted(*arguments: Any) -> None:
        given.append(arguments)
        measure(*arguments)

    monkeypatch.setattr(command, "_measure", noted)
    monkeypatch.setattr(command, "launch", launch)
    heads([*runs, *QUICK, "--out", str(out), "--launch", "local"])
    assert Result.load(out).about["model"] == runs and not parts.exists()
