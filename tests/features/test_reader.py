"""Features of random models equal the definitions, token by token, and know nothing of tokens' names."""

from typing import Any, get_args

import numpy as np
import pytest
import torch

from streamscope.features.compute import FeatureReader, attention_stats, columns, longest_run, stability
from streamscope.features.extract import Extract, Tier
from streamscope.models import build
from streamscope.models.hooks import capture
from streamscope.models.readout import top_two
from tests.features.naive import k_star, kappa, naive_features
from tests.tiny import randomise, refused

VOCABULARY = 23
HEADS = {"anchor_heads": ("all",), "entity_heads": ("L0.H0",)}


def model_of(preset: str, n_layers: int = 3, n_heads: int = 2, seed: int = 0, **overrides: Any) -> Any:
    """A tiny model whose layers disagree and whose gates, if it has any, are open to all degrees."""
    shape = {"n_layers": n_layers, "n_heads": n_heads, "d_vocab": VOCABULARY, "n_ctx": 12, **overrides}
    model = randomise(build(preset, "tiny", init_std=0.3, seed=seed, **shape).eval(), std=0.2, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    for block in model.blocks:
        if block.attn.gate is not None:
            for weights in block.attn.gate.parameters():
                torch.nn.init.normal_(weights, std=2.0, generator=generator)
    return model


def documents(*lengths: int, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(VOCABULARY, size=n).tolist() for n in lengths]


def check(model: Any, docs: list[list[int]], *tiers: Extract) -> np.ndarray:
    """Assert equality with the naive reference, row by row, for options that differ in tier; return X of the last."""
    naive = [row for ids in docs for row in naive_features(model, ids, tiers[0])]
    for options in tiers:
        reader = FeatureReader(model, options)
        found = reader.read(docs)
        names = [column.name for column in reader.columns]
        expected = np.array([[row[name] for name in names] for row in naive])
        assert found.X.shape == expected.shape
        np.testing.assert_allclose(found.X, expected, rtol=1e-5, atol=1e-5)
    return found.X


MODELS = {
    "vector gates, supervised": ("pls", {}),
    "vector gates": ("c2", {"n_layers": 1, "n_heads": 4}),
    "scalar gates": ("dst-kron", {"n_layers": 2, "attention.gate": "gate", "attention.gate.shape": "scalar"}),
    "no gate, one head": ("std-t", {"n_layers": 4, "n_heads": 1}),
    "frozen stream": ("lfa", {"n_heads": 4}),
    "norms of the layers": ("pls", {"n_layers": 2, "readout.layer_norms": "own"}),
    "ALiBi": ("lfa", {"positions": "alibi"}),
    "hyper-connections, Canon": ("kromcanon", {"n_layers": 2}),
    "dual paths": ("hdpl", {"n_layers": 2}),
}


@pytest.mark.parametrize("name", MODELS)
def test_equals_the_naive_reference(name: str) -> None:
    preset, shape = MODELS[name]
    tiers = [Extract(tier=tier, **{"core": HEADS, "topk": {"k": 3}}.get(tier, {})) for tier in get_args(Tier)]
    x = check(model_of(preset, **shape), documents(2, 9, 13), *tiers)
    assert len(x) == 1 + 8 + 12


@pytest.mark.parametrize("logits_row", ["query", "next"])
def test_the_prediction_is_what_the_model_says_after_all_layers(logits_row: Any) -> None:
    model, docs = model_of("pls"), documents(9, 13)
    with torch.no_grad():
        said = [model(torch.tensor([ids[:-1]]))[0].argmax(-1)[logits_row == "next" :] for ids in docs]
    found = FeatureReader(model, Extract(kstar="strict", logits_row=logits_row)).read(docs)
    np.testing.assert_array_equal(found.prediction, torch.cat(said).numpy())
    k = [column.name for column in columns(3, 2, Extract())].index("k_star")
    assert (found.X[:, k] > 0).any(), "the first layer says something else"


def test_a_planted_head_and_a_planted_depth() -> None:
    """Layers 2 and 3 write nothing, so what layer 1 says is final; nobody asks in layer 3, so heads there see all keys
    alike: 1 / (q + 1) each, entropy ln q over the q before the query."""
    model = model_of("std-t", n_layers=4)
    silent = [part for block in model.blocks[2:] for part in (block.attn.o, block.mlp.down)]
    with torch.no_grad():
        for part in (*silent, model.blocks[3].attn.q):
            for weights in part.parameters():
                weights.zero_()
    reader = FeatureReader(model, Extract(kstar="strict"))
    docs = documents(12, 12, 12)
    found = dict(zip([column.name for column in reader.columns], reader.read(docs).X.T, strict=True))
    first = FeatureReader(model, Extract(tier="core", kstar="strict", **HEADS)).read(docs).X[:, 0]
    assert set(found["k_star"]) == {0, 1} and (found["k_star"] == first).all()
    assert (found["traj_prob_L1"] == found["traj_prob_L3"]).all()
    assert ((found["traj_prob_L0"] == 0) == (found["k_star"] == 1)).all()
    q = np.tile(np.arange(11), 3)
    for head in (0, 1):
        np.testing.assert_allclose(found[f"head_act_final_L3H{head}"], np.where(q > 0, 1 / (q + 1), 0), rtol=1e-5)
        expected = np.where((q > 0) & (q < 9), np.log(np.maximum(q, 1)), 0)  # 0 where the peak is below θ = 0.1
        clear = q != 9  # where the peak is θ itself
        np.testing.assert_allclose(found[f"head_ent_final_L3H{head}"][clear], expected[clear], atol=1e-5)


OPTIONS: list[dict[str, Any]] = [
    {"kstar": "strict"}, {"target": "truth"}, {"traj_prob": "raw"}, {"traj_prob": "raw", "target": "truth"},
    {"kappa_target": "final"}, {"logits_row": "next", "target": "truth"}, {"gate_reduce": "norm"},
    {"theta_entropy": 0.3, "theta_gate": 0.55}, {"window": 2, "k": 20},
]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_option_equals_the_naive_reference(options: dict) -> None:
    model = model_of("pls", n_layers=3)
    plain = FeatureReader(model, Extract(tier="topk")).read(documents(13))
    changed = check(model, documents(13), Extract(tier="topk", **options))
    assert changed.shape != plain.X.shape or not np.array_equal(changed, plain.X)  # the option does something


@pytest.mark.parametrize("traj_prob", ["zeroed", "raw"])
def test_confidence_is_that_of_the_final_prediction_whatever_is_followed(traj_prob: Any) -> None:
    model, docs = model_of("pls"), documents(13)
    followed = Extract(tier="core", target="truth", traj_prob=traj_prob, **HEADS)
    changed = check(model, docs, followed)
    np.testing.assert_array_equal(changed, FeatureReader(model, Extract(tier="core", **HEADS)).read(docs).X)


def test_documents_beyond_the_context_are_cut_and_short_ones_have_no_row() -> None:
    reader = FeatureReader(model_of("pls"), Extract())
    long = documents(40)[0]
    np.testing.assert_array_equal(reader.read([long]).X, reader.read([long[:13]]).X)
    assert reader.rows_of([1, 2, 13, 40]).tolist() == [0, 1, 12, 12]
    later = FeatureReader(reader.model, Extract(logits_row="next"))
    assert later.rows_of([1, 2, 13, 40]).tolist() == [0, 0, 11, 11]


@pytest.mark.parametrize(
    ("predicted", "author", "strict"),
    [
        ([5, 5, 5, 5], 0, 0),  # right from the first layer on
        ([1, 2, 5, 5], 2, 2),
        ([1, 2, 3, 5], 4, 3),  # only the last layer
        ([5, 1, 5, 5], 2, 2),  # left and came back
        ([5, 5, 5, 1], 4, 3),  # changed its mind last
        ([5], 1, 0),
    ],
)
def test_k_star_in_every_case(predicted: list[int], author: int, strict: int) -> None:
    one = torch.tensor(predicted)[:, None]
    assert (int(stability(one, "author")), int(stability(one, "strict"))) == (author, strict)
    assert k_star(predicted, Extract()) == author  # and so says the reference


@pytest.mark.parametrize(("predicted", "run"), [([7, 7, 7], 3), ([7, 1, 7], 1), ([1, 7, 7], 2), ([1, 2, 3], 0)])
def test_kappa_counts_layers_in_a_row(predicted: list[int], run: int) -> None:
    assert int(longest_run(torch.tensor(predicted)[:, None] == 7)) == kappa(predicted, 7, Extract()) == run


def test_thresholds_of_entropy_and_gate() -> None:
    """Peaks of .25 g against θ = .1, gates g against θ = .4; what is at a threshold is not below it."""
    pattern = torch.tensor([[1, 0, 0], [0.5, 0.5, 0.0], [0.25, 0.25, 0.5]])[None, None]
    rows = torch.ones(1, 3, dtype=torch.bool)
    for theta, theta_gate, g, entropy, top in (
        (0.1, 0.4, 1.0, np.log(2), 0.25), (0.1, 0.4, 0.41, np.log(2), 0.1025), (0.1, 0.4, 0.39, 0, 0),
        (0.125, 0.5, 0.5, np.log(2), 0.125), (0.126, 0.51, 0.5, 0, 0),
    ):  # fmt: skip
        options = Extract(tier="topk", k=2, theta_entropy=theta, theta_gate=theta_gate)
        found = attention_stats(pattern, rows, options, torch.full((3, 1, 1), g))
        assert float(found.entropy[2, 0]) == pytest.approx(entropy, abs=1e-6)
        assert found.top is not None and found.top[2, 0].tolist() == pytest.approx([top] * 2, abs=1e-6)
    assert float(attention_stats(pattern, rows, options).entropy[1, 0]) == 0  # one key only


def test_statistics_of_a_pattern_by_hand() -> None:
    pattern = torch.tensor([[1, 0, 0, 0], [0.75, 0.25, 0, 0], [0, 0.5, 0.5, 0], [0.5, 0.25, 0.125, 0.125]])[None, None]
    before, rows = pattern.clone(), torch.ones(1, 4, dtype=torch.bool)
    found = attention_stats(pattern, rows, Extract(tier="topk", k=2, window=2))
    assert pattern.equal(before), "the model goes on with its own"
    shares = np.array([4, 2, 1]) / 7
    for name, expected in {
        "peak": [0, 0.75, 0.5, 0.5], "mass": [0, 0.75, 0.5, 0.875], "entropy": [0, 0, 0, -(shares @ np.log(shares))],
        "distance": [0, 0.75, 0.5, 0.5 * 3 + 0.25 * 2 + 0.125], "local": [0, 0.75, 0.5, 0.375],
        "top": [[0, 0], [0.75, 0], [0.5, 0], [0.5, 0.25]],
    }.items():  # fmt: skip
        np.testing.assert_allclose(getattr(found, name)[:, 0], expected, rtol=1e-6, atol=1e-7, err_msg=name)
    bare = attention_stats(pattern, rows, Extract())
    assert (bare.top, bare.distance, bare.local) == (None, None, None) and bare.mass.equal(found.mass)
    alone = attention_stats(pattern, rows, Extract(tier="topk", window=1, k=9))
    assert alone.local is not None and alone.local[:, 0].tolist() == [0, 0.75, 0.5, 0.125]
    assert alone.top is not None and alone.top.shape == (4, 1, 9) and alone.top[3, 0, 3:].eq(0).all()
    last = attention_stats(pattern, torch.tensor([[False, False, False, True]]), Extract(tier="topk", k=2, window=2))
    assert all(x.equal(every[3:]) for x, every in zip(last, found, strict=True)), "of some rows alone"
    gate = torch.tensor([0.25, 0.75]).expand(4, 1, 2)
    for how, g in (("mean", 0.5), ("norm", 0.3125**0.5)):
        changed = attention_stats(pattern, rows, Extract(tier="topk", k=2, window=2, gate_reduce=how), gate)
        for name in ("peak", "mass", "distance", "local", "top"):
            torch.testing.assert_close(getattr(changed, name), g * getattr(found, name))
        assert changed.entropy.equal(found.entropy)


def test_a_model_in_bf16_has_its_attention_summed_in_fp32() -> None:
    pattern, rows = torch.full((1, 1, 513, 513), 1 / 512).tril().bfloat16(), torch.ones(1, 513, dtype=torch.bool)
    position = Extract(tier="structural+position", window=512)
    found = attention_stats(pattern, rows, position)
    assert found.mass.dtype == torch.float32 and float(found.mass[-1, 0]) == float(found.local[-1, 0]) == 1.0
    assert attention_stats(pattern[..., :3, :3].double(), rows[:, :3], Extract()).mass.dtype == torch.float64
    gate = torch.rand(513, 1, 7, generator=torch.Generator().manual_seed(0)).bfloat16()
    gated = attention_stats(pattern, rows, position, gate)
    assert gated.mass.equal(gate.float().mean(-1) * found.mass), "and its gates averaged"
    read = FeatureReader(model_of("pls").bfloat16(), Extract(), raw=("blocks.1.attn.hook_z",)).read(documents(5))
    assert read.X.dtype == read.raw["blocks.1.attn.hook_z"].dtype == np.float32


@pytest.mark.parametrize("logits_row", ["query", "next"])
def test_the_first_rows_of_documents_may_be_left_out(logits_row: Any) -> None:
    docs, hook = documents(9, 13, 5, 2), "blocks.1.attn.hook_z"
    how = Extract(tier="topk", logits_row=logits_row, target="truth")
    reader = FeatureReader(model_of("pls"), how, raw=(hook,))
    rows, without = reader.rows_of([len(ids) for ids in docs]), [3, 0, 9, 1]
    whole, some = reader.read(docs), reader.read(docs, without)
    kept = np.concatenate([np.arange(n) >= skip for n, skip in zip(rows, without, strict=True)])
    assert len(some.X) == kept.sum() == len(some.prediction) < len(kept)
    np.testing.assert_array_equal(some.prediction, whole.prediction[kept])
    np.testing.assert_allclose(some.X, whole.X[kept], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(some.raw[hook], whole.raw[hook][kept], rtol=1e-5, atol=1e-5)
    n = 2 if logits_row == "query" else 3
    with refused(f"^no document has the {n} tokens that a row needs after those left out; give longer "):
        reader.read(docs, rows.tolist())


def test_a_layer_without_a_gate_has_not_that_of_the_layer_before() -> None:
    model, docs = model_of("pls"), documents(9)
    model.blocks[2].attn.gate = None
    reader = FeatureReader(model, Extract())
    found = dict(zip((column.name for column in reader.columns), reader.read(docs).X.T, strict=True))
    with torch.no_grad(), capture(model, "blocks.2.attn.hook_pattern") as seen:
        model(torch.tensor([docs[0][:-1]]))
    before = seen["blocks.2.attn.hook_pattern"][0].tril(-1).amax(-1)
    for head in (0, 1):
        np.testing.assert_allclose(found[f"head_act_final_L2H{head}"], before[head].numpy(), rtol=1e-5)


def test_top_two_across_tiles_with_ties(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamscope.models.readout.TILE", 4)
    monkeypatch.setattr("streamscope.models.readout.TILE_ROWS", 5)
    g = torch.Generator().manual_seed(0)
    h, w, target = torch.randn(13, 6, generator=g), torch.randn(17, 6, generator=g), torch.arange(13)
    (top, *two, of_target), p = top_two(h, w, target), (h @ w.T).softmax(-1)
    values, ids = p.topk(2)
    assert top.equal(ids[:, 0])
    torch.testing.assert_close(torch.stack(two, 1), values)
    torch.testing.assert_close(of_target, p.gather(1, target[:, None])[:, 0])
    w[16] = w[int(ids[0, 0])]  # two tokens alike, in different tiles
    top, first, second, _ = top_two(h, w, target)
    torch.testing.assert_close(first[0], second[0])
    assert top[0] == ids[0, 0]


@pytest.mark.parametrize(
    ("preset", "hook", "width"),
    [("std-t", "blocks.1.hook_resid_post", 32), ("kromhc", "blocks.1.hook_streams_post", 128),
     ("pls", "ln_final.hook_normalized", 32), ("pls", "blocks.0.attn.hook_z", 32)],
)  # fmt: skip
def test_raw_activations_of_any_hook(preset: str, hook: str, width: int) -> None:
    model, docs = model_of(preset, n_layers=2), documents(6, 9)
    found = FeatureReader(model, Extract(), raw=(hook,)).read(docs).raw[hook]
    assert found.shape == (5 + 8, width)
    with torch.no_grad(), capture(model, hook) as seen:
        model(torch.tensor([docs[1][:-1]]))
    np.testing.assert_allclose(found[5:], seen[hook][0].flatten(1).numpy(), rtol=1e-5, atol=1e-5)


def test_bad_input() -> None:
    model = model_of("pls")
    with refused("hook_pattern: it has no vector per position; name a stream, hook_z"):
        FeatureReader(model, Extract(), raw=("blocks.0.attn.hook_z", "blocks.0.attn.hook_pattern"))
    with refused("anchor-heads"):
        FeatureReader(model, Extract(tier="core"))
    for options, docs in ((Extract(), [[3]]), (Extract(), []), (Extract(logits_row="next"), [[3, 1]])):
        n = 2 if options.logits_row == "query" else 3
        with refused(f"^no document has the {n} tokens that a row needs; give longer ones$"):
            FeatureReader(model, options).read(docs)
    with refused("outside the vocabulary"):  # the last is no input, but comes
        FeatureReader(model, Extract()).read([[1, 2, VOCABULARY]])
    with refused("^the model is in training mode, where dropout is on"):
        FeatureReader(model.train(), Extract())
    model.eval().embed.weight.data[3] = torch.nan
    with refused("^features are not finite: the weights of this run are damaged$"):
        FeatureReader(model, Extract()).read([[3, 3, 3]])
    for hook in ("blocks.0.attn.hook_z", "blocks.0.attn.hook_q"):  # queries: one position damaged, one whole
        with refused(f"^{hook} is not finite: the weights of this run are damaged$"):
            FeatureReader(model, Extract(), raw=(hook,)).read([[1, 3, 3]])
