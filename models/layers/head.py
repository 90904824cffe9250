"""The unembedding of a normed stream, perhaps with a cap on its logits."""

from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from streamscope.models.layers.projections import linear


@dataclass(frozen=True, eq=False)
class Capped:
    """An unembedding W [V, D] with capped logits, cap · tanh(x Wᵀ / cap) (Gemma 2).

    It replaces W in `model.head`, so code that multiplies with the head fails instead of omitting the cap.
    """

    weight: Float[Tensor, "V D"]
    cap: float

    @property
    def shape(self) -> torch.Size:
        """[V, D]."""
        return self.weight.shape

    @property
    def requires_grad(self) -> bool:
        """Whether W is trained."""
        return self.weight.requires_grad

    def numel(self) -> int:
        """Number of weights."""
        return self.weight.numel()

    def to(self, dtype: torch.dtype) -> "Capped":
        """The head with W in another dtype."""
        return replace(self, weight=self.weight.to(dtype))


Head: TypeAlias = Tensor | Capped
"""An unembedding: W [V, D], or with a cap."""


def capped(weight: Float[Tensor, "V D"], cap: float) -> Head:
    """The head with this W; W itself for cap 0."""
    return Capped(weight, cap) if cap else weight


def softcap(x: Float[Tensor, "*any"], cap: float) -> Float[Tensor, "*any"]:
    """cap · tanh(x / cap); x for cap 0."""
    return cap * torch.tanh(x / cap) if cap else x


def unembed(x: Float[Tensor, "*batch D"], head: Head) -> Float[Tensor, "*batch V"]:
    """The logits of a normed stream."""
    return softcap(linear(x, head.weight), head.cap) if isinstance(head, Capped) else linear(x, head)
