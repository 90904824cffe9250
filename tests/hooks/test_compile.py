"""Compiled blocks and hooks: training compiles a separate callable, analyses run the plain model.

The checks run in a process of their own: under test the rooms are wrapped by the shape checker, which no
compiler can trace. Each `check_*` function is a test, and this file is also the script that runs them.
"""

import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from streamscope.models.hooks import capture, edit
from streamscope.models.make import build
from streamscope.models.training.loop import compiled_loss
from tests.hooks.checks import outcomes_of, run_checks

Z = "blocks.0.attn.hook_z"


def _make(name: str, **overrides: Any) -> tuple[Any, Any]:
    tokens = torch.randint(256, (2, 6), generator=torch.Generator().manual_seed(7))
    return build(name, "tiny", init_std=0.2, **overrides), tokens


def _compiled(model: Any, backend: str = "eager") -> list[Callable[..., Any]]:
    return [torch.compile(block.forward, backend=backend, fullgraph=True) for block in model.blocks]


def _zero(x: Any, hook: Any) -> Any:
    return x * 0


def _logits(model: Any, tokens: Any, blocks: Any = None) -> Any:
    return model.logits(model.segment(model.embed_tokens(tokens), blocks=blocks))


ONE_GRAPH: list[tuple[str, dict[str, Any], float]] = [
    *((name, {}, 0.0) for name in ("dst-kron", "hdpl", "std-t", "lfa", "pls", "dst-full-ind", "canon")),
    ("std-t", {"positions": "alibi", "mlp.gate": "dense", "norm": "rms"}, 0.0),
    ("pls", {"dropout": 0.1}, 0.0),
    ("lfa", {"positions": "none", "residual.order": "parallel", "attention.gate": "gate"}, 0.0),
    ("dst-kron", {"positions.fraction": 0.5, "residual.values": "combined"}, 0.0),
    ("kromcanon", {}, 1e-5),
    ("gpt2", {"residual": "kromhc", "residual.dynamic": False, "residual.hc_dtype": "bf16"}, 1e-5),
    *(("gpt2", {"residual": kind}, 1e-5) for kind in ("hc", "mhc", "mhc_lite")),
]
"""Every part of the presets and other ones, with the tolerance: hyper-connections add in another order if compiled."""


def check_un_hooked_blocks_compile_as_one_graph() -> None:
    """Without a graph break, and they compute the same; also in training, where some have dropout."""
    for name, overrides, tolerance in ONE_GRAPH:
        torch.compiler.reset()
        model, tokens = _make(name, n_layers=1, **overrides)
        for training in (False, True) if name != "hdpl" and not tolerance else (False,):
            model.train(training)
            logits = []
            for blocks in (_compiled(model), None):
                torch.manual_seed(0)
                with torch.no_grad():
                    logits.append(_logits(model, tokens, blocks))
            torch.testing.assert_close(*logits, rtol=tolerance, atol=tolerance, msg=name)


def _steps(model: Any, loss: Callable[..., Any], tokens: Any) -> list[Any]:
    """Of two steps, one after the other: the loss, its parts and all gradients."""
    results, weights = [], list(model.parameters())
    torch.manual_seed(0)
    for _ in range(2):
        total, parts = loss(tokens, tokens.roll(-1, 1))
        grads = torch.autograd.grad(total, weights, allow_unused=True)
        results += [total, *parts.values(), *(g for g in grads if g is not None)]
    return results


def check_training_steps() -> None:
    """Loss, penalties and gradients are the plain step's, by compiled blocks and as one graph without a break."""
    undropped = {"dropout": 0.0, "attention.dropout": 0.0}
    for name, overrides, backend, whole in (
        ("hdpl", {"mlp.up.kl": "free_bits"}, "eager", False),
        ("hdpl", {"mlp.up.kl": "free_bits"}, "aot_eager", False),
        ("pls", undropped, "eager", True),
        *((name, undropped, "aot_eager", True) for name in ("pls", "hdpl", "kromcanon")),
    ):
        torch.compiler.reset()
        model, tokens = _make(name, n_layers=1, **overrides)
        loss = model.train().loss
        compiled = compiled_loss(model, backend=backend) if whole else partial(loss, blocks=_compiled(model, backend))
        for a, b in zip(_steps(model, compiled, tokens), _steps(model, loss, tokens), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6, msg=name)
        if name == "hdpl" and not whole:
            assert loss(tokens, tokens)[1].keys() == {"ce", "kl", "kl_nats", "kl_clamped"}
            assert all(p.penalty is None for p in model._hdpl)


def check_training_step_in_bf16() -> None:
    """Under autocast narrow heads take fp32 gradients, compiled as well."""
    model, tokens = _make("std-t", n_layers=1)
    loss = model.train().loss
    with torch.autocast("cpu", torch.bfloat16):
        plain = _steps(model, loss, tokens)
        compiled = _steps(model, partial(loss, blocks=_compiled(model, "aot_eager")), tokens)
    for a, b in zip(compiled, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=0.02, atol=1e-3)


def check_compiled_blocks_drop_what_plain_ones_drop() -> None:
    """The compiler writes no generator of its own: masks are those of the plain model, step after step."""
    torch.compiler.reset()
    model, tokens = _make("pls", n_layers=1)
    model.train()
    losses = []
    for blocks in (None, _compiled(model, "inductor")):
        torch.manual_seed(5)
        losses.append(torch.stack([model.loss(tokens, tokens.roll(-1, 1), blocks=blocks)[0] for _ in range(3)]))
    assert len(set(losses[0].tolist())) == 3, "nothing was dropped"
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=0.0)


def check_edits_after_and_around_compiled_blocks_have_effect() -> None:
    """Compiled steps, then an edit of the plain model; inside `edit` and `capture` compiled callables run eagerly."""
    for name, backend in (("dst-kron", "eager"), ("std-t", "eager"), ("lfa", "aot_eager")):
        torch.compiler.reset()
        (model, tokens), (fresh, _) = _make(name, n_layers=1), _make(name, n_layers=1)
        blocks = _compiled(model, backend)
        for _ in range(2):
            model.loss(tokens, tokens.roll(-1, 1), blocks=blocks)[0].backward()
        with torch.no_grad():
            plain = model(tokens)
            with edit(fresh, {Z: _zero}):
                expected = fresh(tokens)
            with edit(model, {Z: _zero}), capture(model, Z) as found:
                assert torch.equal(model(tokens), expected)
                assert torch.equal(_logits(model, tokens, blocks), expected)
            assert found[Z].abs().max() == 0 and not torch.equal(plain, expected)
            with capture(model, "blocks.*.attn.hook_pattern") as found:
                _logits(model, tokens, blocks)
            assert len(found) == model.config.n_layers
            assert torch.equal(_logits(model, tokens, blocks), plain)


def check_hooks_on_a_compiled_model_have_effect() -> None:
    """A model compiled by its user, whole or in parts, after a call: caches are full, hooks of every kind fire, and
    their effect ends with them."""

    def blocks(model: Any) -> None:
        for i, block in enumerate(model.blocks):
            model.blocks[i] = torch.compile(block, backend="eager")

    for way, compiled in {
        "in place": lambda m: m.compile(backend="eager"),
        "blocks in place": lambda m: [block.compile(backend="eager") for block in m.blocks],
        "attention": lambda m: [block.attn.compile(backend="eager") for block in m.blocks],
        "blocks": blocks,
        "whole": lambda m: torch.compile(m, backend="eager"),
    }.items():
        torch.compiler.reset()
        (model, tokens), (fresh, _) = _make("lfa", n_layers=1), _make("lfa", n_layers=1)
        with torch.no_grad():
            plain, expected = fresh(tokens), fresh.run_with_hooks(tokens, fwd_hooks=[(Z, _zero)])
            made = compiled(model)
            call = made if isinstance(made, torch.nn.Module) else model
            torch.testing.assert_close(call(tokens), plain, msg=way)
            assert len(model.run_with_cache(tokens)[1]) == len(fresh.run_with_cache(tokens)[1]), way
            with model.hooks([(Z, _zero)]):
                assert torch.equal(call(tokens), expected), f"{way}: hooks"
            assert torch.equal(model.run_with_hooks(tokens, fwd_hooks=[(Z, _zero)]), expected), way
            model.add_hook(Z, _zero)
            assert torch.equal(call(tokens), expected), f"{way}: add_hook"
            model.reset_hooks()
            torch.testing.assert_close(call(tokens), plain, msg=f"{way}: reset_hooks")
            handle = model.hook_dict[Z].register_forward_hook(lambda module, inputs, z: z * 0)
            assert torch.equal(call(tokens), expected), f"{way}: torch's own hook"
            handle.remove()
            torch.testing.assert_close(call(tokens), plain, msg=f"{way}: removed")


def check_a_hook_at_the_first_compiled_call_does_not_stay() -> None:
    """Compiled code that was made while a hook was there has none once it is gone; backward hooks fire as well."""
    torch.compiler.reset()
    model, tokens = _make("lfa", n_layers=1)
    with torch.no_grad():
        plain = model(tokens)
        model.compile(backend="eager")
        model.add_hook(Z, _zero)
        assert not torch.equal(model(tokens), plain)
        model.reset_hooks()
        torch.testing.assert_close(model(tokens), plain)
    model(tokens, return_type="loss").backward()
    seen: list[Any] = []
    model.add_hook(Z, lambda grad, hook: seen.append(grad), dir="bwd")
    model(tokens, return_type="loss").backward()
    model.reset_hooks()
    assert len(seen) == 1 and bool(seen[0].any())


# ---- the tests ---------------------------------------------------------------------------------


CHECKS = sorted(name for name in globals() if name.startswith("check_"))


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    return outcomes_of(__file__)


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
def test_compile(check: str, outcomes: dict[str, str]) -> None:
    assert outcomes[check] == ""


SCRIPT = """
import sys
import torch
from streamscope.models.hooks import edit
from streamscope.models.make import build
from tests.tiny import randomise

model = randomise(build("std-t", "tiny", n_layers=1, init_std=0.2)).eval()
tokens = torch.arange(6)[None]
with torch.no_grad():
    state, plain = model.embed_tokens(tokens), model(tokens)
    assert "torch._dynamo" not in sys.modules
    with edit(model, {"blocks.0.attn.hook_z": lambda z, hook: z * 0}):
        expected = model.blocks[0](state)
        compiled = torch.compile(model.blocks[0].forward, backend="eager")
        assert torch.equal(compiled(state), expected), "the edit has no effect"
    assert torch.equal(compiled(state), model.blocks[0](state)), "the edit stays"
    assert not torch.equal(compiled(state), expected)
    whole = torch.compile(model, backend="eager")
    torch.testing.assert_close(whole(tokens), plain)
    with edit(model, {"blocks.0.attn.hook_z": lambda z, hook: z * 0}):
        assert not torch.equal(whole(tokens), plain), "the edit has no effect on the whole model"
    torch.testing.assert_close(whole(tokens), plain)
"""


@pytest.mark.slow
def test_what_is_compiled_first_inside_an_edit_forgets_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def main() -> None:
    torch.set_num_threads(1)
    # torch's compiler itself looks at the gradient of tensors that are no leaves
    warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")
    # and makes an object of every autograd function that it traces
    warnings.filterwarnings("ignore", message=".*should not be instantiated. Methods on autograd functions")
    # inductor imports modules that torch itself calls deprecated
    warnings.filterwarnings("ignore", message=".*script_method.* is deprecated", category=DeprecationWarning)
    run_checks(globals())


if __name__ == "__main__":
    main()
