"""Which optimiser trains which parameter, at which rate, and that their state survives a checkpoint."""

from typing import Any

import pytest
import torch

from models import build
from models.training.config import Training, with_recipe
from models.training.optim import Optimizers, make_optimizer, roles, set_lr

TOKENS = torch.randint(256, (2, 13), generator=torch.Generator().manual_seed(0))


def training(preset: str = "kromcanon", **changes: Any) -> Training:
    return with_recipe(Training(**changes), preset, "tiny")


def step(model: Any, optimizer: Optimizers, factor: float = 1.0) -> None:
    set_lr(optimizer, factor)
    model.loss(TOKENS[:, :-1], TOKENS[:, 1:])[0].backward()
    optimizer.step()
    optimizer.zero_grad()


def test_roles() -> None:
    """Every parameter has one: hyper-connections whole, tables apart, matrices with two axes (Canon's kernels too)."""
    model = build("kromcanon", "tiny", **{"attention.v": "ind", "readout.tied": False})
    found = {role: {name for name, _ in named} for role, named in roles(model).items()}
    assert sum(map(len, found.values())) == len(set.union(*found.values())) == len(list(model.parameters()))
    assert found["hyper"] == {n for n, _ in model.named_parameters() if "_hc." in n}
    assert {"embed.weight", "pos_embed.weight", "unembed.weight", "blocks.0.attn.v.weight"} <= found["rest"]
    assert {"blocks.1.attn.q.weight", "blocks.1.mlp.up.weight", "blocks.0.canon_d.weight"} <= found["matrix"]
    assert "blocks.0.ln1.weight" in found["rest"]


def test_the_groups_of_krom() -> None:
    """SPEC §1.2: AdamW(6e-4, .9/.999, wd .1), HC AdamW(5e-3, .8/.95, wd .2), Muon(.02, .95, Nesterov, wd .01)."""
    model = build("kromcanon", "tiny")
    decayed, plain, hyper, muon = make_optimizer(model, with_recipe(Training(), "kromcanon", "paper")).param_groups
    assert [g["peak_lr"] for g in (decayed, plain, hyper, muon)] == [6e-4, 6e-4, 5e-3, 0.02]
    assert [g["weight_decay"] for g in (decayed, plain, hyper, muon)] == [0.1, 0.0, 0.2, 0.01]
    assert [g["betas"] for g in (decayed, plain, hyper)] == [(0.9, 0.999), (0.9, 0.999), (0.8, 0.95)]
    assert (muon["momentum"], muon["nesterov"], muon["ns_steps"]) == (0.95, True, 5)
    assert len(decayed["params"]) == 2 and len(hyper["params"]) == 10 * 4
    assert sum(len(g["params"]) for g in (decayed, plain, hyper, muon)) == len(list(model.parameters()))


def test_the_recipe_of_krom() -> None:
    t = with_recipe(Training(), "gpt2", "paper")
    assert (t.optimizer, t.beta2, t.steps, t.batch_size, t.warmup, t.lr_floor, t.clip) == (
        *("muon", 0.999, 2000, 16),
        *(200, 0.1, 1.0),
    )
    assert with_recipe(Training(epochs=1.0), "gpt2", "paper").steps is None, "epochs that were asked for count"
    small = with_recipe(Training(optimizer="adamw"), "canon", "small")
    assert (small.optimizer, small.beta2, small.lr) == ("adamw", 0.999, 1e-3)
    assert with_recipe(Training(), "lfa", "paper").optimizer == "adamw"


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_matrices_take_the_step_of_torchs_optimiser(optimizer: str) -> None:
    """One step of a Muon of its own on the same matrices; with adamw the step of one AdamW for all."""
    ours, alone = build("gpt2", "tiny"), build("gpt2", "tiny")
    t = training("gpt2", optimizer=optimizer)
    step(ours, make_optimizer(ours, t))
    matrices = [p for _, p in roles(alone)["matrix"]]
    reference: torch.optim.Optimizer = torch.optim.AdamW(matrices, lr=1e-3, betas=(0.9, 0.999), weight_decay=0.1)
    if optimizer == "muon":
        reference = torch.optim.Muon(matrices, lr=0.02, momentum=0.95, weight_decay=0.01)
    alone.loss(TOKENS[:, :-1], TOKENS[:, 1:])[0].backward()
    before = [p.clone() for p in matrices]
    reference.step()
    for (name, p), q, old in zip(roles(ours)["matrix"], matrices, before, strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-6, msg=name)
        assert not torch.equal(q, old)


def test_every_group_follows_the_schedule_from_its_own_peak() -> None:
    optimizer = make_optimizer(build("kromcanon", "tiny"), training(hc_lr=1e-2, muon_lr=0.1))
    assert set_lr(optimizer, 0.5) == 0.5e-3
    assert [g["lr"] for g in optimizer.param_groups] == [0.5e-3, 0.5e-3, 0.5e-2, 0.05]


@pytest.mark.parametrize("stored", ["fp32", "bf16"])
@pytest.mark.parametrize("hc_optimizer", ["adamw", "sgd"])
def test_state_survives_a_round_trip(hc_optimizer: str, stored: str) -> None:
    """Two steps, saved as a checkpoint saves it, then one more: bit-equal to three steps."""
    whole, cut = (build("kromcanon", "tiny", **{"residual.hc_dtype": stored}) for _ in range(2))
    t = training(hc_optimizer=hc_optimizer)
    one, two = make_optimizer(whole, t), make_optimizer(cut, t)
    for _ in range(2):
        step(whole, one)
        step(cut, two)
    saved = {
        int(i): {k: torch.as_tensor(v).clone() for k, v in moments.items()}
        for i, moments in two.state_dict()["state"].items()
    }
    again = make_optimizer(cut, t)
    again.load_state(saved)
    step(whole, one)
    step(cut, again)
    for (name, p), q in zip(whole.named_parameters(), cut.parameters(), strict=True):
        assert torch.equal(p, q), name


def test_sgd_moves_by_rate_times_gradient_and_decay() -> None:
    model = build("kromhc", "tiny")
    optimizer = make_optimizer(model, training("kromhc", hc_optimizer="sgd", hc_lr=0.5, hc_decay=0.1))
    b = model.blocks[1].attn_hc.b["pre"]
    model.loss(TOKENS[:, :-1], TOKENS[:, 1:])[0].backward()
    expected = b.detach() - 0.5 * (b.grad + 0.1 * b.detach())
    optimizer.step()
    torch.testing.assert_close(b.detach(), expected)


@pytest.mark.parametrize("stored", ["fp32", "bf16"])
def test_a_bias_of_minus_eight_stored_in_bf16_never_moves(stored: str) -> None:
    """SPEC §1.10 d: a step of lr 0.005, decay included, is less than half the distance to the next bf16 number."""
    model = build("kromhc", "tiny", **{"residual.hc_dtype": stored})
    optimizer, b = make_optimizer(model, training("kromhc")), model.blocks[0].mlp_hc.b["res"]
    for _ in range(200):
        b.grad = torch.tensor([[0.0, -1e-3]] * 2, dtype=b.dtype)  # a constant pull to mix
        optimizer.step()
    moved = (b.detach()[:, 1].float() + 8.0).tolist()
    assert moved == [0.0, 0.0] if stored == "bf16" else min(moved) > 1.0
