"""`run`: the same numbers as one forward pass per prompt, whatever the batches; errors of `Query`."""

from typing import Any

import pytest
import torch
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.models.hooks import Query, capture, edit, run
from streamscope.models.make import build
from streamscope.models.transformer import StreamTransformer
from tests.tiny import randomise

LENGTHS = [5, 1, 12, 5, 3, 20, 2]
_generator = torch.Generator().manual_seed(3)
PROMPTS = [torch.randint(256, (n,), generator=_generator).tolist() for n in LENGTHS]
POSITIONS = [[n - 1, 0] if n > 1 else [0] for n in LENGTHS]
LOGITS = [[n - 1] if i % 3 else list(range(n))[::-1] for i, n in enumerate(LENGTHS)]
LOGITS[3] = []
HOOKS = (
    "blocks.*.attn.hook_z", "blocks.1.hook_resid_post", "blocks.*.attn.hook_pattern", "blocks.0.attn.hook_attn_scores",
    "blocks.*.mlp.hook_post", "blocks.1.ln2.hook_scale", "ln_final.hook_scale", "ln_final.hook_normalized",
)  # fmt: skip
TIGHT = dict(rtol=0, atol=1e-10)


@pytest.fixture(scope="module", params=["std-t", "lfa", "pls", "dst-kron", "kromcanon"])
def model(request: pytest.FixtureRequest) -> StreamTransformer:
    return randomise(build(request.param, "tiny", init_std=0.2).double())


def halve(x: Tensor, hook: Any) -> Tensor:
    return x * 0.5


def one_by_one(model: Any, names: tuple[str, ...], edits: Any = None) -> tuple[list[dict[str, Tensor]], list[Tensor]]:
    """Activations without batch axis and logits at all positions, prompt by prompt."""
    found, logits = [], []
    for prompt in PROMPTS:
        with torch.no_grad(), edit(model, edits or {}), capture(model, names) as got:
            logits.append(model(torch.tensor([prompt]))[0])
        found.append({name: x[0] for name, x in got.items()})
    return found, logits


@pytest.mark.parametrize("batch_tokens", [1, 40, 8192])
@pytest.mark.parametrize("edits", [None, {"blocks.0.attn.hook_z": halve, "blocks.*.hook_mlp_out": halve}])
def test_run_equals_one_by_one(model: StreamTransformer, edits: Any, batch_tokens: int) -> None:
    result = run(model, Query(tokens=PROMPTS, hooks=HOOKS, logits=LOGITS), edits, batch_tokens=batch_tokens)
    found, logits = one_by_one(model, HOOKS, edits)
    assert set(result.hooks) == set(found[0])
    assert result.logits is not None
    for i in range(len(PROMPTS)):
        for name, x in found[i].items():
            torch.testing.assert_close(result.hooks[name][i], x, **TIGHT, msg=f"{name} of prompt {i}")
        torch.testing.assert_close(result.logits[i], logits[i][LOGITS[i]], **TIGHT)


def test_run_at_positions(model: StreamTransformer) -> None:
    """Positions select the position axis: of queries, for patterns; keys stay, cropped to the prompt."""
    result = run(model, Query(tokens=PROMPTS, hooks=HOOKS, positions=POSITIONS), batch_tokens=30)
    found, _ = one_by_one(model, HOOKS)
    assert result.logits is None
    for i, (n, at) in enumerate(zip(LENGTHS, POSITIONS, strict=True)):
        pattern = result.hooks["blocks.0.attn.hook_pattern"][i]
        assert list(pattern.shape) == [model.config.n_heads, len(at), n]
        torch.testing.assert_close(pattern.sum(-1), torch.ones_like(pattern[..., 0]))
        for name, x in found[i].items():
            expected = x[:, at] if name.endswith(("pattern", "scores")) else x[at]
            torch.testing.assert_close(result.hooks[name][i], expected, **TIGHT, msg=f"{name} of prompt {i}")


def test_mixing_matrices_have_no_position_axis() -> None:
    """`positions` leaves an activation without a position axis whole. Rows of a tensor are prompts as well."""
    model = build("dst-kron", "tiny")
    query = Query(tokens=torch.tensor(PROMPTS[:1]), hooks=("blocks.*.attn.hook_o_mix",), positions=POSITIONS[:1])
    for x in run(model, query).hooks["blocks.1.attn.hook_o_mix"]:
        assert torch.equal(x, model.blocks[1].attn.o.weight)


def test_edits_of_the_final_norm_with_logits_at(model: StreamTransformer) -> None:
    def at_two(x: Tensor, hook: Any) -> Tensor:
        x = x.clone()
        x[:, 2] = 0
        return x

    tokens = torch.tensor([PROMPTS[0], PROMPTS[3]])
    with edit(model, {"ln_final.hook_normalized": at_two}):
        everywhere = model(tokens)
        wanted = model(tokens, logits_at=torch.tensor([[0, 4, 1], [0, 2, 1]]))
    torch.testing.assert_close(wanted[0], everywhere[0, [0, 4, 1]], **TIGHT)
    torch.testing.assert_close(wanted[1], everywhere[1, [0, 2, 1]], **TIGHT)


def test_captures_are_independent(model: StreamTransformer) -> None:
    query = Query(tokens=PROMPTS, hooks=("blocks.0.hook_resid_post",), logits=[[0]] * len(PROMPTS))
    result, again = run(model, query), run(model, query)
    for x in [*result.hooks["blocks.0.hook_resid_post"][1:], *result.logits[1:]]:  # type: ignore[index]
        x.zero_()
    a, b = (one.hooks["blocks.0.hook_resid_post"] for one in (result, again))
    assert torch.equal(a[0], b[0]) and b[1].abs().max() > 0
    assert not any(x.requires_grad for x in again.hooks["blocks.0.hook_resid_post"])


@pytest.mark.parametrize(
    ("fields", "edits", "message"),
    [
        (dict(tokens=PROMPTS, hooks=("blocks.0.attn.hook_zz",)), {}, "did you mean"),
        (dict(tokens=[[1, 300]], hooks=("blocks.0.attn.hook_z",)), {}, "token id 300"),
        (dict(tokens=[[1] * 33]), {}, "longer than the context of 32"),
        (dict(tokens=PROMPTS), {"nowhere": halve}, "unknown hook"),
        (dict(tokens=[]), {}, "at least one prompt"),
        (dict(tokens=[[1], []]), {}, "at least one token"),
        (dict(tokens=[[1], [2]], positions=[[0]]), {}, "positions are given for 1 prompt, but there are 2"),
        (dict(tokens=[[1], [2]], logits=[[0]] * 3), {}, "logits are given for 3 prompts, but there are 2"),
        (dict(tokens=[[1], [2, 3]], positions=[[0], [2]]), {}, r"positions \[2\] of prompt 1 lie outside its 2 tokens"),
        (dict(tokens=[[1]], logits=[[-1]]), {}, r"logits \[-1\] of prompt 0"),
    ],
)
def test_errors(fields: dict[str, Any], edits: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(build("std-t", "tiny"), Query(**fields), edits)
