"""Random combinations of parts train: finite loss, a gradient in every parameter, the hook table holds."""

import random
from typing import Any

import pytest
import torch

from streamscope.models import config as c
from streamscope.models.config.serialization import kinds
from streamscope.models.hooks import capture, concrete_shape, expected_hooks
from streamscope.models.make import build
from streamscope.models.training.config import Training, with_recipe
from streamscope.models.training.optim import make_optimizer, set_lr
from streamscope.models.transformer import StreamTransformer
from tests.tiny import some

B, T, STEPS = 3, 9, 4
STREAMS = ("hc", "mhc", "mhc_lite", "kromhc")


def combination(seed: int) -> dict[str, Any]:
    """Overrides of gpt2 at scale tiny, drawn from every kind of part."""
    rng = random.Random(seed)

    def maybe(value: Any, share: float = 0.5) -> Any:
        return value if rng.random() < share else None

    # the topologies take turns, so that few seeds meet all of them
    residual = [*STREAMS, "token_factor", "frozen_token", "single"][seed % 7]
    fields: dict[str, Any] = {}
    if residual in STREAMS:
        fields = {
            "n": rng.choice([2, 4] if residual == "mhc_lite" else [2, 4, 8]), "dynamic": rng.random() < 0.7,
            "dyn_act": rng.choice(["tanh", "none"]), "post_input": rng.choice(["same", "mixed"]),
            "reduce": rng.choice(["sum", "mean"]), "freeze_res": rng.random() < 0.2,
            "hc_dtype": rng.choice(["fp32", "bf16"]),
        }  # fmt: skip
        if residual != "hc":
            fields["b_res"] = rng.choice([-8.0, -2.0, -1.0, 0.0])
    elif residual != "single":
        fields = {"values": rng.choice(["token", "combined"]), "value_norm": rng.random() < 0.5}
        fields["order"] = rng.choice(["sequential", "parallel"])
    places = "".join(p for p in "ABCD" if rng.random() < 0.6)
    kernel, activation = rng.choice([2, 3, 4]), rng.choice(["none", "silu"])
    canon = c.Canon(places=places or "A", kernel=kernel, activation=activation, residual=rng.random() < 0.7,
                    init=rng.choice(["uniform", "normal"]))  # fmt: skip
    shape, source = rng.choice(["scalar", "vector"]), rng.choice(["query", "normed", "value"])
    gate = c.Gate(shape=shape, source=source, init=rng.choice(["zero", "normal"]))
    supervision = maybe(c.Supervision(weights=rng.choice(["linear", "uniform", "exponential"])))
    changes = {
        "residual": kinds(c.Residual)[residual](**fields),
        "canon": maybe(canon, 0.7),
        "attention.gate": maybe(gate),
        "readout.supervision": supervision,
        "readout.tied": rng.random() < 0.5,
        "readout.layer_norms": "own" if supervision is not None and rng.random() < 0.5 else "shared",
        "positions": rng.choice(["rope", "alibi", "learned", "none"]),
        "norm": rng.choice(["layer", "channel", "rms"]),
        "dropout": rng.choice([0.0, 0.1]),
    }
    mixing = ["/".join("-".join(rng.choices(words, k=2)) for words in (["id", "ind", "kron", "dns"], ["ind", "dns"]))]
    if rng.random() < 0.3:
        changes |= {"mlp.gate": rng.choice(["ind", "dns"]), "mlp.activation": "silu"}
    hybrid = c.Hdpl(kl=rng.choice(["clamp", "free_bits"]), dirac=rng.choice(["first", "every"]))
    places = [f"attention.{name}" for name in "qkvo"] + ["mlp.up", "mlp.down"]
    changes |= {place: hybrid for place in places if seed % 3 == 0 and rng.random() < 0.5}
    return {"mixing": mixing[0], **changes}


def without_gradient(model: StreamTransformer) -> set[str]:
    """Parameters that the mathematics gives none: what a doubly stochastic matrix does to equal streams, or to
    streams of which only the sum is read (`StochasticConnection`)."""
    spec, last = model.config.residual, model.config.n_layers - 1
    if not isinstance(spec, c.Stochastic):
        return set()
    modules = ["blocks.0.attn_hc"]
    # H_post sees the mixed streams; with b_res = 0 they begin equal, and W_post stays alike for all of them
    if not (spec.dynamic and spec.post_input == "mixed" and spec.b_res < 0):
        modules.append(f"blocks.{last}.mlp_hc")
    return {f"{module}.{part}.res" for module in modules for part in ("b", "W", "alpha")}


@pytest.mark.parametrize("seed", some(range(140), range(14)))
def test_random_combinations_train(seed: int) -> None:
    model = build("gpt2", "tiny", seed=seed, **combination(seed)).train()
    training = with_recipe(Training(optimizer=random.Random(seed).choice(["adamw", "muon"])), "gpt2", "tiny")
    optimizer = make_optimizer(model, training)
    generator = torch.Generator().manual_seed(seed)
    trained: set[str] = set()
    for step in range(STEPS):
        tokens = torch.randint(256, (B, T + 1), generator=generator)
        loss, parts = model.loss(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        assert all(value.isfinite() for value in (loss, *parts.values())), f"loss at step {step}"
        for name, p in model.named_parameters():
            assert p.grad is not None and p.grad.isfinite().all(), name
            trained |= {name} if p.grad.any() else set()
        set_lr(optimizer, (step + 1) / STEPS)
        optimizer.step()
        optimizer.zero_grad()
    assert {name for name, _ in model.named_parameters()} - trained <= without_gradient(model)

    check_hooks(model.eval(), tokens[:, :-1])


SHARED = {"attention.kv_heads": 2, "canon": "canon", "attention.d_head": 16}


@pytest.mark.parametrize(
    ("name", "changes"),
    [("hdpl", SHARED), ("llama", {**SHARED, "attention.v": "ind"}), ("lfa", {"attention.d_head": 16})],
)
def test_widths_where_heads_share_keys_or_are_not_the_width_over_the_heads(name: str, changes: dict[str, Any]) -> None:
    check_hooks(build(name, "tiny", **changes).eval(), torch.randint(256, (B, T)))


def check_hooks(model: StreamTransformer, tokens: torch.Tensor) -> None:
    expected = list(expected_hooks(model.config))
    with capture(model, "*") as found, torch.no_grad():
        model(tokens)
    assert list(model.hook_dict) != [] and list(found) == [name for name, _ in expected]
    for name, row in expected:
        shape = concrete_shape(row, name, model.config).split()
        assert [str(n) for n in found[name].shape] == [{"B": str(B), "T": str(T)}.get(s, s) for s in shape], name
