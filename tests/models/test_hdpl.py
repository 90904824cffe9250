"""The hybrid dual-path projection against loops written from HDPL Eq. 1–9, in float64."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from streamscope.cli.errors import InputError
from streamscope.models import config as c
from streamscope.models.hooks import edit
from streamscope.models.layers.hdpl import LN2, HdplProjection, kl_to_prior, take_penalties
from streamscope.models.make import build

H = 4


def make(d_in: int, d_out: int, seed: int = 0, **spec: Any) -> HdplProjection:
    module = HdplProjection(c.Hdpl(**spec), d_in, d_out, H).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64) / 2)
    return module


def inputs(*shape: int, seed: int = 5) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def reference(module: HdplProjection, x: list[float], noise: list[float]) -> dict[str, list[float]]:
    """One token, sums written as loops: HDPL Eq. 2–7 and Algorithm 1."""
    detail, decoder = module.detail.tolist(), module.decoder.weight.tolist()
    blocks, size_in, size_out = len(detail), len(detail[0]), len(detail[0][0])
    local = [0.0] * (blocks * size_out)
    for k in range(blocks):
        for o in range(size_out):
            local[k * size_out + o] = sum(x[k * size_in + i] * detail[k][i][o] for i in range(size_in))

    def affine(layer: Any) -> list[float]:
        rows = zip(layer.weight.tolist(), layer.bias.tolist(), strict=True)
        return [sum(w * v for w, v in zip(row, x, strict=True)) + b for row, b in rows]

    mu, logvar = affine(module.mu), affine(module.logvar)
    z = [m + math.exp(0.5 * v) * e for m, v, e in zip(mu, logvar, noise, strict=True)]
    silu = [v / (1 + math.exp(-v)) for v in z]
    context = [sum(w * s for w, s in zip(row, silu, strict=True)) for row in decoder]
    out = [a + b for a, b in zip(local, context, strict=True)]
    return {"detail": local, "mu": mu, "logvar": logvar, "latent": z, "global": context, "out": out}


@pytest.mark.parametrize(("d_in", "d_out", "groups"), [(16, 16, 0), (16, 48, 0), (48, 16, 2), (16, 24, 8), (12, 8, 1)])
@pytest.mark.parametrize("training", [False, True])
def test_forward_and_every_hook(d_in: int, d_out: int, groups: int, training: bool) -> None:
    module = make(d_in, d_out, rank=3, groups=groups).train(training)
    assert module.detail.shape[0] == (groups or H), "a block per head unless told otherwise"
    x = inputs(2, 5, d_in)
    torch.manual_seed(9)
    noise = torch.randn(2, 5, 3, dtype=torch.float64) if training else torch.zeros(2, 5, 3, dtype=torch.float64)
    torch.manual_seed(9)
    seen: dict[str, Tensor] = {}
    for name in ("detail", "mu", "logvar", "latent", "global"):
        getattr(module, f"hook_{name}").add_hook(lambda t, hook, name=name: seen.update({name: t}))
    seen["out"] = module(x)
    for b, t in itertools.product(range(2), range(5)):
        for name, want in reference(module, x[b, t].tolist(), noise[b, t].tolist()).items():
            expected = torch.tensor(want, dtype=torch.float64)
            torch.testing.assert_close(seen[name][b, t], expected, rtol=0, atol=1e-10, msg=name)
    assert bool(take_penalties([module])) == training


def initial(d_in: int, d_out: int, **spec: Any) -> HdplProjection:
    module = HdplProjection(c.Hdpl(rank=128, groups=8, **spec), d_in, d_out, 8)
    module.init_weights(0.02, torch.Generator().manual_seed(0))
    return module


@pytest.mark.parametrize("dirac", ["first", "every"])
def test_the_detail_path_starts_as_torch_s_dirac(dirac: Any) -> None:
    """dirac_(groups=1) on the grouped convolution of the authors reaches 64 of 512 channels, dirac_(groups=8) all."""
    conv = torch.empty(512, 64, 1)
    torch.nn.init.dirac_(conv, groups=1 if dirac == "first" else 8)
    blocks = conv[..., 0].unflatten(0, (8, 64)).mT  # [K, in, out]
    noise = initial(512, 512, dirac=dirac).detail.detach() - blocks
    assert int(blocks.sum()) == (64 if dirac == "first" else 512)
    assert abs(noise.mean()) < 1e-3 and abs(noise.std() - 0.01) < 2e-4


def test_other_maps_and_the_encoders_start_orthogonal() -> None:
    module = initial(512, 2048)
    columns = module.detail.mT.flatten(0, 1)  # the convolution's weight [2048, 64]
    torch.testing.assert_close(columns.T @ columns, torch.eye(64), rtol=0, atol=1e-5)
    torch.testing.assert_close(module.mu.weight @ module.mu.weight.T, torch.eye(128), rtol=0, atol=1e-5)
    decoder = module.decoder.weight
    torch.testing.assert_close(decoder.T @ decoder, torch.eye(128), rtol=0, atol=1e-5)
    assert not module.logvar.weight.any() and module.decoder.bias is None
    for layer in (module.mu, module.logvar):
        assert 0.9 / 512**0.5 < layer.bias.abs().max() <= 1 / 512**0.5


def test_what_writes_to_the_residual_starts_small() -> None:
    plain, small = initial(512, 512), HdplProjection(c.Hdpl(rank=128, groups=8), 512, 512, 8)
    small.init_scale = 0.25
    small.init_weights(0.02, torch.Generator().manual_seed(0))
    x = torch.randn(1, 3, 512)
    torch.testing.assert_close(small.eval()(x), 0.25 * plain.eval()(x))


def test_kl_is_that_of_torch() -> None:
    mu, logvar = inputs(2, 3, 5), inputs(2, 3, 5, seed=6)
    want = kl_divergence(Normal(mu, (logvar / 2).exp()), Normal(0.0, 1.0)).sum(-1)
    torch.testing.assert_close(kl_to_prior(mu, logvar), want, rtol=0, atol=1e-12)
    assert kl_to_prior(mu.bfloat16(), logvar.bfloat16()).dtype == torch.float32, "at least"


def near_prior(kl: str, share: float) -> tuple[HdplProjection, Tensor]:
    """A projection and 10 tokens, of which `share` have a KL far above ln 2 and the others far below."""
    module = make(16, 16, rank=4, kl=kl, kl_weight=0.5).train()
    with torch.no_grad():
        module.logvar.weight.zero_()
        module.logvar.bias.fill_(0.1)
        module.mu.bias.fill_(0.01)
    far = int(10 * share)
    x = torch.cat([inputs(1, far, 16), torch.zeros(1, 10 - far, 16, dtype=torch.float64)], 1)
    return module, x


@pytest.mark.parametrize("kl", ["clamp", "free_bits"])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_penalty_and_its_gradient(kl: str, share: float) -> None:
    """Clamped tokens count ln 2 and pull at nothing; as printed those are the large ones, with free bits the small."""
    module, x = near_prior(kl, share)
    module(x)
    with torch.no_grad():
        nats = kl_to_prior(module.mu(x), module.logvar(x))[0]
    assert ((nats > LN2) == (torch.arange(10) < 10 * share)).all()
    bound = [min(v, LN2) if kl == "clamp" else max(v, LN2) for v in nats.tolist()]
    assert module.penalty is not None
    torch.testing.assert_close(module.penalty.item(), 0.5 * sum(bound) / 10, rtol=1e-12, atol=0)
    grads = torch.autograd.grad(module.penalty, [module.mu.weight, module.mu.bias, module.logvar.bias])
    clamped = share if kl == "clamp" else 1 - share
    assert all(bool(g.any()) == (clamped < 1) for g in grads[1:])
    parts = take_penalties([module])
    assert parts["kl_clamped"].item() == pytest.approx(clamped)
    assert parts["kl_nats"].item() == pytest.approx(nats.mean().item())
    assert take_penalties([module]) == {}, "taken once"


@pytest.mark.parametrize("kl", ["clamp", "free_bits"])
def test_at_the_start_the_printed_penalty_is_a_constant_without_gradient(kl: Any) -> None:
    """At the paper's width every token's KL is about R/2 = 64 nats: 20 projections cost 20 β ln 2 = 0.01386."""
    spec = c.Hdpl(kl=kl)
    parts = {name: spec for name in ("attention.q", "attention.k", "attention.v", "mlp.gate", "mlp.up")}
    model = build("hdpl", d_vocab=300, n_ctx=16, **parts).train()
    tokens = torch.randint(300, (2, 16), generator=torch.Generator().manual_seed(0))
    loss, found = model.loss(tokens, tokens)
    encoders = [p for n, p in model.named_parameters() if n.split(".")[-2] in ("mu", "logvar")]
    grads = torch.autograd.grad(found["kl"], encoders)
    assert loss.item() == pytest.approx((found["ce"] + found["kl"]).item())
    assert found["kl_nats"].item() == pytest.approx(64, rel=0.1)
    assert found["kl_clamped"].item() == (kl == "clamp") and {bool(g.any()) for g in grads} == {kl != "clamp"}
    if kl == "clamp":
        assert found["kl"].item() == pytest.approx(20 * 1e-3 * LN2, rel=1e-5)


def test_evaluation_loss_is_cross_entropy() -> None:
    model, tokens = build("hdpl", "tiny"), torch.arange(16).reshape(2, 8)
    model.train().loss(tokens, tokens)
    model(tokens)  # a forward pass in training without a loss leaves a penalty behind
    loss, parts = model.eval().loss(tokens, tokens)
    assert list(parts) == ["ce"] and loss.item() == parts["ce"].item()
    torch.testing.assert_close(loss, model.token_losses(tokens, tokens).mean())
    assert list(build("llama", "tiny").train().loss(tokens, tokens)[1]) == ["ce"]


def test_log_variance_is_only_shown() -> None:
    edits = {"blocks.0.attn.q.hook_logvar": lambda x, hook: x * 2}
    line = "only shows the log-variance of z.*edit hook_latent instead"
    with pytest.raises(InputError, match=line), edit(build("hdpl", "tiny"), edits):
        pytest.fail("the block ran")
