"""Shared passes give what one pass per edit gives, and compute no more than they must."""

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from streamscope.interventions.edits import resample_heads, scale_heads
from streamscope.models import build
from streamscope.models import sweep as sweep_module
from streamscope.models.config.presets import PRESETS
from streamscope.models.head_spec import Head
from streamscope.models.hooks import Captures, Edits, ObservePoint, Query, capture, edit, run
from streamscope.models.sweep import EMBED, passes, run_sweep, start_of
from streamscope.models.transformer import StreamTransformer
from tests.hooks.test_run import LOGITS, POSITIONS, PROMPTS
from tests.tiny import FOUR, assert_refused, randomise, some

TOKENS = torch.randint(256, (3, 7), generator=torch.Generator().manual_seed(5))
AT = torch.tensor([[6], [2], [4]])
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ("std-t", "lfa", "dst-kron", "pls", "llama")},
    **{name: (name, {}) for name in ("hdpl", "canon", "kromhc", "kromcanon")},
    "alibi": ("std-t", {"positions": "alibi"}),
    "canon a only": ("gpt2", {"canon": "canon", "canon.places": "A"}),
    "gate from values": ("lfa", {"attention.gate": "gate", "attention.gate.source": "value"}),
}  # fmt: skip


def make(case: str, dtype: torch.dtype = torch.float64, n_layers: int = 3) -> StreamTransformer:
    name, overrides = CASES[case]
    return randomise(build(name, "tiny", n_layers=n_layers, init_std=0.2, seed=1, **overrides), std=0.2).to(dtype)


def mixed(x: Tensor, hook: Any) -> Tensor:
    """Depends on the position and on the other rows of the batch: it notices any other batch or other positions."""
    ramp = torch.linspace(0.2, 0.9, x.shape[1], dtype=x.dtype).reshape(1, -1, *[1] * (x.ndim - 2))
    return ramp * x + 0.1 * x.flip(0) + torch.linspace(0.02, 0.1, x.shape[-1], dtype=x.dtype)


def ablate(x: Tensor, hook: Any, *, heads: Sequence[int]) -> Tensor:
    keep = torch.ones(x.shape[2], dtype=x.dtype)
    keep[list(heads)] = 0
    return x * keep[:, None]


def without(heads: Sequence[tuple[int, int]]) -> Edits:
    layers = sorted({layer for layer, _ in heads})
    return {f"blocks.{n}.attn.hook_z": partial(ablate, heads=[h for m, h in heads if m == n]) for n in layers}


HEADS = list(itertools.product(range(3), range(4)))
SINGLES = [without([head]) for head in HEADS]


def streams(model: Any, sweep: Sequence[Edits], tokens: Tensor = TOKENS, at: Tensor | None = None) -> list[Tensor]:
    return [h for h, _ in passes(model, tokens, sweep, at=at)]


def log_probs(model: StreamTransformer, h: Tensor) -> Tensor:
    return (h @ model.head.T).log_softmax(-1)


def alone(model: StreamTransformer, edits: Edits, tokens: Tensor = TOKENS, at: Tensor | None = None) -> Tensor:
    with torch.no_grad(), edit(model, edits):
        every = model(tokens).log_softmax(-1)
    return every if at is None else torch.stack([row[p] for row, p in zip(every, at, strict=True)])


def assert_same(model: StreamTransformer, sweep: Sequence[Edits], tolerance: float = 1e-10, **options: Any) -> None:
    """Every member's ln p equals that of its own pass, and none is the unedited model's unless it is {}."""
    at, tokens = options.get("at"), options.get("tokens", TOKENS)
    plain = alone(model, {}, tokens, at)
    for e, h in enumerate(streams(model, sweep, **options)):
        expected = alone(model, sweep[e], tokens, at)
        got = log_probs(model, h).detach()
        np.testing.assert_allclose(got, expected, atol=tolerance, rtol=0, err_msg=str(sweep[e]))
        if sweep[e] and tokens.shape[1] > 1:
            assert (expected - plain).abs().max() > 1e-9, f"{sweep[e]} does nothing, so it tests nothing"


@pytest.mark.parametrize(("case", "at"), [
    pytest.param(case, at, id=f"{case}-{where}", marks=[] if case in fast else pytest.mark.slow)
    for where, at, fast in (
        ("everywhere", None, {"pls"}),
        ("answers", AT, {*FOUR, "alibi", "gate from values"}),
    )
    for case in CASES
])  # fmt: skip
def test_an_edit_at_every_hook_of_the_model(case: str, at: Tensor | None) -> None:
    """One sweep over all of them: no start is too late, no position left out."""
    model = make(case, n_layers=2)
    names = [n for n, p in model.hook_dict.items() if not isinstance(p, ObservePoint)]
    assert_same(model, [{}, *({name: mixed} for name in names)], at=at)


THREE = torch.tensor([[0, 3, 6], [2, 2, 6], [0, 5, 1]])
Z, OUT, TOKEN = "blocks.{}.attn.hook_z", "blocks.{}.hook_mlp_out", "blocks.{}.hook_token_post"
BEHIND: list[Edits] = [{OUT.format(2): mixed}, {"blocks.2.hook_resid_mid": mixed}]
NORM: Edits = {"ln_final.hook_scale": mixed}
SWEEPS: dict[str, tuple[str, list[Edits]]] = {
    "singles, pairs, sets": ("pls", [
        *SINGLES, *(without(pair) for pair in itertools.combinations(HEADS, 2)),
        *(without(random.Random(n).sample(HEADS, n)) for n in (3, 5, 8, 12)),
    ]),
    "several places": ("lfa", [
        {Z.format(0): mixed, OUT.format(2): mixed}, {Z.format(0): mixed, OUT.format(1): mixed},
        {Z.format(0): mixed, "ln_final.hook_normalized": mixed}, {"hook_embed": mixed, Z.format(2): mixed},
        {TOKEN.format(1): mixed, Z.format(2): mixed}, {TOKEN.format(1): mixed},
        {"blocks.*.attn.hook_q": mixed, **NORM}, {"blocks.2.hook_attn_in": mixed, Z.format(2): mixed},
    ]),
    "different parts of the last layer": (
        "std-t", [*BEHIND, SINGLES[0], {**SINGLES[0], **BEHIND[0]}, *SINGLES[8:10], NORM]),
    "behind its z": ("std-t", BEHIND), "the norm": ("std-t", [NORM]),
}  # fmt: skip


@pytest.mark.parametrize("at", [None, AT, THREE], ids=["losses", "answers", "three"])
@pytest.mark.parametrize("name", SWEEPS)
def test_edits_of_several_heads_and_places(name: str, at: Tensor | None) -> None:
    model, sweep = make(SWEEPS[name][0]), SWEEPS[name][1]
    assert_same(model, [{}, *sweep], at=at)


@pytest.mark.parametrize("name", ["blocks.0.mlp", "blocks.2.attn.q", "blocks.2.ln2", "blocks.2.mlp", "ln_final"])
def test_a_hook_on_a_module_acts_at_its_positions(name: str) -> None:
    """torch's own hook, which depends on the position, in every pass and whatever positions are wanted."""
    model = make("std-t")
    plain = alone(model, {}, at=AT)
    model.get_submodule(name).register_forward_hook(lambda module, inputs, x: mixed(x, None))
    hooked = alone(model, {}, at=AT)
    assert (hooked - plain).abs().max() > 1e-9
    torch.testing.assert_close(model(TOKENS, logits_at=AT).log_softmax(-1), hooked)
    for at in (None, AT):
        assert_same(model, [{}, *SINGLES], at=at)


@pytest.mark.parametrize("name", ["", "blocks.1", "blocks.1.attn", "unembed"])
def test_a_hook_on_a_module_that_is_taken_apart_is_refused(name: str) -> None:
    """Its instrument would say that it measures the model with the hook, which never acted."""
    model = make("std-t")
    handle = model.get_submodule(name).register_forward_hook(lambda module, inputs, x: x * 2)
    assert_refused(f"hook of yours at {name or 'StreamTransformer'} would not act", streams, model, [{}])
    handle.remove()
    streams(model, [{}])


@pytest.mark.parametrize("tokens_at_once", [1, 45, 1024])
def test_edits_that_start_together_share_a_pass(tokens_at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two edits of three sequences of seven tokens fit into 45; an edit sees its own copy, and so does a capture."""
    monkeypatch.setattr(sweep_module, "TOGETHER", tokens_at_once)
    model, name = make("lfa"), "blocks.2.hook_mlp_out"
    calls: list[int] = []
    model.blocks[2].mlp.up.register_forward_hook(lambda *given: calls.append(len(given[-1])))
    monkeypatch.setattr(sweep_module, "any_hooks", lambda model: False)
    sweep = [{}, *SINGLES[4:8], {Z.format(1): mixed, "blocks.1.*_z": lambda x, hook: x.cos()}, {}, SINGLES[0]]
    shown = [captured[name] for _, captured in passes(model, TOKENS, sweep, names=[name])]
    assert calls == {1: [3] * 7, 45: [3, 6, 6, 3, 3], 1024: [3, 15, 3]}[tokens_at_once]
    for edits, x in zip(sweep, shown, strict=True):
        with edit(model, edits), capture(model, [name]) as expected:
            model(TOKENS)
        torch.testing.assert_close(x, expected[name])


def test_an_edit_in_a_shared_pass_that_is_not_finite_is_named() -> None:
    model, fine = make("lfa"), {"blocks.1.hook_mlp_out": mixed}
    returned = {"blocks.1.hook_mlp_out": lambda x, hook: x * torch.inf}
    assert_refused("the edit of blocks.1.hook_mlp_out returned values", streams, model, [fine, returned])
    overflows = {"blocks.1.mlp.hook_post": lambda x, hook: torch.full_like(x, 1.7e308)}
    assert_refused("under the edit of blocks.1.mlp.hook_post the results are not", streams, model, [fine, overflows])


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (5, 1)])
def test_small_batches(shape: tuple[int, int]) -> None:
    """A batch of one, and sequences of one token: there, gating heads is all that can act."""
    model, tokens = make("kromhc"), TOKENS.new_ones(shape)
    assert_same(model, [{}, *SINGLES], tokens=tokens, at=torch.zeros(shape[0], 1, dtype=torch.long))


def test_the_unedited_pass_is_the_plain_one_bit_for_bit() -> None:
    model = make("lfa", torch.float32)
    (first, *_) = streams(model, [{}, *SINGLES])
    with torch.no_grad():
        plain = model.ln_final(model.readout(model.segment(model.embed_tokens(TOKENS))))
    assert torch.equal(first, plain)


@pytest.mark.parametrize("case", some(["std-t", "lfa", "kromcanon", "hdpl"], ["lfa", "kromcanon"]))
def test_captures_of_every_hook(case: str) -> None:
    """What a hook shows under an edit, before its place too; with final streams and without."""
    model = make(case)
    stream = model.config.residual.streams[0] if model.config.residual.streams else "resid"
    sweep = [{}, SINGLES[1], SINGLES[6], SINGLES[10], without(HEADS[::3]), {f"blocks.1.hook_{stream}_post": mixed}]
    names = list(model.hook_dict)
    for wanted in (True, False):
        for edits, (h, got) in zip(sweep, passes(model, TOKENS, sweep, names=names, streams=wanted), strict=True):
            assert (h is None) != wanted
            with torch.no_grad(), edit(model, edits), capture(model, names) as expected:
                model(TOKENS)
            assert set(got) == set(expected)
            for name, x in expected.items():
                np.testing.assert_allclose(got[name], x, atol=1e-10, err_msg=f"{name} under {list(edits)}")


@torch.no_grad()
def test_the_last_captured_hook_shows_its_own_edit() -> None:
    model, name = make("std-t"), "blocks.1.attn.hook_z"
    _, (_, captured) = passes(model, TOKENS, [{}, SINGLES[6]], names=[name], streams=False)
    (got,) = captured.values()
    with edit(model, SINGLES[6]), capture(model, [name]) as expected:
        model(TOKENS)
    torch.testing.assert_close(got, expected[name])
    assert not got[:, :, 2].any() and got[:, :, 1].any()


def counted(model: StreamTransformer, monkeypatch: pytest.MonkeyPatch) -> Counter:
    """Positions that go through each layer's key projection and its FFN: (layer, "k" or "up") -> rows."""
    rows: Counter = Counter()
    for layer, block in enumerate(model.blocks):
        for part, name in ((block.attn, "k"), (block.attn, "q"), (block.mlp, "up")):
            module: Any = part._modules[name]

            def forward(x: Tensor, *rest: Any, key: Any = (layer, name), plain: Any = module.forward) -> Tensor:
                rows[key] += x.shape[0] * x.shape[1]
                return plain(x, *rest)

            monkeypatch.setattr(module, "forward", forward)
    return rows


def test_a_sweep_over_heads_starts_at_z_and_ends_at_the_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 pass + 4 heads per layer, attention of a head's own layer never again."""
    model, tokens = make("std-t"), TOKENS[[0, 1, 2, 0]]
    rows, one = counted(model, monkeypatch), tokens.numel()
    streams(model, [{}, *SINGLES, {}], tokens, at=torch.full((4, 1), 6))
    assert [rows[n, "k"] / one for n in range(3)] == [1, 5, 9]
    assert [rows[n, "up"] for n in range(3)] == [5 * one, 9 * one, 13 * 4]


@pytest.mark.parametrize("case", ["canon", "kromcanon"])
def test_a_convolution_after_the_heads_needs_the_whole_last_layer(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(case)
    assert not model.blocks[2].positionwise
    rows = counted(model, monkeypatch)
    streams(model, [{}, SINGLES[0]], at=AT)
    assert rows[2, "up"] == 2 * TOKENS.numel()


def test_passes_for_attention_end_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patterns wanted only: edits of the last layer's heads cost nothing."""
    model = make("std-t")
    rows, one = counted(model, monkeypatch), TOKENS.numel()
    outcomes = passes(model, TOKENS, [{}, *SINGLES], names=["blocks.*.attn.hook_pattern"], streams=False)
    assert all(set(shown) == {f"blocks.{n}.attn.hook_pattern" for n in range(3)} for _, shown in outcomes)
    assert [rows[n, "q"] / one for n in range(3)] == [1, 5, 9]


def test_errors_are_those_of_edit() -> None:
    model = make("lfa")
    for name, fn, line in (("blocks.0.attn.hook_zz", mixed, "did you mean"),
                           ("blocks.0.hook_resid_post", mixed, "hook_token_post or hook_context_post"),
                           ("blocks.0.attn.hook_z", lambda z, hook: z[:, 1:], r"hook_z returned \[3, 6")):  # fmt: skip
        assert_refused(line, streams, model, [{name: fn}])
    assert_refused("outside the vocabulary", streams, model, [{}], TOKENS + 300)
    assert not any(p._forward_hooks or p.fwd_hooks for p in model.hook_dict.values())
    assert_refused("training mode", streams, model.train(), [{}])
    model.eval().blocks[1].add_module("hook_idle", HookPoint())
    model.setup()
    sweep = [{}, {"blocks.1.hook_idle": mixed, "blocks.0.attn.hook_z": mixed}]
    assert_refused(r"did not fire: blocks\.1\.hook_idle", streams, model, sweep)


def test_a_hook_outside_the_table_acts_wherever_it_fires() -> None:
    """It runs from the start of its layer, at every position; also a point outside the blocks that fires in one."""
    model = make("lfa")
    inside, outside = HookPoint(), HookPoint()
    mlp: Any = model.blocks[2].mlp
    mlp.add_module("hook_more", inside)
    model.add_module("hook_more", outside)
    model.setup()
    plain = mlp.act
    mlp.act = lambda x: outside(inside(plain(x)))
    sweep: list[Edits] = [{}, {"blocks.2.mlp.hook_more": mixed}, {"hook_more": mixed}, SINGLES[0], SINGLES[11]]
    for at in (None, AT):
        assert_same(model, sweep, at=at)
    _, (_, shown) = passes(model, TOKENS, [{}, SINGLES[0]], names=["hook_more"], streams=False)
    with torch.no_grad(), edit(model, SINGLES[0]), capture(model, "hook_more") as expected:
        model(TOKENS)
    torch.testing.assert_close(shown, dict(expected))


@pytest.mark.parametrize("name", ["hook_embed", "blocks.1.hook_mlp_out", "blocks.2.attn.hook_q", "ln_final.hook_scale"])
def test_edits_of_somebody_else_stay_in_force(name: str) -> None:
    model = make("std-t")
    with edit(model, {name: mixed}):
        got = streams(model, [{}, *SINGLES], at=AT)
    for h, edits in zip(got, [{}, *SINGLES], strict=True):
        both = {**edits, name: mixed}
        np.testing.assert_allclose(log_probs(model, h).detach(), alone(model, both, at=AT), atol=1e-10)


QUERIES = {
    "patterns": Query(tokens=PROMPTS, hooks=("blocks.*.attn.hook_pattern",), positions=POSITIONS),
    "logits": Query(tokens=PROMPTS, logits=LOGITS),
    "both": Query(tokens=PROMPTS, hooks=("blocks.*.attn.hook_z", "blocks.0.hook_resid_*"), logits=LOGITS),
}


def halve(x: Tensor, hook: Any) -> Tensor:
    return x * 0.5


SWEEP = [
    {},
    *(scale_heads([Head(layer, h)], 0.0) for layer in (0, 1) for h in range(4)),
    scale_heads([Head(0, 1), Head(1, 2)], 0.5),
    {"blocks.*.hook_mlp_out": halve},
    {"hook_embed": halve, "blocks.1.attn.hook_pattern": halve},
]


def assert_captures(got: Captures, expected: Captures) -> None:
    torch.testing.assert_close(dict(got.hooks), dict(expected.hooks), rtol=0, atol=1e-10)
    torch.testing.assert_close(got.logits, expected.logits, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", list(QUERIES))
@pytest.mark.parametrize("preset", some(["std-t", "lfa", "pls", "kromcanon"], ["lfa", "kromcanon"]))
def test_equals_run(preset: str, kind: str) -> None:
    """Unequal prompts in batches of 40 tokens."""
    model, query = randomise(build(preset, "tiny", init_std=0.2).double()), QUERIES[kind]
    expected = [run(model, query, edits) for edits in SWEEP]
    for got, one in zip(run_sweep(model, query, SWEEP, batch_tokens=40), expected, strict=True):
        assert_captures(got, one)


def test_resampling_stays_within_its_copy_of_each_batch() -> None:
    """The donors of an edit are those of `run` with the same batches, whatever shares the pass."""
    model = randomise(build("lfa", "tiny", init_std=0.2).double())
    query = Query(tokens=PROMPTS, hooks=("blocks.1.hook_attn_out",), logits=[[len(p) - 1] for p in PROMPTS])
    sweep = [{}, *(resample_heads([Head(layer, 1)], seed=s) for layer in (0, 1) for s in (0, 1)), SWEEP[3]]
    for got, edits in zip(run_sweep(model, query, sweep), sweep, strict=True):
        assert_captures(got, run(model, query, edits))


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_starts_follow_the_order_in_which_hooks_fire(name: str) -> None:
    model = build(name, "tiny")
    fired: list[str] = []
    hooks = [(n, lambda x, hook, n=n: fired.append(n)) for n in model.hook_dict]
    with torch.no_grad():
        model.run_with_hooks(torch.randint(256, (1, 5)), fwd_hooks=hooks)
    starts = [start_of(n, 2) for n in fired]
    assert starts == sorted(starts)
    assert set(starts) == {(EMBED, False), (0, False), (0, True), (1, False), (1, True), (2, False)}
