"""Hugging Face datasets as sources of text (`text.corpus`): from the hub, its cache or a local folder."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from streamscope.cli.errors import InputError, reading
from streamscope.text import readers


@dataclass(frozen=True, kw_only=True)
class HubDataset:
    """One split of a Hugging Face dataset: streamed from the hub, or read from a local folder."""

    source: str
    name: str
    config: str | None = None
    split: str = "train"

    def corpus(self, text_field: str) -> dict[str, Any]:
        source = self.source
        return {
            "kind": "hub", "texts": lambda: (readers.record_text(row, text_field, source) for row in self.records()),
            "content": cache(lambda: {"text_field": text_field, **self._content()}), "reads": {"text_field"},
        }  # fmt: skip

    def records(self) -> Iterator[dict[str, Any]]:
        import datasets

        revision, folder = self._resolved  # reports a wrong name before any retries
        for path in readers.visible_files(folder) if folder is not None else ():
            readers.check_content(path)
        with reading(self.source, "check the files and the names of config and split"):
            if folder is not None and readers.is_saved(folder):
                rows = datasets.load_from_disk(str(folder))
                if isinstance(rows, datasets.DatasetDict):
                    if self.split not in rows:
                        raise InputError(f"{self.source}: no split {self.split!r}; it has {', '.join(rows)}")
                    rows = rows[self.split]
            else:
                name, commit = (self.name, revision) if folder is None else (str(folder), None)
                rows = datasets.load_dataset(name, self.config, split=self.split, streaming=True, revision=commit)
            yield from rows

    @cached_property
    def _resolved(self) -> tuple[str, Path | None]:
        """The commit, "" of a local folder, and the folder: local, or in the hub's cache if the hub does not answer.

        The cache may hold only some of the files, so `_content` lists them.
        """
        if Path(self.name).is_dir():
            return "", Path(self.name)
        import huggingface_hub

        try:
            return str(huggingface_hub.HfApi().dataset_info(self.name, timeout=20).sha), None
        except Exception as error:  # of the hub client's network library
            try:
                folder = Path(huggingface_hub.snapshot_download(self.name, repo_type="dataset", local_files_only=True))
                return folder.name, folder
            except (OSError, ValueError):  # not in the cache, or an impossible name
                raise InputError(
                    f"{self.source} is neither a local path, nor in the hub's cache, nor found on the hub "
                    f"({readers.first_line(error)}): check the name and the network, or give a file or a folder"
                ) from error

    def _content(self) -> dict[str, Any]:
        options: dict[str, Any] = {"config": self.config, "split": self.split}
        revision, folder = self._resolved
        files = readers.visible_files(folder) if folder is not None else []
        if folder is not None and not revision:
            return options | {"files": [readers.digest(path, folder) for path in files]}
        cached = {"cached": [path.relative_to(folder).as_posix() for path in files]} if folder is not None else {}
        return {**options, "id": self.name, "revision": revision, **cached}


def hub_dataset(source: str) -> HubDataset:
    """The dataset of hf:ID[:CONFIG][:SPLIT]."""
    fields = source.split(":")[1:]
    if len(fields) > 3 or not fields[0]:
        raise InputError(f"{source}: write hf:ID, hf:ID:CONFIG, hf:ID:SPLIT or hf:ID:CONFIG:SPLIT")
    name, config, split = (*fields, "", "")[:3]
    if config in readers.SPLITS and not split:
        config, split = "", config
    local = Path(name).expanduser()
    if local.is_dir():
        name = str(local)
    elif not readers.HUB_ID.fullmatch(name) and not re.fullmatch(r"[\w-]+", name):
        raise InputError(f"{source}: {name} is neither a folder nor a dataset id org/name")
    return HubDataset(source=source, name=name, config=config or None, split=split or "train")
