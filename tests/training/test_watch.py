"""What training watches: rows of the mixing monitor at each evaluation, penalties of HDPL, a warning of each."""

from pathlib import Path

import pytest

from streamscope.models.checkpoint import load
from streamscope.models.mixing import measure
from streamscope.models.train import main
from streamscope.models.training import loop
from tests.tiny import arguments
from tests.training.runs import rows, same_weights


@pytest.mark.parametrize(("b", "times"), [("-8", 1), ("-2", 0)])
def test_rows_and_one_warning(corpus, tmp_path: Path, capsys, b: str, times: int) -> None:
    main(arguments(corpus, tmp_path / "a", "--set", f"residual.b_res={b}", preset="kromhc"))
    assert capsys.readouterr().err.count("streams are not mixing") == times, "two evaluations, one warning"
    found = rows(tmp_path / "a", "mixing")
    keys = [(r["step"], r["module"], r["metric"], r["part"]) for r in found]
    assert len(keys) == len(set(keys)) and {k[0] for k in keys} == {6, 12}
    modules = [f"blocks.{layer}.{branch}_hc" for layer in (0, 1) for branch in ("attn", "mlp")]
    assert list(dict.fromkeys(k[1] for k in keys)) == modules
    assert {"distance_static", "distance_dynamic", "swap_best", "alpha_res", "gradient"} <= {k[2] for k in keys}
    assert all(r["value"] is not None or r["undefined"] for r in found)


def test_the_last_rows_are_those_of_the_weights(corpus, tmp_path: Path) -> None:
    main(arguments(corpus, tmp_path / "a", "--set", "attention.v=kron", preset="kromhc"))
    at_end = [row for row in rows(tmp_path / "a", "mixing") if row["step"] == 12]
    last = {(row["module"], row["metric"], row["part"]): row["value"] for row in at_end}
    again = measure(load(tmp_path / "a"))
    assert {"distance_static", "routing_norm"} <= {r["metric"] for r in again}
    for row in again:
        assert last[row["module"], row["metric"], row["part"]] == pytest.approx(row["value"], rel=1e-5)


@pytest.fixture(scope="module")
def watched(corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("watched") / "run"
    main(arguments(corpus, out, preset="kromhc"))
    return out


def test_watching_does_not_change_the_training(corpus, watched: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(loop, "has_mixing", lambda model: False)
    main(arguments(corpus, tmp_path / "unwatched", preset="kromhc"))
    assert rows(watched, "mixing") and not rows(tmp_path / "unwatched", "mixing")
    assert same_weights(watched, tmp_path / "unwatched")


def test_curves_in_tensorboard(watched: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(watched / "tb"))
    board.Reload()
    points = board.Scalars("mixing/swap_static/blocks.1.attn_hc/factor_1")
    assert [p.step for p in points] == [6, 12]
    key = {"step": 12, "module": "blocks.1.attn_hc", "metric": "swap_static", "part": "factor 1"}
    (value,) = (row["value"] for row in rows(watched, "mixing") if key.items() <= row.items())
    assert points[-1].value == pytest.approx(value)


LINE = "HDPL: KL clamped on 100 % of tokens: the penalty has no gradient"


def test_a_penalty_without_gradient_is_told(corpus, tmp_path: Path, capsys) -> None:
    # a latent of 16: its KL is above ln 2 on every token
    main(arguments(corpus, tmp_path / "run", "--set", "d_model=64", preset="hdpl"))
    assert capsys.readouterr().err.count(LINE) == 1
    for row in rows(tmp_path / "run", "train"):
        assert row["loss"] == pytest.approx(row["ce"] + row["kl"], abs=1e-5)
        assert row["kl_nats"] > 1 and row["kl_clamped"] > 0.9
    assert "kl" not in rows(tmp_path / "run", "eval")[0]


def test_free_bits_pull_from_the_start(corpus, tmp_path: Path, capsys) -> None:
    out = tmp_path / "free"
    sites = ("attention.q", "attention.k", "attention.v", "mlp.gate", "mlp.up")
    free = [word for site in sites for word in ("--set", f"{site}.kl=free_bits", "--set", f"{site}.kl_weight=0.1")]
    main(arguments(corpus, out, *free, "--set", "d_model=64", "--lr", "0.01", preset="hdpl"))
    assert LINE not in capsys.readouterr().err
    nats = [row["kl_nats"] for row in rows(out, "train")]
    assert nats[-1] < 0.8 * nats[0]
