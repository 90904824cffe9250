"""Training with sampled latents: repeatable, resumable, logged, the same when blocks are compiled."""

from pathlib import Path

import pytest
import torch

from streamscope.models.train import main
from tests.tiny import arguments
from tests.training.runs import cut, rows, same_weights

LINE = "HDPL: KL clamped on 100 % of tokens: the penalty has no gradient"


@pytest.mark.slow  # as tests/training/test_resume.py, for hdpl
def test_a_stopped_run_goes_on_to_the_same_weights(corpus, tmp_path: Path, capsys) -> None:
    """The noise is a function of the step: the generator's state is in the checkpoint."""
    whole, out = tmp_path / "whole", tmp_path / "cut"
    more = ["--set", "d_model=64"]  # a latent of 16: its KL is above ln 2 on every token
    main(arguments(corpus, whole, *more, preset="hdpl"))
    assert capsys.readouterr().err.count(LINE) == 1
    cut(5, main, arguments(corpus, out, *more, preset="hdpl"))
    assert max(r["step"] for r in rows(out)) < 12
    torch.manual_seed(123)
    main(["--resume", "--out", str(out)])
    assert same_weights(whole, out)
    for row in rows(whole, "train"):
        assert row["loss"] == pytest.approx(row["ce"] + row["kl"], abs=1e-5)
        assert row["kl_nats"] > 1 and row["kl_clamped"] > 0.9
    assert "kl" not in rows(whole, "eval")[0]


def test_free_bits_pull_from_the_start(corpus, tmp_path: Path, capsys) -> None:
    out = tmp_path / "free"
    sites = ("attention.q", "attention.k", "attention.v", "mlp.gate", "mlp.up")
    free = [word for site in sites for word in ("--set", f"{site}.kl=free_bits", "--set", f"{site}.kl_weight=0.1")]
    main(arguments(corpus, out, *free, "--set", "d_model=64", "--lr", "0.01", preset="hdpl"))
    assert LINE not in capsys.readouterr().err
    nats = [row["kl_nats"] for row in rows(out, "train")]
    assert nats[-1] < 0.8 * nats[0]
