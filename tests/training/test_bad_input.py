"""Bad input: one line that names the thing and the remedy, exit code 2, nothing written."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from streamscope.cli.errors import InputError
from streamscope.interventions.ablate import main as ablate
from streamscope.models.checkpoint import load
from streamscope.models.config.presets import preset
from streamscope.models.describe import main as describe
from streamscope.models.runs import main as runs
from streamscope.models.tensors import check_new, new_folder
from streamscope.models.train import main as train
from streamscope.models.training.config import Training, check_given, with_recipe
from streamscope.models.training.data import evaluation_shards
from tests.tiny import arguments, assert_refused, refused

REFUSED = r"""
lfa --data {t}/no.txt | no.txt
lfa --data {t}/empty.txt | empty.txt
lfa --data {t}/bytes.txt | bytes.txt.*5
lfa --valid {t}/short.txt | fewer than one sequence
lfa --set d_vocab=90000 | 90000
lfa --set n_layers | --set takes NAME=VALUE
lfa --batch-size 100000 | one batch needs 100000
lfa --accumulate 3 | do not divide a batch of 4
lfa --device tpu | device 'tpu' is unknown
lfa --tokenizer {t}/none | none does not exist
lfa --hc-lr 1000 | --hc-lr has no effect, because lfa has no hyper-connections
lfa --muon-lr 7 | --muon-lr has no effect, because --optimizer is adamw, not muon
kromcanon --muon-dtype fp32 --optimizer adamw | --muon-dtype has no effect
kromcanon --hc-optimizer sgd --hc-beta1 .5 | --hc-beta1 has no effect, because --hc-optimizer
lfa --optimizer muon --muon-kernels True | --muon-kernels .* because lfa has no Canon layers
lfa --steps 12 --epochs 3 | --epochs has no effect, because --steps
lfa --snapshots none --snapshot-dtype bf16 | --snapshot-dtype has no effect
lfa --compile step | --compile step needs a CUDA device
lfa --start nowhere | nowhere
ablate {run} --heads L0.H7 | this model has heads 0 to 3
ablate {run} --heads L1-0.* | 'L1-0.*': the range of layers is reversed: write 0-1
ablate {run} --heads L0.H3-1 | 'L0.H3-1': the range of heads is reversed: write 1-3
ablate {run} --heads X | does not name a head
ablate {run} --heads random99:1 | asks for 99 heads
ablate {run} --data nowhere.txt | nowhere.txt
describe lfa --run {run} | not both
describe --set x.csv | name a preset
describe --run {run} --set n_layers=3 | --scale and --set only change a preset: leave them out
runs list nowhere | nowhere is not a folder
train std-t --resume --out {run} --lr 1 --steps 99 | leave out PRESET, --lr, --steps, or begin .* with --start
""".strip().splitlines()
OTHERS: dict[str, Any] = {"ablate": ablate, "describe": describe, "runs": runs, "train": train}


@pytest.mark.parametrize("line", REFUSED)
def test_a_mistake_is_one_line_and_writes_nothing(corpus, tiny_run: Path, tmp_path: Path, line: str) -> None:
    for name, content in {"empty": b"", "bytes": b"good \xff bad", "short": b"the cat"}.items():
        (tmp_path / f"{name}.txt").write_bytes(content)
    words, _, message = line.partition(" | ")
    name, *more = words.format(t=tmp_path, run=tiny_run).split()
    with refused(message):
        if name in OTHERS:
            OTHERS[name](more)
        else:
            train(arguments(corpus, tmp_path / "out", *more, preset=name))
    assert not (tmp_path / "out").exists()


def test_what_another_optimiser_or_model_takes_is_taken() -> None:
    """The same options where they act, and values that hold anyway."""
    for name, options in (("kromcanon", dict(hc_lr=1.0, muon_lr=0.1, muon_kernels=False, muon_dtype="fp32")),
                          ("lfa", dict(optimizer="muon", muon_lr=0.1)), ("lfa", dict(steps=3)),
                          ("lfa", dict(muon_decay_mode="decoupled", muon_kernels=False))):  # fmt: skip
        given = Training(**options)
        check_given(given, with_recipe(given, name, "tiny"), preset(name, "tiny"), Training())


def test_a_used_folder_is_not_overwritten(corpus, tiny_run: Path) -> None:
    before = {p: p.read_bytes() for p in tiny_run.iterdir() if p.is_file()}
    assert_refused("is not empty", train, arguments(corpus, tiny_run))
    assert {p: p.read_bytes() for p in before} == before
    with pytest.raises(InputError, match=r"config.json is a file: a run is a folder, name another --out"):
        train(arguments(corpus, tiny_run / "config.json"))
    assert_refused(r"config.json is a file: give the name of a new folder", check_new, tiny_run / "config.json")


def test_a_folder_that_is_not_finished_is_not_there(tmp_path: Path) -> None:
    """Neither under its name nor under another: exports, conversions and derived runs are written so."""
    for error in (KeyboardInterrupt, OSError(28, "No space left on device")):
        with pytest.raises((KeyboardInterrupt, InputError)), new_folder(tmp_path / "run") as part:
            (part / "model.safetensors").write_text("half")
            raise error
        assert not list(tmp_path.iterdir())


@pytest.fixture
def copied(tiny_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_run, tmp_path / "run"))


def test_missing_and_truncated_files_are_named(copied: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        data = (copied / name).read_bytes()
        (copied / name).write_bytes(data[: len(data) // 2])
        assert_refused(name, load, copied)
        (copied / name).unlink()
        assert_refused(f"{name} is missing", load, copied)
        (copied / name).write_bytes(data)
    (copied / "checkpoint-before.safetensors").unlink()  # which would do instead of the last
    (copied / "metrics.jsonl").unlink()
    train(["--resume", "--out", str(copied)])  # the curve is lost, the run is not
    for name in ("checkpoint.safetensors", "manifest.json", "tokenizer.json"):
        (copied / name).rename(copied / "away")
        assert_refused(name, train, ["--resume", "--out", str(copied)])
        (copied / "away").rename(copied / name)


def test_another_configuration_is_refused(copied: Path) -> None:
    config = json.loads((copied / "config.json").read_text())
    config["model"]["n_layers"] = 3
    (copied / "config.json").write_text(json.dumps(config))
    assert_refused(r"config\.json is not the configuration of these weights .*: restore it; for another", load, copied)
    with pytest.raises(InputError, match=r"\.safetensors has another configuration than \S+config\.json$"):
        train(["--resume", "--out", str(copied)])


def test_a_run_is_not_measured_on_other_data_in_silence(copied: Path, tmp_path: Path) -> None:
    manifest = json.loads((copied / "manifest.json").read_text())
    manifest["data"]["valid"]["corpus"] = "0" * 64
    (copied / "manifest.json").write_text(json.dumps(manifest))
    model = load(copied)
    model.save(tmp_path / "saved")
    for folder, line in ((copied, "changed since it was trained; give --data"),
                         (tmp_path / "saved", "does not record its training data: give --data")):  # fmt: skip
        assert_refused(line, evaluation_shards, folder, model.tokenizer, None)


def test_what_is_odd_but_no_error_is_noted(corpus: tuple[Path, Path], tmp_path: Path, capsys) -> None:
    """Validation documents that are trained on, and snapshots after the end; a good run has no such line."""
    train_text, valid = corpus
    both = tmp_path / "both.txt"
    both.write_text(valid.read_text() + "\n<|endoftext|>\n" + train_text.read_text())
    train(arguments((train_text, both), tmp_path / "run", "--snapshots", "2,400"))
    printed = capsys.readouterr().err
    assert "120 of 140 validation documents are also in the training text" in printed
    assert "--snapshots: no step 400, the run ends at 12" in printed
    train(arguments(corpus, tmp_path / "good", "--snapshots", "2,4"))
    assert not re.search("also in the training|no step", capsys.readouterr().err)


def test_a_training_that_diverged_says_what_to_do(corpus: tuple[Path, Path], tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit):
        train(arguments(corpus, tmp_path / "run", "--lr", "1e30"))
    assert re.search(r"lower --clip, and another --out or delete .*run\n", capsys.readouterr().err)
