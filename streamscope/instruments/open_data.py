"""Data opened for a model: its tokens, what was cut or left out, and an id of each unit that any tokenizer shares."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd
import torch

from streamscope.cli.errors import InputError, unknown
from streamscope.cli.terminal import counted
from streamscope.instruments.data import Data, Documents, Half, Labels, Prompts, Sets, Tasks, Text, Tokens
from streamscope.instruments.observations import Measure, Observations
from streamscope.instruments.prompts import align, load_suite
from streamscope.instruments.prompts.alignment import align_once, check_tokenizer
from streamscope.instruments.prompts.sets import PromptSet, contrast, encode
from streamscope.instruments.prompts.suite import Prompt, Suite, population, unit_of, units
from streamscope.instruments.prompts.tasks import Task, load_tasks
from streamscope.instruments.stats.held_out import deal
from streamscope.instruments.table import number
from streamscope.models.readout import IGNORE
from streamscope.models.training.data import evaluation_shards
from streamscope.text.shards import TokenShards, WindowedShards, document_batches, overlapping_windows

if TYPE_CHECKING:
    from streamscope.instruments.prompts.labelled import Example


def sides_of(cases: pd.DataFrame, by: str, source: str) -> np.ndarray:
    """Half 0 or 1 of every case, by `held_out.deal`; no value of the column `by` is in both, and both have a case."""
    if by not in cases:
        raise unknown("column to split by", by, list(cases))
    labels = cases[by].map(lambda label: label if isinstance(label, tuple) else str(label))
    if (n := labels.map(unit_of).nunique()) < 2:
        raise InputError(f"{source}: {n} {by} has no two halves; give more data, or split by another column")
    relation = cases.get("relation", pd.Series("", index=cases.index))
    return deal(pd.DataFrame({"cluster": labels, "relation": relation}), 0)[0]


@dataclass(frozen=True, kw_only=True)
class Splittable:
    """Base of opened data: cases with clusters, which can be split into halves.

    `title()` says how many there are and what was cut or left out, `about()` where they come from, for `Result.about`.
    """

    whole: Any = field(default=None, repr=False, compare=False)
    """What this is a half of."""
    part: str = ""
    """Which half."""

    def cases(self) -> pd.DataFrame:
        """A row per case: cluster, relation where cases have one, and what else they can be split by."""
        raise NotImplementedError

    def only(self, rows: Sequence[int]) -> Any:
        """Some of the cases, by their places."""
        raise NotImplementedError

    def half(self, side: int, by: str = "cluster") -> Any:
        """`Data.half`, of the opened data."""
        if side not in (0, 1):
            raise InputError(f"half {side}: there are 0 and 1")
        part = ", ".join(filter(None, (self.part, f"half {side} by {by}")))
        return replace(self._half(side, by), whole=self, part=part)

    def _half(self, side: int, by: str) -> Any:
        sides = sides_of(self.cases(), by, type(self).__name__.removeprefix("Open"))
        return self.only(np.flatnonzero(sides == side).tolist())


WINDOW = (
    number("window", "window", "window", "of the document, from 0", "d", shown=False),
    number("offset", "offset", "tokens", "where the window begins in the document: what the model reads from there on",
           "d", shown=False),
)  # fmt: skip
"""Columns of rows of documents that are read in windows."""
MANY = 100  # documents that are enough: where there are as many, long ones are cut by default, else read in windows


@dataclass(frozen=True)
class _OpenShards(Splittable):
    """What documents and tokens share: packed documents in one model's tokens, or windows of them."""

    spec: Any
    shards: TokenShards
    n_ctx: int
    tokenizer: Any = None

    def _read(self) -> Iterator[tuple[int, Sequence[int]]]:
        """Places in the shards and token ids of what is read."""
        raise NotImplementedError

    def units(self) -> pd.DataFrame:
        """unit and cluster of every document: its place with the hash of its tokens, and the hash, which copies share.

        Windows also have document, window and offset (the first token's position there); those of one document, and of
        its copies, are a cluster. Only the same document in the same tokens has the same name in two models.
        """
        shards = self.shards
        if not isinstance(shards, WindowedShards):
            return unit_names((shards.source[i], ids) for i, ids in self._read())
        rows = [i for i, _ in self._read()]
        table = pd.DataFrame({"document": shards.source, "window": shards.window, "offset": shards.offset}).iloc[rows]
        clusters = {document: _hash(shards.documents.document(document)) for document in table["document"].unique()}
        names = zip(table["document"], table["window"], rows, strict=True)
        units = [f"{document}.{window}:{_hash(shards.document(i))}" for document, window, i in names]
        places = table.reset_index(drop=True)
        return pd.DataFrame({"unit": units, "cluster": places["document"].map(clusters), **places})

    def title(self) -> str:
        """How many documents, and how many of them were cut, or in how many windows they are read."""
        shards = self.shards
        if not isinstance(shards, WindowedShards):
            return self._title()
        documents, n = counted(len(set(shards.source.tolist())), "document"), len(shards.source)
        text = f"{documents} in {counted(n, 'window', ',')} of {self.n_ctx} tokens, stride {shards.stride}"
        n_unread = shards.possible - n
        return text + (f" ({n_unread:,} of {shards.possible:,} windows not read)" if n_unread else "")

    def _title(self) -> str:
        return cut_title(self.shards.lengths, self.n_ctx)

    def cases(self) -> pd.DataFrame:
        """The documents that are read, or their windows; clusters are as in `units`, called by their first place."""
        first: dict[str, str] = {}
        places = zip(self.units()["cluster"], self._read(), strict=True)
        return pd.DataFrame({"cluster": [first.setdefault(key, str(self.shards.source[i])) for key, (i, _) in places]})

    def split(self, share: float, seed: int) -> tuple[Any, Any]:
        """Documents to fit on, and `share` of all, at least two, to measure on; windows of one stay together."""
        cluster = self.cases()["cluster"].to_numpy()
        names = np.random.default_rng([seed, 3]).permutation(np.unique(cluster))
        if len(names) < 3:
            raise InputError(f"some documents are fitted on and two others measured on: give 3, not {len(names)}")
        held_out = np.isin(cluster, names[: max(2, round(share * len(names)))])
        return self.only(np.flatnonzero(~held_out).tolist()), self.only(np.flatnonzero(held_out).tolist())


@dataclass(frozen=True)
class OpenDocuments(_OpenShards):
    """The shards of a specification in one model's tokens; long documents cut at the model's context, or in windows.

    `data[Documents]` in `observe` of an instrument: `rows()`, `units()` with a row for each, `title()`, `tokenizer`. In
    windows (`shards` are `WindowedShards`) a row is a window, its cluster the document.
    """

    kind: ClassVar[type[Data]] = Documents

    @property
    def limits(self) -> dict[str, Any]:
        """max_documents and batch_size, as the sweeps take them."""
        return {"max_documents": self.spec.max_documents, "batch_size": self.spec.batch_size}

    def batches(self) -> Iterable:
        return document_batches(self.shards, self.n_ctx, self.spec.batch_size, self.spec.max_documents)

    def rows(self) -> Iterator[list[int]]:
        """The token ids of each document or window, BOS first: at most the context and the token after it."""
        return (ids for _, ids in self._read())

    def _read(self) -> Iterator[tuple[int, list[int]]]:
        return ((i, self.shards.document(i)[: self.n_ctx + 1].tolist()) for i in range(self._n))

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

    def only(self, rows: Sequence[int]) -> "OpenDocuments":
        return replace(self, shards=self.shards.only(rows), spec=replace(self.spec, max_documents=None))

    @property
    def _n(self) -> int:
        return min(self.shards.n_documents, self.spec.max_documents or self.shards.n_documents)

    def _title(self) -> str:
        return f"{counted(self._n, 'document')}, {cut_title(self.shards.lengths[: self._n], self.n_ctx)}"

    def about(self) -> dict[str, Any]:
        return {"source": self.shards.meta["source"], "documents": self.title()}


def cut_title(lengths: np.ndarray, n_ctx: int) -> str:
    """How many documents of these lengths are cut at the context, and what is not read of them."""
    excess = np.maximum(lengths - 1 - n_ctx, 0)
    cut = f"{np.count_nonzero(excess)} cut at {n_ctx} tokens"
    return f"{cut} ({counted(excess.sum(), 'token', ',')} not read: --stride)" if excess.any() else cut


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
class OpenTokens(_OpenShards):
    """Documents in one model's tokens, to be read as far as the context and `max_tokens` go, or in windows."""

    kind: ClassVar[type[Data]] = Tokens

    def documents(self) -> Iterator[Document]:
        """The documents with a target in order, cut to n_ctx + 1 tokens, or their windows, until `max_tokens` rows."""
        shards = self.shards
        for i, ids in self._read():
            columns = shards.source, shards.lengths, shards.window, shards.offset, shards.unscored
            source, length, *window = (int(column[i]) for column in columns)
            yield Document(source, ids, length, *window)

    def _read(self) -> Iterator[tuple[int, list[int]]]:
        budget = self.spec.max_tokens if self.spec.max_tokens is not None else self.shards.n_tokens
        unscored = self.shards.unscored.tolist()
        for i in range(self.shards.n_documents):
            ids = self.shards.document(i)
            rows = min(len(ids) - 1 - unscored[i], self.n_ctx - unscored[i], budget)
            if rows > 0:
                budget -= rows
                yield i, ids[: unscored[i] + rows + 1].tolist()

    def only(self, rows: Sequence[int]) -> "OpenTokens":
        """Some of the documents that are read; where `max_tokens` ends within the last one, it ends there still."""
        documents = list(self._read())
        chosen = [documents[i] for i in rows]
        most = sum(len(ids) - 1 - int(self.shards.unscored[i]) for i, ids in chosen)
        return replace(self, shards=self.shards.only([i for i, _ in chosen]), spec=replace(self.spec, max_tokens=most))

    def about(self) -> dict[str, Any]:
        origin = {name: self.shards.meta.get(name) for name in ("source", "corpus", "tokenizer", "rule")}
        stride = {"stride": self.shards.stride} if isinstance(self.shards, WindowedShards) else {}
        return {**origin, "n_ctx": self.n_ctx, "max_tokens": self.spec.max_tokens, **stride}


def unit_names(documents: Iterable[tuple[int, Sequence[int] | np.ndarray]]) -> pd.DataFrame:
    """unit of documents: place and hash of the tokens, so that only the same ones have the same name; cluster: the
    hash, because copies of a document are not independent."""
    names = [(i, _hash(ids)) for i, ids in documents]
    return pd.DataFrame({"unit": [f"{i}:{text}" for i, text in names], "cluster": [text for _, text in names]})


def _hash(ids: Sequence[int] | np.ndarray) -> str:
    return hashlib.sha1(np.asarray(ids, np.int64).tobytes()).hexdigest()[:10]


def open_documents(spec: Documents | Tokens, model: Any, like: Any = None) -> OpenDocuments | OpenTokens:
    """The documents in the model's tokens: those of `like`, or of the source, by default what the run was validated on.

    Without a stride they are cut at the context if there are as many as wanted (or `MANY`), or if none is longer.
    """
    opened_class: Any = OpenDocuments if isinstance(spec, Documents) else OpenTokens
    tokenizer, n_ctx = check_tokenizer(model), model.config.n_ctx
    if like is not None:
        if (like.tokenizer.sha256, like.n_ctx) != (tokenizer.sha256, n_ctx):
            raise InputError("the control reads other tokens, or cuts documents in different places (see same_tokens)")
        return opened_class(like.spec, like.shards, n_ctx, tokenizer)
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
    return opened_class(spec, shards, n_ctx, tokenizer)


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


@dataclass(frozen=True)
class OpenPrompts(Splittable):
    """A suite in one model's tokens; `suite` is None where the prompts were given in tokens already."""

    kind: ClassVar[type[Data]] = Prompts
    aligned: Any
    tokenizer: Any
    suite: Any = None

    def title(self) -> str:
        n_kept, suite = len(self.aligned.prompts), self.suite
        left_out = "".join(f", {n} left out: {reason}" for reason, n in self._left_out.items())
        if suite is None:
            text = f"{counted(n_kept, 'prompt')}{left_out}"
        else:
            text = f"{suite.name}: {n_kept} of {counted(len(suite.prompts), 'prompt')}{left_out}"
            text += f", {len(suite.skipped)} entries skipped" if suite.skipped else ""
        return f"{text}; {population(self.aligned.prompts)}"

    @property
    def _left_out(self) -> Counter[str]:
        return Counter(reason for _, reason in self.aligned.filtered)

    @property
    def prompts(self) -> Sequence[Prompt]:
        """All prompts of the suite, those that this tokenizer cannot serve as well."""
        return (self.aligned if self.suite is None else self.suite).prompts

    def cases(self) -> pd.DataFrame:
        """Pair, cluster, category, relation and order of all prompts: halves are the same in every tokenizer."""
        names = ("id", "pair", "category", "relation", "order")
        columns = {name: [getattr(prompt, name) or "" for prompt in self.prompts] for name in names}
        return pd.DataFrame({"cluster": pd.Series(units(self.prompts), dtype=object), **columns})

    def only(self, rows: Sequence[int]) -> "OpenPrompts":
        if self.suite is None:
            return replace(self, aligned=self.aligned.only(rows))
        prompts = tuple(self.suite.prompts[i] for i in rows)
        ids = {prompt.id for prompt in prompts}
        kept_rows = [i for i, prompt in enumerate(self.aligned.prompts) if prompt.id in ids]
        if not kept_rows:
            raise InputError(f"{self.suite.name}: the tokenizer serves no prompt of this half; give more prompts")
        left_out = [(name, reason) for name, reason in self.aligned.filtered if name in ids]
        pairs = tuple(pair for pair in self.aligned.dropped_pairs if pair in {prompt.pair for prompt in prompts})
        aligned = replace(self.aligned.only(kept_rows), filtered=left_out, dropped_pairs=pairs)
        return replace(self, aligned=aligned, suite=replace(self.suite, prompts=prompts))

    def unit(self, *ids: str) -> str:
        """A name that only the same prompts have: the first id and a hash of the texts."""
        texts = {p.id: p.text for p in self.aligned.prompts}
        return f"{ids[0]}:{hashlib.sha1(' | '.join(texts[i] for i in ids).encode()).hexdigest()[:10]}"

    def about(self) -> dict[str, Any]:
        source = self.suite.source if self.suite is not None else "given"
        return {"suite": source, "prompts": len(self.aligned.prompts), "left_out": dict(self._left_out)}


def given_prompts(prompts: Any, model: Any, tokenizer: Any = None) -> OpenPrompts:
    """A `Suite`, or what is `Aligned` already, opened for a model of ours or a bridge with this tokenizer."""
    tokenizer = check_tokenizer(model, tokenizer)
    return OpenPrompts(align_once(prompts, tokenizer), tokenizer, prompts if isinstance(prompts, Suite) else None)


@dataclass(frozen=True)
class OpenTasks(Splittable):
    """Tasks with the cases that one model's tokenizer and context can score."""

    kind: ClassVar[type[Data]] = Tasks
    tasks: list[Task]
    tokenizer: Any

    @staticmethod
    def units(task: Task) -> pd.DataFrame:
        """unit (its id and a hash of answer and foil, the same in every model), cluster and kind of every case."""
        cases = task.cases
        names = [
            f"{name}:{hashlib.sha1(f'{answer} | {foil}'.encode()).hexdigest()[:10]}"
            for name, answer, foil in zip(cases["id"], cases["answer"], cases["foil"], strict=True)
        ]
        return cases[["cluster", "category", "relation", "order"]].assign(unit=names)

    def _half(self, side: int, by: str) -> "OpenTasks":
        sides = [sides_of(task.cases, by, task.name) == side for task in self.tasks]
        tasks = [task.only(np.flatnonzero(rows).tolist()) for task, rows in zip(self.tasks, sides, strict=True)]
        return replace(self, tasks=tasks)

    def title(self) -> str:
        return "; ".join(task.title for task in self.tasks)

    def about(self) -> dict[str, Any]:
        return {task.name: [task.source, task.title] for task in self.tasks}


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


@dataclass(frozen=True)
class OpenText(Splittable):
    """Texts in one model's tokens, BOS first, with a name for each."""

    kind: ClassVar[type[Data]] = Text
    rows: list[list[int]]
    names: list[str]
    tokenizer: Any
    cut: tuple[str, ...] = ()
    """Of each text that lost its end, how many of its tokens are left."""

    def title(self) -> str:
        """Which texts were cut, to stand behind another title; "" where none was."""
        return "".join(f"; {note}" for note in self.cut)

    def cases(self) -> pd.DataFrame:
        return pd.DataFrame({"cluster": [name.partition(":")[2] for name in self.names]})

    def only(self, rows: Sequence[int]) -> "OpenText":
        return replace(self, rows=[self.rows[i] for i in rows], names=[self.names[i] for i in rows])

    def about(self) -> dict[str, Any]:
        return {"texts": len(self.rows), "tokens": sum(map(len, self.rows)), **({"cut": self.cut} if self.cut else {})}


def open_text(spec: Text, model: Any) -> OpenText:
    """The texts, cut at the model's context as well. `cut` says which of those that were given."""
    from streamscope.text.stories import story  # which reads its lexicons

    tokenizer, texts = check_tokenizer(model), spec.text or (story(1, 0).text,)
    token_rows, most = [tokenizer.encode(text) for text in texts], min(spec.max_tokens, model.cfg.n_ctx)
    names = [f"{i}:{hashlib.sha1(text.encode()).hexdigest()[:10]}" for i, text in enumerate(texts)]
    by = "--max-tokens" if spec.max_tokens <= model.cfg.n_ctx else "the context"
    lengths = [len(row) for row in token_rows] if spec.text else []
    cut = [f"text {i} cut at {most} of {n} tokens ({by})" for i, n in enumerate(lengths, 1) if n > most]
    return OpenText([row[:most] for row in token_rows], names, tokenizer, tuple(cut))


@dataclass(frozen=True)
class OpenSets(Splittable):
    """Two sets of texts in one model's tokens, BOS first."""

    kind: ClassVar[type[Data]] = Sets
    a: PromptSet
    b: PromptSet
    tokenizer: Any

    def cases(self) -> pd.DataFrame:
        """The texts of a, then those of b; a line (`prompts.sets`) is a cluster."""
        relation = ["a"] * len(self.a.texts) + ["b"] * len(self.b.texts)
        return pd.DataFrame({"cluster": [str(i) for i in np.concatenate(self.lines)], "relation": relation})

    @property
    def lines(self) -> tuple[np.ndarray, np.ndarray]:
        """The lines of both sets, as numbers in the order in which they come."""
        codes = pd.factorize(pd.Series([*self.a.lines, *self.b.lines], dtype=object))[0]
        return codes[: len(self.a.lines)], codes[len(self.a.lines) :]

    def only(self, rows: Sequence[int]) -> "OpenSets":
        n = len(self.a.texts)
        a, b = self.a.only([i for i in rows if i < n]), self.b.only([i - n for i in rows if i >= n])
        return replace(self, a=a, b=b)

    def title(self) -> str:
        a, b = self.a, self.b
        left_out = {"longer than the context": a.too_long + b.too_long, "repeated": a.repeated + b.repeated}
        notes = (f", {n} {reason} left out" for reason, n in left_out.items() if n)
        return f"{len(a.tokens)} {a.name} against {len(b.tokens)} {b.name}{''.join(notes)}"

    def about(self) -> dict[str, Any]:
        return {"sets": self.title()}


def open_sets(spec: Sets, model: Any) -> OpenSets:
    """Both sets in their template."""
    tokenizer, template = check_tokenizer(model), spec.template.replace("\\n", "\n")
    a, b = (encode(prompts, tokenizer, model.cfg.n_ctx, template) for prompts in contrast(spec.a, spec.b))
    return OpenSets(a, b, tokenizer)


@dataclass(frozen=True)
class OpenLabels(Splittable):
    """Labelled positions, to be placed in one model's tokens."""

    kind: ClassVar[type[Data]] = Labels
    examples: list["Example"]
    title: str
    tokenizer: Any

    def cases(self) -> pd.DataFrame:
        """Group (story, antecedent), label and word of the positions."""
        rows = [(example.group, example.label, example.word) for example in self.examples]
        return pd.DataFrame(rows, columns=["cluster", "label", "word"])

    def only(self, rows: Sequence[int]) -> "OpenLabels":
        return replace(self, examples=[self.examples[i] for i in rows])

    def about(self) -> dict[str, Any]:
        return {"labels": self.title, "examples": len(self.examples)}


def open_labels(spec: Labels, model: Any) -> OpenLabels:
    """The labelled positions of a file, a dataset or the built-in stories."""
    from streamscope.instruments.prompts.labelled import own_examples, position_examples, story_examples

    title, tokenizer = f"{spec.task} in {spec.stories} stories, groups: {spec.groups}", check_tokenizer(model)
    if spec.labels is not None:
        examples = own_examples(spec.labels)
        title = f"{counted(len({example.label for example in examples}), 'label')} of {spec.labels}"
    elif spec.task == "position":
        examples = position_examples(tokenizer, spec.stories, model.cfg.n_ctx, groups=spec.groups)
    else:
        examples = story_examples(spec.task, spec.stories, groups=spec.groups)
    return OpenLabels(examples, title, tokenizer)


def open_data(spec: Data, model: Any, like: Any = None) -> Any:
    """What a specification opens as for a model. `like`: the main run's data, already opened, for its control."""
    if type(spec).of is not Data.of:  # a kind of the user, which may inherit the fields of one of ours
        return spec.of(model, like)
    if isinstance(spec, Documents | Tokens):
        return open_documents(spec, model, like)
    if isinstance(spec, Half):
        opened = open_data(spec.whole, model, None if like is None else like.whole)
        if not isinstance(opened, Splittable):
            raise InputError(f"{spec.kind.__name__} are no cases to split; halve the data that they are measured on")
        return opened.half(spec.side, spec.by)
    match spec:
        case Prompts():
            suite, tokenizer = load_suite(spec.suite, n=spec.n, seed=spec.suite_seed), check_tokenizer(model)
            return OpenPrompts(align(suite, tokenizer, model.cfg.n_ctx), tokenizer, suite)
        case Tasks():
            tokenizer = check_tokenizer(model)
            return OpenTasks(load_tasks(spec.tasks, tokenizer, model.config.n_ctx), tokenizer)
        case Text():
            return open_text(spec, model)
        case Sets():
            return open_sets(spec, model)
        case Labels():
            return open_labels(spec, model)
    raise NotImplementedError
