"""Hook points that behave differently from TransformerLens' plain `HookPoint`, so that no edit is lost in silence.

- `tap`: what a reader takes from a stream. An edit changes that reader only, also when it is in place.
- `observe`: a sum of streams, or another value that nothing reads back. An edit raises and names what to edit instead.
- `OnDemand`: computed only when somebody listens (scores, patterns, mixing matrices, norm statistics).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from streamscope.models.errors import InputError


class OnDemand(HookPoint):
    """A hook point whose activation is computed only when it is listened to.

    TransformerLens hooks are noticed by themselves; `model.explicit()` asks for all of them (nnsight).
    """

    def __init__(self) -> None:
        super().__init__()
        self.wanted = False

    @property
    def listening(self) -> bool:
        """Whether the activation has to be computed."""
        return self.wanted or bool(self._forward_hooks) or bool(self._backward_hooks)


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


def _hooked(point: HookPoint) -> bool:
    """Whether anybody may read or write here: hooks, or nnsight, which replaces `forward` for good."""
    if point._forward_hooks or point._forward_pre_hooks or point._backward_hooks:
        return True
    return "forward" in point.__dict__ and not torch.compiler.is_compiling()


def quiet(point: HookPoint) -> bool:
    """Whether nobody listens to a point: no hooks, no nnsight, nobody who asked for an on-demand activation."""
    return not _hooked(point) and not getattr(point, "wanted", False)


def tap(point: HookPoint, x: Tensor) -> Tensor:
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
