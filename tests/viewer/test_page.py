"""The front end of the live page in a real Chromium, answered by torch: what it shows, and every control by hand."""

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from streamscope.interventions.edits import scale_heads
from streamscope.interventions.streams.measure import replace_at, zero
from streamscope.models import load
from streamscope.models.head_spec import Head
from streamscope.models.hooks import capture, edit
from streamscope.models.hooks.controls import edits_of, spelled_out
from streamscope.models.make import build
from streamscope.viewer import View, bundle, describe
from streamscope.viewer.describe import strongest_head
from streamscope.viewer.screenshot import ADDRESS, Answers
from streamscope.viewer.session import Shown, page_data
from tests.viewer.pages import CASES, TEXT, Page, answered, opened

HEAD = "L1.H5"
STEPS = {"lfa": (1000, 7200), "gpt2": (), "pls": ()}
OFF = {"heads": {HEAD: {"scale": 0}}}


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {name: load(f"stories/{name}") for name in STEPS}


@pytest.fixture(scope="module")
def answers(models: dict[str, Any]) -> Answers:
    shown = (Shown(f"stories/{name}", name, model, STEPS[name]) for name, model in models.items())
    return answered(*shown, suites=True)


@pytest.fixture
def page(chromium: Any, answers: Answers) -> Iterator[Page]:
    permissions = ["clipboard-read", "clipboard-write"]
    with opened(chromium, answers, viewport={"width": 1280, "height": 900}, permissions=permissions) as found:
        yield found


def in_torch(model: Any, text: str, edits: dict[str, Any] | None = None) -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
    """Tokens, logits [T, V] and patterns [L, H, T, T], by the hooks of the library."""
    tokens = model.to_tokens(text)
    with torch.no_grad(), edit(model, edits or {}), capture(model, "blocks.*.attn.hook_pattern") as seen:
        logits = model(tokens)[0]
    layers = [seen[f"blocks.{layer}.attn.hook_pattern"][0] for layer in range(model.config.n_layers)]
    return tokens, logits.numpy(), torch.stack(layers).numpy()


def assert_logits(page: Page, model: Any, text: str, edits: dict[str, Any] | None = None, column: int = 0) -> None:
    np.testing.assert_allclose(page.array("logits", column), in_torch(model, text, edits)[1].ravel(), atol=1e-4)


def off(head: str) -> dict[str, Any]:
    return scale_heads([Head(*map(int, re.findall(r"\d+", head)))], 0.0)


def test_what_is_typed_and_ablated_gives_the_numbers_of_torch(page: Page, models: dict[str, Any]) -> None:
    page.open()
    page.field.fill(TEXT)
    page.thumb(HEAD).click()
    page.press("Turn off")
    page.page.wait_for_selector(".chip")
    page.ready()
    tokens, before, patterns_before = in_torch(models["lfa"], TEXT)
    _, after, patterns = in_torch(models["lfa"], TEXT, off(HEAD))
    losses = -torch.tensor(after[:-1]).log_softmax(-1).gather(1, tokens[0, 1:, None])[:, 0]
    shift = np.abs(patterns - patterns_before).sum(-1).mean(-1) / 2
    for found, expected in (
        (page.array("logits"), after), (page.array("logits", answer="base"), before),
        (page.array("patterns"), patterns), (page.do("Array.from(streamscope.columns[0].losses).slice(1)"), losses),
        (page.do("Array.from(streamscope.columns[0].shift)"), shift),
    ):  # fmt: skip
        np.testing.assert_allclose(found, np.ravel(expected), atol=1e-4)
    rows = page.page.locator(".pairs li")
    p_before, p_after = (torch.tensor(x[-1]).softmax(-1) for x in (before, after))
    assert rows.count() == 8
    for node in rows.all():
        token, *p = (float(node.get_attribute(f"data-{name}")) for name in ("id", "before", "after"))
        assert p == pytest.approx([p_before[int(token)].item(), p_after[int(token)].item()], abs=1e-4)
    assert any("firmly" in row and "right" in row for row in rows.all_inner_texts())
    assert page.text(".changes .lead").startswith("Without L1.H5, the next token becomes “twice” instead of “firmly”")


def test_hover_lights_both_directions_and_a_click_locks_until_the_next(page: Page, models: dict[str, Any]) -> None:
    page.open(text=TEXT, head="L5.H4")
    pattern = in_torch(models["lfa"], TEXT)[2][5, 4]
    at, below = 20, page.page.locator(".lens").bounding_box()["y"]
    page.token(at).hover()
    assert page.page.locator(".lens").bounding_box()["y"] == below, "what is below stays where it is"
    lit = [page.classes(t) for t in range(len(pattern))]
    for t in range(at):
        assert ("attended" in lit[t]) == (pattern[at, t] >= 0.05), t
    for t in range(at + 1, len(pattern)):
        assert ("attending" in lit[t]) == (pattern[t, at] >= 0.05), t
    top = int(pattern[at, :at].argmax())
    assert f"{pattern[at, top]:.2f}".lstrip("0") in page.text(".status")
    assert len(page.page.locator(".tip .rows li").all()) == 5, "the five likeliest next tokens"

    page.token(at).click()
    page.page.mouse.move(2, 2)
    assert page.state()["token"] == at and "locked" in page.classes(at)
    page.token(at).click()
    page.page.mouse.move(2, 2)
    assert page.state()["token"] is None and "locked" not in page.classes(at)
    page.token(3).click()
    page.page.keyboard.press("Escape")
    assert page.state()["token"] is None


def test_a_shorter_text_is_shown_while_the_pointer_is_on_a_token_that_is_gone(page: Page) -> None:
    page.open_lens(text=TEXT, head="L5.H4")
    page.do("streamscope.focus({ query: 20, key: null })")  # as a pointer does that then rests
    page.do("streamscope.set({ text: 'Lily had' })")
    page.ready()
    assert page.do("streamscope.columns[0].tokens.length") < page.do("streamscope.hover.query") == 20
    assert page.text(".status").startswith("“had” attends to") and "Point at a token" in page.text(".finders")


def test_a_cell_of_the_matrix_lights_its_row_and_column_and_locks(page: Page, models: dict[str, Any]) -> None:
    page.open(text=TEXT, head="L5.H4", view="matrix")
    pattern = in_torch(models["lfa"], TEXT)[2][5, 4]
    query, key = 30, 12
    canvas = page.page.locator(".matrix canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    cell = box["width"] / len(pattern)
    page.page.mouse.move(box["x"] + (key + 0.5) * cell, box["y"] + (query + 0.5) * cell)
    assert page.text(".status").endswith(f": {pattern[query, key]:.3f}".replace(" 0.", " ."))
    assert "focus" in page.classes(query) and "attended" in page.classes(key)
    page.page.mouse.down()
    page.page.mouse.up()
    assert (page.state()["token"], page.state()["key"]) == (query, key)
    page.page.mouse.down()
    page.page.mouse.up()
    assert page.state()["token"] is None and page.state()["key"] is None
    page.page.mouse.move(box["x"] + (query + 0.5) * cell, box["y"] + (key + 0.5) * cell)
    assert page.do("streamscope.hover") is None, "no token looks ahead"


def test_the_keyboard_moves_head_and_token_toggles_and_unlocks(page: Page) -> None:
    page.open(text=TEXT, head="L1.H5")
    press = page.page.keyboard.press
    for keys, name, expected in (
        ("ArrowDown", "head", "L2.H0"),  # the next head, in the next layer
        ("Shift+ArrowUp", "head", "L1.H0"), ("ArrowUp", "head", "L0.H5"),
        ("ArrowRight ArrowRight", "token", 1), ("ArrowLeft ArrowLeft", "token", 0),  # there is none before the first
        ("Space", "edits", {"heads": {"L0.H5": {"scale": 0}}}), ("Space", "edits", {}), ("Escape", "token", None),
    ):  # fmt: skip
        for key in keys.split():
            press(key)
        assert page.state()[name] == expected, keys
    page.field.focus()
    press("Space")
    press("ArrowDown")
    assert (page.state()["edits"], page.state()["head"]) == ({}, "L0.H5"), "in a text field keys write"
    press("Escape")
    press("ArrowDown")
    assert page.state()["head"] == "L1.H0", "Esc leaves the field"


def test_every_control_of_a_head_and_of_the_model_is_in_the_edits_and_undone(page: Page) -> None:
    page.open(text=TEXT, head="L3.H2")
    for label, value in (("Scale", "-0.5"), ("Sharpen", "4")):
        page.page.get_by_label(label, exact=True).fill(value)
    for label, value in (
        ("token stream", "unembedding"), ("context stream", "everywhere"), ("Mixing matrices", "L2.v"),
    ):  # fmt: skip
        page.choose(label, value)
    edits = {
        "heads": {"L3.H2": {"scale": -0.5, "alpha": 4}}, "mixing": ["L2.v"],
        "streams": {"token": "unembedding", "context": "everywhere"},
    }  # fmt: skip
    assert page.state()["edits"] == edits
    chips = page.page.locator(".chip")
    assert chips.all_inner_texts() == [
        "L3.H2 × -0.5", "L3.H2 sharpened, α = 4", "token stream off for the unembedding",
        "context stream off everywhere", "Mixing = identity in L2.v",
    ]  # fmt: skip
    assert "× -0.5, α = 4" in page.text(".badge:not(.preview)")
    with page.page.expect_download() as waiting:
        page.press("Save edits")
    assert waiting.value.suggested_filename == "edits.json"
    assert json.loads(Path(waiting.value.path()).read_text()) == edits
    chips.first.click()
    assert page.ready().state()["edits"]["heads"] == {"L3.H2": {"alpha": 4}}
    page.press("Reset all").ready()
    assert page.state()["edits"] == {} and chips.count() == 0
    assert page.page.get_by_role("button", name="Save edits").is_disabled()
    assert "Nothing is changed" in page.text(".changes")


def log_odds(model: Any, edits: dict[str, Any] | None = None) -> float:
    right, wrong = (model.tokenizer.encode(word, bos=False)[0] for word in (" firmly", " twice"))
    logits = in_torch(model, TEXT, edits)[1][-1]
    return float(logits[right] - logits[wrong])


def test_the_effect_of_each_head_is_that_of_torch(page: Page, models: dict[str, Any]) -> None:
    page.open(text=TEXT, head="L5.H4", edits=OFF)
    page.press("Effect")
    page.page.wait_for_selector(".legend:has-text('Strongest')")
    page.page.wait_for_function("() => document.querySelectorAll('.thumb:not([data-effect=\"\"])').length === 36")
    page.page.wait_for_selector(".legend:has-text('Measuring')", state="detached")
    names = [f"L{i}.H{j}" for i in range(6) for j in range(6)]
    effects = {name: float(page.thumb(name).get_attribute("data-effect")) for name in names}
    before = log_odds(models["lfa"], off(HEAD))
    for head in ("L5.H4", "L0.H4", "L3.H2"):
        both = scale_heads([Head(*map(int, re.findall(r"\d+", one))) for one in (HEAD, head)], 0.0)
        assert effects[head] == pytest.approx(log_odds(models["lfa"], both) - before, abs=1e-4), head
    assert effects[HEAD] == 0, "it is off already"
    strongest = max(effects, key=lambda head: abs(effects[head]))
    assert page.text(".legend").startswith(f"Strongest on the log-odds of firmly over twice: {strongest} ")
    page.thumb("L0.H4").hover()
    assert page.text(".legend").startswith("L0.H4 off: log-odds of firmly over twice")

    page.do("globalThis.runs = 0; const { engine } = streamscope.columns[0]; const run = engine.run;"
            "engine.run = (...given) => { runs++; return run(...given); }; 0")  # fmt: skip
    for mode in ("Pattern", "Effect"):
        page.press(mode, exact=True)
    page.page.wait_for_timeout(200)
    assert page.do("runs") == 0, "what was measured is kept"
    page.field.fill("Lily had a dog. She")
    page.page.wait_for_selector(".legend:has-text('ln p of')")
    page.press("Pattern", exact=True).ready()
    runs = page.do("runs")
    page.page.wait_for_timeout(400)
    assert page.do("runs") <= runs + 1, "no run goes on for what is no longer shown"


def test_two_words_of_your_own_are_compared(page: Page) -> None:
    text = "Lily had a dog. She gave the dog a"
    page.open(text=text, head="L5.H4")

    def give(which: str, word: str, verdict: str = "", key: str = "Enter") -> None:
        field = page.page.get_by_label(f"{which} candidate")
        field.fill(word)
        field.press(key)
        if verdict:
            page.page.wait_for_selector(f".verdict:has-text('{verdict}')")

    give("First", "hug", key="Tab")
    assert page.state()["compare"] is None, "one word is not compared"
    give("Second", "kiss", "hug is")
    page.ready()
    model = load("stories/lfa")
    ids = [int(model.to_tokens(word, prepend_bos=False)[0, 0]) for word in (" hug", " kiss")]
    logits = in_torch(model, text)[1][-1]
    said = float(page.text(".verdict").split("log-odds ")[1].replace("\u2212", "-"))
    cut = [word for word, i in zip(("hug", "kiss"), ids, strict=True) if model.tokenizer.pieces([i]) != [f" {word}"]]
    assert ("Of a word of several tokens, its first." in page.text(".next .hint")) == bool(cut)
    assert page.page.locator(".pairs .name .hint").all_inner_texts() == cut
    assert said == pytest.approx(float(logits[ids[0]] - logits[ids[1]]), abs=0.01)
    assert page.page.locator(".pairs .role").all_inner_texts() == ["first", "second"]
    page.press("Effect", exact=True)
    page.page.wait_for_selector(".legend:has-text('log-odds of hug over kiss')")
    page.page.reload()
    page.page.wait_for_selector(".verdict:has-text('hug is')")
    assert page.state()["compare"] == ["hug", "kiss"], "the link holds both words"
    page.field.fill("dog " * 200)
    page.page.wait_for_selector(".notice:has-text('The last text that fitted is shown')")
    for word in ("bone", "kiss"):
        give("Second", word, f"{word}, log-odds")  # of the text that is shown
    page.field.fill(text)
    page.page.wait_for_selector(".notice", state="hidden")
    give("Second", "hug", "begin with the same token")
    give("Second", "")
    page.ready()
    assert page.state()["compare"] is None and not page.page.locator(".verdict").is_visible()


def test_a_slow_model_measures_effects_only_after_a_click(page: Page) -> None:
    page.open(text=TEXT, head="L5.H4")
    page.do(
        "() => { const { engine } = streamscope.columns[0], { run } = engine;"
        "engine.quick = () => { engine.run = run; };"
        "const late = (given) => new Promise((done) => setTimeout(done, 1000)).then(() => run.apply(engine, given));"
        "engine.run = (...given) => late(given); }"
    )
    page.press("Effect")
    button = page.page.get_by_role("button", name=re.compile(r"Measure all heads \(about [34]\d s\)"))
    button.wait_for()
    assert page.page.locator('.thumb[data-effect=""]').count() == 35, "one head was timed"
    page.do("streamscope.columns[0].engine.quick()")
    button.click()
    page.page.wait_for_selector(".legend:has-text('Strongest')")


def test_a_previewed_head_is_named_and_is_the_one_that_space_turns_off(page: Page) -> None:
    page.open(text=TEXT, head="L5.H4")
    badge = page.page.locator(".badge.preview")
    assert not badge.is_visible() and page.text(".switch") == "Turn off L5.H4"
    page.thumb("L4.H3").hover()
    assert badge.is_visible() and page.text(".title") == "Layer 4, head 3"
    assert page.text(".controls h3") == "Layer 4, head 3 (preview)" and page.text(".switch") == "Turn off L4.H3"
    page.page.keyboard.press("Space")
    page.ready()
    assert page.state()["edits"] == {"heads": {"L4.H3": {"scale": 0}}} and page.state()["head"] == "L5.H4"
    assert page.text(".switch") == "Turn on L4.H3"
    page.page.mouse.move(2, 2)
    assert not badge.is_visible() and page.text(".switch") == "Turn off L5.H4"
    page.thumb("L4.H3").click()
    assert not badge.is_visible() and page.state()["head"] == "L4.H3", "a click keeps it"
    page.thumb("L1.H1").hover()
    page.page.keyboard.press("ArrowDown")
    assert page.state()["head"] == "L1.H2" and page.text(".title") == "Layer 1, head 2", "keys go on from the head seen"


@pytest.mark.parametrize("second", ["", "gpt2"])
def test_nothing_below_moves_when_changes_are_added(page: Page, second: str) -> None:
    page.open(text=TEXT, head="L5.H4", **({"second": second} if second else {}))
    script = """[...document.querySelectorAll('.stage, .middle > .card, .lens')].map(e => {
        const { x, y, width, height } = e.getBoundingClientRect(); return [x, y, width, height]; })"""
    page.page.wait_for_selector(".lens td")
    changes = [{f"L{layer}.H{layer}": {"scale": 0}} for layer in range(6)]
    changes += [{"L5.H4": {"alpha": alpha}} for alpha in (1.5, 16)]
    page.do("document.querySelectorAll('.lens').forEach(e => e.remove())")  # its columns are as wide as its words
    places, heads = page.do(script), {}
    for change in changes:
        heads |= change
        page.edit({"heads": heads})
        assert np.abs(np.subtract(page.do(script), places)).max() < 0.5, heads
    assert page.page.locator(".chip").count() == 7
    page.page.locator(".chip").last.click()
    page.ready()
    assert page.page.locator(".chip").count() == 6, "those beyond the edge are scrolled to"


def test_a_gate_is_read_and_forced(page: Page, models: dict[str, Any]) -> None:
    page.open(model="pls", text=TEXT, head="L3.H2", token=9)
    model = models["pls"]
    with torch.no_grad(), capture(model, "blocks.3.attn.hook_gate") as seen:
        model(model.to_tokens(TEXT))
    gate = seen["blocks.3.attn.hook_gate"][0, 9, 2].mean().item()
    assert f"Its gate there is {gate:.3f}".replace(" 0.", " .") in page.text(".status") and 0 < gate < 1
    before = page.array("logits")
    for state, value in (("shut", ".000"), ("open", "1.000")):
        page.page.locator(".controls").get_by_role("button", name=state, exact=True).click()
        assert page.ready().state()["edits"] == {"heads": {"L3.H2": {"gate": state}}}
        assert f"Its gate there is {value}" in page.text(".status")
        assert np.abs(page.array("logits") - before).max() > 1e-3
    page.press("as computed").ready()
    np.testing.assert_array_equal(page.array("logits"), before)


def test_what_a_model_lacks_is_one_quiet_line(page: Page, models: dict[str, Any]) -> None:
    page.open(model="gpt2", text=TEXT)
    assert page.text(".lacking") == (
        "Not in this model: gates, parallel streams, mixing matrices, hyper-connections, Canon layers."
    )
    assert page.page.locator(".controls .row:visible .label").all_inner_texts() == ["Scale", "Sharpen"]
    page.open(model="lfa", text=TEXT)
    assert page.text(".lacking") == "Not in this model: gates, hyper-connections, Canon layers."
    rows = page.page.locator(".controls .row:visible")
    assert rows.count() == 5 and all(len(rows.nth(i).get_attribute("title")) > 30 for i in range(5))
    page.open(model="pls", text=TEXT)
    assert "gates" not in page.text(".lacking") and page.page.get_by_role("button", name="as computed").is_visible()


def test_the_address_holds_all_that_is_seen(page: Page) -> None:
    page.open(text=TEXT)
    page.thumb("L4.H2").click()
    page.page.keyboard.press("Space")
    page.token(7).click()
    for name in ("Matrix", "Change", "context"):
        page.press(name, exact=True)
    page.choose("Compare with", "gpt2")
    seen, address = page.state(), page.page.url
    assert seen["second"] == "gpt2" and seen["view"] == "matrix" and seen["token"] == 7 and seen["lens"] == "context"
    page.press("Copy link")
    page.page.wait_for_selector(".copied:text-is('Copied')")
    assert page.page.locator("dialog").count() == 0, "nothing lies over the page"
    page.page.wait_for_selector(".copied:text-is('')", state="attached")
    assert page.do("navigator.clipboard.readText()") == address
    other = Page(page.page.context.new_page())
    other.page.goto(address)
    assert other.ready().state() == seen and other.console == []
    np.testing.assert_array_equal(other.array("logits"), page.array("logits"))
    other.page.close()


def test_an_address_holds_what_was_undone_of_the_first_state(chromium: Any, models: dict[str, Any]) -> None:
    shown = [Shown(f"stories/{name}", name, models[name]) for name in ("lfa", "gpt2")]
    answers = answered(*shown, state={"text": TEXT, "second": "gpt2", "token": 7, "head": "L5.H4"})
    with opened(chromium, answers) as page, opened(chromium, answers) as other:
        page.page.goto(ADDRESS)
        page.ready()
        assert page.state()["second"] == "gpt2" and page.state()["token"] == 7
        page.choose("Compare with", "").page.keyboard.press("Escape")
        other.page.goto(page.page.url)
        assert other.ready().state() == page.state() and other.state()["second"] is other.state()["token"] is None
        assert not other.page.locator(".notice").is_visible()


def test_an_address_that_holds_nonsense_is_named_and_left_out(page: Page) -> None:
    wrong = {"heads": {"L99.H0": {"scale": 0}, HEAD: {"scale": "x"}}, "y": 1}
    page.open(text=TEXT, head="<b>L9</b>", token="-3", edits=wrong)
    assert page.text(".notice") == "Not understood in the address: head, token."
    assert page.state()["head"] == "L4.H3" and page.state()["token"] is None
    assert page.do("streamscope.columns[0].edits") == {}
    assert "L99.H0 scale: stories/lfa has no such head (and 2 more)" in page.text(".changes")
    assert page.text(".changes .lead").startswith("Nothing is changed in stories/lfa: L99.H0 scale")
    assert page.page.locator(".chip.idle").count() == page.page.locator(".chip").count() == 2
    strange = {"toString": 1, "valueOf": 1}  # what no template can write
    for name, values in (
        ("edits", ({"heads": {HEAD: None}}, {"heads": 3}, {"heads": {HEAD: {"scale": strange}}},
                   {"streams": {"token": strange}}, {"mixing": "L1"}, {"canon": [strange]}, {"heads": None})),
        ("compare", ('["a", ""]', '["a"]', '["a", 1]', '"ab"', "{", '{"0": "a", "1": "b", "length": 2}')),
    ):  # fmt: skip
        for value in values:
            page.open(text=TEXT, **{name: value})
            assert page.text(".notice") == f"Not understood in the address: {name}.", value
            assert page.state()["edits"] == {}
    markup = '"><img src=x onerror="streamscope=1">'
    page.open(text=TEXT, compare=json.dumps(["monkey", markup]))
    assert f"of {markup}, log-odds" in page.text(".verdict")
    assert page.page.locator("main img").count() == 0


def test_heads_and_places_of_an_address_are_spelled_out(page: Page, models: dict[str, Any]) -> None:
    """As `--edit` reads them; a name that stands for nothing is not in the sentence about what is changed."""
    edits = {
        "heads": {"L1.*": {"alpha": 4}, "L3-4.H1-2": {"scale": 0}, "*.H9": {"scale": 0}},
        "mixing": ["*.v", "L2-9.o"],
    }
    page.open(text=TEXT, edits=edits)
    fitting = {"heads": {name: edits["heads"][name] for name in ("L1.*", "L3-4.H1-2")}, "mixing": ["*.v"]}
    assert_logits(page, models["lfa"], TEXT, edits_of(fitting, models["lfa"]))
    assert page.do("streamscope.columns[0].edits") == spelled_out(fitting, models["lfa"].config)
    assert page.text(".changes .lead").startswith("With these 11 changes, the next token")
    assert page.page.locator(".chip.idle").all_inner_texts() == ["*.H9 off"]
    page.open(text=TEXT, edits={"heads": {"L02.H1": {"scale": 0}, "L1-0.H0": {"scale": 0}, HEAD: {"alpha": 1e-50}}})
    assert page.do("streamscope.columns[0].edits") == {} and page.page.locator(".chip.idle").count() == 3
    page.open(text=TEXT, second="gpt2", edits={"streams": {"token": "unembedding"}})
    assert page.text(".changes .lead").endswith("; in stories/gpt2: nothing is changed.")
    page.open(text=TEXT, second="gpt2", edits={"streams": {"token": "unembedding"}, **OFF})
    assert "; in stories/gpt2, with 1 of them: “" in page.text(".changes .lead")


def test_what_an_address_names_and_the_page_has_not_is_said(page: Page) -> None:
    page.open(text=TEXT, model="gpt2", head="L6.H0", lens="context", step=1000, share=0.5, token=200)
    assert page.text(".notice") == (
        "In the address, but not in what is shown: head L6.H0, lens context, step 1000, share 0.5. "
        "Token 200 is not in this text: none is locked."
    )
    assert page.state()["step"] is page.state()["token"] is None
    page.open(text=TEXT, token=2, key=3)
    assert page.text(".notice") == "In the address, but not in what is shown: key 3."
    assert page.state()["token"] == 2 and page.state()["key"] is None


def test_an_address_with_a_text_that_no_model_reads_says_so_until_another_is_typed(page: Page) -> None:
    for text, line in (
        ("", "Type at least one word."),
        ("dog " * 300, r"\d+ of 128 tokens: stories/lfa reads no longer text, so shorten it\."),
    ):
        page.open(text=text, grid="effect")
        assert re.fullmatch(line, page.text(".notice")) and not page.page.locator(".stage").is_visible()
    page.field.fill("Lily had a dog. She")
    page.page.wait_for_selector(".legend:has-text('Strongest on the ln p of')")
    assert not page.page.locator(".notice").is_visible()


def test_two_models_side_by_side_take_the_same_changes(page: Page, models: dict[str, Any]) -> None:
    page.open(text=TEXT, second="gpt2", head=HEAD, edits=OFF | {"streams": {"context": "everywhere"}})
    for column, name, edits in (
        (0, "lfa", replace_at("context", zero, "everywhere", "", 6) | off(HEAD)),
        (1, "gpt2", off(HEAD)),
    ):
        assert_logits(page, models[name], TEXT, edits, column)
    stages = page.page.locator(".stage")
    assert stages.count() == 2 and page.page.locator(".controls").count() == 1
    assert "stories/gpt2" in page.page.locator(".stage h2").nth(1).inner_text()
    assert "this model has one residual stream" in page.text(".changes"), "the other model takes what it has"
    boxes = [stages.nth(i).bounding_box() for i in (0, 1)]
    assert boxes[0]["y"] == boxes[1]["y"] and boxes[0]["x"] < boxes[1]["x"]
    page.choose("Compare with", "")
    assert stages.count() == 1


@pytest.mark.slow
def test_the_slider_shows_the_weights_of_a_training_step(page: Page) -> None:
    page.open(text=TEXT)
    model = load("stories/lfa@1000")
    assert page.text(".steps output") == "7,200"
    page.page.get_by_label("Training step").last.fill("0")
    page.ready()
    assert page.text(".steps output") == "1,000" and page.state()["step"] == 1000
    assert_logits(page, model, TEXT)
    page.choose("Compare with", "gpt2")
    assert page.state()["step"] is None, "other models have other steps"
    page.open(text=TEXT, step=900)
    assert page.text(".steps output") == "1,000", "the step whose weights are shown"
    assert_logits(page, model, TEXT)


def test_both_orders_of_a_sentence_are_one_click_apart(page: Page) -> None:
    page.open(text="Lily had a red ball.")
    swap = page.page.get_by_role("button", name="Swap order")
    assert not swap.is_visible()
    page.choose("Sentences of the suites", "0")
    assert re.fullmatch(r"firmly is ahead of twice, log-odds \+\d+\.\d\d", page.text(".verdict"))
    for case in (0, 1, 0):
        assert page.ready().state()["text"] == CASES[case]["text"]
        swap.click()
    page.ready()


def test_the_lens_reads_each_stream_by_layer(page: Page, models: dict[str, Any], answers: Answers) -> None:
    page.open(text=TEXT)
    model = models["lfa"]
    logits = in_torch(model, TEXT)[1]
    top = torch.tensor(logits).softmax(-1).max(-1)
    page.page.wait_for_selector(".lens td")
    last = page.page.locator('.lens td[data-row="6"]')
    pieces = model.tokenizer.pieces(top.indices.tolist())
    assert last.count() == len(logits)
    for t in (5, 20, len(logits) - 1):
        assert last.nth(t).inner_text() == re.sub("^ ", "·", pieces[t])
        assert float(last.nth(t).get_attribute("data-p")) == pytest.approx(top.values[t].item(), abs=1e-4)
    last.nth(len(logits) - 1).hover()
    assert page.page.locator(".tip .rows li").count() == 5
    before = last.all_inner_texts()
    page.page.locator(".lens").get_by_role("button", name="token", exact=True).click()
    for _ in range(100):
        if last.all_inner_texts() == before:
            page.page.wait_for_timeout(50)
    assert last.all_inner_texts() != before, "the frozen stream alone predicts something else"


def test_the_lens_of_the_text_before_is_dimmed(page: Page) -> None:
    page.open_lens(text=TEXT)
    page.do("""() => {
      const { engine } = streamscope.columns[0], { run } = engine;
      const held = new Promise(done => { globalThis.go = done; });
      engine.run = async (...given) => {
        const found = await run(...given), { lens } = found;
        return { ...found, lens: stream => held.then(() => lens(stream)) }; }; }""")
    page.field.fill("Lily had a dog. She")
    page.page.wait_for_function("() => streamscope.columns[0].text === 'Lily had a dog. She'")
    page.ready()
    opacity = "() => Number(getComputedStyle(document.querySelector('.lens .body')).opacity)"
    page.page.wait_for_function(f"() => ({opacity})() < 0.5")
    assert page.page.locator(".lens tr").first.inner_text() != "" and page.page.locator(".stage .token").count() < 10
    page.do("go()")
    page.page.wait_for_selector(".lens:not(.stale) th:text-is('dog')")
    assert page.do(opacity) == 1


def test_bytes_and_marks_that_no_font_draws_are_written_as_codes(page: Page) -> None:
    page.open_lens(text="Tim \U0001f642 saw\x07 a\u200b\ufeff dog. It", second="gpt2")
    words = page.page.locator(".stage").first.locator(".word").all_inner_texts()
    assert {"\\xf0", "\\x9f", "\\x07"} <= set(words), words
    shown = page.do("""[...document.querySelectorAll('.panels *')].flatMap(e => [...e.childNodes])
      .filter(e => e.nodeType === 3).map(e => e.data).join('')""")
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u200b\ufeff]", shown)
    assert re.search(r"\\x[0-9a-f]{2}", page.text(".lens table"))


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize(("layers", "heads"), [(30, 9), (4, 32)])
def test_all_layers_and_heads_of_a_large_model_are_in_sight(chromium: Any, width: int, layers: int, heads: int) -> None:
    shape = {"n_layers": layers, "n_heads": heads, "d_model": heads * 4, "d_vocab": 2048, "n_ctx": 128}
    model = build("gpt2", "tiny", tokenizer=load("stories/gpt2").tokenizer, **shape)
    with opened(chromium, answered(Shown("large", "large", model)), viewport={"width": width, "height": 900}) as page:
        page.open(text="Lily had a dog. She")
        grid = page.do("""() => { const e = document.querySelector('.grid');
          return { wide: e.scrollWidth - e.clientWidth, high: e.scrollHeight - e.clientHeight,
            kind: e.className }; }""")
        assert page.page.locator(".thumb").count() == layers * heads and grid["high"] <= 1
        assert grid["wide"] <= 1 or (width == 390 and heads == 32 and "more-right" in grid["kind"])
        page.page.wait_for_selector(".lens td")
        page.page.locator(".lens td").last.scroll_into_view_if_needed()
        page.thumb(f"L{layers - 1}.H{heads - 1}").click()
        assert page.state()["head"] == f"L{layers - 1}.H{heads - 1}"
        boxes = page.page.locator(".lens th").first.bounding_box(), page.page.locator(".lens .scroll").bounding_box()
        assert boxes[0]["y"] >= boxes[1]["y"] - 1, "the words stay above the column"
        assert page.do("document.documentElement.scrollWidth") <= width


def test_a_link_is_copied_without_the_clipboards_permission_and_lines_are_shown_without_a_copy(page: Page) -> None:
    page.page.add_init_script("const real = navigator.clipboard; globalThis.pasted = () => real.readText()")
    page.page.add_init_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    page.open(text='He said "hi"\n\\ and 😀 left. She')
    page.press("Copy link")
    page.page.wait_for_selector(".copied:text-is('Copied')")
    assert page.page.locator("dialog, .unseen").count() == 0
    assert page.do("pasted()") == page.page.url
    page.do("document.execCommand = () => false")
    page.press("Copy as Python")
    assert page.text("dialog .hint") == "Press Ctrl+C to copy it.", "as where a browser forbids the clipboard"
    space: dict[str, Any] = {}
    exec(page.page.locator("dialog textarea").input_value(), space)
    losses = page.do("Array.from(streamscope.columns[0].losses).slice(1)")
    np.testing.assert_allclose(space["loss"].detach(), losses, atol=1e-4)


def test_nothing_typed_is_markup(page: Page) -> None:
    text = "<img src=x onerror=alert(1)> \"'&amp;</script><script>alert(2)</script> \u202eאבג\u202c 😀 {{x}}"
    page.open(text=text, second="gpt2")
    assert page.field.input_value() == text
    assert page.page.locator("main :is(img, script, iframe, object, b)").count() == 0
    words = page.page.locator(".stage").first.locator(".token .word").all_inner_texts()
    assert "img" in "".join(words) and "<" in "".join(words)
    page.token(3).hover()
    page.press("Copy as Python")
    assert page.page.locator("main :is(img, script, iframe, object)").count() == 0
    policy = page.page.locator("meta[http-equiv]").get_attribute("content")
    assert "default-src 'none'" in policy and "unsafe-inline" not in policy and "'unsafe-eval'" not in policy


def test_no_module_parses_markup() -> None:
    text = bundle.script() + bundle.script("notebook.js")
    parsers = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser", "eval(", "new Function")
    assert not [word for word in (*parsers, "createContextualFragment", "setHTML", "srcdoc") if word in text]


def test_text_that_the_model_cannot_read_is_refused_in_one_line(page: Page, models: dict[str, Any]) -> None:
    page.open(text=TEXT)
    shown = page.array("logits")
    page.field.fill("one two " * 100)
    page.page.wait_for_selector(".notice:visible")
    said = page.text(".notice")
    assert re.fullmatch(
        r"\d+ of 128 tokens: stories/lfa reads no longer text, so shorten it\. The last text that fitted is shown\.",
        said,
    )
    np.testing.assert_array_equal(page.array("logits"), shown)
    page.edit(OFF)  # acts on the text that is shown
    assert_logits(page, models["lfa"], TEXT, off(HEAD))
    assert page.text(".changes .lead").startswith("Without L1.H5, the next token becomes “twice” instead of “firmly”")
    assert page.text(".notice") == said and json.dumps(TEXT) in page.do("streamscope.python()")
    page.field.fill("")
    page.page.wait_for_selector(".notice:has-text('Type at least one word.')")
    page.field.fill("Lily")
    page.page.wait_for_selector(".notice", state="hidden")


@pytest.mark.slow
def test_a_card_is_saved_as_svg_and_png(page: Page, tmp_path: Path) -> None:
    page.open(text=TEXT, head="L5.H4", edits=OFF)
    for card in ("stage", "heads", "next", "lens"):
        node = page.page.locator(f".card.{card}")
        for kind in ("SVG", "PNG"):
            node.hover()
            with page.page.expect_download() as waiting:
                node.get_by_role("button", name=kind, exact=True).click()
            path = tmp_path / waiting.value.suggested_filename
            waiting.value.save_as(path)
            assert path.name == f"lfa-{card}.{kind.lower()}"
            raw = path.read_bytes()
            assert raw.startswith(b"<svg" if kind == "SVG" else b"\x89PNG") and len(raw) > 2000
            if kind == "SVG":
                assert "stories/lfa" in raw.decode() and "Without L1.H5" in raw.decode()
    svg = (tmp_path / "lfa-stage.svg").read_text()
    assert ">firmly<" in svg and svg.count("<path") >= 3 and "class=" not in svg
    assert ">L0<" in (tmp_path / "lfa-lens.svg").read_text() and ">start<" in (tmp_path / "lfa-lens.svg").read_text()
    svg = (tmp_path / "lfa-next.svg").read_text()
    assert "firmly" in svg and ">Compare<" not in svg, "no label of a field that is left out"


def test_a_saved_picture_of_heads_has_all_layers(page: Page) -> None:
    page.open(text=TEXT)
    page.do("document.querySelector('.grid').style.setProperty('--heads', '1')")  # two columns, higher than the card
    svg = page.saved("heads").read_text()
    height = float(re.findall(r'height="([0-9.]+)"', svg)[0])
    images = [float(y) for y in re.findall(r'<image [^>]*?y="([0-9.]+)"', svg)]
    texts = [(float(y), text) for y, text in re.findall(r'<text [^>]*?y="([0-9.]+)"[^>]*>([^<]*)', svg)]
    below = [text for y, text in texts if y > max(images)]
    assert len(images) == 36 and below and max(y for y, _ in texts) < height
    assert not any("Point at" in text for text in below), f"a picture has no pointer: {below}"
    accent = page.do("getComputedStyle(document.querySelector('.thumb.chosen')).outlineColor")
    assert svg.count(f'stroke="{accent}"') == 1, "the chosen head has a frame"


def test_a_saved_picture_has_the_numbers_of_the_arcs_and_the_badge(page: Page) -> None:
    page.open(text=TEXT, head="L5.H4", edits={"heads": {"L5.H4": {"scale": 0}}})
    badge, weights = page.page.locator(".badge").last, page.page.locator(".lines .weight").all_text_contents()
    ink = badge.evaluate("e => getComputedStyle(e).backgroundColor")
    svg = page.saved("stage").read_text()
    assert f'fill="{ink}"' in svg and ">off<" in svg
    for weight in weights:
        letters = re.findall(rf"<text ([^>]*)>{re.escape(weight)}</text>", svg)
        assert any('stroke="none"' in one and 'fill="none"' not in one for one in letters), letters
    assert len(weights) >= 1 and "paint-order" not in svg
    said = re.sub(r"\s+", " ", " ".join(re.findall(r">([^<]+)</text>", svg)))
    assert (
        "stories/lfa: Mom knew of a box" in said and "Without L5.H4, the next token" in said and said.endswith("nats.")
    )


def test_the_lens_can_be_read_when_the_theme_changes(page: Page) -> None:
    page.open_lens(text=TEXT)
    script = """[...document.querySelectorAll('.lens td')].map(e => {
        const { color, backgroundColor } = getComputedStyle(e); return [color, backgroundColor]; })"""
    for scheme in ("dark", "light"):
        page.page.emulate_media(color_scheme=scheme)
        for _ in range(10):  # cells are drawn anew, which takes a while on a busy machine
            page.page.wait_for_timeout(300)
            if (lowest := min(contrast(*pair) for pair in page.do(script))) > 4.5:
                break
        assert lowest > 4.5, scheme


def test_bars_of_two_models_have_one_scale(page: Page) -> None:
    page.open(text=TEXT, second="gpt2", edits={"heads": {"L5.H4": {"scale": 0}, "L1.H5": {"scale": 0}}})
    bars = """[...document.querySelectorAll('.pairs li')].map(e =>
        [e.dataset.after, e.querySelector('.after').style.getPropertyValue('--share')].map(Number))"""
    moved = """streamscope.columns.map(({ shift }, i) =>
        [...document.querySelectorAll('.card.heads')[i].querySelectorAll('.moved')]
        .map((e, at) => [shift[at], Number(e.style.getPropertyValue('--share'))])).flat()"""
    for script, least in ((bars, 0.02), (moved, 0.1)):
        scales = [size / share for size, share in page.do(script) if share > least]
        assert len(scales) > 2 and max(scales) == pytest.approx(min(scales), rel=1e-2)


def test_a_page_that_is_hidden_while_something_changes_writes_no_error(page: Page) -> None:
    page.open(text=TEXT)
    for style in ("display: none", "width: 0; padding: 0; overflow: hidden"):
        page.page.evaluate("style => { document.querySelector('main').style.cssText = style; }", style)
        page.page.evaluate("edits => streamscope.setEdits(edits)", OFF)
        page.page.wait_for_function("() => document.querySelector('main').dataset.state === 'ready'")
        page.do("streamscope.lock(5, null)")
        page.do("streamscope.lock(5, null)")
        page.do("streamscope.setEdits({})")
        page.page.wait_for_function("() => document.querySelector('main').dataset.state === 'ready'")
    page.do("document.querySelector('main').style.cssText = ''")
    page.page.wait_for_function("() => document.querySelectorAll('.lines path').length > 3")


def test_a_locked_token_keeps_the_answers_and_says_how_to_unlock(page: Page) -> None:
    page.open(text=TEXT, edits=OFF)
    verdict, sentence = page.text(".verdict"), page.text(".changes .lead")
    page.token(5).click()
    page.page.mouse.move(2, 2)
    assert page.text(".verdict") == verdict and page.text(".changes .lead") == sentence
    assert page.text(".status").startswith("Locked, Esc unlocks: ")
    page.page.keyboard.press("Escape")
    assert page.state()["token"] is None and "Locked" not in page.text(".status")
    page.open(text="Lily had a dog. She", token=3)
    assert page.text(".next h2") == f"Next token after “{page.token(3).locator('.word').inner_text()}”", (
        "of one's own text, the token after the locked one"
    )


def test_digits_agree_and_nothing_covers_the_lens(page: Page) -> None:
    page.open(text=TEXT, edits={"heads": {"L0.H1": {"scale": 0.9}}})
    shown = re.search(r"\((.+ → .+)\)", page.text(".changes .lead"))
    values = page.page.locator(".pairs .value").all_inner_texts()
    assert shown and shown[1] in values
    ticks = page.page.locator(".track .tick")
    assert ticks.all_inner_texts() == ["0", "1"]
    page.page.get_by_label("Scale", exact=True).fill("0")
    page.ready()
    page.page.wait_for_selector(".lens td")
    for card in ("stage", "heads", "next", "lens"):
        page.page.locator(f".card.{card}").hover()
        saving, body = (page.page.locator(f".card.{card} {part}").bounding_box() for part in (".saving", ".body"))
        assert saving["y"] + saving["height"] <= body["y"] + 1, card


def test_the_lens_stays_at_its_token_when_the_stream_changes(page: Page) -> None:
    page.page.set_viewport_size({"width": 700, "height": 900})
    page.open_lens(text=TEXT)
    first = """() => { const scroll = document.querySelector('.lens .scroll');
      return [...scroll.querySelectorAll('th[scope=col]')].findLastIndex(e => e.offsetLeft <= scroll.scrollLeft); }"""
    page.do("const box = document.querySelector('.lens .scroll'); box.scrollLeft = box.scrollWidth * 0.4; 0")
    before = page.do(first)
    assert before > 2
    for stream in ("token", "context", "sum"):
        page.page.locator(".lens").get_by_role("button", name=stream, exact=True).click()
        page.page.wait_for_timeout(400)
        assert page.do(first) == before, stream


def test_a_saved_sentence_of_two_rows_keeps_its_lines_on_its_words(page: Page) -> None:
    page.page.set_viewport_size({"width": 600, "height": 900})
    page.open(text=TEXT, head="L5.H4", edits={"heads": {"L5.H4": {"scale": 0}}})
    assert len(set(page.do("[...document.querySelectorAll('.token')].map(e => e.offsetTop)"))) > 1
    svg = page.saved("stage").read_text()
    rows = {y for x, y in re.findall(r'x="([\d.]+)" y="([\d.]+)"[^>]*>(?:tool|pencil|twice|box|firmly)<', svg)}
    assert len(rows) > 1 and "<title>Layer 5, head 4 off: Mom" in svg


def test_enter_runs_the_text_and_shift_enter_begins_a_line(page: Page) -> None:
    page.open(text="Lily")
    field = page.field
    field.fill("Lily had a dog.")
    field.press("End")
    field.press("Enter")
    page.page.wait_for_function("() => streamscope.state.text === 'Lily had a dog.'")
    assert field.input_value() == "Lily had a dog."
    field.press("Shift+Enter")
    page.page.wait_for_function("() => streamscope.state.text === 'Lily had a dog.\\n'")


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_runs_over_the_edge_and_words_can_be_read(
    chromium: Any, answers: Answers, width: int, scheme: str
) -> None:
    script = """() => [...document.querySelectorAll('main :is(p, h1, h2, h3, span, button, small, td, th, output)')]
      .filter(e => [...e.childNodes].every(n => n.nodeType === 3) && e.textContent.trim() && e.offsetParent)
      .filter(e => !e.closest(':disabled, [hidden], .tip'))
      .map(e => { let b = e, back = 'rgba(0, 0, 0, 0)';
        while (b && /, 0\\)$/.test(back = getComputedStyle(b).backgroundColor)) b = b.parentElement;
        return [e.className + ' ' + e.textContent, getComputedStyle(e).color, back]; })"""
    with opened(chromium, answers, viewport={"width": width, "height": 800}, color_scheme=scheme) as page:
        page.open(text=TEXT, edits=OFF, head="L5.H4")
        assert page.do("document.documentElement.scrollWidth") <= width
        assert not [text.strip() for text, ink, ground in page.do(script) if contrast(ink, ground) < 4.5]


@pytest.mark.parametrize("touch", [False, True])
def test_keys_are_named_where_there_may_be_a_keyboard(chromium: Any, answers: Answers, touch: bool) -> None:
    with opened(chromium, answers, viewport={"width": 390, "height": 800}, has_touch=touch, is_mobile=touch) as page:
        page.open(text=TEXT)
        shown = page.do("[...document.querySelectorAll('.keys')].map(e => e.offsetParent !== null)")
        assert shown == [not touch] * 2 and "Choose a head below and turn it off." in page.text(".changes")


def contrast(one: str, other: str) -> float:
    """Contrast of two colours (WCAG 2), 1 to 21."""

    def light(colour: str) -> float:
        scale = 1 if colour.startswith("color(") else 255
        channels = [float(x) / scale for x in re.findall(r"[\d.]+", colour)][:3]
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in channels]
        return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


def test_modules_are_joined_in_the_order_of_their_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.js").write_text('import { two } from "./b.js";\nexport default { two };\n')
    (tmp_path / "b.js").write_text("export const two = 2;\nfunction hidden() {}\n")
    monkeypatch.setattr(bundle, "STATIC", tmp_path)
    text = bundle.script.__wrapped__("a.js")
    assert text.index("const two = 2") < text.index("const { two } = module_b;")
    assert text.endswith("export default module_a.default;\n")


def test_the_server_is_named_when_it_does_not_answer(chromium: Any, answers: Answers) -> None:
    context = chromium.new_context()
    context.route("**/*", lambda route: answers(route) if route.request.method == "GET" else route.abort())
    page = Page(context.new_page()).open(ADDRESS)
    stopped = "The server does not answer: is `streamscope view` still running?"
    assert page.text(".notice") == stopped
    context.route("**/*", answers)  # a later route goes first: a request between two routes would wait for the network
    page.open(ADDRESS, text=TEXT)
    assert not page.page.locator(".notice").is_visible()
    context.route("**/*", lambda route: route.abort())
    page.edit(OFF)
    assert page.text(".notice") == stopped
    assert page.text(".changes .lead") == "", "no effect is named that was not computed"
    context.close()


def test_pointing_at_a_token_finds_the_heads_that_attend_to_it(page: Page, models: dict[str, Any]) -> None:
    page.open(text=TEXT)
    words = page.page.locator(".token .word").all_inner_texts()
    noun, last = words.index("firmly"), len(words) - 1
    shares = in_torch(models["lfa"], TEXT)[2][:, :, last, noun].ravel()
    page.token(noun).hover()
    best = [(f"L{at // 6}.H{at % 6}", shares[at]) for at in np.argsort(-shares)[:3]]
    expected = [f"{head} {share:.2f}".replace(" 0.", " .") for head, share in best]
    assert page.page.locator(".finders button").all_inner_texts() == expected
    assert page.text(".finders").startswith("Attention from “it” to “firmly”:")
    page.token(noun).click()
    page.page.locator(".finders button").first.click()
    assert page.state()["head"] == best[0][0] and page.state()["token"] == noun
    page.token(last - 5).hover()  # from the one to the locked
    assert page.text(".finders").startswith(f"Attention from “{words[last - 5]}” to “firmly”:")


def test_a_page_begins_with_the_head_that_its_first_text_needs_most(
    chromium: Any, models: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the heads, the one whose ablation lowers the log-odds of the case most; of a larger model one of a few."""
    shown, heads = [Shown("stories/lfa", "lfa", models["lfa"])], [Head(i, j) for i in range(6) for j in range(6)]
    data = page_data(shown, "server", TEXT)
    case = data["models"][0]["suites"][0]["cases"][9]
    encode = models["lfa"].tokenizer.encode
    words = [encode(case[name][0], bos=False)[0] for name in ("answers", "foils")]

    def odds(edits: dict[str, Any]) -> float:
        right, wrong = in_torch(models["lfa"], case["text"], edits)[1][-1][words]
        return float(right - wrong)

    change = {f"L{head.layer}.H{head.head}": odds(scale_heads([head], 0.0)) - odds({}) for head in heads}
    needed = min(change, key=lambda name: change[name])
    assert strongest_head(models["lfa"], case) == needed and change[needed] < -1
    monkeypatch.setattr(describe, "ABLATED", 1000)
    assert change[strongest_head(models["lfa"], case)] < change[needed] / 3, "screened by the gradient"
    with opened(chromium, answered(*shown, text=case["text"], state=None)) as page:
        assert page.open().state()["head"] == strongest_head(models["lfa"], case)
    assert (
        data["models"][0]["start"]["text"] == TEXT
        and "start" not in page_data(shown, "server", state={"head": "L0.H0"})["models"][0]
    )


def test_another_text_begins_with_the_head_that_attends_most_to_the_answer(page: Page, models: dict[str, Any]) -> None:
    page.open(text=TEXT)
    pattern = in_torch(models["lfa"], TEXT)[2]
    noun = page.page.locator(".token .word").all_inner_texts().index("firmly")
    layer, head = divmod(int(pattern[:, :, -1, noun].argmax()), 6)
    assert page.state()["head"] == f"L{layer}.H{head}" and page.text(".title") == f"Layer {layer}, head {head}"
    page.token(3).click()
    assert f"head=L{layer}.H{head}" in page.page.url, "a link shows the same head whatever is typed"


def test_the_widget_takes_and_gives_edits_and_text(chromium: Any, models: dict[str, Any]) -> None:
    view = View("stories/lfa", TEXT)
    view.edits = OFF
    context = chromium.new_context()
    page = Page(context.new_page())

    def ask(message: dict[str, Any]) -> list[Any]:
        answer = view._session.answer(message["kind"], message)
        packed = isinstance(answer, bytes)
        return [
            {"id": message["id"]} | ({} if packed else answer),
            base64.b64encode(answer).decode() if packed else None,
        ]

    context.expose_function("ask", ask)
    page.page.evaluate(
        """async ([source, style, values]) => {
      document.head.append(Object.assign(document.createElement("style"), { textContent: style }));
      const on = {};
      const widget = { values, saved: 0, get: name => values[name], set: (name, x) => { values[name] = x; },
        save_changes: () => { widget.saved++; }, on: (name, handler) => { on[name] = handler; },
        send: async message => {
          const [content, text] = await ask(message);
          const bytes = Uint8Array.from(atob(text ?? ""), c => c.charCodeAt(0));
          on["msg:custom"](content, text === null ? [] : [new DataView(bytes.buffer)]);
        } };
      const { default: module } = await import(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
      const el = document.createElement("div");
      document.body.append(el);
      module.render({ model: widget, el });
      Object.assign(globalThis, { widget, on });
    }""",
        [bundle.script("notebook.js"), bundle.style(), {"data": view.data, "edits": view.edits, "text": view.text}],
    )
    ready = ".viewer[data-state=ready]"
    page.page.wait_for_selector(ready)
    assert page.text(".chip") == "L1.H5 off" and "instead of “firmly”" in page.text(".changes .lead")
    assert page.page.get_by_role("button", name="Copy link").count() == 0, "a notebook's address holds no state"
    page.press("Reset all")
    page.page.wait_for_selector(".changes:has-text('Nothing is changed')")
    page.page.wait_for_selector(ready)
    assert page.do("widget.values.edits") == {}
    beyond = {"heads": {"L0.H1": {"scale": 3}, "L1.H0": {"alpha": 0.5}}}  # the sliders' ranges
    page.page.evaluate("edits => { widget.values.edits = edits; on['change:edits'](); }", beyond)
    page.page.wait_for_selector(".chip")
    page.page.wait_for_selector(ready)
    assert page.do("widget.values.edits") == beyond
    page.page.evaluate("edits => { widget.values.edits = edits; on['change:edits'](); }", OFF)
    page.page.wait_for_selector(".chip")
    page.field.fill("Lily had a dog. She")
    page.page.wait_for_selector(".score:has-text('Mean loss')")
    page.page.wait_for_timeout(300)
    page.page.wait_for_selector(ready)
    assert page.do("widget.values") | {"data": 0} == {"data": 0, "edits": OFF, "text": "Lily had a dog. She"}
    page.field.fill("dog " * 200)
    page.page.wait_for_selector(".notice:visible")
    assert page.do("widget.values.text") == "Lily had a dog. She", "what is refused is not handed on"
    assert page.console == []
    context.close()
