"""DST's page: planted rows whose cells are known, figures that draw the values of the table, a run that is measured."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from streamscope.models.train import main as train
from streamscope.papers.dst import figures, tables
from streamscope.papers.page import Page
from streamscope.papers.paper import Run
from tests.papers.plain import committed_mean
from tests.tiny import arguments

mean = partial(committed_mean, "dst")


def drawn(axis: Any, marker: str) -> list[np.ndarray]:
    return [np.asarray(line.get_ydata(), float) for line in axis.lines if line.get_marker() == marker]


def test_the_figures_draw_the_values_of_the_tables_and_the_printed_ones() -> None:
    left, right = figures.removed(Page("dst")).axes
    assert left.get_yscale() == right.get_yscale() == "log"
    dashes = [line[0] for line in drawn(left, "None") if len(line) == 2]
    expected = [mean("dst-kron", f"streams.{w}", p) for p in figures.STREAMS for w in ("everywhere", "unembedding")]
    assert dashes == pytest.approx(expected)
    assert [line[0] for line in drawn(left, "D")] == pytest.approx([36, 9.5, 28])
    alphas = figures.sharpened(Page("dst")).axes[0]
    curves = [line for line in drawn(alphas, "None") if len(line) == 5][::5]  # a mean, then four seeds
    for curve, arm in zip(curves, figures.ARMS, strict=True):
        assert curve == pytest.approx([mean(arm, "amplify.loss", x=a) for a in tables.PAPER_ALPHAS])
    assert [list(line) for line in drawn(alphas, "D")] == [list(tables.TABLE5[arm]) for arm in figures.ARMS]
    routed = figures.routed(Page("dst"))
    one = next(axis for axis in routed.axes if "O, layer 3" in (axis.get_title("left"), axis.get_title()))
    assert one.images[0].get_array()[4, 1] == pytest.approx(mean("dst-kron", "routing.o", "H4 from H1", 3, "zoo"))
    mapped = figures.maps(Page("dst")).axes[3].images[0].get_array()
    assert mapped[3, 1] == pytest.approx(mean("dst-kron", "map", "03 found to 01 Le", 16, "zoo"))


@pytest.fixture(scope="module")
def folder(corpus: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dst") / "dst-kron-s0"
    train(arguments(corpus, folder, "--steps", "2", "--set", "n_ctx=64", preset="dst-kron"))
    return folder


def test_a_run_has_every_number_once_and_they_agree(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(folder)
    for measure in tables.MEASURES[:-1]:  # the last reads prompts of a tokenizer of words
        measure(run)
    rows = pd.DataFrame(run.rows).set_index(["quantity", "part", "x"])["value"].sort_index()
    assert rows.index.is_unique
    assert rows["loss.documents", "", :].item() == pytest.approx(rows["amplify.loss", "", 1.0].item(), abs=1e-6)
    weights = dict(run.model.named_parameters())["blocks.1.attn.v.weight"].detach()
    assert rows["routing.max", "V", 1.0].item() == pytest.approx(float(weights.abs().max()))
    hot = "ln_final.hook_normalized"
    monkeypatch.setattr(tables, "amplification", lambda *_: {hot: lambda x, hook: 2 * x})  # logits twice as large
    torch.nn.init.zeros_(run.model.ln_final.bias)
    run.model.unembed.weight.data.mul_(12.0)
    run.rows.clear()
    tables.calibration(run)
    found = pd.DataFrame(run.rows).query("x == 16").set_index("quantity")["value"]
    assert found["calibration.kept"] == 1 and found["calibration.sharp"] > 0.01
    assert found["calibration.recovered"] == pytest.approx(100, abs=0.5)
