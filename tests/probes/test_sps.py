"""SPS on heads whose attention is known, raw and gated, against loops."""

from statistics import fmean

import numpy as np
import pytest
import torch

from streamscope import Result
from streamscope.instruments.prompts import load_suite
from streamscope.instruments.prompts.alignment import align, given_prompts
from streamscope.models.config import Gate
from streamscope.models.hooks import capture
from streamscope.probes import Sps
from streamscope.probes.probe import measure
from streamscope.probes.roles import moved_d
from tests.probes import planted


@pytest.fixture(scope="module")
def result() -> Result:
    net = planted.model()
    return Sps().measure(net, given_prompts(planted.suite(), net))


def test_planted_heads(result: Result) -> None:
    """Every pair has the same mean, the recency head +1 and −1: no interval, and d 0 from the prompts."""
    table = result.table("heads")
    heads, whole = table.frame, result.table().frame
    expected = [planted.SPS, [0.5, 1, 0.5, 0.8, 1 / 12], [0.5, 0, 0.5, 0.2, 1 / 12], [0] * 5]
    np.testing.assert_allclose(heads[["sps", "semantic", "distractor", "even"]].T, expected, atol=2e-6)
    assert whole["sps"].tolist() == [pytest.approx(fmean(planted.SPS), abs=1e-6)]
    assert result.table("layers").frame["sps"].tolist() == whole["sps"].tolist()
    assert (whole["n"][0], whole["clusters"][0]) == (24, 12)
    assert heads[["sps_low", "sps_p", "sps_p_holm"]].isna().all(axis=None)
    assert {(i, name) for i in range(5) for name in ("sps_low", "sps_p")} <= set(table.missing)
    assert heads["d"][0] == pytest.approx(0, abs=1e-6) and np.isnan(heads["d"][4])
    rounding, moved = moved_d(0.3 + np.outer([5e-7, 5e-6], [1, 0, 1]), np.full((2, 3), 0.3))
    assert np.isnan(rounding) and moved == pytest.approx(2**1.5 / 3**0.5, rel=1e-3)


def test_gated_attention() -> None:
    """Ã = ḡ α with ḡ the mean of the gate over d_h: biases of logit(0.2) and logit(0.6) make 0.4."""
    net = planted.model(Gate(shape="vector", bias=True))
    with torch.no_grad():
        net.blocks[0].attn.gate.weight.zero_()
        net.blocks[0].attn.gate.bias[:, :4] = float(np.log(0.2 / 0.8))
        net.blocks[0].attn.gate.bias[:, 4:] = float(np.log(0.6 / 0.4))
    for attention, gate in (("gated", 0.4), ("raw", 1.0)):
        heads = Sps(attention=attention).measure(net, given_prompts(planted.suite(), net)).table("heads").frame
        np.testing.assert_allclose(heads["sps"], gate * np.array(planted.SPS), atol=2e-6)


@pytest.mark.parametrize("attention", ["raw", "gated"])
def test_equals_loops_on_a_random_model(attention: str) -> None:
    net, suite = planted.random_model("c2", "competing"), load_suite("competing")
    aligned = align(suite, net.tokenizer)
    cells, even = dict[tuple[int, int], list[float]](), list[float]()
    data = aligned.tokens, aligned.positions, planted.naive_rows(net, aligned), aligned.queries
    for ids, at, rows, q in zip(*data, strict=True):
        with torch.no_grad(), capture(net, "blocks.*.attn.hook_gate") as gates:
            net(torch.tensor([ids]))
        even.append((len(at["target"]) - len(at["distractor"])) / (q + 1))
        for (layer, head), row in rows.items():
            g = fmean(gates[f"blocks.{layer}.attn.hook_gate"][0, q, head].tolist()) if attention == "gated" else 1.0
            difference = planted.mass(row, at["target"]) - planted.mass(row, at["distractor"])
            cells.setdefault((layer, head), []).append(g * difference)
    table = measure(net, Sps(attention=attention), suite)
    for (layer, head), values in cells.items():
        one = table[(table["layer"] == layer) & (table["index"] == head)]
        np.testing.assert_allclose(one[["sps", "even"]].T, [values, even], atol=1e-6)
    result = Sps(attention=attention).measure(net, given_prompts(suite, net))
    whole, heads = result.table().frame, result.table("heads").frame
    assert whole["sps"][0] == pytest.approx(fmean(fmean(v) for v in cells.values()), abs=1e-6)
    assert whole["even"][0] == pytest.approx(fmean(even))
    assert heads["sps"].tolist() == pytest.approx([fmean(v) for v in cells.values()], abs=1e-6)
    assert whole["sps_low"][0] < whole["sps"][0] < whole["sps_high"][0]
    assert heads["sps_p_holm"].ge(heads["sps_p"]).all()
