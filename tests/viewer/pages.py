"""The live page in a system Chromium, for the tests: pages that models answer, and what they show."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd
import pytest
import torch

from streamscope.cli.errors import InputError
from streamscope.interventions.circuits.formats import write_circuit
from streamscope.interventions.circuits.graph import graph_of
from streamscope.interventions.circuits.worth import SHARES, size_of, top
from streamscope.models.dictionaries import Dictionary, write_dictionary
from streamscope.models.lenses import Map, weights_digest
from streamscope.models.tensors import write_tensors
from streamscope.viewer import bundle
from streamscope.viewer.screenshot import ADDRESS, Answers, chromium
from streamscope.viewer.session import Session, Shown, page_data

TOOL, BOX = "a tool, a pencil, best used twice", "a box, a case, best used firmly"
CASES = [
    {
        "text": f"Mom knew of {first}, and of {second}. Grandma packed the buttons into it", "pair": "told",
        "order": order, "answers": [" firmly"], "foils": [" twice"],
    }
    for order, first, second in (("target_first", BOX, TOOL), ("target_last", TOOL, BOX))
]  # fmt: skip
TEXT = CASES[0]["text"]


@contextmanager
def browser() -> Iterator[Any]:
    """A Chromium of the system; skips in one line where there is none."""
    try:
        with chromium() as found:
            yield found
    except InputError as error:
        pytest.skip(f"{error}; tests of the live page are left out")


def answered(*shown: Shown, text: str = "", state: Any = MappingProxyType({}), suites: bool = False) -> Answers:
    """A page of models and this process's answers, perhaps with the two sentences of the tests."""
    data = page_data(shown, "server", text, state=state)
    for model in data["models"] if suites else ():
        model["suites"] = [{"name": "nouns", "title": "Two nouns", "cases": CASES}]
    return Answers(Session(shown), bundle.page(data))


@contextmanager
def opened(chromium: Any, answers: Any = None, **options: Any) -> Iterator["Page"]:
    """A page in a context of its own, whose questions are answered; it must write nothing to the console."""
    context = chromium.new_context(**options)
    if answers is not None:
        context.route("**/*", answers)
    page = Page(context.new_page())
    yield page
    assert page.console == []
    context.close()


def write_circuit_of(path: Path, model: Any, curve: bool = True) -> pd.DataFrame:
    """Random scores of all edges, the best 2 % in the circuit, and f = √k; returns the edges, largest score first."""
    names = graph_of(model).names
    scores = np.random.default_rng(3).normal(size=len(names))
    edges = pd.DataFrame({"edge": names, "score": scores, "in_graph": top(scores, size_of(0.02, len(names)), "size")})
    f = pd.DataFrame({"share": SHARES, "edges": [size_of(k, len(names)) for k in SHARES], "f": np.sqrt(SHARES)})
    f = f.assign(f_low=f["f"] - 0.1, f_high=f["f"] + 0.1, random=f["f"] / 2 - 0.052)
    f.loc[0, ["f", "f_low", "f_high"]] = np.nan
    c = model.config
    cfg = {"n_layers": c.n_layers, "n_heads": c.n_heads, "d_model": c.d_model, "parallel_attn_mlp": False}
    write_circuit(edges, cfg, path, f if curve else None)
    return edges.iloc[np.argsort(-np.abs(scores))].reset_index(drop=True)


def write_lens_of(path: Path, model: Any, places: Sequence[str], scale: float = 0.3) -> dict[str, Map]:
    """A file with random maps of the kind tuned near the identity, which is the map for `scale` 0."""
    generator, d = torch.Generator().manual_seed(7), model.cfg.d_model
    noise = [scale * torch.randn(d + 1, d, generator=generator) / d**0.5 for _ in places]
    maps = {place: Map(torch.eye(d) + x[:d], x[d]) for place, x in zip(places, noise, strict=True)}
    tensors = {f"tuned.{place}.{part}": getattr(lens, part) for place, lens in maps.items() for part in ("A", "b")}
    write_tensors(path, tensors, {"about": json.dumps({"weights_digest": weights_digest(model)})})
    return maps


def write_dictionary_of(
    folder: Path, model: Any, hook: str, target: str = "", stream: str = "", width: int = 40
) -> Dictionary:
    """A dictionary of random weights in a folder."""
    d, generator = model.config.d_model, torch.Generator().manual_seed(7)
    weights = [torch.randn(size, generator=generator) / 3 for size in ((d, width), (width,), (width, d), (d,))]
    found = Dictionary(*weights, torch.full((width,), 0.3), hook=hook, target=target or hook, stream=stream,
                       about={"weights_digest": weights_digest(model)})  # fmt: skip
    write_dictionary(folder, found)
    return found


class Page:
    """A page at work: what it shows as text and as numbers, and what it wrote to the console."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.console: list[str] = []
        page.on("console", lambda message: self.console.append(message.text))
        page.on("pageerror", lambda error: self.console.append(str(error)))

    def open(self, address: str = ADDRESS, **state: Any) -> "Page":
        words = [f"{key}={quote(json.dumps(x) if isinstance(x, dict) else str(x))}" for key, x in state.items()]
        self.page.goto("about:blank")
        self.page.goto(f"{address}#{'&'.join(words)}")
        return self.ready()

    def open_lens(self, **state: Any) -> "Page":
        """The page with the lens's numbers, which come later."""
        self.open(**state).page.wait_for_selector(".lens td")
        return self

    def ready(self) -> "Page":
        self.page.wait_for_selector("main[data-state=ready]")
        return self

    def do(self, script: str) -> Any:
        return self.page.evaluate(script)

    def text(self, selector: str) -> str:
        return self.page.locator(selector).first.inner_text()

    def state(self) -> dict[str, Any]:
        return self.do("streamscope.state")

    def array(self, name: str, column: int = 0, answer: str = "result") -> np.ndarray:
        """Numbers that the page holds: logits and patterns of an answer."""
        return np.array(self.do(f"Array.from(streamscope.columns[{column}].{answer}.{name})"), np.float32)

    def press(self, name: str, exact: bool = False) -> "Page":
        self.page.get_by_role("button", name=name, exact=exact).click()
        return self

    def choose(self, label: str, option: str) -> "Page":
        self.page.get_by_label(label).select_option(option)
        return self.ready()

    def edit(self, edits: dict[str, Any]) -> "Page":
        self.page.evaluate("edits => streamscope.setEdits(edits)", edits)
        return self.ready()

    @property
    def field(self) -> Any:
        return self.page.get_by_label("Text", exact=True)

    def saved(self, card: str) -> Path:
        node = self.page.locator(f".card.{card}")
        with self.page.expect_download() as waiting:
            node.hover(position={"x": 20, "y": 20})
            node.get_by_role("button", name="SVG").click()
        return Path(waiting.value.path())

    def token(self, at: int) -> Any:
        return self.page.locator(".token").nth(at)

    def thumb(self, head: str) -> Any:
        return self.page.locator(f'.thumb[data-head="{head}"]').first

    def classes(self, at: int) -> set[str]:
        return set((self.token(at).get_attribute("class") or "").split())
