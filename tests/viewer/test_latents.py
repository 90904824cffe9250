"""Latents in the live page: what it shows and removes is what torch and `--edit FOLDER:17` do, in every host."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.numpy import load as arrays_of
from starlette.testclient import TestClient

from streamscope.models import load
from streamscope.models.dictionaries import Dictionary, write_dictionary
from streamscope.models.hooks import capture, edit
from streamscope.models.hooks.controls import about_edits, control_values, edits_of, user_edits
from streamscope.models.tensors import save
from streamscope.viewer import View, page
from streamscope.viewer.engine import Watched
from streamscope.viewer.export import digest_of, graph_of
from streamscope.viewer.server import application
from streamscope.viewer.session import Shown, open_models, outputs
from streamscope.viewer.shown import dictionary_for_page, lens_streams, raised_tokens
from streamscope.viewer.view import main
from tests.tiny import refused
from tests.viewer.pages import TEXT, answered, opened, write_dictionary_of
from tests.viewer.test_lens import every_place, tiny, write_lens_of

TOKENS = torch.arange(3, 15)[None]
PLACES = [
    ("std-t", "blocks.0.hook_resid_post", "", "resid"),
    ("lfa", "blocks.1.hook_context_post", "", "context"),
    ("kromcanon", "blocks.0.hook_streams_post", "", "s1"),
    ("std-t", "blocks.1.hook_mlp_in", "blocks.1.hook_mlp_out", ""),
]


@pytest.mark.parametrize(("preset", "hook", "target", "stream"), PLACES)
@torch.no_grad()
def test_the_page_shows_and_removes_what_torch_does(
    preset: str, hook: str, target: str, stream: str, tmp_path: Path
) -> None:
    model, folder = tiny(preset), str(tmp_path / "d")
    dictionary = write_dictionary_of(tmp_path / "d", model, hook, target, stream)
    shown = dictionary_for_page(model, preset, folder)
    with capture(model, hook) as captures:
        model(TOKENS)
    z = dictionary.encode(dictionary.stream_of(captures[hook]))[0].topk(5)
    plain = outputs(model, TOKENS, {}, None, None, shown)
    np.testing.assert_allclose(plain["latent_values"], z.values, atol=1e-4)
    assert (plain["latent_ids"] == z.indices.numpy()).all()
    a, b = plain["latent_ids"][-1, :2].tolist()
    edits = {"latents": {folder: [a, b]}, "heads": {"L0.H1": {"scale": 0}}}
    off = outputs(model, TOKENS, edits, None, None, shown)
    (tmp_path / "edits.json").write_text(json.dumps(edits))
    heads = edits_of({"heads": edits["heads"]}, model)
    for found in (edits_of(edits, model), user_edits(model, [str(tmp_path / "edits.json")])):
        with edit(model, found):
            np.testing.assert_allclose(off["logits"], model(TOKENS)[0], atol=1e-4)
    weights = about_edits([f"{folder}:3"])[0]["sha256"]  # a record names the dictionary's weights as well
    assert about_edits([str(tmp_path / "edits.json")])[1:] == [{"edit": folder, "sha256": weights}]
    with edit(model, heads), edit(model, user_edits(model, [f"{folder}:{a},{b},{a}"])):
        np.testing.assert_allclose(off["logits"], model(TOKENS)[0], atol=1e-4)
    with edit(model, heads):
        assert np.abs(off["logits"] - model(TOKENS)[0].numpy()).max() > 0.01
    assert (off["latent_values"][:, 0] > 0).all(), "a latent is shown as it is before its removal"


@torch.no_grad()
def test_latents_along_one_direction_are_its_coordinate(tmp_path: Path) -> None:
    """Planted: latents max(x·u, 0) and max(−x·u, 0) with decoders u and −u; without both, the coordinate is 0."""
    model, hook = tiny("gpt2"), "blocks.1.hook_resid_post"
    u = torch.nn.functional.normalize(
        torch.randn(model.config.d_model, generator=torch.Generator().manual_seed(2)), dim=0
    )
    W, zeros = torch.stack([u, -u]), [torch.zeros(size) for size in (2, 2, len(u))]
    write_dictionary(tmp_path, Dictionary(W.T.contiguous(), zeros[0], W, zeros[2], zeros[1], hook=hook, target=hook))
    shown = dictionary_for_page(model, "gpt2", str(tmp_path))
    found = outputs(model, TOKENS, {"latents": {str(tmp_path): [0, 1]}}, None, None, shown)
    with edit(model, {hook: lambda x, hook: x - (x @ u)[..., None] * u}):
        np.testing.assert_allclose(found["logits"], model(TOKENS)[0], atol=1e-4)
    assert found["latent_ids"].shape == (TOKENS.shape[1], 2), "no more than the dictionary has"


@pytest.mark.parametrize("preset", ["gpt2", "llama", "lfa"])
@torch.no_grad()
def test_a_direction_raises_the_tokens_that_it_alone_would_predict(preset: str) -> None:
    """Planted: the head's own row raises its token. Any direction: the order of the logits of a state along it."""
    model = tiny(preset)
    raised = raised_tokens(model, torch.cat([model.head[[7, 99]] / model.ln_final.w, tiny("std-t").embed.W_E[:9]]))
    assert raised[:2, 0].tolist() == [7, 99]
    if model.ln_final.groups == 1:
        normed = model.ln_final(1e4 * tiny("std-t").embed.W_E[:9])
        logits = (normed - (0 if model.ln_final.b is None else model.ln_final.b)) @ model.head.T
        assert raised[2:].tolist() == logits.topk(5).indices.tolist()


EXPORT = """
import sys
from streamscope.viewer.session import open_models
from streamscope.viewer.export import graph_of
shown, = open_models([sys.argv[1]], lenses=[sys.argv[2]], dictionaries=[sys.argv[3]])
graph_of(shown.model, *shown.extras)
"""


@pytest.mark.parametrize(
    "place",
    [
        ("lfa", "blocks.0.hook_context_post", "", "context"),
        *(pytest.param(place, marks=pytest.mark.slow) for place in PLACES),
    ],
)
def test_the_graph_has_the_latents_the_lens_and_the_removal(place: tuple[str, ...], tmp_path: Path) -> None:
    """One graph of an architecture serves every lens and all weights of a dictionary of one hook."""
    preset, hook, target, stream = place
    model = tiny(preset, n_layers=1 if ".0." in hook and preset == "lfa" else 2)
    save(model, tmp_path / "model")
    write_lens_of(tmp_path / "lenses.safetensors", model, every_place(model))
    write_dictionary_of(tmp_path / "d", model, hook, target, stream)
    paths = [str(tmp_path / "model"), f"{tmp_path / 'lenses.safetensors'}:tuned", str(tmp_path / "d")]
    subprocess.run([sys.executable, "-c", EXPORT, *paths], check=True, capture_output=True)
    (shown,) = open_models(paths[:1], lenses=paths[1:2], dictionaries=paths[2:])
    watched = Watched(shown.model, *shown.extras)
    lens, latents = shown.extras
    assert len({digest_of(Watched(shown.model, *more)) for more in ((), (lens,), (None, latents), shown.extras)}) == 4
    run, S = onnxruntime.InferenceSession(graph_of(shown.model, *shown.extras)), len(lens_streams(model.config))
    ids = outputs(model, TOKENS, {}, None, *shown.extras)["latent_ids"][:, 0].tolist()
    for edits in ({}, {"latents": {paths[2]: ids}}):
        values = {**control_values(edits, model.config), "latents": torch.ones(40)}
        for latent in edits.get("latents", {}).get(paths[2], []):
            values["latents"][latent] = 0
        rows = torch.arange((model.config.n_layers + 1) * S * 12)
        feeds = {"tokens": TOKENS, "lens_at": rows, **values}
        found = dict(zip(watched.outputs, run.run(None, {name: x.numpy() for name, x in feeds.items()}), strict=True))
        expected = outputs(model, TOKENS, edits, None, *shown.extras)
        active = expected["latent_values"] > 0  # zeros have no order
        assert (found["latent_ids"] == expected["latent_ids"])[active].all() and active.sum() > 20
        for name in ("logits", "patterns", "latent_values"):
            np.testing.assert_allclose(found[name], expected[name], atol=1e-4, err_msg=f"{name} {edits}")
        p = np.stack([outputs(model, TOKENS, edits, i, *shown.extras)["lens_p"] for i in range(S)], 1)
        np.testing.assert_allclose(found["lens_p"], p.reshape(-1, 5), atol=1e-4)


def test_all_hosts_have_latents(tmp_path: Path, monkeypatch: Any) -> None:
    model, folder = load("stories/lfa"), str(tmp_path / "d")
    dictionary = write_dictionary_of(tmp_path / "d", model, "blocks.3.hook_context_post", stream="context")
    view = View("stories/lfa", "Lily had a red ball. She", dictionary=folder)
    about = view.data["models"][0]["dictionary"]
    assert about["folder"] == folder and about["hook"] == "blocks.3.hook_context_post" and len(about["raised"]) == 40
    view.edits = {"latents": {folder: [3]}}
    tokens = model.to_tokens(view.text)
    with torch.no_grad(), edit(view.model, view.hooks()):
        expected = view.model(tokens)[0]
    client = TestClient(application(view._shown, "", "x", 1), base_url="http://127.0.0.1:1")
    question = {"model": "lfa", "tokens": tokens[0].tolist(), "edits": view.edits}
    headers = {"x-streamscope-token": "x"}
    answer = client.post("/run", json=question, headers=headers)
    np.testing.assert_allclose(arrays_of(answer.content)["logits"], expected, atol=1e-4)
    for edits, line in (
        ({"latents": {"other": [3]}}, "latents of other: this page shows no such dictionary"),
        ({"latents": {folder: [40]}}, "latent 40 does not exist: .* has 0 to 39"),
        ({"latents": {folder: ["3"]}}, "must be a list of numbers"),
    ):
        with refused(line):
            view.edits = edits
        assert client.post("/run", json={**question, "edits": edits}, headers=headers).status_code == 400
    asked: list[Any] = []
    monkeypatch.setattr(page, "graph_of", lambda *given: asked.append(given) or b"graph")
    monkeypatch.setattr(page.runtime, "read", lambda key: b"let a=1;export{a as env};")
    assert json.dumps(about["raised"][:2], separators=(",", ":"))[1:-1] in page.html(view._shown)
    assert torch.equal(asked[0][2].dictionary.W_dec, dictionary.W_dec)


def test_wrong_dictionaries_are_refused_in_one_line(tmp_path: Path) -> None:
    model = load("stories/lfa")
    write_dictionary_of(tmp_path / "d", model, "blocks.3.hook_context_post", stream="context")
    write_dictionary_of(tmp_path / "sum", model, "blocks.3.hook_resid_post")
    for run, folder, line in (
        ("stories/std-t", tmp_path / "d", "this dictionary was trained on other weights"),
        ("stories/lfa", tmp_path, "cfg.json is missing"),
        ("stories/lfa", tmp_path / "sum", "blocks.3.hook_resid_post only shows the sum of the streams"),
        ("stories/lfa@all", tmp_path / "d", "dictionaries belong to the weights of one step"),
    ):
        with refused(line):
            main([run, "--dictionary", str(folder)])
    with refused("cfg.json is missing"):
        edits_of({"latents": {str(tmp_path): [1]}}, model)


def test_a_click_removes_a_latent_and_a_second_one_puts_it_back(chromium: Any, tmp_path: Path) -> None:
    model, folder = load("stories/lfa"), str(tmp_path / "d")
    write_dictionary_of(tmp_path / "d", model, "blocks.3.hook_context_post", stream="context")
    models: list[Shown] = open_models(["stories/lfa", "stories/std-t"], dictionaries=[folder])
    shown = models[0]
    with opened(chromium, answered(*models), viewport={"width": 1280, "height": 1000}) as found:
        found.open(text=TEXT)
        assert found.text(".latents h2") == "Latents of blocks.3.hook_context_post"
        tokens = torch.tensor([found.do("Array.from(streamscope.columns[0].tokens)")])
        plain = outputs(model, tokens, {}, None, *shown.extras)
        script = "cells => cells.map((cell) => [Number(cell.dataset.latent ?? -1), Number(cell.dataset.value ?? 0)])"
        values = np.array(found.page.locator(".latents td").evaluate_all(script))
        expected = plain["latent_values"].T.ravel()
        np.testing.assert_allclose(values[expected > 0, 1], expected[expected > 0], atol=1e-4)
        assert (values[:, 0] == plain["latent_ids"].T.ravel())[expected > 0].all()
        latent = int(plain["latent_ids"][-1, 0])
        last = found.page.locator(f'.latents tr:nth-child(2) td[data-at="{tokens.shape[1] - 1}"]')
        last.hover()
        piece = model.tokenizer.pieces(shown.latents.about["raised"][latent][:1])[0]
        assert f"latent {latent} · " in found.text(".tip .lead") and f"raises “{piece.strip()}”" in found.text(".tip")
        last.click()
        found.ready()
        edits = {"latents": {folder: [latent]}}
        assert found.state()["edits"] == edits and found.text(".chip") == f"latent {latent} off"
        assert found.text(".changes .lead").startswith(f"Without latent {latent}, the next token")
        logits = outputs(model, tokens, edits, None, *shown.extras)["logits"]
        np.testing.assert_allclose(found.array("logits"), logits.ravel(), atol=1e-4)
        removed = found.page.locator(".latents td.removed").all_inner_texts()
        assert set(removed) == {str(latent)}
        code: dict[str, Any] = {}
        exec(found.do("streamscope.python()"), code)
        np.testing.assert_allclose(code["logits"][0].detach(), logits, atol=1e-4)
        found.open(found.page.url.partition("#")[0], text=TEXT, edits=edits)  # as in a link
        assert found.page.locator(".latents td.removed").count() == len(removed)
        last.click()
        assert found.ready().state()["edits"] == {} and found.page.locator(".latents td.removed").count() == 0
        found.open(text=TEXT, second="std-t", edits={"latents": {folder: [latent, 40]}})
        assert "latent 40: its dictionary has no such latent" in found.text(".changes")
        assert found.text(".latents .reason") == "No dictionary was given for stories/std-t."
