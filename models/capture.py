"""Read activations, change activations, run prompts: on our models and on any HookedRootModule.

    with capture(model, ["blocks.*.attn.hook_z"]) as found:      names or patterns with *
        model(tokens)
    found["blocks.3.attn.hook_z"]                                [B, T, H, K]

    with edit(model, {"blocks.3.attn.hook_z": lambda z, hook: z * 0.5}):
        model(tokens)

    captures = run(model, Query(tokens=prompts, hooks=("blocks.*.attn.hook_pattern",), logits=positions))

A name that matches nothing, a hook that did not fire and an edit of an observe-only hook raise
`InputError`; so does an edit after which values are not finite, with the first hook where that is so. Hooks are removed
on the way out, also after an exception. Hooks belong to the thread that attached them: another thread's forward pass
raises there, and neither is silently wrong.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from threading import get_ident
from typing import Any

import torch
from torch import Tensor

from streamscope.models.errors import InputError, unknown
from streamscope.models.hooks import ObservePoint, row_of

Edit = Callable[[Tensor, Any], Tensor]
"""function(activation, hook) -> new activation of the same shape; it must not change its argument."""
Edits = Mapping[str, Edit]


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
def edit(model: Any, edits: Edits) -> Iterator[None]:
    """Apply edits (name or pattern -> function) to the forward passes in the block.

    Raises `InputError` for unknown names and observe-only hooks before anything runs, for an edit that
    changes a shape or dtype or returns nothing, for values that are not finite (NaN, or an infinity anywhere but a
    −∞ among attention scores), and at the end for an edit that never fired.
    """
    plan = resolve(model, edits)
    fired: set[str] = set()

    looking = False

    def check(model: Any, inputs: tuple[Any, ...], output: Any) -> None:
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
            stack.callback(model.register_forward_hook(check).remove)
        yield
    check_fired([name for name, _ in plan if name not in fired])


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
    """`x` after an edit; `InputError` when it changes the shape or dtype, or returns nothing."""
    y = fn(x, hook)
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


def _count(x: Tensor) -> str:
    return f"{int((~x.isfinite()).sum())} of {x.numel()}"


def not_finite(model: Any, tokens: Tensor, plan: Sequence[tuple[str, Edit]], *, attach: bool = True) -> InputError:
    """The `InputError` for results that are not finite, with the first hook where a second pass of `tokens` shows it.

    `plan` are the edits, which `attach` applies in that pass; without, they are in place already.
    """
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
    edited = ", ".join(dict.fromkeys(name for name, _ in plan))
    what = f"under the edit of {edited} the results" if edited else "the results of the unedited model"
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

    with torch.compiler.set_stance("force_eager"), ExitStack() as stack:
        for name, fn in hooks:
            point = model.hook_dict[name]
            try:  # a bridge refuses the points that its settings switch off
                model.check_hooks_to_add(point, name, fn)
            except ValueError as error:
                raise InputError(str(error)) from None
            stack.callback(_detach, point, point.add_hook(own(name, fn)))
        yield


def _detach(point: Any, handle: Any) -> None:
    """Remove exactly this hook; `model.hooks` would take others of its level along."""
    handle.hook.remove()
    point.fwd_hooks[:] = [other for other in point.fwd_hooks if other is not handle]


# ---- many prompts in few batches ---------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Query:
    """What a probe wants from a model: prompts, activations, logits. Positions count from 0 (BOS)."""

    tokens: Sequence[Sequence[int]] | Tensor
    """Token ids of each prompt, not padded."""
    hooks: tuple[str, ...] = ()
    """Names or patterns of the activations to return."""
    positions: Sequence[Sequence[int]] | None = None
    """Per prompt, the positions (the query axis of patterns) to keep; None keeps all."""
    logits: Sequence[Sequence[int]] | None = None
    """Per prompt, the positions at which logits are wanted; None asks for no logits."""

    def __post_init__(self) -> None:
        for name in ("tokens", "positions", "logits"):  # tensors, or lists of tensors, are welcome
            rows = getattr(self, name)
            if rows is not None:
                plain = [row.tolist() if isinstance(row, Tensor) else list(row) for row in rows]
                object.__setattr__(self, name, plain)
        if not self.tokens or not all(self.tokens):
            raise InputError("a query needs at least one prompt, and every prompt at least one token")
        for name in ("positions", "logits"):
            rows = getattr(self, name)
            if rows is None:
                continue
            if len(rows) != len(self.tokens):
                raise InputError(f"{name} for {len(rows)} prompts given, there are {len(self.tokens)} prompts")
            for i, (row, ids) in enumerate(zip(rows, self.tokens, strict=True)):
                if any(not 0 <= p < len(ids) for p in row):
                    raise InputError(f"{name} {list(row)} of prompt {i} leave its {len(ids)} tokens")


@dataclass(frozen=True)
class Captures:
    """Per prompt, in the order of the query: `hooks[name][i]` without batch axis, `logits[i]` [P, V]."""

    hooks: dict[str, list[Tensor]]
    logits: list[Tensor] | None


def time_axes(name: str, ndim: int) -> tuple[int, ...]:
    """The position axes of an activation without its batch axis, the query axis first."""
    row = row_of(name)
    letters = row.shape.split(" | ")[0].split()[1:] if row is not None else ["T", *"?" * (ndim - 1)]
    return tuple(i for i, letter in enumerate(letters) if letter == "T")


@torch.no_grad()
def run(model: Any, query: Query, edits: Edits | None = None, *, batch_tokens: int = 8192) -> Captures:
    """Run the prompts of `query` in few length-sorted batches, under `edits`, and return what it asks for.

    Works on our models and on a `TransformerBridge`. The values of a prompt do not depend on its batch; an edit
    sees padded batches in that order, so it must treat all rows alike. Raises `InputError` in training mode.
    """
    if model.training:
        raise InputError("the model is in training mode, where dropout is on: call model.eval() first")
    names = match(model, query.hooks) if query.hooks else []
    kept: dict[str, list[Any]] = {name: [None] * len(query.tokens) for name in names}
    logits: list[Any] = [None] * len(query.tokens)
    for rows in batches([len(t) for t in query.tokens], batch_tokens):
        tokens = pad([list(query.tokens[i]) for i in rows]).to(model.cfg.device)
        with edit(model, edits or {}), capture(model, names) as found:
            out = _forward(model, tokens, [query.logits[i] for i in rows] if query.logits is not None else None)
        if edits and not all(is_finite(x, name) for name, x in found.items()):
            raise not_finite(model, tokens, resolve(model, edits))
        for b, i in enumerate(rows):
            n = len(query.tokens[i])
            for name in names:
                kept[name][i] = crop(name, found[name][b], n, query.positions[i] if query.positions else None)
            if out is not None and query.logits is not None:
                logits[i] = out[b][: len(query.logits[i])].clone()
    return Captures(kept, logits if query.logits is not None else None)


def pad(prompts: Sequence[Sequence[int]], fill: int = 0) -> Tensor:
    """[B, T] tokens, padded on the right; causal attention keeps padding from every real position."""
    tokens = torch.full((len(prompts), max(map(len, prompts))), fill)
    for i, ids in enumerate(prompts):
        tokens[i, : len(ids)] = torch.as_tensor(ids)
    return tokens


def batches(lengths: list[int], budget: int) -> Iterator[list[int]]:
    """Indices in batches of like length, padded size at most `budget` tokens (one prompt at least)."""
    rows: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if rows and lengths[i] * (len(rows) + 1) > budget:
            yield rows
            rows = []
        rows.append(i)
    yield rows


def _forward(model: Any, tokens: Tensor, at: Sequence[Sequence[int]] | None) -> Tensor | None:
    """Logits [B, P, V] at padded position lists, or None; only our models can skip the other positions."""
    ours = hasattr(model, "segment")
    if at is None:
        model(tokens, return_type=None) if ours else model(tokens)
        return None
    where = pad([row or [0] for row in at]).to(tokens.device)
    if ours:
        return model(tokens, logits_at=where)
    full = model(tokens)
    return full.gather(1, where[..., None].expand(-1, -1, full.shape[-1]))


def crop(name: str, x: Tensor, n: int, positions: Sequence[int] | None) -> Tensor:
    """One prompt's activation without padding, at the wanted positions."""
    axes = time_axes(name, x.ndim)
    for axis in axes:
        x = x.narrow(axis, 0, n)
    if positions is not None and axes:
        x = x.index_select(axes[0], torch.as_tensor(positions, device=x.device, dtype=torch.long))
    return x.clone()
