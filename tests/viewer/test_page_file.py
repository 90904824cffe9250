"""The page as one file, opened from disk in a real Chromium with the network off: all presets, all controls."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from streamscope.interventions.circuits.worth import size_of
from streamscope.models import load
from streamscope.models.config.presets import PRESETS
from streamscope.models.make import build
from streamscope.viewer import runtime
from streamscope.viewer.describe import describe
from streamscope.viewer.session import Shown, open_models, outputs
from tests.tiny import randomise
from tests.viewer.pages import TEXT, Page, opened, write_circuit_of, write_dictionary_of, write_lens_of

FETCHED = runtime.folder()  # before the tests get a cache of their own
SHORT = "Lily had a red ball. She gave it"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not FETCHED.is_dir():
        pytest.skip("ONNX Runtime was not fetched (python -m viewer.runtime): pages that run a model are left out")
    folder = tmp_path_factory.mktemp("graphs")
    (folder / "viewer").mkdir()
    (folder / "viewer" / FETCHED.name).symlink_to(FETCHED)
    return folder


def write(path: Path, cache: Path, *shown: str) -> str:
    """Writes the page in a process of its own, where types are not checked: graphs are traced. Returns its address."""
    models = "".join(f"Shown({one}), " for one in shown)
    lines = [
        "from pathlib import Path",
        "from streamscope.models import load",
        "from streamscope.viewer.page import write_page",
        "from streamscope.viewer.session import Shown",
        "from tests.viewer.test_page_file import tiny",
        f"write_page([{models}], Path({str(path)!r}), {SHORT!r})",
    ]
    command = [sys.executable, "-c", "\n".join(lines)]
    environment = os.environ | {"STREAMSCOPE_CACHE": str(cache)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return path.as_uri()


def view(folder: Path, cache: Path, *options: str) -> Path:
    command = [sys.executable, "-m", "streamscope", "view", "stories/lfa", *options, "--out", "page.html"]
    done = subprocess.run(command, cwd=folder, env=os.environ | {"STREAMSCOPE_CACHE": str(cache)}, capture_output=True)
    assert done.returncode == 0, done.stderr
    return folder / "page.html"


def tiny(preset: str) -> Any:
    tokenizer = load("stories/lfa").tokenizer
    return randomise(build(preset, "tiny", tokenizer=tokenizer, d_vocab=tokenizer.d_vocab), std=0.1).eval()


@pytest.fixture
def page(chromium: Any) -> Iterator[Page]:
    with opened(chromium, offline=True) as found:
        yield found


def every_control(model: Any) -> list[dict[str, Any]]:
    """Edits that use each control of the model once: all off the neutral value, at a place in the middle."""
    about = describe(Shown("model", "model", model))
    have = {name for name, one in about["controls"].items() if one is True}
    labels = {one["name"]: one["labels"] for one in about["inputs"]}
    head = {"scale": [-0.5, 0], "alpha": [4], "gate": ["open", "shut"]}
    found: list[dict[str, Any]] = [{}]
    found += [{"heads": {"L1.H3": {name: x}}} for name, values in head.items() if name in have for x in values]
    if "streams" in have:
        found += [{"streams": {name: x}} for name in labels["stream_all"][0] for x in ("unembedding", "everywhere")]
    for name in {"mixing", "h_res", "canon"} & have:
        layers, names = labels[name]
        found += [{name: [f"{layers[1]}.{one}"]} for one in names]
    return found


def check(page: Page, model: Any, edits: dict[str, Any], shown: Shown | None = None) -> None:
    """What the page holds equals torch's, and every stream's lens, perhaps with what `shown` reads the model by."""
    extras = shown.extras if shown else ()
    page.page.evaluate("edits => streamscope.setEdits(edits)", edits)
    page.ready()
    tokens = torch.tensor([page.do("Array.from(streamscope.columns[0].tokens)")])
    expected = outputs(model, tokens, edits, None, *extras)
    for name, x in expected.items():
        if name == "latent_ids":
            continue  # those of value 0 have no order
        name = name.replace("latent_", "latents.")
        np.testing.assert_allclose(page.array(name), x.ravel(), atol=1e-4, rtol=1e-4, err_msg=f"{name} {edits}")
    script = "stream => streamscope.columns[0].result.lens(stream).then(({ids, p}) => [Array.from(ids), Array.from(p)])"
    for stream in range(page.do("streamscope.columns[0].model.streams.length")):
        ids, p = map(np.array, page.page.evaluate(script, stream))
        lens = outputs(model, tokens, edits, stream, *extras)
        np.testing.assert_allclose(p, lens["lens_p"].ravel(), atol=1e-4, err_msg=f"lens of {stream} {edits}")
        clear = -np.diff(lens["lens_p"], axis=-1)[..., 0].ravel() > 1e-3  # where the first is no tie
        assert (ids[::5] == lens["lens_ids"].ravel()[::5])[clear].all()


@pytest.mark.parametrize("preset", PRESETS)
def test_every_control_of_a_preset_gives_the_numbers_of_torch(
    preset: str, page: Page, cache: Path, tmp_path: Path
) -> None:
    page.open(write(tmp_path / "page.html", cache, f"{preset!r}, 'model', tiny({preset!r})"))
    model = tiny(preset)
    for edits in every_control(model):
        check(page, model, edits)


def test_a_bundled_model_is_typed_to_ablated_and_compared_without_a_network(
    page: Page, cache: Path, tmp_path: Path
) -> None:
    model = load("stories/lfa")
    path = tmp_path / "page.html"
    page.open(write(path, cache, "'stories/lfa', 'lfa', load('stories/lfa'), (1000, 7200)"))
    assert path.stat().st_size < 10.5e6, "8 MB with one model, 2.5 MB for a snapshot"
    page.page.get_by_label("Text", exact=True).fill(TEXT)
    page.thumb("L1.H5").click()
    page.page.get_by_role("button", name="Turn off").click()
    page.page.wait_for_selector(".lead:has-text('becomes “twice” instead of “firmly”')")
    check(page, model, {"heads": {"L1.H5": {"scale": 0}}})
    page.page.get_by_role("slider", name="Training step").fill("0")
    page.ready()
    check(page, load("stories/lfa@1000"), {"heads": {"L1.H5": {"scale": 0}}})
    assert page.page.url.startswith("file://") and "step=1000" in page.page.url


def test_the_file_of_the_command_draws_a_circuit(page: Page, cache: Path, tmp_path: Path) -> None:
    edges = write_circuit_of(tmp_path / "circuit.json", load("stories/lfa"))
    path = view(tmp_path, cache, "--circuit", "circuit.json")
    assert path.stat().st_size < 8e6
    page.open(path.as_uri(), text=SHORT, grid="circuit", share=0.01)
    assert page.page.locator(".edge").count() == size_of(0.01, len(edges)) > 10
    assert page.text(".kept").startswith("1 %: ")


def test_the_file_of_the_command_reads_by_a_lens_and_removes_latents(page: Page, cache: Path, tmp_path: Path) -> None:
    model, folder, lens = load("stories/lfa"), str(tmp_path / "d"), tmp_path / "lenses.safetensors"
    write_lens_of(lens, model, [f"blocks.{layer}.hook_resid_post" for layer in range(6)])
    write_dictionary_of(tmp_path / "d", model, "blocks.3.hook_context_post", stream="context")
    path = view(tmp_path, cache, "--lens", f"{lens}:tuned", "--dictionary", folder, "--text", SHORT)
    page.open(path.as_uri())
    (shown,) = open_models(["stories/lfa"], lenses=[f"{lens}:tuned"], dictionaries=[folder])
    check(page, model, {}, shown)
    page.page.locator(".latents td[data-latent]").last.click()
    check(page, model, page.ready().state()["edits"], shown)
    assert page.state()["edits"]["latents"][folder] and page.page.locator(".latents td.removed").count() >= 1
