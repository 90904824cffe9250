"""Chunked losses against `F.cross_entropy`, per-layer supervision by hand, and the memory they use."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from streamscope.cli.errors import InputError
from streamscope.models import config as c
from streamscope.models import readout
from streamscope.models.layers.head import Capped
from streamscope.models.make import build
from tests.tiny import assert_gradients, assert_refused, randomise

V, D = 50, 12


@pytest.fixture(params=[1, 7, 16, 1000])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Rows per chunk: divisors of the number of rows, and others."""
    monkeypatch.setattr(readout, "chunk_rows", lambda d_vocab: request.param)
    monkeypatch.setattr(readout, "loss_rows", lambda d_vocab, device: request.param)
    monkeypatch.setattr(readout, "CACHE", V * max(1, request.param // 3))
    return int(request.param)


def rows(n: int = 33, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states with a batch axis, a head, targets of which some are ignored."""
    g = torch.Generator().manual_seed(0)
    h = torch.randn(3, n // 3, D, generator=g, dtype=dtype).requires_grad_()
    w = torch.randn(V, D, generator=g, dtype=dtype).requires_grad_()
    target = torch.randint(V, (3, n // 3), generator=g)
    target[0, 0] = target[0, -1] = target[2, 3] = readout.IGNORE
    return h, w, target


def naive(h: Tensor, w: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy((h @ w.T).flatten(0, -2), target.flatten(), ignore_index=-100)


@pytest.mark.parametrize("wanted", [[0, 1], [0], [1]])
def test_value_and_gradients_of_both_or_of_one(wanted: list[int], chunk: int) -> None:
    *pair, target = rows()
    pair = [x.detach().requires_grad_(i in wanted) for i, x in enumerate(pair)]
    ours, theirs = readout.cross_entropy(*pair, target), naive(*pair, target)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    assert_gradients(ours, theirs, [pair[i] for i in wanted])
    logits, each = (pair[0] @ pair[1].T).flatten(0, 1), readout.token_losses(*pair, target)
    want = F.cross_entropy(logits, target.flatten(), reduction="none").reshape(target.shape)
    torch.testing.assert_close(each, want, rtol=0, atol=1e-12)
    assert torch.equal(each == 0, target == readout.IGNORE) and not each.requires_grad


def test_capped_logits_have_the_losses_and_gradients_of_plain_code(chunk: int) -> None:
    """Gemma 2: logits y become c tanh(y / c); without targets too, and without a gradient for the head."""
    h, w, target = rows()
    capped, logits = Capped(w, 1.5), 1.5 * torch.tanh(h @ w.T / 1.5)
    ours, theirs = readout.cross_entropy(h, capped, target), naive(logits, torch.eye(V, dtype=h.dtype), target)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    assert_gradients(ours, theirs, (h, w))
    (only,) = torch.autograd.grad(readout.cross_entropy(h, Capped(w.detach(), 1.5), target), h)
    torch.testing.assert_close(only, torch.autograd.grad(theirs, h)[0], rtol=0, atol=1e-12)
    logits, flat = logits.detach().flatten(0, 1), h.detach().flatten(0, 1)
    each = readout.token_losses(h, capped, target).flatten()
    want = F.cross_entropy(logits, target.flatten(), ignore_index=-100, reduction="none")
    torch.testing.assert_close(each, want, rtol=0, atol=1e-12)
    p = logits.softmax(-1)
    _, *two, of_target = readout.top_two(flat, Capped(w.detach(), 1.5), target.flatten().clamp(min=0))
    torch.testing.assert_close(torch.stack(two, 1), p.topk(2, -1).values, rtol=0, atol=1e-12)
    torch.testing.assert_close(of_target, p.gather(1, target.flatten().clamp(min=0)[:, None])[:, 0])
    other = (2 * flat @ w.detach().T).log_softmax(-1)
    kl = readout.divergences(flat, 2 * flat, Capped(w.detach(), 1.5), w.detach())
    torch.testing.assert_close(kl, (p * (p.log() - other)).sum(-1), rtol=0, atol=1e-12)


def test_large_logits_do_not_overflow(chunk: int) -> None:
    h, w, target = rows(dtype=torch.float32)
    h = (h * 1e4).detach().requires_grad_()
    torch.testing.assert_close(readout.cross_entropy(h, w, target), naive(h, w, target))
    readout.cross_entropy(h, w, target).backward()
    assert h.grad is not None and torch.isfinite(h.grad).all()


def test_no_targets_cost_nothing(chunk: int) -> None:
    h, w, target = rows()
    loss = readout.cross_entropy(h, w, torch.full_like(target, readout.IGNORE))
    loss.backward()
    assert loss.item() == 0 and not h.grad.any() and not w.grad.any()


@pytest.mark.parametrize("bad", [-1, -101, V])
def test_a_target_that_is_no_token_raises(bad: int) -> None:
    """Only −100 means "none"; −1 is a mistake, not token 0."""
    h, w, target = rows()
    target[1, 1] = bad
    for call in (readout.cross_entropy, readout.token_losses):
        with pytest.raises((InputError, RuntimeError, IndexError)):
            call(h, w, target)


def test_under_autocast_close_to_fp32(chunk: int) -> None:
    h, w, target = rows(dtype=torch.float32)
    exact = readout.cross_entropy(h, w, target)
    exact_grads = torch.autograd.grad(exact, (h, w))
    with torch.autocast("cpu", torch.bfloat16):
        loss = readout.cross_entropy(h, w, target)
    grads = torch.autograd.grad(loss, (h, w))
    assert loss.dtype == torch.float32 and abs(loss - exact) < 0.01 * exact
    assert loss.item() != exact.item(), "the products are in bf16"
    for a, b in zip(grads, exact_grads, strict=True):
        assert a.dtype == torch.float32 and (a - b).norm() < 0.02 * b.norm()


# ---- supervision -------------------------------------------------------------------------------

WEIGHTS = {"linear": [1, 2, 3, 4, 5, 6], "uniform": [1] * 6, "exponential": [1, 2, 4, 8, 16, 32]}
"""Of six layers, in units of their last (PLS A.5.2) or of their sum, before λ."""


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize(("include_last", "own"), [(False, False), (True, True)])
def test_per_layer_supervision(weights: Any, normalise: bool, include_last: bool, own: bool) -> None:
    supervision = c.Supervision(weights=weights, strength=0.3, normalise=normalise, include_last=include_last)
    change = {"readout.supervision": supervision, "readout.layer_norms": "own" if own else "shared"}
    model = randomise(build("pls", "tiny", n_layers=6, n_ctx=16, **change).double(), std=0.2)
    whole = sum(WEIGHTS[weights]) if normalise else WEIGHTS[weights][-1]
    g = torch.Generator().manual_seed(1)
    tokens, targets = (torch.randint(256, (2, 9), generator=g) for _ in range(2))
    targets[1, 5:] = readout.IGNORE

    total, parts = model.loss(tokens, targets)
    total.backward()
    grads = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()

    x, want = model.embed_tokens(tokens), torch.zeros((), dtype=torch.float64)
    for layer in range(6):
        x = model.blocks[layer](x)
        norm = model.layer_norms[layer] if own and layer < 5 else model.ln_final
        z = F.layer_norm(x.x_t + x.x_e, (32,), norm.weight, norm.bias, 1e-5) @ model.embed.weight.T
        ce = F.cross_entropy(z.flatten(0, 1), targets.flatten())
        if layer < 5 or include_last:
            torch.testing.assert_close(parts[f"ce_L{layer}"], ce, rtol=0, atol=1e-10)
            want = want + 0.3 * WEIGHTS[weights][layer] / whole * ce
    torch.testing.assert_close(parts["ce"], ce, rtol=0, atol=1e-10)
    torch.testing.assert_close(total, want + ce, rtol=0, atol=1e-10)
    assert len(parts) == 6 + include_last
    (want + ce).backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(grads[name], p.grad, rtol=0, atol=1e-10, msg=name)


@pytest.mark.parametrize("positions", ["alibi", "none", "rope", "learned"])
def test_every_way_into_the_model_knows_the_length_of_the_context(positions: str) -> None:
    """Nothing else stops ALiBi from training on what `forward` then refuses."""
    model, tokens = build("std-t", "tiny", positions=positions), torch.zeros(1, 33, dtype=torch.long)
    for call in (model.loss, model.token_losses):
        assert_refused("sequence of 33 tokens is longer than the context of 32", call, tokens, tokens)


@torch.no_grad()
def test_layer_logits_choose_layers_and_positions() -> None:
    model = randomise(build("pls", "tiny", n_layers=3), std=0.2)
    tokens, at = torch.arange(16).reshape(2, 8), torch.tensor([[7, 0], [-1, 3]])
    everything = model.layer_logits(tokens, torch.arange(8).expand(2, -1))
    torch.testing.assert_close(everything[:, :, 2], model(tokens), rtol=0, atol=1e-6)
    assert not torch.allclose(everything[:, :, 0], everything[:, :, 1])
    some = model.layer_logits(tokens, at, layers=[2, 0])
    assert some.shape == (2, 2, 2, 256)
    torch.testing.assert_close(some[1, 0], everything[1, 7, [2, 0]], rtol=0, atol=1e-6)
    assert_refused("does not exist: the model has layers 0 to 2", model.layer_logits, tokens, at, layers=[3])


class Widest(TorchDispatchMode):
    """Records, over all operations, the most rows of logits in a tensor, and products of the head's shape."""

    def __init__(self, vocab: int, d_model: int) -> None:
        super().__init__()
        self.vocab, self.table, self.rows, self.head_products = vocab, vocab * d_model, 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, tuple | list) else [out]:
            if isinstance(t, Tensor) and self.vocab in t.shape:
                if t.numel() != self.table:  # the head, and its gradient
                    self.rows = max(self.rows, t.numel() // self.vocab)
                elif func is torch.ops.aten.mm.default:
                    self.head_products += 1
        return out


@pytest.mark.parametrize("name", ["std-t", "pls"])
def test_never_more_logits_than_a_chunk(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readout, "chunk_rows", lambda d_vocab: 24)
    monkeypatch.setattr(readout, "loss_rows", lambda d_vocab, device: 24)
    model, tokens = build(name, "tiny", d_vocab=251).train(), torch.arange(32).expand(8, -1)
    with Widest(251, 32) as widest:
        model.loss(tokens, tokens)[0].backward()
    assert widest.rows == 24 and widest.head_products > 0
    for call in (model.token_losses, model.loss):
        with torch.no_grad(), Widest(251, 32) as widest:
            call(tokens, tokens)
        assert widest.rows == 24 and widest.head_products == 0, "evaluation forms no gradient"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scales", [(1.0,), (0.25, 0.0, 2.0)])
def test_losses_of_several_streams_are_those_of_torch(dtype: torch.dtype, scales: tuple, chunk: int) -> None:
    h, w, target = rows(dtype=dtype)
    hs = [(h.detach() + 0.3 * i).requires_grad_() for i in range(len(scales))]
    total, losses = readout.cross_entropies(hs, w, target, scales)
    theirs = [naive(x, w, target) for x in hs]
    wanted = sum(s * x for s, x in zip(scales, theirs, strict=True))
    torch.testing.assert_close(losses, torch.stack(theirs), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(total, wanted, rtol=1e-6, atol=1e-6)
    assert not losses.requires_grad
    assert_gradients(total, wanted, (*hs, w), rtol=1e-5, atol=1e-6)


def test_a_padded_head_changes_nothing(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA the vocabulary of 50 becomes 64 inside the product; here the same path is forced."""
    assert readout._padding(50257, 516, "cuda") == (47, 4) and readout._padding(50257, 516, "cpu") == (0, 0)
    h, w, target = rows()
    monkeypatch.setattr(readout, "_padding", lambda v, d, device: (-v % 64, -d % 8))
    with Widest(64, 16) as widest:
        padded = readout.cross_entropy(h, w, target)
    assert widest.rows > 0, "logits were padded"
    theirs = naive(h, w, target)
    torch.testing.assert_close(padded, theirs, rtol=0, atol=1e-12)
    assert_gradients(padded, theirs, (h, w))


def test_the_loss_does_not_depend_on_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    h, w, target = rows(dtype=torch.float32)
    monkeypatch.setattr(readout, "CACHE", 2 * V)
    found, before = [], torch.get_num_threads()
    for n in (1, 3):
        torch.set_num_threads(n)
        found.append(readout.cross_entropy(h, w, target).item())
    torch.set_num_threads(before)
    assert found[0] == found[1]


@pytest.mark.parametrize(("d_vocab", "error"), [(4096, 4e-6), (50257, 1.6e-5)])
def test_log_probabilities_are_near_those_of_float64(d_vocab: int, error: float) -> None:
    """Twice what the docstring says of normal logits with a standard deviation of 3."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(160, d_vocab, generator=generator)
    ids = torch.randint(d_vocab, (160, 2), generator=generator)
    exact = logits.double() - logits.double().logsumexp(-1, keepdim=True)
    assert (readout.log_probs_at(logits, ids).double() - exact.gather(-1, ids)).abs().max() < error
    assert readout.log_probs_at(logits.half(), ids).dtype == torch.float32
