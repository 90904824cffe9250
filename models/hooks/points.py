"""Hook points that behave differently from TransformerLens' `HookPoint`, so that no edit is silently lost.

- `ReadPoint`: the value that one reader takes from a stream. An edit, also in place, changes that reader only.
- `ObservePoint`: a sum of streams, or another value that nothing reads back. An edit raises and names the hook to edit.
- `OnDemand`: computed only when somebody listens (scores, patterns, mixing matrices, norm statistics).

A model calls its points like any module. Those of the last two kinds are called only if `_forward_hooks` is not empty:
every listener puts an entry there, a backward hook and nnsight too.
"""

import sys
import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.models.interop.transformer_lens_core import HookPoint


def _nothing(module: Any, *values: Any) -> None:
    """A hook that only says that somebody listens."""


def _needs_gradient(module: Any, inputs: tuple[Tensor]) -> Tensor:
    """A stream that is still zero also has a gradient."""
    return inputs[0].clone() if inputs[0].requires_grad else inputs[0].detach().clone().requires_grad_()


class ReadPoint(HookPoint):
    """The value that one reader takes from a stream, or from a tensor that others read too: hooks get a copy."""

    def register_forward_hook(self, hook: Callable[..., Any], **options: Any) -> Any:
        @wraps(hook)
        def on_copy(module: Any, *given: Any) -> Any:
            copy = given[-1].clone()
            y = hook(module, *given[:-1], copy)
            exact = y is None and not copy.requires_grad and not torch.compiler.is_exporting()
            if exact and _same(copy, given[-1]):
                return None
            return copy if y is None else y  # edited, needed for a gradient, or a graph, which cannot ask for values

        return super().register_forward_hook(on_copy, **options)

    def register_forward_pre_hook(self, hook: Callable[..., Any], **options: Any) -> Any:
        @wraps(hook)
        def on_copy(module: Any, inputs: tuple[Tensor], *rest: Any) -> Any:
            copies = tuple(x.clone() for x in inputs)
            changed = hook(module, copies, *rest)
            return copies if changed is None else changed

        return super().register_forward_pre_hook(on_copy, **options)

    def register_full_backward_hook(self, hook: Callable[..., Any], **options: Any) -> Any:
        handle = super().register_full_backward_hook(hook, **options)
        return _with(handle, self._forward_pre_hooks, _needs_gradient)


class OnDemand(HookPoint):
    """A hook point whose activation is computed only when somebody listens.

    Listeners are TransformerLens hooks, an nnsight trace that waits for it, and `model.explicit()`, which asks for all.
    """

    def register_full_backward_hook(self, hook: Callable[..., Any], **options: Any) -> Any:
        return _with(super().register_full_backward_hook(hook, **options), self._forward_hooks, _nothing)

    def always(self, wanted: bool) -> None:
        """Have the activation computed in every pass, or no longer."""
        self._forward_hooks.pop("always", None)
        if wanted:
            self._forward_hooks["always"] = _always

    @property
    def listening(self) -> bool:
        """Whether the activation has to be computed."""
        if "forward" not in self.__dict__:
            return bool(self._forward_hooks)
        return any(hook is not _for_nnsight for hook in self._forward_hooks.values()) or _awaited(self)


class ObservePoint(HookPoint):
    """A point that shows `shows` and cannot be edited; edit `instead`."""

    def __init__(self, instead: str, shows: str) -> None:
        super().__init__()
        self.instead, self.shows = instead, shows

    def add_hook(self, hook: Any, dir: Any = "fwd", **options: Any) -> Any:
        """Add a hook as in TransformerLens; a backward hook raises, because no gradient passes this point."""
        if dir == "bwd":
            raise InputError(f"{self.name} only shows {self.shows}; no gradient passes it, ask for {self.instead}")
        return super().add_hook(hook, dir, **options)

    def show(self, x: Tensor) -> None:
        """Show x to the hooks; raise `InputError` if one of them edits it."""
        x = x.detach()
        if not _same(self(x.clone()), x):
            raise InputError(f"{self.name} only shows {self.shows}; edit {self.instead} instead")


def _with(handle: Any, companions: dict[int, Any], hook: Callable[..., Any]) -> Any:
    """The handle of a backward hook, with a forward hook that is added now and removed with it."""
    companions[handle.id] = hook
    handle.extra_dict_ref = (*handle.extra_dict_ref, weakref.ref(companions))
    return handle


def _always(module: Any, *values: Any) -> None:
    """A hook that says that an activation is always wanted."""


def _for_nnsight(module: Any, *values: Any) -> None:
    """The entry of nnsight, which replaces `forward` for good, among the hooks of a point."""


def _copy_for_nnsight(module: Any, inputs: tuple[Tensor]) -> Tensor:
    return inputs[0].clone()


BLOCK, FOR_GOOD = "of a block", "for good"
"""Values of the attribute `of_streamscope` of our own hooks: copies of a model do not have those of a block."""
_nothing.__dict__["of_streamscope"] = BLOCK
for _hook in (_needs_gradient, _always, _for_nnsight, _copy_for_nnsight):
    _hook.__dict__["of_streamscope"] = FOR_GOOD


def see_nnsight(model: torch.nn.Module) -> None:
    """Enter nnsight among the hooks of the points whose `forward` it has replaced."""
    for point in model.modules() if "forward" in vars(model) else ():
        if "forward" in vars(point) and isinstance(point, ReadPoint):
            point._forward_pre_hooks.setdefault("nnsight", _copy_for_nnsight)
        elif "forward" in vars(point) and isinstance(point, OnDemand | ObservePoint):
            point._forward_hooks.setdefault("nnsight", _for_nnsight)


def _awaited(point: HookPoint) -> bool:
    """Whether a running nnsight trace waits for the point, or keeps it in a cache.

    A block of a trace stops at the next value that it wants, and the trace records where its blocks stopped. So the
    answer is right only just before the activation would be computed. The records are internal to nnsight (0.8). Raises
    `InputError` for a block that counts passes (`tracer.iter`) after a pass in which nobody waited: nnsight counts only
    the passes it has seen.
    """
    if torch.compiler.is_compiling() or not hasattr(point.forward, "state"):
        return False
    trace, path, _ = point.forward.state.active()
    if trace is None:
        return False
    for block in trace.mediators:
        where = block.pending.provider if block.pending is not None else None
        if where is None or not where.startswith(f"{path}."):
            continue
        passes = block.occurrence(f"{path.split('.')[0]}.input")
        if block.iteration is not None and block.occurrence(where) != passes - 1:
            raise InputError(
                f"nnsight waits for {point.name} in a later pass, and earlier passes did not compute it: put the trace "
                "into `with model.explicit():`, which computes it in every pass"
            )
        return True
    return any(where.startswith(f"{path}.") for where in trace.observers)


def quiet(point: HookPoint) -> bool:
    """Whether nobody listens to a point: no hooks, no nnsight."""
    return not (point._forward_hooks or point._forward_pre_hooks or point._backward_hooks or "forward" in vars(point))


def eager_when_hooked(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Make `forward` of a model run eagerly while any of its modules has a hook, even if it was compiled.

    Compiled code keeps the hooks of its first call: hooks added later would never fire, removed ones would continue.
    """

    @torch._disable_dynamo
    def eagerly(self: Any, *args: Any, **kwargs: Any) -> Any:
        with torch.compiler.set_stance("force_eager"):
            return forward(self, *args, **kwargs)

    @wraps(forward)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        see_nnsight(self)
        # without torch's compiler, which takes more than a second to import, nothing is compiled
        compiler = torch.compiler.is_compiling() or "torch._dynamo" in sys.modules
        hooked = compiler and torch._disable_dynamo(any_hooks)(self)  # compiled code would keep the first answer
        return (eagerly if hooked else forward)(self, *args, **kwargs)

    return call


def any_hooks(model: torch.nn.Module) -> bool:
    """Whether a module inside has hooks."""
    stack = list(model._modules.values())
    while stack:  # three times as fast as model.modules()
        module = stack.pop()
        if module is None:
            continue
        if not quiet(module) or module._backward_pre_hooks:
            return True
        stack.extend(module._modules.values())
    return False


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())
