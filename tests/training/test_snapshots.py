"""Weights of chosen steps: which, what is in them, that a kill leaves none torn, and that `RUN@STEP` opens anywhere."""

import json
import shutil
from importlib import import_module
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from streamscope.cli.disk import sha256
from streamscope.features.store import read_features
from streamscope.models import load
from streamscope.models.checkpoint import read_manifest, run_folder, snapshot_step, snapshots
from streamscope.models.make import build
from streamscope.models.sft import main as sft
from streamscope.models.tensors import DIGEST, read_tensors
from streamscope.models.train import main
from streamscope.models.training.config import snapshot_steps
from streamscope.models.training.run import read_metrics
from tests.tiny import arguments, assert_refused
from tests.training.runs import flip


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "lfa"
    main(arguments(corpus, out, "--steps", "12"))
    return out


def test_steps_by_hand() -> None:
    powers = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    assert snapshot_steps("log", 3500) == [*powers, 1000, 2000, 3000, 3500]
    assert snapshot_steps("log:200", 1000) == [*powers, 600, 800, 1000]
    assert snapshot_steps("log", 12) == [0, 1, 2, 4, 8, 12]
    assert snapshot_steps("every:5", 12) == [0, 5, 10, 12]
    assert snapshot_steps("7,3", 12) == [3, 7, 12]
    assert snapshot_steps("none", 12) == []
    for spec in ("log:0", "log:x", "every", "every:-2", "often", "3,-1", ""):
        assert_refused("--snapshots .*: give log, log:N", snapshot_steps, spec, 100)


def test_snapshots_are_the_weights_of_their_steps(run: Path, corpus, tmp_path: Path) -> None:
    assert [row["step"] for row in snapshots(run)] == [0, 1, 2, 4, 8, 12]
    assert load(f"{run}@0").state_dict().keys() == load(run).state_dict().keys()
    first, last = load_file(run / "snapshots/step-000000.safetensors"), load_file(run / "model.safetensors")
    assert all(torch.equal(v, load(f"{run}@12").state_dict()[k]) for k, v in last.items())
    fresh = build("lfa", "tiny", d_vocab=first["embed.weight"].shape[0]).state_dict()
    assert all(torch.equal(v, fresh[k]) for k, v in first.items()), "step 0 is before any update"
    # the weights of step 4 are those that a run stopped there has: its schedule is the same, its snapshot too
    main(arguments(corpus, tmp_path / "b", "--snapshots", "4", "--snapshot-dtype", "bf16"))
    whole, half = load(f"{run}@4").state_dict(), load(f"{tmp_path / 'b'}@4").state_dict()
    assert [row["dtype"] for row in snapshots(tmp_path / "b")] == ["bf16", "bf16"]
    assert all(torch.equal(v.to(torch.bfloat16).float(), half[k]) for k, v in whole.items())
    assert not torch.equal(whole["embed.weight"], last["embed.weight"])


def test_what_is_not_there_is_one_line(run: Path, corpus, tmp_path: Path) -> None:
    main(arguments(corpus, tmp_path / "a", "--steps", "1", "--snapshots", "none"))
    assert not (tmp_path / "a" / "snapshots").exists()
    for name, line in (
        (f"{tmp_path}/a@3", r"a has no snapshots, so \S+a@3 does not exist: train with --snapshots log"),
        (f"{run}@7", "has no snapshot '7'; it has 0, 1, 2, 4, 8, 12"),
        (f"{run}@last", "has no snapshot 'last'; it has 0, 1, 2, 4, 8, 12"),
        (f"{run}@all", "@all stands for all snapshots .*: give one of 0, 1, 2, 4, 8, 12"),
        ("nowhere@3", "nowhere is not a run folder"),
    ):
        assert_refused(line, load, name)
    assert_refused("is a snapshot, which cannot be resumed", main, ["--resume", "--out", f"{run}@8"])


def test_a_damaged_snapshot_is_told(run: Path, tmp_path: Path) -> None:
    flip(Path(shutil.copytree(run, tmp_path / "a")) / "snapshots" / "step-000004.safetensors", -3)
    assert_refused(r"step-000004.safetensors is damaged", load, f"{tmp_path / 'a'}@4")


def test_a_snapshot_is_a_run_everywhere(run: Path, corpus, tmp_path: Path, capsys) -> None:
    at = f"{run}@4"
    folder = run_folder(at)
    assert str(folder) == at and folder.is_dir() and run_folder(folder) == folder
    assert read_manifest(folder)["step"] == 4 and max(r["step"] for r in read_metrics(folder)) <= 4
    data, out = ["--data", str(corpus[1]), "--device", "cpu"], tmp_path / "f.parquet"
    for command, argv in (
        ("probes.heads", [at, "--sequences", "2", "--length", "5", "--device", "cpu"]),
        ("probes.logit_lens", [at, "--text", "the cat sat", "--device", "cpu"]),
        ("interventions.ablate", [at, "--heads", "L0.H0", *data, "--max-documents", "4"]),
        ("features.extract", [at, *data, "--out", str(out), "--max-tokens", "40"]),
        ("models.describe", ["--run", at]), ("models.runs", ["show", at]), ("models.runs", ["diff", at, str(run)]),
    ):  # fmt: skip
        import_module(f"streamscope.{command}").main(argv)
    assert read_features(out).about["checkpoint"] == read_tensors(folder / "model.safetensors")[1][DIGEST]
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("".join(json.dumps({"prompt": f"cat {i}", "response": "the dog"}) + "\n" for i in range(40)))
    argv = ["--data", str(pairs), "--valid", str(pairs), "--out", str(tmp_path / "sft"), "--steps", "1"]
    sft([at, *argv, "--batch-size", "4", "--device", "cpu"])
    parent = json.loads((tmp_path / "sft" / "manifest.json").read_text())["parent"]
    assert parent["run"] == at and parent["sha256"] == sha256(folder / "model.safetensors") and parent["step"] == 4
    assert at in capsys.readouterr().out
    (tmp_path / "lfa@4").symlink_to(run)
    assert type(run_folder(tmp_path / "lfa@4")) is type(Path()), "a folder of such a name comes first"


def test_an_at_sign_above_a_snapshot_is_no_step(run: Path, tmp_path: Path) -> None:
    (tmp_path / "me@work").mkdir()
    (tmp_path / "me@work" / "lfa").symlink_to(run)
    folder = run_folder(tmp_path / "me@work" / "lfa@4")
    assert snapshot_step(folder) == 4 and snapshot_step(folder.parent) is None
    assert (folder.parent / "lfa" / "config.json").is_file() and folder.parent.parent / "me@work" == folder.parent
