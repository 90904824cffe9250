"""Data opened for a model, of documents here: their tokens, what was cut, and a name of each."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from streamscope.cli.errors import InputError
from streamscope.cli.terminal import counted
from streamscope.instruments.data import (
    Data,
    Documents,
    Half,
    Labels,
    Prompts,
    Sets,
    Splittable,
    Tasks,
    Text,
    Tokens,
    check_tokenizer,
)
from streamscope.instruments.observations import Measure, Observations
from streamscope.instruments.table import number
from streamscope.models.readout import IGNORE
from streamscope.models.training.data import evaluation_shards
from streamscope.text.shards import TokenShards, document_batches, overlapping_windows

WINDOW = (
    number("window", "window", "window", "of the document, from 0", "d", shown=False),
    number("offset", "offset", "tokens", "where the window begins in the document: what the model reads from there on",
           "d", shown=False),
)  # fmt: skip
"""Columns of rows of documents that are read in windows."""
MANY = 100  # documents that are enough: where there are as many, long ones are cut by default, else read in windows


@dataclass(frozen=True)
class Document:
    """Tokens of a document from its start: `ids`, the last of which is a target only, and its `length`.

    Of a window in a longer document: `offset` is its first token's position there, `unscored` its leading targets that
    only are context, `length` its own.
    """

    document: int
    ids: list[int]
    length: int
    window: int = 0
    offset: int = 0
    unscored: int = 0

    @property
    def positions(self) -> np.ndarray:
        """Of the rows: those with a target that is scored, in the document."""
        return self.offset + np.arange(self.unscored, len(self.ids) - 1)


@dataclass(frozen=True)
class OpenDocuments(Splittable):
    """The documents of a specification in one model's tokens; long ones cut at the model's context, or in windows.

    `data[Documents]` in `observe` of an instrument: `rows()`, `units()` with a row for each, `title()`, `tokenizer`. In
    windows (`shards.stride` is above 0) a row is a window, its cluster the document. `data[Tokens]` are read as far
    as `max_tokens` go: `documents()`.
    """

    spec: Any
    """`Documents` or `Tokens`."""
    shards: TokenShards
    n_ctx: int
    tokenizer: Any = None

    @property
    def kind(self) -> type[Data]:
        return Tokens if isinstance(self.spec, Tokens) else Documents

    @property
    def limits(self) -> dict[str, Any]:
        """max_documents and batch_size, as the sweeps take them."""
        return {"max_documents": self.spec.max_documents, "batch_size": self.spec.batch_size}

    def batches(self) -> Iterable:
        return document_batches(self.shards, self.n_ctx, **self.limits)

    def rows(self) -> Iterator[list[int]]:
        """The token ids of each document or window, BOS first: at most the context and the token after it."""
        return (ids for _, ids in self._read())

    def documents(self) -> Iterator[Document]:
        """The documents with a target in order, cut to n_ctx + 1 tokens, or their windows, until `max_tokens` rows."""
        shards = self.shards
        for i, ids in self._read():
            columns = shards.source, shards.lengths, shards.window, shards.offset, shards.unscored
            source, length, *window = (int(column[i]) for column in columns)
            yield Document(source, ids, length, *window)

    def _read(self) -> Iterator[tuple[int, list[int]]]:
        """Places in the shards and token ids of what is read: the first documents, or rows to `max_tokens`."""
        spec, shards = self.spec, self.shards
        if isinstance(spec, Documents):
            for i in range(shards.n_documents)[: spec.max_documents]:
                yield i, shards.document(i)[: self.n_ctx + 1].tolist()
            return
        budget, unscored = shards.n_tokens if spec.max_tokens is None else spec.max_tokens, shards.unscored.tolist()
        for i in range(shards.n_documents):
            ids = shards.document(i)
            rows = min(len(ids) - 1 - unscored[i], self.n_ctx - unscored[i], budget)
            if rows > 0:
                budget -= rows
                yield i, ids[: unscored[i] + rows + 1].tolist()

    def units(self) -> pd.DataFrame:
        """unit and cluster of every document: its place with the hash of its tokens, and the hash, which copies share.

        Windows also have document, window and offset (the first token's position there); those of one document, and of
        its copies, are a cluster. Only the same document in the same tokens has the same name in two models.
        """
        shards = self.shards
        if not shards.stride:
            return unit_names((shards.source[i], ids) for i, ids in self._read())
        rows = [i for i, _ in self._read()]
        table = pd.DataFrame({"document": shards.source, "window": shards.window, "offset": shards.offset}).iloc[rows]
        places = [f"{document}.{window}" for document, window in zip(table["document"], table["window"], strict=True)]
        units = unit_names(zip(places, map(shards.document, rows), strict=True))["unit"]
        documents = table["document"].unique()
        hashes = unit_names((place, shards.documents.document(place)) for place in documents)["cluster"]
        clusters = table["document"].map(dict(zip(documents, hashes, strict=True)))
        table.insert(0, "cluster", clusters)
        table.insert(0, "unit", units.to_numpy())
        return table.reset_index(drop=True)

    def cases(self) -> pd.DataFrame:
        """The documents that are read, or their windows; clusters are as in `units`, called by their first place."""
        places = pd.DataFrame({"cluster": self.shards.source[[i for i, _ in self._read()]].astype(str)}, dtype=object)
        return places.groupby(self.units()["cluster"].to_numpy()).transform("first")

    def only(self, rows: Sequence[int]) -> "OpenDocuments":
        """Some of what is read; where `max_tokens` ends within the last document, it ends there still."""
        if isinstance(self.spec, Documents):
            return replace(self, shards=self.shards.only(rows), spec=replace(self.spec, max_documents=None))
        documents = list(self._read())
        chosen = [documents[i] for i in rows]
        most = sum(len(ids) - 1 - int(self.shards.unscored[i]) for i, ids in chosen)
        return replace(self, shards=self.shards.only([i for i, _ in chosen]), spec=replace(self.spec, max_tokens=most))

    def split(self, share: float, seed: int) -> tuple["OpenDocuments", "OpenDocuments"]:
        """Documents to fit on, and `share` of all, at least two, to measure on; windows of one stay together."""
        cluster = self.cases()["cluster"].to_numpy()
        names = np.random.default_rng([seed, 3]).permutation(np.unique(cluster))
        if len(names) < 3:
            raise InputError(f"some documents are fitted on and two others measured on: give 3, not {len(names)}")
        held_out = np.isin(cluster, names[: max(2, round(share * len(names)))])
        return self.only(np.flatnonzero(~held_out).tolist()), self.only(np.flatnonzero(held_out).tolist())

    def sums(
        self,
        device: Any,
        sums_of: Callable[[Any, Any], Mapping[str, Any]],
        progress: Callable[[Iterable], Iterable] = iter,
    ) -> tuple[dict[str, np.ndarray], pd.DataFrame]:
        """Sums over the targets of each document that has one, and the `units` of these documents, in their order.

        `sums_of(tokens, targets)` gives tensors [..., B] by name, of each row of a batch. The result [..., documents]
        has the same names, and `targets`, their number.
        """
        parts: dict[str, list[np.ndarray]] = {}
        for index, tokens, targets in progress(list(self.batches())):
            batch_sums = {"document": torch.as_tensor(index), "targets": (targets != IGNORE).sum(1).double()}
            for name, x in {**batch_sums, **sums_of(tokens.to(device), targets.to(device))}.items():
                parts.setdefault(name, []).append(x.cpu().numpy())
        totals = {name: np.concatenate(arrays, -1) for name, arrays in parts.items()}
        order = np.argsort(totals.pop("document"))
        target_mask = totals["targets"][order] > 0
        if not target_mask.any():
            raise InputError("no document has a token to predict")
        units = self.units()[target_mask].reset_index(drop=True)
        return {name: x[..., order[target_mask]] for name, x in totals.items()}, units

    def title(self) -> str:
        """How many documents, and how many of them were cut, or in how many windows they are read."""
        shards = self.shards
        if shards.stride:
            documents, n = counted(len(set(shards.source.tolist())), "document"), len(shards.source)
            text = f"{documents} in {counted(n, 'window', ',')} of {self.n_ctx} tokens, stride {shards.stride}"
            n_unread = shards.possible - n
            return text + (f" ({n_unread:,} of {shards.possible:,} windows not read)" if n_unread else "")
        lengths, text = shards.lengths, ""
        if isinstance(self.spec, Documents):
            lengths = lengths[: self.spec.max_documents]
            text = f"{counted(len(lengths), 'document')}, "
        excess = np.maximum(lengths - 1 - self.n_ctx, 0)
        text += f"{np.count_nonzero(excess)} cut at {self.n_ctx} tokens"
        return f"{text} ({counted(excess.sum(), 'token', ',')} not read: --stride)" if excess.any() else text

    def about(self) -> dict[str, Any]:
        if isinstance(self.spec, Documents):
            return {"source": self.shards.meta["source"], "documents": self.title()}
        origin = {name: self.shards.meta.get(name) for name in ("source", "corpus", "tokenizer", "rule")}
        stride = {"stride": self.shards.stride} if self.shards.stride else {}
        return {**origin, "n_ctx": self.n_ctx, "max_tokens": self.spec.max_tokens, **stride}


def unit_names(documents: Iterable[tuple[Any, Sequence[int] | np.ndarray]]) -> pd.DataFrame:
    """unit of documents: place and hash of the tokens, so that only the same ones have the same name; cluster: the
    hash, because copies of a document are not independent."""
    units, clusters = list[str](), list[str]()
    for place, ids in documents:
        clusters.append(hashlib.sha1(np.asarray(ids, np.int64).tobytes()).hexdigest()[:10])
        units.append(f"{place}:{clusters[-1]}")
    return pd.DataFrame({"unit": units, "cluster": clusters})


def task_block(
    measure: Measure, units: Mapping[str, pd.DataFrame], rows: Sequence[tuple[Mapping[str, Any], np.ndarray | None]],
    sizes: Mapping[str, np.ndarray | float] | None = None,
) -> Observations:  # fmt: skip
    """Observations over the cases of several tasks, from (labels of a cell with its task, totals [its cases]).

    `units` are those of each task, `sizes` the sizes of its cases, 1 by default. A cell without values is there, but
    not measured.
    """
    all_units = pd.concat([frame.assign(task=task) for task, frame in units.items()], ignore_index=True)
    all_units["unit"] = all_units["task"] + ":" + all_units["unit"]
    places = {task: np.flatnonzero(all_units["task"] == task) for task in units}
    total, size = np.zeros((2, len(rows), len(all_units)))
    for i, (labels, values) in enumerate(rows):
        if values is not None:
            task = labels["task"]
            total[i, places[task]], size[i, places[task]] = values, 1.0 if sizes is None else sizes[task]
    cells = pd.DataFrame([labels for labels, _ in rows])
    return Observations(measure=measure, cells=cells, units=all_units, total=total, size=size)


def open_documents(spec: Documents | Tokens, model: Any, like: Any = None) -> OpenDocuments:
    """The documents in the model's tokens: those of `like`, or of the source, by default what the run was validated on.

    Without a stride they are cut at the context if there are as many as wanted (or `MANY`), or if none is longer.
    """
    tokenizer, n_ctx = check_tokenizer(model), model.config.n_ctx
    if like is not None:
        if (like.tokenizer.sha256, like.n_ctx) != (tokenizer.sha256, n_ctx):
            raise InputError("the control reads other tokens, or cuts documents in different places (see same_tokens)")
        return OpenDocuments(like.spec, like.shards, n_ctx, tokenizer)
    run = getattr(model, "run", None)
    if run is None and spec.data is None:
        source = f" ({model.label})" if getattr(model, "label", "") else ""
        raise InputError(
            f"{model.config.name}{source} is of no run that says what it was trained on: say what to measure it on, "
            f"with --data SOURCE, in Python {type(spec).__name__}('valid.txt')"
        )
    shards: TokenShards = evaluation_shards(
        Path() if run is None else run, tokenizer, spec.data, text_field=spec.text_field, split_at=spec.split_at
    )
    documents, most = (spec.max_documents, spec.max_windows) if isinstance(spec, Documents) else (None, None)
    stride = spec.stride
    if stride is None and shards.n_documents < (documents or MANY) and (shards.lengths > n_ctx + 1).any():
        stride = max(n_ctx // 2, 1)
    if stride:
        most = documents if spec.stride is None and most is None else most
        shards = overlapping_windows(shards, n_ctx, stride, documents, most)
        spec = replace(spec, max_documents=None) if isinstance(spec, Documents) else spec
    return OpenDocuments(spec, shards, n_ctx, tokenizer)


def same_tokens(model: Any, control: Any, name: str) -> None:
    """Raise `InputError` for a control that reads documents in other tokens than the model, or cuts them elsewhere."""
    a, b = model.config, control.config
    if check_tokenizer(model).sha256 != check_tokenizer(control).sha256 or a.d_vocab != b.d_vocab:
        sizes = f" ({b.d_vocab} tokens, the model {a.d_vocab})" if a.d_vocab != b.d_vocab else ""
        both = "what both are measured on must be the same tokens: train them with one tokenizer"
        raise InputError(f"--control {name} has another vocabulary{sizes}; {both}")
    if a.n_ctx != b.n_ctx:
        lengths = f"a context of {b.n_ctx} tokens, the model {a.n_ctx}"
        raise InputError(f"--control {name} has {lengths}; documents would be cut in different places")


def open_data(spec: Data, model: Any, like: Any = None) -> Any:
    """What a specification opens as for a model. `like`: the main run's data, already opened, for its control."""
    if type(spec).of is not Data.of:  # a kind of the user, which may inherit the fields of one of ours
        return spec.of(model, like)
    if isinstance(spec, Half):
        opened = open_data(spec.whole, model, None if like is None else like.whole)
        if not isinstance(opened, Splittable):
            raise InputError(f"{spec.kind.__name__} are no cases to split; halve the data that they are measured on")
        return opened.half(spec.side, spec.by)
    match spec:
        case Documents() | Tokens():
            return open_documents(spec, model, like)
        case Prompts():
            from streamscope.instruments.prompts.alignment import open_prompts

            return open_prompts(spec, model)
        case Tasks():
            from streamscope.instruments.prompts.tasks import open_tasks

            return open_tasks(spec, model)
        case Text() | Sets() | Labels():
            from streamscope.instruments.open_texts import open_labels, open_sets, open_text

            if isinstance(spec, Labels):
                return open_labels(spec, model)
            return open_text(spec, model) if isinstance(spec, Text) else open_sets(spec, model)
    raise NotImplementedError
