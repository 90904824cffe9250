"""The hook table against the models: names, firing order, shapes, for every preset and many variants."""

from typing import Any

import pytest
import torch
from torch import Tensor

from streamscope.models.config.presets import preset
from streamscope.models.hooks import HOOKS, ObservePoint, OnDemand, expected_hooks
from streamscope.models.make import build
from streamscope.models.transformer import StreamTransformer
from tests.models import test_invariants as invariants
from tests.models.test_invariants import B, T, check_hooks
from tests.tiny import some

SHARED_KEYS = {"attention.kv_heads": 2, "canon": "canon", "attention.d_head": 16}
QKVO = ("attention.q", "attention.k", "attention.v", "attention.o")


def all_of(kind: str) -> dict[str, Any]:
    return dict.fromkeys(QKVO, kind)


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = dict(invariants.VARIANTS) | {
    "swiglu-ind": ("lfa", {"mlp.gate": "ind", "mlp.up": "ind", "mlp.down": "ind", "mlp.activation": "silu"}),
    "all-ind": ("std-t", all_of("ind") | {"mlp.up": "ind", "mlp.down": "ind"}),
    "all-kron": ("lfa", all_of("kron") | {"mlp.d_mlp": 32, "mlp.up": "kron", "mlp.down": "kron", "mlp.gate": "kron"}),
    "all-identity": ("dst-dense", all_of("id")),
    "norms-after": ("llama", {"norm_place": "after", "attention.qk_norm": "rms", "attention.qk_norm_over": "layer"}),
    "norms-both": ("llama", {
        "norm_place": "both", "attention.softcap": 2.0, "attention.scale_width": 5.0, "attention.window": 3,
        "attention.full_every": 2, "positions.local_base": 9.0, "readout.softcap": 1.5, "embed_scale": 3.0,
    }),
    "channel": ("std-t", {"norm": "channel", "readout.norm": "channel"}),
    "canon-dual-stream": ("dst-kron", {"canon": "canon", "attention.gate": "gate"}),
    "mhc-3": ("kromcanon", {"residual": "mhc", "residual.n": 3}),
    "kromhc-static-8": ("gpt2", {"residual": "kromhc", "residual.dynamic": False, "residual.n": 8}),
    "hdpl-everywhere": ("hdpl", {"attention.o": "hdpl", "mlp.down": "hdpl", "attention.v.rank": 5}),
    "hdpl-shared-keys": ("hdpl", SHARED_KEYS),
    "llama-shared-keys": ("llama", {**SHARED_KEYS, "attention.v": "ind"}),
    "lfa-wide-heads": ("lfa", {"attention.d_head": 16}),
    "hdpl-plain-ffn": ("lfa", {"mixing": "hdpl-dns/hdpl-hdpl", "attention.gate": "gate"}),
}  # fmt: skip
every = pytest.mark.parametrize("variant", some(VARIANTS, VARIANTS.keys() - invariants.SLOW))


def make(variant: str) -> StreamTransformer:
    name, overrides = VARIANTS[variant]
    return build(name, "tiny", **overrides)


def tokens(model: StreamTransformer) -> Tensor:
    return torch.randint(model.config.d_vocab, (B, T), generator=torch.Generator().manual_seed(0))


@every
def test_names_order_shapes_and_kinds_of_points(variant: str) -> None:
    """The model has exactly the table's hooks; they fire once each, in the table's order, with the row's shape."""
    model, fired = make(variant), list[str]()
    check_hooks(model, torch.randint(256, (B, T)))
    with torch.no_grad(), model.hooks(fwd_hooks=[(lambda name: True, lambda x, hook: fired.append(hook.name))]):
        model(tokens(model))
    assert fired == [name for name, _ in expected_hooks(model.config)] and set(model.hook_dict) == set(fired)
    for name, row in expected_hooks(model.config):
        point = model.hook_dict[name]
        assert isinstance(point, ObservePoint) == (not row.edit(model.config)), name
        assert isinstance(point, OnDemand) == row.on_demand, name


def test_every_row_is_used() -> None:
    configs = (preset(name, "tiny", **overrides) for name, overrides in VARIANTS.values())
    assert {row.name for row in HOOKS} == {row.name for config in configs for _, row in expected_hooks(config)}


@every
def test_unhooked_run_computes_nothing_on_demand(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without listeners no on-demand point is called; with one on the pattern, both attention points are."""
    model, called = make(variant), list[str]()
    monkeypatch.setattr(OnDemand, "forward", lambda self, x: called.append(str(self.name)) or x)
    model(tokens(model))
    assert called == []
    with model.explicit_attention():
        model(tokens(model))
    model(tokens(model))
    layers = range(model.config.n_layers)
    assert called == [f"blocks.{i}.attn.{n}" for i in layers for n in ("hook_attn_scores", "hook_pattern")]


@every
def test_listening_does_not_change_the_result(variant: str) -> None:
    """Explicit scores, norms and mixing matrices agree with the fused path to 1e-12 in float64."""
    model = make(variant).double()
    t = tokens(model)
    plain = model(t)
    hooked, _ = model.run_with_cache(t)
    torch.testing.assert_close(hooked, plain, rtol=0, atol=1e-12)
    assert torch.equal(model(t), plain)


@every
def test_rows_of_a_batch_are_independent(variant: str) -> None:
    model = make(variant).double()
    (_, cache), (_, turned) = (model.run_with_cache(rows) for rows in (tokens(model), tokens(model).flip(0)))
    for name, x in cache.items():
        torch.testing.assert_close(turned[name].flip(0), x, rtol=0, atol=1e-12, msg=name)
