"""Hooks: the table of all activations, and functions to read them, change them and run prompts.

    with capture(model, ["blocks.*.attn.hook_z"]) as captured:   names or patterns with *
        model(tokens)
    captured["blocks.3.attn.hook_z"]                             [B, T, H, K]

    with edit(model, {"blocks.3.attn.hook_z": lambda z, hook: z * 0.5}):
        model(tokens)

    captures = run(model, Query(tokens=prompts, hooks=("blocks.*.attn.hook_pattern",), logits=positions))

`table` lists every hook, `points` has those that differ from TransformerLens'. The functions accept our models and any
HookedRootModule.

A name that matches nothing, a hook that did not fire and an edit of an observe-only hook raise `InputError`. So does an
edit that leads to values that are not finite; the error names the first such hook. Hooks are removed when their block
ends, also after an exception, and in any order. A `copy.deepcopy` of the model has none of them. Hooks belong to the
thread that attached them: a forward pass of another thread raises there.
"""
# ruff: noqa: F401  (points and the table belong to this package's names)

import copy
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from threading import RLock, get_ident
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from streamscope.cli.errors import InputError, unknown
from streamscope.cli.terminal import counted
from streamscope.models.hooks.points import BLOCK, ObservePoint, OnDemand, ReadPoint, _nothing, eager_when_hooked, quiet
from streamscope.models.hooks.table import HOOKS, Hook, concrete_shape, expected_hooks, layer_of, row_of

Edit = Callable[[Tensor, Any], Tensor]
"""function(activation, hook) -> new activation of the same shape; it must not change its argument."""
Edits = Mapping[str, Edit]


def everywhere(fn: Any) -> Any:
    """Decorator of an edit that treats every position [B, T, …] alike and alone, so keys and values may be kept."""
    fn.everywhere = True
    return fn


@everywhere
def scale_axis(x: Tensor, hook: Any, *, index: list[int], g: float, axis: int = 2) -> Tensor:
    """x with the entries `index` of one axis multiplied by g."""
    factor = torch.ones(x.shape[axis], dtype=x.dtype, device=x.device)
    factor[index] = g
    return x * factor.reshape(-1, *[1] * (x.ndim - 1 - axis))


def keeps_positions(model: Any, edits: Edits) -> bool:
    """Whether every edit is one of `everywhere`, at a hook with positions that a pass of new tokens also reaches."""
    for name, fn in resolve(model, edits):
        row, inner = row_of(name), fn.func if isinstance(fn, partial) else fn
        if row is None or row.on_demand or not row.shape.startswith("B T") or not hasattr(inner, "everywhere"):
            return False
    return True


_LOCK = RLock()
"""Held while hooks and the records of them change, because threads may share a model."""
_OURS = "of_streamscope"
"""Attribute of the functions that `attached` registers with torch."""
_LIBRARIES = ("transformer_lens.model_bridge.", "transformers.")
"""Modules whose hooks belong to the models of these libraries."""


def match(model: Any, names: str | Sequence[str]) -> list[str]:
    """The model's hooks that match `names` (exact, or patterns with * and ?), in the model's order."""
    chosen: set[str] = set()
    for name in [names] if isinstance(names, str) else names:
        matches = [name] if name in model.hook_dict else [k for k in model.hook_dict if fnmatchcase(k, name)]
        if not matches:
            generic = dict.fromkeys(re.sub(r"^blocks\.\d+", "blocks.*", k) for k in model.hook_dict)
            raise unknown("hook", name, list(generic if "*" in name else model.hook_dict))
        chosen.update(matches)
    return [k for k in model.hook_dict if k in chosen]


class Captured(dict[str, Tensor]):
    """Activations by hook name, filled by the forward passes inside `capture`."""

    def __missing__(self, name: str) -> Tensor:
        raise InputError(f"hook {name!r} was not captured; captured: {', '.join(self) or 'nothing yet'}")


@contextmanager
def capture(model: Any, names: str | Sequence[str], *, grad: bool = False) -> Iterator[Captured]:
    """Collect the named activations of the forward passes in the block; the last pass wins.

    The values are detached copies, or with `grad` the live tensors, for `torch.autograd.grad`. Raises `InputError` at
    the end if a hook never fired.
    """
    matches = match(model, names)
    for name in matches if grad else ():
        point = model.hook_dict[name]
        if isinstance(point, ObservePoint):
            raise InputError(f"{name} only shows {point.shows} and has no gradient; ask for {point.instead}")
    captured = Captured()

    def keep(name: str, x: Tensor, hook: Any) -> Tensor | None:
        if not grad:
            captured[name] = x.detach().clone()
            return None
        if not torch.is_grad_enabled():
            raise InputError("capture(grad=True) needs gradients: leave torch.no_grad() or inference mode")
        captured[name] = x if x.requires_grad else x.detach().requires_grad_()
        return captured[name]

    with attached(model, [(name, partial(keep, name)) for name in matches]):
        yield captured
    check_fired([name for name in matches if name not in captured], "hooks")


@contextmanager
def edit(model: Any, edits: Edits, *, must_fire: bool = True) -> Iterator[None]:
    """Apply edits (name or pattern -> function) to the forward passes in the block.

    Raises `InputError` for unknown names and observe-only hooks before anything runs; for an edit that changes its
    argument, a shape or a dtype, or returns nothing; for values that are not finite (NaN or infinite, except −∞ among
    attention scores); and at the end, with `must_fire`, for an edit that never fired.
    """
    plan = resolve(model, edits)
    fired: set[str] = set()
    looking = False

    def check(module: Any, inputs: tuple[Any, ...], output: Any) -> None:
        nonlocal looking
        results = output if isinstance(output, tuple) else (output,)
        if inputs and not looking and not all(is_finite(x) for x in results if isinstance(x, Tensor)):
            looking = True  # the pass that searches for the first hook also ends here
            raise not_finite(model, inputs[0], plan, attach=False)

    def record(name: str, fn: Edit, x: Tensor, hook: Any) -> Tensor:
        fired.add(name)
        return apply_edit(name, fn, x, hook)

    if not plan:
        yield
        return
    setattr(check, _OURS, BLOCK)
    names = [name for name, _ in plan]
    with attached(model, [(name, partial(record, name, fn)) for name, fn in plan]):
        handle = model.register_forward_hook(check)
        with _LOCK:
            if not hasattr(model, "edited_at"):
                model.edited_at = []  # shared by its shallow copies, which have the same hooks
            model.edited_at.extend(names)
        try:
            yield
        finally:
            handle.remove()
            with _LOCK:
                for name in names:
                    model.edited_at.remove(name)
    check_fired([name for name in names if must_fire and name not in fired])


def on_copies(model: Any, members: Sequence[Edits]) -> Edits:
    """Edits of a batch that holds a copy for each of `members`, one after the other: each edits its own copy."""
    if len(members) == 1:
        return members[0]
    plans = [resolve(model, edits) for edits in members]

    def apply(name: str, x: Tensor, hook: Any) -> Tensor:
        copies = list(x.tensor_split(len(plans)))
        for i, plan in enumerate(plans):
            for place, fn in plan:
                copies[i] = apply_edit(name, fn, copies[i], hook) if place == name else copies[i]
        return torch.cat(copies)

    return {name: partial(apply, name) for plan in plans for name, _ in plan}


def edited_at(model: Any) -> tuple[str, ...]:
    """The full names of the hooks that the surrounding `edit` blocks change; () outside of any."""
    return tuple(getattr(model, "edited_at", ()))


def hooked_at(model: Any) -> tuple[str, ...]:
    """The names of modules with hooks that a user attached by `add_hook`, `register_forward_hook` and the like.

    The model itself is named by its class. Hooks of `capture`, `edit` and a bridge itself do not count.
    """
    names = dict[str, None]()
    with _LOCK:
        for name, module in model.named_modules() if hasattr(model, "named_modules") else ():
            forward, backward = module._forward_hooks | module._forward_pre_hooks, module._backward_hooks
            for hook in (forward | backward | module._backward_pre_hooks).values():
                theirs = f"{getattr(hook, '__module__', '')}.".startswith(_LIBRARIES)
                if not theirs and not hasattr(hook, _OURS):
                    names[name or type(model).__name__] = None
    return tuple(names)


@contextmanager
def asked(points: Sequence[OnDemand]) -> Iterator[None]:
    """Have the activations of these points computed in the block."""
    with _LOCK:
        handles = [point.register_forward_hook(_nothing) for point in points]
    try:
        yield
    finally:
        with _LOCK:
            for handle in handles:
                handle.remove()


class CleanCopies(torch.nn.Module):
    """Base of models whose `copy.deepcopy` drops hooks of `capture` and `edit` and keeps those of others."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        clone = self.__class__.__new__(self.__class__)
        memo[id(self)] = clone
        with _LOCK:
            state = copy.deepcopy(self.__dict__, memo)
        clone.__setstate__(state)
        clone.__dict__.pop("edited_at", None)
        for module in clone.modules():
            own_keys = [key for key, hook in module._forward_hooks.items() if getattr(hook, _OURS, None) == BLOCK]
            for key in own_keys:
                del module._forward_hooks[key]
            if own_keys and hasattr(module, "fwd_hooks"):
                hooks: Any = module.fwd_hooks
                hooks[:] = [entry for entry in hooks if entry.hook.id not in own_keys]
        return clone


def resolve(model: Any, edits: Edits) -> list[tuple[str, Edit]]:
    """(full name, function) of every point that the edits match; `InputError` as in `edit`."""
    plan: list[tuple[str, Edit]] = []
    for key, fn in edits.items():
        points = set[Any]()
        for name in match(model, key):
            point = model.hook_dict[name]
            if isinstance(point, ObservePoint):
                raise InputError(f"{name} only shows {point.shows}; edit {point.instead} instead")
            if point not in points:  # a bridge has several names for one point: one key edits it once
                plan.append((name, fn))
            points.add(point)
    return plan


def apply_edit(name: str, fn: Edit, x: Tensor, hook: Any) -> Tensor:
    """`x` after an edit; `InputError` if it changes `x` in place, the shape or the dtype, or returns nothing."""
    version = None if x.is_inference() else x._version
    y = fn(x, hook)
    if version is not None and x._version != version:
        raise InputError(f"the edit of {name} changes its argument in place: return a new tensor (x = x.clone())")
    if not isinstance(y, Tensor):
        raise InputError(f"the edit of {name} returned {type(y).__name__}; it must return the new activation")
    if y.shape != x.shape or y.dtype != x.dtype:
        raise InputError(f"the edit of {name} returned {list(y.shape)} {y.dtype}, not {list(x.shape)} {x.dtype}")
    if not is_finite(y, name):
        if not is_finite(x, name):
            raise InputError(f"{name} is not finite before its edit: {_count(x)} values")
        raise InputError(f"the edit of {name} returned values that are not finite: {_count(y)}")
    return y


def is_finite(x: Tensor, name: str = "") -> bool:
    """Whether an activation holds no NaN and no infinity; attention scores may hold −∞, which masks."""
    if bool(x.sum().isfinite()):  # by far the fastest test where all is well
        return True
    fine = x.isfinite()
    return bool(((fine | (x == -torch.inf)) if name.endswith("hook_attn_scores") else fine).all())


def check_weights(model: Any) -> None:
    """Raise `InputError` for NaN weights, with the first such parameter. Infinite weights are allowed."""
    for name, weight in model.named_parameters() if hasattr(model, "named_parameters") else ():
        if bool(weight.detach().sum().isnan()) and (bad := int(weight.isnan().sum())):
            raise InputError(f"the weights {name} are NaN: {bad} of {weight.numel()}; load an undamaged checkpoint")


def _count(x: Tensor) -> str:
    return f"{int((~x.isfinite()).sum())} of {x.numel()}"


def not_finite(model: Any, tokens: Tensor, plan: Sequence[tuple[str, Edit]], *, attach: bool = True) -> InputError:
    """The `InputError` for results that are not finite; it names the NaN weights, or the first hook that is not finite.

    A second pass of `tokens` finds the hook. `plan` are the edits; `attach` applies them in that pass, otherwise they
    are already attached.
    """
    try:
        check_weights(model)
    except InputError as error:
        return error
    non_finite: list[str] = []

    def look(name: str, x: Tensor, hook: Any) -> None:
        if not non_finite and isinstance(x, Tensor) and not is_finite(x, name):
            non_finite.append(name)

    edits: list[tuple[str, Callable[..., Any]]] = list(plan) if attach else []
    names = {id(point): (point, name) for name, point in reversed(model.hook_dict.items())}.values()
    for point, name in reversed(names):
        with suppress(ValueError):  # a bridge refuses points that its settings switch off
            model.check_hooks_to_add(point, name, look)
            edits.append((name, partial(look, name)))
    with torch.no_grad(), attached(model, edits):
        model(tokens)
    edited = ", ".join(dict.fromkeys((*edited_at(model), *(name for name, _ in plan))))
    hooked = f", hooked at {hooks}," if (hooks := ", ".join(hooked_at(model))) else ""
    model_text = f"under the edit of {edited} the results" if edited else f"the results of the unedited model{hooked}"
    return InputError(f"{model_text} are not finite; first at {non_finite[0] if non_finite else 'the logits'}")


def check_fired(silent: Sequence[str], kind: str = "edits") -> None:
    """Raise `InputError` if there are edits, or hooks, that never fired."""
    if silent:
        raise InputError(f"{kind} that did not fire: {', '.join(silent[:5])}; did the model run, with those layers?")


@contextmanager
def attached(model: Any, hooks: Sequence[tuple[str, Callable[..., Any]]]) -> Iterator[None]:
    """Attach TransformerLens hooks for the block; hooks of an outer block stay.

    Hooks sit on the model, so another thread's forward pass would be edited, or captured as this thread's: it raises
    `InputError` instead.
    """
    if not hooks:
        yield
        return
    owner, handles = get_ident(), list[tuple[Any, Any]]()

    def only_here(name: str, point: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
        def hook(module: Any, *passed: Any) -> Any:
            if module is not point:  # torch copies hooks with a part of a model
                return None
            if get_ident() != owner:
                raise InputError(
                    f"another thread captures or edits {name} of this model: give each thread its own model "
                    "(copy.deepcopy(model)), or hold a lock around capture, edit and forward pass"
                )
            return fn(module, *passed)

        setattr(hook, _OURS, BLOCK)
        return hook

    with eager_block():
        try:
            for name, fn in hooks:
                point = model.hook_dict[name]
                try:  # a bridge refuses points that its settings switch off
                    model.check_hooks_to_add(point, name, fn)
                except ValueError as error:
                    raise InputError(str(error)) from None
                with _LOCK:
                    handle = point.add_hook(lambda x, hook, fn=fn: fn(x, hook))
                    handles.append((point, handle))
                    hook_id = handle.hook.id
                    point._forward_hooks[hook_id] = only_here(name, point, point._forward_hooks[hook_id])
            yield
        finally:
            with _LOCK:
                for point, handle in handles:  # `model.hooks` would also remove others of its level
                    handle.hook.remove()
                    point.fwd_hooks[:] = [entry for entry in point.fwd_hooks if entry is not handle]


_EAGER = SimpleNamespace(blocks=0, end=None)
"""The number of blocks that run without compiled code, and the call that ends this."""


@contextmanager
def eager_block(*, always: bool = False) -> Iterator[None]:
    """Run without compiled code, which would not fire hooks, until the last of these blocks ends, in any order.

    Nothing is compiled while torch's compiler is not imported; `always` imports it. Without it, code that is first
    compiled inside a block of `attached` still calls its hooks from Python, because `get_ident` in them cannot be
    compiled; it calls none once they are gone.
    """
    with _LOCK:
        if _EAGER.end is None and (always or "torch._dynamo" in sys.modules):
            _EAGER.end = torch.compiler.set_stance("force_eager")
        _EAGER.blocks += 1
    try:
        yield
    finally:
        with _LOCK:
            _EAGER.blocks -= 1
            if not _EAGER.blocks and _EAGER.end is not None:
                _EAGER.end.__exit__(None, None, None)
                _EAGER.end = None


# ---- many prompts in few batches ---------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Query:
    """A request to a model: prompts, activations, logits. Positions count from 0 (BOS).

    `run` returns `hooks[name][i]` for prompt i without a batch axis ([H, T, T] for a pattern); names are in the model's
    order.
    """

    tokens: Sequence[Sequence[int]] | Tensor
    """Token ids of each prompt, not padded."""
    hooks: tuple[str, ...] = ()
    """Names of the activations to return, or patterns with *: `blocks.*.attn.hook_z`. A name that matches nothing
    raises `InputError`."""
    positions: Sequence[Sequence[int]] | None = None
    """Positions to keep, per prompt (the query axis of patterns); None: all."""
    logits: Sequence[Sequence[int]] | None = None
    """Positions whose logits are wanted, per prompt; None: no logits."""

    def __post_init__(self) -> None:
        for name in ("tokens", "positions", "logits"):  # tensors and lists of tensors are allowed
            rows = getattr(self, name)
            if rows is not None:
                plain = [row.tolist() if isinstance(row, Tensor) else list(row) for row in rows]
                object.__setattr__(self, name, plain)
        if not self.tokens or not all(self.tokens):
            raise InputError("a query needs at least one prompt, and every prompt at least one token")
        for name in ("positions", "logits"):
            rows, n = getattr(self, name), len(self.tokens)
            if rows is not None and len(rows) != n:
                raise InputError(f"{name} are given for {counted(len(rows), 'prompt')}, but there are {n} prompts")
            for i, (row, ids) in enumerate(zip(rows or (), self.tokens, strict=False)):
                if not all([0 <= p < len(ids) for p in row]):
                    raise InputError(f"{name} {list(row)} of prompt {i} lie outside its {len(ids)} tokens")


@dataclass(frozen=True)
class Captures:
    """The answer to a query, per prompt in its order: `hooks[name][i]` without batch axis, `logits[i]` [P, V]."""

    hooks: dict[str, list[Tensor]]
    logits: list[Tensor] | None


def time_axes(name: str, ndim: int) -> tuple[int, ...]:
    """The position axes of an activation without its batch axis, the query axis first."""
    row = row_of(name)
    letters = row.shape.split(" | ")[0].split()[1:] if row is not None else ["T", *"?" * (ndim - 1)]
    return tuple(i for i, letter in enumerate(letters) if letter == "T")


@torch.no_grad()
def run(
    model: Any, query: Query, edits: Edits | None = None, *, batch_tokens: int = 8192,
    progress: Callable[[Iterable], Iterable] = iter,
) -> Captures:  # fmt: skip
    """Run the prompts of `query` in few length-sorted batches, under `edits`, and return the requested values.

    Works on our models and on a `TransformerBridge`. The values of a prompt do not depend on its batch. An edit sees
    padded batches in sorted order, so it must treat all rows alike. Raises `InputError` in training mode and for values
    that are not finite.
    """
    if model.training:
        raise InputError("the model is in training mode, where dropout is on: call model.eval() first")
    names = match(model, query.hooks) if query.hooks else []
    values: dict[str, list[Any]] = {name: [None] * len(query.tokens) for name in names}
    logits: list[Any] = [None] * len(query.tokens)
    for rows in progress(list(batches([len(t) for t in query.tokens], batch_tokens))):
        tokens = pad([list(query.tokens[i]) for i in rows]).to(model.cfg.device)
        with edit(model, edits or {}), capture(model, names) as captured:
            out = forward_at(model, tokens, [query.logits[i] for i in rows] if query.logits is not None else None)
        outputs = [*captured.items(), *([("", out)] if out is not None else [])]
        if not all([is_finite(x, name) for name, x in outputs]):
            raise not_finite(model, tokens, resolve(model, edits or {}))
        for name in names:
            for i, x in zip(rows, crop(query, rows, name, captured[name]), strict=True):
                values[name][i] = x
        for b, i in enumerate(rows):
            if out is not None and query.logits is not None:
                logits[i] = out[b][: len(query.logits[i])].clone()
    return Captures(values, logits if query.logits is not None else None)


def pad(prompts: Sequence[Sequence[int]], fill: int = 0) -> Tensor:
    """Pad on the right to tokens [B, T]; causal attention hides the padding from every real position."""
    return pad_sequence([torch.as_tensor(ids) for ids in prompts], batch_first=True, padding_value=fill)


def batches(lengths: list[int], budget: int) -> Iterator[list[int]]:
    """Indices in batches of similar length; the padded size is at most `budget` tokens, or one prompt."""
    rows: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if rows and lengths[i] * (len(rows) + 1) > budget:
            yield rows
            rows = []
        rows.append(i)
    yield rows


def forward_at(model: Any, tokens: Tensor, positions: Sequence[Sequence[int]] | None) -> Tensor | None:
    """Logits [B, P, V] at padded position lists, or None; only our models skip the other positions."""
    native = hasattr(model, "segment")
    if positions is None:
        model(tokens, return_type=None) if native else model(tokens)
        return None
    where = pad([row or [0] for row in positions]).to(tokens.device)
    if native:
        return model(tokens, logits_at=where)
    full = model(tokens)
    return full.gather(1, where[..., None].expand(-1, -1, full.shape[-1]))


def crop(query: Query, rows: Sequence[int], name: str, batch: Tensor) -> list[Tensor]:
    """Of a batch of the prompts `rows`, the activation of each without padding, at the query's positions."""
    axes, cropped = time_axes(name, batch.ndim - 1), []
    for i, x in zip(rows, batch, strict=True):
        for axis in axes:
            x = x.narrow(axis, 0, len(query.tokens[i]))
        if query.positions is not None and axes:
            x = x.index_select(axes[0], torch.as_tensor(query.positions[i], device=x.device, dtype=torch.long))
        cropped.append(x.clone())
    return cropped
