"""The documents on which a run is measured."""

import sys
from pathlib import Path
from typing import Any

from streamscope.cli.disk import Manifest, ValidatedConfig, read_json
from streamscope.cli.errors import InputError
from streamscope.models.run_names import run_label
from streamscope.text import SplitAt
from streamscope.text.corpus import open_corpus
from streamscope.text.shards import TokenShards, pack
from streamscope.text.tokenizer import Tokenizer

VALID_FRACTION = 0.05
ELSEWHERE = "stories:1:200"
"""Data on which models are measured that were trained elsewhere."""


def evaluation_shards(
    folder: Path, tokenizer: Tokenizer, source: str | None, *, text_field: str = "text", split_at: SplitAt = "separator"
) -> TokenShards:
    """Documents to measure a run on: `source`, or the run's own validation data with its own options; for a model that
    was trained elsewhere the built-in stories, which a line on stderr says."""
    if source is not None:
        return pack(open_corpus(source, text_field=text_field, split_at=split_at), tokenizer)
    for name, value, usual in (("text-field", text_field, "text"), ("split-at", split_at, "separator")):
        if value != usual:
            raise InputError(f"--{name} {value} is for --data SOURCE; the run's own data are read as in its training")
    saved, manifest = read_json(folder / "config.json", ValidatedConfig).get("data"), folder / "manifest.json"
    if saved is None and manifest.is_file() and "source" in read_json(manifest, Manifest):
        line = f"{run_label(folder)} was trained elsewhere; measured on {ELSEWHERE} (--data for others)"
        print(line, file=sys.stderr)
        return pack(open_corpus(ELSEWHERE), tokenizer)
    if saved is None:
        raise InputError(f"{run_label(folder)} does not record its training data: give --data SOURCE")
    try:
        options: dict[str, Any] = {"text_field": saved["text_field"], "split_at": saved.get("split_at", "separator")}
        if saved["valid"] is not None:
            shards = pack(open_corpus(saved["valid"], **options), tokenizer)
        else:
            corpus = open_corpus(saved["data"], max_documents=saved["max_documents"], **options)
            share, blocks = saved.get("valid_fraction") or VALID_FRACTION, saved.get("valid_blocks")
            shards = pack(corpus, tokenizer, part="valid", valid_fraction=share, valid_blocks=blocks)
    except InputError as error:
        raise InputError(f"the run's own validation data cannot be read ({error}); give --data SOURCE") from None
    packed = read_json(manifest, Manifest, needs=("argv", "data"))["data"] if manifest.exists() else None
    if packed is not None and packed["valid"]["corpus"] != shards.meta["corpus"]:
        raise InputError(f"the validation data of {folder} changed since it was trained; give --data SOURCE")
    return shards
