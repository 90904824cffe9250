"""`capture` and `edit`: names, errors, cleaning up, nesting, copies."""

import copy
import re
import threading
import types
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor

import streamscope.models
from streamscope.cli.errors import InputError
from streamscope.models import load
from streamscope.models.hooks import OnDemand, Query, capture, edit, edited_at, hooked_at, run
from streamscope.models.hooks.points import ReadPoint, any_hooks
from streamscope.models.make import build
from streamscope.models.transformer import StreamTransformer
from tests.tiny import randomise

Z0, Z1 = "blocks.0.attn.hook_z", "blocks.1.attn.hook_z"


@pytest.fixture(scope="module", params=["std-t", "lfa"])
def model(request: pytest.FixtureRequest) -> StreamTransformer:
    return randomise(build(request.param, "tiny", init_std=0.2), std=0.2)


@pytest.fixture(scope="module")
def lfa() -> StreamTransformer:
    return randomise(build("lfa", "tiny", init_std=0.2), std=0.2)


TOKENS = torch.randint(256, (2, 6), generator=torch.Generator().manual_seed(1))


def halve(x: Tensor, hook: Any) -> Tensor:
    return x * 0.5


def no_hooks_left(model: StreamTransformer) -> bool:
    """Neither TransformerLens' lists nor torch's own tables hold a hook, and no nesting level is open."""
    points = model.hook_dict.values()
    raw = [len(p._forward_hooks) + len(p._backward_hooks) + len(p.fwd_hooks) + len(p.bwd_hooks) for p in points]
    return sum(raw) == 0 and model.context_level == 0


def test_misspelt(model: StreamTransformer) -> None:
    for name, near in {"blocks.0.attn.hook_zz": Z0, "blocks.*.attn.hook_zz": "", "blocks.7.attn.hook_z": ""}.items():
        for context in (capture(model, [Z1, name]), edit(model, {name: halve})):
            with pytest.raises(InputError, match=f"unknown hook '{re.escape(name)}.*{near}"), context:
                pytest.fail("the block ran")
    assert no_hooks_left(model)


def test_reading_what_was_not_captured(model: StreamTransformer) -> None:
    with capture(model, Z0) as found:
        model(TOKENS)
    with pytest.raises(InputError, match=r"hook_q.*captured: blocks\.0\.attn\.hook_z"):
        found["blocks.0.attn.hook_q"]


def test_did_not_fire(model: StreamTransformer) -> None:
    """A layer that was skipped, or a model that was not run, raises on the way out."""
    state = model.segment(model.embed_tokens(TOKENS), 0, 1)
    for names in ([Z0], [Z0, Z1]):
        for context in (capture(model, names), edit(model, dict.fromkeys(names, halve))):
            with pytest.raises(InputError, match=r"did not fire: blocks\.0\.attn\.hook_z;"), context:
                model.segment(state, 1)
    with pytest.raises(InputError, match="did not fire"), capture(model, Z0):
        pass
    assert no_hooks_left(model)
    with capture(model, []), edit(model, {}):
        pass


@pytest.mark.parametrize("place", ["pre", "mid", "post"])
def test_observe_only(lfa: StreamTransformer, place: str) -> None:
    """Through `edit` before anything runs, through TransformerLens when it changes; streams named."""
    name = f"blocks.1.hook_resid_{place}"
    message = rf"hook_resid_{place}.*hook_token_{place} or hook_context_{place}"
    for names in (name, f"blocks.*.hook_resid_{place}"):
        with pytest.raises(InputError, match=message), edit(lfa, {names: halve}):
            pytest.fail("the block ran")

    def in_place(x: Tensor, hook: Any) -> None:
        x[:, 2] = 0

    for hook in (halve, in_place):
        with pytest.raises(InputError, match=message):
            lfa.run_with_hooks(TOKENS, fwd_hooks=[(name, hook)])
    seen = lfa.run_with_hooks(TOKENS, fwd_hooks=[(name, lambda x, hook: x.clone())])
    assert torch.equal(seen, lfa(TOKENS))


def test_backward_hooks_on_observe_only_points_are_not_silent(lfa: StreamTransformer) -> None:
    """No gradient flows through a sum that nothing reads: asking for it must raise, not return nothing."""
    with pytest.raises(InputError):
        lfa.add_hook("blocks.1.hook_resid_post", lambda g, hook: None, dir="bwd")
        lfa(TOKENS, return_type="loss").backward()
    lfa.reset_hooks()
    lfa.zero_grad()


def test_bad_edits(model: StreamTransformer) -> None:
    for fn, message in ((lambda x, hook: x[:, :-1], r"returned \[2, 5,"), (lambda x, hook: x.double(), ".*float64"),
                        (lambda x, hook: None, "returned None"), (lambda x, hook: (x,), "returned tuple")):  # fmt: skip
        with pytest.raises(InputError, match=f"{Z0} {message}"), edit(model, {Z0: fn}):
            model(TOKENS)
    assert no_hooks_left(model)


@pytest.mark.parametrize("where", ["block", "edit", "names", "interrupt"])
def test_clean_after_an_exception(model: StreamTransformer, where: str) -> None:
    plain = model(TOKENS)
    error = {"block": RuntimeError, "edit": ZeroDivisionError, "names": InputError, "interrupt": KeyboardInterrupt}
    with pytest.raises(error[where]), capture(model, [Z0, "*hook_pattern"]), edit(model, {Z0: halve}):
        if where == "edit":
            with edit(model, {Z1: lambda x, hook: 1 // 0}):
                model(TOKENS)
        if where == "names":
            with capture(model, "nothing"):
                pass
        raise error[where]
    assert no_hooks_left(model)
    assert torch.equal(model(TOKENS), plain)


def test_nested_edits(model: StreamTransformer) -> None:
    with edit(model, {Z0: lambda z, hook: z + 1.0}):
        outer = model(TOKENS)
        with edit(model, {Z0: lambda z, hook: z * 2.0, Z1: halve}):
            both = model(TOKENS)
        again = model(TOKENS)
    with edit(model, {Z0: lambda z, hook: (z + 1.0) * 2.0, Z1: halve}):
        expected = model(TOKENS)
    assert torch.equal(outer, again)
    assert torch.equal(both, expected)
    assert not torch.equal(outer, both)


def test_captures_and_tools_see_the_edits_of_the_blocks_around_them(model: StreamTransformer) -> None:
    with capture(model, Z0) as before, edit(model, {Z0: lambda z, hook: z * 0}):
        _, cache = model.run_with_cache(TOKENS)
        model.run_with_hooks(TOKENS, fwd_hooks=[(Z0, halve)])
        with capture(model, Z0) as after:
            model(TOKENS)
    assert before[Z0].abs().max() > 0 == cache[Z0].abs().max() == after[Z0].abs().max()


def test_hooks_of_the_user_survive(model: StreamTransformer) -> None:
    seen: list[str] = []
    note = (Z1, lambda x, hook: seen.append(hook.name))
    model.run_with_hooks(TOKENS, fwd_hooks=[note], reset_hooks_end=False)
    with capture(model, Z0), edit(model, {Z0: halve}):
        model(TOKENS)
    model(TOKENS)
    model.reset_hooks()
    model(TOKENS)
    assert seen == [Z1] * 3, "until they are taken away"


def test_captured_tensors_are_copies(model: StreamTransformer) -> None:
    names = list(model.hook_dict)
    with torch.no_grad(), capture(model, names) as found:
        model(TOKENS)
    kept = {name: x.clone() for name, x in found.items()}
    with torch.no_grad(), capture(model, names[:4]) as shown:
        model(TOKENS)
    for x in shown.values():
        x.zero_()
    assert len({x.data_ptr() for x in found.values()}) == len(names)
    torch.testing.assert_close(dict(found), kept, rtol=0, atol=0)
    assert {p.data_ptr() for p in model.parameters()}.isdisjoint(x.data_ptr() for x in found.values())


def test_package_exports() -> None:
    """What `models` exports is not hidden by a file of the same name, once all of them are imported."""
    for name in streamscope.models.__all__:
        getattr(streamscope.models, name)
    assert not [n for n in streamscope.models.__all__ if isinstance(getattr(streamscope.models, n), types.ModuleType)]


def test_threads_never_get_each_others_activations() -> None:
    """300 captures of two threads on one model: each is right, or raises in the thread that would be wrong."""
    model = build("std-t", "tiny", init_std=0.2)
    tokens = [torch.full((1, 4), i) for i in (1, 2)]
    barrier = threading.Barrier(2, timeout=60)

    def captured(which: int) -> Tensor:
        with capture(model, Z0) as found:
            model(tokens[which])
        return found[Z0]

    expected = [captured(which) for which in (0, 1)]

    def work(which: int) -> None:
        for _ in range(150):
            barrier.wait()
            try:
                assert torch.equal(captured(which), expected[which])
            except InputError as error:
                assert re.search("another thread|did not fire", str(error))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, (0, 1)))


def test_a_forward_pass_of_another_thread_is_not_edited() -> None:
    model = build("std-t", "tiny", init_std=0.2)
    plain = model(TOKENS)
    with ThreadPoolExecutor(1) as pool:
        with edit(model, {Z0: lambda z, hook: 0 * z}):
            error = str(pool.submit(model, TOKENS).exception())
            edited = model(TOKENS)
        assert Z0 in error and "copy.deepcopy" in error and not torch.equal(edited, plain)
        assert torch.equal(pool.submit(model, TOKENS).result(), plain) and torch.equal(model(TOKENS), plain)


def stance() -> str:
    """What the compiler of this process is told to do; without a compiler nothing is."""
    return str(torch._dynamo.eval_frame._stance.stance)


def test_edits_that_are_closed_in_another_order_leave_nothing() -> None:
    """Two generators, each inside an edit of its own, the first closed first: as two cells of a notebook may do."""
    model = build("std-t", "tiny", init_std=0.2).eval()
    plain = model(TOKENS)

    def editing(name: str) -> Generator[None]:
        with model.explicit_attention(), edit(model, {name: halve}, must_fire=False):
            yield

    first, second = editing(Z0), editing(Z1)
    next(first), next(second)
    assert edited_at(model) == (Z0, Z1) and stance() == "force_eager"
    first.close()
    assert edited_at(model) == (Z1,) and stance() == "force_eager"
    assert model.hook_dict["blocks.0.attn.hook_pattern"].listening
    with edit(model, {Z1: halve}):
        edited = model(TOKENS)
    second.close()
    assert not torch.equal(edited, plain) and torch.equal(model(TOKENS), plain)
    assert edited_at(model) == () and no_hooks_left(model) and stance() == "default"
    assert not any(point.listening for point in model.hook_dict.values() if isinstance(point, OnDemand))


def test_edits_of_four_threads_leave_nothing() -> None:
    model = build("std-t", "tiny", init_std=0.2).eval()
    barrier = threading.Barrier(4, timeout=60)

    def work(which: int) -> None:
        for _ in range(25):
            with edit(model, {f"blocks.{which % 2}.attn.hook_z": halve}, must_fire=False):
                barrier.wait()  # all are inside

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert edited_at(model) == () and no_hooks_left(model) and stance() == "default"


def test_a_copy_that_is_made_inside_an_edit_is_not_edited() -> None:
    model = build("std-t", "tiny", init_std=0.2).eval()
    plain = model(TOKENS)
    model.hook_dict[Z1].add_perma_hook(seen := lambda x, hook: None)  # somebody else's stays
    with model.explicit_attention(), edit(model, {Z0: halve}), capture(model, Z1):
        edited, copied = model(TOKENS), copy.deepcopy(model)
        again = copy.deepcopy(torch.nn.ModuleDict({"inside": model}))["inside"]
    assert not torch.equal(edited, plain)
    for one in (copied, again):
        assert torch.equal(one(TOKENS), plain) and edited_at(one) == ()
        assert not one._forward_hooks and len(one.hook_dict[Z0]._forward_hooks) == 0 == len(one.hook_dict[Z0].fwd_hooks)
        assert len(one.hook_dict[Z1]._forward_hooks) == 1 == len(one.hook_dict[Z1].fwd_hooks), seen
        assert not one.hook_dict["blocks.0.attn.hook_pattern"].listening
        with edit(one, {Z0: halve}):
            torch.testing.assert_close(one(TOKENS), edited)  # the patterns were written out there


def test_copies_that_are_made_while_another_thread_captures_and_edits_are_plain() -> None:
    """No dictionary of hooks changes while it is copied, and the copies can be read."""
    model, begun, stop = build("std-t", "tiny", init_std=0.2).eval(), threading.Event(), threading.Event()
    plain = model(TOKENS)

    def other() -> None:
        while not stop.is_set():
            with capture(model, "*"), edit(model, {Z0: halve}, must_fire=False):
                model(TOKENS)
                begun.set()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(other)
        begun.wait()
        try:
            copies = [copy.deepcopy(model) for _ in range(30)]
        finally:
            stop.set()
    for copied in copies:
        assert no_hooks_left(copied)
        with capture(copied, Z0) as found:
            assert torch.equal(copied(TOKENS), plain)
        assert Z0 in found


def test_hooks_of_others_are_named_and_ours_are_not() -> None:
    model = load("stories/gpt2")
    with capture(model, Z0), edit(model, {Z1: lambda x, hook: x * 0.5}):
        assert hooked_at(model) == ()
        model(TOKENS)
    model.add_hook(Z0, lambda x, hook: x * 0.5, is_permanent=True)
    handles = [
        model.register_forward_hook(lambda module, inputs, output: output * 2),
        model.blocks[1].register_forward_pre_hook(lambda module, inputs: None),
        model.ln_final.register_full_backward_hook(lambda module, before, after: None),
    ]
    assert hooked_at(model) == ("StreamTransformer", Z0, "blocks.1", "ln_final")
    with edit(model, {Z0: lambda x, hook: x * 0.5}, must_fire=False):
        assert hooked_at(model) == hooked_at(copy.deepcopy(model)) == ("StreamTransformer", Z0, "blocks.1", "ln_final")
    for handle in handles:
        handle.remove()
    model.reset_hooks()
    assert hooked_at(model) == (Z0,)
    model.reset_hooks(including_permanent=True)
    assert hooked_at(model) == ()
    model.add_hook(Z0, lambda x, hook: x * torch.nan)
    with pytest.raises(InputError, match=f"the results of the unedited model, hooked at {Z0}, are not finite"):
        run(model, Query(tokens=[[1, 2, 3]], hooks=(Z1,)))


def test_copies_of_parts_and_shallow_copies_are_not_edited_either() -> None:
    model, other = build("std-t", "tiny", init_std=0.2).eval(), build("std-t", "tiny", init_std=0.2).eval()
    plain = model(TOKENS)
    with edit(model, {Z0: halve}), capture(model, Z1):
        edited, shallow = model(TOKENS), copy.copy(model)
        other.blocks = copy.deepcopy(model.blocks)
        assert torch.equal(shallow(TOKENS), edited) and edited_at(shallow) == (Z0,), "it has the same modules"
    assert not torch.equal(edited, plain)
    assert torch.equal(other(TOKENS), plain)
    assert torch.equal(shallow(TOKENS), plain) and edited_at(shallow) == () == edited_at(model)


@pytest.mark.parametrize("name", ["blocks.0.hook_context_pre", "blocks.1.attn.hook_pattern", "blocks.0.hook_attn_in"])
def test_a_backward_hook_alone_is_heard_and_goes_again(name: str) -> None:
    """At a stream that is still zero, at what is computed on demand, and at a reader."""
    model, seen = build("lfa", "tiny", init_std=0.2).eval(), list[torch.Tensor]()
    model.add_hook(name, lambda gradient, hook: seen.append(gradient), dir="bwd")
    assert any_hooks(model)
    model(TOKENS).sum().backward()
    assert len(seen) == 1 and seen[0].abs().sum() > 0
    model.reset_hooks()
    assert not any_hooks(model)
    model.blocks[0].register_full_backward_pre_hook(lambda module, gradient: None)
    assert any_hooks(model), "one before the gradient too"


@pytest.mark.parametrize("register", ["register_forward_pre_hook", "register_forward_hook"])
@torch.no_grad()
def test_a_hook_of_torch_at_a_reader_gets_a_copy(register: str) -> None:
    """In place at the input of the FFN: the stream of a model without edits of it stays."""
    model, name = build("std-t", "tiny", init_std=0.2).eval(), "blocks.0.hook_mlp_in"

    def wipe(module: torch.nn.Module, *given: Any) -> None:
        (given[-1] if len(given) == 2 else given[0][0]).zero_()

    with edit(model, {name: lambda x, hook: x * 0}):
        expected = model(TOKENS)
    handle = getattr(model.hook_dict[name], register)(wipe)
    assert torch.equal(model(TOKENS), expected)
    handle.remove()
    assert not torch.equal(model(TOKENS), expected)


def test_a_reader_with_a_hook_is_exported() -> None:
    """A graph cannot ask whether a hook changed a value: the live page removes latents that a transcoder reads."""

    class Reader(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.point = ReadPoint()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * self.point(x)

    reader, x, seen = Reader(), torch.arange(3.0), list[torch.Tensor]()
    reader.point.add_hook(lambda value, hook: seen.append(value))
    graph = torch.export.export(reader, (x,)).module()
    assert graph(x).tolist() == [0, 2, 4] and seen
