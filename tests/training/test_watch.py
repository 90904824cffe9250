"""The mixing monitor in training: rows at each evaluation, one warning, nothing where there is nothing to mix."""

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


def test_nothing_for_a_model_without_mixing(corpus, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(loop, "measure", lambda *_: pytest.fail("measured"))
    main(arguments(corpus, tmp_path / "a", preset="gpt2"))
    assert rows(tmp_path / "a", "mixing") == []


@pytest.fixture(scope="module")
def watched(corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of kromhc."""
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
