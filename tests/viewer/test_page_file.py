"""The page as one file, opened from disk in a real Chromium with the network off: all presets, all controls."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from streamscope.models import load
from streamscope.models.config.presets import PRESETS
from streamscope.models.make import build
from streamscope.viewer import runtime
from streamscope.viewer.describe import describe
from streamscope.viewer.page import html
from streamscope.viewer.session import Shown, outputs
from tests.tiny import randomise
from tests.viewer.pages import TEXT, Page, browser

FETCHED = runtime.folder()  # before the tests get a cache of their own
SHORT = "Lily had a red ball. She gave it"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as found:
        yield found


@pytest.fixture(autouse=True)
def _runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    if not FETCHED.is_dir():
        pytest.skip("ONNX Runtime was not fetched (python -m viewer.runtime): pages that run a model are left out")
    monkeypatch.setattr(runtime, "folder", lambda: FETCHED)


@pytest.fixture
def page(chromium: Any) -> Iterator[Page]:
    context = chromium.new_context(offline=True)
    found = Page(context.new_page())
    yield found
    assert found.console == []
    context.close()


def every_control(model: Any) -> list[dict[str, Any]]:
    """Edits that use each control of the model once: all off the neutral value, at a place in the middle."""
    about = describe(model, "model", "model")
    have = {name for name, one in about["controls"].items() if one is True}
    labels = {one["name"]: one["labels"] for one in about["inputs"]}
    head = {"scale": [-0.5, 0], "alpha": [4], "gate": ["open", "shut"]}
    found: list[dict[str, Any]] = [{}]
    found += [{"heads": {"L1.H1": {name: x}}} for name, values in head.items() if name in have for x in values]
    if "streams" in have:
        found += [{"streams": {name: x}} for name in labels["stream_all"][0] for x in ("unembedding", "everywhere")]
    for name in {"mixing", "h_res", "canon"} & have:
        layers, names = labels[name]
        found += [{name: [f"{layers[1]}.{one}"]} for one in names]
    return found


def check(page: Page, model: Any, edits: dict[str, Any]) -> None:
    """What the page holds equals torch's, and every stream's lens."""
    page.page.evaluate("edits => streamscope.setEdits(edits)", edits)
    page.ready()
    tokens = torch.tensor([page.do("Array.from(streamscope.columns[0].tokens)")])
    expected = outputs(model, tokens, edits)
    for name, x in expected.items():
        np.testing.assert_allclose(page.array(name), x.ravel(), atol=1e-4, rtol=1e-4, err_msg=f"{name} {edits}")
    script = "stream => streamscope.columns[0].result.lens(stream).then(({ids, p}) => [Array.from(ids), Array.from(p)])"
    for stream in range(page.do("streamscope.columns[0].model.streams.length")):
        ids, p = map(np.array, page.page.evaluate(script, stream))
        lens = outputs(model, tokens, edits, stream)
        np.testing.assert_allclose(p, lens["lens_p"].ravel(), atol=1e-4, err_msg=f"lens of {stream} {edits}")
        clear = -np.diff(lens["lens_p"], axis=-1)[..., 0].ravel() > 1e-3  # where the first is no tie
        assert (ids[::5] == lens["lens_ids"].ravel()[::5])[clear].all()


@pytest.mark.parametrize("preset", PRESETS)
def test_every_control_of_a_preset_gives_the_numbers_of_torch(preset: str, page: Page, tmp_path: Path) -> None:
    tokenizer = load("stories/lfa").tokenizer
    model = randomise(build(preset, "tiny", tokenizer=tokenizer, d_vocab=tokenizer.d_vocab), std=0.1).eval()
    path = tmp_path / "page.html"
    path.write_text(html([Shown(preset, "model", model)], SHORT))
    page.open(path.as_uri())
    for edits in every_control(model):
        check(page, model, edits)


def test_a_bundled_model_is_typed_to_ablated_and_compared_without_a_network(page: Page, tmp_path: Path) -> None:
    model = load("stories/lfa")
    path = tmp_path / "page.html"
    path.write_text(html([Shown("stories/lfa", "lfa", model, (1000, 22800))], SHORT))
    assert path.stat().st_size < 12e6, "bytes of a page with two models"
    page.open(path.as_uri())
    page.page.get_by_label("Text", exact=True).fill(TEXT)
    page.thumb("L2.H1").click()
    page.page.get_by_role("button", name="Turn off").click()
    page.page.wait_for_selector(".lead:has-text('becomes “monkey” instead of “robot”')")
    check(page, model, {"heads": {"L2.H1": {"scale": 0}}})
    page.page.get_by_role("slider", name="Training step").fill("0")
    page.ready()
    check(page, load("stories/lfa@1000"), {"heads": {"L2.H1": {"scale": 0}}})
    assert page.page.url.startswith("file://") and "step=1000" in page.page.url
