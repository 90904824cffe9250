"""What an earlier call measured is taken over only where every file that is read still has the same content."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from streamscope.instruments.command import Job
from streamscope.instruments.data import Documents, Prompts, Tasks
from streamscope.interventions.ablate import Ablate
from streamscope.models.checkpoint import ZOO
from streamscope.models.tensors import sha256


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
