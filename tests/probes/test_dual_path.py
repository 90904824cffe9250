"""HDPL's two paths: planted projections whose shares and KL are known, a naive loop, and draws that are known."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from streamscope import Documents
from streamscope.instruments.open_data import open_data
from streamscope.models.hooks import capture, edit
from streamscope.models.layers import hdpl
from streamscope.models.readout import IGNORE
from streamscope.probes import DualPath
from streamscope.probes.dual_path.measure import drawing, loss, projections_of
from tests.tiny import model_of

DATA = Documents("stories:1:6", max_documents=6, batch_size=4, stride=0)


def table(model: Any, name: str = "projections", **options: Any) -> pd.DataFrame:
    return DualPath(**options).measure(model, DATA).table(name).frame


def test_paths_whose_shares_are_known() -> None:
    """A path that is zero has share 0, the other 1; μ and σ that are constants give a KL without variance."""
    model, b, c = model_of("hdpl"), 0.3, -1.2
    one, other, third = (projections_of(model)[f"blocks.0.{path}"] for path in ("attn.q", "attn.k", "mlp.up"))
    with torch.no_grad():
        one.detail.zero_()
        other.decoder.weight.zero_()
        third.mu.weight.zero_()
        third.mu.bias.fill_(b)
        third.logvar.weight.zero_()
        third.logvar.bias.fill_(c)
    found = table(model).set_index("place")
    assert found.loc[["L0.q", "L0.k"], ["along", "power"]].to_numpy().tolist() == [[1.0, 1.0], [0.0, 0.0]]
    kl = 0.5 * (b**2 + np.exp(c) - 1 - c)
    assert found.loc["L0.up", "kl"] == pytest.approx(third.rank * kl, rel=1e-5)
    assert found.loc["L0.up", "clamped"] == float(third.rank * kl > np.log(2))
    assert found.loc["L0.up", "active"] == 0 and found.loc["L0.up", "dimensions"] == third.rank
    assert found.loc["L0.q", "active"] > 0
    dims = table(model, "dimensions").query("place == 'L0.up'")
    assert dims["kl"].to_numpy() == pytest.approx(kl, rel=1e-5) and set(dims["active"]) == {"no"}
    with torch.no_grad():
        one.decoder.weight.zero_()
    result = DualPath().measure(model, DATA)
    assert np.isnan(result.table("projections").frame.set_index("place").loc["L0.q", "along"]), "nothing comes of 0 / 0"


def test_the_numbers_beside_a_naive_loop() -> None:
    """Position by position and dimension by dimension, as in HDPL Eq. 1 to 9 and in the definition of active units."""
    model, name = model_of("hdpl"), "blocks.1.attn.v"
    opened = open_data(DATA, model)
    got: dict[str, list[np.ndarray]] = {what: [] for what in ("global", "detail", "mu", "logvar")}
    for row in opened.rows():
        with torch.no_grad(), capture(model, [f"{name}.hook_{what}" for what in got]) as found:
            model(torch.tensor([row[: model.config.n_ctx]]))
        last = min(len(row) - 1, model.config.n_ctx)  # the positions that predict a token
        for what, rows in got.items():
            rows.append(found[f"{name}.hook_{what}"][0, :last].double().numpy())
    g, d, mu, logvar = map(np.concatenate, got.values())
    kl = 0.5 * (mu**2 + np.exp(logvar) - 1 - logvar)
    along = (g * (g + d)).sum() / ((g + d) ** 2).sum()
    power = (g**2).sum() / ((g**2).sum() + (d**2).sum())
    beyond = sum(one.sum() > np.log(2) for one in kl) / len(kl)
    variance = mu.var(axis=0)
    row = table(model).set_index("place").loc["L1.v"]
    expected = [along, power, kl.sum(1).mean(), beyond, float((variance > 0.01).sum())]
    assert row[["along", "power", "kl", "clamped", "active"]].to_numpy(float) == pytest.approx(expected, rel=1e-5)
    whole, each = table(model, "model").iloc[0], table(model)
    for name in ("kl", "along"):
        assert whole[f"mean_{name}"] == pytest.approx(each[name].mean())
    assert (whole["active"], whole["dimensions"]) == (each["active"].sum(), each["dimensions"].sum())
    dims = table(model, "dimensions").query("place == 'L1.v'")
    assert dims["kl"].to_numpy() == pytest.approx(kl.mean(0), rel=1e-4)
    assert dims["variance"].to_numpy() == pytest.approx(variance, rel=1e-4)
    most = float(np.median(variance))
    assert table(model, active=most).set_index("place").loc["L1.v", "active"] == (variance > most).sum()


def test_draws_that_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ε = 1 the loss as in training is that of z = μ + σ; with σ = 0 nothing is lost."""
    model = model_of("hdpl")
    projections, s = projections_of(model), 0.8
    with torch.no_grad():
        for one in projections.values():
            one.logvar.weight.zero_()
            one.logvar.bias.fill_(2 * np.log(s))
    monkeypatch.setattr(hdpl, "noise", torch.ones_like)
    row = table(model, "model").iloc[0]
    total, count = 0.0, 0
    for _, tokens, targets in open_data(DATA, model).batches():
        with torch.no_grad(), edit(model, {"blocks.*.hook_latent": lambda z, hook: z + s}):
            total += float(loss(model, tokens, targets).sum())
        count += int((targets != IGNORE).sum())
    assert row["drawn"] == pytest.approx(total / count, rel=1e-6)
    assert row["delta"] == pytest.approx(row["drawn"] - row["loss"], rel=1e-6) and abs(row["delta"]) > 1e-3
    monkeypatch.undo()
    with torch.no_grad():
        for one in projections.values():
            one.logvar.bias.fill_(-80.0)
    assert table(model, "model").iloc[0]["delta"] == 0.0


def test_every_batch_and_draw_has_latents_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = model_of("hdpl"), list[float]()

    def noise(like: torch.Tensor) -> torch.Tensor:
        epsilon = torch.randn_like(like)
        seen.append(float(epsilon.flatten()[0]))
        return epsilon

    monkeypatch.setattr(hdpl, "noise", noise)
    table(model, "model", draws=3)
    assert len(seen) == len(set(seen)) == len(projections_of(model)) * 2 * 3  # two batches, three draws


def test_draws_leave_nothing_behind() -> None:
    """Neither the model's mode nor the global generator change; the same seed gives the same loss, another another."""
    model, state = model_of("hdpl"), torch.random.get_rng_state()
    first = table(model, "model")
    assert not any(one.training for one in model.modules())
    assert all(one.penalty is None for one in projections_of(model).values())
    assert torch.equal(torch.random.get_rng_state(), state)
    pd.testing.assert_frame_equal(first, table(model, "model"))
    assert table(model, "model", seed=1)["drawn"].item() != first["drawn"].item()
    with pytest.raises(RuntimeError, match="stop"), drawing(projections_of(model)):
        raise RuntimeError("stop")
    assert not any(one.training for one in model.modules())
