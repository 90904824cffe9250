"""Which optimiser trains which parameter, at which rate, and that their state survives a checkpoint."""

import math
from dataclasses import asdict
from functools import reduce
from typing import Any

import numpy as np
import pytest
import torch

from streamscope.cli.errors import InputError
from streamscope.models import build
from streamscope.models.config.serialization import from_dict
from streamscope.models.training import optim
from streamscope.models.training.config import Training, with_recipe
from streamscope.models.training.optim import AdamW, Muon, make_optimizer, roles, set_lr, store_parameters
from tests.tiny import some

TOKENS = torch.randint(256, (2, 13), generator=torch.Generator().manual_seed(0))


def training(preset: str = "kromcanon", **changes: Any) -> Training:
    return with_recipe(Training(**changes), preset, "tiny")


def test_roles() -> None:
    """Every parameter has one: hyper-connections whole, tables apart, matrices with two axes, Canon's kernels."""
    model = build("kromcanon", "tiny", **{"attention.v": "ind", "readout.tied": False})
    role = roles(model)
    found = {kind: {name for name in role if role[name] == kind} for kind in role.values()}
    assert len(role) == len(list(model.parameters()))
    assert found["hyper"] == {n for n, _ in model.named_parameters() if "_hc." in n}
    assert {"embed.weight", "pos_embed.weight", "unembed.weight", "blocks.0.attn.v.weight"} <= found["rest"]
    assert {"blocks.1.attn.q.weight", "blocks.1.mlp.up.weight"} <= found["matrix"]
    assert found["kernel"] == {f"blocks.{layer}.canon_{place}.weight" for layer in (0, 1) for place in "abcd"}
    assert "blocks.0.ln1.weight" in found["rest"]


COMMON = dict(weight_decay=0.1, beta1=0.9, accumulate=1, rounding="nearest")
ADAMW = dict(
    optimizer="adamw", beta2=0.95, bias_correction=True, decay_vectors=False, muon_decay_mode="decoupled",
    muon_kernels=False,
)  # fmt: skip
MLX = dict(
    optimizer="muon", beta2=0.999, bias_correction=False, decay_vectors=True, muon_decay_mode="coupled",
    muon_kernels=True,
)  # fmt: skip


@pytest.mark.parametrize(("preset", "scale", "expected"), [
    ("lfa", "paper", dict(ADAMW, lr=3e-4, warmup=1000, batch_size=32, epochs=2.0, lr_floor=0.1, clip=1.0)),
    ("dst-kron", "paper", dict(ADAMW, lr=5e-4, warmup=1000, batch_size=32, epochs=3.0, lr_floor=0.1, clip=1.0)),
    ("pls", "paper", dict(ADAMW, lr=3e-4, warmup=1000, batch_size=64, epochs=2.0, lr_floor=0.1, clip=1.0)),
    ("llama", "paper", dict(ADAMW, lr=8e-4, warmup=1000, batch_size=4, steps=20_000, lr_floor=0.0, clip=0.0)),
    ("hdpl", "paper", dict(ADAMW, param_dtype="bf16", steps=20_000, epochs=None, lr_floor=0.0, clip=0.0)),
    ("gpt2", "paper", dict(MLX, lr=6e-4, warmup=200, batch_size=16, steps=2000, lr_floor=0.1, clip=1.0)),
    ("kromcanon", "paper", dict(MLX, param_dtype="bf16", lr=6e-4, muon_lr=0.02, muon_momentum=0.95, muon_decay=0.01,
                                hc_lr=5e-3, hc_beta1=0.8, hc_beta2=0.95, hc_decay=0.2)),
    ("lfa", "zoo", dict(ADAMW, param_dtype="fp32", lr=1e-3, warmup=100, batch_size=16, epochs=4.0, clip=1.0)),
    ("hdpl", "small", dict(ADAMW, param_dtype="fp32", lr=1e-3, epochs=4.0, steps=None, lr_floor=0.0, clip=1.0)),
    ("kromhc", "zoo", dict(MLX, param_dtype="fp32", lr=1e-3, epochs=4.0, steps=None, lr_floor=0.1, clip=1.0)),
])  # fmt: skip
def test_recipes(preset: str, scale: str, expected: dict[str, Any]) -> None:
    """SPEC §1.2, §5, §8: formulas of the papers' code at every scale, rates, lengths and storage at scale paper."""
    t = asdict(with_recipe(Training(), preset, scale))
    assert t | COMMON | expected == t


def test_what_is_given_stands_and_epochs_replace_steps() -> None:
    assert with_recipe(Training(epochs=1.0), "gpt2", "paper").steps is None
    given: dict[str, Any] = dict(optimizer="adamw", bias_correction=True, decay_vectors=False, clip=0.0, lr_floor=0.5,
                                 param_dtype="fp32", muon_decay_mode="decoupled")  # fmt: skip
    t = asdict(with_recipe(Training(**given), "canon", "paper"))
    assert t | given == t and (t["beta2"], t["lr"]) == (0.999, 6e-4)


def test_options_of_an_older_run_mean_what_they_meant() -> None:
    """Their configuration knows nothing of the newer options, which are None then: torch's formulas, fp32."""
    new = {"bias_correction", "decay_vectors", "muon_decay_mode", "muon_dtype", "muon_kernels", "param_dtype"}
    new |= {"rounding"}
    old = {k: v for k, v in asdict(with_recipe(Training(), "kromcanon", "tiny")).items() if k not in new}
    t, model = from_dict(Training, old), build("kromcanon", "tiny")
    store_parameters(model, t)
    optimizer = make_optimizer(model, t)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert type(optimizer[0]) is torch.optim.AdamW
    assert [g["weight_decay"] for g in optimizer.param_groups] == [0.1, 0.0, 0.2, 0.01]
    assert not optimizer.param_groups[-1]["coupled"]
    kernels = {id(p) for n, p in model.named_parameters() if "canon_" in n}
    assert kernels <= {id(p) for p in optimizer.param_groups[-1]["params"]}


def adamw(w: Any, grads: list[Any], *, lr: float, b1: float, b2: float, wd: float, corrected: bool) -> Any:
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, g in enumerate(grads, 1):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        m_hat, v_hat = (m / (1 - b1**t), v / (1 - b2**t)) if corrected else (m, v)
        w = w * (1 - lr * wd) - lr * m_hat / (np.sqrt(v_hat) + 1e-8)
    return w


def newton_schulz(x: Any) -> Any:
    x = x / np.linalg.norm(x)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x


def muon(w: Any, grads: list[Any], *, lr: float, mu: float, wd: float, coupled: bool) -> Any:
    m = np.zeros_like(w)
    for g in grads:
        g = g + wd * w if coupled else g
        m = mu * m + (1 - mu) * g
        u = (1 - mu) * g + mu * m
        u = newton_schulz(u.T).T if w.shape[0] > w.shape[1] else newton_schulz(u)
        w = w - (0.0 if coupled else lr * wd * w) - lr * math.sqrt(max(1.0, w.shape[0] / w.shape[1])) * u
    return w


OTHER: dict[str, Any] = dict(
    lr=3e-3, beta1=0.7, beta2=0.9, weight_decay=0.3, muon_lr=0.05, muon_momentum=0.8, muon_decay=0.2,
    hc_lr=2e-2, hc_beta1=0.6, hc_beta2=0.85, hc_decay=0.4, muon_dtype="fp32",
)  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "adamw": ("lfa", {}),
    "adamw, others": ("pls", OTHER),
    "no correction": ("lfa", OTHER | {"bias_correction": False}),
    "vectors decay": ("hdpl", OTHER | {"decay_vectors": True}),
    "mlx": ("kromcanon", {"muon_dtype": "fp32"}),
    "mlx, others": ("kromcanon", OTHER),
    "torch's muon": ("kromcanon", OTHER | {"muon_decay_mode": "decoupled", "bias_correction": True}),
    "kernels by adamw": ("kromcanon", OTHER | {"muon_kernels": False}),
    "kernels of adamw alone": ("canon", OTHER | {"optimizer": "adamw"}),
    "sgd": ("kromhc", OTHER | {"hc_optimizer": "sgd"}),
    "muon for all families": ("dst-ind", OTHER | {"optimizer": "muon"}),
}


@pytest.mark.parametrize("case", CASES)
def test_three_steps_by_formula(case: str) -> None:
    """Every parameter of a model, by its role, with gradients so small that ε counts, and a rate that changes."""
    name, changes = CASES[case]
    t = training(name, **changes)
    model = build(name, "tiny")
    optimizer = make_optimizer(model, t)
    start = {n: p.detach().double().numpy().copy() for n, p in model.named_parameters()}
    role = roles(model)
    rng = np.random.default_rng(0)
    grads: dict[str, list[Any]] = {n: [] for n in start}
    set_lr(optimizer, 0.5)
    for _ in range(3):
        for n, p in model.named_parameters():
            p.grad = torch.tensor(rng.normal(size=p.shape) * 1e-7, dtype=torch.float32)
            grads[n].append(p.grad.double().numpy())
        optimizer.step()
    corrected = t.bias_correction is True
    for n, p in model.named_parameters():
        if role[n] == "hyper":
            lr, wd = 0.5 * t.hc_lr, t.hc_decay
            expected = adamw(start[n], grads[n], lr=lr, b1=t.hc_beta1, b2=t.hc_beta2, wd=wd, corrected=corrected)
            if t.hc_optimizer == "sgd":
                expected = reduce(lambda w, g: w - lr * (g + wd * w), grads[n], start[n])
        elif t.optimizer == "muon" and (role[n] == "matrix" or (role[n] == "kernel" and t.muon_kernels)):
            options = dict(lr=0.5 * t.muon_lr, mu=t.muon_momentum, wd=t.muon_decay)
            expected = muon(start[n], grads[n], coupled=t.muon_decay_mode == "coupled", **options)
        else:
            wd = t.weight_decay if p.ndim >= 2 or t.decay_vectors else 0.0
            assert t.lr is not None and t.beta2 is not None
            expected = adamw(start[n], grads[n], lr=0.5 * t.lr, b1=t.beta1, b2=t.beta2, wd=wd, corrected=corrected)
        move, truth = p.detach().double().numpy() - start[n], expected - start[n]
        assert np.abs(move - truth).max() < 2e-3 * np.abs(truth).max() + 3e-7, n


def test_muon_is_torchs_for_each_matrix_of_a_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """In fp32, where torch's cast to bf16 is taken away, to 1e-6; in bf16 to what bf16 can tell."""
    shapes = [(6, 6), (6, 6), (24, 6), (6, 24), (24, 6), (6, 6)]
    for dtype, close in ((torch.bfloat16, 0.03 * 0.02), (torch.float32, 1e-6)):
        if dtype == torch.float32:
            monkeypatch.setattr(torch.Tensor, "bfloat16", lambda self: self.clone())
        generator = torch.Generator().manual_seed(0)
        ours = [torch.nn.Parameter(torch.randn(s, generator=generator)) for s in shapes]
        theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
        one = Muon(ours, lr=0.02, momentum=0.9, weight_decay=0.3, dtype=dtype)
        two = torch.optim.Muon(theirs, lr=0.02, momentum=0.9, weight_decay=0.3)
        for _ in range(4):
            for p, q in zip(ours, theirs, strict=True):
                p.grad = torch.randn(p.shape, generator=generator)
                q.grad = p.grad.clone()
            one.step()
            two.step()
            for p, q in zip(ours, theirs, strict=True):
                torch.testing.assert_close(p, q, rtol=0, atol=close)
                q.data.copy_(p.data)  # so that bf16's differences do not add up


@pytest.mark.parametrize("shape", [(3, 96, 384), (3, 384, 96), (2, 12, 24), (3, 96, 96), (2, 12, 20)])
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5])
def test_orthogonalising_is_the_quintic_of_the_singular_values(shape: tuple[int, int, int], steps: int) -> None:
    """Also where several steps are taken in the Gram matrix, and singular values span four decades."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    u, _, v = torch.linalg.svd(x, full_matrices=False)
    s = torch.logspace(0, -4, u.shape[-1], dtype=torch.float64)
    x, s = (u * s) @ v, s / s.norm()
    for _ in range(steps):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    expected = (u * s) @ v
    torch.testing.assert_close(optim.orthogonalise(x, steps), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(optim.orthogonalise(x.float(), steps).double(), expected, rtol=0, atol=1e-5)


def test_bf16_storage_rounds_once_a_step() -> None:
    """Computed in fp32 from what is stored, moments too; hyper-connections in the dtype of their own."""
    model = build("kromcanon", "tiny")
    t = training(param_dtype="bf16", muon_dtype="fp32")
    store_parameters(model, t)
    optimizer = make_optimizer(model, t)
    names = roles(model)
    start = {n: p.detach().double().numpy() for n, p in model.named_parameters()}
    generator = torch.Generator().manual_seed(0)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)
    optimizer.step()
    for n, p in model.named_parameters():
        assert p.dtype == (torch.float32 if names[n] == "hyper" else torch.bfloat16)
        if names[n] == "hyper":
            continue
        g, w = p.grad.double().numpy(), start[n]
        if names[n] == "rest":
            expected = adamw(w, [g], lr=1e-3, b1=0.9, b2=0.999, wd=0.1, corrected=False)
        else:
            expected = muon(w, [g], lr=0.02, mu=0.95, wd=0.01, coupled=True)
        exact = torch.tensor(expected)
        unit = 2.0 ** (torch.floor(torch.log2(exact.abs())) - 7)  # between neighbours in bf16
        assert ((p.detach().double() - exact).abs() <= 0.501 * unit + 1e-6).all(), n
    moments = [v for m in optimizer.state_dict()["state"].values() for k, v in m.items() if k != "step"]
    assert {v.dtype for v in moments} == {torch.float32, torch.bfloat16}


def test_stochastic_rounding_is_right_on_average() -> None:
    n = 20_000
    for x, low, high, share in [(1 + 0.3 / 128, 1.0, 1 + 1 / 128, 0.3), (-8.01, -8.0, -8.0625, 0.16), (0.5, 0, 0.5, 1)]:
        rounded = optim.round_stochastically(torch.full((n,), x), torch.Generator().manual_seed(0)).float()
        assert set(rounded.tolist()) <= {low, high}
        assert abs(float((rounded == high).float().mean()) - share) < 4 * 0.5 / n**0.5


def test_stochastic_rounding_thaws_a_bias_of_minus_eight() -> None:
    """SPEC §1.10 d: a step of lr 0.005, decay included, is less than half the distance to the next bf16 number, so
    rounding to the nearest loses all of them. Stochastically it moves as far as fp32, on average."""
    ends = {}
    for stored, rounding in (("fp32", "nearest"), ("bf16", "nearest"), ("bf16", "stochastic")):
        model = build("kromhc", "tiny", **{"residual.hc_dtype": stored})
        optimizer = make_optimizer(model, training("kromhc", rounding=rounding))
        biases = [block.mlp_hc.b["res"] for block in model.blocks] + [block.attn_hc.b["res"] for block in model.blocks]
        for _ in range(200):
            for b in biases:
                b.grad = torch.tensor([[0.0, -1e-3]] * 2, dtype=b.dtype)
            optimizer.step()
        ends[stored, rounding] = float(torch.stack([b.detach()[:, 1].float() for b in biases]).mean())
    assert ends["bf16", "nearest"] == -8.0
    assert ends["fp32", "nearest"] > -6
    assert ends["bf16", "stochastic"] == pytest.approx(ends["fp32", "nearest"], abs=0.2)


def test_numbers_of_stochastic_rounding_depend_on_seed_and_step_alone() -> None:
    def moved(seed: int) -> Any:
        torch.rand(seed + 3)  # the global generator is elsewhere
        p, q = (torch.nn.Parameter(torch.full((64, 64), 0.3, dtype=torch.bfloat16)) for _ in range(2))
        p.grad, q.grad = torch.ones_like(p), torch.ones_like(q)
        for optimizer in (Muon([p], lr=1e-3, momentum=0.9, weight_decay=0.0, stochastic_seed=seed),
                          AdamW([q], lr=1e-5, betas=(0.9, 0.99), stochastic_seed=seed)):  # fmt: skip
            optimizer.step()
        return p.detach(), q.detach()

    a, b, c = moved(0), moved(0), moved(1)
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert not any(torch.equal(x, y) for x, y in zip(a, c, strict=True))


def test_rounding_that_would_round_nothing_raises() -> None:
    with pytest.raises(InputError, match="needs bf16 storage: add --param-dtype bf16"):
        make_optimizer(build("lfa", "tiny"), training("lfa", rounding="stochastic"))
    model = build("kromhc", "tiny", **{"residual.hc_dtype": "bf16"})
    with pytest.raises(InputError, match="does not support --hc-optimizer sgd: use adamw, or --rounding nearest"):
        make_optimizer(model, training("kromhc", rounding="stochastic", hc_optimizer="sgd"))


SGD, DECOUPLED = {"hc_optimizer": "sgd"}, {"bias_correction": True, "muon_decay_mode": "decoupled"}
BF16 = {"param_dtype": "bf16"}


@pytest.mark.parametrize("changes", [{}, SGD, DECOUPLED, BF16, {**BF16, "rounding": "stochastic"}], ids=str)
@pytest.mark.parametrize("stored", ["fp32", "bf16"])
def test_state_survives_a_round_trip(stored: str, changes: dict[str, Any]) -> None:
    """Two steps, saved as a checkpoint saves it, then one more: bit-equal to three steps."""
    ends = []
    for cut in (False, True):
        model, t = build("kromcanon", "tiny", **{"residual.hc_dtype": stored}), training(**changes)
        store_parameters(model, t)
        optimizer = make_optimizer(model, t)
        for i in range(3):
            if cut and i == 2:
                moments = optimizer.state_dict()["state"]
                optimizer = make_optimizer(model, t)
                optimizer.load_state({i: {k: torch.as_tensor(v).clone() for k, v in state.items()}
                                      for i, state in moments.items()})  # fmt: skip
            model.loss(TOKENS[:, :-1], TOKENS[:, 1:])[0].backward()
            optimizer.step()
            optimizer.zero_grad()
        ends.append(model.state_dict())
    torch.testing.assert_close(*ends, rtol=0, atol=0)


@pytest.mark.parametrize("preset", some(["kromcanon", "hdpl", "pls"], ["kromcanon", "hdpl"]))
def test_a_model_stored_in_bf16_learns(preset: str) -> None:
    """As at scale paper: kromcanon by Muon, hdpl with sampled latents."""
    model, t = build(preset, "tiny", dropout=0.0).train(), training(preset, lr=3e-3, **BF16)
    store_parameters(model, t)
    optimizer, losses = make_optimizer(model, t), list[float]()
    torch.manual_seed(0)
    for _ in range(30):
        loss, parts = model.loss(TOKENS[:, :-1], TOKENS[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(parts["ce"].detach()))
    assert losses[-1] < 0.9 * losses[0]
