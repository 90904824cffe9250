"""Chance has three sources, and each has a seed of its own."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from streamscope.cli.errors import InputError
from streamscope.models.config.serialization import from_dict
from streamscope.models.train import main
from streamscope.models.training.config import Training, with_recipe
from tests.tiny import arguments
from tests.training.runs import rows, same_weights


def test_one_seed_sets_all_and_the_config_says_which() -> None:
    t = with_recipe(Training(seed=5, seed_data=7), "lfa", "tiny")
    assert t.seeds == {"weights": 5, "data": 7, "noise": 5}
    assert (asdict(t)["seed_weights"], asdict(t)["seed_noise"]) == (5, 5)
    old = asdict(t)
    for name in ("seed_weights", "seed_data", "seed_noise", "snapshots", "snapshot_dtype", "parallel"):
        del old[name]
    assert from_dict(Training, old).seeds == {"weights": 5, "data": 5, "noise": 5}, "a config from before"
    with pytest.raises(InputError, match="seed_noise must be at least 0"):
        Training(seed_noise=-1)


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
    for name, more in (("a", []), ("b", ["--seed-noise", "9"])):
        main(arguments(corpus, tmp_path / name, "--steps", "2", "--sample-every", "0", *more))
    assert same_weights(tmp_path / "a", tmp_path / "b")
