"""A fitted lens in the live page: its numbers are those of `logit_lens --lens`, and the card says what it is."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from streamscope.models import build, load
from streamscope.models.hooks import capture, edit
from streamscope.models.hooks.controls import edits_of
from streamscope.models.layers.head import unembed
from streamscope.probes.logit_lens import LogitLens
from streamscope.probes.logit_lens.measure import candidates
from streamscope.probes.stream_states import places_of
from streamscope.viewer import View
from streamscope.viewer.session import open_models, outputs
from streamscope.viewer.shown import lens_for_page, lens_streams, place_of
from streamscope.viewer.view import main
from tests.tiny import randomise, refused
from tests.viewer.pages import TEXT, answered, opened, write_lens_of

EDITS = {"heads": {"L0.H1": {"scale": 0}, "L1.H2": {"alpha": 3}}}
TOPOLOGIES = ("std-t", "lfa", "kromcanon", "pls")


def tiny(preset: str, **changes: Any) -> Any:
    tokenizer = load("stories/lfa").tokenizer
    model = build(preset, "tiny", tokenizer=tokenizer, d_vocab=tokenizer.d_vocab, **changes)
    return randomise(model, std=0.4).eval()


def every_place(model: Any) -> list[str]:
    """The streams after every layer by their names in a file, as `streamscope lenses` has them."""
    sums = [f"blocks.{layer}.hook_resid_post" for layer in range(model.cfg.n_layers)]
    return list(dict.fromkeys([*(place.name for place in places_of(model)), *sums]))


@pytest.mark.parametrize("preset", TOPOLOGIES)
@torch.no_grad()
def test_the_page_reads_what_logit_lens_reads(preset: str, tmp_path: Path) -> None:
    """The sum of the streams against the instrument, each stream against its map, norm and head; under an edit too."""
    own_norms = {"readout.layer_norms": "own"} if preset == "pls" else {}
    model, path = tiny(preset, **own_norms), tmp_path / "lenses.safetensors"
    maps, streams = write_lens_of(path, model, every_place(model)), lens_streams(model.config)
    lens, ids = lens_for_page(model, preset, f"{path}:tuned"), [*range(3, 12)]
    for edits in ({}, EDITS):
        found = [outputs(model, torch.tensor([ids]), edits, i, lens)["lens_p"] for i in range(len(streams))]
        options = LogitLens(lens=f"{path}:tuned")
        table = candidates(model, options, [ids], edits=edits_of(edits, model)).query("top > 0")
        expected = table["probability"].to_numpy().reshape(len(ids), -1, 5).swapaxes(0, 1)
        np.testing.assert_allclose(found[-1][1:], expected, atol=1e-4)
        with edit(model, edits_of(edits, model)), capture(model, "blocks.*_post") as captures:
            model(torch.tensor([ids]))
        for place in places_of(model):
            x = maps[place.name].to_last(place.of(captures[place.hook])[0])
            p = unembed(model.ln_final(x[None]), model.head)[0].softmax(-1).topk(5).values
            stream = streams.index(place.stream if place.stream in streams else "sum")
            np.testing.assert_allclose(found[stream][place.layer + 1], p, atol=1e-4)
        plain = outputs(model, torch.tensor([ids]), edits, len(streams) - 1)["lens_p"]
        assert np.abs(found[-1][1:] - plain[1:]).max() > 0.01


@torch.no_grad()
def test_maps_that_are_the_identity_are_the_logit_lens(tmp_path: Path) -> None:
    model = tiny("lfa")
    write_lens_of(tmp_path / "lenses.safetensors", model, every_place(model), scale=0)
    lens, tokens = lens_for_page(model, "lfa", f"{tmp_path / 'lenses.safetensors'}:tuned"), torch.arange(9)[None]
    for stream in range(3):
        plain, through = (outputs(model, tokens, {}, stream, one) for one in (None, lens))
        np.testing.assert_allclose(through["lens_p"], plain["lens_p"], atol=1e-5)


def test_a_state_without_a_map_is_named(tmp_path: Path) -> None:
    model = tiny("lfa")
    write_lens_of(tmp_path / "a.safetensors", model, ["blocks.0.hook_token_post", "blocks.1.hook_resid_post"])
    assert lens_for_page(model, "lfa", f"{tmp_path / 'a.safetensors'}:tuned").about == {
        "file": "a.safetensors", "kind": "tuned", "mapped": [[True, False, False], [False, False, True]],
    }  # fmt: skip
    assert place_of(3, "s1") == "blocks.3.hook_streams_post:s1"


def test_wrong_lenses_are_refused_in_one_line(tmp_path: Path) -> None:
    model, path = load("stories/lfa"), tmp_path / "lenses.safetensors"
    write_lens_of(path, model, ["blocks.2.hook_resid_post", "blocks.0.other"])
    tuned = f"{path}:tuned"
    for words, line in (
        (["stories/lfa", "--lens", f"{path}:ridge"], "unknown kind of lens in .* 'ridge'"),
        (["stories/std-t", "--lens", tuned], "these lenses were fitted on other weights"),
        (["stories/lfa", "--lens", "tuned"], "give FILE:KIND, such as lenses.safetensors:tuned"),
        (["stories/lfa", "--lens", tuned, tuned], "there are 2 lenses for 1 models"),
        (["stories/lfa@all", "--lens", tuned], "lenses belong to the weights of one step, so stories/lfa@all takes"),
    ):
        with refused(line):
            main(words)
    write_lens_of(path, model, ["blocks.9.hook_resid_post"])
    with refused("has no tuned lens of blocks.5.hook_resid_post; it has blocks.9.hook_resid_post"):
        View("stories/lfa", lens=tuned)


def test_the_card_says_which_lens_it_is_and_which_states_it_does_not_read(chromium: Any, tmp_path: Path) -> None:
    model, path = load("stories/lfa"), tmp_path / "lenses.safetensors"
    write_lens_of(path, model, [place for place in every_place(model) if "token" not in place or ".0." in place])
    shown = open_models(["stories/lfa", "stories/std-t"], lenses=[f"{path}:tuned"])
    with opened(chromium, answered(*shown), viewport={"width": 1280, "height": 1000}) as page:
        page.open_lens(text=TEXT)
        assert page.text(".lens h2") == "Tuned lens" and "lenses.safetensors" in page.text(".lens .hint")
        blanks = page.page.locator(".lens td.blank")
        assert blanks.all_inner_texts() == ["no map of this state in lenses.safetensors"], "of the embedding"
        tokens = torch.tensor([page.do("Array.from(streamscope.columns[0].tokens)")])
        rows = "rows => rows.map((row) => [...row.querySelectorAll('td[data-p]')].map((td) => Number(td.dataset.p)))"
        for stream, edits in ((2, {}), (1, {}), (2, {"heads": {"L1.H5": {"scale": 0}}})):
            page.page.evaluate("edits => streamscope.setEdits(edits)", edits)
            page.press(["token", "context", "sum"][stream], exact=True)
            page.ready().page.wait_for_selector(".lens:not(.stale)")
            p = outputs(model, tokens, edits, stream, shown[0].lens)["lens_p"][..., 0]
            cells = page.page.locator(".lens tr").evaluate_all(rows)[1:-1]
            np.testing.assert_allclose(cells[::-1], p[1:], atol=1e-4)
        page.press("token", exact=True)
        page.page.wait_for_selector(".lens:not(.stale)")
        assert blanks.count() == 6
        assert page.page.locator(".lens td[data-p]").count() == tokens.shape[1], "the stream that no layer changes"
        page.open(text=TEXT, second="std-t")
        titles = page.page.locator(".lens h2").all_inner_texts()
        assert titles == ["Tuned lens of stories/lfa", "Logit lens of stories/std-t"]
