"""The live page as one file that opens from disk without a network: graphs, ONNX Runtime and front end."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from streamscope.cli.disk import write_text
from streamscope.cli.errors import InputError
from streamscope.viewer import bundle, runtime
from streamscope.viewer.engine import Watched
from streamscope.viewer.export import graph_of
from streamscope.viewer.session import Shown, page_data

LARGEST = 20_000_000  # parameters of a model that a page may hold; SmolLM2's 135 million would make a page of 400 MB


def html(shown: Sequence[Shown], text: str = "", **options: Any) -> str:
    """The page; the options are those of `page_data`. Raises `InputError` for a model that no page can hold, and where
    ONNX Runtime is not in the cache."""
    for entry in shown:
        size = sum(p.numel() for p in Watched(entry.model, *entry.extras).parameters())
        more = " with its lens and dictionary" if any(entry.extras) else ""
        if size > LARGEST:
            raise InputError(
                f"{entry.name} has {size:,} parameters{more}, too many for a page: drop --out, for the server"
            )
    script, wasm = runtime.read("script").decode(), runtime.read("wasm")
    data, blobs = page_data(shown, "page", text, **options), {"wasm": wasm}
    for entry, description in zip(shown, data["models"], strict=True):
        if description["tokenizer"]["json"] is None:
            raise InputError(
                f"{entry.name}: a page only computes byte-level BPE that splits words as GPT-2 does, and its tokenizer "
                "differs: drop --out, for the server"
            )
        blobs[description["blob"]] = graph_of(entry.model, *entry.extras)
        for snapshot in description["snapshots"]:
            if snapshot["blob"] not in blobs:
                blobs[snapshot["blob"]] = graph_of(entry.at_step(snapshot["step"]))
    return bundle.page(data, blobs, script)


def write_page(shown: Sequence[Shown], out: Path, text: str = "", **options: Any) -> None:
    write_text(out, html(shown, text, **options))
