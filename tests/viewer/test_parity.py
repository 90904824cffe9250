"""The graph that runs in the page gives torch's numbers, with every control used once, at several lengths."""

import subprocess
import sys
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor

from streamscope.models.checkpoint import bundled, load
from streamscope.models.config.presets import PRESETS
from streamscope.models.hooks import capture, edit
from streamscope.models.hooks.controls import control_hooks
from streamscope.models.make import build
from streamscope.viewer.engine import Watched
from streamscope.viewer.export import graph_of
from streamscope.viewer.shown import lens_streams
from tests.tiny import randomise, some

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("lfa", "pls", "kromcanon")
"""Presets that have every control between them."""
FAST = ("lfa", "pls")
"""Those whose export takes seconds; torch's side of all is compared with the model in every run."""
CHANGES: dict[str, dict[str, Any]] = {
    "head_scale": {"head_scale": [-0.5, 2.0]}, "alpha": {"alpha": [1.0, 6.0]},
    "gate": {"gate_keep": [0.0, 1.0], "gate_force": [1.0, 0.0]}, "stream_unembed": {"stream_unembed": [0.0, 1.0]},
    "stream_all": {"stream_all": [0.0, 1.0]}, "mixing": {"mixing": [0.0, 0.0]}, "h_res": {"h_res": [0.0, 0.0]},
    "canon": {"canon": [0.0, 0.0]},
}  # fmt: skip
"""What each control is set to, in turns."""


EXPORT = """
import sys
from streamscope.viewer.export import graph_of
from tests.viewer.test_parity import PRESETS, load, tiny
for name in sys.argv[1:]:
    graph_of(tiny(name) if name in PRESETS else load(name))
"""


@cache
def tiny(name: str) -> Any:
    """One layer, because an export takes as long as there are; two with hyper-connections, which do not act in one:
    equal streams enter it, and only their sum leaves it. So a layer's control is seen to be its own, too."""
    return randomise(build(name, "tiny", n_layers=2 if name.startswith("krom") else 1, d_vocab=300)).eval()


def exported(name: str) -> Any:
    """`tiny`, whose graph is in the cache; those of `FAST` are exported by one process."""
    prepare(*(FAST if name in FAST else [name]))
    return tiny(name)


@cache
def prepare(*names: str) -> None:
    """Export the graphs in a process of its own: the checks of types in this one take no lengths that are symbols."""
    subprocess.run([sys.executable, "-c", EXPORT, *names], cwd=ROOT, check=True, capture_output=True)


def session(model: Any) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(graph_of(model), options)


def values(watched: Watched, change: dict[str, Any]) -> list[Tensor]:
    """The arrays, with the numbers of a change in turns along their flattened axes."""
    found = []
    for name, control in watched.controls.items():
        array = control.unchanged()
        if name in change:
            array = torch.tensor(change[name]).repeat(array.numel())[: array.numel()].reshape(array.shape)
        found.append(array)
    return found


def answers(
    model: Any, T: int, run: onnxruntime.InferenceSession, change: dict[str, Any]
) -> list[dict[str, np.ndarray]]:
    watched = Watched(model)
    tokens = torch.randint(0, model.config.d_vocab, (1, T), generator=torch.Generator().manual_seed(T))
    rows = torch.arange((model.config.n_layers + 1) * len(lens_streams(model.config)) * T)
    given = values(watched, change)
    with torch.no_grad():
        torch_outputs = watched(tokens, rows, *given)
    names = ["tokens", "lens_at", *watched.controls]
    feeds = {name: x.numpy() for name, x in zip(names, (tokens, rows, *given), strict=True)}
    graph_outputs = run.run(watched.outputs, feeds)
    return [
        {name: np.asarray(x) for name, x in zip(watched.outputs, outputs, strict=True)}
        for outputs in (torch_outputs, graph_outputs)
    ]


def check(model: Any) -> None:
    """Every control that the model has, used once: torch's numbers to 1e-4, and other ones than without it."""
    run, watched = session(model), Watched(model)
    plain = {T: answers(model, T, run, {})[1] for T in (2, 11, min(30, model.config.n_ctx))}
    for change in ({}, *(change for change in CHANGES.values() if set(change) <= set(watched.controls))):
        for T, before in plain.items():
            expected, got = answers(model, T, run, change)
            for name in ("logits", "patterns", *(["gates"] if "gates" in expected else []), "lens_p"):
                np.testing.assert_allclose(got[name], expected[name], atol=1e-4, rtol=0, err_msg=f"{change} {name}")
            clear = expected["lens_p"][:, 0] - expected["lens_p"][:, 1] > 1e-5
            np.testing.assert_array_equal(got["lens_ids"][clear, 0], expected["lens_ids"][clear, 0])
            if change and T > 2:
                assert np.abs(got["logits"] - before["logits"]).max() > 3e-4, change  # three times the tolerance


@pytest.mark.parametrize("name", some(PRESETS, FAST))
def test_presets(name: str) -> None:
    check(exported(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", bundled())
def test_bundled_models(name: str) -> None:
    prepare(name)
    check(load(name))


@torch.no_grad()
def test_the_watched_pass_is_the_models_own() -> None:
    """Against the model called by itself, under the edits of the same controls."""
    for name in PARTS:
        model = tiny(name)
        watched = Watched(model)
        tokens = torch.randint(0, 300, (1, 9), generator=torch.Generator().manual_seed(3))
        changes = [{}, *(change for change in CHANGES.values() if set(change) <= set(watched.controls))]
        for change in changes:
            given = values(watched, change)
            rows = watched.rows_of(len(lens_streams(model.config)) - 1, 9)
            found = dict(zip(watched.outputs, watched(tokens, rows, *given), strict=True))
            edits = control_hooks(model.config, dict(zip(watched.controls, given, strict=True)))
            with edit(model, edits), capture(model, "blocks.*.attn.hook_pattern") as seen:
                logits, layers = model(tokens), model.layer_logits(tokens)
            torch.testing.assert_close(found["logits"], logits[0], atol=1e-5, rtol=0)
            torch.testing.assert_close(found["patterns"], torch.cat(list(seen.values())), atol=1e-6, rtol=0)
            last = found["lens_p"].unflatten(0, (-1, 9))[-1]
            torch.testing.assert_close(last, layers[0, :, -1].softmax(-1).topk(5).values, atol=1e-5, rtol=0)


def test_a_stream_alone_through_norm_and_head() -> None:
    model = tiny("lfa")
    tokens = torch.randint(0, 300, (1, 9), generator=torch.Generator().manual_seed(4))
    watched = Watched(model)
    plain = [one.unchanged() for one in watched.controls.values()]
    with torch.no_grad(), capture(model, ["blocks.0.hook_token_pre", "blocks.0.hook_context_post"]) as seen:
        model(tokens)
        for stream, state, hook in ((0, 0, "blocks.0.hook_token_pre"), (1, 1, "blocks.0.hook_context_post")):
            p = watched(tokens, watched.rows_of(stream, 9), *plain)[-1].unflatten(0, (2, 9))[state]
            expected = (model.ln_final(seen[hook]) @ model.head.T)[0].softmax(-1).topk(5).values
            torch.testing.assert_close(p, expected, atol=1e-6, rtol=0)


def test_the_graph_is_small_and_names_no_folder() -> None:
    """Weights that bf16 holds are stored so; where nodes came from is not."""
    model = exported("lfa")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16().float())
    content = graph_of(model)
    stored = {one.name: one.data_type for one in onnx.load_from_string(content).graph.initializer}
    assert stored["model.blocks.0.mlp.up.weight:bf16"] == onnx.TensorProto.BFLOAT16
    assert len(content) < 2 * sum(p.numel() for p in model.parameters()) + 40_000
    assert b".py" not in content and b"/home" not in content


def test_a_model_in_bf16_is_exported_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache holds one graph of an architecture, so a server's bf16 must not get into it."""
    from streamscope.viewer import export

    model = exported("lfa")
    graph, asked = export._skeleton(Watched(model)), []
    monkeypatch.setattr(
        export, "_skeleton", lambda watched: asked.append({p.dtype for p in watched.parameters()}) or graph
    )
    half = deepcopy(model).to(torch.bfloat16)
    assert graph_of(half) == graph_of(deepcopy(half).float()) and asked == [{torch.float32}] * 2
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}


def test_one_architecture_is_exported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from streamscope.viewer import export

    graph_of(exported("lfa"))
    monkeypatch.setattr(export, "_export", lambda watched: pytest.fail("exported again"))
    other = randomise(build("lfa", "tiny", n_layers=1, d_vocab=300), seed=5).eval()
    expected, got = answers(other, 7, session(other), {"head_scale": [0.0, 1.0]})
    np.testing.assert_allclose(got["logits"], expected["logits"], atol=1e-4)


@torch.no_grad()
def test_capped_scores_and_logits() -> None:
    """Of Gemma 2: the lens caps its logits as the head does."""
    model = randomise(build("gpt2", "tiny", **{"readout.softcap": 2.0, "attention.softcap": 2.0})).eval()
    watched, tokens = Watched(model), torch.randint(0, 256, (1, 9), generator=torch.Generator().manual_seed(3))
    found = watched(tokens, watched.rows_of(0, 9), *(one.unchanged() for one in watched.controls.values()))
    logits = model(tokens)[0]
    torch.testing.assert_close(found[0], logits, atol=1e-5, rtol=0)
    torch.testing.assert_close(found[-1][-9:], logits.softmax(-1).topk(5).values, atol=1e-5, rtol=0)
