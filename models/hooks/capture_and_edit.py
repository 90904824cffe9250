"""Read activations and change activations: on our models and on any HookedRootModule.

    with capture(model, ["blocks.*.attn.hook_z"]) as found:      names or patterns with *
        model(tokens)
    found["blocks.3.attn.hook_z"]                                [B, T, H, K]

    with edit(model, {"blocks.3.attn.hook_z": lambda z, hook: z * 0.5}):
        model(tokens)

A name that matches nothing, a hook that did not fire and an edit of an observe-only hook raise
`InputError`; so does an edit after which values are not finite, with the first hook where that is so. Hooks are removed
on the way out, also after an exception, whichever block ends first; a `copy.deepcopy` of the model has none of them.
Hooks belong to the thread that attached them: another thread's forward pass raises there, so that neither is wrong in
silence.
"""

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from threading import RLock, get_ident
from typing import Any

import torch
from torch import Tensor

from streamscope.cli.errors import InputError, unknown
from streamscope.models.hooks.points import ObservePoint, OnDemand

Edit = Callable[[Tensor, Any], Tensor]
"""function(activation, hook) -> new activation of the same shape; it must not change its argument."""
Edits = Mapping[str, Edit]

_LOCK = RLock()
"""Held while hooks, and what is noted of them, change: they are on the model, which threads may share."""
_OURS = "of_streamscope"
"""What functions that `attached` registers with torch bear."""
_KINDS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
"""Where torch keeps the hooks of a module."""
_LIBRARIES = ("transformer_lens.model_bridge", "transformers")
"""Modules whose hooks belong to the models of these libraries."""


def match(model: Any, names: str | Sequence[str]) -> list[str]:
    """The model's hooks that `names` (exact, or patterns with * and ?) mean, in the model's order."""
    known = list(model.hook_dict)
    chosen: set[str] = set()
    for name in [names] if isinstance(names, str) else names:
        found = [k for k in known if fnmatchcase(k, name)] if any(c in name for c in "*?[") else []
        if name in model.hook_dict:
            found = [name]
        if not found:
            generic = [re.sub(r"^blocks\.\d+", "blocks.*", k) for k in known]
            raise unknown("hook", name, list(dict.fromkeys(generic)) if "*" in name else known)
        chosen.update(found)
    return [k for k in known if k in chosen]


class Captured(dict[str, Tensor]):
    """Activations by hook name, filled by the forward passes inside `capture`."""

    def __missing__(self, name: str) -> Tensor:
        raise InputError(f"hook {name!r} was not captured; captured: {', '.join(self) or 'nothing yet'}")


@contextmanager
def capture(model: Any, names: str | Sequence[str], *, grad: bool = False) -> Iterator[Captured]:
    """Collect the named activations of the forward passes in the block; the last one wins.

    Copies, detached unless `grad` (then the live tensors, for `torch.autograd.grad`).
    Raises `InputError` at the end if a hook never fired.
    """
    wanted = match(model, names)
    for name in wanted if grad else ():
        point = model.hook_dict[name]
        if isinstance(point, ObservePoint):
            raise InputError(f"{name} only shows {point.shows} and has no gradient; ask for {point.instead}")
    found = Captured()

    def keep(name: str) -> Callable[..., Tensor | None]:
        def hook(x: Tensor, hook: Any) -> Tensor | None:
            if not grad:
                found[name] = x.detach().clone()
                return None
            if not torch.is_grad_enabled():
                raise InputError("capture(grad=True) needs gradients, but they are switched off here")
            found[name] = x if x.requires_grad else x.detach().requires_grad_()
            return found[name]

        return hook

    with attached(model, [(name, keep(name)) for name in wanted]):
        yield found
    silent = [name for name in wanted if name not in found]
    if silent:
        raise InputError(
            f"hooks that did not fire: {', '.join(silent[:5])}; was the model run, and those layers with it?"
        )


@contextmanager
def edit(model: Any, edits: Edits, *, must_fire: bool = True) -> Iterator[None]:
    """Apply edits (name or pattern -> function) to the forward passes in the block.

    Raises `InputError` for unknown names and observe-only hooks before anything runs, for an edit that
    changes its argument, a shape or a dtype or returns nothing, for values that are not finite (NaN, or an infinity
    anywhere but a −∞ among attention scores), and at the end for an edit that never fired, if it `must_fire`.
    """
    plan = resolve(model, edits)
    fired: set[str] = set()

    looking = False

    def check(module: Any, inputs: tuple[Any, ...], output: Any) -> None:
        nonlocal looking
        results = output if isinstance(output, tuple) else (output,)
        if inputs and not looking and not all(is_finite(x) for x in results if isinstance(x, Tensor)):
            looking = True  # the pass that looks for the first hook comes here as well
            raise not_finite(model, inputs[0], plan, attach=False)

    def noted(name: str, fn: Edit) -> Callable[..., Tensor]:
        def hook(x: Tensor, hook: Any) -> Tensor:
            fired.add(name)
            return changed(name, fn, x, hook)

        return hook

    with attached(model, [(name, noted(name, fn)) for name, fn in plan]), ExitStack() as stack:
        if plan:
            setattr(check, _OURS, True)
            stack.callback(model.register_forward_hook(check).remove)
            names = [name for name, _ in plan]
            stack.callback(_forget, model, names)
            with _LOCK:
                if not hasattr(model, "edited_at"):
                    model.edited_at = []  # one for all of its shallow copies, which have the same hooks
                model.edited_at.extend(names)
        yield
    check_fired([name for name, _ in plan if must_fire and name not in fired])


def _forget(model: Any, names: Sequence[str]) -> None:
    """Take the names of one edit from those of the model, and leave those of others."""
    with _LOCK:
        for name in names:
            model.edited_at.remove(name)


def edited_at(model: Any) -> tuple[str, ...]:
    """The hooks that the `edit` around the caller changes, by full name; () outside any."""
    return tuple(getattr(model, "edited_at", ()))


def hooked_at(model: Any) -> tuple[str, ...]:
    """The modules with hooks that somebody attached by `add_hook`, `register_forward_hook` and their kind, by name.

    The model itself is called by its class. Hooks of `capture` and `edit` and those of a bridge itself do not count.
    """
    found = []
    with _LOCK:
        for name, module in model.named_modules() if hasattr(model, "named_modules") else ():
            hooks = [hook for kind in _KINDS for hook in getattr(module, kind).values()]
            if not all(hasattr(hook, _OURS) or _of_library(hook) for hook in hooks):
                found.append(name or type(model).__name__)
    return tuple(found)


def _of_library(hook: Any) -> bool:
    home = str(getattr(hook, "__module__", ""))
    return any(home == one or home.startswith(f"{one}.") for one in _LIBRARIES)


class CleanCopies(torch.nn.Module):
    """Base of models whose `copy.deepcopy` has no hook of `capture` and `edit`; what others attached is copied."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        made = self.__class__.__new__(self.__class__)
        memo[id(self)] = made
        with _LOCK:
            state = copy.deepcopy(self.__dict__, memo)
        made.__setstate__(state)
        made.__dict__.pop("edited_at", None)
        for module in made.modules():
            ours = [at for at, hook in module._forward_hooks.items() if hasattr(hook, _OURS)]
            for at in ours:
                del module._forward_hooks[at]
            if ours and hasattr(module, "fwd_hooks"):
                kept: Any = module.fwd_hooks
                kept[:] = [one for one in kept if one.hook.id not in ours]
            if isinstance(module, OnDemand):
                module.asked.clear()
        return made


def resolve(model: Any, edits: Edits) -> list[tuple[str, Edit]]:
    """The points that edits mean, by full name, with what happens there; `InputError` as in `edit`."""
    plan: list[tuple[str, Edit]] = []
    for key, fn in edits.items():  # a bridge has several names for one point: one key edits it once
        points = {id(model.hook_dict[name]): name for name in reversed(match(model, key))}
        plan += [(name, fn) for name in reversed(points.values())]
    for name, _ in plan:
        point = model.hook_dict[name]
        if isinstance(point, ObservePoint):
            raise InputError(f"{name} only shows {point.shows}; edit {point.instead} instead")
    return plan


def changed(name: str, fn: Edit, x: Tensor, hook: Any) -> Tensor:
    """`x` after an edit; `InputError` when it changes `x` itself, the shape or the dtype, or returns nothing."""
    version = None if x.is_inference() else x._version
    y = fn(x, hook)
    if version is not None and x._version != version:
        raise InputError(
            f"the edit of {name} changes its argument, which others read: return a new one (x = x.clone())"
        )
    if not isinstance(y, Tensor):
        raise InputError(f"the edit of {name} returned {type(y).__name__}; it must return the new activation")
    if y.shape != x.shape or y.dtype != x.dtype:
        raise InputError(f"the edit of {name} returned {list(y.shape)} {y.dtype}, not {list(x.shape)} {x.dtype}")
    if not is_finite(y, name):
        if not is_finite(x, name):
            raise InputError(f"{name} is not finite before the edit of it: {_count(x)}")
        raise InputError(f"the edit of {name} returned values that are not finite: {_count(y)}")
    return y


def is_finite(x: Tensor, name: str = "") -> bool:
    """Whether an activation holds no NaN and no infinity; attention scores may hold −∞, which masks."""
    if bool(x.sum().isfinite()):  # much the fastest where all is well
        return True
    fine = x.isfinite()
    return bool(((fine | (x == -torch.inf)) if name.endswith("hook_attn_scores") else fine).all())


def check_weights(model: Any) -> None:
    """Raise `InputError` for weights that are NaN, with the first parameter that holds some. Infinity may be meant."""
    for name, weight in model.named_parameters() if hasattr(model, "named_parameters") else ():
        if bool(weight.detach().sum().isnan()) and (bad := int(weight.isnan().sum())):
            raise InputError(f"the weights {name} are NaN: {bad} of {weight.numel()}; load a checkpoint that is whole")


def _count(x: Tensor) -> str:
    return f"{int((~x.isfinite()).sum())} of {x.numel()}"


def not_finite(model: Any, tokens: Tensor, plan: Sequence[tuple[str, Edit]], *, attach: bool = True) -> InputError:
    """The `InputError` for results that are not finite: the weights that are not, else the first hook that is not.

    A second pass of `tokens` shows the hook. `plan` are the edits, which `attach` applies in that pass; without, they
    are in place already.
    """
    try:
        check_weights(model)
    except InputError as error:
        return error
    seen: list[str] = []

    def look(name: str) -> Callable[..., None]:
        def hook(x: Tensor, hook: Any) -> None:
            if not seen and isinstance(x, Tensor) and not is_finite(x, name):
                seen.append(name)

        return hook

    hooks: list[tuple[str, Callable[..., Any]]] = list(plan) if attach else []
    names = list({id(point): name for name, point in reversed(model.hook_dict.items())}.values())
    with torch.no_grad(), attached(model, [*hooks, *((name, look(name)) for name in reversed(names))]):
        model(tokens)
    edited = ", ".join(dict.fromkeys((*edited_at(model), *(name for name, _ in plan))))
    others = hooked_at(model)
    hooked = f", hooked at {', '.join(others)}," if others else ""
    what = f"under the edit of {edited} the results" if edited else f"the results of the unedited model{hooked}"
    return InputError(f"{what} are not finite; first at {seen[0] if seen else 'the head: no hook before it is'}")


def check_fired(silent: Sequence[str]) -> None:
    """Raise `InputError` if there are edits that never fired."""
    if silent:
        raise InputError(
            f"edits that did not fire: {', '.join(silent[:5])}; was the model run, and those layers with it?"
        )


@contextmanager
def attached(model: Any, hooks: list[tuple[str, Callable[..., Any]]]) -> Iterator[None]:
    """TransformerLens hooks, removed whatever happens; hooks of an outer context stay.

    They belong to the thread that attached them: a forward pass of another thread raises `InputError` there, for hooks
    are on the model, and it would be edited, or captured as if it were this thread's.
    """
    if not hooks:
        yield
        return
    owner = get_ident()

    def own(name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
        def hook(x: Tensor, hook: Any) -> Any:
            if get_ident() != owner:
                raise InputError(
                    f"another thread captures or edits {name} of this model: give each thread a model of its own, "
                    "copy.deepcopy(model), or a lock around capture, edit and forward pass"
                )
            return fn(x, hook)

        return hook

    with _eagerly(), ExitStack() as stack:
        for name, fn in hooks:
            point = model.hook_dict[name]
            try:  # a bridge refuses the points that its settings switch off
                model.check_hooks_to_add(point, name, fn)
            except ValueError as error:
                raise InputError(str(error)) from None
            with _LOCK:
                handle = point.add_hook(own(name, fn))
                at = handle.hook.id
                point._forward_hooks[at] = _only_at(point, point._forward_hooks[at])
            stack.callback(_detach, point, handle)
        yield


def _only_at(point: Any, hook: Callable[..., Any]) -> Callable[..., Any]:
    """A hook of torch that does nothing at copies of the point: a copied part of a model keeps its hooks."""

    def only(module: Any, *passed: Any) -> Any:
        return hook(module, *passed) if module is point else None

    setattr(only, _OURS, True)
    return only


def _detach(point: Any, handle: Any) -> None:
    """Remove exactly this hook; `model.hooks` would take others of its level along."""
    with _LOCK:
        handle.hook.remove()
        point.fwd_hooks[:] = [other for other in point.fwd_hooks if other is not handle]


_eager: list[Any] = []
"""One for each block in which compiled code runs eagerly; the first is what ends that."""


@contextmanager
def _eagerly() -> Iterator[None]:
    """Without compiled code, which would not fire hooks, until the last of these blocks ends, in whichever order."""
    with _LOCK:
        _eager.append(_eager[0] if _eager else torch.compiler.set_stance("force_eager"))
    try:
        yield
    finally:
        with _LOCK:
            last = _eager.pop()
            if not _eager:
                last.__exit__(None, None, None)
