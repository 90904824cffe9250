"""What every instrument is: a frozen dataclass whose fields are its options, measured on a model and data.

    r = Ablate(heads="L4.*").measure(model, Documents("valid.txt"))         in a notebook
    python -m interventions.ablate runs/lfa --heads L4.* --data valid.txt   the same thing

    @instrument("ablate", Documents(max_documents=200), Prompts())
    class Ablate(Instrument):
        \"\"\"One sentence; then formula, when to use it, source. This is the command's help.\"\"\"
        heads: tuple[str, ...] = ("all",)
        \"\"\"Heads: L5.H4, L4.*, …\"\"\"

You write two functions in a module that the method `body` imports or, for an instrument of one file, two methods:

    observe(self, model, data, progress) -> InstrumentData    cells × units, and the contrasts wanted
    tables(self, seen, estimates) -> {name: Table}            the estimates as tables

Estimates (`instruments.observations`), tables and files (`instruments.result`), figures, control, seeds and command
(`instruments.command`) are the same for all. This module imports nothing heavy, so that `--help` answers at once.
"""

import hashlib
import inspect
import json
import sys
import typing
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, astuple, dataclass, field, fields, is_dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from streamscope.cli.errors import InputError
from streamscope.cli.help import meanings
from streamscope.instruments.data import Data, Half, Opened, check_tokenizer, kind_of
from streamscope.instruments.options import Arguments, ValidatedOptions
from streamscope.instruments.progress import Progress, notebook_bar, say
from streamscope.instruments.registry import REGISTERED

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from streamscope.instruments.observations import Contrast, Estimates, Measure, Observations
    from streamscope.instruments.result import Result
    from streamscope.instruments.table import Table


@dataclass
class InstrumentData:
    """What an instrument saw: observations and the contrasts wanted of them, by the same names.

    `about` says what a reader must know (how many cases were left out), `extra` carries what else the tables need.
    """

    blocks: "dict[str, Observations]" = field(default_factory=dict)
    contrasts: "dict[str, list[Contrast]]" = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    arrays: "dict[str, np.ndarray]" = field(default_factory=dict)
    extra: Any = None

    def add(
        self, measure: "Measure", cells: "pd.DataFrame", units: "pd.DataFrame", total: Any, size: Any = None, *,
        block: str = "", quantity: str = "", start: int = 0, **options: Any,
    ) -> "Observations":  # fmt: skip
        """Add what was seen of a measure, and a contrast for each cell by itself, labelled by the cell's keys.

        `total` and `size` are [cells, units]; by default a size is 1, and 0 where the total is NaN. `block` is the name
        of both, by default the measure's; `quantity` that of the contrasts, by default the block's. Cells before
        `start` have no contrast. `options` are other fields of `Contrast`, a list for one value per contrast.
        """
        from streamscope.instruments.observations import Observations, each

        size, block = total == total if size is None else size, block or measure.name
        self.blocks[block] = Observations(measure=measure, cells=cells, units=units, total=total, size=size)
        self.contrasts[block] = each(quantity or block, cells[start:], start, **options)
        return self.blocks[block]


@dataclass(frozen=True, kw_only=True)
class Instrument(ValidatedOptions):
    """Base of every analysis: a probe, an intervention, a reader of features.

    A subclass with `@instrument(name, data…)` has its options as fields, each with a type, a default and a docstring,
    numbers with their bounds (`k: Annotated[int, Ge(1)] = 3`, or `Count` of `cli.bounds`). It overrides `observe` and
    `tables`, or `body`: a method that it does not override is the function of that name in the module that `body`
    returns; only `observe` and `tables` must be there.
    """

    name: ClassVar[str] = ""
    takes: ClassVar[tuple[Data, ...]] = ()
    """The kinds of data with their defaults."""
    figures: ClassVar[tuple[Any, ...]] = ()
    """What is drawn (`instruments.figures`, with the names of columns), the first one where only one is shown."""
    runs: ClassVar[tuple[str, ...]] = ("stories/lfa",)
    """What is measured where no run is given."""
    planted: ClassVar[str] = ""
    """The test that measures it on a case whose answer is known: FILE::TEST."""
    quick: ClassVar[Mapping[str, Any]] = {}
    """Options that make it quick, for the tests of the contract and the reference."""
    reads_text: ClassVar[bool] = True
    """Whether it gives the model any text, so that `--bos` has an effect."""
    exports: ClassVar[tuple[str, ...]] = ()
    """Suffixes of further files that `export(result, path)` of the package's module formats writes."""
    continues: ClassVar[bool] = False
    """Whether it writes parts into `data.work`, so that a killed command goes on inside a run."""

    @classmethod
    def getdoc(cls) -> str:
        """What a notebook shows for `Ablate?`: the documentation, then every option with its default."""
        options = [f"{name} = {default!r}\n    {meaning}" for name, default, meaning in options_of(cls)]
        return "\n".join([inspect.cleandoc(cls.__doc__ or ""), *(["", "Options:", ""] if options else []), *options])

    def measure(self, model: Any, *data: Any, progress: Progress | None = None, like: Opened | None = None) -> "Result":
        """Measure a model, or the run that a string names, on data; kinds that are not given take their defaults.

        Data are specifications, or what they opened as (`instruments.open_data`). Options that a specification does not
        give are those of the command. A notebook shows a bar with the time left; `progress` wraps the steps in
        something else, `iter` in nothing.
        """
        opened = self.open(model, *data, like=like)
        return self.run(opened, notebook_bar(title_of(opened.model)) if progress is None else progress)

    def open(self, model: Any, *data: Any, like: Opened | None = None) -> Opened:
        """The data of a measurement, to be opened for the model."""
        from streamscope.instruments.open_data import open_data
        from streamscope.models.checkpoint import load_for_instruments
        from streamscope.models.hooks import check_weights

        model = load_for_instruments(model) if isinstance(model, str | Path) else model
        if model is not None or all(type(spec).alone is Data.alone for spec in self.takes):  # no files that need none
            model = readable(model)
        specs: dict[type[Data], Any] = dict(zip(map(type, self.takes), self.takes, strict=True))
        given: dict[type[Data], Any] = {}
        for spec in data:
            if (kind := kind_of(spec)) not in specs:
                kinds = " and ".join(kind.__name__ for kind in specs) or "no data"
                raise InputError(f"{self.name} takes {kinds}, not {kind.__name__}")
            if kind in given:
                raise InputError(f"{self.name}: data of one kind were given twice; give them once")
            if not isinstance(spec, Data) and getattr(spec, "tokenizer", None) is not None:
                check_tokenizer(model, spec.tokenizer)
            given[kind] = spec.filled(specs[kind]) if isinstance(spec, Data) else spec
        self.check_read(given.values())
        if model is not None:
            check_weights(model)
        self.check(model)
        return Opened(model, list((specs | given).values()), like, open_data)

    def run(self, data: Opened, progress: Progress = iter) -> "Result":
        """`measure` of data that are opened. Warns of hooks on the model that are not of `capture` or `edit`."""
        from streamscope.cli.provenance import code
        from streamscope.instruments.observations import estimate_all
        from streamscope.instruments.result import Result
        from streamscope.models.hooks import edited_at, hooked_at

        if hooked := hooked_at(data.model):
            warnings.warn(
                f"the model has hooks of yours at {', '.join(hooked)}: {self.name} measures it with them; "
                "to remove them, model.reset_hooks(including_permanent=True) or handle.remove()",
                stacklevel=3,
            )
        checkpoint = {"checkpoint": None} if not hasattr(data.model, "state_dict") else checkpoint_of(data.model)
        if getattr(data.model, "digests", None) is not None:
            data.model.changed = not checkpoint["run"]
        data.say = partial(say, progress)
        findings = self.observe(data.model, data, progress)
        blocks, contrasts = sorted(findings.blocks), sorted(findings.contrasts)
        if blocks != contrasts:
            raise TypeError(f"{self.name}: blocks {blocks}, but contrasts of {contrasts}")
        estimates = estimate_all(findings.blocks, findings.contrasts)
        tables = self.tables(findings, estimates)
        sources = {}
        for kind, source in data.items():
            half = {"half": source.part} if getattr(source, "part", "") else {}
            sources[kind.__name__] = source.about() | half
        about = {
            "instrument": self.name,
            "options": json.loads(json.dumps(asdict(self), default=str)),  # the form in which files hold it
            "data": sources,
            "model": title_of(data.model),
            "edited_at": list(edited_at(data.model)),
            "hooked_at": list(hooked),
            "checkpoint": checkpoint["checkpoint"],
            **numerics_of(data.model),
            **getattr(data.model, "origin", {}),
            "bos": bos_of(data.model),
            **recipe_of(data.model),
            **code(),
            **findings.about,
        }
        return Result(tables, findings.blocks, findings.contrasts, self.figures, findings.arrays, about)

    def check(self, model: Any) -> None:
        """Raise `InputError` for a model that cannot be measured so; asked of run and control before all else."""
        self._in_body("check", self, model)

    def check_read(self, data: Iterable[Any]) -> None:
        """Raise `InputError` for what is given of data that these options leave unread (`unread`).

        Data that equal their defaults, and data that were opened by hand, are let through.
        """
        defaults: dict[type[Data], Data] = dict(zip(map(type, self.takes), self.takes, strict=True))
        specs: dict[type[Data], Any] = dict(defaults)
        for spec in data:
            if isinstance(spec, Data):
                specs[kind_of(spec)] = spec
        for kind, reason in self.unread(specs).items():
            if isinstance(spec := specs[kind], Half):
                raise InputError(f"half {spec.side} of {kind.__name__} has no effect, because {reason}: leave it out")
            for option in fields(spec):
                if getattr(spec, option.name) != getattr(defaults[kind], option.name):
                    name = option.name.replace("_", "-")
                    raise InputError(f"--{name} has no effect, because {reason}: leave it out")

    def unread(self, data: Mapping[type[Data], Data]) -> dict[type[Data], str]:
        """The kinds of `data` (by kind) that are never opened with these options, with the reason for `check_read`."""
        return {}

    def with_resolved_heads(self, data: Opened) -> "Instrument":
        """This instrument for its control: ranked heads, default streams and layers are those of this model."""
        return self._in_body("with_resolved_heads", self, data, default=self)

    def observe(self, model: Any, data: Opened, progress: Progress) -> InstrumentData:
        """What the model does on the data."""
        return self.body().observe(self, model, data, progress)

    def tables(self, data: InstrumentData, estimates: "Mapping[str, Estimates]") -> "dict[str, Table]":
        """The estimates as tables."""
        return self.body().tables(self, data, estimates)

    @classmethod
    def relate(cls, whole: "Result") -> "dict[str, Table]":
        """Further tables of several runs, or of one over its snapshots, made from their joined tables."""
        return cls._in_body("relate", whole, default={})

    @classmethod
    def control_tables(cls, run: "Result", control: "Result") -> "dict[str, Table]":
        """What a control adds besides differences (ratios of spreads), as further tables."""
        return cls._in_body("control_tables", run, control, default={})

    @classmethod
    def _in_body(cls, name: str, *args: Any, default: Any = None) -> Any:
        function = None if cls.body is Instrument.body else getattr(cls.body(), name, None)
        return function(*args) if function else default

    @staticmethod
    def body() -> ModuleType:
        """The module with `observe` and `tables`, imported here so that `--help` loads nothing heavy."""
        raise TypeError("an instrument needs the methods observe and tables, or body, which returns a module with both")


def options_of(cls: type[Instrument]) -> list[tuple[str, Any, str]]:
    """(option, default, meaning) of the fields; "" without a docstring below, or a source: typed into a shell."""
    meaning_of = meanings(cls)
    return [(option.name, option.default, " ".join(meaning_of.get(option.name, "").split())) for option in fields(cls)]


Class = TypeVar("Class", bound=type[Instrument])


@typing.dataclass_transform(kw_only_default=True, frozen_default=True)
def instrument(name: str, *takes: Data) -> Callable[[Class], Class]:
    """Make a class an instrument: a frozen dataclass under `name`, with what it takes and the defaults of these.

    Its docstring, which is also its help, is by default that of its package.

    Raises `TypeError` for a class without documentation, for data without their defaults (`Documents`, where
    `Documents()` is meant), and for an option with the name of a method, or of an option of the command or the data.
    """

    def register(cls: Class) -> Class:
        home = sys.modules.get(cls.__module__)
        cls.__doc__ = cls.__dict__.get("__doc__") or (home.__doc__ if hasattr(home, "__path__") else None)
        if not (cls.__doc__ or "").strip():  # dataclasses write one of their own
            raise TypeError(f"instrument {name!r} says nothing about itself; write its docstring")
        if classes := list(filter(inspect.isclass, takes)):
            kind = classes[0].__name__
            raise TypeError(f"instrument {name!r} takes data with their defaults: {kind}(), not {kind}")
        instrument_class = dataclass(frozen=True, kw_only=True)(cls)
        reserved = {*dir(Instrument)}.union(*map(attrgetter("__dataclass_fields__"), (*takes, Arguments)))
        if clash := reserved.intersection(map(attrgetter("name"), fields(instrument_class))):
            raise TypeError(f"instrument {name!r}: the option {min(clash)!r} would hide a method or another option")
        if isinstance(instrument_class.runs, str) or isinstance(instrument_class.figures, str):
            raise TypeError(f"instrument {name!r}: runs and figures are tuples")
        figures = list(map(attrgetter("name"), instrument_class.figures))
        if len(set(figures)) < len(figures):
            twice = f"two figures are called {max(figures, key=figures.count)!r}, and one would hide the other"
            raise TypeError(f"instrument {name!r}: {twice}")
        instrument_class.name, instrument_class.takes = name, takes
        REGISTERED[name] = instrument_class
        return instrument_class  # type: ignore[return-value]

    return register


# ---- facts about a model that every result carries, and checks before it is measured -----------


def readable(model: Any) -> Any:
    """`model`, or what instruments can read of a `TransformerBridge`; `InputError` for another's model, or none."""
    home = type(model).__module__.split(".")[0]
    if type(model).__name__ == "TransformerBridge":
        from streamscope.models.interop.huggingface.bridged import adopt

        return adopt(model)
    if home in ("transformers", "transformer_lens"):
        raise InputError(
            f"a {type(model).__name__} of {home} has none of the hooks that are read here: write it with "
            "save_pretrained(FOLDER) and give 'hf:FOLDER', or boot a TransformerBridge"
        )
    if home in ("builtins", "torch") and not hasattr(model, "config"):  # a compiled model has its own
        raise InputError(f"{model!r:.80} is no model: give one that models.load returns, or its name, as stories/lfa")
    return model


def title_of(model: Any) -> str:
    """What titles call a model: its preset, where it comes from, whether it is edited, hooked, or has other weights."""
    from streamscope.models.checkpoint import STORIES, run_label
    from streamscope.models.hooks import edited_at, hooked_at

    name, run = getattr(getattr(model, "config", None), "name", type(model).__name__), getattr(model, "run", None)
    edited = ", edited" if edited_at(model) else ""
    edited += ", hooked" if hooked_at(model) else ""
    edited += ", without BOS" if bos_of(model) == "none" else ""
    edited += ", weights changed" if getattr(model, "changed", False) else ""
    label = getattr(model, "label", "") if run is None else run_label(run)
    if run is not None and label.startswith(STORIES):
        return f"{label}{edited}"
    return f"{name} ({label}{edited})" if label else f"{name}{edited}"


def bos_of(model: Any) -> str | None:
    """The token that begins every text, and whether the tokenizer's files add it; None where no tokenizer says it."""
    return getattr(getattr(model, "tokenizer", None), "bos_policy", getattr(model, "origin", {}).get("bos"))


def recipe_of(model: Any) -> dict[str, Any]:
    """What runs that are seeds of one recipe share; of a snapshot of a training its `step`, `training` and `tokens`.

    `recipe` is a digest of configuration and tokenizer, and of a run's training and data (`config.seeds_share`); of a
    model in a bridge its family, sizes and tokenizer.
    """
    if not hasattr(model, "to_dict"):
        shape = astuple(model.config) if is_dataclass(getattr(model, "config", None)) else ()  # family and sizes
        words = getattr(getattr(model, "tokenizer", None), "sha256", "")
        return {"recipe": " ".join(filter(None, map(str, (type(model).__name__, *shape, words)))), "step": None}
    from streamscope.cli.disk import Config, read_json
    from streamscope.models.checkpoint import run_label, snapshot_step
    from streamscope.models.training.config import seeds_share, tokens_seen

    config_text = json.dumps(model.to_dict(), sort_keys=True, default=str)
    tokens = model.tokenizer.sha256 if model.tokenizer is not None else ""
    run, step, trained = getattr(model, "run", None), None, ""
    if run is not None and (run / "config.json").is_file():
        config, step = read_json(run / "config.json", Config), snapshot_step(run)
        trained = seeds_share(config)
    digest = hashlib.sha256((config_text + tokens + trained).encode()).hexdigest()[:16]
    if run is None or step is None:
        return {"recipe": digest, "step": None}
    recipe = {"recipe": digest, "step": step, "training": run_label(run).rpartition("@")[0]}
    return recipe | ({"tokens": tokens_seen(config["training"], model.config.n_ctx, step)} if "data" in config else {})


def numerics_of(model: Any) -> dict[str, str | None]:
    """`dtype` of the weights, several with commas between; `autocast`: the dtype torch casts to, None where off."""
    weights = list(model.parameters()) if hasattr(model, "parameters") else []
    if not weights:
        return {"dtype": None, "autocast": None}
    import torch

    device = weights[0].device.type
    dtypes = ", ".join(sorted(set(map(str, map(attrgetter("dtype"), weights)))))
    cast = str(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else None
    return {"dtype": dtypes.replace("torch.", ""), "autocast": cast and cast.removeprefix("torch.")}


def checkpoint_of(model: Any) -> dict[str, Any]:
    """Which weights a model has: run, preset, layers, heads, and `checkpoint`, their sha256 (`models.tensors.digest`).

    That is the `weights` of the run's manifest.json, in whatever dtype they were loaded. `run` is "" for weights that
    no run has: made in Python, or changed after they were loaded.
    """
    from streamscope.models.checkpoint import run_label
    from streamscope.models.tensors import digest

    config, checkpoint = model.config, digest(model.state_dict())
    disk_digest, loaded_digest = getattr(model, "digests", None) or ("", "")
    run = run_label(model.run) if checkpoint == loaded_digest else ""
    shape = {"preset": config.name, "n_layers": config.n_layers, "n_heads": config.n_heads}
    return {"run": run, "checkpoint": disk_digest if run else checkpoint, **shape}


def need_streams(model: Any, name: str) -> None:
    """Raise `InputError` for a model without two parallel streams or more that mix."""
    if getattr(getattr(model.config, "residual", None), "n", 1) < 2:
        raise InputError(f"{name} measures parallel streams, which this model lacks: give one of kromhc, mhc, hc")


def need_parts(model: Any, name: str) -> None:
    """Raise `InputError` for a model in TransformerLens' bridge, for an instrument that reads our modules."""
    if not hasattr(model, "segment"):
        raise InputError(f"{name} reads our modules; {model.config.name} is in a TransformerBridge with hooks only")
