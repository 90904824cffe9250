"""The embedding, and the unembedding of a normed stream, perhaps with a cap on its logits."""

from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from streamscope.models import config as c
from streamscope.models.layers.projections import fill, linear


class Embedding(nn.Module):
    """A table [rows, D]: `weight` is W_E without its scale."""

    def __init__(self, rows: int, d_model: int, init: c.Init, scale: float = 1.0) -> None:
        super().__init__()
        self.init, self.scale = init, scale
        self.weight = nn.Parameter(torch.empty(rows, d_model))

    @property
    def W_E(self) -> Float[Tensor, "V D"]:
        return self.weight if self.scale == 1 else self.weight * self.weight.new_tensor(self.scale)

    def init_weights(self, std: float, generator: torch.Generator) -> None:
        fill(self.weight, self.init, self.weight.shape[1], std=std, generator=generator)

    def forward(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        """Look up rows of the table, times the scale in the dtype of the weights."""
        x = F.embedding(tokens, self.weight)
        return x if self.scale == 1 else x * x.new_tensor(self.scale)


@dataclass(frozen=True, eq=False)
class Capped:
    """An unembedding W [V, D] with capped logits, cap · tanh(x Wᵀ / cap) (Gemma 2).

    It replaces W in `model.head`, so code that multiplies with the head fails instead of omitting the cap.
    """

    weight: Float[Tensor, "V D"]
    cap: float

    shape, requires_grad = property(attrgetter("weight.shape")), property(attrgetter("weight.requires_grad"))

    def numel(self) -> int:
        return self.weight.numel()

    def to(self, dtype: torch.dtype) -> "Capped":
        return replace(self, weight=self.weight.to(dtype))


Head: TypeAlias = Tensor | Capped
"""An unembedding: W [V, D], or with a cap."""


def softcap(x: Float[Tensor, "*any"], cap: float) -> Float[Tensor, "*any"]:
    """cap · tanh(x / cap); x for cap 0."""
    return cap * torch.tanh(x / cap) if cap else x


def unembed(x: Float[Tensor, "*batch D"], head: Head) -> Float[Tensor, "*batch V"]:
    return softcap(linear(x, head.weight), head.cap) if isinstance(head, Capped) else linear(x, head)


class Unembedding(nn.Module):
    """A head, whose W_U is the transposed table `weight`: its own or the embedding's."""

    weight: nn.Parameter
    cap: float

    @property
    def W_U(self) -> Float[Tensor, "D V"]:
        return self.weight.T

    @property
    def head(self) -> Head:
        return Capped(self.weight, self.cap) if self.cap else self.weight

    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch V"]:
        """The logits of a normed stream, with the readout's cap."""
        return unembed(x, self.head)


class UntiedUnembedding(Unembedding, Embedding):
    """A head with a table of its own."""

    def __init__(self, config: c.ModelConfig) -> None:
        super().__init__(config.d_vocab, config.d_model, config.init.embed)
        self.cap = config.readout.softcap


class TiedUnembedding(Unembedding):
    """A head without parameters, which reads the embedding's table."""

    def __init__(self, config: c.ModelConfig, embed: Embedding) -> None:
        super().__init__()
        self.cap = config.readout.softcap
        self._table = (embed,)  # in a tuple, so that its weights are not registered twice

    @property
    def weight(self) -> nn.Parameter:  # type: ignore[override]
        """The embedding's table [V, D], without the embedding's scale."""
        return self._table[0].weight
