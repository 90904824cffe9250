"""KROM's page: planted rows whose cells are known, figures that draw the table's values, a run that is measured."""

from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from streamscope.instruments.prompts.sets import contrast, encode
from streamscope.models.checkpoint import load as load_model
from streamscope.models.train import main as train
from streamscope.papers.krom import figures, tables
from streamscope.papers.page import Page
from streamscope.papers.paper import Run, load
from streamscope.probes.stream_states import stream_states
from tests.papers.plain import committed_mean
from tests.tiny import arguments

mean = partial(committed_mean, "krom", grid="eighth")


def test_bars_and_cells_are_means_over_seeds() -> None:
    drawn, heat = figures.swap(Page("krom")), figures.heat(Page("krom"))
    for axis, arm in zip(drawn.axes, figures.BIASES, strict=True):
        widths = [bar.get_width() for bar in axis.patches]
        assert widths[2] == pytest.approx(mean(arm, "module.best", "L1.mlp"))
        assert widths[len(widths) // 2 + 4] == pytest.approx(mean(arm, "module.swap", "L2.mlp"))
    for axis, arm in zip(heat.axes, figures.BIASES, strict=False):
        assert axis.images[0].get_array()[1, 1] == pytest.approx(mean(arm, "factor.swap", "L1.attn.1"))


def test_points_and_curves_are_the_rows() -> None:
    axis = figures.scatter(Page("krom")).axes[0]
    assert len(axis.lines[0].get_xdata()) == 33, "11 modules of three seeds"
    points, table = axis.lines[0].get_ydata(), load("krom")
    kept = (table["arm"] == "kromcanon-b8-bf16") & (table["quantity"] == "module.best") & (table["grid"] == "eighth")
    assert sorted(points) == pytest.approx(sorted(table.loc[kept, "value"]))
    axis = figures.over_training(Page("krom")).axes[0]
    thick = [line for line in axis.lines if line.get_linewidth() == 1.8]
    for line, arm in zip(thick, figures.BIASES, strict=True):
        assert line.get_ydata()[-1] == pytest.approx(mean(arm, "swap.curve", "", line.get_xdata()[-1], grid="long"))
    axis = figures.cosines(Page("krom")).axes[0]
    dashes = [line.get_ydata()[0] for line in axis.lines if line.get_linewidth() == 2]
    expected = [mean(arm, f"direction.{q}") for arm in figures.SWEEP for q in ("cosine", "shuffled")]
    assert dashes == pytest.approx(expected)


def test_a_run_has_the_numbers_of_its_weights(corpus: tuple[Path, Path], tmp_path: Path) -> None:
    folder = tmp_path / "kromcanon-b2-fp32-s0"
    train(arguments(corpus, folder, "--set", "residual.b_res=-2", preset="kromcanon"))
    run, model = Run(folder), load_model(folder)
    for measure in tables.MEASURES:
        measure(run)
    found = pd.DataFrame(run.rows).set_index(["quantity", "part"])["value"]
    b = model.blocks[1].attn_hc.b["res"].detach().double().numpy()
    swap = 1 / (1 + np.exp(b[1, 0] - b[1, 1]))
    assert found["factor.swap", "L1.attn.1"] == pytest.approx(swap, rel=1e-5) and "L0.attn" not in found["alpha"].index
    size = abs(float(model.blocks[1].attn_hc.alpha["res"].detach()))
    reach = 1 / (1 + np.exp(b[:, 0] - b[:, 1] - 2 * size))
    assert found["module.best", "L1.attn"] == pytest.approx(reach.max(), rel=1e-5)
    assert found["swap.mixed", ""] == pytest.approx(found["swap", ""] - found["swap.decay", ""])
    cosines = []
    for names in tables.CONTRASTS:
        a, c = [encode(s, model.tokenizer, model.cfg.n_ctx).tokens for s in contrast(*names)]
        with torch.no_grad():
            x, y = (stream_states(model, tokens, "mean").values.mean(0) for tokens in (a, c))
        for layer in x - y:
            r = [stream / np.linalg.norm(stream) for stream in layer[:4]]  # without their sum
            cosines.append(np.mean([p @ q for p, q in combinations(r, 2)]))
    assert found["direction.cosine", ""] == pytest.approx(np.mean(cosines), abs=1e-6)
