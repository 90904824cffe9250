"""Patches where the answer is known on paper, against TransformerLens, and put together number by number."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformer_lens import patching as lens

from streamscope.cli.errors import InputError
from streamscope.instruments.open_data import given_prompts
from streamscope.interventions.patch import Patch
from streamscope.interventions.patch.activations import attribute_pairs, default_spots, patch_pairs, plan, spots
from streamscope.interventions.patch.measure import cell_labels
from streamscope.models import load
from streamscope.models.hooks import ObservePoint, capture, edit
from tests.interventions.passes import captured
from tests.interventions.swapped import CLEAN, PAIRS, make, odds, one_head_moves_it
from tests.probes import planted


def test_only_the_planted_head_moves_the_answer() -> None:
    model = one_head_moves_it()
    prompts = given_prompts(planted.suite(3), model, model.tokenizer)
    how = Patch(contrast="noun", direction=("denoise", "noise"), method=("exact",), senders=("top1:recovery", "L0.mlp"))
    result = how.measure(model, prompts)
    assert result.about["left_out"].startswith(", 2 left out: no other noun")  # of one relation there is one tool
    table = result.table().frame
    assert set(table["n"]) == {len(prompts.aligned.prompts) - 2} and set(table["hook"]) == set(default_spots(model))
    for _, row in table.iterrows():
        on, off = (1.0, 0.0) if row["direction"] == "denoise" else (0.0, 1.0)
        moves = {("resid_pre", "target"), ("attn_out", "last")}
        here = row["head"] == "L0.H1" or (row["hook"], row["position"]) in moves
        assert row["recovery"] == pytest.approx(on if here else off, abs=1e-9), row
    paths = result.table("paths").frame.set_index(["sender", "reader"])
    assert paths.loc[("L0.H1", "head"), "recovery"] == pytest.approx(1, abs=1e-9)
    assert paths.drop(("L0.H1", "head"))["effect"].abs().max() < 1e-9
    noised = replace(how, direction=("noise",), hooks=("attn_out",)).measure(model, prompts).table("paths").frame
    assert set(noised["sender"]) == {"L0.H1", "L0 mlp"}, "the head that matters recovers least there"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("preset", ["std-t"])
def test_transformer_lens_gives_the_same_numbers(preset: str) -> None:
    model = make(preset)
    sweeps = {
        "resid_pre": "get_act_patch_resid_pre", "attn_out": "get_act_patch_attn_out",
        "mlp_out": "get_act_patch_mlp_out", "z": "get_act_patch_attn_head_out_all_pos",
        "q": "get_act_patch_attn_head_q_all_pos", "pattern": "get_act_patch_attn_head_pattern_all_pos",
    }  # fmt: skip
    for name, function in sweeps.items():
        cells = plan(model, PAIRS, spots(model, [name]))
        found = patch_pairs(model, PAIRS[1:], cells)
        for i, pair in enumerate(PAIRS[1:]):
            _, cache = model.run_with_cache(torch.tensor([pair.clean]))
            with torch.no_grad():
                theirs = getattr(lens, function)(
                    model, torch.tensor([pair.corrupt]), cache, lambda x: x[0, -1, 3] - x[0, -1, 8]
                )
            np.testing.assert_allclose(found.patched[:, i], theirs.double().numpy().ravel(), rtol=1e-5, atol=1e-5)
        assert np.abs(found.effect).max() > 1e-3
    z = spots(model, ["attn.hook_z"])
    found = patch_pairs(model, PAIRS[:1], plan(model, PAIRS[:1], z, "head-role"))
    _, cache = model.run_with_cache(CLEAN[:1])
    with torch.no_grad():
        theirs = lens.get_act_patch_attn_head_out_by_pos(model, CLEAN[1:], cache, lambda x: x[0, -1, 3] - x[0, -1, 8])
    ours = found.patched[:, 0].reshape(2, 4, 5).swapaxes(1, 2)  # theirs: layer, position, head
    np.testing.assert_allclose(ours, theirs.double().numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("preset", "names"),
    [
        ("lfa", ["token_pre", "context_mid", "context_post"]),
        ("dst-kron", ["token_post", "context_pre", "v_mix"]),
        ("pls", ["rot_k", "z_ungated", "mlp.post"]),
        ("kromcanon", ["streams_mid", "s2_pre", "attn_hc.res", "mlp_hc.post", "canon_b.out"]),
        ("hdpl", ["q.latent", "mlp.pre_linear", "ln1.scale"]),
    ],
)
def test_every_kind_of_hook_by_hand(preset: str, names: list[str]) -> None:
    """One run per cell with the activation put together number by number."""
    model = make(preset)
    chosen = spots(model, names)
    for i, spot in enumerate(chosen):
        for direction, base, other in [("denoise", 1, 0), ("noise", 0, 1)][i % 2 :][:1]:
            cells = plan(model, PAIRS[:1], [spot], layers=[1])
            found = patch_pairs(model, PAIRS[:1], cells, direction)
            for c, cell in enumerate(cells):
                seen = captured(model, CLEAN[other : other + 1], cell.hook)
                source = seen[cell.hook]

                def put(x: Tensor, hook: Any, source: Tensor = source, cell: Any = cell) -> Tensor:
                    new = x.clone()
                    for at in np.ndindex(*x.shape):
                        s, t, h = cell.spot.stream, cell.spot.time, cell.spot.head
                        here = cell.place == "all" or at[t + 1] == int(cell.place)
                        if here and cell.head in (None, at[h + 1] if h is not None else None) and s in (None, at[2]):
                            new[at] = source[at]
                    return new

                with torch.no_grad(), edit(model, {cell.hook: put}):
                    by_hand = odds(model(CLEAN[base : base + 1]))
                assert found.patched[c, 0] == pytest.approx(by_hand, abs=1e-9), cell
            static = ("v_mix", "mlp_hc.post", "attn_hc.res")  # weights, or static at first
            assert np.abs(found.effect).max() > 1e-6 or spot.short in static, spot


@pytest.mark.parametrize("shared", [1, 2, 4])
def test_keys_and_values_are_patched_by_the_heads_that_queries_share(shared: int) -> None:
    model = make("llama", n_heads=4, **{"attention.kv_heads": shared})
    cells = plan(model, PAIRS[:1], spots(model, ["k", "v"]), "head", [1])
    assert [(cell.spot.short, cell.head) for cell in cells] == [(s, h) for s in "kv" for h in range(shared)]
    assert [cell_labels(cell, "denoise")["head"] for cell in cells[:shared]] == [f"L1.KV{h}" for h in range(shared)]
    found = patch_pairs(model, PAIRS[:1], cells)
    seen = captured(model, CLEAN[:1], [cell.hook for cell in cells])
    for c, cell in enumerate(cells):

        def put(x: Tensor, hook: Any, head: int | None = cell.head) -> Tensor:
            new = x.clone()
            new[:, :, head] = seen[hook.name][:, :, head]
            return new

        with torch.no_grad(), edit(model, {cell.hook: put}):
            assert found.patched[c, 0] == pytest.approx(odds(model(CLEAN[1:])), abs=1e-9), cell
    assert np.abs(found.effect).min() > 1e-6
    assert plan(model, PAIRS[:1], spots(model, ["k"]), layers=[1])[0].head is None, "auto stays by position"


@pytest.mark.parametrize("preset", ["lfa", "llama", "kromcanon", "hdpl"])
def test_every_editable_hook_can_be_patched(preset: str) -> None:
    """A whole activation of layer 1, at every hook of its block that can be edited, and its first-order guess."""
    model = make(preset)
    known = {n.removeprefix("blocks.1."): p for n, p in model.hook_dict.items() if n.startswith("blocks.1.")}
    chosen = spots(model, [n for n, point in known.items() if not isinstance(point, ObservePoint)])
    assert len(chosen) > 20
    cells = plan(model, PAIRS[:1], chosen, "all", [1])
    found, guessed = patch_pairs(model, PAIRS[:1], cells), attribute_pairs(model, PAIRS[:1], cells)
    seen = captured(model, CLEAN[:1], [cell.hook for cell in cells])
    for c, cell in enumerate(cells):
        with torch.no_grad(), edit(model, {cell.hook: lambda x, hook: seen[hook.name]}):
            assert found.patched[c, 0] == pytest.approx(odds(model(CLEAN[1:])), abs=1e-9), cell
    assert np.isfinite(guessed).all()
    short = [cell.spot.short for cell in cells]
    assert found.effect[short.index("mlp_out"), 0] != 0 and guessed[short.index("mlp_out"), 0] != 0


@pytest.mark.parametrize("preset", ["gpt2", "kromcanon", "lfa"])
def test_hooks_outside_the_blocks_are_patched_once_and_carry_everything(preset: str) -> None:
    """The embedding, or what the head reads, is the whole other run; of the latter the last position alone is read."""
    model = make(preset)
    outside = [n for n, p in model.hook_dict.items() if "blocks" not in n and not isinstance(p, ObservePoint)]
    chosen = spots(model, outside)
    cells = plan(model, PAIRS[:1], chosen, "all", [0, 1])
    assert [cell.hook for cell in cells] == outside and {cell.layer for cell in cells} == {-1}
    found = patch_pairs(model, PAIRS[:1], cells)
    recovery = dict(zip(outside, found.recovery(1e-6)[:, 0], strict=True))
    assert recovery["hook_embed"] == pytest.approx(1) and recovery["ln_final.hook_normalized"] == pytest.approx(1)
    assert recovery.get("hook_pos_embed", 0) == pytest.approx(0, abs=1e-9)  # the same places in both texts
    read = [cell for cell in plan(model, PAIRS[:1], spots(model, ["ln_final.normalized"]), "role")]
    effects = patch_pairs(model, PAIRS[:1], read).effect[:, 0]
    last = [max(PAIRS[0].places[cell.place]) == len(PAIRS[0].clean) - 1 for cell in read]
    assert np.abs(effects[~np.array(last)]).max() < 1e-9 < np.abs(effects[np.array(last)]).max()


@pytest.mark.parametrize(
    ("preset", "name", "line"),
    [("lfa", "resid_pre", "token_pre or context_pre"), ("lfa", "zz", "did you mean z"),
     ("kromhc", "s4_pre", "s0 to s3"), ("std-t", "q.token", "the heads of std-t read no named streams; patch q"),
     ("lfa", "k.contxt", "unknown stream 'contxt': did you mean context")],
)  # fmt: skip
def test_hooks_that_cannot_be_patched_are_refused(preset: str, name: str, line: str) -> None:
    with pytest.raises(InputError, match=line):
        spots(make(preset), [name])


@pytest.mark.parametrize(("name", "by", "line"), [("attn_out", "head", "no heads"), ("v_mix", "role", "no positions")])
def test_units_that_a_hook_does_not_have_are_refused(name: str, by: Any, line: str) -> None:
    with pytest.raises(InputError, match=line):
        plan(model := make("lfa"), PAIRS, spots(model, [name]), by)


def test_no_hook_is_patched_twice_by_default() -> None:
    """z of all heads is attn_out: by position there is no panel of it; by head there is nothing else."""
    model = make("std-t")
    own = {"clean": "the boy sang and", "corrupt": "the girl sang and", "answer": " he", "foil": " she"}
    for by, hooks in (("token", {"resid_pre", "attn_out", "mlp_out"}), ("head", {"z"}),
                      ("auto", {"resid_pre", "attn_out", "mlp_out", "z"})):  # fmt: skip
        assert set(default_spots(model, by if by != "token" else "role")) == hooks
    frame = Patch(by="token", **own).measure(load("stories/std-t")).table().frame
    effects = frame[frame["hook"] == "attn_out"]["effect"].to_numpy()
    assert set(frame["hook"]) == {"resid_pre", "attn_out", "mlp_out"} and np.abs(effects).max() > 0
    z = Patch(by="token", hooks=("z",), **own).measure(load("stories/std-t")).table().frame["effect"]
    np.testing.assert_allclose(z, effects, atol=1e-4)


@pytest.mark.parametrize("preset", ["std-t", "lfa", "kromcanon"])
def test_attribution_is_the_derivative(preset: str) -> None:
    """Σ (source − own) ∂m/∂a is the slope of the metric as the cell moves from its own value to the source's."""
    model = make(preset)
    cells = plan(model, PAIRS[:1], spots(model, [*default_spots(model), "pattern"]), layers=[1])
    for direction, base, other in (("denoise", 1, 0), ("noise", 0, 1))[: 1 + (preset == "lfa")]:
        guessed = attribute_pairs(model, PAIRS[:1], cells, direction)[:, 0]
        for c, cell in enumerate(cells):
            seen = captured(model, CLEAN[other : other + 1], cell.hook)
            source, index = seen[cell.hook], cell.index(PAIRS[0], seen[cell.hook].ndim)

            def moved(
                step: float, cell: Any = cell, source: Tensor = source, index: Any = index, base: int = base
            ) -> float:
                def fn(x: Tensor, hook: Any) -> Tensor:
                    new = x.clone()
                    new[index] = x[index] + step * (source - x)[index]
                    return new

                with torch.no_grad(), edit(model, {cell.hook: fn}):
                    return odds(model(CLEAN[base : base + 1]))

            slope = (moved(1e-5) - moved(-1e-5)) / 2e-5
            assert guessed[c] == pytest.approx(slope, abs=1e-6), cell


@pytest.mark.parametrize(("preset", "stream"), [("lfa", "token"), ("dst-kron", "context"), ("pls", "context")])
@pytest.mark.parametrize("direction", ["denoise", "noise"])
def test_a_heads_input_by_stream_is_patched_for_this_head_alone(preset: str, stream: str, direction: Any) -> None:
    """By hand: the other run's stream in the input of one layer, and of what that makes one head's q, k or v."""
    model = make(preset)
    base, other = (CLEAN[1:], CLEAN[:1]) if direction == "denoise" else (CLEAN[:1], CLEAN[1:])
    cells = plan(model, PAIRS[:1], spots(model, [f"{part}.{stream}" for part in "qkv"]), "head", [1])
    found = patch_pairs(model, PAIRS[:1], cells, direction)
    guessed = attribute_pairs(model, PAIRS[:1], cells, direction)
    name = f"blocks.1.hook_{stream}_pre"
    own, source = (captured(model, tokens, [name])[name] for tokens in (base, other))
    inputs = {f"blocks.1.hook_{one}": lambda x, hook: x - own + source for one in ("attn_in", "attn_v_in")}
    assert len(cells) == 12
    for c, cell in enumerate(cells):
        if stream == "context" and cell.spot.short[0] == "v" and preset == "dst-kron":
            assert np.isnan(found.patched[c, 0]) and np.isnan(guessed[c, 0])  # values read the token stream
            continue
        with torch.no_grad(), edit(model, inputs), capture(model, [cell.hook]) as seen:
            model(base)

        def put(x: Tensor, hook: Any, share: float, head: Any = cell.head, new: Tensor = seen[cell.hook]) -> Tensor:
            out = x.clone()
            out[:, :, head] += share * (new - x)[:, :, head]
            return out

        patched = []
        for share in (0.0, 1e-6, 1.0):
            with torch.no_grad(), edit(model, {cell.hook: partial(put, share=share)}):
                patched.append(odds(model(base)))
        assert found.patched[c, 0] == pytest.approx(patched[2], abs=1e-8) and abs(found.effect[c, 0]) > 1e-9, cell
        assert guessed[c, 0] == pytest.approx((patched[1] - patched[0]) / 1e-6, rel=1e-3, abs=1e-7), cell
