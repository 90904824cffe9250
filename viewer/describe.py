"""What the live page knows of a model before it runs: sizes, streams, controls with reasons, vocabulary, suites."""

from collections.abc import Iterator
from typing import Any

from streamscope.instruments.about_model import title_of
from streamscope.instruments.prompts import load_suite
from streamscope.models.checkpoint import run_label
from streamscope.models.hooks.controls import Control, controls
from streamscope.viewer.engine import lens_streams

SUITE = "competing-nouns"
"""The suite of the menu: minimal pairs of stories in which two nouns compete for a pronoun, in both orders."""
CASES = 12


def describe(model: Any, *, cases: int = CASES) -> dict[str, Any]:
    """The data of the page, as JSON: `viewer/static/README` lists the fields."""
    config = model.config
    have = controls(config)
    heads = {"scale": "head_scale", "alpha": "alpha", "gate": "gate_keep"}
    others = {"streams": "stream_all", "mixing": "mixing", "h_res": "h_res", "canon": "canon"}
    return {
        "name": run_label(model.run) if getattr(model, "run", None) is not None else title_of(model),
        "about": title_of(model),
        "layers": config.n_layers,
        "heads": config.n_heads,
        "n_ctx": config.n_ctx,
        "vocab": config.d_vocab,
        "streams": list(lens_streams(config)),
        "controls": {
            key: True if isinstance(one := have[name], Control) else one for key, name in (heads | others).items()
        },
        "inputs": [
            {"name": name, "labels": one.labels, "shape": one.shape, "neutral": one.neutral}
            for name, one in have.items()
            if isinstance(one, Control)
        ],
        "tokenizer": tokenizer_of(model),
        "suites": list(suites(model, cases)),
    }


def tokenizer_of(model: Any) -> dict[str, Any] | None:
    """What the page needs to turn text into tokens and back; None for a model without text."""
    tokenizer = model.tokenizer
    if tokenizer is None:
        return None
    return {
        "json": tokenizer.to_json(),
        "bos_id": tokenizer.bos_id,
        "pieces": tokenizer.pieces(range(model.config.d_vocab)),
    }


def suites(model: Any, cases: int) -> Iterator[dict[str, Any]]:
    """The built-in suite of competing nouns, pairs next to each other: for a model that reads stories."""
    if model.tokenizer is None or not cases:
        return
    suite = load_suite("stories", n=cases)
    yield {
        "name": SUITE,
        "cases": [
            {
                "text": prompt.text, "roles": prompt.roles, "pair": prompt.pair, "order": prompt.order,
                "answers": [prompt.coherent], "foils": [prompt.incoherent],
            }
            for prompt in suite.prompts
        ],
    }  # fmt: skip
