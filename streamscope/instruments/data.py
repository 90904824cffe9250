"""What a model is measured on, named before it is opened; `open_data` opens it for a model.

    Documents("valid.txt", max_documents=200)       texts, for the loss
    Prompts("competing")                            a suite of prompts with roles
    Documents("valid.txt").half(1)                  the half on which what was chosen on the other is judged

This module imports nothing heavy, so that `--help` answers at once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Le

from streamscope.cli.bounds import Count, Names, Seed, Whole
from streamscope.cli.errors import InputError
from streamscope.instruments.options import ValidatedOptions
from streamscope.text import SplitAt

if TYPE_CHECKING:
    import pandas as pd

    from streamscope.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Data(ValidatedOptions):
    """What a model is measured on, named before it is opened: models differ in tokenizer and context.

    Options that are not given are those of the instrument, as in its command; where no instrument reads them, those of
    the class. A copy by `dataclasses.replace` has every option given.
    """

    given: ClassVar[frozenset[str]] = frozenset()
    """The options that were given; of each object its own."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        spec = super().__new__(cls, *args, **kwargs)
        object.__setattr__(spec, "given", frozenset((*cls.__match_args__[: len(args)], *kwargs)))
        return spec

    def filled(self, standard: "Data") -> Any:
        """The same, with what was not given from the defaults of an instrument."""
        return replace(standard, **{name: getattr(self, name) for name in self.given})

    def of(self, model: Any, like: Any = None) -> Any:
        """Open data of a kind of your own for a model; the kinds of this module are opened by `open_data`.

        `like`: the main run's data, already opened, where the model is a control.
        """
        raise NotImplementedError

    @property
    def alone(self) -> bool:
        """Whether the data name their model: an instrument that reads only such data needs no other."""
        return False

    few: ClassVar[Mapping[str, Any]] = {}
    """The options of `small`."""

    def small(self) -> "Data":
        """The same, little of it: for tests and the reference."""
        return replace(self, **self.few)

    def half(self, side: int, by: str = "cluster") -> "Half":
        """One of two halves that share no cluster: what is selected on half 0 (a head, a layer) is measured on half 1.

        `by` is what stays together: a cluster (a document, a pair of prompts, a story), or another column of the cases.
        The halves are the same in every process, and for every model the same texts.
        """
        return Half(self, side, by)


@dataclass(frozen=True)
class Half(Data):
    """A half of data (`Data.half`), itself data of the same kind."""

    whole: Data
    """What is split."""
    side: Annotated[int, Ge(0), Le(1)]
    """Which half: 0 or 1."""
    by: str = "cluster"
    """What is never in both halves."""

    @property
    def kind(self) -> type[Data]:
        return kind_of(self.whole)

    @property
    def alone(self) -> bool:
        return self.whole.alone

    def filled(self, standard: Data) -> "Half":
        return replace(self, whole=self.whole.filled(standard))

    def check_sources(self) -> None:
        self.whole.check_sources()

    def small(self) -> "Half":
        return replace(self, whole=self.whole.small())


@dataclass(frozen=True)
class _Texts(Data):
    """What documents and tokens share: where the text is, and how it is split and cut."""

    data: str | None = None
    """Text to measure on: a file, a folder, a Hugging Face id or a built-in corpus; default: the run's
    validation data."""
    _: KW_ONLY
    text_field: str = "text"
    """The field (JSON lines) or column (parquet) that holds the text."""
    split_at: SplitAt = "separator"
    """What separates the documents of a text file: lines <|endoftext|> (a file that has none is one document), blank
    lines, or nothing: every file is one."""
    stride: Whole | None = None
    """Step N in tokens between the windows in which a long document is read. Every token is read once, with at least
    context − N tokens before it; 0 cuts the document at the context instead. Default: if the text has enough documents
    (--max-documents, else 100), each is cut at the context; otherwise half the context, with at most --max-documents
    windows."""

    def check_sources(self) -> None:
        if self.data is not None:
            from streamscope.text.corpus import open_corpus

            open_corpus(self.data, text_field=self.text_field, split_at=self.split_at)


@dataclass(frozen=True)
class Documents(_Texts):
    """Texts to measure the loss on."""

    few: ClassVar[Mapping[str, Any]] = {"max_documents": 4}
    max_documents: Count | None = 100
    """Use at most this many documents; None for all."""
    batch_size: Count = 32
    """Documents (or windows of long ones) per batch."""
    max_windows: Count | None = None
    """Read at most this many windows, evenly spread over the text; with --stride by default all."""


@dataclass(frozen=True)
class Tokens(_Texts):
    """Documents to read token by token, each up to the context, in their order."""

    few: ClassVar[Mapping[str, Any]] = {"max_tokens": 1000}
    max_tokens: Count | None = None
    """At most this many tokens, a row each; None for all."""


@dataclass(frozen=True)
class Prompts(Data):
    """A suite of prompts with roles."""

    suite: str = "competing"
    """coreference, competing, stories, stories-told, stories-words, story-cases, with corrupted prompts ioi, ioi-abc,
    greater-than, induction, docstring, name-copying, letter-case, agreement, capitals, pronouns, a JSONL, CSV or
    parquet file, hf:DATASET[:CONFIG][:SPLIT], or FORMAT:PATH of a published set."""
    n: Count | None = None
    """Number of cases to generate, only for generated suites (default: 1000 of stories, 200 with corrupted
    prompts)."""
    suite_seed: Seed | None = None
    """Which of them to generate (default 2)."""

    def check_sources(self) -> None:
        from streamscope.instruments.prompts import check_suite

        check_suite(self.suite, n=self.n, seed=self.suite_seed)

    def small(self) -> "Prompts":
        return replace(self, n=60) if self.suite in ("stories", "story-cases") else self


@dataclass(frozen=True)
class Tasks(Data):
    """Cases with an answer and a foil, to score both."""

    few: ClassVar[Mapping[str, Any]] = {"tasks": ("capitalization-8", "gender-16")}
    tasks: Names = ("capitalization", "gender", "winograd")
    """capitalization, gender, winograd; the paper's sizes capitalization-8, gender-16; a JSONL file; FORMAT:PATH."""

    def check_sources(self) -> None:
        from streamscope.instruments.prompts import check_task

        for name in self.tasks:
            check_task(name)


@dataclass(frozen=True)
class Text(Data):
    """Texts to read, unchanged."""

    few: ClassVar[Mapping[str, Any]] = {"text": ("Once upon a time", "She ran to the house")}
    text: Names = ()
    """Texts to read; default: the beginning of a story that the built-in corpus keeps for validation."""
    max_tokens: Count = 40
    """Cut each text to this many tokens, BOS included."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(text.strip() for text in self.text):
            raise InputError("--text: a text is empty; give one with words")


@dataclass(frozen=True)
class Sets(Data):
    """Two sets of texts, to find a direction that separates them."""

    a: str = "indoor"
    """The set that directions point to: .jsonl (fields text, and cluster of texts that share something), .txt,
    SUITE#CATEGORY, or happy, sad, indoor, outdoor. Line i of two files of one length are counterparts."""
    b: str = "outdoor"
    """The set that they point away from."""
    template: str = "{text}"
    """Text around each example, such as "User: {text}\\nAssistant:"; \\n is a new line."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.template.count("{text}") != 1:
            raise InputError(f"template {self.template!r} must hold {{text}} exactly once")

    def check_sources(self) -> None:
        from streamscope.instruments.prompts.sets import contrast

        contrast(self.a, self.b)


LabelTask = Literal["antecedent", "gender", "number", "position"]
Grouping = Literal["story", "antecedent"]


@dataclass(frozen=True)
class Labels(Data):
    """Labelled positions in texts, to learn the label from an activation."""

    labels: str | None = None
    """Your own: a CSV, JSONL or parquet file, or hf:DATASET[:CONFIG][:SPLIT], with text and label on each row.

    Optional fields: start and end, the characters whose last token is read (default: the whole text); group, rows that
    are never in training and test at once (default: a text); word, what the control task labels at random (default:
    the word that is read)."""
    task: LabelTask = "antecedent"
    """At the pronoun: which candidate it means. At the antecedent: its gender, its number. At any word: which part of
    the context it stands in."""
    groups: Grouping = "story"
    """What is never in training and test at once; with antecedent no word is, and there is no control task."""
    stories: Count = 400
    """Stories of the evaluation stream (seed 2, held-out combinations)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        story_options = (self.task, self.groups, self.stories)
        if self.labels is not None and story_options != (Labels.task, Labels.groups, Labels.stories):
            raise InputError("--labels has its own labels and groups: leave out --task, --groups and --stories")

    def small(self) -> "Labels":
        return replace(self, stories=150) if self.labels is None else self


def kind_of(spec: Any) -> type[Data]:
    """The kind of a specification, or of data that are opened already (they name their `kind`)."""
    return getattr(spec, "kind", type(spec))


@dataclass(frozen=True, kw_only=True)
class Splittable:
    """Base of opened data: cases with clusters, which can be split into halves.

    `title()` says how many there are and what was cut or left out, `about()` where they come from, for `Result.about`.
    """

    kind: ClassVar[Any] = Data
    whole: Any = field(default=None, repr=False, compare=False)
    """What this is a half of."""
    part: str = ""
    """Which half."""

    def cases(self) -> "pd.DataFrame":
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
        from streamscope.instruments.stats.held_out import sides_of

        return self.only((sides_of(self.cases(), by, self.kind.__name__) == side).nonzero()[0].tolist())


class Opened(dict[type[Data], Any]):
    """The data of one measurement by kind, each opened for the model when `data[kind]` first asks for it.

    As a mapping it holds what is open; `specs` are all the kinds that the instrument takes.
    """

    def __init__(
        self, model: Any, specs: Sequence[Any], like: "Opened | None" = None,
        opener: Callable[..., Any] = lambda spec, model, like: spec.of(model, like),
    ) -> None:  # fmt: skip
        """`opener(spec, model, like)` opens one; that of instruments is `open_data`."""
        super().__init__()
        self.specs: dict[type[Data], Any] = {}
        for spec in specs:
            self.specs[kind_of(spec)] = spec
            if not isinstance(spec, Data):
                self[kind_of(spec)] = spec
        self.model, self.like, self.opener = model, like, opener
        self.work: Path | None = None
        """A folder for unfinished work, which a killed command finds again and several share."""
        self.say: Callable[[str], None] = lambda line: None
        """Where to say, before the work, that data are too few."""

    def __missing__(self, kind: type[Data]) -> Any:
        if kind not in self.specs:
            raise KeyError(f"{kind.__name__} are not among the data of this instrument; name them in @instrument")
        like = None if self.like is None else self.like.get(kind)
        opened = self[kind] = self.opener(self.specs[kind], self.model, like)
        if kind in (Documents, Prompts, Labels):
            from streamscope.instruments.stats.held_out import unit_of

            if opened.cases()["cluster"].map(unit_of).nunique() == 1:
                line = "one independent case, so no value will have an interval or a test; give more"
                self.say(f"{kind.__name__}: {line}")
        return opened


def check_tokenizer(model: Any, tokenizer: Any = None) -> "Tokenizer":
    """The model's own tokenizer (of a `TransformerBridge`: wrapped), or `tokenizer` if the model can read its ids."""
    from streamscope.text.tokenizer import Tokenizer

    own_tokenizer, d_vocab = getattr(model, "tokenizer", None), int(model.cfg.d_vocab)
    if own_tokenizer is not None and not isinstance(own_tokenizer, Tokenizer):
        own_tokenizer = Tokenizer.from_transformers(own_tokenizer).padded_to(d_vocab)
    if own_tokenizer is None and tokenizer is None:
        raise InputError("the model has no tokenizer; give the one it was trained with")
    if own_tokenizer is not None and tokenizer is not None and own_tokenizer.sha256 != tokenizer.sha256:
        raise InputError(
            f"{tokenizer!r} is not the model's tokenizer {own_tokenizer!r}: its ids mean other words; leave it out"
        )
    use: Tokenizer = own_tokenizer if own_tokenizer is not None else tokenizer
    # A model may have more embeddings than its own tokenizer has words (a padded vocabulary); of a stranger's
    # tokenizer the size is all there is to compare.
    if use.d_vocab > d_vocab or (own_tokenizer is None and use.d_vocab != d_vocab):
        raise InputError(f"the tokenizer has {use.d_vocab} words, the model {d_vocab}; give its own")
    return use
