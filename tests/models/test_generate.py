"""Sampling text."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

import streamscope.models.generate as generation
from streamscope.cli.errors import InputError
from streamscope.interventions.amplify.measure import amplification
from streamscope.interventions.edits import add_direction, replace_heads, scale_heads
from streamscope.models.checkpoint import NAMES, load
from streamscope.models.generate import can_keep, generate
from streamscope.models.head_spec import Head
from streamscope.models.hooks import capture, edit
from streamscope.models.make import build
from tests.tiny import assert_refused, randomise

PROMPTS = [[3, 1, 4], [1, 5, 9, 2, 6, 5], [3], [5, 8, 9]]


@pytest.fixture(scope="module")
def model() -> Any:
    """Weights large enough that the next token depends on all before it."""
    return randomise(build("lfa", "tiny"), std=0.5)


def support(monkeypatch: pytest.MonkeyPatch, probabilities: list[float], **options: Any) -> dict[int, float]:
    """Share of each token among many samples from a model with these probabilities."""
    model = build("std-t", "tiny", n_ctx=64)
    row = torch.tensor(probabilities).log()
    monkeypatch.setattr(type(model), "logits", lambda self, state, where=None: row.expand(len(state), 1, -1))
    rows = generate(model, [[0]] * 100, max_new_tokens=20, **options)
    drawn = torch.tensor([r[1:] for r in rows]).flatten()
    return {i: n / len(drawn) for i, n in enumerate(drawn.bincount().tolist()) if n}


@torch.no_grad()
def test_greedy_is_the_argmax_loop(model: Any) -> None:
    for prompt in PROMPTS:
        row = list(prompt)
        for _ in range(10):
            row.append(int(model(torch.tensor([row]))[0, -1].argmax()))
        assert generate(model, [prompt], max_new_tokens=10, temperature=0.0) == [row]
        assert len(set(row)) > 3, "a model that repeats itself would not test much"


def test_a_batch_of_different_lengths_is_one_by_one(model: Any) -> None:
    together = generate(model, PROMPTS, max_new_tokens=12, temperature=0.0)
    assert together == [generate(model, [p], max_new_tokens=12, temperature=0.0)[0] for p in PROMPTS]
    assert [len(r) for r in together] == [len(p) + 12 for p in PROMPTS]
    assert len(generate(model, [[1] * 30], max_new_tokens=2)[0]) == 32, "the context may be filled"


def test_seeded(model: Any) -> None:
    before, prompts = torch.get_rng_state(), [list(p) for p in PROMPTS]
    a = generate(model, prompts, max_new_tokens=8, seed=1)
    assert torch.equal(torch.get_rng_state(), before) and prompts == PROMPTS, "nothing else is changed"
    torch.manual_seed(9)
    assert generate(model, PROMPTS, max_new_tokens=8, seed=1) == a
    assert generate(model, PROMPTS, max_new_tokens=8, seed=2) != a


P = [0.05, 0.4, 0.1, 0.3, 0.15]


@pytest.mark.parametrize(("options", "kept"), [
    ({"top_k": 1}, [1]), ({"top_k": 2}, [1, 3]), ({"top_k": 3}, [1, 3, 4]), ({"top_k": 99}, [0, 1, 2, 3, 4]),
    ({"top_p": 0.39}, [1]), ({"top_p": 0.5}, [1, 3]), ({"top_p": 0.69}, [1, 3]), ({"top_p": 0.8}, [1, 3, 4]),
    ({"top_p": 0.9}, [1, 2, 3, 4]), ({"top_p": 1.0}, [0, 1, 2, 3, 4]),
    ({"top_k": 2, "top_p": 0.5}, [1]),  # of the two best (4/7 and 3/7) the first already has half of the mass
    ({"temperature": 0.5}, [0, 1, 2, 3, 4]), ({"temperature": 2.0}, [0, 1, 2, 3, 4]),
], ids=str)  # fmt: skip
def test_the_likeliest_k_tokens_and_the_smallest_set_that_reaches_p(monkeypatch, options, kept: list[int]) -> None:
    share = support(monkeypatch, P, **options)
    assert sorted(share) == kept
    weights = {token: P[token] ** (1 / options.get("temperature", 1.0)) for token in kept}
    for token, weight in weights.items():
        assert abs(share[token] - weight / sum(weights.values())) < 0.04  # 2000 draws: 3.5 standard errors at p = 1/2


def test_top_k_keeps_k_tokens_of_a_tie(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ties are common in bf16; k tokens means k, and the best one means the one that greedy takes."""
    assert len(support(monkeypatch, [0.3, 0.3, 0.3, 0.1], top_k=2)) == 2
    greedy = support(monkeypatch, [0.1, 0.3, 0.3, 0.3], temperature=0.0)
    assert sorted(support(monkeypatch, [0.1, 0.3, 0.3, 0.3], top_k=1)) == sorted(greedy)


def test_an_edit_of_one_position(model: Any) -> None:
    """Whole sequences are run, so an edit at a position of the prompt finds it at every step."""
    push = torch.randn(32, generator=torch.Generator().manual_seed(0)) * 50
    edits = {"blocks.0.hook_token_pre": lambda x, hook: torch.cat([x[:, :1] + push, x[:, 1:]], 1)}
    row, usual = [3, 1, 4], {"max_new_tokens": 6, "temperature": 0.0}
    plain = generate(model, [row], **usual)
    with torch.no_grad(), edit(model, edits):
        for _ in range(6):
            row.append(int(model(torch.tensor([row]))[0, -1].argmax()))
    assert generate(model, [row[:3]], **usual, edits=edits) == [row] != plain
    assert generate(model, [row[:3]], **usual) == plain, "nothing stays behind"


@pytest.mark.parametrize(("prompts", "options", "message"), [
    ([], {}, "nothing to continue"),
    ([[1], []], {}, "a prompt without tokens cannot be continued"),
    (["Once"], {}, "no tokenizer"),
    ([[999]], {}, "token id 999 is outside the vocabulary of 256"),
    ([[1] * 30], {"max_new_tokens": 3}, "prompt and 3 new tokens are 33 tokens, but the context has 32"),
    ([[1]], {"temperature": -1.0}, "temperature >= 0"),
    ([[1]], {"temperature": torch.nan}, "temperature >= 0"),
    ([[1]], {"top_k": 0}, "top_k >= 1"),
    ([[1]], {"top_p": 0.0}, "0 < top_p <= 1"),
    ([[1]], {"repetition_penalty": 0.0}, "repetition_penalty > 0"),
    ([[1]], {"edits": {"blocks.0.attn.hook_zz": lambda x, hook: x}}, "unknown hook 'blocks.0.attn.hook_zz'"),
    ([[1]], {"edits": {"blocks.0.hook_resid_pre": lambda x, hook: x}}, "only shows the sum of the streams"),
])  # fmt: skip
def test_bad_input(model: Any, prompts: Any, options: dict[str, Any], message: str) -> None:
    assert_refused(message, generate, model, prompts, **{"max_new_tokens": 2, **options})


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_text_is_made_of_logits_that_are_not_finite(temperature: float) -> None:
    for at, value, line in (
        ("blocks.2.mlp.up.weight", torch.nan, r"^the weights blocks\.2\.mlp\.up\.weight are NaN"),
        ("blocks.2.mlp.down.weight", torch.inf, r"not finite; first at blocks\.2\.hook_mlp_out"),
        ("ln_final.weight", torch.inf, "not finite; first at the logits"),
    ):
        model = load("stories/gpt2")
        with torch.no_grad():
            model.get_parameter(at).view(-1)[5] = value
        assert_refused(line, model.generate, ["Lily had"], max_new_tokens=3, temperature=temperature)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "canon"])
def test_kept_keys_give_the_texts_and_logits_of_whole_passes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of different lengths, in every bundled architecture; the logits of each step are equal up to rounding."""
    model = load(f"stories/{name}")
    found: list[list[tuple[str, Tensor]]] = []
    for keeps in (can_keep, lambda *_: False):
        found.append(took := [])
        for call in ("_next", "_whole"):
            inner = getattr(generation, call)
            monkeypatch.setattr(generation, call, lambda *a, c=call, i=inner, t=took: t.append((c, i(*a))) or t[-1][1])
        monkeypatch.setattr(generation, "can_keep", keeps)
        generate(model, ["Once", "Lily had a red", "The"], max_new_tokens=12, temperature=0)
        monkeypatch.undo()
    assert {call for call, _ in found[0]} == {"_whole" if model.config.canon else "_next"}
    assert {call for call, _ in found[1]} == {"_whole"} and len(found[0]) > 5
    for (_, one), (_, other) in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_scaled_heads_means_and_steering_keep_the_keys_and_others_do_not() -> None:
    model = load("stories/gpt2")
    heads = [Head(0, 1), Head(2, 3)]
    means = {head: torch.randn(model.config.d_head, generator=torch.Generator().manual_seed(1)) for head in heads}
    direction = torch.randn(model.config.d_model, generator=torch.Generator().manual_seed(2))
    plain = generate(model, ["Lily had a"], max_new_tokens=16, temperature=0)[0]
    for edits in (
        scale_heads(heads, 0.0),
        replace_heads(heads, means),
        add_direction(direction, {1: 0.5}),
        amplification(model, 3.0),
    ):
        assert can_keep(model, edits)
        unmarked = {name: lambda x, hook, fn=fn: fn(x, hook) for name, fn in edits.items()}
        assert not can_keep(model, unmarked), "what is not known to act everywhere sees all positions"
        got = [generate(model, ["Lily had a"], max_new_tokens=16, temperature=0, edits=e)[0] for e in (edits, unmarked)]
        assert got[0] == got[1] != plain
    last = {"blocks.0.hook_resid_post": lambda x, hook: torch.cat([x[:, :-1], 0 * x[:, -1:]], 1)}
    changed = generate(model, ["Lily had a"], max_new_tokens=4, temperature=0, edits=last)[0]
    assert changed != plain[: len(changed)]
    with edit(model, last, must_fire=False):
        assert not can_keep(model, {})
    with capture(model, ["blocks.1.hook_resid_post"]) as found:
        generate(model, [plain[:5]], max_new_tokens=2, temperature=0)
    assert found["blocks.1.hook_resid_post"].shape[1] == 6, "a reader sees all positions"
    assert not any(block.attn.memory for block in model.blocks)
    with pytest.raises(InputError, match="did not fire|not finite"):
        generate(model, ["Lily"], max_new_tokens=2, edits=scale_heads(heads, float("nan")))
    assert not any(block.attn.memory for block in model.blocks)


def test_two_threads_generate_on_one_model() -> None:
    model = load("stories/gpt2")
    prompts = ["Lily had a", "Once there was a big dog"] * 4
    want = [generate(model, [p], max_new_tokens=24, temperature=0) for p in prompts]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda p: generate(model, [p], max_new_tokens=24, temperature=0), prompts))
    assert got == want
