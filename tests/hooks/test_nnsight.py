"""nnsight on our models: reading and setting hook points, bit-equal to TransformerLens hooks.

Importing nnsight adds a method to every Python object and changes torch's backward, so the checks run in a
process of their own: each `check_*` function is a test, and this file is also the script that runs them.
"""

from typing import Any

import pytest
import torch

from streamscope.cli.errors import InputError
from streamscope.models.hooks import Query, capture, edit, expected_hooks, run
from streamscope.models.make import build
from tests.hooks.checks import outcomes_of, run_checks
from tests.tiny import randomise


def _setup(name: str, **overrides: Any) -> tuple[Any, Any, Any]:
    """(model, nnsight's view of it, tokens)."""
    from nnsight import NNsight

    model = randomise(build(name, "tiny", init_std=0.2, **overrides), std=0.2)
    tokens = torch.randint(256, (2, 6), generator=torch.Generator().manual_seed(5))
    return model, NNsight(model), tokens


def _read(sight: Any, tokens: Any, names: list[str]) -> tuple[dict[str, Any], Any]:
    """Outputs of hook points, given in the order of computation, and the logits."""
    found = {}
    with sight.trace(tokens):
        for name in names:
            found[name] = sight.get(name).output.save()
        logits = sight.output.save()
    return found, logits


def check_reading(preset: str = "lfa") -> None:
    """Every point that always fires, streams and observe-only sums too, is what TransformerLens caches."""
    model, sight, tokens = _setup(preset)
    names = [n for n, row in expected_hooks(model.config) if not row.on_demand]
    _, cache = model.run_with_cache(tokens, names_filter=names)
    found, logits = _read(sight, tokens, names)
    assert torch.equal(logits, model(tokens))
    for name in names:
        assert torch.equal(found[name], cache[name]), name


def check_patterns(preset: str = "lfa") -> None:
    """Scores and patterns that a trace waits for are those of TransformerLens' cache."""
    names = ["blocks.1.attn.hook_attn_scores", "blocks.1.attn.hook_pattern"]
    model, sight, tokens = _setup(preset)
    _, cache = model.run_with_cache(tokens, names_filter=names)
    found, _ = _read(sight, tokens, names)
    for name in names:
        torch.testing.assert_close(found[name], cache[name], rtol=0, atol=1e-6)


def check_on_demand() -> None:
    """A trace that waits for a pattern, a mixing matrix or a scale gets it; nobody else computes it, then or later."""
    for preset, names in (
        ("lfa", ["blocks.0.attn.hook_attn_scores", "blocks.0.attn.hook_pattern", "blocks.1.attn.hook_pattern"]),
        ("dst-kron", ["blocks.0.attn.hook_v_mix", "blocks.0.attn.hook_o_mix"]),
        ("std-t", ["blocks.1.ln2.hook_scale", "ln_final.hook_scale"]),
    ):
        model, sight, tokens = _setup(preset)
        plain = model(tokens)
        _, cache = model.run_with_cache(tokens, names_filter=names)
        found, _ = _read(sight, tokens, ["hook_embed", *names])
        for name in names:
            assert torch.equal(found[name], cache[name]), name
        _, logits = _read(sight, tokens, ["blocks.1.attn.hook_z"])
        assert torch.equal(logits, plain) and torch.equal(model(tokens), plain), preset
    model, sight, tokens = _setup("lfa")
    flat = torch.eye(6).expand(2, 4, 6, 6)
    with sight.trace(tokens):
        sight.blocks[1].attn.hook_pattern.output = flat
        logits = sight.output.save()
    hook = [("blocks.1.attn.hook_pattern", lambda x, hook: flat)]
    assert torch.equal(logits, model.run_with_hooks(tokens, fwd_hooks=hook))


def check_on_demand_in_a_cache(preset: str = "lfa") -> None:
    """tracer.cache() keeps on-demand activations too."""
    model, sight, tokens = _setup(preset)
    name, _ = "blocks.1.attn.hook_pattern", model.double()
    _, cache = model.run_with_cache(tokens, names_filter=name)
    with sight.trace(tokens) as tracer:
        kept = tracer.cache()
    torch.testing.assert_close(kept.model.blocks[1].attn.hook_pattern.output, cache[name], rtol=0, atol=1e-9)


def check_passes_that_are_no_forward() -> None:
    """A first pass by `loss`: setting a reader in place leaves the stream alone, observe-only sums are shown."""
    model, sight, tokens = _setup("lfa")
    stream, reader = "blocks.1.hook_resid_pre", "blocks.1.hook_mlp_in"

    def loss(tokens: Any) -> Any:
        return sight._module.loss(tokens[:, :-1], tokens[:, 1:])[0]

    with sight.trace(tokens, fn=loss) as tracer:
        shown = sight.get(stream).output.save()
        sight.get(reader).output[:] = 0
        wiped = tracer.result.save()
    _, cache = model.run_with_cache(tokens[:, :-1], names_filter=[stream])
    assert torch.equal(shown, cache[stream])
    with edit(model, {reader: lambda x, hook: x * 0}):
        torch.testing.assert_close(wiped, model.loss(tokens[:, :-1], tokens[:, 1:])[0])


def check_out_of_order() -> None:
    """A pattern asked for after what is computed from it is nnsight's own error, never a stale or an empty value."""
    from nnsight.intervention.interleaver import OutOfOrderError

    _, sight, tokens = _setup("lfa")
    with pytest.raises(OutOfOrderError):
        _read(sight, tokens, ["blocks.0.attn.hook_z", "blocks.0.attn.hook_pattern"])


def check_later_passes() -> None:
    """tracer.iter reads a pattern of the pass that it names; after passes that did not compute it, it is told so."""
    model, sight, tokens = _setup("lfa")
    name = "blocks.0.attn.hook_pattern"

    def three(tokens: Any) -> Any:
        for n in (2, 4, 6):
            out = sight._module(tokens[:, :n])
        return out

    def first_and_third() -> Any:
        with sight.trace(tokens, fn=three) as tracer:
            for _ in tracer.iter[0]:
                sight.ln_final.output.save()
            for _ in tracer.iter[2]:
                third = sight.get(name).output.save()
        return third

    with sight.trace(tokens, fn=three) as tracer:
        for _ in tracer.iter[1]:
            second = sight.get(name).output.save()
    _, cache = model.run_with_cache(tokens[:, :4], names_filter=name)
    assert torch.equal(second, cache[name])
    with model.explicit():
        assert first_and_third().shape[-1] == 6
    with pytest.raises(InputError, match=r"model\.explicit\(\)"):
        first_and_third()


def check_source(preset: str = "lfa") -> None:
    """Calls inside a module's forward: what attention's heads return, and what its output projection reads."""
    model, sight, tokens = _setup(preset)
    names = ["blocks.1.attn.hook_z", "blocks.1.hook_attn_out"]
    _, cache = model.run_with_cache(tokens, names_filter=names)
    with sight.trace(tokens):
        heads = sight.blocks[1].attn.source.self_heads_0.output.save()
        written = sight.blocks[1].attn.source.self_write_0.output.save()
    assert torch.equal(heads, cache[names[0]]) and torch.equal(written, cache[names[1]])
    with sight.trace(tokens):
        sight.blocks[1].attn.source.self_heads_0.output = heads * 0.5
        halved = sight.output.save()
    assert torch.equal(halved, model.run_with_hooks(tokens, fwd_hooks=[(names[0], lambda z, hook: z * 0.5)]))


def check_setting(preset: str = "lfa") -> None:
    """Out of place and in place, at heads, readers, streams: bit-equal to the same TransformerLens hook."""
    model, sight, tokens = _setup(preset)
    streams = model.config.residual.streams or ("resid",)
    names = ["attn.hook_z", "attn.hook_q", "hook_attn_in", "hook_attn_v_in", "hook_mlp_in", "mlp.hook_post"]
    names += [f"hook_{stream}_pre" for stream in streams] + [f"hook_{streams[-1]}_post"]
    for name in (f"blocks.1.{n}" for n in names):
        with sight.trace(tokens):
            sight.get(name).output = sight.get(name).output * 0.5
            out_of_place = sight.output.save()
        with sight.trace(tokens):
            sight.get(name).output[:] = 0
            in_place = sight.output.save()
        halved, wiped = (
            model.run_with_hooks(tokens, fwd_hooks=[(name, lambda x, hook, by=by: x * by)]) for by in (0.5, 0)
        )
        assert torch.equal(out_of_place, halved) and torch.equal(in_place, wiped), name
        assert not torch.equal(halved, model(tokens)), name


def check_setting_the_readout(preset: str = "std-t") -> None:
    """Of one stream it is setting the stream; of several it raises (`check_observe_only`)."""
    model, sight, tokens = _setup(preset)
    state = torch.zeros(2, 6, 32)
    with sight.trace(tokens):
        sight.blocks[0].hook_resid_post.output = state
        logits = sight.output.save()
    torch.testing.assert_close(logits, model(state, start_at_layer=1))


def check_observe_only() -> None:
    """Setting the sum of the streams raises our error with their names; reading it does not."""
    model, sight, tokens = _setup("lfa")
    plain = model(tokens)
    for in_place in (False, True):
        with pytest.raises(InputError, match="hook_token_post or hook_context_post"), sight.trace(tokens):
            if in_place:
                sight.blocks[1].hook_resid_post.output[:, 2] = 0
            else:
                sight.blocks[1].hook_resid_post.output = torch.zeros(2, 6, 32)
        assert torch.equal(model(tokens), plain)


def check_gradients(preset: str = "lfa") -> None:
    """`.grad` inside backward, and autograd on what was read, are the gradients of capture(grad=True); patterns too."""
    model, sight, tokens = _setup(preset)
    names = ["blocks.1.hook_attn_in", "blocks.1.attn.hook_pattern", "blocks.1.attn.hook_z", "blocks.1.hook_mlp_in"]
    with capture(model, names, grad=True) as found:
        loss = model(tokens).sum()
    expected = torch.autograd.grad(loss, [found[n] for n in names])
    found, logits = _read(sight, tokens, names)
    got = torch.autograd.grad(logits.sum(), [found[n] for n in names])
    inside: dict[str, Any] = {}
    with sight.trace(tokens):
        read = {name: sight.get(name).output for name in names}
        with sight.output.sum().backward():
            for name in reversed(names):
                inside[name] = read[name].grad.save()
    model.zero_grad()
    for name, a, b in zip(names, got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, msg=name)
        torch.testing.assert_close(inside[name], b, rtol=1e-5, atol=1e-6, msg=name)


def check_batched_invokes(preset: str = "lfa") -> None:
    """An edit in one invoke does not reach the rows of another, at any point of a layer and outside the layers."""
    from nnsight import NNsight

    class Batching(NNsight):
        """How nnsight's own model classes join invokes: one batch, rows in order."""

        def _batch(self, invokes: list[Any], fn: Any) -> Any:
            return (torch.cat([args[0] for args, _ in invokes]),), {}

    model, _, tokens = _setup(preset)
    sight, plain = Batching(model), model(tokens)
    rows, pattern = expected_hooks(model.config), "blocks.1.attn.hook_pattern"
    names = [n for n, row in rows if not row.on_demand and row.edit(model.config) and "blocks.0." not in n]
    _, cache = model.run_with_cache(tokens, names_filter=pattern)
    for name in (*names, pattern):
        with sight.trace() as tracer:
            with tracer.invoke(tokens[:1]):
                sight.get(name).output[:] = 0.25
            with tracer.invoke(tokens[1:]):
                seen = sight.get(pattern).output.save() if name == pattern else None
                other = sight.output.save()
        torch.testing.assert_close(other, plain[1:], rtol=0, atol=1e-5, msg=name)
    torch.testing.assert_close(seen, cache[pattern][1:], rtol=0, atol=1e-6)


def check_our_tools_after_wrapping() -> None:
    """capture, edit, run and the observe-only error work on a model that nnsight has wrapped."""
    names = ["blocks.0.hook_mlp_in", "blocks.1.attn.hook_z", "blocks.1.attn.hook_pattern"]
    edits = {"blocks.0.attn.hook_z": lambda z, hook: z * 0.5, "blocks.1.hook_attn_in": lambda x, hook: x + 1}
    query = Query(tokens=[[1, 2, 3], [4]], hooks=tuple(names), logits=[[2], [0]])
    for preset in ("lfa", "kromcanon"):
        model, _, tokens = _setup(preset)
        other = randomise(build(preset, "tiny", init_std=0.2), std=0.2)
        for grad in (False, True):
            results = []
            for m in (model, other):
                with torch.set_grad_enabled(grad), edit(m, edits), capture(m, names) as found:
                    results.append([m(tokens), *(found[n] for n in names)])
                results[-1] += run(m, query, edits).logits
            assert all(torch.equal(a, b) for a, b in zip(*results, strict=True)), preset
        with pytest.raises(InputError):
            model.run_with_hooks(tokens, fwd_hooks=[("blocks.0.hook_resid_mid", lambda x, hook: x * 2)])


CHECKS = sorted(name for name in globals() if name.startswith("check_"))


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    return outcomes_of(__file__)


@pytest.mark.parametrize("check", CHECKS)
def test_nnsight(check: str, outcomes: dict[str, str]) -> None:
    """On one preset; those with a preset as argument run on all in the table of conformance."""
    assert outcomes[check] == ""


def test_nnsight_was_not_imported_here() -> None:
    assert not hasattr(object(), "save")


if __name__ == "__main__":
    torch.set_num_threads(1)
    run_checks(globals())
