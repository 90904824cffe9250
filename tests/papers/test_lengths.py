"""Losses in windows of the length that most steps had, beside a plain sum, and the page that takes them."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from streamscope.cli.errors import InputError
from streamscope.models.checkpoint import load
from streamscope.models.train import main as train
from streamscope.models.training.data import evaluation_shards
from streamscope.papers.comparison.curves import by_position, has_short_windows, lengths, usual_window
from streamscope.papers.comparison.curves import window_curves as curves
from streamscope.papers.comparison.losses import losses
from streamscope.papers.comparison.runs import Run, opened
from streamscope.papers.hdpl import main, overfit
from streamscope.papers.hdpl.report import PRESETS
from tests.tiny import arguments

PHASES = "8:4x16,2:2x32"


@pytest.fixture(scope="module")
def runs(corpus, tmp_path_factory) -> list[Run]:
    """llama and hdpl, most of whose ten steps had windows of half the context."""
    folder = tmp_path_factory.mktemp("lengths")
    for name in PRESETS:
        words = arguments(corpus, folder / name, "--set", "n_ctx=32", preset=name)
        for option in ("--steps", "--batch-size"):  # phases have their own
            del words[words.index(option) : words.index(option) + 2]
        train([*words, "--phases", PHASES, "--snapshots", "log:4", "--warmup", "2"])
    return [opened(str(folder / name), PRESETS) for name in PRESETS]


def test_the_usual_length_is_that_of_most_steps(runs: list[Run]) -> None:
    assert [usual_window(run) for run in runs] == [(16, 0.8)] * 2 and has_short_windows(runs)


def test_losses_by_position_are_those_of_a_plain_sum(runs: list[Run]) -> None:
    """Of every window of the validation text, cut by hand, one at a time."""
    run = runs[1]
    model = load(run.folder, device="cpu")
    shards = evaluation_shards(run.folder, model.tokenizer, None)
    for length in (16, 32):
        documents = [np.asarray(shards.document(i), dtype=np.int64) for i in range(shards.n_documents)]
        stream = torch.from_numpy(np.concatenate(documents))
        total, tokens = by_position(model, run, length)
        hand, n = torch.zeros(length, dtype=torch.double), torch.zeros(length, dtype=torch.double)
        for first in range(0, len(stream) - length, length):
            ids = stream[first : first + length + 1]
            with torch.no_grad():
                log_p = model(ids[None, :-1])[0].double().log_softmax(-1)
            for q, target in enumerate(ids[1:].tolist()):
                hand[q] -= log_p[q, target]
                n[q] += 1
        assert torch.equal(tokens, n)
        torch.testing.assert_close(total, hand, rtol=1e-5, atol=1e-5)


def test_the_rows_are_means_of_positions(runs: list[Run]) -> None:
    found = lengths(runs)
    logged = losses(runs).set_index("preset")
    for run, row in zip(runs, found.to_dict("records"), strict=True):
        total, tokens = by_position(load(run.folder, device="cpu"), run, 32)
        assert row["window"] == 16 and row["share"] == 0.8
        assert row["whole"] == pytest.approx(logged.loc[run.preset, "loss"], abs=1e-5)
        assert row["within"] == pytest.approx(float(total[:16].sum() / tokens[:16].sum()))
        assert row["beyond"] == pytest.approx(float(total[16:].sum() / tokens[16:].sum()))


def test_overfitting_is_not_read_from_positions_that_nothing_trained(runs: list[Run], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="shorter than the context"):
        overfit.main([*(str(run.folder) for run in runs), "--out", str(tmp_path / "page")])
    assert not list((tmp_path / "page").glob("*"))


def test_a_point_of_a_curve_is_a_snapshot(runs: list[Run]) -> None:
    found = curves(runs)
    assert runs[0].warmup > 0 and set(found["step"]) == {one for one in (1, 2, 4, 8, 10) if one >= runs[0].warmup}
    last = found[found["step"] == 10].set_index("preset")["loss"]
    whole = lengths(runs).set_index("preset")["loss"]
    assert last.to_dict() == pytest.approx(whole.to_dict(), abs=0.01)  # snapshots are rounded, and of the first tokens


def test_a_run_without_snapshots_and_one_without_short_windows(corpus, runs: list[Run], tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(runs[0].folder, bare)
    shutil.rmtree(bare / "snapshots")
    with pytest.raises(InputError, match="no snapshot behind warm-up"):
        curves([opened(str(bare), PRESETS)])
    train(arguments(corpus, tmp_path / "whole", preset="llama"))
    whole = opened(str(tmp_path / "whole"), PRESETS)
    assert not has_short_windows([whole])
    with pytest.raises(InputError, match="nothing beyond"):
        lengths([whole])


def test_the_page_of_hdpl_takes_them(runs: list[Run], tmp_path: Path) -> None:
    main([*(str(run.folder) for run in runs), "--out", str(tmp_path)])
    found = pd.read_parquet(tmp_path / "lengths.parquet")
    assert pd.read_parquet(tmp_path / "losses.parquet")["loss"].tolist() == found["loss"].tolist()
    again = tmp_path / "again"
    main(["--tables", str(tmp_path), "--out", str(again)])
    pd.testing.assert_frame_equal(pd.read_parquet(again / "lengths.parquet"), found)
