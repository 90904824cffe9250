"""What every instrument is: a frozen dataclass whose fields are its options, measured on a model and data.

    r = Ablate(heads="L4.*").measure(model, Documents("valid.txt"))         in a notebook
    python -m interventions.ablate runs/lfa --heads L4.* --data valid.txt   the same thing

    @instrument("ablate", Documents(max_documents=200), Prompts())
    class Ablate(Instrument):
        \"\"\"One sentence; then formula, when to use it, source. This is the command's help.\"\"\"
        heads: tuple[str, ...] = ("all",)
        \"\"\"Heads: L5.H4, L4.*, …\"\"\"

Its body are two functions, in `<package>.measure` or, for an instrument of one file, two methods:

    observe(self, model, data, progress) -> Seen        cells × units, and the contrasts wanted
    tables(self, seen, estimates) -> {name: Table}      the estimates as tables

All else is the same for all: estimates (`probes.observations`), tables and files (`probes.result`), figures
(`probes.figures`), control, seeds and command (`probes.command`). This module imports nothing heavy, so that `--help`
answers at once.
"""

import ast
import hashlib
import inspect
import json
import textwrap
import typing
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

from streamscope.models.bounds import Bounds, Count, Names, Seed, Whole, check
from streamscope.models.errors import InputError, unknown
from streamscope.models.text import SplitAt

if TYPE_CHECKING:
    import numpy as np

    from streamscope.probes.observations import Contrast, Estimates, Observations
    from streamscope.probes.result import Result, Table

Progress = Callable[[Iterable], Iterable]


class _Signature:
    """`__signature__` of a class of options: its fields with plain types, bounds left to the validation."""

    def __get__(self, instance: Any, owner: type) -> inspect.Signature:
        hints = typing.get_type_hints(owner)  # without Annotated and what stands in it
        _, *given = inspect.signature(vars(owner)["__init__"]).parameters.values()
        return inspect.Signature([one.replace(annotation=hints[one.name]) for one in given])


class Validated:
    """Base of options: every field has the declared type and lies in its declared bounds, else `InputError` says so.

    A string becomes a tuple of one, lists and arrays become tuples, numpy numbers Python's; apart from that nothing is
    converted: True is no number, and "1" neither.
    """

    __signature__: ClassVar[Any] = _Signature()

    def __post_init__(self) -> None:
        from pydantic import TypeAdapter, ValidationError

        hints = typing.get_type_hints(type(self))  # bounds are checked below
        for one in fields(self):  # type: ignore[arg-type]
            value = _plain(hints[one.name], getattr(self, one.name))
            try:
                value = TypeAdapter(hints[one.name]).validate_python(value, strict=True)
            except ValidationError as error:
                reason = error.errors()[0]["msg"]
                raise InputError(f"{one.name}: {reason[0].lower()}{reason[1:]}, got {value!r}") from None
            object.__setattr__(self, one.name, value)
        check(self)


def _plain(hint: Any, value: Any) -> Any:
    """A value as the validator wants it: see `Validated`."""
    if type(value).__module__ == "numpy":
        value = value.tolist()
    if _takes(hint, tuple):
        value = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value
    if isinstance(value, str) and _takes(hint, Path) and not _takes(hint, str):
        value = Path(value)
    return value


def _takes(hint: Any, kind: type) -> bool:
    """Whether a type hint is `kind`, or a union with it."""
    return kind in (hint, typing.get_origin(hint)) or any(_takes(inner, kind) for inner in typing.get_args(hint))


# ---- data --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Data(Validated):
    """What a model is measured on, named before it is opened: models differ in tokenizer and context."""

    def of(self, model: Any, like: Any = None) -> Any:
        """Open it for a model; `like`: what it was opened as for the run that this model is the control of."""
        raise NotImplementedError

    @property
    def alone(self) -> bool:
        """Whether it says itself of which model it is: an instrument of such data alone needs none."""
        return False

    def small(self) -> "Data":
        """The same, little of it: for tests and the reference."""
        return self

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
    side: Annotated[int, Bounds(low=0, high=1)]
    """Which half: 0 or 1."""
    by: str = "cluster"
    """What is never in both halves."""

    @property
    def kind(self) -> type[Data]:
        """The kind of the whole."""
        return kind_of(self.whole)

    @property
    def alone(self) -> bool:
        """As the whole."""
        return self.whole.alone

    def of(self, model: Any, like: Any = None) -> Any:
        """The half of what the whole opens as. Raises `InputError` for fewer than two clusters, and for tables."""
        from streamscope.probes.documents import Splittable

        opened = self.whole.of(model, None if like is None else like.whole)
        if not isinstance(opened, Splittable):
            raise InputError(f"{self.kind.__name__} are no cases to split; halve the data that they are measured on")
        return opened.half(self.side, self.by)

    def small(self) -> "Half":
        """A half of little."""
        return replace(self, whole=self.whole.small())


@dataclass(frozen=True)
class Documents(Data):
    """Texts to measure the loss on."""

    data: str | None = None
    """SOURCE to measure the loss on; default: the run's validation data."""
    max_documents: Count | None = 100
    """Use at most this many documents; None for all."""
    batch_size: Count = 32
    """Documents, or windows of them, per batch."""
    text_field: str = "text"
    """Field of JSON lines, column of parquet, that holds the text."""
    split_at: SplitAt = "separator"
    """What separates the documents of a text file: lines <|endoftext|> (without one it is one document), blank lines,
    or nothing: every file is one."""
    stride: Whole | None = None
    """Documents longer than the context are read in windows, each N tokens behind the last, and every token is scored
    once, with at least context − N tokens before it; 0 cuts them at the context. Default: cut where --data has
    --max-documents documents, else (a book, some chapters) half the context, and at most that many windows."""
    max_windows: Count | None = None
    """Read at most this many windows, evenly spread over the text; with --stride by default all."""

    def of(self, model: Any, like: Any = None) -> Any:
        """`probes.documents.OpenDocuments`."""
        from streamscope.probes.documents import open_documents

        return open_documents(self, model, like)

    def small(self) -> "Documents":
        """Four documents."""
        return replace(self, max_documents=4)


@dataclass(frozen=True)
class Tokens(Data):
    """Documents to read token by token, each up to the context, in their order."""

    data: str | None = None
    """SOURCE of the documents; default: the run's validation data."""
    text_field: str = "text"
    """Field of JSON lines, column of parquet, that holds the text."""
    max_tokens: Count | None = None
    """At most this many tokens, a row each; None for all."""
    split_at: SplitAt = "separator"
    """What separates the documents of a text file: lines <|endoftext|> (without one it is one document), blank lines,
    or nothing: every file is one."""
    stride: Whole | None = None
    """Documents longer than the context are read in windows, each N tokens behind the last, and every token has one
    row, with at least context − N tokens before it; 0 cuts them at the context. Default: cut where --data has 100
    documents, else (a book, some chapters) half the context."""

    def of(self, model: Any, like: Any = None) -> Any:
        """`probes.documents.OpenTokens`."""
        from streamscope.probes.documents import open_tokens

        return open_tokens(self, model, like)

    def small(self) -> "Tokens":
        """A thousand."""
        return replace(self, max_tokens=1000)


@dataclass(frozen=True)
class Prompts(Data):
    """A suite of prompts with roles."""

    suite: str = "competing"
    """coreference, competing, stories, story-cases, story-events, a JSONL file, or FORMAT:PATH of a published set."""
    n: Count | None = None
    """Minimal pairs of stories and story-events, or pronouns of story-cases, to generate (default 1000)."""
    suite_seed: Seed | None = None
    """Which of them to generate (default 2)."""

    def of(self, model: Any, like: Any = None) -> Any:
        """`probes.documents.OpenPrompts`."""
        from streamscope.probes.documents import open_prompts

        return open_prompts(self, model)

    def small(self) -> "Prompts":
        """Sixty, where they are generated."""
        return replace(self, n=60) if self.suite in ("stories", "story-cases", "story-events") else self


@dataclass(frozen=True)
class Tasks(Data):
    """Cases with an answer and a foil, to score both."""

    tasks: Names = ("capitalization", "gender", "winograd")
    """capitalization, gender, winograd; the paper's sizes capitalization-8, gender-16; a JSONL file; FORMAT:PATH."""

    def of(self, model: Any, like: Any = None) -> Any:
        """`probes.documents.OpenTasks`."""
        from streamscope.probes.documents import open_tasks

        return open_tasks(self, model)

    def small(self) -> "Tasks":
        """Two small ones."""
        return replace(self, tasks=("capitalization-8", "gender-16"))


@dataclass(frozen=True)
class Text(Data):
    """Texts to read, as they are given."""

    text: Names = ()
    """Texts to read; default: the beginning of a story that the built-in corpus keeps for validation."""
    max_tokens: Count = 40
    """Cut each text to this many tokens, BOS included."""

    def of(self, model: Any, like: Any = None) -> Any:
        """`probes.documents.OpenText`."""
        from streamscope.probes.documents import open_text

        return open_text(self, model)

    def small(self) -> "Text":
        """Two beginnings."""
        return replace(self, text=("Once upon a time", "She ran to the house"))


@dataclass(frozen=True)
class Sets(Data):
    """Two sets of texts, to find what tells them apart."""

    a: str = "indoor"
    """The set that directions point to: .jsonl (field text), .txt, SUITE#CATEGORY, or happy, sad, indoor, outdoor."""
    b: str = "outdoor"
    """The set that they point away from."""
    template: str = "{text}"
    """What each text stands in, for example "User: {text}\\nAssistant:"; \\n is a new line."""

    def __post_init__(self) -> None:
        super().__post_init__()
        from streamscope.probes.prompts.sets import check_template

        check_template(self.template)

    def of(self, model: Any, like: Any = None) -> Any:
        """`probes.documents.OpenSets`."""
        from streamscope.probes.documents import open_sets

        return open_sets(self, model)


LabelTask = Literal["antecedent", "gender", "number", "position"]
Grouping = Literal["story", "antecedent"]


@dataclass(frozen=True)
class Labels(Data):
    """Labelled positions in stories, to learn the label from an activation."""

    task: LabelTask = "antecedent"
    """At the pronoun: which candidate it means. At the antecedent: its gender, its number. At any word: which part of
    the context it stands in."""
    groups: Grouping = "story"
    """What is never in training and test at once; with antecedent no word is, and there is no control task."""
    stories: Count = 400
    """Stories of the evaluation stream (seed 2, held-out combinations)."""

    def of(self, model: Any, like: Any = None) -> Any:
        """`probes.documents.OpenLabels`."""
        from streamscope.probes.documents import open_labels

        return open_labels(self, model)

    def small(self) -> "Labels":
        """A hundred and fifty stories."""
        return replace(self, stories=150)


def kind_of(spec: Any) -> type[Data]:
    """The kind of a specification, or of data that are opened already (they name their `kind`)."""
    return getattr(spec, "kind", type(spec))


def about_of(opened: Any) -> dict[str, Any]:
    """What opened data are, and which half of what."""
    half = getattr(opened, "part", "")
    return {**opened.about(), **({"half": half} if half else {})}


class Opened(Mapping[type[Data], Any]):
    """The data of one measurement by kind, each opened for the model when it is first asked for."""

    def __init__(self, model: Any, specs: Sequence[Any], like: "Opened | None" = None) -> None:
        self.model, self.like = model, like
        self.work: Path | None = None
        """A folder for unfinished work, which a killed command finds again and several share."""
        self.specs: dict[type[Data], Any] = {kind_of(spec): spec for spec in specs}
        self.opened: dict[type[Data], Any] = {k: spec for k, spec in self.specs.items() if not isinstance(spec, Data)}

    def __getitem__(self, kind: type[Data]) -> Any:
        if kind not in self.opened:
            if kind not in self.specs:
                raise KeyError(f"{kind.__name__} are not among the data of this instrument; name them in @instrument")
            like = self.like[kind] if self.like is not None and kind in self.like.opened else None
            self.opened[kind] = self.specs[kind].of(self.model, like)
        return self.opened[kind]

    def __iter__(self) -> Iterator[type[Data]]:
        return iter(self.specs)

    def __len__(self) -> int:
        return len(self.specs)


# ---- instruments -------------------------------------------------------------------------------


@dataclass
class Seen:
    """What an instrument saw: observations and the contrasts wanted of them, by the same names.

    `about` says what a reader must know (counts of what was left out), `extra` carries what the tables need besides.
    """

    blocks: "dict[str, Observations]"
    contrasts: "dict[str, list[Contrast]]"
    about: dict[str, Any] = field(default_factory=dict)
    arrays: "dict[str, np.ndarray]" = field(default_factory=dict)
    extra: Any = None


@dataclass(frozen=True, kw_only=True)
class Instrument(Validated):
    """Base of every analysis: a probe, an intervention, a reader of features.

    A subclass with `@instrument(name, data…)`, which sets `name` and `takes` (the kinds of data, with their defaults),
    has its options as fields, each with a type, a default and a docstring, numbers with their bounds
    (`k: Annotated[int, Bounds(low=1)] = 3`, or `Count` of `models.bounds`). It overrides `observe` (what the model did)
    and `tables` (its columns). Class attributes: `figures`, those of `probes.figures` with the names of columns;
    `runs`, what is measured where no run is given; `planted`, FILE::TEST, a test that measures a case whose answer is
    known; `quick`, options that make it quick, for the tests of the contract and the reference; `shared`, whether
    several processes can share the work on one run.
    """

    name: ClassVar[str] = ""
    takes: ClassVar[tuple[Data, ...]] = ()
    """The kinds of data with their defaults."""
    figures: ClassVar[tuple[Any, ...]] = ()
    """What is drawn, the first one where only one is shown."""
    runs: ClassVar[tuple[str, ...]] = ("stories/lfa",)
    """What is measured where no run is given."""
    planted: ClassVar[str] = ""
    """The test that measures it on a case whose answer is known: FILE::TEST."""
    quick: ClassVar[Mapping[str, Any]] = {}
    """Options that make it quick, for the tests of the contract and the reference."""
    shared: ClassVar[bool] = False
    """Whether several processes can share the work on one run (`share`), and a killed command goes on inside it."""

    @classmethod
    def getdoc(cls) -> str:
        """What a notebook shows for `Ablate?`: the documentation, then every option with its default."""
        said = [f"{name} = {default!r}\n    {meaning}" for name, default, meaning in options_of(cls)]
        return "\n".join([inspect.cleandoc(cls.__doc__ or ""), *(["", "Options:", ""] if said else []), *said])

    def measure(self, model: Any, *data: Any, progress: Progress = iter, like: Opened | None = None) -> "Result":
        """Measure a model, or the run that a string names, on data; kinds that are not given take their defaults.

        Data are specifications, or what they opened as (`probes.documents`).

        Raises `InputError` for data of a kind that this instrument does not take, and as its body does.
        """
        return self.run(self.open(model, *data, like=like), progress)

    def open(self, model: Any, *data: Any, like: Opened | None = None) -> Opened:
        """The data of a measurement, to be opened for the model. Raises `InputError` for weights that are NaN."""
        from streamscope.models.hooks import check_weights

        if isinstance(model, str | Path):
            from streamscope.models.checkpoint import opened

            model = opened(model)
        model = readable(model)
        for spec in data:
            if kind_of(spec) not in map(type, self.takes):
                kinds = [type(one).__name__ for one in self.takes]
                raise InputError(f"{self.name} takes {' and '.join(kinds) or 'no data'}, not {kind_of(spec).__name__}")
        given = {kind_of(spec): spec for spec in data}
        if len(given) < len(data):
            raise InputError(f"{self.name}: data of one kind were given twice; give them once")
        for one in given.values():
            if not isinstance(one, Data) and getattr(one, "tokenizer", None) is not None:
                from streamscope.probes.prompts.alignment import check_tokenizer

                check_tokenizer(model, one.tokenizer)
        if model is not None:
            check_weights(model)
        self.check(model)
        return Opened(model, [given.get(type(one), one) for one in self.takes], like)

    def run(self, data: Opened, progress: Progress = iter) -> "Result":
        """`measure` of data that are opened. Warns of hooks on the model that are not of `capture` or `edit`."""
        from streamscope.models.hooks import edited_at, hooked_at
        from streamscope.probes.observations import estimate_all
        from streamscope.probes.result import Result

        if hooked := hooked_at(data.model):
            warnings.warn(
                f"the model has hooks of yours at {', '.join(hooked)}: {self.name} measures it with them; "
                "to remove them, model.reset_hooks(including_permanent=True) or handle.remove()",
                stacklevel=3,
            )
        seen = self.observe(data.model, data, progress)
        if set(seen.blocks) != set(seen.contrasts):
            raise TypeError(f"{self.name}: blocks {sorted(seen.blocks)}, but contrasts of {sorted(seen.contrasts)}")
        estimates = estimate_all(seen.blocks, seen.contrasts)
        tables = self.tables(seen, estimates)
        about = {
            "instrument": self.name,
            "options": json.loads(json.dumps(asdict(self), default=str)),  # as it is on disk
            "data": {kind.__name__: about_of(one) for kind, one in data.opened.items()},
            "model": title_of(data.model),
            "edited_at": list(edited_at(data.model)),
            "hooked_at": list(hooked),
            **numerics_of(data.model),
            **recipe_of(data.model),
            **seen.about,
        }
        return Result(tables, seen.blocks, seen.contrasts, self.figures, seen.arrays, about)

    def share(self, data: Opened, progress: Progress) -> None:
        """The work on one run that many can share: what is open in the folder `data.work`, until nothing is.

        By default `share` of the package's module measure.
        """
        self._body().share(self, data.model, data, progress)

    def check(self, model: Any) -> None:
        """Raise `InputError` for a model that cannot be measured so; asked of run and control before all else."""

    def unread(self, data: Mapping[type[Data], Data]) -> dict[type[Data], str]:
        """The kinds of data that are never opened with these options, with the reason; the command refuses theirs.

        `data` are the specifications by kind.
        """
        return {}

    def settled(self, data: Opened) -> "Instrument":
        """This instrument with what depends on a model fixed (heads that are ranked in it), for its control."""
        return self

    def observe(self, model: Any, data: Opened, progress: Progress) -> Seen:
        """What the model does on the data; by default `observe` of the package's module measure."""
        return self._body().observe(self, model, data, progress)

    def tables(self, seen: Seen, estimates: "Mapping[str, Estimates]") -> "dict[str, Table]":
        """The estimates as tables; by default `tables` of the package's module measure."""
        return self._body().tables(self, seen, estimates)

    @classmethod
    def relate(cls, whole: "Result") -> "dict[str, Table]":
        """Further tables of several runs, or of one over its snapshots, from their tables joined (`probes.together`).

        By default `relate` of the package's module measure, where there is one.
        """
        own = "observe" in vars(cls)
        return {} if own or not hasattr(cls._body(), "relate") else cls._body().relate(whole)

    @classmethod
    def beside(cls, run: "Result", control: "Result") -> "dict[str, Table]":
        """What a control adds besides differences (ratios of spreads), as further tables.

        By default `beside` of the package's module measure, where there is one.
        """
        own = "observe" in vars(cls)
        return {} if own or not hasattr(cls._body(), "beside") else cls._body().beside(run, control)

    @classmethod
    def _body(cls) -> Any:
        try:
            return import_module(f"{cls.__module__}.measure")
        except ModuleNotFoundError as error:
            if error.name is None or not f"{cls.__module__}.measure".startswith(error.name):
                raise
            raise TypeError(
                f"{cls.__name__} needs the methods observe and tables, or a module {cls.__module__}.measure with both"
            ) from None


def readable(model: Any) -> Any:
    """`model`, or what instruments can read of a `TransformerBridge` that somebody booted.

    Raises `InputError` for a model of transformers or of TransformerLens that has other hooks.
    """
    home = type(model).__module__.split(".")[0]
    if type(model).__name__ == "TransformerBridge":
        from streamscope.models.huggingface.bridged import adopt

        return adopt(model)
    if home in ("transformers", "transformer_lens"):
        raise InputError(
            f"a {type(model).__name__} of {home} has none of the hooks that are read here: write it with "
            "save_pretrained(FOLDER) and give 'hf:FOLDER', or boot a TransformerBridge"
        )
    return model


def title_of(model: Any) -> str:
    """What titles call a model: its preset, where it comes from, whether it is edited, or hooked by somebody."""
    from streamscope.models.checkpoint import STORIES, run_label
    from streamscope.models.hooks import edited_at, hooked_at

    name = getattr(getattr(model, "config", None), "name", type(model).__name__)
    run, edited = getattr(model, "run", None), ", edited" if edited_at(model) else ""
    edited += ", hooked" if hooked_at(model) else ""
    if run is None:
        read = getattr(model, "label", "")
        return f"{name} ({read}{edited})" if read else f"{name}{edited}"
    label = run_label(run)
    return f"{label}{edited}" if label.startswith(STORIES) else f"{name} ({label}{edited})"


def recipe_of(model: Any) -> dict[str, Any]:
    """What runs that are seeds of one recipe share; of a snapshot of a training its `step`, `training` and `tokens`."""
    if not hasattr(model, "to_dict"):
        return {"recipe": type(model).__name__, "step": None}
    from streamscope.models.checkpoint import run_label, snapshot_step
    from streamscope.models.disk import Config, read_json
    from streamscope.models.training.config import tokens_seen

    whole = json.dumps(model.to_dict(), sort_keys=True, default=str)
    tokens = model.tokenizer.sha256 if model.tokenizer is not None else ""
    digest = hashlib.sha256((whole + tokens).encode()).hexdigest()[:16]
    run = getattr(model, "run", None)
    if run is None or (step := snapshot_step(run)) is None:
        return {"recipe": digest, "step": None}
    config = read_json(run / "config.json", Config)
    found = {"recipe": digest, "step": step, "training": run_label(run).rpartition("@")[0]}
    return found | ({"tokens": tokens_seen(config["training"], model.config.n_ctx, step)} if "data" in config else {})


def numerics_of(model: Any) -> dict[str, str | None]:
    """`dtype` of the weights, several with commas between; `autocast`: the dtype torch casts to, None where off."""
    weights = list(model.parameters()) if hasattr(model, "parameters") else []
    if not weights:
        return {"dtype": None, "autocast": None}
    import torch

    device = weights[0].device.type
    dtypes = {str(one.dtype).removeprefix("torch.") for one in weights}
    cast = str(torch.get_autocast_dtype(device)).removeprefix("torch.") if torch.is_autocast_enabled(device) else None
    return {"dtype": ", ".join(sorted(dtypes)), "autocast": cast}


def checkpoint_of(model: Any) -> dict[str, Any]:
    """Which weights a table is of: run, preset, sha256 of the weights, layers and heads."""
    from streamscope.models.checkpoint import run_folder, run_label
    from streamscope.models.tensors import sha256

    run, config = getattr(model, "run", None), model.config
    shape = {"preset": config.name, "n_layers": config.n_layers, "n_heads": config.n_heads}
    if run is not None:
        folder = run_folder(run)
        return {"run": run_label(folder), "checkpoint": sha256(folder / "model.safetensors"), **shape}
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return {"run": "", "checkpoint": digest.hexdigest(), **shape}


REGISTERED: dict[str, type[Instrument]] = {}


def need_streams(model: Any, name: str) -> None:
    """Raise `InputError` for a model without two parallel streams or more that mix."""
    if getattr(getattr(model.config, "residual", None), "n", 1) < 2:
        raise InputError(f"{name} is of parallel streams, which this model has not; give one of kromhc, mhc, hc")


def need_parts(model: Any, name: str) -> None:
    """Raise `InputError` for a model in TransformerLens' bridge, where an instrument reads our parts."""
    if not hasattr(model, "segment"):
        raise InputError(f"{name} reads the parts of a model; {model.config.name} is in a bridge, which has hooks only")


def options_of(made: type[Instrument]) -> list[tuple[str, Any, str]]:
    """(option, default, meaning) of the fields of an instrument, the meanings from the docstrings under them.

    A meaning is empty where there is none, and where there is no source to read: of a class typed into a shell.
    """
    try:
        source = textwrap.dedent(inspect.getsource(made))
        own = [statement for cls in ast.parse(source).body if isinstance(cls, ast.ClassDef) for statement in cls.body]
    except (OSError, TypeError, SyntaxError):  # the last: of a class in a function, with text at the margin
        own = []
    meanings = {}
    for one, below in pairwise(own):
        match one, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(meaning))):
                meanings[name] = " ".join(meaning.split())
    return [(one.name, one.default, meanings.get(one.name, "")) for one in fields(made)]


Class = TypeVar("Class", bound=type[Instrument])


@typing.dataclass_transform(kw_only_default=True, frozen_default=True)
def instrument(name: str, *takes: Data) -> Callable[[Class], Class]:
    """Make a class an instrument: a frozen dataclass under `name`, with what it takes and the defaults of these.

    Raises `TypeError` for a class without documentation, for data without their defaults (`Documents`, where
    `Documents()` is meant) and for an option that bears the name of a method or of an
    option of the command or the data. That every option has documentation, the test of the contract sees.
    """

    def register(cls: Class) -> Class:
        from streamscope.probes.command import Arguments

        if not (cls.__dict__.get("__doc__") or "").strip():  # dataclasses write one of their own
            raise TypeError(f"instrument {name!r} says nothing about itself; write its docstring")
        if classes := [one.__name__ for one in takes if isinstance(one, type)]:
            raise TypeError(f"instrument {name!r} takes data with their defaults: {classes[0]}(), not {classes[0]}")
        made = dataclass(frozen=True, kw_only=True)(cls)
        others: tuple[Any, ...] = (*takes, Arguments)
        taken = {*dir(Instrument), *(one.name for other in others for one in fields(other))}
        if clash := [one.name for one in fields(made) if one.name in taken]:
            raise TypeError(f"instrument {name!r}: the option {clash[0]!r} would hide a method or another option")
        if isinstance(made.runs, str) or isinstance(made.figures, str):
            raise TypeError(f"instrument {name!r}: runs and figures are tuples")
        named = [one.name for one in made.figures]
        if hidden := [one for one in named if named.count(one) > 1]:
            raise TypeError(f"instrument {name!r}: two figures are called {hidden[0]!r}, and one would hide the other")
        made.name, made.takes = name, takes
        REGISTERED[name] = made
        return made  # type: ignore[return-value]

    return register


def discover() -> dict[str, type[Instrument]]:
    """Every instrument of the house, found in the source of its rooms; none is listed by hand."""
    root = Path(__file__).resolve().parents[1]
    for room in ("probes", "interventions", "features"):
        for path in sorted((root / room).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if "\n@instrument(" in text:
                parts = path.relative_to(root).with_suffix("").parts
                import_module(".".join(("streamscope", *(parts[:-1] if parts[-1] == "__init__" else parts))))
    return dict(sorted(REGISTERED.items()))


def named(name: str) -> type[Instrument]:
    """An instrument by its name; `InputError` for one that there is not."""
    known = discover()
    if name not in known:
        raise unknown("instrument", name, list(known))
    return known[name]
