"""Training with sampled latents: repeatable, resumable, logged, the same when blocks are compiled."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from streamscope.models.train import main
from streamscope.models.training.loop import Trainer
from streamscope.models.training.run import read_metrics
from tests.tiny import arguments

LINE = "HDPL: KL clamped on 100 % of tokens: the penalty has no gradient"


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.mark.slow  # as tests/training/test_resume.py, for hdpl
def test_a_stopped_run_goes_on_to_the_same_weights(corpus, tmp_path: Path, monkeypatch, capsys) -> None:
    """The noise is a function of the step: the generator's state is in the checkpoint."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    more = ["--set", "d_model=64"]  # a latent of 16: its KL is above ln 2 on every token
    main(arguments(corpus, whole, *more, preset="hdpl"))
    told = capsys.readouterr().err
    assert told.count(LINE) == 1
    update = Trainer.update

    def stopping(self: Trainer) -> dict[str, torch.Tensor]:
        self._stop = self.step == 4
        return update(self)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "update", stopping)
        try:
            main(arguments(corpus, cut, *more, preset="hdpl"))
        except SystemExit as stop:
            assert stop.code == 130
    assert max(r["step"] for r in read_metrics(cut)) < 12
    torch.manual_seed(123)
    main(["--resume", "--out", str(cut)])
    one, two = weights(whole), weights(cut)
    assert all(torch.equal(one[k], two[k]) for k in one)
    rows = [r for r in read_metrics(whole) if r["kind"] == "train"]
    assert all(r["loss"] == r["ce"] + r["kl"] or abs(r["loss"] - r["ce"] - r["kl"]) < 1e-5 for r in rows)
    assert all(r["kl_nats"] > 1 and r["kl_clamped"] > 0.9 for r in rows)
    assert "kl" not in next(r for r in read_metrics(whole) if r["kind"] == "eval")


def test_free_bits_pull_from_the_start(corpus, tmp_path: Path, capsys) -> None:
    out = tmp_path / "free"
    sites = ("attention.q", "attention.k", "attention.v", "mlp.gate", "mlp.up")
    free = [word for site in sites for word in ("--set", f"{site}.kl=free_bits", "--set", f"{site}.kl_weight=0.1")]
    main(arguments(corpus, out, *free, "--set", "d_model=64", "--lr", "0.01", preset="hdpl"))
    assert LINE not in capsys.readouterr().err
    nats = [r["kl_nats"] for r in read_metrics(out) if r["kind"] == "train"]
    assert nats[-1] < 0.8 * nats[0]
