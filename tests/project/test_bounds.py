"""Every number that a command takes says which values it allows, and others end in one line that names it."""

import importlib
import math
import re
import typing
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from annotated_types import BaseMetadata, Ge, Gt, Le, Lt, MinLen

from streamscope.cli.bounds import Count, Positive, Seed, Share, check, declared
from streamscope.cli.errors import InputError
from streamscope.cli.parse import parse
from streamscope.models.training.config import Training

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("streamscope", "models", "probes", "interventions", "features", "viewer", "papers", "benchmarks")

PARSE = ("    options = parse(Options, argv", "main = comparison_main(Options,")
COMMANDS = [
    name
    for room in ROOMS
    for path in sorted((ROOT / room).rglob("*.py"))
    if any(how in path.read_text(encoding="utf-8") for how in PARSE)
    and path.name != "parse.py"
    and (name := ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
]


def numbers(kind: Any) -> Iterator[tuple[str, Any, Any]]:
    """(name, hint, default) of every field with a number in it, also of the configurations inside."""
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        found = set(leaves(hints[field.name]))
        inner = [one for one in found if is_dataclass(one)]
        if inner:
            yield from numbers(inner[0])
        elif {int, float} & found:
            yield field.name, hints[field.name], field.default


def leaves(hint: Any) -> Iterator[Any]:
    if typing.get_origin(hint) is Annotated:
        hint = hint.__origin__
    inner = () if typing.get_origin(hint) is Literal else typing.get_args(hint)
    for one in inner:
        yield from leaves(one)
    if not inner:
        yield hint


def outside(hint: Any) -> Iterator[str]:
    """Numbers as one types them that a declaration excludes."""
    if str in leaves(hint):  # where any word is taken, a number out of bounds is one
        return
    yield from ("nan", "inf", "1e39") if float in leaves(hint) else (str(10**20),)
    for kind, step in ((Ge, -1), (Gt, 0), (Le, 1), (Lt, 0)):
        yield from (f"{getattr(limit, kind.__name__.lower()) + step:.10g}" for limit in declared(hint, kind))


ALL_OF_TRAINING = typing.get_type_hints(Training, include_extras=True)


@pytest.mark.parametrize("module", COMMANDS)
def test_every_number_is_declared_and_nothing_else_is_taken(module: str) -> None:
    kind = importlib.import_module(module).Options
    of_training = {f.name for f in fields(Training)} if module != "models.train" else set()
    for name, hint, default in numbers(kind):
        if name in of_training and hint == ALL_OF_TRAINING[name]:
            continue  # declared once, and typed in for models.train
        width = len(default) if isinstance(default, tuple) and "..." not in str(hint) else 1
        for text in outside(hint):
            argv = [f"--{name.replace('_', '-')}={text}"] if width == 1 else [f"--{name}", *[text] * width]
            with pytest.raises(InputError) as caught:
                parse(kind, argv, "")
            said = str(caught.value)  # of a dataclass that checks itself, or of the parser, as nan for an int
            assert re.match(rf"(--)?{name.replace('_', '[_-]')}[: ]", said) or said.endswith("--help lists the options")
            assert "\n" not in said and "--------" not in said


@pytest.mark.parametrize("field", [f.name for f in fields(Training) if f.type not in ("str", "bool")])
def test_python_callers_of_training_get_the_same_line(field: str) -> None:
    if not list(declared(ALL_OF_TRAINING[field], BaseMetadata)):
        assert isinstance(getattr(Training(), field), str | bool | None)
        return
    whole = int in leaves(typing.get_type_hints(Training)[field])
    for value in (-1,) if whole else (math.nan, math.inf, -1.0):
        with pytest.raises(InputError, match=f"^{field}( must be|: input should be)"):
            Training(**{field: value})


@dataclass(frozen=True)
class Example:
    rate: Positive = 1.0
    share: Share | None = None
    counts: tuple[Count, ...] = (1,)
    of: Share | Literal["own"] = "own"
    several: Annotated[tuple[Count, ...], MinLen(1)] = (1,)
    seed: Seed = 0
    free: float = 0.0
    flag: bool = True


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rate": 0.0}, "rate must be above 0, got 0.0"),
        ({"share": 1.5}, "share must be at most 1, got 1.5"),
        ({"counts": (3, 0)}, "counts must be at least 1, got 0"),
        ({"several": ()}, "several: give at least one"),
        ({"of": -0.5}, "of must be at least 0, got -0.5"),
        ({"seed": 2**31}, "seed must be below 2147483648, got 2147483648"),
        ({"free": float("-inf")}, "free must be a finite number, got -inf"),
        ({"free": 1e39}, "free is too large: 1e+39 is beyond ±1.7e+38"),
        ({"counts": (10**20,)}, "counts is too large: 100000000000000000000 is beyond ±9.22e+18"),
    ],
)
def test_lines(change: dict[str, Any], message: str) -> None:
    check(Example())
    check(Example(share=1.0, counts=(), of=0.0, seed=2**31 - 1, free=-1e38))
    with pytest.raises(InputError) as caught:
        check(replace(Example(), **change))
    assert str(caught.value) == message
