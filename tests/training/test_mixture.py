"""A run on a mixture: what it writes down, and that a stopped one goes on to the same weights."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from streamscope.cli.errors import InputError
from streamscope.models.train import main
from streamscope.models.training.loop import Trainer
from streamscope.models.training.run import MACHINE_METRICS, read_metrics
from tests.tiny import arguments, corpus_text


def rows(folder: Path) -> list[dict]:
    return [{k: v for k, v in row.items() if k not in MACHINE_METRICS} for row in read_metrics(folder)]


def same_weights(a: Path, b: Path) -> bool:
    one, two = load_file(a / "model.safetensors"), load_file(b / "model.safetensors")
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


def stop_at(monkeypatch: pytest.MonkeyPatch, step: int, argv: list[str]) -> None:
    """Train with a signal in step `step`; the run is saved after it."""
    update = Trainer.update

    def stopping(self: Trainer) -> dict:
        self._stop = self._stop or self.step + 1 == step
        return update(self)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "update", stopping)
        with pytest.raises(SystemExit) as end:
            main(argv)
    assert end.value.code == 130


@pytest.fixture(scope="module")
def source(corpus: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    other = tmp_path_factory.mktemp("other") / "other.txt"
    other.write_text(corpus_text(30, 7))
    return f"{corpus[0]}*.75 + {other}*.25"


def test_a_run_writes_down_its_mixture_and_goes_on_bit_equal(source, corpus, tmp_path, monkeypatch) -> None:
    argv = [source if word == str(corpus[0]) else word for word in arguments(corpus, tmp_path / "whole")]
    main(argv)
    config = json.loads((tmp_path / "whole/config.json").read_text())
    told = json.loads((tmp_path / "whole/manifest.json").read_text())["data"]["train"]
    assert config["data"]["data"] == source
    assert [part["weight"] for part in told["source"]["parts"]] == [0.75, 0.25]
    assert told["corpus"] == told["source"]["fingerprint"]
    cut = tmp_path / "cut"
    stop_at(monkeypatch, 7, [str(cut) if word == str(tmp_path / "whole") else word for word in argv])
    main(["--resume", "--out", str(cut)])
    assert same_weights(tmp_path / "whole", cut) and rows(tmp_path / "whole") == rows(cut)


def test_a_changed_part_is_told_on_resume(source, corpus, tmp_path, monkeypatch) -> None:
    part = tmp_path / "part.txt"
    shutil.copy(corpus[0], part)
    argv = arguments(corpus, tmp_path / "run")
    argv[argv.index("--data") + 1] = f"{part}*1 + {corpus[0]}*1"
    stop_at(monkeypatch, 5, argv)
    part.write_text(corpus_text(120, 9))
    with pytest.raises(InputError, match="the train data changed"):
        main(["--resume", "--out", str(tmp_path / "run")])
