"""Edits of a user's own, from a file, for `--edit` of every command that measures a model.

    halve.py:halve@blocks.3.attn.hook_z     halve(value, hook) -> value, at a hook or a pattern of hooks
    halve.py:edits                          edits(model) -> {hook or pattern: function(value, hook) -> value}
    halve.py:EDITS                          such a dict itself

Beside what every edit must (`capture_and_edit.edit`: fire, keep shape and dtype, leave its argument as it is, return
what is finite), these must treat every row of a batch alike and the same row the same each time: instruments batch
texts as is fastest, so anything else would depend on what shares a batch.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from streamscope.cli import user_code as own_code
from streamscope.cli.errors import InputError
from streamscope.models.hooks.capture_and_edit import Edit

ROUNDING = 1e-3
"""How far, as a share of the largest value, a row alone may differ from the same row in a batch."""


def user_edits(model: Any, specs: Sequence[str]) -> dict[str, Edit]:
    """Hook or pattern -> function, of every spec in order; two of one hook act one after the other.

    Raises `InputError` for a spec that is none, and where the file's function gives no edits.
    """
    edits: dict[str, Edit] = {}
    for spec in specs:
        for hook, fn in _edits_of(model, spec).items():
            before, checked = edits.get(hook), _checked(spec, fn)
            edits[hook] = checked if before is None else _after(before, checked)
    return edits


def _edits_of(model: Any, spec: str) -> Mapping[str, Edit]:
    code, _, hook = spec.partition("@")
    found = own_code.member(code, _is_edit, "edit")
    path = own_code.split(code)[0]
    if isinstance(found, Mapping):
        made: Any = found
    elif _needs(found) == 2:
        if not hook:
            raise InputError(f"{spec} is a function of (value, hook): say where, as {spec}@blocks.3.attn.hook_z")
        return {hook: found}
    else:
        try:
            made = found(model)
        except Exception as error:
            raise InputError(f"{spec} failed: {own_code.told(error, path)}") from error
    if hook:
        raise InputError(f"{spec} names its hooks itself; leave @{hook} out")
    if not isinstance(made, Mapping) or not made or not all(map(callable, made.values())):
        raise InputError(f"{spec} gave {made!r:.60}, not a dict of hook -> function(value, hook)")
    return made


def _needs(found: Any) -> int:
    """How many arguments a callable must be given; 0 for what is no function."""
    if not callable(found) or isinstance(found, type):
        return 0
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [one for one in inspect.signature(found).parameters.values() if one.default is one.empty]
    return len(needed) if all(one.kind in kinds for one in needed) else 0


def _is_edit(found: Any) -> bool:
    return isinstance(found, Mapping) or _needs(found) in (1, 2)


def _after(first: Edit, then: Edit) -> Edit:
    return lambda x, hook: then(first(x, hook), hook)


def _checked(spec: str, fn: Callable[[Tensor, Any], Any]) -> Edit:
    """The function, with its errors in one line, and held against itself on one row when there are several first."""
    path, looked = own_code.split(spec.partition("@")[0])[0], False

    def call(x: Tensor, hook: Any) -> Any:
        try:
            return fn(x, hook)
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"{spec} failed at {hook.name}: {own_code.told(error, path)}") from error

    def edit(x: Tensor, hook: Any) -> Any:
        nonlocal looked
        if looked or len(x) < 2:
            return call(x, hook)
        looked, row = True, x[-1:].clone()  # before the edit sees the batch: it may change it by mistake
        alone, y = call(row, hook), call(x, hook)
        if isinstance(y, Tensor) and y.shape == x.shape and not _same(alone, y[-1:]):  # else `changed` tells
            raise InputError(
                f"{spec} at {hook.name} does not do the same to a row alone and in a batch; "
                "an edit must treat every row alike, and the same each time"
            )
        return y

    return edit


def _same(alone: Any, row: Tensor) -> bool:
    """Whether a row came out as in the batch, up to rounding."""
    if not isinstance(alone, Tensor) or alone.shape != row.shape:
        return False
    finite = row.isfinite()
    scale = float(row[finite].abs().max()) if bool(finite.any()) else 0.0
    return torch.allclose(alone.to(row.dtype), row, rtol=0.0, atol=ROUNDING * scale, equal_nan=True)


def about_edits(specs: Sequence[str]) -> list[dict[str, str]]:
    """spec and sha256 of the file of each, for what was measured under them."""
    files: list[Path] = [own_code.split(spec.partition("@")[0])[0] for spec in specs]
    return [{"edit": spec, "sha256": own_code.digest(file)} for spec, file in zip(specs, files, strict=True)]
