"""Streams and modules within a run: planted numbers, plain implementations, and the command on tiny runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from streamscope.cli.errors import InputError
from streamscope.instruments.data import Documents
from streamscope.instruments.open_data import OpenDocuments
from streamscope.models.checkpoint import load
from streamscope.models.hooks import edit
from streamscope.models.mixing import connections, inert_modules
from streamscope.models.train import main as train
from streamscope.models.training.data import evaluation_shards
from streamscope.papers.krom.streams import main
from streamscope.papers.krom.streams_measure import FEW, NO_SLOPE, SAME, UNIT, alphas, claims, gained, rho, slope
from streamscope.text.shards import NO_TARGET, document_batches
from tests.papers.pages import planted, short_page
from tests.tiny import arguments

MILD, DEEP, FULL = (f"kromcanon {b}, adamw, 2,850 steps" for b in ("-2, fp32", "-8, bf16", "0, fp32"))
DOCUMENTS = 6


@pytest.fixture(scope="module")
def runs(corpus: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("streams")
    for seed in ("0", "1"):
        more = ("--steps", "4", "--snapshots", "2,4", "--seed", seed, "--set", "residual.b_res=-2")
        train(arguments(corpus, folder / f"b2-{seed}", *more, preset="kromhc"))
    return sorted(folder.iterdir())


def test_ranks_of_planted_modules() -> None:
    assert rho([1, 2, 3, 4], [10, 20, 30, 400]) == (pytest.approx(1.0), "")
    assert rho([1, 2, 3, 4], [4, 3, 2, -1])[0] == pytest.approx(-1.0)
    x, y = np.array([0.3, 0.1, 0.9, 0.4, 0.2]), np.array([5.0, 7.0, 6.0, 1.0, 2.0])
    d = x.argsort().argsort() - y.argsort().argsort()
    assert rho(x, y)[0] == pytest.approx(1 - 6 * (d**2).sum() / (5 * 24))
    assert rho([1.0, 2.0], [1.0, 2.0])[1] == FEW and rho([1.0, 1.0, 1.0], [1.0, 2.0, 3.0])[1] == SAME


def test_the_slope_of_a_line_is_its_own() -> None:
    assert slope([0.9, 0.85, 0.8, 0.75]) == (pytest.approx(-0.05), "")
    assert slope([0.9, np.nan, 0.8])[1] == slope([0.9])[1] == NO_SLOPE
    y = np.array([0.9, 0.7, 0.95, 0.6])
    x = np.arange(4) - 1.5
    assert slope(y)[0] == pytest.approx((x * y).sum() / (x**2).sum())


def test_what_mixing_gains_is_the_loss_without_it(runs: list[Path]) -> None:
    net = load(runs[0])
    with torch.no_grad():  # one module that mixes wholly, so that there is something to lose
        for module in connections(net).values():
            module.b["res"][:, 1] = 2.0
    shards = evaluation_shards(runs[0], net._text(), None)
    opened = OpenDocuments(Documents(max_documents=DOCUMENTS), shards, net.config.n_ctx, net.tokenizer)
    found = gained(net, opened, lambda rows: rows)
    assert set(found.index) == set(connections(net)) - set(inert_modules(net))

    def loss(edits: dict[str, Any]) -> float:
        total, n = 0.0, 0
        with torch.no_grad(), edit(net, edits):
            for _, tokens, targets in document_batches(shards, net.config.n_ctx, 4, DOCUMENTS):
                real = targets != NO_TARGET
                logp = net(tokens).log_softmax(-1).gather(-1, targets.clamp_min(0)[..., None])[..., 0]
                total, n = total - float(logp[real].double().sum()), n + int(real.sum())
        return total / n

    streams = next(iter(connections(net).values())).b["pre"].numel()
    for name, gain in found.items():
        without = loss({f"{name}.hook_res": lambda value, hook: torch.eye(streams).expand_as(value)})
        assert gain == pytest.approx(without - loss({}), abs=1e-5)
    assert found.abs().max() > 1e-4


def test_the_alphas_are_those_of_the_modules_that_can_act(runs: list[Path]) -> None:
    net = load(runs[0])
    found = alphas(runs[0])
    assert (
        list(found.index) == [name for name in connections(net) if name not in inert_modules(net)] and len(found) >= 3
    )
    for name, value in found.items():
        assert value == pytest.approx(connections(net)[str(name)].alpha["res"].item())


def test_the_claims_of_planted_runs() -> None:
    values = {
        (MILD, "stable"): [0.95, 0.96, 0.94], (MILD, "helps"): [-0.6, -0.62, -0.58],
        (MILD, "slope"): [0.0, 0.0002, 0.0001], (DEEP, "slope"): [-0.010, -0.011, -0.0105],
        (DEEP, "spread"): [0.28, 0.281, 0.279], (FULL, "spread"): [0.1, 0.103, 0.099],
    }  # fmt: skip
    found = claims(planted(values)).set_index(["claim", "quantity"])["direction"]
    assert found.to_dict() == {
        (f"{MILD} above 0.8", "stable"): "holds", (f"{MILD} above 0", "helps"): "opposite",
        (f"{DEEP} below 0", "slope"): "holds", (f"{FULL} below 0.01", "spread"): "opposite",
        (f"{MILD} > {DEEP}", "slope"): "holds", (f"{DEEP} > {FULL}", "spread"): "holds",
    }  # fmt: skip


def test_the_command_writes_a_page_and_judges_again(runs: list[Path], tmp_path: Path) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    main([*map(str, runs), "--steps", "2", "4", "--documents", "4", "--out", str(first)])
    main(["--tables", str(first), "--out", str(again)])
    for name in ("runs", "arms"):
        pd.testing.assert_frame_equal(*(pd.read_parquet(folder / f"{name}.parquet") for folder in (first, again)))
    assert short_page(again) and (again / "trained.json").is_file()
    rows = pd.read_parquet(first / "runs.parquet")
    assert set(rows["quantity"]) == set(UNIT) and set(rows["seed"]) == {0, 1}


def test_runs_whose_streams_do_not_mix_are_refused(corpus: tuple[Path, Path], tmp_path: Path) -> None:
    train(arguments(corpus, tmp_path / "frozen", "--steps", "2", "--set", "residual.freeze_res=true", preset="kromhc"))
    with pytest.raises(InputError, match="no streams that Kronecker factors mix"):
        main([str(tmp_path / "frozen")])


def test_the_published_verdicts_are_those_of_the_published_runs() -> None:
    folder = Path(__file__).parents[2] / "results" / "krom_streams"
    kept = pd.read_parquet(folder / "claims.parquet")
    again = claims(pd.read_parquet(folder / "runs.parquet"))
    pd.testing.assert_frame_equal(again, kept[list(again)], check_dtype=False)
    assert len(kept) == 6
