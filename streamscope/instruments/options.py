"""Options whose values are checked when they are made, those that every command of an instrument has, and --out.

It imports nothing heavy.
"""

import inspect
import os
import typing
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tyro

from streamscope.cli.bounds import check
from streamscope.cli.disk import check_writable
from streamscope.cli.errors import InputError, UnknownOption, unknown
from streamscope.cli.help import Group
from streamscope.cli.launch import LaunchOptions
from streamscope.text import BosChoice

MODEL, OUTPUT = Group("Model"), Group("Output")


class _Signature:
    """`__signature__` of a class of options: its fields with plain types, bounds left to the validation."""

    def __get__(self, instance: Any, owner: type) -> inspect.Signature:
        if "__init__" not in vars(owner):  # a base that is no dataclass: pydoc asks it, too
            raise AttributeError("__signature__")
        hints = typing.get_type_hints(owner)  # without Annotated and what stands in it
        _, *parameters = inspect.signature(vars(owner)["__init__"]).parameters.values()
        for i, parameter in enumerate(parameters):
            parameters[i] = parameter.replace(annotation=hints[parameter.name])
        return inspect.Signature(parameters)


class ValidatedOptions:
    """Base of options: every field has the declared type and lies in its declared bounds, else `InputError` says so.

    What is converted is said at `cli.bounds.check`.
    """

    __signature__: ClassVar[Any] = _Signature()

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        for name in kwargs:
            if name not in cls.__init__.__annotations__:
                names = [option.name for option in fields(cls)]  # type: ignore[arg-type]
                raise UnknownOption(str(unknown(f"option of {cls.__name__}", name, names)))
        return super().__new__(cls)

    __post_init__ = check

    def check_sources(self) -> None:
        """Raise `InputError` for a file that the options name and that is not there; a command asks before its work.

        It imports nothing heavy: a name with a mistake is answered at once.
        """
        for option in fields(self):  # type: ignore[arg-type]
            value = getattr(self, option.name)
            for path in value if isinstance(value, tuple) else (value,):
                if isinstance(path, Path) and not path.expanduser().exists():
                    raise InputError(f"--{option.name.replace('_', '-')} {path} does not exist; check the path")


@dataclass(frozen=True, kw_only=True)
class Arguments(LaunchOptions):
    """What every command of an instrument takes, in addition to its own options and those of its data."""

    run: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[RUN…]")] = ()
    """Run folders, snapshots (runs/lfa@512, runs/lfa@all), hf:FOLDER, or the bundled stories/NAME: lfa, std-t,
    d-cas, cfm, pls, c2, dst-dense, dst-kron, llama, hdpl, gpt2, canon, kromcanon, kromcanon-b2,
    kromcanon-bf16, std-t-rope, dst-ind, dst-full-ind, kromhc. Several runs make one table, with seeds as units, and
    snapshots make a curve over steps. Default: stories/lfa, or the bundled model that has the part in question."""
    control: Annotated[str | None, MODEL] = None
    """A control run with as many layers and heads. The table shows its values and the differences, paired by unit. With
    RUN@all each snapshot is compared with the control's snapshot of the same step."""
    edit: Annotated[tuple[str, ...], MODEL] = ()
    """Measure the runs under edits of your own, and the control without them. Give FILE.json as saved in the live page,
    FOLDER:17 to remove a latent of a dictionary, FILE.py:NAME@HOOK for a function (value, hook) -> value, or
    FILE.py:NAME for a function (model) -> {hook: function}. A whole .py file is executed with your rights: give only
    files that you trust. To see the effect of an edit, give the same run as --control."""
    out: Annotated[Path | None, OUTPUT] = None
    """Write the main table here as .parquet, with the other tables and the observations next to it; .csv writes
    the tables alone. Ctrl-C writes what was measured so far, and never over an earlier result. Of several runs, those
    that were measured before a kill are not measured again when you repeat the command."""
    figure: Annotated[Path | None, OUTPUT] = None
    """Write the first figure here: .html, .svg, .pdf or .png."""
    bos: Annotated[BosChoice, MODEL] = "yes"
    """Whether every text begins with BOS; model: as the files of its tokenizer say. In Python, before measuring:
    `model.tokenizer = model.tokenizer.with_bos("no")`."""
    device: Annotated[str, MODEL] = "auto"
    """auto, cpu or cuda."""
    dtype: Annotated[Literal["fp32", "bf16"], MODEL] = "fp32"
    """Storage of weights and activations: bf16 takes half of the memory and keeps fewer than three digits."""


def check_out(path: Path, instrument: str = "", inputs: Sequence[Path] = (), exports: Sequence[str] = ()) -> Path:
    """`path`, where a table of an instrument can be written there and destroys nothing: none of the `inputs` (files, or
    what lies in folders), no table of another instrument. `exports` are further suffixes."""
    if path.name == ".." or os.path.isdir(path):
        raise InputError(f"--out {path} is a folder; name a file in it, as {path / 'table.parquet'}")
    if path.suffix not in (".parquet", ".csv", *exports):
        suffixes = "".join(f" or {suffix}" for suffix in exports)
        raise InputError(
            f"--out {path}: a table is parquet or CSV, name it {path.with_suffix('.parquet')} or .csv{suffixes}"
        )
    target, arrays = path.resolve(), path.with_suffix(".safetensors")
    if os.path.exists(path) or os.path.exists(arrays):
        from streamscope.instruments.table import check_own, maker_of  # pandas, only where there is a table
    for file in (source.resolve() for source in inputs):
        is_output = file in (target, arrays.resolve()) or (
            file.parent == target.parent and file.suffix == target.suffix and file.name.startswith(f"{target.stem}-")
        )  # other tables are called after the main one
        if is_output or (file.is_dir() and file in target.parents and os.path.exists(path) and not maker_of(path)):
            raise InputError(f"--out {path}: {file.name} is an input, which would be lost; name another file")
    for file in filter(os.path.exists, (path, arrays) if instrument else ()):
        check_own(file, instrument)
    check_writable(path)
    return path
