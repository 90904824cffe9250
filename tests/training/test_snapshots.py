"""Weights of chosen steps: which, what is in them, that a kill leaves none torn, and that `RUN@STEP` opens anywhere."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from streamscope.cli.disk import sha256
from streamscope.cli.errors import InputError
from streamscope.models import load
from streamscope.models.checkpoint import read_manifest, run_folder, snapshots
from streamscope.models.tensors import DIGEST, read_tensors
from streamscope.models.train import main
from streamscope.models.training.config import snapshot_steps
from streamscope.models.training.run import read_metrics
from tests.tiny import arguments


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


@pytest.mark.parametrize("spec", ["log:0", "log:x", "every", "every:-2", "often", "3,-1", ""])
def test_another_spelling_is_one_line(spec: str) -> None:
    with pytest.raises(InputError, match="--snapshots .*: give log, log:N"):
        snapshot_steps(spec, 100)


def test_snapshots_are_the_weights_of_their_steps(run: Path, corpus, tmp_path: Path) -> None:
    assert [row["step"] for row in snapshots(run)] == [0, 1, 2, 4, 8, 12]
    assert load(f"{run}@0").state_dict().keys() == load(run).state_dict().keys()
    first, last = load_file(run / "snapshots/step-000000.safetensors"), load_file(run / "model.safetensors")
    assert all(torch.equal(v, load(f"{run}@12").state_dict()[k]) for k, v in last.items())
    from streamscope.models.make import build

    fresh = build("lfa", "tiny", d_vocab=first["embed.weight"].shape[0]).state_dict()
    assert all(torch.equal(v, fresh[k]) for k, v in first.items()), "step 0 is before any update"
    # the weights of step 4 are those that a run stopped there has: its schedule is the same, its snapshot too
    main(arguments(corpus, tmp_path / "b", "--snapshots", "4", "--snapshot-dtype", "bf16"))
    whole, half = load(f"{run}@4").state_dict(), load(f"{tmp_path / 'b'}@4").state_dict()
    assert [row["dtype"] for row in snapshots(tmp_path / "b")] == ["bf16", "bf16"]
    assert all(torch.equal(v.to(torch.bfloat16).float(), half[k]) for k, v in whole.items())
    assert not torch.equal(whole["embed.weight"], last["embed.weight"])


def test_none_are_written_for_none(corpus, tmp_path: Path) -> None:
    main(arguments(corpus, tmp_path / "a", "--snapshots", "none"))
    assert not (tmp_path / "a" / "snapshots").exists()
    with pytest.raises(InputError, match=r"a has no snapshots, so \S+a@3 does not exist: train with --snapshots log"):
        run_folder(tmp_path / "a@3")


def test_what_is_not_there_is_one_line(run: Path) -> None:
    for name in ("7", "last"):
        with pytest.raises(InputError, match=f"has no snapshot '{name}'; it has 0, 1, 2, 4, 8, 12"):
            load(f"{run}@{name}")
    with pytest.raises(InputError, match="@all stands for all snapshots .*: give one of 0, 1, 2, 4, 8, 12"):
        load(f"{run}@all")
    with pytest.raises(InputError, match="nowhere is not a run folder"):
        load("nowhere@3")
    with pytest.raises(InputError, match="is a snapshot, which cannot be resumed"):
        main(["--resume", "--out", f"{run}@8"])


def test_a_damaged_snapshot_is_told(corpus, tmp_path: Path) -> None:
    main(arguments(corpus, tmp_path / "a", "--snapshots", "4"))
    path = tmp_path / "a" / "snapshots" / "step-000004.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(InputError, match=r"step-000004.safetensors is damaged"):
        load(f"{tmp_path / 'a'}@4")


def test_a_snapshot_is_a_run_everywhere(run: Path, corpus, tmp_path: Path, capsys) -> None:
    import streamscope.features.extract
    import streamscope.interventions.ablate
    import streamscope.models.describe
    import streamscope.models.runs
    import streamscope.models.sft
    import streamscope.probes.heads
    import streamscope.probes.logit_lens
    from streamscope.features.store import read_features

    at = f"{run}@4"
    folder = run_folder(at)
    assert str(folder) == at and folder.is_dir() and run_folder(folder) == folder
    assert read_manifest(folder)["step"] == 4 and max(r["step"] for r in read_metrics(folder)) <= 4
    data = ["--data", str(corpus[1])]
    streamscope.probes.heads.main([at, "--sequences", "2", "--length", "5", "--device", "cpu"])
    streamscope.probes.logit_lens.main([at, "--text", "the cat sat", "--device", "cpu"])
    streamscope.interventions.ablate.main([at, "--heads", "L0.H0", *data, "--max-documents", "4", "--device", "cpu"])
    streamscope.models.describe.main(["--run", at])
    streamscope.models.runs.main(["show", at])
    streamscope.models.runs.main(["diff", at, str(run)])
    out = tmp_path / "f.parquet"
    streamscope.features.extract.main([at, *data, "--out", str(out), "--max-tokens", "40", "--device", "cpu"])
    assert read_features(out).about["checkpoint"] == read_tensors(folder / "model.safetensors")[1][DIGEST]
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("".join(json.dumps({"prompt": f"cat {i}", "response": "the dog"}) + "\n" for i in range(40)))
    argv = [
        "--data",
        str(pairs),
        "--out",
        str(tmp_path / "sft"),
        "--steps",
        "1",
        "--batch-size",
        "4",
        "--device",
        "cpu",
    ]
    streamscope.models.sft.main([at, *argv, "--valid", str(pairs)])
    parent = json.loads((tmp_path / "sft" / "manifest.json").read_text())["parent"]
    assert parent["run"] == at and parent["sha256"] == sha256(folder / "model.safetensors") and parent["step"] == 4
    assert at in capsys.readouterr().out


def test_a_folder_with_such_a_name_comes_first(run: Path, tmp_path: Path) -> None:
    (tmp_path / "lfa@4").symlink_to(run)
    assert type(run_folder(tmp_path / "lfa@4")) is type(Path())
