"""Configurations as JSON, dotted overrides and mixing signatures. Unknown names raise.

to_dict(config) / from_dict(ModelConfig, data)          exact round trip
override(config, {"attention.v": "kron", "n_layers": 2, "mixing": "kron-kron/dns-dns"})
"""

import dataclasses
import types
import typing
from collections.abc import Hashable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar

from streamscope.cli.errors import InputError, unknown
from streamscope.models import config as c

T = TypeVar("T")


@cache
def hints_of(cls: Hashable) -> dict[str, Any]:
    """The types of a class's fields: text is evaluated once."""
    return typing.get_type_hints(cls)


def kinds(base: type[c.Part]) -> dict[str, type[c.Part]]:
    """Every concrete part that derives from `base`, by kind."""
    parts = {base.kind: base} if "kind" in vars(base) else {}
    for sub in base.__subclasses__():
        parts |= kinds(sub)
    return parts


def to_dict(value: Any) -> Any:
    """A part (or any nesting of parts) as plain JSON data; parts carry their `kind`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        data = {f.name: to_dict(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"kind": value.kind, **data} if isinstance(value, c.Part) else data
    return value


def from_dict(cls: type[T], data: Any, where: str = "config") -> T:
    """The inverse of `to_dict`. Raises `InputError` on unknown or missing kinds and fields."""
    if not isinstance(data, dict):
        raise InputError(f"{where}: expected an object, got {data!r}")
    data = dict(data)
    if issubclass(cls, c.Part):
        kind = data.pop("kind", getattr(cls, "kind", None))
        options = kinds(cls)
        if not isinstance(kind, str) or kind not in options:
            raise unknown(f"kind of {where}", str(kind), sorted(options))
        cls = typing.cast(type[T], options[kind])
    data = getattr(cls, "from_older", dict)(data)
    hints = hints_of(typing.cast(Hashable, cls))
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    if more := [name for name in data if name not in fields]:
        raise unknown(f"field of {where}", more[0], list(fields))
    for name, field in fields.items():
        if name not in data and field.default is field.default_factory is dataclasses.MISSING:
            raise InputError(f"{where} lacks the field {name}")
    return cls(**{n: _value(hints[n], v, f"{where}.{n}") for n, v in data.items()})


def _value(hint: Any, value: Any, where: str) -> Any:
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None or value in ("none", "null"):
            return None
        (hint,) = [a for a in typing.get_args(hint) if a is not type(None)]
        return _value(hint, value, where)
    if origin is typing.Literal:
        if value not in typing.get_args(hint):
            raise InputError(f"{where} must be one of {', '.join(map(str, typing.get_args(hint)))}, got {value!r}")
        return value
    if isinstance(hint, type) and issubclass(hint, c.Part):
        if isinstance(value, hint):
            return value
        if isinstance(value, str):  # `kron` is `kronecker`
            shorts = {k.short: name for name, k in kinds(hint).items() if issubclass(k, c.Projection)}
            value = {"kind": shorts.get(value, value)}
        return from_dict(hint, value, where)
    return _scalar(hint, value, where)


def _scalar(hint: Any, value: Any, where: str) -> Any:
    """Convert to a number, flag or text, also from a string of the command line."""
    converted = value
    with suppress(ValueError, TypeError, OverflowError):
        if hint is bool and isinstance(value, str):
            converted = {"true": True, "false": False}.get(value.lower())
        elif hint in (int, float) and not isinstance(value, bool):
            converted = hint(value)
    if type(converted) is not hint or (hint is int and isinstance(value, float) and converted != value):
        raise InputError(f"{where} must be {hint.__name__}, got {value!r}")
    return converted


def override(config: T, changes: dict[str, Any], where: str = "") -> T:
    """Replace fields of `config` by dotted name.

    `mixing` sets v, o, up and down at once; `init_std` alone also sets `init` back to N(0, init_std) everywhere.
    """
    changes = dict(changes)
    if isinstance(config, c.ModelConfig) and "mixing" in changes:
        changes = parse_mixing(changes.pop("mixing")) | changes
    fields: dict[str, Any] = {}
    below: dict[str, dict[str, Any]] = {}
    for name, value in changes.items():
        head, _, tail = name.partition(".")
        if tail:
            below.setdefault(head, {})[tail] = value
        else:
            fields[head] = value
    if isinstance(config, c.ModelConfig) and "init_std" in fields and "init" not in fields and "init" not in below:
        fields["init"] = c.Initial()  # otherwise σ changes nothing in a preset whose rules are not N(0, σ)
    hints = hints_of(typing.cast(Hashable, type(config)))
    names = [f.name for f in dataclasses.fields(config)]  # type: ignore[arg-type]
    if more := [name for name in (*fields, *below) if name not in names]:
        raise unknown(f"field of {where.rstrip('.') or getattr(config, 'kind', 'model')}", more[0], names)
    new = {n: _keep_shared_fields(getattr(config, n), v, _value(hints[n], v, f"{where}{n}")) for n, v in fields.items()}
    for name, inner in below.items():
        part = new.get(name, getattr(config, name))
        if part is None:
            raise InputError(f"{where}{name} is none: set {where}{name}=KIND before {where}{name}.{next(iter(inner))}")
        if not isinstance(part, c.Part):
            raise InputError(f"{where}{name} has no fields, got {where}{name}.{next(iter(inner))}")
        new[name] = override(part, inner, f"{where}{name}.")
    return dataclasses.replace(config, **new)  # type: ignore[type-var]


def _keep_shared_fields(old: Any, value: Any, new: Any) -> Any:
    """A part chosen by the name of its kind keeps the fields that it shares with the previous part."""
    if not (isinstance(value, str) and isinstance(old, c.Part) and isinstance(new, c.Part)):
        return new
    shared = {f.name for f in dataclasses.fields(old)} & {f.name for f in dataclasses.fields(new)}
    return dataclasses.replace(new, **{name: getattr(old, name) for name in shared})


def parse_mixing(signature: str) -> dict[str, str]:
    """Translate `kron-kron/dns-dns` into overrides of v, o, up, down (DST §2.7)."""
    plain, _, qk = signature.removesuffix(")").partition(" (q-k ")
    groups = [group.split("-") for group in (*plain.split("/"), *([qk] if qk else []))]
    shorts = sorted(k.short for k in kinds(c.Projection).values() if issubclass(k, c.Projection))
    if [len(g) for g in groups] != [2] * (3 if qk else 2):
        raise InputError(f"mixing {signature!r} is not <v>-<o>/<up>-<down>, for example kron-kron/dns-dns, "
                         "perhaps with ' (q-k <q>-<k>)'")  # fmt: skip
    words = [word for group in groups for word in group]
    if more := [word for word in words if word not in shorts]:
        raise unknown("mixing", more[0], shorts)
    places = ("attention.v", "attention.o", "mlp.up", "mlp.down", "attention.q", "attention.k")
    return dict(zip(places, words, strict=False))


def parse_set(pairs: Sequence[str]) -> dict[str, str]:
    out = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InputError(f"--set takes NAME=VALUE, got {pair!r}")
        out[name] = value
    return out
