"""Pairs of prompts, patches where the answer is known on paper, against TransformerLens, and put together number by
number; paths against runs that freeze all else by hand (Wang et al. 2022)."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformer_lens import patching as lens

from streamscope.cli.errors import InputError
from streamscope.instruments.contract import InstrumentData
from streamscope.instruments.observations import estimate
from streamscope.instruments.prompts import load_suite
from streamscope.instruments.prompts.alignment import align, given_prompts
from streamscope.instruments.table import Table
from streamscope.interventions.circuits.graph import Node
from streamscope.interventions.patch import Patch
from streamscope.interventions.patch.activations import (
    PatchResults,
    attribute_pairs,
    default_spots,
    patch_pairs,
    plan,
    spots,
)
from streamscope.interventions.patch.measure import add_blocks, cell_labels, errors, tables
from streamscope.interventions.patch.pairs import PLACES, PatchPair, by_token, choose_pairs, make_pairs, own_pair
from streamscope.interventions.patch.paths import edges_of, hook_of, parse_senders, patch_edges
from streamscope.models import load
from streamscope.models.hooks import ObservePoint, capture, edit
from tests.instruments.estimates import mean
from tests.interventions.passes import captured, under
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
def test_transformer_lens_gives_the_same_numbers() -> None:
    model = make("std-t")
    sweeps = {
        "resid_pre": "resid_pre", "attn_out": "attn_out", "mlp_out": "mlp_out", "z": "attn_head_out_all_pos",
        "q": "attn_head_q_all_pos", "pattern": "attn_head_pattern_all_pos",
    }  # fmt: skip

    @torch.no_grad()
    def theirs(sweep: str, clean: Tensor, corrupt: Tensor) -> np.ndarray:
        _, cache = model.run_with_cache(clean)
        made = getattr(lens, f"get_act_patch_{sweep}")(model, corrupt, cache, lambda x: x[0, -1, 3] - x[0, -1, 8])
        return made.double().numpy()

    for name, sweep in sweeps.items():
        found = patch_pairs(model, PAIRS[1:], plan(model, PAIRS, spots(model, [name])))
        expected = theirs(sweep, CLEAN[1:], CLEAN[:1])
        np.testing.assert_allclose(found.patched[:, 0], expected.ravel(), rtol=1e-5, atol=1e-5)
        assert np.abs(found.effect).max() > 1e-3
    found = patch_pairs(model, PAIRS[:1], plan(model, PAIRS[:1], spots(model, ["attn.hook_z"]), "head-role"))
    ours = found.patched[:, 0].reshape(2, 4, 5).swapaxes(1, 2)  # theirs: layer, position, head
    np.testing.assert_allclose(ours, theirs("attn_head_out_by_pos", CLEAN[:1], CLEAN[1:]), rtol=1e-5, atol=1e-5)


def moved(other: Tensor, at: Any, share: float = 1.0) -> Any:
    """An edit that goes `share` of the way to another value, at an index."""

    def fn(x: Tensor, hook: Any) -> Tensor:
        new = x.clone()
        new[at] += share * (other - x)[at]
        return new

    return fn


@pytest.mark.parametrize(
    ("preset", "changes", "names", "by"),
    [
        ("lfa", {}, ["token_pre", "context_mid", "context_post"], "auto"),
        ("dst-kron", {}, ["token_post", "context_pre", "v_mix"], "auto"),
        ("pls", {}, ["rot_k", "z_ungated", "mlp.post"], "auto"),
        ("kromcanon", {}, ["streams_mid", "s2_pre", "attn_hc.res", "mlp_hc.post", "canon_b.out"], "auto"),
        ("hdpl", {}, ["q.latent", "mlp.pre_linear", "ln1.scale"], "auto"),
        *(("llama", {"n_heads": 4, "attention.kv_heads": shared}, ["k", "v"], "head") for shared in (1, 2, 4)),
    ],
)
def test_every_kind_of_hook_by_hand(preset: str, changes: dict[str, Any], names: list[str], by: Any) -> None:
    """One run per cell with the activation put together number by number."""
    model = make(preset, **changes)
    for i, spot in enumerate(spots(model, names)):
        direction, base, other = (("denoise", 1, 0), ("noise", 0, 1))[i % 2]
        cells = plan(model, PAIRS[:1], [spot], by, layers=[1])
        found = patch_pairs(model, PAIRS[:1], cells, direction)
        for c, cell in enumerate(cells):
            source = captured(model, CLEAN[other : other + 1], cell.hook)[cell.hook]
            here, (s, t, h) = torch.zeros_like(source, dtype=torch.bool), (spot.stream, spot.time, spot.head)
            for at in np.ndindex(*source.shape):
                place = cell.place == "all" or at[t + 1] == int(cell.place)
                head = cell.head in (None, at[h + 1] if h is not None else None)
                here[at] = place and head and s in (None, at[2])
            by_hand = odds(under(model, CLEAN[base : base + 1], {cell.hook: moved(source, here)}))
            assert found.patched[c, 0] == pytest.approx(by_hand, abs=1e-9), cell
        static = ("v_mix", "mlp_hc.post", "attn_hc.res")  # weights, or static at first
        assert np.abs(found.effect).max() > 1e-6 or spot.short in static, spot


@pytest.mark.parametrize("shared", [1, 2, 4])
def test_keys_and_values_are_patched_by_the_heads_that_queries_share(shared: int) -> None:
    model = make("llama", n_heads=4, **{"attention.kv_heads": shared})
    cells = plan(model, PAIRS[:1], spots(model, ["k", "v"]), "head", [1])
    assert [(cell.spot.short, cell.head) for cell in cells] == [(s, h) for s in "kv" for h in range(shared)]
    assert [cell_labels(cell, "denoise")["head"] for cell in cells[:shared]] == [f"L1.KV{h}" for h in range(shared)]
    assert plan(model, PAIRS[:1], spots(model, ["k"]), layers=[1])[0].head is None, "auto stays by position"


@pytest.mark.parametrize("preset", ["lfa", "llama", "kromcanon", "hdpl"])
def test_every_editable_hook_can_be_patched(preset: str) -> None:
    """A whole activation of layer 1, at every hook of its block that can be edited, and its first-order guess."""
    model = make(preset)
    known = {n.removeprefix("blocks.1."): p for n, p in model.hook_dict.items() if n.startswith("blocks.1.")}
    chosen = spots(model, [n for n, point in known.items() if not isinstance(point, ObservePoint)])
    cells = plan(model, PAIRS[:1], chosen, "all", [1])
    assert len(cells) > 20
    found, guessed = patch_pairs(model, PAIRS[:1], cells), attribute_pairs(model, PAIRS[:1], cells)
    seen = captured(model, CLEAN[:1], [cell.hook for cell in cells])
    for c, cell in enumerate(cells):
        logits = under(model, CLEAN[1:], {cell.hook: lambda x, hook: seen[hook.name]})
        assert found.patched[c, 0] == pytest.approx(odds(logits), abs=1e-9), cell
    at = [cell.spot.short for cell in cells].index("mlp_out")
    assert np.isfinite(guessed).all() and found.effect[at, 0] != 0 != guessed[at, 0]


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
    ("preset", "name", "by", "line"),
    [("lfa", "resid_pre", "auto", "token_pre or context_pre"), ("lfa", "zz", "auto", "did you mean z"),
     ("kromhc", "s4_pre", "auto", "s0 to s3"), ("lfa", "attn_out", "head", "no heads"),
     ("std-t", "q.token", "auto", "the heads of std-t read no named streams; patch q"),
     ("lfa", "k.contxt", "auto", "unknown stream 'contxt': did you mean context"),
     ("lfa", "v_mix", "role", "no positions"), ("lfa", "v_mix", "head", "no heads")],
)  # fmt: skip
def test_what_cannot_be_patched_is_refused(preset: str, name: str, by: Any, line: str) -> None:
    with pytest.raises(InputError, match=line):
        plan(model := make(preset), PAIRS, spots(model, [name]), by)


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
@pytest.mark.parametrize(("direction", "base", "other"), [("denoise", 1, 0), ("noise", 0, 1)])
def test_attribution_is_the_derivative(preset: str, direction: Any, base: int, other: int) -> None:
    """Σ (source − own) ∂m/∂a is the slope of the metric as the cell moves from its own value to the source's."""
    model = make(preset)
    cells = plan(model, PAIRS[:1], spots(model, [*default_spots(model), "pattern"]), layers=[1])
    guessed = attribute_pairs(model, PAIRS[:1], cells, direction)[:, 0]
    sources = captured(model, CLEAN[other : other + 1], [cell.hook for cell in cells])
    for c, cell in enumerate(cells):
        source, tokens = sources[cell.hook], CLEAN[base : base + 1]
        at = cell.index(PAIRS[0], source.ndim)
        up, down = (odds(under(model, tokens, {cell.hook: moved(source, at, by)})) for by in (1e-5, -1e-5))
        assert guessed[c] == pytest.approx((up - down) / 2e-5, abs=1e-6), cell


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
    with edit(model, {f"blocks.1.hook_{at}": lambda x, hook: x - own + source for at in ("attn_in", "attn_v_in")}):
        made = captured(model, base, [cell.hook for cell in cells])
    assert len(cells) == 12
    for c, cell in enumerate(cells):
        if stream == "context" and cell.spot.short[0] == "v" and preset == "dst-kron":
            assert np.isnan(found.patched[c, 0]) and np.isnan(guessed[c, 0])  # values read the token stream
            continue
        at = (slice(None), slice(None), cell.head)
        before, slightly, patched = (
            odds(under(model, base, {cell.hook: moved(made[cell.hook], at, share)})) for share in (0.0, 1e-6, 1.0)
        )
        assert found.patched[c, 0] == pytest.approx(patched, abs=1e-8) and abs(found.effect[c, 0]) > 1e-9, cell
        assert guessed[c, 0] == pytest.approx((slightly - before) / 1e-6, rel=1e-3, abs=1e-7), cell


def frozen_run(model: Any, sender: Node, base: Tensor, other: Tensor, read: str | None) -> tuple[Tensor | None, Tensor]:
    """Wang et al. (2022): the sender from the other run, every other component held; what the reader then reads."""
    hooks = [n for n in model.hook_dict if n.endswith(("hook_attn_out", "hook_mlp_out")) or "_hc.hook_" in n]
    own = captured(model, base, [*hooks, (hook_sent := hook_of(sender))])
    source = captured(model, other, hook_sent)
    branch = f"blocks.{sender.layer}.hook_{'mlp' if sender.part == 'mlp' else 'attn'}_out"
    edits = {n: (lambda x, hook, y=own[n]: y) for n in hooks if n != branch}

    def send(x: Tensor, hook: Any) -> Tensor:
        if sender.part != "head":
            return source[hook_sent]
        new = x.clone()
        new[:, :, sender.head] = source[hook_sent][:, :, sender.head]
        return new

    names = [read] if read else []
    with torch.no_grad(), edit(model, {**edits, hook_sent: send}), capture(model, names) as seen:
        logits = model(base)
    return (seen[read] if read else None), logits


PATH_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ("std-t", "lfa", "dst-kron", "pls", "kromcanon")},
    "parallel": ("dst-kron", {"residual.order": "parallel"}),
}


@pytest.mark.parametrize("name", PATH_MODELS)
def test_paths_are_runs_with_all_else_frozen(name: str) -> None:
    preset, overrides = PATH_MODELS[name]
    model = make(preset, **overrides)
    if name == "kromcanon":
        with torch.no_grad():
            for parameter, p in model.named_parameters():
                if "_hc" in parameter and p.ndim == 2:
                    p.normal_(std=0.3, generator=torch.Generator().manual_seed(p.numel()))
    pair, base, other = PAIRS[0], CLEAN[1:], CLEAN[:1]
    edges = edges_of(model, parse_senders(["L0.H1", "L1.attn", "L0.mlp"], model))
    found = patch_edges(model, [pair], edges)
    assert np.isnan(found.patched).any() and np.isfinite(found.patched).sum() >= 8
    for e, edge in enumerate(edges):
        hook = f"blocks.{edge.reader.layer}.hook_{edge.kind}"
        if np.isnan(found.patched[e, 0]):  # what has no edge reads nothing of the sender
            read, _ = frozen_run(model, edge.sender, base, other, hook)
            torch.testing.assert_close(read, captured(model, base, hook)[hook], rtol=0, atol=1e-12)
            continue
        if edge.kind == "head":
            _, logits = frozen_run(model, edge.sender, base, other, None)
        else:
            read, _ = frozen_run(model, edge.sender, base, other, hook)
            logits = under(model, base, {hook: lambda x, hook, y=read: y})
        assert found.patched[e, 0] == pytest.approx(odds(logits), abs=1e-8), edge
        assert abs(found.effect[e, 0]) > 1e-7


def test_senders() -> None:
    model, hybrid = make("std-t"), make("hdpl", **{"attention.o": "hdpl"})
    labels = [s.name for s in parse_senders(["L0.H1-2", "L1.mlp", "L1attn", "L0.H1"], model)]
    assert labels == ["L0.H1", "L0.H2", "L1 mlp", "L1 attn"]
    for of, sender, line in ((model, "L2.mlp", "this model has layers 0 to 1"), (hybrid, "L0.H1", r"L2\.attn")):
        with pytest.raises(InputError, match=line):
            edges_of(of, parse_senders([sender], of))


def swept(cells: list, exact: np.ndarray, guessed: np.ndarray | None) -> PatchResults:
    zero = np.zeros(exact.shape[1])
    return PatchResults("denoise", zero, zero, exact, guessed, [cell_labels(c, "denoise") for c in cells])


def table_of(one: PatchResults, pairs: list[PatchPair], threshold: float) -> Table:
    """The table of a sweep that was made by hand."""
    seen = InstrumentData({}, {}, {"title": "by hand"}, extra=[one])
    add_blocks(seen, "effect", "recovery", [one], pairs, threshold, "hook")
    found = {name: estimate(block, seen.contrasts[name]) for name, block in seen.blocks.items()}
    return tables(Patch(threshold=threshold), seen, found)["patches"]


def test_error_table() -> None:
    model = make("std-t")
    cells = plan(model, PAIRS, spots(model, ["z", "mlp_out"]))
    exact = np.random.default_rng(0).normal(size=(len(cells), 2))
    table = errors(swept(cells, exact, exact * 2)).set_index("hook")
    assert table["correlation"].tolist() == pytest.approx([1, 1])
    at = [c for c, cell in enumerate(cells) if cell.spot.short == "z"]
    assert table.loc["z", "mean_abs"] == pytest.approx(np.abs(exact[at]).mean())
    assert table.loc["z", "max_abs"] == pytest.approx(np.abs(exact[at]).max())
    flat = errors(swept(cells, exact * 0, exact))
    assert flat["correlation"].isna().all() and flat["undefined"].str.contains("does not vary").all()


@pytest.mark.parametrize("contrast", ["corrupt", "noun", "order"])
def test_pairs_differ_where_they_should(contrast: Any) -> None:
    model = load("models/zoo/lfa")
    suite = load_suite("competing") if contrast == "noun" else load_suite("stories", n=150)
    aligned = align(suite, model.tokenizer, model.config.n_ctx)
    found = make_pairs(aligned, model.tokenizer, contrast)
    prompts = {p.id: p for p in aligned.prompts} | {p.pair: p for p in aligned.prompts if p.order == "target_first"}
    unit = len(aligned.prompts) if contrast != "order" else len(aligned.pairs())
    assert len(found.pairs) + len(found.filtered) == unit and len(found.pairs) >= 4
    for pair in found.pairs:
        prompt = prompts[pair.id]
        text, other = (model.tokenizer.decode(list(ids)) for ids in (pair.clean, pair.corrupt))
        assert text == prompt.text and text != other and len(pair.clean) == len(pair.corrupt)
        assert sorted(p for at in pair.places.values() for p in at) == list(range(len(pair.clean)))
        assert set(pair.places) <= set(PLACES) and pair.places["last"] == (pair.last,)
        assert pair.answers == (model.tokenizer.encode(text + prompt.coherent)[len(pair.clean)],)
        target, rival = (prompt.text[slice(*prompt.roles[role])] for role in ("target", "distractor"))
        differ = {name for name, at in pair.places.items() if any(pair.clean[p] != pair.corrupt[p] for p in at)}
        if contrast == "noun":
            start, end = prompt.roles["target"]
            assert differ == {"target"} and other.startswith(text[:start]) and other.endswith(text[end:])
        elif contrast == "order":
            articles = {"before", "between"}  # a and an
            assert differ - articles == {"first noun", "second noun"} and prompt.order == "target_first"
        else:
            assert differ <= {"after nouns", "query", "last"} and target in other and rival in other
            assert pair.foils == (model.tokenizer.encode(text + prompt.incoherent)[len(pair.clean)],)
    some = choose_pairs(found, 2)
    assert 0 < len(some.pairs) <= 4 and {p.cluster for p in some.pairs} < {p.cluster for p in found.pairs}


def test_pairs_of_your_own() -> None:
    tokenizer = planted.tokenizer()
    pair = own_pair(tokenizer, "Tim took a key", "Tim took a box", " and", " .")
    assert [tokenizer.pieces([i])[0].strip() for i in (*pair.answers, *pair.foils)] == ["and", "."]
    assert list(pair.places) == ["0 BOS", "1 Tim", "2 took", "3 a", "4 key |box"]
    for corrupt, answer, foil, line in (
        ("Tim took", " and", " .", r"the clean text has \d+ tokens, the corrupted \d+; make them equal"),
        ("Tim took a box", " and", " and", "share a token"),
        ("Tim took a box", "", " .", "--answer"),
        ("Tim took a box", " with", "and", "--foil: 'and' would run on from 'key': begin it with a space, ' and'"),
    ):
        with pytest.raises(InputError, match=line):
            own_pair(tokenizer, "Tim took a key", corrupt, answer, foil)
    short = PatchPair(id="a", cluster="a", clean=(0, 1), corrupt=(0, 2), answers=(1,), foils=(2,))
    with pytest.raises(InputError, match="one length"):
        by_token([pair, short], tokenizer)
    assert list(by_token([short, short], tokenizer)[0].places) == ["0", "1"]


def test_recovery_is_clustered_and_undefined_where_the_runs_agree() -> None:
    pairs = [
        PatchPair(id=str(i), cluster=str(i // 2), clean=(0, 1), corrupt=(0, 2), answers=(1,), foils=(2,))
        for i in range(6)
    ]
    model = make("std-t")
    (cell,) = plan(model, pairs, spots(model, ["mlp_out"]), "all", [0])
    clean, corrupt = np.array([2.0, 3, 1, 4, 0.2, 2]), np.array([0.0, 1, -1, 0, 0, 0.5])
    patched = np.array([1.0, 2.5, 0.5, 1, 9, 1])
    effect, labels = patched - corrupt, [cell_labels(cell, "denoise")]
    by_hand = PatchResults("denoise", clean, corrupt, patched[None], effect[None], labels)
    row = table_of(by_hand, pairs, 0.5).frame.iloc[0]
    assert (row["n"], row["defined"], row["clusters"]) == (6, 5, 3)
    differ = np.abs(clean - corrupt) >= 0.5
    for name, values, clusters in (
        ("recovery", (effect / (clean - corrupt))[differ], list("00112")), ("effect", effect, list("001122")),
    ):  # fmt: skip
        expected = mean(values, clusters)
        found = row[[name, f"{name}_low", f"{name}_high"]].tolist()
        assert found == pytest.approx([expected.mean, expected.low, expected.high])
    assert row["attributed"] == pytest.approx(row["recovery"])
    table = table_of(by_hand, pairs, 50.0)
    assert np.isnan(table.frame["recovery"][0]) and table.frame["defined"][0] == 0
    assert "differs by 50 nats" in table.missing[0, "recovery"]


def test_the_title_says_which_token_of_a_longer_answer_counts() -> None:
    """`--answer " electrician"` measured " e" and the title said electrician."""
    model, words = load("stories/gpt2"), {"answer": " electrician", "foil": " dog"}
    first = model.tokenizer.pieces([model.tokenizer.encode("The cat saw the electrician")[5]])[0]
    assert first != words["answer"]
    how = Patch(clean="The cat saw the", corrupt="The dog saw the", **words, hooks=("resid_pre",), layers=("0",))
    title = how.measure(model).about["title"]
    assert f"one pair, {first!r}, the first token of ' electrician', against ' dog':" in title
    turned = replace(how, answer=" dog", foil=" electrician").measure(model).about["title"]
    assert f"' dog' against {first!r}, the first token of ' electrician': log-odds" in turned
    how = Patch(contrast="order", pairs=4, hooks=("resid_pre",), layers=("0",))
    suite = planted.suite(6)
    long = [replace(p, coherent=f"{p.coherent} box") if p.pair in ("p0", "p1") else p for p in suite.prompts]
    net = planted.model()
    title = how.measure(net, given_prompts(replace(suite, prompts=tuple(long)), net)).about["title"]
    assert "of planted by order, " in title and "by the first token of a longer answer or foil" in title
