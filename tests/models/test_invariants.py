"""For every architecture and random combinations: causality, segments, seeds, configurations, training, hooks."""

import itertools
import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from streamscope.models import config as c
from streamscope.models.config.presets import PRESETS, preset
from streamscope.models.config.serialization import from_dict, override, parse_mixing, to_dict
from streamscope.models.hooks import capture, concrete_shape, expected_hooks
from streamscope.models.make import build
from streamscope.models.sweep import map_state
from streamscope.models.training.config import Training, with_recipe
from streamscope.models.training.optim import make_optimizer, set_lr
from streamscope.models.transformer import StreamTransformer
from tests.tiny import PARTS, assert_refused, randomise, some

VECTOR = c.Gate(shape="vector", source="normed", bias=True, init="normal")
SWIGLU = c.Mlp(gate=c.Independent(), activation="silu")
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in PRESETS}
SLOW = {name for name in PRESETS if name not in PARTS}
for kind, order, values, raw in itertools.product(
    ("token_factor", "frozen_token"), ("sequential", "parallel"), ("token", "combined"), (False, True)
):
    part = c.Residual.kinds[kind](order=order, values=values, value_norm=not raw)
    VARIANTS[f"{kind} {order} {values}{' raw' if raw else ''}"] = ("dst-kron", {"residual": part})
    if (kind == "frozen_token") ^ (order == "parallel") ^ (values == "combined") ^ raw:  # any three choices stay
        SLOW.add(list(VARIANTS)[-1])
for positions in ("rope", "alibi", "learned", "none"):
    VARIANTS[f"positions {positions}"] = ("lfa", {"positions": positions})
for mixing in ("id-id/dns-dns", "kron-ind/ind-dns", "ind-kron/dns-ind", "dns-id/ind-ind"):
    VARIANTS[f"mixing {mixing}"] = ("lfa", {"mixing": mixing})
VARIANTS |= {
    "q kron, k ind": ("lfa", {"attention.q": "kron", "attention.k": "ind"}),
    "gate vector, normed": ("dst-ind", {"attention.gate": VECTOR}),
    "gate scalar, value": ("std-t", {"attention.gate": c.Gate(source="value", init="normal")}),
    "swiglu, rms": ("std-t", {"mlp": SWIGLU, "norm": "rms", "readout.norm": "rms"}),
    "partial rope": ("std-t", {"positions": c.Rope(fraction=0.25)}),
    "untied": ("lfa", {"readout.tied": False}),
    "own layer norms": ("pls", {"readout.layer_norms": "own"}),
    "detached token stream": ("lfa", {"residual.detach_token": True}),
    "canon, swiglu, k 2": ("gpt2", {"canon": c.Canon(kernel=2, activation="silu"), "mlp": SWIGLU}),
    "canon AD, no residual, own values": ("dst-kron", {"canon": c.Canon(places="AD", residual=False)}),
    "supervised, gated, kromhc, canon": ("pls", {"residual": "kromhc", "canon": "canon"}),
}
for connection in ("hc", "mhc", "mhc_lite", "kromhc"):
    mild = {} if connection == "hc" else {"residual.b_res": -1.0}
    for option, value in [("dynamic", True), ("dynamic", False), ("freeze_res", True), ("post_input", "mixed")]:
        changes = {"residual": connection, f"residual.{option}": value, **mild}
        VARIANTS[f"{connection}, {option} {value}"] = ("gpt2", changes)
        if connection != "kromhc" and (option, value) != ("dynamic", True):
            SLOW.add(list(VARIANTS)[-1])
FROZEN = [n for n, (base, over) in VARIANTS.items() if preset(base, "tiny", **over).residual.kind == "frozen_token"]
SLOW |= {"positions learned", "positions rope", "mixing kron-ind/ind-dns", "mixing dns-id/ind-ind", "partial rope"}
SLOW |= {"q kron, k ind", "canon, swiglu, k 2", "kromhc, freeze_res True"}  # parts that the others have too
every = pytest.mark.parametrize("variant", some(VARIANTS, VARIANTS.keys() - SLOW))


def make(variant: str, **more: Any) -> Any:
    """A tiny model in float64, its weights large enough that every part matters, γ and β included."""
    name, overrides = VARIANTS[variant]
    return randomise(build(name, "tiny", **overrides, **more).double(), std=0.1)


def tokens(batch: int = 2, length: int = 12, seed: int = 0) -> Tensor:
    return torch.randint(256, (batch, length), generator=torch.Generator().manual_seed(seed))


def flat(state: Any) -> list[Tensor]:
    return [t for t in state if t is not None] if isinstance(state, tuple) else [state]


@every
@torch.no_grad()
def test_a_later_token_never_changes_an_earlier_logit(variant: str) -> None:
    model, x = make(variant), tokens(1, 12)
    before = model(x)
    for position in (1, 6, 11):
        y = x.clone()
        y[0, position] = (y[0, position] + 1) % 256
        after = model(y)
        torch.testing.assert_close(after[:, :position], before[:, :position], rtol=0, atol=1e-10)
        assert (after[:, position] - before[:, position]).abs().max() > 1e-4, "and it does change its own"


@pytest.mark.parametrize("variant", FROZEN)
@torch.no_grad()
def test_the_frozen_stream_is_the_embedding_bit_for_bit(variant: str) -> None:
    model, x = make(variant, n_layers=4), tokens()
    with capture(model, ["hook_embed", "blocks.*.hook_token_*", "blocks.*.hook_context_post"]) as found:
        model(x)
    start = model.embed_tokens(x)
    assert torch.equal(model.segment(start).x_t, start.x_t)
    for name in [n for n in found if "token" in n]:
        assert torch.equal(found[name], start.x_t), name
    if not model.config.positions.table:
        assert torch.equal(start.x_t, found["hook_embed"])
    assert all(found[f"blocks.{layer}.hook_context_post"].abs().min() > 0 for layer in range(4))


@every
@torch.no_grad()
def test_segments_compose_bit_for_bit(variant: str) -> None:
    model, x = make(variant, n_layers=3), tokens()
    whole = model.segment(model.embed_tokens(x))
    for stop in range(4):
        halves = model.segment(model.segment(model.embed_tokens(x), 0, stop), stop)
        assert all(torch.equal(a, b) for a, b in zip(flat(halves), flat(whole), strict=True))
    assert torch.equal(model.logits(whole), model(x))
    prefix = model.segment(model.embed_tokens(x), 0, 1)
    kept = [t.clone() for t in flat(prefix)]
    model.segment(prefix, 1)
    assert all(torch.equal(a, b) for a, b in zip(kept, flat(prefix), strict=True)), "a cached state stays as it was"
    state = map_state(lambda t: torch.cat([t, t, t]), prefix)
    torch.testing.assert_close(model.logits(model.segment(state, 1)), model(x).repeat(3, 1, 1), rtol=0, atol=1e-10)


@every
@torch.no_grad()
def test_logits_at_are_a_slice_of_all_logits(variant: str) -> None:
    model, x = make(variant), tokens()
    full, at = model(x), torch.tensor([[3, 0, -1], [11, -12, 5]])
    torch.testing.assert_close(model(x, logits_at=at), full[torch.arange(2)[:, None], at], rtol=0, atol=1e-10)
    one_each = model(x, logits_at=torch.tensor([4, -2]))
    torch.testing.assert_close(one_each, full[[0, 1], [4, 10]][:, None], rtol=0, atol=1e-10)


def test_detaching_the_token_stream_leaves_the_head_to_train_the_embedding() -> None:
    model, x = make("detached token stream"), tokens()
    model.loss(x, x)[0].backward()
    detached = model.embed.weight.grad.clone()
    model = make("lfa")
    model.loss(x, x)[0].backward()
    assert detached.any() and not torch.allclose(detached, model.embed.weight.grad)


@every
def test_the_seed_decides_the_weights_and_nothing_else(variant: str) -> None:
    name, overrides = VARIANTS[variant]
    torch.manual_seed(1)
    before = torch.get_rng_state()
    a, b, other = (build(name, "tiny", seed=seed, **overrides).state_dict() for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before), "the global generator is left alone"
    torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert not torch.equal(a["embed.weight"], other["embed.weight"])


@every
def test_configurations_survive_json(variant: str) -> None:
    name, overrides = VARIANTS[variant]
    config = preset(name, "tiny", **overrides)
    assert from_dict(c.ModelConfig, json.loads(json.dumps(to_dict(config)))) == config


def test_every_signature() -> None:
    for v, o, up, down in itertools.product(["id", "ind", "kron", "dns"], repeat=4):
        signature = f"{v}-{o}/{up}-{down}"
        assert list(parse_mixing(signature).values()) == [v, o, up, down]
        if {up, down} & {"id", "kron"}:  # no square map from D to 4 D
            assert_refused("keeps the width", preset, "lfa", "tiny", mixing=signature)
            continue
        config = preset("lfa", "tiny", mixing=signature)
        assert config.mixing == signature and override(config, parse_mixing(signature)) == config


@pytest.mark.parametrize("name", PRESETS)
def test_the_signature_of_a_preset_gives_the_preset_back(name: str) -> None:
    config = preset(name, "tiny")
    assert preset(name, "tiny", mixing=config.mixing) == config


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("lfa", {"n_layer": 2}, "unknown field of model 'n_layer': did you mean n_layers"),
    ("lfa", {"attention.w": "dns"}, "unknown field of attention 'w'"),
    ("lfa", {"attention.v": "krone"}, "unknown kind of attention.v 'krone': did you mean kronecker"),
    ("lfa", {"attention.gate.shape": "vector"}, "attention.gate is none: set attention.gate=KIND"),
    ("lfa", {"n_layers.x": 1}, "n_layers has no fields"),
    ("lfa", {"residual.values": "both"}, "frozen_token.values: input should be 'token' or 'combined'"),
    ("lfa", {"dropout": 1.0}, r"dropout must be below 1, got 1\.0"),
    ("lfa", {"mixing": "kron/dns"}, "mixing 'kron/dns' is not <v>-<o>/<up>-<down>"),
    ("lfa", {"mixing": "kron-krn/dns-dns"}, "unknown kind of attention.o 'krn': did you mean kron"),
    ("lfa", {"mixing": "kron-kron/dns-dns (q-k ind)"}, r"mixing 'kron.*ind\)' is not <v>-<o>/<up>-<down>"),
    ("lfa", {"positions.stretch": "stretch"}, r"positions\.stretch lacks the field factor"),
    ("lfa", {"init.weight": "normal"}, "unknown field of init 'weight': did you mean weights"),
    ("lfa", {"init.weights": "xavier"}, "unknown kind of init.weights 'xavier'"),
    ("lfa", {"attention.q.init.gain": "1"}, "set attention.q.init=KIND before"),
    ("lfa", {"attention.v.init": c.FanInNormal}, "attention.v.init: expected an object"),
    ("lfa", {"init.head": "tied"}, "initial.head: input should be 'own' or 'copy'"),
    ("gpt2", {"residual": "kromhc", "residual.values": "token"}, "unknown field of residual 'values'"),
    ("d-cas", {"mlp.up": "id"}, "mlp.up: identity mixing keeps the width, but here 32 become 128"),
    ("d-cas", {"mlp.gate": "id"}, "mlp.gate: identity mixing keeps the width"),
    ("d-cas", {"mlp.up": "ind", "mlp.d_mlp": 130}, "mlp.up: 4 independent heads do not divide both widths, 32 -> 130"),
    ("d-cas", {"n_heads": 6}, "6 heads do not divide the width 32; the nearest width that fits is 30"),
    ("std-t", {"d_model": 30, "attention.d_head": 8, "readout.norm": "channel"}, "4 heads do not divide the width 30"),
    ("d-cas", {"attention.gate": c.Gate(source="value"), "attention.d_head": 16}, "reads 8 dimensions per head, but"),
    ("d-cas", {"n_heads": 32, "positions": "rope"}, "RoPE rotates pairs"),
    ("hdpl", {"attention.q.rank": 32}, "attn.q: a latent of 32 is not a bottleneck between 32 and 32"),
    ("hdpl", {"mlp.up.groups": 3}, "mlp.up: 3 blocks do not divide both widths, 32 -> 128; set mlp.up.groups"),
    ("hdpl", {"attention.q.kl_weight": -1.0}, r"hdpl\.kl_weight must be at least 0, got -1"),
    ("hdpl", {"attention.q.kl": "max"}, "hdpl.kl: input should be 'clamp' or 'free_bits'"),
]
CALLS: list[tuple[Any, str]] = [
    (lambda: preset("lfaa"), "unknown preset 'lfaa': did you mean lfa"),
    (lambda: preset("lfa", "huge"), "unknown scale 'huge': known: paper, small, zoo, tiny"),
    (lambda: from_dict(c.ModelConfig, {"layers": 2}), "unknown field of config 'layers'"),
    (lambda: from_dict(c.ModelConfig, [1]), r"config: expected an object, got \[1\]"),
    (lambda: c.KromHC(n=3), "kromhc multiplies 2 x 2 matrices, so n must be 2, 4, 8, …"),
    (lambda: c.MHCLite(n=6), r"mhc_lite\.n must be at most 5, got 6"),
    (lambda: c.Stretch(factor=0.0, original=40), r"stretch\.factor must be above 0"),
    (lambda: c.Canon(places="BA"), "some of A, B, C, D in this order"),
    (lambda: c.Canon(kernel=5), r"canon\.kernel must be at most 4, got 5"),
]


@pytest.mark.parametrize(("name", "changes", "line"), REFUSED)
def test_refused_overrides(name: str, changes: dict[str, Any], line: str) -> None:
    assert_refused(line, preset, name, "tiny", **changes)


@pytest.mark.parametrize(("call", "line"), CALLS)
def test_refused_parts_and_files(call: Any, line: str) -> None:
    assert_refused(line, call)


B, T, STEPS = 3, 9, 4
STREAMS = ("hc", "mhc", "mhc_lite", "kromhc")
SQUARE = ("id", "ind", "kron", "dns")


def combination(seed: int) -> dict[str, Any]:
    """Overrides of gpt2 at scale tiny, drawn from every kind of part."""
    rng = random.Random(seed)

    def drawn(**options: Sequence[Any]) -> dict[str, Any]:
        return {name: rng.choice(values) for name, values in options.items()}

    # the topologies take turns, so that few seeds meet all of them
    residual = [*STREAMS, "token_factor", "frozen_token", "single"][seed % 7]
    fields: dict[str, Any] = {}
    if residual in STREAMS:
        fields = drawn(n=[2, 4] if residual == "mhc_lite" else [2, 4, 8], dynamic=[True, True, False],
                       dyn_act=["tanh", "none"], post_input=["same", "mixed"], reduce=["sum", "mean"],
                       freeze_res=[True, *[False] * 4], hc_dtype=["fp32", "bf16"])  # fmt: skip
        fields |= drawn(b_res=[-8.0, -2.0, -1.0, 0.0]) if residual != "hc" else {}
    elif residual != "single":
        fields = drawn(values=["token", "combined"], value_norm=[True, False], order=["sequential", "parallel"])
    places = "".join(p for p in "ABCD" if rng.random() < 0.6)
    kernels = drawn(kernel=[2, 3, 4], activation=["none", "silu"], init=["uniform", "normal"])
    canon = c.Canon(places=places or "A", residual=rng.random() < 0.7, **kernels)
    gate = c.Gate(**drawn(shape=["scalar", "vector"], source=["query", "normed", "value"], init=["zero", "normal"]))
    supervision = rng.choice([None, c.Supervision(**drawn(weights=["linear", "uniform", "exponential"]))])
    changes = {
        "mixing": "{v}-{o}/{up}-{down}".format(**drawn(v=SQUARE, o=SQUARE, up=["ind", "dns"], down=["ind", "dns"])),
        "residual": c.Residual.kinds[residual](**fields), "canon": rng.choice([canon, canon, None]),
        "attention.gate": rng.choice([gate, None]), "readout.supervision": supervision,
    }  # fmt: skip
    changes |= drawn(**{
        "readout.tied": [True, False], "readout.layer_norms": ["shared", "own"] if supervision else ["shared"],
        "positions": ["rope", "alibi", "learned", "none"], "norm": ["layer", "channel", "rms"], "dropout": [0.0, 0.1],
    })  # fmt: skip
    if rng.random() < 0.3:
        changes |= {"mlp.gate": rng.choice(["ind", "dns"]), "mlp.activation": "silu"}
    hybrid = c.Hdpl(**drawn(kl=["clamp", "free_bits"], dirac=["first", "every"]))
    places = [f"attention.{name}" for name in "qkvo"] + ["mlp.up", "mlp.down"]
    return changes | {place: hybrid for place in places if seed % 3 == 0 and rng.random() < 0.5}


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


def check_hooks(model: StreamTransformer, tokens: torch.Tensor) -> None:
    expected = list(expected_hooks(model.config))
    with capture(model, "*") as found, torch.no_grad():
        model(tokens)
    assert list(model.hook_dict) != [] and list(found) == [name for name, _ in expected]
    for name, row in expected:
        shape = concrete_shape(row, name, model.config).split()
        assert [str(n) for n in found[name].shape] == [{"B": str(B), "T": str(T)}.get(s, s) for s in shape], name
