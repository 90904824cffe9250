"""Hook points that behave differently from TransformerLens' plain `HookPoint`, so that no edit is lost in silence.

- `read_point`: what a reader takes from a stream. An edit changes that reader only, also when it is in place.
- `observe`: a sum of streams, or another value that nothing reads back. An edit raises and names what to edit instead.
- `OnDemand`: computed only when somebody listens (scores, patterns, mixing matrices, norm statistics).
"""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from streamscope.cli.errors import InputError
from streamscope.models.config import ModelConfig


class OnDemand(HookPoint):
    """A hook point whose activation is computed only when it is listened to.

    TransformerLens hooks, and an nnsight trace that waits for it, are noticed by themselves; `model.explicit()` asks
    for all of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.wanted = False
        self.asked: list[None] = []
        """One for each block of `model.explicit()` that asks for it, which may end in any order."""

    @property
    def listening(self) -> bool:
        """Whether the activation has to be computed."""
        return (
            self.wanted or bool(self.asked) or bool(self._forward_hooks) or bool(self._backward_hooks) or _awaited(self)
        )


class ObservePoint(HookPoint):
    """A point that cannot be edited; use it through `observe`. It shows `shows`; edit `instead`."""

    def __init__(self, instead: str, shows: str = "the sum of the streams") -> None:
        super().__init__()
        self.instead, self.shows = instead, shows

    def add_hook(self, hook: Any, dir: Any = "fwd", **options: Any) -> Any:
        """As in TransformerLens; a backward hook raises, because no gradient passes through the sum."""
        if dir == "bwd":
            raise InputError(f"{self.name} only shows {self.shows}; no gradient passes it, ask for {self.instead}")
        return super().add_hook(hook, dir, **options)


def _wrapped(point: HookPoint) -> bool:
    """Whether nnsight has wrapped the point: it replaces `forward`, for good."""
    return "forward" in point.__dict__ and not torch.compiler.is_compiling()


def resid_point(config: ModelConfig, place: str) -> HookPoint:
    """`hook_resid_{place}`: editable with one stream, observe-only with several."""
    if not config.residual.streams:
        return HookPoint()
    shows = f"the {getattr(config.residual, 'reduce', 'sum')} of the streams"
    return ObservePoint(" or ".join(f"hook_{stream}_{place}" for stream in config.residual.streams), shows)


def _hooked(point: HookPoint) -> bool:
    """Whether anybody may read or write here: hooks, or nnsight."""
    return bool(point._forward_hooks or point._forward_pre_hooks or point._backward_hooks) or _wrapped(point)


def _awaited(point: HookPoint) -> bool:
    """Whether a running nnsight trace waits for the point, or keeps it in a cache.

    A block of a trace stops at the next value that it wants, and the trace knows where its blocks stopped; so
    this answers rightly where it is asked just before the activation would be computed, and nowhere else. Those are
    nnsight's own records (0.8): what the wrapper of a module knows of its traces. Raises `InputError` for a block that
    counts the passes of the model (`tracer.iter`) after one in which nobody waited: nnsight counts those it has seen.
    """
    if not _wrapped(point) or not hasattr(point.forward, "state"):
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
                f"nnsight waits for {point.name} in a later pass, after passes that did not compute it: put the trace "
                "into `with model.explicit():`, which computes it in every one"
            )
        return True
    return any(where.startswith(f"{path}.") for where in trace.observers)


def quiet(point: HookPoint) -> bool:
    """Whether nobody listens to a point: no hooks, no nnsight, nobody who asked for an on-demand activation."""
    return not _hooked(point) and not (isinstance(point, OnDemand) and (point.wanted or bool(point.asked)))


def eager_when_hooked(forward: Callable[..., Any]) -> Callable[..., Any]:
    """`forward` of a model, run eagerly while any of its modules has a hook, whatever was compiled.

    Compiled code keeps the hooks of its first call: those added later would never fire, those removed would go on.
    """

    @torch._disable_dynamo
    def eagerly(self: Any, *args: Any, **kwargs: Any) -> Any:
        with torch.compiler.set_stance("force_eager"):
            return forward(self, *args, **kwargs)

    @wraps(forward)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return (eagerly if _compiler() and _any_hooks(self) else forward)(self, *args, **kwargs)

    return call


def _compiler() -> bool:
    """Whether this process has torch's compiler, which takes more than a second to import; without, nothing is
    compiled."""
    return torch.compiler.is_compiling() or "torch._dynamo" in sys.modules


@torch._disable_dynamo
def _any_hooks(model: torch.nn.Module) -> bool:
    """Whether a module inside has hooks; not compiled, for compiled code would keep the first answer."""
    rest = list(model._modules.values())
    while rest:  # three times as fast as model.modules()
        module = rest.pop()
        if module is None:
            continue
        if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
            return True
        rest.extend(module._modules.values())
    return False


def read_point(point: HookPoint, x: Tensor) -> Tensor:
    """`x` as one reader sees it: `x` itself when untouched, else the hook's value.

    Hooks get a copy, so an edit in place cannot reach the stream or a cached state.
    """
    if not _hooked(point):
        return point(x)
    copy = x.clone()
    if point._backward_hooks and torch.is_grad_enabled() and not copy.requires_grad:
        copy.requires_grad_()  # a stream that is still zero has a gradient as well
    y = point(copy)
    if y is copy and not y.requires_grad and _same(copy, x):
        return x
    return y  # edited, or on the path of a gradient that somebody may ask for


def observe(point: ObservePoint, readout: Callable[[], Tensor]) -> None:
    """Show `readout()` to the hooks of an observe-only point, computed only when there are any.

    Raises `InputError` if one of them edits it.
    """
    if not _hooked(point):
        return
    x = readout().detach()
    if not _same(point(x.clone()), x):
        raise InputError(f"{point.name} only shows {point.shows}; edit {point.instead} instead")


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())
