"""Contraction of streams: writes and mixing of known outcome, a naive loop, and models without mixing."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from streamscope.cli.errors import InputError
from streamscope.instruments.open_data import open_data
from streamscope.models import build, preset
from streamscope.models.hooks import capture
from streamscope.models.mixing import connections
from streamscope.papers.krom.tables import set_bias
from streamscope.probes.contraction import Contraction
from streamscope.probes.contraction.measure import EQUAL, UNBOUND, by_module
from tests.interventions.test_mixing import DATA, model_of


def table(model: Any) -> pd.DataFrame:
    return Contraction().measure(model, DATA).table("modules").frame


@pytest.mark.parametrize("s", [0.0, 0.1, 0.25, 0.5])
def test_what_is_known_on_paper(s: float) -> None:
    """A difference between two halves of the streams, then one swap with probability s: 1 − 2s of it is left."""
    torch.manual_seed(0)
    d, swap = 5, torch.tensor([[1 - s, s], [s, 1 - s]], dtype=torch.float64)
    H = torch.kron(swap, torch.eye(2, dtype=torch.float64)).expand(1, 1, 4, 4)
    start, u = torch.randn(d, dtype=torch.float64).expand(1, 1, 4, d), torch.randn(d, dtype=torch.float64)
    write = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64)[:, None] * u
    streams = {"pre": start, "mid": start + write, "post": H @ (start + write)}
    found = {f"blocks.0.hook_streams_{place}": X for place, X in streams.items()}
    found |= {"blocks.0.attn_hc.hook_res": torch.full_like(H, 0.25), "blocks.0.mlp_hc.hook_res": H}
    first, second = by_module(found, ["blocks.0.attn_hc", "blocks.0.mlp_hc"])
    assert first["predicted"].item() == 0.0, "the first module mixes equal streams"
    assert first["apart"].item() == pytest.approx(first["alone"].item()) == pytest.approx(2 * u.norm().item())
    assert second["apart"].item() == pytest.approx((1 - 2 * s) * second["alone"].item(), abs=1e-12)
    assert second["predicted"].item() == pytest.approx(0.0, abs=1e-12), "what differs within the halves is kept whole"
    x, k = start[0, 0, 0], (1 - 2 * s) * u
    assert second["spread"].item() == pytest.approx((k.norm() / (x.square().sum() + k.square().sum()).sqrt()).item())
    values = np.linalg.svd(np.stack([(x + k).numpy()] * 2 + [(x - k).numpy()] * 2))[1] ** 2
    p = values[values > 1e-20] / values.sum()
    assert second["rank"].item() == pytest.approx(np.exp(-(p * np.log(p)).sum()))


def test_no_mixing_and_mixing_at_once() -> None:
    """With H_res = I nothing is contracted; with even mixing only the last write differs, and Π σ₂ = 0."""
    model = model_of()
    set_bias(model, -torch.inf)
    alone = table(model)
    assert alone[["contracted", "predicted"]].to_numpy() == pytest.approx(0.0, abs=1e-6)
    assert (alone["spread"] > 0).all() and alone["rank"].between(1.0, 4.0).all()
    set_bias(model, 0.0)
    even = table(model)
    assert even["predicted"].to_numpy()[1:] == pytest.approx(1.0, abs=1e-6)
    assert (even["contracted"].to_numpy()[1:] > 0.05).all() and even["rank"].between(1.0, 2.0).all()
    assert (even["spread"].to_numpy()[1:] < alone["spread"].to_numpy()[1:]).all()


def test_the_numbers_beside_a_naive_loop() -> None:
    """Position by position, with every write taken from the streams before and after it."""
    model = model_of()
    torch.manual_seed(1)
    with torch.no_grad():
        for one in connections(model).values():
            one.b["res"].copy_(torch.randn_like(one.b["res"]))
            one.alpha["res"].fill_(0.7)
            one.W["res"].normal_(0.0, 0.5)
    names, n = list(connections(model)), 0
    spread, rank, apart, alone, gone = (np.zeros(len(names)) for _ in range(5))
    for row in open_data(DATA, model).rows():
        read = [f"blocks.{i}.hook_streams_{p}" for i in range(model.config.n_layers) for p in ("pre", "mid", "post")]
        with torch.no_grad(), capture(model, [*read, *(f"{name}.hook_res" for name in names)]) as found:
            model(torch.tensor([row[: model.config.n_ctx]]))
        X = {name: value[0].double().numpy() for name, value in found.items()}
        for t in range(min(len(row) - 1, model.config.n_ctx)):
            Y, kept, n = 0.0, 1.0, n + 1
            for m, name in enumerate(names):
                layer = name.rsplit(".", 1)[0]
                before = X[f"{layer}.hook_streams_{'mid' if m % 2 else 'pre'}"][t]
                after = X[f"{layer}.hook_streams_{'post' if m % 2 else 'mid'}"][t]
                H = X[f"{name}.hook_res"][t]
                Y = Y + after - H @ before
                kept *= np.linalg.svd(H)[1][1] if m else 1.0
                p = np.linalg.svd(after)[1] ** 2
                p = p[p > 0] / p.sum()
                d = np.linalg.norm(after - after.mean(0))
                spread[m] += d / np.linalg.norm(after)
                rank[m] += np.exp(-(p * np.log(p)).sum())
                apart[m] += d
                alone[m] += np.linalg.norm(Y - Y.mean(0))
                gone[m] += 1 - kept
    got = table(model)
    expected = {"spread": spread / n, "rank": rank / n, "contracted": 1 - apart / alone, "predicted": gone / n}
    for column, values in expected.items():
        assert got[column].to_numpy() == pytest.approx(values, rel=1e-5, abs=1e-6), column
    assert got["after"].tolist()[:3] == ["L0.attn", "L0.mlp", "L1.attn"] and got["acts"].tolist()[:2] == ["no", "yes"]


def test_what_has_no_bound_or_no_streams() -> None:
    """σ₂ of hyper-connections that are not doubly stochastic says nothing; equal streams have no share; others none."""
    model = model_of("hc")
    equal = Contraction().measure(model, DATA).table("modules")
    assert (equal.frame["spread"] == 0).all() and equal.missing[0, "contracted"] == EQUAL
    torch.manual_seed(2)
    with torch.no_grad():
        for one in connections(model).values():
            one.b["post"].normal_()
    found = Contraction().measure(model, DATA).table("modules")
    assert found.frame["predicted"].isna().all() and found.missing[0, "predicted"] == UNBOUND
    assert found.frame["contracted"].to_numpy() == pytest.approx(0.0, abs=1e-6), "H_res is I until it is trained"
    with pytest.raises(InputError, match="parallel streams"):
        Contraction().check(build(preset("llama", "tiny")))
