"""Hook points that behave differently from TransformerLens' `HookPoint`, so that no edit is silently lost.

- `read_point`: the value that one reader takes from a stream. An edit, also in place, changes that reader only.
- `observe`: a sum of streams, or another value that nothing reads back. An edit raises and names the hook to edit.
- `OnDemand`: computed only when somebody listens (scores, patterns, mixing matrices, norm statistics).
"""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.models.config import ModelConfig
from streamscope.models.interop.transformer_lens_core import HookPoint


class OnDemand(HookPoint):
    """A hook point whose activation is computed only when somebody listens.

    Listeners are TransformerLens hooks, an nnsight trace that waits for it, and `model.explicit()`, which asks for all.
    """

    def __init__(self) -> None:
        super().__init__()
        self.wanted = False
        self.asked: list[None] = []
        """One entry per open block of `model.explicit()`; blocks may end in any order."""

    @property
    def listening(self) -> bool:
        """Whether the activation has to be computed."""
        heard = self.wanted or self.asked or self._forward_hooks or self._backward_hooks
        return bool(heard) or ("forward" in self.__dict__ and _awaited(self))


class ObservePoint(HookPoint):
    """A point that shows `shows` and cannot be edited; edit `instead`. Use it through `observe`."""

    def __init__(self, instead: str, shows: str = "the sum of the streams") -> None:
        super().__init__()
        self.instead, self.shows = instead, shows

    def add_hook(self, hook: Any, dir: Any = "fwd", **options: Any) -> Any:
        """Add a hook as in TransformerLens; a backward hook raises, because no gradient passes this point."""
        if dir == "bwd":
            raise InputError(f"{self.name} only shows {self.shows}; no gradient passes it, ask for {self.instead}")
        return super().add_hook(hook, dir, **options)


def resid_point(config: ModelConfig, place: str) -> HookPoint:
    """Make `hook_resid_{place}`: editable with one stream, observe-only with several."""
    if not config.residual.streams:
        return HookPoint()
    shows = f"the {getattr(config.residual, 'reduce', 'sum')} of the streams"
    return ObservePoint(" or ".join(f"hook_{stream}_{place}" for stream in config.residual.streams), shows)


def _hooked(point: HookPoint) -> bool:
    """Whether hooks, or nnsight, which replaces `forward` for good, may read or write here."""
    hooks = point._forward_hooks or point._forward_pre_hooks or point._backward_hooks
    return bool(hooks) or ("forward" in point.__dict__ and not torch.compiler.is_compiling())


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
    """Whether nobody listens to a point: no hooks, no nnsight, no request for an on-demand activation."""
    return not _hooked(point) and not (isinstance(point, OnDemand) and (point.wanted or bool(point.asked)))


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
        # without torch's compiler, which takes more than a second to import, nothing is compiled
        compiler = torch.compiler.is_compiling() or "torch._dynamo" in sys.modules
        return (eagerly if compiler and any_hooks(self) else forward)(self, *args, **kwargs)

    return call


@torch._disable_dynamo
def any_hooks(model: torch.nn.Module) -> bool:
    """Whether a module inside has hooks; not compiled, because compiled code would keep the first answer."""
    stack = list(model._modules.values())
    while stack:  # three times as fast as model.modules()
        module = stack.pop()
        if module is None:
            continue
        if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
            return True
        stack.extend(module._modules.values())
    return False


def read_point(point: HookPoint, x: Tensor) -> Tensor:
    """The value that one reader sees: `x` itself if no hook changes it, else the hook's value.

    Hooks get a copy, so an in-place edit cannot reach the stream or a cached state.
    """
    if not _hooked(point):
        return point(x)
    copy = x.clone()
    if point._backward_hooks and torch.is_grad_enabled() and not copy.requires_grad:
        copy.requires_grad_()  # a stream that is still zero also has a gradient
    y = point(copy)
    if y is copy and not y.requires_grad and not torch.compiler.is_exporting() and _same(copy, x):
        return x
    return y  # edited, needed for a gradient, or a graph, which cannot ask for values


def observe(point: ObservePoint, readout: Callable[[], Tensor]) -> None:
    """Show `readout()` to the hooks of an observe-only point; it is computed only if there are any."""
    if not _hooked(point):
        return
    x = readout().detach()
    if not _same(point(x.clone()), x):
        raise InputError(f"{point.name} only shows {point.shows}; edit {point.instead} instead")


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())
