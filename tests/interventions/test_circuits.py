"""Circuits: the decomposition, patched runs and scores against plain loops, on every preset and Hugging Face family."""

import json
import re
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn.metrics import roc_auc_score
from torch import Tensor

from streamscope.benchmarks.circuits.measure import peer_scores, plain_gpt2
from streamscope.cli.errors import InputError
from streamscope.instruments.figures import Circuit as FigureOfEdges
from streamscope.instruments.figures.circuit import USED, draw_circuit
from streamscope.instruments.figures.drawing import PALETTE
from streamscope.instruments.observations import SAME, Measure
from streamscope.instruments.prompts.counterfactual import write_pairs
from streamscope.instruments.stats.estimators import read_clusters
from streamscope.instruments.table import Table
from streamscope.interventions.circuits import Circuits, measure, metrics, worth
from streamscope.interventions.circuits.formats import CircuitFile, write_circuit
from streamscope.interventions.circuits.graph import Graph, graph_of, read_vector, write_vector
from streamscope.interventions.circuits.measure import EDGES, FLAT, share_for_whole, task_pairs
from streamscope.interventions.circuits.planted import build_planted, plant, specification
from streamscope.interventions.circuits.run import run
from streamscope.interventions.circuits.scores import bytes_per_token, score_edges
from streamscope.interventions.patch.pairs import PatchPair
from streamscope.models import build, load
from streamscope.models.config import Hyper
from streamscope.models.config.presets import PRESETS
from streamscope.models.dictionaries import Dictionary, read_dictionary, write_dictionary
from streamscope.models.hooks import capture, edit
from tests.instruments.estimates import block
from tests.interventions.passes import captured, under
from tests.models.test_huggingface import CASES, theirs
from tests.tiny import randomise, some
from tests.viewer.pages import write_dictionary_of

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "parallel": ("std-t", {"residual.order": "parallel"}),
    "parallel-streams": ("dst-dense", {"residual.order": "parallel"}),
    "normed-gate": ("pls", {"attention.gate.source": "normed"}),
    "value-gate": ("lfa", {"attention.gate": "gate", "attention.gate.source": "value"}),
    "hybrid-output": ("hdpl", {"attention.o": "hdpl"}),
    "alibi": ("d-cas", {"positions": "alibi"}),
    "hc": ("kromhc", {"residual": "hc"}),
    "mhc": ("kromhc", {"residual": "mhc"}),
    "same-input": ("kromcanon", {"residual.post_input": "same", "residual.reduce": "sum"}),
}
KINDS = [*PRESETS, *VARIANTS, *(f"hf:{name}" for name in CASES)]
FAST = ("std-t", "lfa", "dst-kron", "pls", "hdpl", "kromcanon", "parallel", "normed-gate", "hc", "hf:qwen3", "hf:olmo2",
        "hf:pythia", "hf:phi3-partly-rotated")  # fmt: skip


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Models by kind, each made once and given away as a copy."""
    folder = tmp_path_factory.mktemp("models")

    @cache
    def made(kind: str) -> Any:
        if kind.startswith("hf:"):
            theirs(kind[3:]).save_pretrained(folder / kind[3:])
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("STREAMSCOPE_CACHE", str(folder / "cache"))
                return load(f"hf:{folder / kind[3:]}").eval()
        preset, changes = VARIANTS.get(kind, (kind, {}))
        return randomise(build(preset, "tiny", **changes), std=0.1).eval()

    return lambda kind: deepcopy(made(kind))


def two_texts(model: Any, rows: int = 3, length: int = 9) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    clean = torch.randint(1, model.config.d_vocab, (rows, length), generator=generator)
    corrupt = clean.clone()
    corrupt[:, 2:5] = torch.randint(1, model.config.d_vocab, (rows, 3), generator=generator)
    return clean, corrupt


def close(a: Tensor, b: Tensor, share: float = 1e-5) -> None:
    assert a.shape == b.shape
    assert ((a - b).abs().max() / b.abs().max()).item() < share


CHOSEN = [3, 7, 8, 21]
"""Latents of a dictionary that are senders of their own."""
HOOKS = {"q": "hook_attn_in", "k": "hook_attn_in", "g": "hook_attn_in", "v": "hook_attn_v_in", "mlp": "hook_mlp_in"}


@pytest.mark.parametrize("kind", some(KINDS, FAST))
@torch.no_grad()
def test_the_sum_of_edges_is_what_each_reader_reads(kind: str, make: Any) -> None:
    model = make(kind)
    graph, (tokens, _) = graph_of(model), two_texts(model)
    residual, L = model.config.residual, model.config.n_layers
    streams = {0: "hook_streams_pre", 1: "hook_streams_mid"}
    names = [f"blocks.{layer}.{hook}" for layer in range(L) for hook in {*HOOKS.values()}]
    if isinstance(residual, Hyper):
        names += [f"blocks.{layer}.{hook}" for layer in range(L) for hook in streams.values()]
    with capture(model, [*names, f"blocks.{L - 1}.hook_resid_post"]) as seen:
        model(tokens)
    clean = run(model, graph, tokens)
    final = clean.logits_input()
    for v, reader in enumerate(graph.readers):
        parallel = reader.part == "mlp" and getattr(residual, "order", "") == "parallel"
        before = graph.written_before(reader.stage - parallel)
        part = "v" if kind == "value-gate" and reader.part == "g" else reader.part
        there = torch.tensor(graph.connected[before, v]).float()
        for i, u in enumerate(graph.senders[before]):
            if u.part == "bias":
                there[i] = float(bool(write_vector(residual, u.part) @ read_vector(residual, part)))
        out = clean.out[:, before]
        if reader.part == "mix":
            summed = torch.einsum("butd,btun,u->btnd", out, clean.shares[reader.stage], there)
            close(summed, seen[f"blocks.{reader.layer}.{streams[reader.stage % 2]}"])
            continue
        c = clean.coefficients.get(reader.stage, torch.ones(before.stop))
        c = c[..., before] * there
        summed = torch.einsum("butd,btu->btd", out, c.expand(len(out), out.shape[2], -1))
        want = f"blocks.{reader.layer}.{HOOKS[part]}" if part != "logits" else f"blocks.{L - 1}.hook_resid_post"
        close(summed, seen[want])
    close(final, seen[f"blocks.{L - 1}.hook_resid_post"])


def check_runs(model: Any, graph: Graph) -> None:
    """No edge patched is the clean run, all patched the corrupted one."""
    clean, corrupt = two_texts(model)
    at, other = torch.arange(clean.shape[1]).expand(len(clean), -1), run(model, graph, corrupt).out
    want, changed = model(clean), model(corrupt)
    assert (want - changed).abs().max() > 100e-5 * want.abs().max()  # else the test could not fail
    for patched, logits in ((0 * graph.connected, want), (graph.connected, changed)):
        close(run(model, graph, clean, patched=torch.tensor(patched).bool(), other=other).logits(at), logits)
    close(run(model, graph, clean).logits(at), want)


@pytest.mark.parametrize("kind", some(KINDS, FAST))
@torch.no_grad()
def test_no_edge_patched_is_the_clean_run_and_all_patched_the_corrupted_one(kind: str, make: Any) -> None:
    check_runs(model := make(kind), graph_of(model))


def test_number_of_edges() -> None:
    """19 readers per layer of a 6 x 6 model and 7 senders; k and v per key-value head; 258 edges into mixing."""

    def edges(preset: str, **changes: Any) -> int:
        return len(graph_of(build(preset, "tiny", **changes)).edges)

    six = {"n_layers": 6, "n_heads": 6, "d_model": 36}
    assert edges("std-t", **six) == 2188
    assert edges("kromhc", **six) == 2188 + 258
    assert edges("lfa", **six) == 2188 - 6 * sum(7 * layer for layer in range(6))  # values read the embedding alone
    assert edges("llama", n_layers=30, n_heads=9, d_model=36, **{"attention.kv_heads": 3}) == 70_651


@pytest.mark.parametrize(("kind", "share"), [("std-t", 0.15), ("kromcanon", 0.05), ("hf:qwen3", 0.15)])
@torch.no_grad()
def test_pruned_edges_change_nothing(kind: str, share: float, make: Any) -> None:
    """An edge whose sender has no kept input carries the corrupted output anyway."""
    model = make(kind)
    graph, (clean, corrupt) = graph_of(model), two_texts(model)
    at, other = torch.full((len(clean), 1), 8), run(model, graph, corrupt).out
    kept = np.random.default_rng(3).random(len(graph.edges)) < share
    pruned = graph.pruned(kept)
    assert pruned.sum() < kept.sum() and not (pruned & ~kept).any()
    masks = (torch.tensor(graph.matrix(~edges, fill=False)) for edges in (pruned, kept))
    close(*(run(model, graph, clean, patched=mask, other=other).logits(at) for mask in masks))


def test_models_that_cannot_be_taken_apart_are_refused() -> None:
    model = build("std-t", "tiny")
    with pytest.raises(InputError, match="TransformerLens' bridge"):
        graph_of(torch.nn.Linear(2, 2))
    model.add_hook("blocks.0.attn.hook_z", lambda z, hook: z)
    with pytest.raises(InputError, match="hooks would act in some runs only: remove blocks.0.attn.hook_z"):
        graph_of(model)


def pairs_of(model: Any, rows: int = 3) -> list[PatchPair]:
    clean, corrupt = two_texts(model, rows)
    texts = [(tuple(a.tolist()), tuple(b.tolist())) for a, b in zip(clean, corrupt, strict=True)]
    texts[0] = (texts[0][0][:-2], texts[0][1][:-2])  # a shorter one, for padding
    return [
        PatchPair(id=str(i), cluster=str(i), clean=a, corrupt=b, answers=(3 + i, 9), foils=(5 + i,))
        for i, (a, b) in enumerate(texts)
    ]


class Plain:
    """One edge at a time, by hooks alone: what its reader makes of the changed input is put into a clean run."""

    def __init__(self, model: Any, pair: PatchPair, dictionary: Dictionary | None = None) -> None:
        self.model, self.pair, self.L, self.dictionary = model, pair, model.config.n_layers, dictionary
        self.clean, self.corrupt = (torch.tensor([ids]) for ids in (pair.clean, pair.corrupt))
        kept = r"embed$|hook_(mlp|attn)_out$|hook_result$|_hc\.hook_(pre|res|post)$"
        names = {name for name in model.hook_dict if re.search(kept, name)}
        names |= {dictionary.hook, dictionary.target} if dictionary else set()
        self.seen = [captured(model, tokens, [*names]) for tokens in (self.clean, self.corrupt)]
        self.m = self.metric({})

    def metric(self, edits: dict[str, Any]) -> float:
        return float(self.pair.log_odds(under(self.model, self.clean, edits)[0, -1]))

    def change(self, u: Any) -> Tensor:
        """The corrupted output minus the clean one [1, T, D]."""

        def out(seen: Any) -> Tensor:
            if u.part == "input":
                return seen["hook_embed"] + seen.get("hook_pos_embed", 0)
            if u.part == "head":
                return seen[f"blocks.{u.layer}.attn.hook_result"][:, :, u.head]
            latent, d = u.name.partition(".")[2], self.dictionary
            if d and latent:  # or what those that were chosen leave
                pre = seen[d.hook] @ d.W_enc + d.b_enc
                z = torch.where(pre > d.threshold, pre, 0)[..., None] * d.W_dec
                return seen[d.target] - z[..., CHOSEN, :].sum(-2) if latent == "rest" else z[..., int(latent), :]
            return seen[f"blocks.{u.layer}.hook_{u.part}_out"]

        return out(self.seen[1]) - out(self.seen[0])

    def score(self, u: Any, v: Any) -> float:
        delta, residual, seen = self.change(u), self.model.config.residual, self.seen[0]
        if isinstance(residual, Hyper):
            at = [f"blocks.{stage // 2}.{('attn', 'mlp')[stage % 2]}_hc.hook_" for stage in range(2 * self.L)]
            S = delta[:, :, None].repeat(1, 1, residual.n, 1)
            for i in range(max(u.stage, 0), v.stage):
                S = seen[at[i] + "post"][..., None] * delta[:, :, None] if i == u.stage else seen[at[i] + "res"] @ S
            if v.part == "mix":
                where = f"blocks.{v.layer}.hook_streams_{('pre', 'mid')[v.stage % 2]}"
                return self.through(S, where, [at[v.stage] + c for c in ("pre", "res", "post")])
            delta = S if v.part == "logits" else (seen[at[v.stage] + "pre"][..., None] * S).sum(-2)
        if v.part == "logits":
            return self.through(delta, f"blocks.{self.L - 1}.hook_{(residual.streams or ('resid',))[-1]}_post")
        then = [] if v.part == "mlp" else [f"blocks.{v.layer}.attn.hook_{'gate' if v.part == 'g' else v.part}"]
        return self.through(delta, f"blocks.{v.layer}.{HOOKS[v.part]}", then, v.head)

    def through(self, delta: Tensor, where: str, then: Sequence[str] = (), head: int | None = None) -> float:
        changed = {where: lambda x, hook: x + delta}
        if not then:
            return self.m - self.metric(changed)
        with edit(self.model, changed):
            seen = captured(self.model, self.clean, then)
        at = ... if head is None else (slice(None), slice(None), head)

        def put(x: Tensor, hook: Any) -> Tensor:
            y = x.clone()
            y[at] = seen[hook.name][at]
            return y

        return self.m - self.metric(dict.fromkeys(then, put))


@pytest.mark.parametrize("kind", some([k for k in KINDS if k != "value-gate"], FAST))
def test_exact_scores_are_those_of_a_plain_loop(kind: str, make: Any) -> None:
    model = make(kind)
    graph, pairs = graph_of(model), pairs_of(model)
    scores = score_edges(model, graph, pairs, "exact")
    chosen = np.random.default_rng(1).choice(len(graph.edges), 20, replace=False)
    parts = [graph.readers[v].part for _, v in graph.edges]
    chosen = {*chosen.tolist(), *(parts.index(part) for part in dict.fromkeys(parts))}
    largest = np.abs(scores).max()
    for i, pair in enumerate(pairs):
        plain = Plain(model, pair)
        for e in chosen:
            u, v = graph.edges[e]
            want = plain.score(graph.senders[u], graph.readers[v])
            assert abs(scores[e, i] - want) < 1e-4 * largest, graph.names[e]


@pytest.mark.parametrize("kind", ["std-t", "dst-kron", "normed-gate", "kromcanon", "hf:qwen3"])
def test_gradients_are_first_order_of_exact_scores(kind: str, make: Any) -> None:
    """With texts that hardly differ, EAP and EAP-IG of both kinds are the exact score of every edge."""
    model = make(kind).double()
    graph, pairs = graph_of(model), pairs_of(model)
    with torch.no_grad():  # every token of the second text is the first one's, moved a little
        row = model.embed.weight
        for a, b in {(a, b) for p in pairs for a, b in zip(p.clean, p.corrupt, strict=True) if a != b}:
            generator = torch.Generator().manual_seed(b)
            row[b] = row[a] + 1e-5 * torch.randn(row.shape[1], dtype=row.dtype, generator=generator)
    exact = score_edges(model, graph, pairs, "exact")
    for method in ("eap", "eap-ig", "eap-ig-activations"):
        close(torch.tensor(score_edges(model, graph, pairs, method, steps=2)), torch.tensor(exact), 1e-3)


class Bar:
    """A progress that keeps what is said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, batches: Any) -> Any:
        return batches

    def say(self, line: str) -> None:
        self.lines.append(line)


def test_the_duration_is_announced_and_is_that_of_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that counts one second per step, run and pair, the announced duration is what then passes."""
    tokenizer = load("stories/lfa").tokenizer
    model = randomise(build("lfa", "tiny", tokenizer=tokenizer, d_vocab=tokenizer.d_vocab)).eval()
    how, clock = Circuits(task="stories", pairs=24, steps=6, draws=2), [0.0]
    scores, values = measure.score_edges, worth.circuit_values

    def score(model: Any, graph: Any, pairs: Any, *args: Any, steps: int, **others: Any) -> Any:
        clock[0] += len(pairs) * steps
        return scores(model, graph, pairs, *args, **others, steps=1)

    def circuit(model: Any, graph: Any, made: Any, metric: Any, circuits: Any, *args: Any) -> Any:
        clock[0] += sum(len(batch.rows) for batch in made) * (2 + sum(not one.all() for one in circuits))
        return values(model, graph, made, metric, circuits, *args)

    monkeypatch.setattr(measure, "score_edges", score)
    monkeypatch.setattr(worth, "circuit_values", circuit)
    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(measure, "duration", lambda seconds: f"{seconds} s")
    for pairs, tried in ((24, 4), (8, 2)):
        clock[0], bar = 0.0, Bar()
        units = replace(how, pairs=pairs).measure(model, progress=bar).blocks["scores"].units
        (line,) = (line for line in bar.lines if "for the circuit" in line)
        cost = clock[0] - tried * (2 + 3) - 2 * len(units)
        assert float(line.removeprefix("about ").split(" s ")[0]) == pytest.approx(cost, rel=0.1)
        assert cost > 6 * len(units)
    clock[0] = 0.0
    replace(how, pairs=8).measure(model)
    assert clock[0] == cost, "nothing is tried where nothing is announced"
    monkeypatch.setattr(measure, "LONG_SECONDS", cost + 100)
    replace(how, pairs=8).measure(model, progress=(bar := Bar()))
    assert not [line for line in bar.lines if "for the circuit" in line], "a short one is not announced"


@pytest.mark.parametrize("method", ["exact", "eap-ig", "acdc"])
def test_batches_are_bounded_and_announced_before_the_work(
    method: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, bar = make("dst-kron"), Bar()
    graph, pairs = graph_of(model), pairs_of(model, 4)
    each = bytes_per_token(model, graph, method)
    tensors = 2 * len(graph.senders) + (5 * len(graph.readers) if method == "eap-ig" else 2 * model.config.n_layers * 2)
    assert each == 4 * model.config.d_model * tensors
    whole = score_edges(model, graph, pairs, method, steps=2, progress=bar)
    monkeypatch.setattr("streamscope.interventions.circuits.scores.MEMORY", 18 * each)  # two pairs of 9 tokens
    found = score_edges(model, graph, pairs, method, steps=2, progress=bar)
    close(torch.tensor(found), torch.tensor(whole), 1e-4)
    edges, words = f"{len(graph.edges):,} edges on 4 pairs", "MB of memory next to the model"
    kept = 36 if method == "acdc" else 18  # pruning keeps all batches
    assert bar.lines == [
        f"{edges}, 1 batch of up to 36 tokens: about {36 * each / 1e6:.1f} {words}",
        f"{edges}, 2 batches of up to 18 tokens: about {kept * each / 1e6:.1f} {words}",
    ]


def test_stability_is_that_of_two_draws_of_pairs_for_each_size() -> None:
    scores = np.random.default_rng(0).normal(size=(50, 6)) + np.linspace(0, 3, 50)[:, None]
    within = read_clusters(list("abcdef"), 6)
    both = worth.stability(scores, within, [5, 20], "score", draws=7, seed=2)
    weights = np.random.default_rng(2).multinomial(6, np.full(6, 1 / 6), size=14)
    for n, found in zip((5, 20), both, strict=True):
        sets = [{*np.argsort(-(scores @ w), kind="stable")[:n]} for w in weights]
        same = [len(a & b) / len(a | b) for a, b in zip(sets[::2], sets[1::2], strict=True)]
        assert found == pytest.approx((np.mean(same), *np.quantile(same, (0.025, 0.975))))


@pytest.mark.parametrize(
    ("method", "points", "alphas"),
    [("exact", "right", []), ("eap", "left", [1.0]), ("eap-ig", "right", [0.25, 0.5, 0.75, 1.0]),
     ("eap-ig", "left", [0.0, 0.25, 0.5, 0.75]), ("eap-ig", "midpoint", [0.125, 0.375, 0.625, 0.875])],
)  # fmt: skip
def test_scores_on_gpt2_are_those_of_plain_code(method: Any, points: Any, alphas: list[float], make: Any) -> None:
    """The plain code of `benchmarks.circuits`, which multiplies GPT-2's weights itself."""
    model = make("hf:gpt2")
    graph, pairs = graph_of(model), pairs_of(model)
    plain = plain_gpt2(model)
    found = torch.tensor(score_edges(model, graph, pairs, method, steps=max(1, len(alphas)), points=points))
    close(found, torch.tensor(peer_scores(plain, graph, pairs, alphas)))


def test_circuits_are_written_and_read_in_mibs_forms(tmp_path: Path) -> None:
    result = Circuits(task="ioi", pairs=8, method="eap", draws=1).measure(load("stories/gpt2"))
    frame = result.table("edges").frame
    for suffix in (".json", ".pt"):
        path = tmp_path / f"circuit{suffix}"
        assert result.save(path) == [path]
        read = CircuitFile.read(path).edges.set_index("edge").loc[frame["edge"]]
        assert read["score"].to_numpy() == pytest.approx(frame["chosen_by"].to_numpy(), abs=1e-6)
        assert read["in_graph"].tolist() == frame["in_circuit"].tolist()
        assert len(read) == 2188 and read["in_graph"].sum() == 43
    data = json.loads((tmp_path / "circuit.json").read_text())
    assert data["cfg"] == {"n_layers": 6, "n_heads": 6, "parallel_attn_mlp": False, "d_model": 96}
    assert list(data["nodes"])[:3] == ["input", "a0.h0", "a0.h1"] and list(data["nodes"])[-1] == "logits"
    tensors = torch.load(path, weights_only=True)
    assert tensors["edges_scores"].shape == (43, 115) and tensors["dst_nodes"][6] == "a0.h0<k>"
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(InputError, match="is no circuit of MIB's form"):
        CircuitFile.read(tmp_path / "bad.json")


@pytest.mark.parametrize("kind", ["lfa", "kromcanon", "parallel", "hf:qwen3", "hf:olmo2"])
def test_files_have_the_edges_of_every_model_and_no_others(kind: str, make: Any, tmp_path: Path) -> None:
    model = make(kind)
    names, rng = graph_of(model).names, np.random.default_rng(0)
    scores, kept = rng.normal(size=len(names)), rng.random(len(names)) < 0.2
    edges = pd.DataFrame({"edge": names, "score": scores, "in_graph": kept})
    cfg = {"n_layers": model.config.n_layers, "n_heads": model.config.n_heads, "parallel_attn_mlp": kind == "parallel",
           "d_model": model.config.d_model}  # fmt: skip
    for path in (tmp_path / "circuit.json", tmp_path / "circuit.pt"):
        write_circuit(edges, cfg, path)
        read = CircuitFile.read(path).edges
        assert sorted(read["edge"]) == sorted(names)
        pd.testing.assert_frame_equal(read.set_index("edge").loc[names], edges.set_index("edge"), atol=1e-6)
    file = torch.load(path, weights_only=True)
    del file["real_edge_mask"]  # a file of MIB's code has none
    torch.save(file, path)
    if kind in ("lfa", "parallel"):
        assert {*names} <= {*CircuitFile.read(path).edges["edge"]}
    else:
        with pytest.raises(InputError, match="parts that a GPT-2 has not, and no real_edge_mask"):
            CircuitFile.read(path)


few_pairs = cache(partial(plant, pairs=12))


@pytest.mark.parametrize("name", some(list(specification()["circuits"]), ("induction", "hyper-connections")))
def test_planted_circuits_are_found(name: str) -> None:
    one = few_pairs(name)
    assert one.accuracy() >= 0.9
    true = {edge for edge, there in zip(one.graph.names, one.true, strict=True) if there}
    heads = [f"a{h['layer']}.h{h['head']}" for h in specification()["circuits"][name]["heads"]]
    for sender, reader in zip(heads, [*heads[1:], "logits"], strict=True):
        assert any(e.startswith(f"{sender}->{reader}") for e in true)
    assert {e.partition("->")[2].partition("<")[0] for e in true} == {*heads, "logits"}
    for method, least in (("exact", 0.99), ("eap-ig", 0.95)):
        scores = np.abs(score_edges(one.model, one.graph, one.pairs, method).mean(1))
        assert roc_auc_score(one.true, scores) >= least
    random = score_edges(one.model, one.graph, one.pairs, "random").mean(1)
    assert 0.1 < roc_auc_score(one.true, random) < 0.9


@pytest.mark.parametrize("name", list(specification()["circuits"]))
def test_noise_is_a_tenth_of_the_planted_weights_in_every_matrix(name: str) -> None:
    """Of those of its kind; of the attention's output where that kind has none."""
    ideal, noisy = (dict(build_planted(name, noise).named_parameters()) for noise in (0.0, 0.1))
    kinds = {path: path.removesuffix(".weight").rpartition(".")[2] for path in ideal}

    def planted(kind: str) -> Tensor:
        return torch.cat([p[p != 0] for path, p in ideal.items() if kinds[path] == kind])

    for path, p in ideal.items():
        noise = (noisy[path] - p).square().mean().sqrt()
        if p.ndim < 2:
            assert noise == 0, path
            continue
        own = planted(kinds[path])
        size = (planted("o") if ".mlp." in path or not len(own) else own).square().mean().sqrt()
        chance = 4 / (2 * p.numel()) ** 0.5  # four standard errors of an rms
        assert (noise / size).item() == pytest.approx(0.1, rel=chance), path
        if kinds[path] == "k" and p.any():  # no weight of a planted block is 0, and all have one size
            assert p.count_nonzero() == 256 and p[p != 0].abs().max() < 1.01 * p[p != 0].abs().min()


def test_pruning_keeps_what_was_planted() -> None:
    one = few_pairs("induction")
    scores = np.abs(score_edges(one.model, one.graph, one.pairs, "acdc", threshold=0.05).mean(1))
    assert scores[one.true].min() > 0.05 and (scores > 0.05).sum() < 4 * one.true.sum()


@torch.no_grad()
def test_pruning_is_that_of_a_plain_loop(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Edges are pruned by their mean over pairs in several batches; some edges help one pair as they harm another."""
    model = make("std-t").double()
    graph, pairs = graph_of(model), pairs_of(model)
    both = [tuple(torch.tensor([ids]) for ids in (pair.clean, pair.corrupt)) for pair in pairs]
    patched = torch.zeros(graph.connected.shape, dtype=torch.bool)

    def m() -> np.ndarray:
        values = []
        for pair, (clean, corrupt) in zip(pairs, both, strict=True):
            one = run(model, graph, clean, patched=patched, other=run(model, graph, corrupt).out)
            values.append(float(pair.log_odds(one.logits(torch.tensor([[pair.last]]))[0, 0])))
        return np.array(values)

    want, threshold = np.zeros((len(graph.edges), len(pairs))), 0.05
    for v in reversed(range(len(graph.readers))):
        edges, base = np.flatnonzero(graph.edges[:, 1] == v), m()
        for e in edges:
            patched[graph.edges[e, 0], v] = True
            want[e] = base - m()
            patched[graph.edges[e, 0], v] = False
        patched[graph.edges[edges[np.abs(want[edges].mean(1)) < threshold], 0], v] = True
    opposed = (np.abs(want.mean(1)) < threshold) & (np.abs(want).mean(1) >= threshold)
    assert opposed.any() and (np.abs(want.mean(1)) >= threshold).any()
    monkeypatch.setattr("streamscope.interventions.circuits.scores.MEMORY", 16 * bytes_per_token(model, graph, "acdc"))
    found = score_edges(model, graph, pairs, "acdc", threshold=threshold)
    np.testing.assert_allclose(found, want, atol=1e-5)


def test_areas_by_hand() -> None:
    """f = k gives CPR = (1 − .001²)/2 and CMD = .999 − CPR; random sequences are averaged."""
    k = np.array(worth.SHARES)
    m = np.concatenate([[3.0, 1.0], 1.0 + 2.0 * k])[:, None]  # clean, corrupted, circuits; one cluster
    size = np.ones_like(m)
    areas = ((k[1:] - k[:-1]) * (k[1:] + k[:-1]) / 2).sum()
    assert float(worth.cpr(m, size)) == pytest.approx(areas)
    assert float(worth.cmd(m, size)) == pytest.approx((1 - 0.001) - areas)
    assert worth.whole_at(k) == pytest.approx(0.5 * 2 ** ((0.9 - 0.5) / 0.5)) and np.isnan(worth.whole_at(k / 2))
    assert worth.whole_at(k**0) == worth.SHARES[0]
    twice = np.concatenate([m, np.full((len(k), 1), 1.0)])  # a second sequence keeps nothing
    assert float(worth.cpr(twice, np.ones_like(twice))) == pytest.approx(areas / 2)
    assert worth.jaccard(np.array([True, True, False]), np.array([False, True, True])) == pytest.approx(1 / 3)
    assert worth.top(np.array([-3.0, 1.0, 2.0]), 2, "size").tolist() == [True, False, True]
    assert worth.top(np.array([-3.0, 1.0, 2.0]), 2).tolist() == [False, True, True]


def test_the_interval_of_the_smallest_circuit_lies_within_the_model() -> None:
    """It holds the shares at which .9 is inside f's own interval; a flat f made one of more edges than there are."""
    f = np.array([0, 0, 0, 0, 0.1, 0.6, 0.8, 0.89, 0.95, 1])
    frame = pd.DataFrame({"ranking": "size", "share": worth.SHARES, "f": f, "f_low": f - 0.2, "f_high": f + 0.2})
    frame.loc[[0, 9], ["f_low", "f_high"]] = np.nan
    frame[["random", "random_low", "random_high"]] = np.nan
    few = {(i, f"random{end}"): "few" for i in range(10) for end in ("", "_low", "_high")}
    row, why = share_for_whole(frame, {(0, "f_low"): SAME} | few)
    assert row["value_low"] == pytest.approx(0.05 * 2 ** ((0.9 - 0.8) / 0.2))
    assert row["value"] == pytest.approx(0.2 * 2.5 ** (0.01 / 0.06))
    assert row["value_high"] == pytest.approx(0.5 * 2 ** (0.15 / 0.25)) and row["value_high"] < 1
    assert np.isnan(row["random"]) and why["random_low"] == "few"


def test_metrics_are_those_of_one_pair_after_the_other() -> None:
    """Prompts, answers and foils of unequal lengths in one batch, random logits of two runs that differ from clean."""
    rng, V = np.random.default_rng(0), 11
    spans, places = [(3, 1, 0), (5,), (10, 2)], {"loss": 3}
    pairs = [
        PatchPair(id=str(i), cluster=str(i), clean=(*range(1, n),), corrupt=(*range(2, n + 1),), answers=a, foils=f,
                  continuation=spans[i])
        for i, (n, a, f) in enumerate([(3, (0, 4), (7,)), (6, (5,), (1, 2, 9)), (4, (10, 3, 8), (6, 0))])
    ]  # fmt: skip
    for name in ("logit-difference", "log-odds", "kl", "loss"):
        (batch,) = metrics.batches_of(pairs, name, 64)
        logits = torch.tensor(rng.normal(scale=2, size=(2, 3, places.get(name, 1), V)))
        clean = torch.tensor(rng.normal(scale=2, size=logits.shape[1:]))
        found = metrics.value(name, logits, batch, clean)
        for e, (row, i) in product(range(2), enumerate(batch.rows)):
            p, q = (x[row].softmax(-1).numpy() for x in (logits[e], clean))
            answers, foils = (p[0, list(ids)].sum() for ids in (pairs[i].answers, pairs[i].foils))
            want = {
                "logit-difference": np.log(answers / foils), "log-odds": np.log(answers / (1 - answers)),
                "kl": -(q[0] * np.log(q[0] / p[0])).sum(),
                "loss": np.mean([np.log(p[k, t]) for k, t in enumerate(spans[i]) if name == "loss"] or [0]),
            }  # fmt: skip
            assert found[e, row].item() == pytest.approx(want[name], abs=1e-6), (name, i)
    for row, i in enumerate(batch.rows):  # of the metric loss
        text, last, n = [*pairs[i].clean, *spans[i][:-1]], pairs[i].last, len(spans[i])
        assert batch.clean[row, : len(text)].tolist() == text
        assert batch.at[row, :n].tolist() == [*range(last, last + n)]
    with pytest.raises(InputError, match="the metric loss needs answers as text"):
        next(metrics.batches_of([*pairs, replace(pairs[0], continuation=())], "loss", 64))


NAMES = ["Tom", "Ben", "Sam", "Max"]


def who_saw_mia(folder: Path, names: list[str], answers: Any = None, foils: Any = None) -> Path:
    """A task: who saw Mia; the corrupted text says that Anna saw."""
    path, own = folder / "mine.jsonl", [[f" {n}"] for n in names]
    texts = ([f"{n} saw Mia. {who} saw" for n in names] for who in ("Mia", "Anna"))
    write_pairs(path, *texts, answers or own, foils or [[" Mia"]] * len(names))
    return path


def test_tasks_of_ones_own_and_the_first_contrast_that_gives_pairs(tmp_path: Path) -> None:
    path, model = who_saw_mia(tmp_path, NAMES), load("stories/lfa")
    found, words = task_pairs(Circuits(task=str(path)), model)
    assert len(found.pairs) == 4 and "by corrupt" in words
    assert [model.tokenizer.decode(pair.continuation) for pair in found.pairs] == [f" {n}" for n in NAMES]
    assert re.match(r"\d+ pairs of competing by noun", task_pairs(Circuits(task="competing"), model)[1])
    with pytest.raises(InputError, match="got 1, 0, 0 and 0"):
        write_pairs(path, ["a"], [], [], [])
    with pytest.raises(InputError, match="'Tom' would run on from 'saw'"):
        write_pairs(path, ["Tom saw"], ["Ben saw"], [["Tom"]], [[" Ben"]])
    foils = [[" Mia"]] * 3 + [[" Maxine", " Mia"]]  # begins as the answer does: nothing to compare with
    who_saw_mia(tmp_path, NAMES, [[" Tom"], [" Ben"], [" Sam"], [" Max", " Anna"]], foils)
    assert len(task_pairs(Circuits(task=str(path)), model)[0].pairs) == 4
    found, words = task_pairs(Circuits(task=str(path), metric="loss"), model)
    assert len(found.pairs) == 3 and all(pair.continuation for pair in found.pairs)
    assert "1 left out: the continuations start with the same" in words
    by_order, _ = task_pairs(Circuits(task="competing", contrast="order", metric="loss"), model)
    assert all(pair.continuation[:1] == pair.answers for pair in by_order.pairs)


def test_f_is_undefined_with_its_reason_where_the_runs_do_not_differ(tmp_path: Path) -> None:
    path, model, bar = who_saw_mia(tmp_path, NAMES), load("stories/lfa"), Bar()
    found = Circuits(task=str(path), method="random", metric="kl", draws=1).measure(model, progress=bar)
    summary, curve, edges = (found.table(name) for name in ("summary", "faithfulness", "edges"))
    assert np.isnan(summary.frame["value"].iloc[2:]).all() and summary.missing[2, "value"] == FLAT
    assert curve.frame["f"].isna().all() and curve.missing[0, "f"] == FLAT
    assert edges.frame["f"].isna().all() and edges.missing[0, "f"] == FLAT
    effect, low, high = summary.frame.loc[1, ["value", "value_low", "value_high"]]
    line = f"clean − corrupted {effect:+.2f} ({low:.2f} … {high:.2f}) nats on 2 independent pairs to judge the circuit"
    no_value = "f, CPR and CMD will have no value; give more pairs, about "
    assert bar.lines[0].startswith(f"{line}: {no_value}"), "before the work"


def test_one_pair_that_judges_gives_values_without_intervals(tmp_path: Path) -> None:
    path, model, bar = who_saw_mia(tmp_path, NAMES[:2]), load("stories/lfa"), Bar()
    found = Circuits(task=str(path), method="eap", draws=1).measure(model, progress=bar)
    summary, curve = found.table("summary"), found.table("faithfulness")
    score, size = (curve.frame.loc[curve.frame["ranking"] == ranking, "f"].to_numpy() for ranking in ("score", "size"))
    assert np.abs(score - size).max() > 0.01, "a large score below 0 is last by score and first by size"
    areas = np.trapezoid(score, worth.SHARES), np.trapezoid(np.abs(1 - size), worth.SHARES)
    assert summary.frame["value"].iloc[2:4].tolist() == pytest.approx(areas)
    m = found.blocks["circuits"].values
    assert curve.frame["f"][3] == pytest.approx((m[5] - m[1]) / (m[0] - m[1])) and abs(m[0] - m[1]) > 1e-3
    assert summary.frame["value"].iloc[:4].notna().all() and summary.frame["value_low"].isna().all()
    assert summary.missing[2, "value_low"] == "fewer than 8 clusters to resample"
    assert curve.frame["stability"].isna().all() and curve.missing[0, "stability"] == "one independent case"
    (line,) = (line for line in bar.lines if line.startswith("clean − corrupted"))
    assert line.endswith("will have no interval; give more pairs, about 16 independent ones")


def test_how_many_pairs_f_needs_is_that_of_t() -> None:
    """Values with a mean of .5 and an sd near 1 need 18 pairs to judge; twice as many in all."""
    x = np.random.default_rng(0).normal(size=40)
    values = np.stack([0.5 + (x - x.mean()) / x.std(ddof=1), np.zeros(40)])
    n = next(n for n in range(2, 99) if stats.t.ppf(0.975, n - 1) / n**0.5 < 0.5)
    assert n == 18
    for total, judging, end in (
        (values, 3, f"about {2 * n} independent ones"),
        (values + np.array([[9.0], [0.0]]), 20, "to judge the circuit"),
        (0 * values, 20, "give other pairs, or many more"),
    ):
        measured = block(total, measure=Measure(name="m", unit="nats", resolution=1e-5), run=["clean", "corrupted"])
        assert measure.outlook(measured, np.arange(40) < judging).endswith(end)


def test_the_gradient_of_kl_at_the_clean_run_alone_is_refused(make: Any) -> None:
    model = make("std-t")
    graph, pairs = graph_of(model), pairs_of(model)
    for method in ("eap", "eap-ig"):
        with pytest.raises(InputError, match="the gradient of kl is 0 at the clean run"):
            score_edges(model, graph, pairs, method, "kl", steps=1)
    for steps, points in ((2, "right"), (1, "left")):
        assert np.abs(score_edges(model, graph, pairs, "eap-ig", "kl", steps=steps, points=points)).max() > 1e-4


def test_the_figure_places_key_value_heads_below_theirs_and_its_slider_shows_the_circuit_of_each_share() -> None:
    graph = graph_of(build("llama", "tiny", n_heads=4, **{"attention.kv_heads": 2}))
    ends = [(graph.senders[u], graph.readers[v]) for u, v in graph.edges]
    n = len(ends)
    frame = pd.DataFrame({
        "edge": graph.names, "sender": [u.name for u, _ in ends], "reader": [v.name for _, v in ends],
        "part": [v.part for _, v in ends], "score": np.linspace(1.0, -0.5, n),
        "enters": np.repeat([0.1, 1.0], [7, n - 7]), "f": np.repeat([0.4, 1.0], [7, n - 7]),
    })  # fmt: skip
    table = Table(frame, tuple(c for c in EDGES if c.name in frame), {}, "edges")
    drawn = draw_circuit(FigureOfEdges("score", most=50), table, PALETTE)
    assert drawn is not None
    parts = drawn.data[50]
    at = dict(zip(parts.text, zip(parts.x, parts.y, strict=True), strict=True))
    for group, heads in (("kv0", ("h0", "h1")), ("kv1", ("h2", "h3"))):
        assert at[f"a1.{group}"][0] == np.mean([at[f"a1.{h}"][0] for h in heads])
        assert at["m0"][1] < at[f"a1.{group}"][1] < at["a1.h0"][1] < at["m1"][1] < at["logits"][1]
    assert at["m0"][0] == at["m1"][0] > max(at[f"a1.h{h}"][0] for h in range(4)), "FFNs stand beside the heads"
    few, many = drawn.layout.sliders[0].steps
    assert (few.label, many.label) == ("10 %, f 0.40", f"100 %, f 1.00, 50 of {n} drawn")
    assert sum(few.args[0]["visible"][:50]) == 7 and all(many.args[0]["visible"])
    used = {name for u, v in ends[:7] for name in (u.name, v.name.partition("<")[0])}
    dark = {name for name, color in zip(parts.text, parts.marker.color, strict=True) if color == USED}
    assert dark == used < set(parts.text)


LATENT_KINDS = ("std-t", "lfa", "pls", "kromcanon", "parallel", "hf:olmo2")


def latents_of(layer: int) -> list[str]:
    return [f"m{layer}.{part}" for part in (*CHOSEN, "rest")]


def latents_in(folder: Path, model: Any, layer: int, hook: str) -> str:
    """A spec of latents of a random dictionary of an FFN's output; `hook_mlp_in` is read by a transcoder."""
    write_dictionary_of(folder, model, f"blocks.{layer}.{hook}", f"blocks.{layer}.hook_mlp_out")
    return f"{folder}:3,7-8,21"


@pytest.mark.parametrize(
    ("kind", "hook"),
    [pytest.param(kind, hook, marks=[pytest.mark.slow] if (i + j) % 2 else [])
     for i, kind in enumerate(LATENT_KINDS) for j, hook in enumerate(("hook_mlp_out", "hook_mlp_in"))],
)  # fmt: skip
def test_exact_scores_of_latents_are_those_of_a_plain_loop(kind: str, hook: str, make: Any, tmp_path: Path) -> None:
    model = make(kind)
    graph = graph_of(model, [latents_in(tmp_path / "d", model, 0, hook)])
    assert [u.name for u in graph.senders if u.name.startswith("m0")] == latents_of(0)
    pairs, dictionary = pairs_of(model), read_dictionary(str(tmp_path / "d"), model)
    scores = score_edges(model, graph, pairs, "exact")
    own = [e for e, name in enumerate(graph.names) if name.startswith("m0.")]
    chosen = {*np.random.default_rng(1).choice(own, 12, replace=False).tolist(), own[-1]}
    largest = np.abs(scores).max()
    for i, pair in enumerate(pairs[:2]):
        plain = Plain(model, pair, dictionary)
        for e in sorted(chosen):
            u, v = graph.edges[e]
            want = plain.score(graph.senders[u], graph.readers[v])
            assert abs(scores[e, i] - want) < 1e-4 * largest, graph.names[e]
    assert np.abs(scores[own]).max() > 0.01 * largest, "else the latents would write nothing"


@pytest.mark.parametrize("kind", LATENT_KINDS)
def test_an_ffn_is_its_latents_and_the_rest(kind: str, make: Any, tmp_path: Path) -> None:
    """With no edge patched it is the clean run, with all the corrupted one; gradients of the parts add up to the FFN's
    own, edge by edge; edges of others are what they were."""
    model = make(kind)
    specs = [
        latents_in(tmp_path / str(layer), model, layer, hook)
        for layer, hook in enumerate(["hook_mlp_out", "hook_mlp_in"])
    ]
    plain, graph, pairs = graph_of(model), graph_of(model, specs), pairs_of(model)
    with torch.no_grad():
        check_runs(model, graph)
    for method in ("eap", "eap-ig", "eap-ig-activations"):
        whole, parts = (
            dict(zip(g.names, score_edges(model, g, pairs, method, steps=2), strict=True)) for g in (plain, graph)
        )
        largest = max(np.abs(x).max() for x in whole.values())
        for name, want in whole.items():
            sender, reader = name.split("->")
            edges = [f"{part}->{reader}" for part in latents_of(int(sender[1:]))] if sender in ("m0", "m1") else [name]
            assert np.abs(sum(parts.pop(edge) for edge in edges) - want).max() < 1e-5 * largest, name
        assert not parts, "no other edges"


def test_what_the_latents_do_not_write_is_worth_nothing(make: Any, tmp_path: Path) -> None:
    """Planted: an FFN that writes along one direction u, and latents max(y·u, 0) and max(−y·u, 0) with u and −u."""
    model, hook = make("std-t"), "blocks.0.hook_mlp_out"
    down, u = model.blocks[0].mlp.down, torch.randn(model.config.d_model, generator=torch.Generator().manual_seed(2))
    u, none = u / u.norm(), torch.zeros(2)
    assert down.bias is None
    with torch.no_grad():
        down.weight.copy_(torch.outer(u, u @ down.weight))
    W = torch.stack([u, -u])
    dictionary = Dictionary(W.T.contiguous(), none, W, torch.zeros_like(u), none.clone(), hook=hook, target=hook)
    write_dictionary(tmp_path / "d", dictionary)
    graph, pairs = graph_of(model, [f"{tmp_path / 'd'}:0-1"]), pairs_of(model)
    largest = dict(zip(graph.names, np.abs(score_edges(model, graph, pairs, "exact")).max(1), strict=True))
    rest = max(x for name, x in largest.items() if name.startswith("m0.rest"))
    latents = max(x for name, x in largest.items() if name.startswith(("m0.0", "m0.1")))
    assert rest < 1e-5 < 1e-3 < latents


def test_the_cost_is_that_of_the_graph_with_latents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, asked = load("stories/lfa"), list[Any]()
    how = Circuits(latents=(latents_in(tmp_path / "d", model, 1, "hook_mlp_out"),), pairs=8, method="eap")
    monkeypatch.setattr(measure, "graph_of", lambda *args: asked.append(args[1:]) or graph_of(*args))
    measure.seconds_of(how, model, measure.task_pairs(how, model)[0])
    assert asked == [(how.latents,)]


def test_the_instrument_takes_latents_and_refuses_what_is_no_part_of_the_graph(tmp_path: Path) -> None:
    model = load("stories/lfa")
    spec = latents_in(tmp_path / "d", model, 1, "hook_mlp_out")
    how = Circuits(latents=(spec,), pairs=8, method="eap", draws=1)
    result = how.measure(model)
    frame = result.table("edges").frame
    assert {"m1.3", "m1.7", "m1.8", "m1.21", "m1.rest"} <= {*frame["sender"]} and "m1" not in {*frame["sender"]}
    assert "m1" in {*frame["reader"]}
    result.save(tmp_path / "circuit.json", figure=tmp_path / "circuit.html")
    assert "m1.21" in (tmp_path / "circuit.html").read_text()
    parts = next(trace for trace in result.figure().data if trace.mode == "markers+text")
    spots = {name: spot for name, *spot in zip(parts.text, parts.x, parts.y, strict=True) if name.startswith("m1")}
    assert len(spots) == len({*map(tuple, spots.values())}) == 6, "none hides another"
    write_dictionary_of(tmp_path / "stream", model, "blocks.1.hook_context_post", stream="context")
    write_dictionary_of(tmp_path / "across", model, "blocks.0.hook_mlp_in", "blocks.1.hook_mlp_out")
    cases = {
        f"{tmp_path / 'stream'}:1": r"circuits take latents of blocks\.L\.hook_mlp_out",
        f"{tmp_path / 'across'}:1": r"circuits take latents of blocks\.L\.hook_mlp_out",
        f"{tmp_path / 'd'}:40": "name some of its latents, 0 to 39",
        f"{tmp_path / 'd'}": "name latents of the dictionary",
        f"{tmp_path}:1": "cfg.json is missing",
    }
    for wrong, line in cases.items():
        with pytest.raises(InputError, match=line):
            replace(how, latents=(wrong,)).measure(model)
    with pytest.raises(InputError, match="the FFN of layer 1 is taken apart once"):
        replace(how, latents=(spec, spec)).measure(model)
    with pytest.raises(InputError, match="trained on other weights"):
        replace(how, latents=(spec,)).measure("stories/d-cas")
