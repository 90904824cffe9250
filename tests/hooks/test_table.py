"""The hook table against the models: names, firing order, shapes, for every preset and many variants."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from streamscope.models.config import Hdpl
from streamscope.models.config.presets import PRESETS
from streamscope.models.hooks import HOOKS, ObservePoint, OnDemand, expected_hooks, row_of
from streamscope.models.make import build
from streamscope.models.transformer import StreamTransformer
from tests.tiny import PARTS, some

torch.set_num_threads(1)
B, T = 3, 7
QKVO = ("attention.q", "attention.k", "attention.v", "attention.o")


def all_of(kind: str) -> dict[str, Any]:
    return dict.fromkeys(QKVO, kind)


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in PRESETS}
VARIANTS |= {
    "swiglu": ("std-t", {"mlp.gate": "dense", "mlp.activation": "silu"}),
    "swiglu-ind": ("lfa", {"mlp.gate": "ind", "mlp.up": "ind", "mlp.down": "ind", "mlp.activation": "silu"}),
    "all-ind": ("std-t", all_of("ind") | {"mlp.up": "ind", "mlp.down": "ind"}),
    "all-kron": ("lfa", all_of("kron") | {"mlp.d_mlp": 32, "mlp.up": "kron", "mlp.down": "kron", "mlp.gate": "kron"}),
    "all-identity": ("dst-dense", all_of("id")),
    "norms-after": ("llama", {"norm_place": "after", "attention.qk_norm": "rms", "attention.qk_norm_over": "layer"}),
    "norms-both": ("llama", {
        "norm_place": "both", "attention.softcap": 2.0, "attention.scale_width": 5.0, "attention.window": 3,
        "attention.full_every": 2, "positions.local_base": 9.0, "readout.softcap": 1.5, "embed_scale": 3.0,
    }),
    "learned": ("lfa", {"positions": "learned"}),
    "alibi": ("lfa", {"positions": "alibi"}),
    "none": ("std-t", {"positions": "none"}),
    "partial-rope": ("std-t", {"positions": "rope", "positions.fraction": 0.25}),
    "rms": ("dst-kron", {"norm": "rms", "readout.norm": "rms"}),
    "channel": ("std-t", {"norm": "channel", "readout.norm": "channel"}),
    "values-token-raw": ("dst-kron", {"residual.value_norm": False}),
    "values-token-own": ("lfa", {"residual.value_norm": True}),
    "values-combined": ("dst-ind", {"residual.values": "combined"}),
    "values-combined-raw": ("pls", {"residual.value_norm": False}),
    "parallel": ("dst-kron", {"residual.order": "parallel"}),
    "detached": ("lfa", {"residual.detach_token": True}),
    "untied": ("pls", {"readout.tied": False}),
    "canon-swiglu": ("canon", {"mlp.gate": "dense", "mlp.activation": "silu"}),
    "canon-ad": ("gpt2", {"canon": "canon", "canon.places": "AD", "canon.kernel": 2}),
    "canon-dual-stream": ("dst-kron", {"canon": "canon", "attention.gate": "gate"}),
    "hc": ("kromhc", {"residual": "hc"}),
    "mhc": ("kromcanon", {"residual": "mhc", "residual.n": 3}),
    "mhc-lite": ("gpt2", {"residual": "mhc_lite", "attention.v": "kron", "attention.o": "ind"}),
    "kromhc-static-8": ("gpt2", {"residual": "kromhc", "residual.dynamic": False, "residual.n": 8}),
    "kromhc-routing-only": ("kromhc", {"residual.freeze_res": True}),
    "kromhc-supervised-gated": ("pls", {"residual": "kromhc", "canon": "canon"}),
    "own-layer-norms": ("pls", {"readout.layer_norms": "own"}),
    "hdpl-everywhere": ("hdpl", {"attention.o": "hdpl", "mlp.down": "hdpl", "attention.v.rank": 5}),
    "hdpl-plain-ffn": ("lfa", {"mixing": "hdpl-dns/hdpl-hdpl", "attention.gate": "gate"}),
}  # fmt: skip
for _shape, _source in [("scalar", "query"), ("scalar", "value"), ("vector", "normed"), ("vector", "value")]:
    _gate = {"attention.gate": "gate", "attention.gate.shape": _shape, "attention.gate.source": _source}
    VARIANTS[f"gate-{_shape}-{_source}"] = ("lfa", _gate)
every = pytest.mark.parametrize("variant", some(VARIANTS, [v for v in VARIANTS if v in PARTS or v not in PRESETS]))


def make(variant: str) -> StreamTransformer:
    name, overrides = VARIANTS[variant]
    return build(name, "tiny", **overrides)


def tokens(model: StreamTransformer) -> Tensor:
    return torch.randint(model.config.d_vocab, (B, T), generator=torch.Generator().manual_seed(0))


def fire(model: StreamTransformer) -> list[tuple[str, Tensor]]:
    """(name, activation) of every hook, in the order of one forward pass."""
    fired: list[tuple[str, Tensor]] = []

    def note(x: Tensor, hook: Any) -> None:
        fired.append((hook.name, x.detach().clone()))

    with torch.no_grad(), model.hooks(fwd_hooks=[(lambda name: True, note)]):
        model(tokens(model))
    return fired


@every
def test_names_and_order(variant: str) -> None:
    """The model has exactly the table's hooks, and they fire once each, in the table's order."""
    model = make(variant)
    expected = [name for name, _ in expected_hooks(model.config)]
    assert len(expected) == len(set(expected))
    assert set(model.hook_dict) == set(expected)
    assert [name for name, _ in fire(model)] == expected


@every
def test_shapes(variant: str) -> None:
    """Every activation has one of its row's shapes, and begins with the batch."""
    model = make(variant)
    c = model.config
    sizes = {"B": B, "T": T, "D": c.d_model, "H": c.n_heads, "G": c.kv_heads, "K": c.d_head, "M": c.d_mlp, "1": 1}
    ranks = {path: spec.latent_width(i, o) for path, spec, i, o in c.projections() if isinstance(spec, Hdpl)}
    sizes |= {"3D": 3 * c.d_model, "2M": 2 * c.d_mlp, "N": getattr(c.residual, "n", 0)}
    projections = {name: (d_in // c.n_heads, d_out // c.n_heads) for name, _, d_in, d_out in c.projections()}
    for name, x in fire(model):
        row = row_of(name)
        assert row is not None, name
        own = dict(sizes)
        owner = ".".join(name.split(".")[2:4])
        if owner in ranks:
            own["R"] = ranks[owner]
        if name.endswith("_mix"):
            part = ".".join(name.split(".")[2:]).replace("hook_", "").removesuffix("_mix")
            own["in"], own["out"] = projections[part]
        allowed = [[own[letter] for letter in shape.split()] for shape in row.shape.split(" | ")]
        assert list(x.shape) in allowed, f"{name}: {list(x.shape)}, the table says {row.shape}"
        assert x.shape[0] == B, name


@pytest.mark.parametrize("variant", ["std-t", "lfa", "pls", "dst-kron", "kromcanon", "hc"])
def test_rows_of_a_batch_are_independent(variant: str) -> None:
    """The first axis is the batch: permuting the prompts permutes every activation, mixing matrices too."""
    model = make(variant).double()
    t, order = tokens(model), torch.tensor([2, 0, 1])
    _, straight = model.run_with_cache(t, return_cache_object=False)
    _, turned = model.run_with_cache(t[order], return_cache_object=False)
    for name, x in straight.items():
        torch.testing.assert_close(turned[name], x[order], rtol=0, atol=1e-12, msg=name)


@every
def test_kinds_of_points(variant: str) -> None:
    """A row's `edit` and `on_demand` say what the model's points are."""
    model = make(variant)
    for name, row in expected_hooks(model.config):
        point = model.hook_dict[name]
        assert isinstance(point, ObservePoint) == (not row.edit(model.config)), name
        assert isinstance(point, OnDemand) == row.on_demand, name


def test_every_row_is_used() -> None:
    """No row of the table is dead: some variant above has it."""
    used: set[str] = set()
    for variant in VARIANTS:
        used |= {row.name for _, row in expected_hooks(make(variant).config)}
    assert {row.name for row in HOOKS} == used


def test_row_names_are_unique() -> None:
    """One row per name, so that `row_of` is a function."""
    assert [n for n, k in Counter(row.name for row in HOOKS).items() if k > 1] == []
    assert row_of("blocks.17.attn.hook_z") is row_of("blocks.0.attn.hook_z")
    assert row_of("blocks.0.attn.hook_zz") is None


@every
def test_unhooked_run_computes_nothing_on_demand(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without listeners no on-demand point is called; with one on the pattern, both attention points are."""
    model = make(variant)
    called: list[str] = []

    def forward(self: OnDemand, x: Tensor) -> Tensor:
        called.append(str(self.name))
        return x

    monkeypatch.setattr(OnDemand, "forward", forward)
    model(tokens(model))
    assert called == []
    with model.explicit_attention():
        model(tokens(model))
    layers = range(model.config.n_layers)
    assert called == [f"blocks.{i}.attn.{n}" for i in layers for n in ("hook_attn_scores", "hook_pattern")]
    called.clear()
    model(tokens(model))
    assert called == []


@every
def test_listening_does_not_change_the_result(variant: str) -> None:
    """Explicit scores, norms and mixing matrices agree with the fused path to 1e-12 in float64."""
    model = make(variant).double()
    t = tokens(model)
    plain = model(t)
    hooked, _ = model.run_with_cache(t)
    torch.testing.assert_close(hooked, plain, rtol=0, atol=1e-12)
    assert torch.equal(model(t), plain)
