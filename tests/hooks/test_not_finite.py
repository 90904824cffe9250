"""An edit after which values are NaN or infinite is told with the first hook where that is so, on every way to run."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.models.generate import generate
from streamscope.models.hooks import Query, capture, edit, run
from streamscope.models.make import build
from streamscope.models.sweep import passes, run_sweep
from streamscope.models.transformer import StreamTransformer

TOKENS = torch.randint(256, (2, 6), generator=torch.Generator().manual_seed(1))
ROWS = TOKENS.tolist()
MLP, SCORES = "blocks.0.hook_mlp_out", "blocks.0.attn.hook_attn_scores"
Run = Callable[[StreamTransformer, dict[str, Any]], object]


@pytest.fixture(scope="module")
def model() -> StreamTransformer:
    return build("std-t", "tiny", init_std=0.2).eval()


def directly(model: StreamTransformer, edits: dict[str, Any]) -> None:
    with edit(model, edits):
        model(TOKENS)


WAYS: dict[str, Run] = {
    "edit": directly,
    "run": lambda m, e: run(m, Query(tokens=ROWS, logits=[[5], [5]]), e),
    "capture": lambda m, e: run(m, Query(tokens=ROWS, hooks=("blocks.1.attn.hook_z",)), e),
    "run_sweep": lambda m, e: list(run_sweep(m, Query(tokens=ROWS, logits=[[5], [5]]), [{}, e])),
    "sweep captures": lambda m, e: list(run_sweep(m, Query(tokens=ROWS, hooks=("blocks.1.attn.hook_z",)), [{}, e])),
    "passes": lambda m, e: list(passes(m, TOKENS, [{}, e])),
    "generate": lambda m, e: generate(m, ROWS, max_new_tokens=2, edits=e),
}


def one_nan(x: Tensor, hook: Any) -> Tensor:
    x = x.clone()
    x[0, 0, 0] = torch.nan
    return x


def overflow(x: Tensor, hook: Any) -> Tensor:
    """Finite, but its square in the next norm is not."""
    return x.sign() * 1e38


@pytest.mark.parametrize("way", WAYS)
def test_an_edit_that_returns_nan_is_named(model: StreamTransformer, way: str) -> None:
    with pytest.raises(InputError, match=rf"^the edit of {MLP} returned values that are not finite: 1 of \d+$"):
        WAYS[way](model, {MLP: one_nan})
    assert not model._forward_hooks and all(not p.fwd_hooks for p in model.hook_dict.values())
    assert model(TOKENS).isfinite().all()


@pytest.mark.parametrize("way", WAYS)
def test_the_first_hook_behind_a_finite_edit_is_named(model: StreamTransformer, way: str) -> None:
    # independently: every hook's value under a TransformerLens hook, in the order of computation
    found: list[str] = []
    hooks = [(n, lambda x, hook: found.append(hook.name) if not x.isfinite().all() else None) for n in model.hook_dict]
    model.run_with_hooks(TOKENS, fwd_hooks=[(MLP, overflow), *(h for h in hooks if "attn_scores" not in h[0])])
    first = found[0]
    assert first.startswith("blocks.1.")
    with pytest.raises(InputError) as caught:
        WAYS[way](model, {MLP: overflow})
    message = str(caught.value)
    assert "\n" not in message and MLP in message and "not finite" in message
    if way != "sweep captures":  # which say it of the hook that was asked for
        assert message.endswith(f"first at {first}")


def test_masked_scores_are_no_error_but_a_row_without_keys_is(model: StreamTransformer) -> None:
    def mask_first(x: Tensor, hook: Any) -> Tensor:
        x = x.clone()
        x[:, :, 1:, 0] = -torch.inf
        return x

    with capture(model, "blocks.0.attn.hook_pattern") as seen, edit(model, {SCORES: mask_first}):
        model(TOKENS)
    assert (seen["blocks.0.attn.hook_pattern"][:, :, 1:, 0] == 0).all()
    with pytest.raises(InputError, match=r"first at blocks\.0\.attn\.hook_"):
        directly(model, {SCORES: lambda x, hook: torch.full_like(x, -torch.inf)})
    with pytest.raises(InputError, match=f"the edit of {SCORES} returned values that are not finite"):
        directly(model, {SCORES: lambda x, hook: torch.full_like(x, torch.inf)})


def test_a_broken_model_is_not_blamed_on_the_edit() -> None:
    model = build("std-t", "tiny").eval()
    with torch.no_grad():
        next(p for n, p in model.named_parameters() if n.startswith("blocks.0.mlp")).fill_(torch.nan)
    with pytest.raises(InputError, match=r"blocks\.1\.hook_resid_pre is not finite before its edit"):
        directly(model, {"blocks.1.hook_resid_pre": lambda x, hook: x * 0.5})
    with pytest.raises(InputError, match=r"the weights blocks\.0\.mlp\.up\.weight are NaN"):
        next(passes(model, TOKENS, [{}]))


@pytest.mark.parametrize("name", ["blocks.1.ln1.weight", "blocks.1.attn.k.weight", "blocks.0.attn.o.weight"])
def test_the_weights_that_are_nan_are_named(model: StreamTransformer, name: str) -> None:
    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken.get_parameter(name).view(-1)[1] = torch.nan
    for way in ("run", "capture", "run_sweep", "passes"):
        with pytest.raises(InputError, match=rf"^the weights {name} are NaN: 1 of \d+"):
            WAYS[way](broken, {})


def test_values_that_overflow_in_an_unedited_model_are_named_by_their_hook(model: StreamTransformer) -> None:
    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken.get_parameter("blocks.1.mlp.up.weight").mul_(1e38)
    query = Query(tokens=ROWS, hooks=("blocks.1.hook_mlp_out",))
    for call in (lambda: run(broken, query), lambda: list(run_sweep(broken, query, [{}]))):
        with pytest.raises(InputError, match=r"unedited model are not finite; first at blocks\.1\.mlp\.hook_pre$"):
            call()


def test_both_edits_of_a_nest_see_it(model: StreamTransformer) -> None:
    halve = {"blocks.0.attn.hook_z": lambda z, hook: z * 0.5}
    with pytest.raises(InputError, match="first at blocks.1"), edit(model, halve), edit(model, {MLP: overflow}):
        model(TOKENS)
    assert not model._forward_hooks
