"""Texts opened for a model: to be read, in two sets to contrast, or with labelled positions to learn from."""

import hashlib
import re
from collections import namedtuple
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from streamscope.cli.errors import InputError
from streamscope.cli.terminal import counted
from streamscope.instruments.data import Data, Grouping, Labels, LabelTask, Sets, Splittable, Text, check_tokenizer
from streamscope.instruments.prompts.sets import PromptSet, contrast, encode
from streamscope.text.corpus import records
from streamscope.text.stories import labelled, story


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


PARTS = 8  # parts of a context that a probe tells apart
PER_TEXT = 4  # words per text whose position is a case


Example = namedtuple("Example", ("text", "start", "end", "label", "group", "word"))
"""A labelled position: the last token of `text[start:end]`.

`group`: cases that depend on each other (a story, a pair); `word`: the word type that a control task labels at random.
"""


def story_examples(task: LabelTask, stories: int, *, groups: Grouping = "story", seed: int = 2) -> list[Example]:
    """Labelled positions of the built-in corpus, held-out pairs of nouns (`text.stories.labelled`).

    antecedent: at a pronoun, which of its two candidates it means, the first or the second mentioned; always saying
    "second" is the recency rule. gender, number: at the mention of the antecedent nearest before, whether a later
    pronoun calls it he or she, single or group. Groups are stories, or antecedents, which are the word type as well.
    Texts begin at the paragraph of the first candidate, so that short contexts hold them.
    """
    examples = []
    for i, tale in enumerate(labelled(seed, stories, "pairs")):
        for case in tale.cases:
            word = tale.text[case.antecedent.start : case.antecedent.end].lower()
            if task == "antecedent":
                span, label = case.pronoun, "first" if case.candidates[0] == case.antecedent else "second"
            elif case.category == task:
                span, label = case.antecedent, case.relation
            else:
                continue
            cut = tale.text.rfind("\n", 0, case.candidates[0].start) + 1
            group = f"story {i}" if groups == "story" else word
            place: dict[str, Any] = {"text": tale.text[cut:], "start": span.start - cut, "end": span.end - cut}
            examples.append(Example(**place, label=label, group=group, word=word))
    return examples


def position_examples(
    tokenizer: Any, stories: int, n_ctx: int, *, groups: Grouping = "story", seed: int = 2
) -> list[Example]:
    """Words of the built-in corpus and the part of the context, 0 to 7 of `PARTS`, in which their last token stands.

    A text begins at a random word of its story and runs on into the stories behind it until the context is full. So
    the content says nothing about the position: any word may stand anywhere. Of each text `PER_TEXT` words are drawn,
    and each text has stories of its own. Groups are texts, or word types; the word type is the word in lower case.
    """
    rng, examples, index = Random(f"positions {seed}"), list[Example](), 0
    for i in range(stories):
        first = story(seed, index, "pairs").text
        begin = rng.choice([m.start() for m in re.finditer(r"\w+", first)])
        text, index = first[begin:], index + 1
        while len(tokenizer.encode(text)) <= n_ctx:
            text, index = f"{text}\n\n{story(seed, index, 'pairs').text}", index + 1
        position_of = {c: i for i, span in enumerate(tokenizer.spans(text)[1]) for c in range(*span)}
        words = [m.span() for m in re.finditer(r"\w+", text) if position_of[m.end() - 1] < n_ctx]
        for start, end in sorted(rng.sample(words, min(PER_TEXT, len(words)))):
            word = text[start:end].lower()
            label, group = str(position_of[end - 1] * PARTS // n_ctx), f"text {i}" if groups == "story" else word
            examples.append(Example(text=text, start=start, end=end, label=label, group=group, word=word))
    return examples


def own_examples(source: str) -> list[Example]:
    """Labelled positions of a file or dataset: rows with text and label, and perhaps start, end, group and word."""
    examples = []
    for place, row in records(source, '{"text": …, "label": …}'):
        if row.get("label") is None or not isinstance(row.get("text"), str) or not row["text"].strip():
            raise InputError(f"{place}: give a text and a label; its fields are {', '.join(map(str, row)) or 'empty'}")
        text = row["text"]
        try:
            start, end = int(row.get("start", 0)), int(row.get("end", len(text.rstrip())))
        except (TypeError, ValueError):
            raise InputError(f"{place}: start and end are numbers of characters") from None
        if not 0 <= start < end <= len(text):
            raise InputError(f"{place}: characters {start} to {end} are not in its text of {len(text)}")
        word = str(row.get("word") or text[start:end].split()[-1].lower())
        group = str(row["group"]) if row.get("group") is not None else text
        examples.append(Example(text=text, start=start, end=end, label=str(row["label"]), group=group, word=word))
    return examples


@dataclass(frozen=True)
class OpenLabels(Splittable):
    """Labelled positions, to be placed in one model's tokens."""

    kind: ClassVar[type[Data]] = Labels
    examples: list[Example]
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
    title, tokenizer = f"{spec.task} in {spec.stories} stories, groups: {spec.groups}", check_tokenizer(model)
    if spec.labels is not None:
        examples = own_examples(spec.labels)
        title = f"{counted(len({example.label for example in examples}), 'label')} of {spec.labels}"
    elif spec.task == "position":
        examples = position_examples(tokenizer, spec.stories, model.cfg.n_ctx, groups=spec.groups)
    else:
        examples = story_examples(spec.task, spec.stories, groups=spec.groups)
    return OpenLabels(examples, title, tokenizer)
