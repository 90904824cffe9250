"""Configurations as JSON, dotted overrides and mixing signatures. Unknown names raise.

to_dict(config) / from_dict(ModelConfig, data)          exact round trip
override(config, {"attention.v": "kron", "n_layers": 2, "mixing": "kron-kron/dns-dns"})
"""

import dataclasses
import re
import types
import typing
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar

from streamscope.cli.errors import InputError, unknown
from streamscope.models import config as c

T = TypeVar("T")


hints_of: Any = cache(typing.get_type_hints)


def to_dict(config: Any) -> dict[str, Any]:
    """A configuration, or one of its parts, as plain JSON data; parts carry their `kind`."""
    data: dict[str, Any] = {"kind": config.kind} if isinstance(config, c.Part) else {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        data[field.name] = to_dict(value) if dataclasses.is_dataclass(value) else value
    return data


def from_dict(cls: type[T], data: Any, where: str = "config") -> T:
    """The inverse of `to_dict`. Raises `InputError` on unknown or missing kinds and fields."""
    if not isinstance(data, dict):
        raise InputError(f"{where}: expected an object, got {data!r}")
    data = dict(data)
    if issubclass(cls, c.Part):
        kind = data.pop("kind", getattr(cls, "kind", None))
        if not isinstance(kind, str) or kind not in cls.kinds:
            raise unknown(f"kind of {where}", str(kind), sorted(cls.kinds))
        cls = typing.cast(type[T], cls.kinds[kind])
    data = getattr(cls, "from_older", dict)(data)
    hints, values = hints_of(cls), dict[str, Any]()
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        if field.name in data:
            values[field.name] = _value(hints[field.name], data.pop(field.name), f"{where}.{field.name}")
        elif field.default is dataclasses.MISSING:
            raise InputError(f"{where} lacks the field {field.name}")
    if data:
        names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        raise unknown(f"field of {where}", next(iter(data)), names)
    return cls(**values)


def _value(hint: Any, value: Any, where: str) -> Any:
    """A value for a field of this type: parts from their data or kind, numbers and flags from text. What else a field
    does not take, its class refuses."""
    if types.NoneType in typing.get_args(hint):
        if value in (None, "none", "null"):
            return None
        hint = typing.get_args(hint)[0]
    if isinstance(hint, type) and issubclass(hint, c.Part):
        if isinstance(value, str):  # `kron` is `kronecker`
            shorts = {k.short: name for name, k in hint.kinds.items() if issubclass(k, c.Projection)}
            value = {"kind": shorts.get(value, value)}
        return value if isinstance(value, hint) else from_dict(hint, value, where)
    if isinstance(value, str) and hint in (bool, int, float):
        with suppress(ValueError, KeyError):
            return {"true": True, "false": False}[value.lower()] if hint is bool else hint(value)
    return value


def override(config: T, changes: dict[str, Any], where: str = "") -> T:
    """Replace fields of `config` by dotted name.

    `mixing` sets v, o, up and down at once; `init_std` alone also sets `init` back to N(0, init_std) everywhere.
    """
    changes = dict(changes)
    if isinstance(config, c.ModelConfig) and "mixing" in changes:
        changes = parse_mixing(changes.pop("mixing")) | changes
    new: dict[str, Any] = {}
    below: dict[str, dict[str, Any]] = {}
    names = [f.name for f in dataclasses.fields(config)]  # type: ignore[arg-type]
    for path, value in changes.items():
        name, _, tail = path.partition(".")
        if name not in names:
            raise unknown(f"field of {where.rstrip('.') or getattr(config, 'kind', 'model')}", name, names)
        if tail:
            below.setdefault(name, {})[tail] = value
            continue
        old, part = getattr(config, name), _value(hints_of(type(config))[name], value, f"{where}{name}")
        if isinstance(value, str) and isinstance(old, c.Part) and isinstance(part, c.Part):  # what both have stays
            shared = {f.name for f in dataclasses.fields(old)} & {f.name for f in dataclasses.fields(part)}
            part = dataclasses.replace(part, **{name: getattr(old, name) for name in shared})
        new[name] = part
    if isinstance(config, c.ModelConfig) and "init_std" in new and "init" not in {*new, *below}:
        new["init"] = c.Initial()  # otherwise σ changes nothing in a preset whose rules are not N(0, σ)
    for name, inner in below.items():
        part = new.get(name, getattr(config, name))
        if part is None:
            raise InputError(f"{where}{name} is none: set {where}{name}=KIND before {where}{name}.{next(iter(inner))}")
        if not isinstance(part, c.Part):
            raise InputError(f"{where}{name} has no fields, got {where}{name}.{next(iter(inner))}")
        new[name] = override(part, inner, f"{where}{name}.")
    return dataclasses.replace(config, **new)  # type: ignore[type-var]


def parse_mixing(signature: str) -> dict[str, str]:
    """Translate `kron-kron/dns-dns` into overrides of v, o, up, down (DST §2.7)."""
    kinds_given = re.fullmatch(r"(\w+)-(\w+)/(\w+)-(\w+)(?: \(q-k (\w+)-(\w+)\))?", signature)
    if kinds_given is None:
        raise InputError(f"mixing {signature!r} is not <v>-<o>/<up>-<down>, or <v>-<o>/<up>-<down> (q-k <q>-<k>)")
    places = ("attention.v", "attention.o", "mlp.up", "mlp.down", "attention.q", "attention.k")
    return {place: kind for place, kind in zip(places, kinds_given.groups(), strict=True) if kind}


def parse_set(pairs: Sequence[str]) -> dict[str, str]:
    out = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InputError(f"--set takes NAME=VALUE, got {pair!r}")
        out[name] = value
    return out
