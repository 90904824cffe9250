"""What a temperature gives back of sharpened attention's cost: planted changes, and the command on tiny runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from streamscope.cli.errors import InputError
from streamscope.interventions.observe import document_losses
from streamscope.models.checkpoint import load
from streamscope.models.hooks import edit
from streamscope.models.train import main as train
from streamscope.models.training.data import evaluation_shards
from streamscope.papers.dst import calibration
from streamscope.papers.dst.calibration import claims, main, measure_run, sums, temperatures, tempered
from streamscope.text.shards import NO_TARGET, document_batches
from tests.papers.pages import planted, short_page
from tests.tiny import arguments

SHORT = ["--steps", "2"]

FINAL = "ln_final.hook_normalized"


@pytest.fixture(scope="module")
def runs(corpus: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("calibration")
    for seed in ("0", "1"):
        frozen = ("--set", "residual=frozen_token", "--seed", seed)
        train(arguments(corpus, folder / f"frozen-{seed}", *SHORT, *frozen, preset="dst-kron"))
    return sorted(folder.iterdir())


def unbiased(folder: Path) -> Any:
    """The model with no bias in its last norm, so that what scales the norm's output scales the logits."""
    net = load(folder)
    for name, parameter in net.ln_final.named_parameters():
        if name.split(".")[-1] in ("b", "bias"):
            parameter.data.zero_()
    return net


def scaled(factor: float) -> dict[str, Any]:
    return {FINAL: lambda x, hook: x * factor}


def test_sums_are_the_losses_and_the_right_words(runs: list[Path]) -> None:
    net = unbiased(runs[0])
    shards = evaluation_shards(runs[0], net._text(), None)
    batches = list(document_batches(shards, net.config.n_ctx, 4, 8))
    loss, right = sums(net, batches, 8, scaled(2.0))
    plain = document_losses(net, shards, [scaled(2.0)], max_documents=8)
    one = int(np.abs(np.log(temperatures())).argmin())
    assert temperatures()[one] == pytest.approx(1, abs=1e-12)
    assert loss[one] == pytest.approx(plain.edited[0], rel=1e-5)
    hits = np.zeros(8)
    with torch.no_grad(), edit(net, {}):
        for index, tokens, targets in batches:
            for row, i in enumerate(index):
                best = net(tokens[row : row + 1])[0].argmax(-1)
                hits[i] = sum(int(a == b) for a, b in zip(best, targets[row], strict=True) if b != NO_TARGET)
    assert right.tolist() == hits.tolist()  # twice the logits: the same words


def test_logits_that_are_too_large_are_given_back_wholly_and_lost_words_are_not(
    runs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    net = unbiased(runs[0])
    shards = evaluation_shards(runs[0], net._text(), None)
    net.unembed.weight.data.mul_(12.0)

    def planted_edits(model: Any, alpha: float) -> dict[str, Any]:
        if alpha == 8:
            return scaled(2.0)
        if alpha == 4:
            return scaled(0.5)
        return {FINAL: lambda x, hook: torch.roll(x, 1, 1)}  # every word is that of the token before

    monkeypatch.setattr("streamscope.interventions.edits.amplification.amplification", planted_edits)
    found = measure_run(net, shards, (4.0, 8.0, 16.0), 12).set_index("quantity")["value"]
    assert found["sharp.8"] > calibration.LEAST and found["kept.8"] == 1
    assert found["recovered.8"] == pytest.approx(1, abs=0.05) and found["hotter.8"] == pytest.approx(2, rel=0.08)
    assert found["kept.16"] < 1
    assert found["hotter.4"] == pytest.approx(0.5, rel=0.08) and not found["recovered.4"] > 0.05  # cooler mends nothing


def test_the_temperature_is_chosen_on_the_other_half() -> None:
    n = len(temperatures())
    loss, tokens = np.full((n, 4), 9.0), np.full(4, 3.0)
    loss[5, [0, 2]], loss[7, [1, 3]] = 1.0, 2.0  # of even documents the best is 5, of odd ones 7
    loss[7, [0, 2]], loss[5, [1, 3]] = 4.0, 6.0
    mean, chosen = tempered(loss, tokens)
    assert mean == pytest.approx((2 * 4.0 + 2 * 6.0) / 12) and chosen == [7, 5]
    mean, chosen = tempered(loss, tokens, (6, 8))  # nothing that is cooler: the odd documents are left with 9
    assert mean == pytest.approx((2 * 4.0 + 2 * 9.0) / 12) and chosen == [7, 8]


def test_a_temperature_at_an_end_of_the_range_gives_no_number(runs: list[Path], monkeypatch: Any) -> None:
    """Logits eight times too large need a temperature of about 8, and 4 is the highest that is tried."""
    net = unbiased(runs[0])
    shards = evaluation_shards(runs[0], net._text(), None)
    net.unembed.weight.data.mul_(12.0)
    monkeypatch.setattr("streamscope.interventions.edits.amplification.amplification", lambda model, a: scaled(a))
    found = measure_run(net, shards, (2.0, 8.0), 12).set_index("quantity")
    assert found.loc[["hotter.2", "recovered.2"], "value"].notna().all()
    assert found.loc[["hotter.8", "recovered.8"], "value"].isna().all() and found.loc["sharp.8", "value"] > 0
    assert "the highest of those tried, 4" in found.loc["recovered.8", "undefined"]


def test_the_claims_of_planted_runs() -> None:
    values = {
        ("a", "recovered.16"): [0.80, 0.81, 0.79], ("b", "recovered.16"): [0.01, 0.0, 0.02],
        ("a", "kept.16"): [0.97, 0.975, 0.98], ("b", "kept.16"): [0.7, 0.72, 0.71],
        ("b", "recovered.8"): [0.9, 0.91, 0.92],
    }  # fmt: skip
    found = claims(planted(values))["claims"].set_index(["claim", "quantity"])["direction"]
    assert len(found) == 4
    assert found["a above 0.5", "recovered.16"] == "holds" and found["b above 0.5", "recovered.16"] == "opposite"
    assert found["a above 0.9", "kept.16"] == "holds" and found["b above 0.9", "kept.16"] == "opposite"


def test_the_command_writes_a_page_and_judges_again(runs: list[Path], tmp_path: Path) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    main([*map(str, runs), "--alpha", "4", "--documents", "6", "--out", str(first)])
    main(["--tables", str(first), "--out", str(again)])
    for name in ("runs", "arms", "claims", "factors"):
        pd.testing.assert_frame_equal(*(pd.read_parquet(folder / f"{name}.parquet") for folder in (first, again)))
    assert short_page(again) and (again / "trained.json").is_file()
    rows = pd.read_parquet(first / "runs.parquet")
    assert set(rows["quantity"]) == {f"{name}.4" for name in calibration.UNIT} and set(rows["seed"]) == {0, 1}
    with pytest.raises(InputError, match="alpha"):
        main([*map(str, runs), "--alpha", "1"])
