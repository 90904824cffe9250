"""Directions between prompt sets: planted ones are found, and sets that do not differ give none."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from streamscope import InputError, Result, Sets, build, load
from streamscope.instruments.open_texts import OpenSets, open_sets
from streamscope.instruments.prompts import load_suite
from streamscope.instruments.prompts.sets import BUILT_IN, PromptSet, contrast, encode, read_set
from streamscope.models.config import ModelConfig, NoPositions
from streamscope.models.hooks import Query, capture, run
from streamscope.probes import Directions
from streamscope.probes.directions import measure as directions
from streamscope.probes.directions.choice import check_direction, direction_of, read_direction
from streamscope.probes.stream_states import States, ordinary, stream_states
from tests.probes.planted import gpt2_and_bridge
from tests.tiny import randomise

WORDS = 40


def planted(d: int = 64, size: float = 1.0, seed: int = 0) -> tuple:
    """(model whose blocks write nothing, r): the words of the two halves of the vocabulary lie at ±size · r + noise."""
    config = ModelConfig(n_layers=2, d_model=d, n_heads=4, d_vocab=2 * WORDS + 1, n_ctx=32, positions=NoPositions())
    model, generator = build(config).eval(), torch.Generator().manual_seed(seed)
    r = torch.nn.functional.normalize(torch.randn(d, generator=generator), dim=0)
    side = torch.tensor([0.0] + [1.0] * WORDS + [-1.0] * WORDS)
    with torch.no_grad():
        noise = torch.randn(2 * WORDS + 1, d, generator=generator) / math.sqrt(d)
        model.embed.weight.copy_(noise + size * side[:, None] * r)
        for block in model.blocks:
            block.attn.o.weight.zero_()
            block.mlp.down.weight.zero_()
    return model, r.double().numpy()


def texts(first: int, n: int = 60, seed: int = 0) -> list[list[int]]:
    """Rows of BOS and 4 to 11 words from `first` on."""
    rng = np.random.default_rng(seed)
    return [[0, *rng.integers(first, first + WORDS, rng.integers(4, 12)).tolist()] for _ in range(n)]


def opened(*sets: list[list[int]]) -> OpenSets:
    """Two sets of rows; row i of both is one cluster."""
    return OpenSets(*(PromptSet("set", [*map(str, rows)], [*range(len(rows))], tokens=rows) for rows in sets), None)


def test_a_massive_activation_is_left_out_of_the_mean() -> None:
    """One token a hundred times as long as the others: the mean is that of the other positions, and it is counted, also
    for an intervention along a direction."""
    model = randomise(build("gpt2", "tiny"), 0.02).eval()
    rows = [[0, *np.random.default_rng(i).integers(10, 60, 6).tolist()] for i in range(8)]
    sets = opened(rows[:4], rows[4:])
    assert direction_of("1", Directions().open(model, sets))[1] == ""
    with torch.no_grad():
        model.embed.weight[7] *= 100
    rows[0][3] = rows[5][2] = 7
    found = stream_states(model, rows)
    seen = run(model, Query(tokens=rows[:1], hooks=("blocks.*.hook_resid_post",))).hooks
    states = torch.stack([x[0] for x in seen.values()])
    np.testing.assert_allclose(found.of("resid")[0], states[:, [1, 2, 4, 5, 6]].double().mean(1), rtol=1e-5)
    assert found.left_out == 2 and stream_states(model, rows, "last").left_out == 0
    data = Directions().open(model, sets)
    assert direction_of("1", data)[1] == "found without 2 positions of massive activations"


def test_massive_is_above_five_times_the_median_in_some_layer() -> None:
    norms = torch.tensor([[99.0, 1.0, 1.0, 1.0, 4.9], [99.0, 1.0, 1.0, 1.0, 1.0]])  # BOS first
    assert ordinary(norms[..., None]).tolist() == [True] * 4
    norms[1, 2] = 5.1
    assert ordinary(norms[..., None]).tolist() == [True, False, True, True]
    every = torch.tensor([[1.0, 1.0, 9.0], [1.0, 9.0, 1.0]])
    assert ordinary(every[..., None]).tolist() == [True, True], "all are kept where none is left"


@pytest.mark.parametrize("pool", ["mean", "last"])
def test_a_planted_direction_is_found(pool: str) -> None:
    model, r = planted()
    a, b = (stream_states(model, texts(first, seed=first), pool) for first in (1, 1 + WORDS))
    found = directions.find(a, b)
    assert found.vectors["resid"].shape == (2, 64)
    assert (found.vectors["resid"] @ r > (0.99 if pool == "mean" else 0.97)).all()
    assert (found.svd["resid"][:, 0] @ r > 0.95).all(), "turned to the side of a"
    table = found.layers
    assert (table["auc"] == 1).all() and (table["auc_low"] > 0.85).all()
    assert (table["norm"] > 4 * table["shuffled_norm"]).all()
    np.testing.assert_allclose(table["norm"], 2.0, atol=0.35)
    assert "one stream" in found.streams_missing[1, "stream_cosine"]
    spec = opened(*(texts(first, seed=first) for first in (1, 1 + WORDS)))
    result = Directions(pool=pool, draws=2).measure(model, spec)
    assert result.table().frame["accuracy"].min() > 0.9 and (result.table().frame["accuracy_low"] > 0.75).all()
    assert result.table().frame[["n", "clusters"]].to_numpy().tolist() == [[60, 30]] * 2
    np.testing.assert_allclose(result.arrays["mean.resid"], found.vectors["resid"], atol=1e-7)


def test_without_a_planted_direction_nothing_separates() -> None:
    model, _ = planted(size=0.0)
    rows = texts(1, n=160)
    a, b = (stream_states(model, some) for some in (rows[:80], rows[80:]))
    table = directions.find(a, b).layers
    assert ((table["auc_low"] < 0.5) & (table["auc_high"] > 0.5)).all()
    assert (table["norm"] < 1.5 * table["shuffled_norm"]).all()


def test_shuffled_labels_and_other_seeds_are_at_the_random_baseline() -> None:
    rng, d = np.random.default_rng(0), 64
    states = rng.standard_normal((80, 1, d))
    r = directions.unit(rng.standard_normal(d))
    cosines = np.abs(directions.unit(directions.shuffled_differences(states[:40], states[40:], 400)) @ r)
    assert cosines.mean() == pytest.approx(directions.random_cosine(d), rel=0.12)
    arrays = {}
    for seed in range(6):
        model, _ = planted(seed=seed)
        a, b = (stream_states(model, texts(first, 20)) for first in (1, 1 + WORDS))
        arrays |= {f"run{seed}-{name}": x for name, x in directions.find(a, b, draws=0).arrays().items()}
    runs = [{"model": f"s{seed}", "preset": "other" if seed == 5 else "planted"} for seed in range(6)]
    table = directions.relate(Result({}, arrays=arrays, about={"runs": runs}))["runs"].frame
    assert len(table) == 15 * 2 and (table["kind"] == "architectures").equals(table["run_b"] == "s5")
    assert table["absolute"].mean() == pytest.approx(directions.random_cosine(d), rel=0.5)


def test_streams_are_those_of_the_model_and_bos_is_left_out() -> None:
    assert stream_states(build("lfa", "tiny").eval(), [[0, 5, 6]]).streams == ("token", "context", "resid")
    model, rows = build("kromhc", "tiny").eval(), [[0, 5, 6, 7], [0, 8, 9]] * 20  # more than one chunk
    states = stream_states(model, rows)
    assert states.streams == ("s0", "s1", "s2", "s3", "resid")
    with torch.no_grad(), capture(model, "blocks.1.hook_*_post") as found:
        model(torch.tensor([rows[0]]))
    resid = found["blocks.1.hook_resid_post"][0, 1:].double().mean(0)
    s2 = found["blocks.1.hook_streams_post"][0, 1:, 2].double().mean(0)
    d = len(s2)
    for own, expected in ((states.of("resid")[0, 1], resid), (states.of("s2")[0, 1], s2),
                          (states.of("joint")[0, 1, 2 * d : 3 * d], s2),
                          (states.values[:, :, :4].mean(2), states.of("resid"))):  # fmt: skip
        np.testing.assert_allclose(own, expected, atol=1e-6)


def test_numbers_by_hand() -> None:
    norms = np.array([[1.0, 1.0, 1.0, 1.0], [1.0, 0.0, 0.0, 0.0], [3.0, 1.0, 0.0, 0.0]])
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    np.testing.assert_allclose(directions.concentration(norms), [0, 1, 1 - entropy / math.log(4)], atol=1e-12)
    r = directions.unit(np.array([[[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]]))
    assert directions.pair_cosines(r)[0] == pytest.approx((math.sqrt(0.5) + 0 + math.sqrt(0.5)) / 3)
    s = directions.separation(np.array([3.0, 1.0, 2.0]), np.array([1.0, 0.0]))
    assert s["auc"] == pytest.approx((2 + 1.5 + 2) / 6)
    assert directions.random_cosine(512) == pytest.approx(0.0353, abs=1e-4)  # SPEC §1.6
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((30, 1, 8)), rng.standard_normal((30, 1, 8)) + 1
    _, vectors = np.linalg.eigh((a[:, 0] - b[:, 0].mean(0)).T @ (a[:, 0] - b[:, 0].mean(0)))
    assert abs(directions.singular_directions(a, b)[0, 0] @ vectors[:, -1]) == pytest.approx(1)
    assert directions.singular_directions(a, b)[0, 0] @ (a.mean(0) - b.mean(0))[0] > 0


def test_the_interval_of_auc_holds_its_level() -> None:
    rng, hit = np.random.default_rng(0), 0
    for _ in range(400):
        found = directions.separation(rng.standard_normal(30) + 1.5, rng.standard_normal(30))
        hit += found["auc_low"] <= 0.8556 <= found["auc_high"]  # Φ(1.5 / √2)
    assert 0.92 <= hit / 400 <= 0.98
    t, top = directions.auc_interval(1.0, 30, 30)
    variance = t * (1 - t) * (1 + 29 * ((1 - t) / (2 - t) + t / (1 + t))) / 900
    assert 1 - t == pytest.approx(1.959964 * math.sqrt(variance)) and (top, t < 0.95) == (1, True)
    low, high = directions.auc_interval(0.0, 30, 30)
    assert low == 0 and high == pytest.approx(1 - directions.auc_interval(1.0, 30, 30)[0])


@pytest.mark.parametrize(("forms", "between"), [(3, 0.9), (3, 0.0), (1, 0.9)])
def test_the_interval_of_auc_counts_scenes(forms: int, between: float) -> None:
    """30 prompts a side, as ten scenes of three forms that correlate at .9: taken for 60 prompts the interval covers
    75 %. One form of a scene in each set: the scene's part is in both, so that it covers more."""
    rng, hit = np.random.default_rng(0), 0
    scene = np.repeat(np.arange(30 // forms), forms)
    lines = np.concatenate([scene, scene + (0 if forms == 1 else 30)])
    for _ in range(120):
        scenes = np.sqrt(between) * rng.standard_normal(60)[lines]
        values = scenes + np.sqrt(1 - between) * rng.standard_normal(60)
        found = directions.separation(values[:30] + 0.8, values[30:], lines)
        hit += found["auc_low"] <= 0.7142 <= found["auc_high"]  # Φ(.8 / √2)
    assert hit / 120 >= 0.9


def test_few_lines_have_the_interval_of_t() -> None:
    """Ten prompts that share nothing: as many as n (1.96 / t)² prompts, with nine degrees of freedom."""
    a, b = np.array([3.0, 1.0, 2.0, 5.0, 4.0]), np.array([1.5, 0.0, 2.5, -1.0, 0.5])
    found, n = directions.separation(a, b, np.arange(10)), 5 * (stats.norm.ppf(0.975) / stats.t.ppf(0.975, 9)) ** 2
    assert (found["auc_low"], found["auc_high"]) == pytest.approx(directions.auc_interval(found["auc"], n, n), abs=1e-6)


def test_halves_that_do_not_differ_give_no_direction() -> None:
    a = np.random.default_rng(0).standard_normal((8, 2, 5))
    held_out = directions.project_held_out(a, a)
    assert np.isnan(held_out.a).all() and np.isnan(held_out.b).all()


def test_halves_keep_scenes_whole() -> None:
    """In every set, and in both if they share scenes; each scene's effect cannot reach the other half."""
    rng = np.random.default_rng(0)
    scenes = np.repeat(np.arange(10), 3)
    for lines in ((scenes, scenes), (scenes, scenes[:21]), (scenes, scenes + 10)):
        a, b = (rng.standard_normal((len(some), 1, 4)) for some in lines)
        found = directions.project_held_out(a, b, 0, lines)
        halves = list(zip(lines, (found.of_a, found.of_b), strict=True))
        held_out, fit = [set(x[at]) for x, at in halves], [set(np.delete(x, at)) for x, at in halves]
        assert not set.union(*held_out) & set.union(*fit)
        assert all(held_out) and all(fit)


def held_out_auc(a: np.ndarray, b: np.ndarray) -> float:
    """The mean AUC over layers of directions from one half, on the other half."""
    found = directions.project_held_out(a, b)
    return float(np.mean([directions.separation(x, y)["auc"] for x, y in zip(found.a.T, found.b.T, strict=True)]))


def test_held_out_prompts_are_not_the_ones_the_direction_is_from() -> None:
    """More dimensions than prompts: on its own prompts any labels separate, on others none. If line i of both sets
    shares a large scene, it does not count against the small planted difference; cut apart, it would."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 40, 12, 400))
    r = directions.unit(directions.mean_difference(a, b))
    own = np.mean([directions.separation(a[:, i] @ r[i], b[:, i] @ r[i])["auc"] for i in range(12)])
    assert own > 0.95 and abs(held_out_auc(a, b) - 0.5) < 0.1
    scenes = 5 * rng.standard_normal((60, 6, 300))
    a, b = scenes + 0.3, scenes - 0.3
    assert held_out_auc(a, b) > held_out_auc(a, rng.permutation(b)) + 0.1


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_on_a_bridge() -> None:
    """A library model's residual stream after layer 0, from its own hidden states; the first token is left out."""
    (inner, bridge), rows = gpt2_and_bridge(of_a_copy=True), [[3, 4, 90, 2], [3, 7]]
    states = stream_states(bridge, rows)
    assert states.streams == ("resid",) and states.values.shape == (2, 2, 1, 32)
    for own, row in zip(states.values[:, 0, 0], rows, strict=True):
        with torch.no_grad():
            hidden = inner(torch.tensor([row]), output_hidden_states=True).hidden_states[1]
        np.testing.assert_allclose(own, hidden[0, 1:].double().mean(0), atol=1e-5)


def test_sets_with_equal_means_have_no_direction() -> None:
    x = np.random.default_rng(0).standard_normal((10, 2, 1, 6))
    found = directions.find(States(("resid",), x), States(("resid",), x))
    assert not found.vectors["resid"].any()
    assert found.layers["auc"].isna().all() and "same mean" in found.missing[1, "auc"]


def test_lines_are_those_of_the_source_and_the_units_of_a_suite(tmp_path: Path) -> None:
    """A repeated or a too long text does not shift the lines of those after it, and prompts of a pair share a line."""
    one, other = tmp_path / "a.txt", tmp_path / "b.txt"
    one.write_text("\n".join(["a 0", "a 0", *(f"a {i}" for i in range(2, 12))]))
    other.write_text("\n".join([*(f"b {i}" for i in range(11)), "b " * 400]))
    model = load("stories/lfa")
    opened = open_sets(Sets(a=str(one), b=str(other)), model)
    assert [text.split()[1] for text in opened.a.texts] == [str(i) for i in opened.a.lines] == [
        str(i) for i in range(12) if i != 1
    ]  # fmt: skip
    assert opened.b.too_long == 1 and opened.b.lines == [*range(11)]
    shared = set(opened.lines[0]) & set(opened.lines[1])
    assert len(shared) == len(set(opened.a.lines) & set(opened.b.lines)) > 8
    other.write_text("\n".join(f"b {i}" for i in range(11)))
    assert not set.intersection(*map(set, open_sets(Sets(a=str(one), b=str(other)), model).lines)), "of unequal length"
    for path, kind in ((one.with_suffix(".jsonl"), "a"), (other.with_suffix(".jsonl"), "b")):
        path.write_text("\n".join(json.dumps({"text": f"{kind} {i}", "cluster": f"c{i // 2}"}) for i in range(12)))
    named = open_sets(Sets(a=str(one.with_suffix(".jsonl")), b=str(other.with_suffix(".jsonl"))), model)
    assert [x.tolist() for x in named.lines] == [[i // 2 for i in range(12)]] * 2
    relations = open_sets(Sets(a="competing#tool-container", b="competing#agent-patient"), model)
    prompts = {p.text: p for p in load_suite("competing").prompts}
    assert len(set(relations.a.lines)) == len({prompts[text].pair for text in relations.a.texts}) == 10
    frame = Directions(draws=0).measure(model, relations).table().frame
    assert (frame["clusters"] <= 10).all() and (frame["n"] == 20).all()


def test_built_in_and_bad_sets(tmp_path: Path) -> None:
    assert all((len(read_set(name).texts), read_set(name).repeated) == (60, 0) for name in BUILT_IN)
    few = tmp_path / "few.txt"
    few.write_text("\n".join(f"text {i % 9}" for i in range(12)))
    assert (len(read_set(str(few)).texts), read_set(str(few)).repeated) == (9, 3)
    few.write_text("one\ntwo\n")
    for source, message in ((str(few), "2 different texts"), ("competing#tool", "tool-container")):
        with pytest.raises(InputError, match=message):
            read_set(source)
    with pytest.raises(InputError, match="share 60 texts"):
        contrast("happy", "happy")
    with pytest.raises(InputError, match="exactly once"):
        Sets(template="{text}{text}")


def test_texts_are_left_out_only_if_longer_than_the_context() -> None:
    prompts, tokenizer = read_set("happy"), load("stories/lfa").tokenizer
    lengths = [len(tokenizer.encode(text)) for text in prompts.texts]
    n_ctx = sorted(lengths)[len(lengths) // 2]
    rows = encode(prompts, tokenizer, n_ctx)
    assert rows.texts == [text for text, n in zip(prompts.texts, lengths, strict=True) if n <= n_ctx] != prompts.texts


def test_a_direction_says_of_which_model_it_is_and_not_in_which_folder_of_a_machine(tmp_path: Path) -> None:
    table, arrays = tmp_path / "found.parquet", tmp_path / "found.safetensors"
    Directions(draws=0).measure("stories/lfa").save(table)
    direction = read_direction(str(arrays))
    assert direction.about["folder"] == "stories/lfa"
    assert check_direction(direction, load("stories/lfa")) == ""
    assert check_direction(direction, load("stories/d-cas")) == "found in stories/lfa"
    for spec, message in ((":7", "layers 0 to 5"), (":first", "give best, norm or"), ("x", "not a file of directions")):
        with pytest.raises(InputError, match=message):
            read_direction(f"{arrays}{spec}")
    assert read_direction(f"{arrays}:1", "token", "svd").vector.norm() == pytest.approx(1)
    with pytest.raises(InputError, match=f"{table} is a table; its arrays are in {arrays}$"):
        read_direction(str(table))
    arrays.write_bytes(arrays.read_bytes()[:-8])
    with pytest.raises(InputError, match="cannot be read .*; make one with python -m probes.directions"):
        read_direction(str(arrays))
    with pytest.raises(InputError, match="cannot be read .*; measure it again"):
        Result.load(table)


def test_sets_of_unequal_size_count_by_their_texts() -> None:
    """Seven long vectors and twenty short ones: the size of the stream is the mean over the 27 texts."""
    model, _ = planted()
    with torch.no_grad():
        model.embed.weight[1 : 1 + WORDS] *= 3
    a, b = stream_states(model, texts(1, 7), "mean"), stream_states(model, texts(1 + WORDS, 20, seed=1), "mean")
    found = directions.find(a, b, draws=0)
    x, y = a.of("resid"), b.of("resid")
    norms = [np.linalg.norm(states, axis=-1).mean(0) for states in (x, y)]
    assert (norms[0] > 1.5 * norms[1]).all()
    layers, size = found.layers, np.linalg.norm(x.mean(0) - y.mean(0), axis=-1)
    assert layers["norm"].to_numpy() == pytest.approx(size)
    assert layers["relative"].to_numpy() == pytest.approx(size * 27 / (7 * norms[0] + 20 * norms[1]))
    assert (layers["n_a"] < layers["n_b"]).all()
