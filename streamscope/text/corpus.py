"""Reads training text from files, folders, Hugging Face datasets and built-in stories: `open_corpus(source)`.

A source is one of

- a file `.txt`, `.md`, `.jsonl` (also called `.ndjson`), `.json`, `.csv` or `.tsv`, each also as `.gz` or `.zst`,
  `.parquet` or `.arrow`. Records hold their text in `text_field`, or a chat in a field messages;
- a folder of such files. Files about the data (LICENSE.txt, README.txt, `ABOUT`), and `.md` among other files, are
  ignored; other data files are refused. If all files belong to splits (train-00000-of-00002.parquet, test.jsonl,
  valid/a.txt), those of train are read. In a folder of `datasets`' `save_to_disk` the train split is read;
  `hf:FOLDER:SPLIT` reads another;
- `org/name`, a Hugging Face dataset, streamed, or from the hub's cache if the hub does not answer.
  `hf:ID[:CONFIG][:SPLIT]` gives details; ID may be a local dataset folder. A CONFIG named train, validation or test
  without SPLIT is the split;
- `stories`, `stories:SEED:N` or `stories:SEED:N:SHARE` (also `stories5`): built-in procedural stories in which it pays
  to know what a pronoun means (`text.stories`), with this share of words in texts that repeat themselves (default .1).
  A folder called stories is `./stories`. `echo:SEED:N` is text whose only regularity is repetition (`text.echo`);
- a mixture of these, `A*WEIGHT + B*WEIGHT`, where each part has its share of the training tokens:
  `stories*.5 + tinystories.txt*.5`. `max_documents`, `text_field` and `split_at` apply to every part.

Documents are stripped, and empty ones skipped. `<|endoftext|>` separates documents everywhere, so no document contains
it. `split_at` "blank" also splits text files at blank lines; "file" makes each file one document. Memory is bounded by
the largest document.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

from streamscope.cli.errors import InputError
from streamscope.text import END_OF_TEXT, SplitAt
from streamscope.text.readers import HUB_ID, KINDS, digest, files_of, is_saved, json_lines, read_file, rows, suffix_of

WEIGHT = re.compile(r"\*\s*(-?\d*\.?\d+(?:e-?\d+)?|-?\d+\.|nan|-?inf)\s*(?:\+|$)", re.ASCII)
"""The weight of a part of a mixture, and the plus sign after it."""


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """A source of documents that can be read repeatedly, always in the same order."""

    source: str
    kind: str
    texts: Callable[[], Iterator[str]]
    """The raw texts in order, each with one document, or several separated by `<|endoftext|>`."""
    content: Callable[[], dict[str, Any]]
    """The content, and the options that affect it; computed once."""
    reads: AbstractSet[str] = frozenset()
    """The options among `text_field` and `split_at` that change how this source is read."""
    max_documents: int | None = None
    parts: tuple["Corpus", ...] = ()
    """Of a mixture: its parts, from each of which training takes windows (`text.windows`)."""
    weights: tuple[float, ...] = ()
    """Of a mixture: the weights of its parts."""

    def documents(self) -> Iterator[str]:
        """Yield at most `max_documents` documents, of a mixture of each part, stripped and not empty."""
        if self.parts:
            yield from self.texts()  # the parts have counted and stripped them
            return
        n = 0
        for text in self.texts():
            for document in map(str.strip, text.split(END_OF_TEXT)):
                if document:
                    yield document
                    n += 1
                    if n == self.max_documents:
                        return
        if n == 0:
            raise InputError(f"{self.source} has no text: give a source with text")

    def fingerprint(self) -> str:
        """sha256 of the content and options: sources with equal fingerprints give the same documents.

        Files count by name and bytes (not by folder), a hub dataset by its revision. Digests are computed once.
        """
        identity = {"kind": self.kind, "max_documents": self.max_documents, **self.content()}
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()

    def describe(self) -> dict[str, Any]:
        """Source, options, content and fingerprint as JSON data, for a run's manifest."""
        options = {"source": self.source, "kind": self.kind, "max_documents": self.max_documents}
        about = {**options, **self.content(), "fingerprint": self.fingerprint()}
        if self.parts:
            weighted = zip(self.weights, self.parts, strict=True)
            about["parts"] = [{"weight": weight, **part.describe()} for weight, part in weighted]
        return about


def _of_files(root: Path, files: Sequence[Path], text_field: str, split_at: SplitAt) -> dict[str, Any]:
    """The corpus of text, JSON Lines and Parquet files, in order of their paths below `root`."""
    split = {} if split_at == "separator" else {"split_at": split_at}
    return {
        "kind": "files", "texts": lambda: chain.from_iterable(read_file(path, text_field, split_at) for path in files),
        "content": cache(lambda: {"text_field": text_field, **split, "files": [digest(path, root) for path in files]}),
        "reads": {"split_at" if suffix_of(path).startswith((".txt", ".md")) else "text_field" for path in files},
    }  # fmt: skip


STORIES = {"stories": ("stories", 5), "stories5": ("stories", 5), "echo": ("echo", 2)}
"""Scheme of a source -> the module of `text` that writes its documents, and its version, incremented whenever it writes
another text for the same numbers. Here, because a fingerprint must not read the lexicon of the stories."""


def _interleaved(parts: Sequence[Corpus], weights: Sequence[float]) -> Iterator[str]:
    """A mixture as one corpus, for the tokenizer and validation: every document once.

    The next document comes from the part with the fewest characters for its share; after the end of a part, the others
    continue.
    """
    iterators = {k: part.documents() for k, part in enumerate(parts)}
    characters = [0.0] * len(parts)
    while iterators:
        k = min(iterators, key=characters.__getitem__)
        document = next(iterators[k], None)
        if document is None:
            del iterators[k]
        else:
            characters[k] += len(document) / weights[k]
            yield document


def open_corpus(
    source: str, *, text_field: str = "text", max_documents: int | None = None, split_at: SplitAt = "separator"
) -> Corpus:
    """Open the corpus that `source` names (see the module); only folder listings are read yet.

    `text_field` is the JSON field or column with the text, `split_at` the separator of documents in a text file
    (`readers.read_file`).
    """
    corpus = _open(source, text_field=text_field, max_documents=max_documents, split_at=split_at)
    for name, value, default, needs in (
        ("text_field", text_field, "text", "records: JSON lines, CSV, parquet or a dataset"),
        ("split_at", split_at, "separator", "text files, .txt or .md"),
    ):
        if value != default and name not in corpus.reads:
            raise InputError(f"--{name.replace('_', '-')} {value} is for {needs}; {source} has none, so leave it out")
    return corpus


def _open(source: str, *, text_field: str, max_documents: int | None, split_at: SplitAt) -> Corpus:
    common: dict[str, Any] = {"source": source, "max_documents": max_documents}
    if not source.strip():
        raise InputError("the data source is empty: give a file, a folder, a dataset id or stories")
    if WEIGHT.search(source) and not Path(source).expanduser().exists():
        names, weights = _mixture(source)
        options: dict[str, Any] = {"text_field": text_field, "max_documents": max_documents, "split_at": split_at}
        corpora = tuple(_open(name, **options) for name in names)
        shares = [(weight / sum(weights), corpus) for weight, corpus in zip(weights, corpora, strict=True)]
        return Corpus(
            **common, kind="mixture", parts=corpora, weights=weights, texts=partial(_interleaved, corpora, weights),
            content=cache(lambda: {"parts": [[share, corpus.fingerprint()] for share, corpus in shares]}),
            reads=frozenset().union(*(corpus.reads for corpus in corpora)),
        )  # fmt: skip
    scheme, *parts = source.split(":")
    if scheme in ("stories3", "stories4"):
        raise InputError(f"{source}: streamscope 0.1 wrote these; stories are of version 5 now")
    if scheme in STORIES:
        return Corpus(**common, **_of_stories(source, scheme, parts))
    if scheme == "hf" and parts:
        from streamscope.text.hub import hub_dataset

        return Corpus(**common, **hub_dataset(source).corpus(text_field))
    path = Path(source).expanduser()
    if path.is_dir() and not is_saved(path):
        return Corpus(**common, **_of_files(path, files_of(source, path), text_field, split_at))
    if path.exists() and not path.is_dir():
        if not path.is_file():
            raise InputError(f"{source} is not a regular file (a pipe can only be read once): save it as a file")
        if not suffix_of(path):
            raise InputError(f"{source} is not a supported kind of file ({KINDS})")
        return Corpus(**common, **_of_files(path.parent, [path], text_field, split_at))
    if path.is_dir() or (HUB_ID.fullmatch(source) and not suffix_of(Path(source))):
        from streamscope.text.hub import HubDataset

        name = str(path) if path.is_dir() else source
        return Corpus(**common, **HubDataset(source=source, name=name).corpus(text_field))
    raise InputError(f"{source} is not an existing file or folder, a dataset id org/name, hf:ID or stories")


def _mixture(source: str) -> tuple[list[str], tuple[float, ...]]:
    *pieces, tail = WEIGHT.split(source)
    names, weights = [name.strip() for name in pieces[::2]], tuple(float(number) for number in pieces[1::2])
    if tail.strip() or len(names) < 2 or not all(names):
        raise InputError(f"{source}: a mixture needs at least two parts, each with a weight: A*.5 + B*.5")
    for name, weight in zip(names, weights, strict=True):
        if not 0 < weight < math.inf:
            raise InputError(f"{source}: the weight of {name} is {weight:g}; it must be a number above 0")
    return names, weights


def _of_stories(source: str, scheme: str, fields: list[str]) -> dict[str, Any]:
    """Built-in procedural text: `n` documents that depend only on `seed`, and of stories on the share of repeats."""
    name, version = STORIES[scheme]
    match = re.fullmatch(r"(?:(\d+)(?::(\d+)(?::([^:]*))?)?)?", ":".join(fields), re.ASCII)
    if match is None or (match[3] is not None and name == "echo"):
        form = f"{scheme}:SEED:N" + ":SHARE" * (name == "stories")
        raise InputError(f"{source}: write {scheme}, {scheme}:SEED or {form} with whole numbers")
    seed, n, share = int(match[1] or 0), int(match[2] or 20_000), ".1" if match[3] is None else match[3]
    if n == 0:
        raise InputError(f"{source} has zero stories: give at least one")
    if not re.fullmatch(r"\d*\.?\d+", share, re.ASCII) or not 0 <= float(share) <= 1:
        raise InputError(f"{source}: the share is a number from 0 to 1, not {share!r}")

    def texts() -> Iterator[str]:
        from streamscope.text import echo, stories  # which read their words

        return echo.documents(seed, n) if name == "echo" else stories.documents(seed, n, float(share))

    suffix = "" if name == "echo" else f"-{float(share):g}"
    return {
        "kind": "stories", "texts": texts, "content": partial(dict, stories=f"{name}-v{version}-{seed}-{n}{suffix}"),
    }  # fmt: skip


def is_records(source: str) -> bool:
    return source.startswith("hf:") or Path(source).expanduser().is_file()


def records(source: str, expected: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """("file:line", fields) of every row; `source` is a file, or hf:ID[:CONFIG][:SPLIT]. Cells of CSV are text, and
    empty ones are left out."""
    if source.startswith("hf:"):
        from streamscope.text.hub import hub_dataset

        yield from ((f"{source}, row {i}", row) for i, row in enumerate(hub_dataset(source).records(), 1))
        return
    path = Path(source).expanduser()
    if not suffix_of(path).startswith((".csv", ".tsv", ".parquet")):
        yield from json_lines(path, expected)
        return
    place = ""
    for place, row in rows(path, expected):
        yield place, {name: value for name, value in row.items() if value not in (None, "")}
    if not place:
        raise InputError(f"{path}: the file is empty")
