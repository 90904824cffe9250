"""The benchmark of extraction runs, and its straightforward side computes the same features."""

import numpy as np
import pytest
import torch

from streamscope.benchmarks.features import main
from streamscope.benchmarks.features.measure import straightforward
from streamscope.features.compute.reader import FeatureReader
from streamscope.features.extract import Extract
from streamscope.models import build
from tests.tiny import randomise

SMALL = ["--vocab", "300", "--layers", "2", "--width", "48", "--length", "40", "--documents", "2"]


def test_prints_a_row_per_vocabulary(capsys: pytest.CaptureFixture) -> None:
    main([*SMALL, "--rounds", "1"])
    (row,) = [line.split("│")[1:-1] for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert row[0].strip() == "300" and int(row[1]) == 80
    assert float(row[5].split()[0]) > 0 and float(row[7].split()[0]) > 0 and float(row[-1]) < 1e-4


@pytest.mark.parametrize("tier", ["structural", "structural+position", "topk"])
@pytest.mark.parametrize("preset", ["pls", "std-t"])
def test_the_straightforward_features_are_the_features(preset: str, tier: str) -> None:
    model = randomise(build(preset, "tiny", init_std=0.3).eval(), std=0.2)
    docs = torch.randint(256, (2, 20), generator=torch.Generator().manual_seed(0)).tolist()
    options = Extract(tier=tier)  # type: ignore[arg-type]
    with torch.no_grad():
        expected = straightforward(model, docs, options)
    np.testing.assert_allclose(FeatureReader(model, options).read(docs).X, expected, rtol=1e-4, atol=1e-4)
