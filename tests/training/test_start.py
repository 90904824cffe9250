"""How a training begins and goes on: with the weights of a run, a vocabulary, seeds; killed, to the same weights."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from streamscope.models.checkpoint import load
from streamscope.models.config.serialization import from_dict
from streamscope.models.train import main
from streamscope.models.training.config import Training, with_recipe
from streamscope.models.training.optim import Optimizers
from streamscope.models.training.run import load_checkpoint, read_metrics, save_checkpoint
from tests.tiny import arguments, assert_refused, corpus_text, some
from tests.training.runs import cut, rows, same_weights


def test_begins_with_the_weights_of_a_run(corpus: tuple[Path, Path], tiny_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "on"
    main(arguments(corpus, out, "--start", str(tiny_run), "--snapshots", "log"))
    first, own = load(f"{out}@0").state_dict(), load(tiny_run).state_dict()
    assert all(torch.equal(first[name], own[name]) for name in own)
    assert any(not torch.equal(load(out).state_dict()[name], own[name]) for name in own)
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["parent"]["run"].endswith(tiny_run.name) and len(manifest["parent"]["sha256"]) == 64
    assert (out / "tokenizer.json").read_bytes() == (tiny_run / "tokenizer.json").read_bytes()
    again = tmp_path / "again"
    main(arguments(corpus, again, "--start", f"{out}@4"))
    assert json.loads((again / "manifest.json").read_text())["parent"]["step"] == 4


def test_killed_before_its_first_checkpoint_it_begins_again(corpus, tiny_run: Path, tmp_path: Path) -> None:
    whole, out = tmp_path / "whole", tmp_path / "cut"
    start = ("--start", str(tiny_run), "--checkpoint-every", "12")
    main(arguments(corpus, whole, *start))
    cut(3, main, arguments(corpus, out, *start), killed=True)
    main(["--resume", "--out", str(out)])
    assert same_weights(whole, out)


def test_another_model_is_refused(corpus: tuple[Path, Path], tiny_run: Path, tmp_path: Path) -> None:
    out, other = tmp_path / "on", tmp_path / "tokenizer.json"
    bpe = json.loads((tiny_run / "tokenizer.json").read_text())
    ids, (a, b) = bpe["model"]["vocab"], list(bpe["model"]["vocab"])[-2:]
    ids[a], ids[b] = ids[b], ids[a]
    other.write_text(json.dumps(bpe))
    for preset, more, said in (
        ("lfa", ["--set", "n_layers=3"], "n_layers is 2 there, 3 here"),
        ("lfa", ["--tokenizer", str(other)], "leave out --tokenizer"),
        ("pls", [], "is another model"),
    ):
        assert_refused(said, main, arguments(corpus, out, "--start", str(tiny_run), *more, preset=preset))
    assert not out.exists()


def test_a_small_text_gets_the_vocabulary_that_it_fills(tmp_path: Path, capsys) -> None:
    """Unless a number is asked for (`test_bad_input`): the zoo's has 2048 entries."""
    text, out = tmp_path / "own.txt", tmp_path / "run"
    text.write_text(corpus_text(400, 0))
    main(["lfa", "--data", str(text), "--scale", "zoo", "--steps", "1", "--batch-size", "2", "--out", str(out)])
    (line,) = [one for one in capsys.readouterr().err.splitlines() if "vocabulary" in one]
    model = load(out)
    n = model._text().d_vocab
    assert line == f"the data fills a vocabulary of {n}, less than 2048: d_vocab is {n}"
    assert model.config.d_vocab == n < 2048
    main(["--resume", "--out", str(out)])


WITHOUT = """
import os, sys
del os.pread, os.pwrite
from streamscope.models.train import main
main(sys.argv[1:])
"""


def test_training_starts_without_what_windows_lacks(tmp_path: Path, corpus: tuple[Path, Path]) -> None:
    """`os.pread`; there `filelock` locks without `fcntl`."""
    out = tmp_path / "run"
    argv = [sys.executable, "-c", WITHOUT, *arguments(corpus, out)]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=Path(__file__).resolve().parents[2])
    assert done.returncode == 0, done.stderr
    assert (out / "model.safetensors").is_file() and not (out / "lock").exists()


def test_one_seed_sets_all_and_the_config_says_which() -> None:
    t = with_recipe(Training(seed=5, seed_data=7), "lfa", "tiny")
    assert t.seeds == {"weights": 5, "data": 7, "noise": 5}
    assert (asdict(t)["seed_weights"], asdict(t)["seed_noise"]) == (5, 5)
    old = asdict(t)
    for name in ("seed_weights", "seed_data", "seed_noise", "snapshots", "snapshot_dtype", "parallel"):
        del old[name]
    assert from_dict(Training, old).seeds == {"weights": 5, "data": 5, "noise": 5}, "a config from before"
    assert_refused("seed_noise must be at least 0", Training, seed_noise=-1)


def test_each_seed_decides_its_own(corpus, tmp_path: Path) -> None:
    # pls has dropout; what is looked at: the weights before the first step, and the loss of that step
    sources = ("weights", "data", "noise")
    runs = {"base": [], "all": ["--seed", "3"], **{source: [f"--seed-{source}", "3"] for source in sources}}
    runs["together"] = [word for source in sources for word in runs[source]]
    weights, losses = {}, {}
    for name, more in runs.items():
        out = tmp_path / name
        fast = ["--steps", "1", "--log-every", "1", "--snapshots", "0", "--sample-every", "0"]
        main(arguments(corpus, out, *fast, *more, preset="pls"))
        weights[name] = load_file(out / "snapshots" / "step-000000.safetensors")
        losses[name] = rows(out, "train")[0]["loss"]

    def same(a: str, b: str) -> bool:
        return all(torch.equal(v, weights[b][k]) for k, v in weights[a].items())

    assert same("base", "data") and same("base", "noise") and not same("base", "weights")
    assert len({losses[name] for name in ("base", "weights", "data", "noise", "all")}) == 5
    assert same("all", "together") and losses["all"] == losses["together"]
    manifest = json.loads((tmp_path / "data" / "manifest.json").read_text())
    assert manifest["seeds"] == {"weights": 0, "data": 3, "noise": 0}


def test_without_noise_its_seed_changes_nothing(corpus, tmp_path: Path) -> None:
    for name, seed in (("a", "0"), ("b", "9")):
        main(arguments(corpus, tmp_path / name, "--steps", "2", "--sample-every", "0", "--seed-noise", seed))
    assert same_weights(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("preset", some(["pls", "kromcanon", "hdpl"], ["pls"]))
@pytest.mark.parametrize("killed", some([False, True], [False]))
def test_stopped_and_resumed_equals_uninterrupted(corpus, tmp_path: Path, preset: str, killed: bool) -> None:
    # pls has dropout and hdpl sampled latents, so the random state matters, kromcanon two optimisers; a pls that is
    # killed at its renames is in test_faults, and runs always
    whole, out = tmp_path / "whole", tmp_path / "cut"
    main(arguments(corpus, whole, preset=preset))
    cut(7, main, arguments(corpus, out, preset=preset), killed=killed)
    assert max(r["step"] for r in read_metrics(out, strict=False)) < 12
    torch.manual_seed(123)
    main(["--resume", "--out", str(out)])
    assert same_weights(whole, out)
    assert rows(whole) == rows(out)
    manifest = json.loads((out / "manifest.json").read_text())
    assert (manifest["outcome"], manifest["step"]) == ("completed", 12)


def test_a_torn_row_is_repaired(tiny_run: Path, tmp_path: Path) -> None:
    whole, torn = tiny_run, Path(shutil.copytree(tiny_run, tmp_path / "torn"))
    with (torn / "metrics.jsonl").open("a") as file:
        file.write('{"step": 99, "ki')
    main(["--resume", "--out", str(torn)])
    assert rows(torn) == rows(whole)


class OnSecondDevice(torch.nn.Module):
    def parameters(self, recurse: bool = True) -> Iterator[Any]:
        return iter([SimpleNamespace(device=torch.device("cuda:1"))])


def test_the_random_state_is_that_of_the_models_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of cuda:1, while the current device is cuda:0."""
    states = {f"cuda:{i}": torch.full((16,), i, dtype=torch.uint8) for i in range(2)}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device="cuda:0": states[str(device)])
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda x, device="cuda:0": states.update({str(device): x}))
    (tmp_path / "config.json").write_text('{"format": 1, "model": {}}')
    save_checkpoint(tmp_path, OnSecondDevice(), {}, 3, {})
    states["cuda:1"] = torch.zeros(16, dtype=torch.uint8)
    load_checkpoint(tmp_path, OnSecondDevice(), Optimizers([]))
    assert [int(x[0]) for x in states.values()] == [0, 1]
