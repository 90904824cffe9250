"""Drives the live page in a Chromium, and the server's session in this process."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from streamscope.benchmarks.viewer import Options
from streamscope.cli.errors import InputError
from streamscope.cli.terminal import print_grid
from streamscope.instruments.prompts import load_suite
from streamscope.models.hooks.controls import edits_of
from streamscope.viewer.page import write_page
from streamscope.viewer.screenshot import chromium
from streamscope.viewer.session import Session, open_models

AT_THE_SERVER = 32
"""Tokens of an edit at the server."""


def measure(options: Options) -> None:
    torch.set_num_threads(options.threads)
    rows = [*page_rows(options), server_row(options)]
    print(f"load of this machine: {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores; medians of {options.rounds}")
    print_grid(("what", "median", "least", "most"), rows)


def page_rows(options: Options) -> list[tuple[str, ...]]:
    """Size, start, and update and draw at every length."""
    shown = open_models([options.run])
    texts = [text_of(shown[0].model, length) for length in options.lengths]
    with TemporaryDirectory() as folder, chromium() as browser:
        path = Path(folder) / "page.html"
        write_page(shown, path, texts[0])
        rows: list[tuple[str, ...]] = [(f"file, {options.run}", f"{path.stat().st_size / 1e6:.2f} MB", "", "")]
        starts = []
        for _ in range(min(options.rounds, 5)):
            page = browser.new_context(offline=True).new_page()
            begun = time.perf_counter()
            page.goto(path.as_uri())
            page.wait_for_selector("main[data-state=ready]")
            starts.append(time.perf_counter() - begun)
        rows.append(("start", *seconds(starts)))
        for length, text in zip(options.lengths, texts, strict=True):
            page.evaluate("text => streamscope.set({text})", text)
            updates, draws = [], []
            for i in range(options.rounds + 1):  # the first also computes the text without edits
                edits = {"heads": {"L0.H0": {"scale": i / options.rounds - 1}}}
                page.evaluate("edits => streamscope.setEdits(edits)", edits)
                page.wait_for_selector("main[data-state=ready]")
                updates.append(page.evaluate("streamscope.columns[0].milliseconds") / 1e3)
                draws.append(page.evaluate("streamscope.drawMilliseconds") / 1e3)
            rows.append((f"update at {length} tokens", *seconds(updates[1:])))
            rows.append((f"draw at {length} tokens", *seconds(draws[1:])))
    return rows


def server_row(options: Options) -> tuple[str, ...]:
    """The answers of a session to edits of one head."""
    shown = open_models([options.server])
    session, model = Session(shown), shown[0].model
    tokens = model.tokenizer.encode(text_of(model, AT_THE_SERVER))
    durations = []
    for i in range(options.rounds + 1):
        edits = {"heads": {"L0.H0": {"scale": i / options.rounds - 1}}}
        assert edits_of(edits, model)
        begun = time.perf_counter()
        session.answer("run", {"model": shown[0].identity, "tokens": tokens, "edits": edits})
        durations.append(time.perf_counter() - begun)
    return (f"server at {AT_THE_SERVER} tokens, {options.server}", *seconds(durations[1:]))


def text_of(model: Any, length: int) -> str:
    """Prose of the built-in stories that has this many tokens. Raises `InputError` where the context is shorter."""
    if length > model.config.n_ctx:
        raise InputError(f"--lengths {length} is beyond the model's context of {model.config.n_ctx}")
    words = " ".join(prompt.text for prompt in load_suite("stories", n=12).prompts).split(" ")
    text = ""
    for word in words:
        longer = f"{text} {word}".strip()
        if len(model.tokenizer.encode(longer)) > length:
            break
        text = longer
    while len(model.tokenizer.encode(text)) < length:
        text += " a"
    return text


def seconds(durations: Sequence[float]) -> tuple[str, ...]:
    """Median, least and most, in milliseconds."""
    return tuple(f"{1e3 * x:.1f} ms" for x in (median(durations), min(durations), max(durations)))
