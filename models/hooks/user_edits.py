"""Edits from a user's own file, for `--edit` of every command that measures a model.

    edits.json                              edits saved in the live page: JSON without code (`hooks.controls`)
    halve.py:halve@blocks.3.attn.hook_z     halve(value, hook) -> value, at a hook or a pattern of hooks
    halve.py:edits                          edits(model) -> {hook or pattern: function(value, hook) -> value}
    halve.py:EDITS                          such a dict itself
    FOLDER:17 or FOLDER:3,17-19             latents of a dictionary are removed (`models.dictionaries.without_latents`)

Every edit must fire, keep shape and dtype, leave its argument unchanged and return finite values
(`hooks.edit`). Those of Python must also treat every row of a batch alike and be deterministic: instruments
choose batches for speed, so otherwise results would depend on which texts share a batch.
"""

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from streamscope.cli import user_code
from streamscope.cli.disk import read_json, sha256
from streamscope.cli.errors import InputError, reading
from streamscope.models.dictionaries import WEIGHTS, dictionary_folder, read_dictionary, without_latents
from streamscope.models.hooks import Edit
from streamscope.models.hooks.controls import EXAMPLE, edits_of, in_sequence, latents_of

MAKE_ONE = f"give an object such as {EXAMPLE}"
ROUNDING = 1e-3
"""Allowed difference between a row alone and in a batch, as a share of the largest value."""


def user_edits(model: Any, specs: Sequence[str]) -> dict[str, Edit]:
    """{hook or pattern: function} of all specs, in order; two edits of one hook act one after the other.

    Raises `InputError` for an invalid spec, and if the file's function gives no edits.
    """
    edits: dict[str, Edit] = {}
    for spec in specs:
        latents = user_code.latents_in(spec)
        if latents is not None:
            spec_edits: Mapping[str, Edit] = without_latents(read_dictionary(str(latents[0]), model), latents[1], model)
        elif spec.endswith(".json"):
            data = read_json(Path(spec), dict[str, Any], MAKE_ONE)
            with reading(spec):
                spec_edits = edits_of(data, model)
            if not spec_edits:
                raise InputError(f"{spec} changes nothing: give at least one edit, such as {EXAMPLE}")
        else:
            spec_edits = {hook: _checked(spec, fn) for hook, fn in _edits_of(model, spec).items()}
        for hook, fn in spec_edits.items():
            edits[hook] = in_sequence(edits[hook], fn) if hook in edits else fn
    return edits


def _edits_of(model: Any, spec: str) -> Mapping[str, Edit]:
    code, _, hook = spec.partition("@")
    member = user_code.member(code, lambda value: isinstance(value, Mapping) or _n_arguments(value) in (1, 2), "edit")
    path = user_code.split(code)[0]
    if isinstance(member, Mapping):
        edits: Any = member
    elif _n_arguments(member) == 2:
        if not hook:
            raise InputError(f"{spec} is a function of (value, hook): name the hook, as in {spec}@blocks.3.attn.hook_z")
        return {hook: member}
    else:
        try:
            edits = member(model)
        except Exception as error:
            raise InputError(f"{spec} failed: {user_code.error_line(error, path)}") from error
    if hook:
        raise InputError(f"{spec} names its own hooks: leave out @{hook}")
    if not isinstance(edits, Mapping) or not edits or not all(map(callable, edits.values())):
        raise InputError(f"{spec} gave {edits!r:.60}, not a dict of hook -> function(value, hook)")
    return edits


def _n_arguments(member: Any) -> int:
    """Number of required arguments of a function; 0 for other objects."""
    if not callable(member) or isinstance(member, type):
        return 0
    required = [p for p in inspect.signature(member).parameters.values() if p.default is p.empty]
    by_position = all(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in required)
    return len(required) if by_position else 0


def _checked(spec: str, fn: Edit) -> Edit:
    """Wrap the function: errors become one line, and its first batch is compared with one of its rows run alone."""
    path, compared = user_code.split(spec.partition("@")[0])[0], False

    def call(x: Tensor, hook: Any) -> Any:
        try:
            return fn(x, hook)
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"{spec} failed at {hook.name}: {user_code.error_line(error, path)}") from error

    def edit(x: Tensor, hook: Any) -> Any:
        nonlocal compared
        if compared or len(x) < 2:
            return call(x, hook)
        compared, row = True, x[-1:].clone()  # before the edit sees the batch and perhaps changes it
        alone, y = call(row, hook), call(x, hook)
        if isinstance(y, Tensor) and y.shape == x.shape and not _same(alone, y[-1:]):  # others: `apply_edit`
            raise InputError(
                f"{spec} at {hook.name} gives another value for a row alone than in a batch; "
                "an edit must treat every row alike and be deterministic"
            )
        return y

    return edit


def _same(alone: Any, row: Tensor) -> bool:
    """Whether a row alone equals the row in the batch, up to rounding."""
    if not isinstance(alone, Tensor) or alone.shape != row.shape:
        return False
    finite = row.isfinite()
    scale = float(row[finite].abs().max()) if bool(finite.any()) else 0.0
    return torch.allclose(alone.to(row.dtype), row, rtol=0.0, atol=ROUNDING * scale, equal_nan=True)


def about_edits(specs: Sequence[str]) -> list[dict[str, str]]:
    """Spec and file sha256 of each edit, and of dictionaries that JSON names, for the record of a measurement."""
    files = [(spec, user_code.edit_file(spec)) for spec in specs]
    for spec in specs:
        if spec.endswith(".json"):
            folders = latents_of(read_json(Path(spec), dict[str, Any], MAKE_ONE))
            files += [(folder, dictionary_folder(folder) / WEIGHTS) for folder in folders]
    about = []
    for name, file in files:
        with reading(name):
            about.append({"edit": name, "sha256": sha256(file)})
    return about
