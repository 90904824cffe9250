"""Latents of FFNs as senders of a circuit: against plain loops, and where the sum of the parts is known."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.interventions.circuits import Circuits, measure
from streamscope.interventions.circuits.graph import graph_of
from streamscope.interventions.circuits.scores import score_edges
from streamscope.models import load
from streamscope.models.dictionaries import Dictionary, read_dictionary, write_dictionary
from streamscope.models.hooks import capture
from tests.interventions.test_circuits import Plain, check_runs, make, pairs_of
from tests.viewer.pages import write_dictionary_of

__all__ = ["make"]
KINDS = ("std-t", "lfa", "pls", "kromcanon", "parallel", "hf:olmo2")
CHOSEN = "3,7-8,21"


def names(layer: int) -> list[str]:
    return [f"m{layer}.{part}" for part in (3, 7, 8, 21, "rest")]


def latents_in(folder: Path, model: Any, layer: int, hook: str) -> str:
    """A spec of latents of a random dictionary of an FFN's output; `hook_mlp_in` is read by a transcoder."""
    write_dictionary_of(folder, model, f"blocks.{layer}.{hook}", f"blocks.{layer}.hook_mlp_out")
    return f"{folder}:{CHOSEN}"


class PlainWithLatents(Plain):
    """The plain loop, whose senders may be a latent of a dictionary or what the latents leave."""

    def __init__(self, model: Any, pair: Any, dictionary: Dictionary) -> None:
        super().__init__(model, pair)
        self.dictionary = dictionary

    def change(self, u: Any) -> Tensor:
        part = u.name.partition(".")[2]
        if u.part != "mlp" or not part:
            return super().change(u)
        d, written = self.dictionary, []
        for tokens in (self.clean, self.corrupt):
            with torch.no_grad(), capture(self.model, list({d.hook, d.target})) as seen:
                self.model(tokens)
            pre = seen[d.hook] @ d.W_enc + d.b_enc
            z = torch.where(pre > d.threshold, pre, 0)
            if part == "rest":
                written.append(seen[d.target] - sum(z[..., i, None] * d.W_dec[i] for i in (3, 7, 8, 21)))
            else:
                written.append(z[..., int(part), None] * d.W_dec[int(part)])
        return written[1] - written[0]


@pytest.mark.parametrize(
    ("kind", "hook"),
    [pytest.param(kind, hook, marks=[pytest.mark.slow] if (i + j) % 2 else [])
     for i, kind in enumerate(KINDS) for j, hook in enumerate(("hook_mlp_out", "hook_mlp_in"))],
)  # fmt: skip
def test_exact_scores_of_latents_are_those_of_a_plain_loop(kind: str, hook: str, make: Any, tmp_path: Path) -> None:
    model = make(kind)
    graph = graph_of(model, [latents_in(tmp_path / "d", model, 0, hook)])
    assert [u.name for u in graph.senders if u.name.startswith("m0")] == names(0)
    pairs, dictionary = pairs_of(model), read_dictionary(str(tmp_path / "d"), model)
    scores = score_edges(model, graph, pairs, "exact")
    own = [e for e, name in enumerate(graph.names) if name.startswith("m0.")]
    chosen = {*np.random.default_rng(1).choice(own, 12, replace=False).tolist(), own[-1]}
    largest = np.abs(scores).max()
    for i, pair in enumerate(pairs[:2]):
        plain = PlainWithLatents(model, pair, dictionary)
        for e in sorted(chosen):
            u, v = graph.edges[e]
            want = plain.score(graph.senders[u], graph.readers[v])
            assert abs(scores[e, i] - want) < 1e-4 * largest, graph.names[e]
    assert np.abs(scores[own]).max() > 0.01 * largest, "else the latents would write nothing"


@pytest.mark.parametrize("kind", KINDS)
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
            edges = [f"{part}->{reader}" for part in names(int(sender[1:]))] if sender in ("m0", "m1") else [name]
            assert np.abs(sum(parts.pop(edge) for edge in edges) - want).max() < 1e-5 * largest, name
        assert not parts, "no other edges"


def test_what_the_latents_do_not_write_is_worth_nothing(make: Any, tmp_path: Path) -> None:
    """Planted: an FFN that writes along one direction u, and latents max(y·u, 0) and max(−y·u, 0) with u and −u."""
    model = make("std-t")
    assert model.blocks[0].mlp.down.bias is None
    u = torch.nn.functional.normalize(
        torch.randn(model.config.d_model, generator=torch.Generator().manual_seed(2)), dim=0
    )
    with torch.no_grad():
        down = model.blocks[0].mlp.down
        down.weight.copy_(torch.outer(u, u @ down.weight))
    W = torch.stack([u, -u])
    hook = "blocks.0.hook_mlp_out"
    dictionary = Dictionary(
        W.T.contiguous(), torch.zeros(2), W, torch.zeros_like(u), torch.zeros(2), hook=hook, target=hook
    )
    write_dictionary(tmp_path / "d", dictionary)
    graph, pairs = graph_of(model, [f"{tmp_path / 'd'}:0-1"]), pairs_of(model)
    scores = dict(zip(graph.names, score_edges(model, graph, pairs, "exact"), strict=True))
    rest = max(np.abs(x).max() for name, x in scores.items() if name.startswith("m0.rest"))
    latents = max(np.abs(x).max() for name, x in scores.items() if name.startswith(("m0.0", "m0.1")))
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
        f"{tmp_path}:1": "cfg.json cannot be read",
    }
    for wrong, line in cases.items():
        with pytest.raises(InputError, match=line):
            replace(how, latents=(wrong,)).measure(model)
    with pytest.raises(InputError, match="the FFN of layer 1 is taken apart once"):
        replace(how, latents=(spec, spec)).measure(model)
    with pytest.raises(InputError, match="trained on other weights"):
        replace(how, latents=(spec,)).measure("stories/d-cas")
