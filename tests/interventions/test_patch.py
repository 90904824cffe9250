"""Patching where the answer is known on paper, against TransformerLens, against runs that freeze all else by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor
from transformer_lens import patching as lens

from interventions.pairs import PLACES, Pairs, PatchPair, by_token, choose_pairs, make_pairs, own_pair
from interventions.patch import main
from interventions.patch_tables import UNITS, cell_table, edge_table, error_table
from interventions.patching import Patched, attribute_pairs, default_spots, patch_pairs, plan, spots
from interventions.path_patching import READERS, Edge, Sender, connected, edges_of, parse_senders, patch_edges
from models import build
from models.capture import capture, edit
from models.checkpoint import load
from models.errors import InputError
from models.hooks import ObservePoint
from probes.align import align
from probes.prompts import load_suite
from probes.statistics import mean
from tests.probes import planted
from tests.tiny import WORDS, untrained

CLEAN = torch.randint(256, (2, 5), generator=torch.Generator().manual_seed(4))
PAIRS = [
    PatchPair(
        id=f"p{i}", cluster=f"p{i}", clean=tuple(CLEAN[i].tolist()), corrupt=tuple(CLEAN[1 - i].tolist()),
        answer=3, foil=8, places={str(p): (p,) for p in range(5)},
    )
    for i in (0, 1)
]  # fmt: skip


def make(preset: str, **overrides: Any) -> Any:
    return build(preset, "tiny", init_std=0.2, **overrides).double().eval()


def odds(logits: Tensor) -> float:
    return float(logits[0, -1, 3] - logits[0, -1, 8])


# ---- planted -----------------------------------------------------------------------------------


def one_head_moves_it() -> Any:
    """The planted model; its head "semantic" (L0H1) looks at the tool and writes which one, nothing else writes."""
    model = planted.model()
    bits, tools = -torch.ones(len(planted.VOCABULARY), 6), [planted.VOCABULARY.index(w) for w in planted.TOOLS]
    bits[tools] += 2 * torch.eye(6)  # each tool has a feature of its own
    block = model.blocks[0]
    with torch.no_grad():
        model.embed.weight[:, 3:9], model.embed.weight[:, 23:29] = bits, -bits
        model.unembed.weight.zero_()
        model.unembed.weight[tools, 9:15] = bits[tools]
        for j in range(6):
            block.attn.v.weight[8 + j] = 0
            block.attn.v.weight[8 + j, 3 + j] = 1
            block.attn.o.weight[9 + j, 8 + j] = 5
    return model.double()


def test_only_the_planted_head_moves_the_answer() -> None:
    model = one_head_moves_it()
    found = make_pairs(align(planted.suite(3), model.tokenizer, planted.CONTEXT), model.tokenizer, "noun")
    pairs = found.pairs[::2]
    assert len(pairs) == 2 and len(found.filtered) == 2  # of one relation there is one tool
    cells = plan(model, pairs, spots(model, default_spots(model)))
    for direction in ("denoise", "noise"):
        exact = patch_pairs(model, pairs, cells, direction)
        assert (exact.clean - exact.corrupt > 1).all()
        table = cell_table(cells, pairs, exact, None, 0.5, exact.clean - exact.corrupt, direction)
        on, off = (1.0, 0.0) if direction == "denoise" else (0.0, 1.0)
        for _, row in table.iterrows():
            moves = {("resid_pre", "target"), ("attn_out", "last")}
            here = row["head"] == "L0H1" or (row["hook"], row["position"]) in moves
            assert row["recovery"] == pytest.approx(on if here else off, abs=1e-9), row
    edges = edges_of(model, parse_senders(["L0.*", "L0.mlp"], model))
    paths = edge_table(edges, pairs, patch_edges(model, pairs, edges), 0.5).set_index(["sender", "reader"])
    assert paths.loc[("L0H1", "head"), "recovery"] == pytest.approx(1, abs=1e-9)
    assert paths.drop(("L0H1", "head"))["effect"].abs().max() < 1e-9


# ---- exact patches -----------------------------------------------------------------------------


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
                with torch.no_grad(), capture(model, cell.hook) as seen:
                    model(CLEAN[other : other + 1])
                source = seen[cell.hook]

                def put(x: Tensor, hook: Any, source: Tensor = source, cell: Any = cell) -> Tensor:
                    new = x.clone()
                    for at in np.ndindex(*x.shape):
                        s, t, h = cell.spot.stream, cell.spot.time, cell.spot.head
                        wrong_place = cell.place != "all" and at[t + 1] != int(cell.place)
                        if not (
                            wrong_place or (cell.head is not None and at[h + 1] != cell.head) or s not in (None, at[2])
                        ):
                            new[at] = source[at]
                    return new

                with torch.no_grad(), edit(model, {cell.hook: put}):
                    by_hand = odds(model(CLEAN[base : base + 1]))
                assert found.patched[c, 0] == pytest.approx(by_hand, abs=1e-9), cell
            changed = np.abs(found.effect).max()
            assert changed > 1e-6 or spot.short in ("v_mix", "mlp_hc.post", "attn_hc.res"), (
                spot
            )  # weights; static at first


@pytest.mark.parametrize("preset", ["lfa", "llama", "kromcanon", "hdpl"])
def test_every_editable_hook_can_be_patched(preset: str) -> None:
    """A whole activation of layer 1, at every hook of its block that can be edited, and its first-order guess."""
    model = make(preset)
    known = {n.removeprefix("blocks.1."): p for n, p in model.hook_dict.items() if n.startswith("blocks.1.")}
    chosen = spots(model, [n for n, point in known.items() if not isinstance(point, ObservePoint)])
    assert len(chosen) > 20
    cells = plan(model, PAIRS[:1], chosen, "all", [1])
    found, guessed = patch_pairs(model, PAIRS[:1], cells), attribute_pairs(model, PAIRS[:1], cells)
    with torch.no_grad(), capture(model, [cell.hook for cell in cells]) as seen:
        model(CLEAN[:1])
    for c, cell in enumerate(cells):
        with torch.no_grad(), edit(model, {cell.hook: lambda x, hook: seen[hook.name]}):
            assert found.patched[c, 0] == pytest.approx(odds(model(CLEAN[1:])), abs=1e-9), cell
    assert np.isfinite(guessed).all()
    short = [cell.spot.short for cell in cells]
    assert found.effect[short.index("mlp_out"), 0] != 0 and guessed[short.index("mlp_out"), 0] != 0


def test_streams_that_only_show_a_sum_refuse() -> None:
    model = make("lfa")
    with pytest.raises(InputError, match="token_pre or context_pre"):
        spots(model, ["resid_pre"])
    with pytest.raises(InputError, match="did you mean z"):
        spots(model, ["zz"])
    with pytest.raises(InputError, match="s0 to s3"):
        spots(make("kromhc"), ["s4_pre"])
    with pytest.raises(InputError, match="no heads"):
        plan(model, PAIRS, spots(model, ["attn_out"]), "head")
    with pytest.raises(InputError, match="no positions"):
        plan(model, PAIRS, spots(model, ["v_mix"]), "role")
    with pytest.raises(InputError, match="nothing to patch"):
        patch_pairs(model, PAIRS, [])


# ---- attribution -------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["std-t", "lfa", "kromcanon"])
def test_attribution_is_the_derivative(preset: str) -> None:
    """Σ (source − own) ∂m/∂a is the slope of the metric as the cell moves from its own value to the source's."""
    model = make(preset)
    cells = plan(model, PAIRS[:1], spots(model, [*default_spots(model), "pattern"]), layers=[1])
    for direction, base, other in (("denoise", 1, 0), ("noise", 0, 1))[: 1 + (preset == "lfa")]:
        guessed = attribute_pairs(model, PAIRS[:1], cells, direction)[:, 0]
        for c, cell in enumerate(cells):
            with torch.no_grad(), capture(model, cell.hook) as seen:
                model(CLEAN[other : other + 1])
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


def test_error_table() -> None:
    model = make("std-t")
    cells = plan(model, PAIRS, spots(model, ["z", "mlp_out"]))
    exact = np.random.default_rng(0).normal(size=(len(cells), 2))
    table = error_table(cells, exact, exact * 2, "denoise").set_index("hook")
    assert table["correlation"].tolist() == pytest.approx([1, 1])
    at = [c for c, cell in enumerate(cells) if cell.spot.short == "z"]
    assert table.loc["z", "mean_abs"] == pytest.approx(np.abs(exact[at]).mean())
    assert table.loc["z", "max_abs"] == pytest.approx(np.abs(exact[at]).max())
    flat = error_table(cells, exact * 0, exact, "denoise")
    assert flat["correlation"].isna().all() and flat["undefined"].str.contains("does not vary").all()


# ---- paths -------------------------------------------------------------------------------------


def frozen_run(
    model: Any, sender: Sender, base: Tensor, other: Tensor, read: str | None
) -> tuple[Tensor | None, Tensor]:
    """Wang et al. (2022): the sender from the other run, every other component held; what the reader then reads."""
    hooks = [n for n in model.hook_dict if n.endswith(("hook_attn_out", "hook_mlp_out")) or "_hc.hook_" in n]
    with torch.no_grad(), capture(model, [*hooks, sender.hook]) as own:
        model(base)
    with torch.no_grad(), capture(model, sender.hook) as source:
        model(other)
    branch = f"blocks.{sender.layer}.hook_{'mlp' if sender.ffn else 'attn'}_out"
    edits = {n: (lambda x, hook, y=own[n]: y) for n in hooks if n != branch}

    def send(x: Tensor, hook: Any) -> Tensor:
        if sender.head is None:
            return source[sender.hook]
        new = x.clone()
        new[:, :, sender.head] = source[sender.hook][:, :, sender.head]
        return new

    names = [read] if read else []
    with torch.no_grad(), edit(model, {**edits, sender.hook: send}), capture(model, names) as seen:
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
    senders = [Sender(0, 1), Sender(1, None), Sender(0, ffn=True)]
    every = [Edge(s, reader, layer) for s in senders for reader in READERS for layer in range(2)]
    edges = [e for e in [*every, *(Edge(s, "head", 2) for s in senders)] if connected(model, e)]
    found = patch_edges(model, [pair], edges)
    for e, edge in enumerate(edges):
        if edge.reader == "head":
            _, logits = frozen_run(model, edge.sender, base, other, None)
        else:
            hook = f"blocks.{edge.layer}.hook_{edge.reader}"
            read, _ = frozen_run(model, edge.sender, base, other, hook)
            with torch.no_grad(), edit(model, {hook: lambda x, hook, y=read: y}):
                logits = model(base)
        assert found.patched[e, 0] == pytest.approx(odds(logits), abs=1e-8), edge
        assert abs(found.effect[e, 0]) > 1e-7
    for edge in every:  # what has no edge reads nothing of the sender
        if not connected(model, edge):
            hook = f"blocks.{edge.layer}.hook_{edge.reader}"
            read, _ = frozen_run(model, edge.sender, base, other, hook)
            with torch.no_grad(), capture(model, hook) as own:
                model(base)
            torch.testing.assert_close(read, own[hook], rtol=0, atol=1e-12)


def test_senders() -> None:
    model = make("std-t")
    labels = [s.label for s in parse_senders(["L0.H1-2", "L1.mlp", "L1attn", "L0.H1"], model)]
    assert labels == ["L0H1", "L0H2", "L1 mlp", "L1 attn"]
    with pytest.raises(InputError, match="layers go from 0 to 1"):
        parse_senders(["L2.mlp"], model)
    with pytest.raises(InputError, match="no reader"):
        edges_of(model, [Sender(1, ffn=True)], ("attn_in",))
    with pytest.raises(InputError, match=r"L2\.attn"):
        edges_of(make("hdpl", **{"attention.o": "hdpl"}), [Sender(0, 1)])


# ---- pairs and tables --------------------------------------------------------------------------


@pytest.mark.parametrize("contrast", ["clue", "noun", "order"])
def test_pairs_differ_where_they_should(contrast: Any) -> None:
    model = load("models/zoo/lfa")
    aligned = align(load_suite("stories", n=150), model.tokenizer, model.config.n_ctx)
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
        assert pair.answer == model.tokenizer.encode(text + prompt.coherent)[len(pair.clean)]
        target, rival = (prompt.text[slice(*prompt.roles[role])] for role in ("target", "distractor"))
        differ = {name for name, at in pair.places.items() if any(pair.clean[p] != pair.corrupt[p] for p in at)}
        if contrast == "noun":
            start, end = prompt.roles["target"]
            assert differ == {"target"} and other.startswith(text[:start]) and other.endswith(text[end:])
        elif contrast == "order":
            articles = {"before", "between"}  # a and an
            assert differ - articles == {"first noun", "second noun"} and prompt.order == "target_first"
        else:
            assert differ <= {"after nouns", "query", "after query"} and target in other and rival in other
            assert pair.foil == model.tokenizer.encode(text + prompt.incoherent)[len(pair.clean)]
    some = choose_pairs(found, 2)
    assert 0 < len(some.pairs) <= 4 and {p.cluster for p in some.pairs} < {p.cluster for p in found.pairs}


def test_pairs_of_your_own() -> None:
    tokenizer = planted.tokenizer()
    pair = own_pair(tokenizer, "Tim took a key", "Tim took a box", " and", " .")
    assert [tokenizer.pieces([i])[0].strip() for i in (pair.answer, pair.foil)] == ["and", "."]
    assert list(pair.places) == ["0 BOS", "1 Tim", "2 took", "3 a", "4 key |box"]
    with pytest.raises(InputError, match="equal lengths"):
        own_pair(tokenizer, "Tim took a key", "Tim took", " and", " .")
    with pytest.raises(InputError, match="same token"):
        own_pair(tokenizer, "Tim took a key", "Tim took a box", " and", " and")
    with pytest.raises(InputError, match="--answer"):
        own_pair(tokenizer, "Tim took a key", "Tim took a box", "", " .")
    short = PatchPair(id="a", cluster="a", clean=(0, 1), corrupt=(0, 2), answer=1, foil=2)
    with pytest.raises(InputError, match="one length"):
        by_token([pair, short], tokenizer)
    assert list(by_token([short, short], tokenizer)[0].places) == ["0", "1"]


def test_recovery_is_clustered_and_undefined_where_the_runs_agree() -> None:
    pairs = [
        PatchPair(id=str(i), cluster=str(i // 2), clean=(0, 1), corrupt=(0, 2), answer=1, foil=2) for i in range(6)
    ]
    model = make("std-t")
    cells = plan(model, pairs, spots(model, ["mlp_out"]), "all", [0])
    clean, corrupt = np.array([2.0, 3, 1, 4, 0.2, 2]), np.array([0.0, 1, -1, 0, 0, 0.5])
    patched = np.array([[1.0, 2.5, 0.5, 1, 9, 1]])
    found = Patched("denoise", clean, corrupt, patched)
    row = cell_table(cells, pairs, found, patched - corrupt, 0.5, clean - corrupt, "denoise").iloc[0]
    assert (row["n"], row["defined"], row["clusters"]) == (6, 5, 3)
    recovery = [(p - b) / (a - b) for p, a, b in zip(patched[0], clean, corrupt, strict=True) if abs(a - b) >= 0.5]
    expected = mean(recovery, ["0", "0", "1", "1", "2"])
    assert row[["recovery", "ci_low", "ci_high"]].tolist() == pytest.approx(
        [expected.mean, expected.ci_low, expected.ci_high]
    )
    expected = mean(patched[0] - corrupt, ["0", "0", "1", "1", "2", "2"])
    assert row[["effect", "effect_low"]].tolist() == pytest.approx([expected.mean, expected.ci_low])
    assert row["attributed"] == pytest.approx(row["recovery"])
    row = cell_table(cells, pairs, found, None, 50.0, clean - corrupt, "denoise").iloc[0]
    assert np.isnan(row["recovery"]) and row["defined"] == 0 and "differ by 50 nats" in row["undefined"]


# ---- the command -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Minimal pairs in the words of the tiny corpus."""
    path, rows = tmp_path_factory.mktemp("suite") / "words.jsonl", []
    for i, (a, b) in enumerate((("cat", "dog"), ("bird", "cat"), ("dog", "bird"), ("tree", "river"))):
        for order, (x, y) in (("target_first", (a, b)), ("target_last", (b, a))):
            text = f"the {x} and the {y} sat on it. the"
            roles = {"target": a, "distractor": b, "query": " it"}
            at = {r: [text.index(w) + (r == "query"), text.index(w) + len(w)] for r, w in roles.items()}
            row = {"id": f"{i}-{order}", "text": text, "roles": at, "pair": str(i), "order": order}
            rows.append({**row, "category": "competing-nouns", "coherent": f" {a}", "incoherent": f" {b}"})
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.parametrize("preset", ["std-t", "lfa", "dst-kron", "pls", "c2", "llama", "hdpl", "gpt2", "kromcanon"])
def test_command_on_every_preset(
    preset: str, tiny_run: Path, suite: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run, out = untrained(preset, tiny_run, tmp_path / "run"), tmp_path / "patch.parquet"
    argv = [str(run), "--suite", str(suite), "--contrast", "noun", "--threshold", "1e-6", "--out", str(out)]
    argv += ["--pairs", "4", "--senders", "top1:recovery", "--direction", "denoise", "noise"] if preset == "lfa" else []
    argv += ["--hooks", "token_pre", "z"] if preset == "lfa" else []
    main([*argv, *([] if preset == "lfa" else ["--pairs", "2", "--senders", "L0.mlp", "--by", "all"])])
    printed, table = capsys.readouterr().out, pd.read_parquet(out)
    assert set(UNITS) <= set(table.columns) and "pairs of words by noun" in printed and "strongest of" in printed
    streams = {
        "lfa": {"token_pre"},
        "pls": {"token_pre", "context_pre"},
        "kromcanon": {"streams_pre"},
        "gpt2": {"resid_pre"},
    }
    assert set(table["hook"]) >= streams.get(preset, set()) | (
        {"z"} if preset == "lfa" else {"z", "attn_out", "mlp_out"}
    )
    assert table["effect"].abs().max() > 1e-4
    first = table[(table["layer"] == 0) & table["hook"].isin(("resid_pre", "token_pre", "streams_pre"))]
    for direction, one in first[first["position"].isin(("target", "all"))].groupby("direction"):
        whole = 1.0 if direction == "denoise" else 0.0  # all that differs is the target's embedding
        assert one["recovery"].item() == pytest.approx(whole, abs=1e-3)
    assert {"sender", "reader", "recovery"} <= set(pd.read_parquet(out.with_stem("patch-paths")))
    assert pd.read_parquet(out.with_stem("patch-attribution"))["values"].gt(0).all()
    for name in ("patch", "patch-paths", *(["patch-noise"] if preset == "lfa" else [])):
        assert (tmp_path / f"{name}.html").exists()


def texts(run: Path) -> list[str]:
    """Arguments for two texts of equal length in this run's tokens."""
    tokenizer = load(run).tokenizer
    a, b, *_ = [w for w in WORDS if len(tokenizer.encode(f"the {w} sat")) == len(tokenizer.encode("the cat sat"))]
    return ["--clean", f"the {a} sat", "--corrupt", f"the {b} sat", "--answer", " on", "--foil", " from"]


def test_command_with_texts_and_attribution_alone(tiny_run: Path, capsys: pytest.CaptureFixture) -> None:
    argv = [str(tiny_run), *texts(tiny_run)]
    main([*argv, "--by", "token", "--hooks", "context_pre", "--layers", "1"])
    printed = capsys.readouterr().out
    assert "BOS" in printed and "undefined" in printed  # one pair has no interval
    main([*argv, "--method", "attribution"])
    assert "attribution" in capsys.readouterr().out


def test_bad_input(tiny_run: Path, suite: Path) -> None:
    own = texts(tiny_run)
    for argv, message in (
        (["--clean", "x"], "needs all of"),
        ([*own, "--layers", "7"], "layers 0 to 1"),
        ([*own, "--hooks", "resid_pre"], "token_pre or context_pre"),
        ([*own, "--threshold", "0"], "--threshold"),
        ([*own, "--senders", "top1:pds"], "recovery"),
        ([*own, "--senders", "top1:recovery", "--hooks", "mlp_out"], "let --hooks hold z"),
        (["--suite", str(suite), "--pairs", "0"], "at least 1"),
        (["--suite", str(suite), "--contrast", "clue"], "query is in the sentence"),
        (["--out", "x.csv"], "parquet"),
    ):
        with pytest.raises(InputError, match=message):
            main([str(tiny_run), *argv])
    with pytest.raises(InputError, match="at least 1"):
        choose_pairs(Pairs(tuple(PAIRS)), 0)
    with pytest.raises(InputError, match="no pairs"):
        patch_pairs(make("std-t"), [], plan(make("std-t"), PAIRS, spots(make("std-t"), ["z"])))
