"""Edits of parallel streams: constant read, write and mixing coefficients; permuted or averaged streams.

    X ← H_res X + H_post ⊗ F(H_pre X)          around the branch F of every module, L2.attn or L2.mlp (SPEC §1.4, §2)

Coefficients are edited where they are used: `blocks.L.{attn,mlp}_hc.hook_pre`, `hook_post` [B, T, N] and `hook_res`
[B, T, N, N]. Streams are edited where they enter the module, `blocks.L.hook_streams_pre` for attention and
`hook_streams_mid` for the FFN [B, T, N, D], so that the module computes its coefficients from the changed streams.
"""

import itertools
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from jaxtyping import Float
from torch import Tensor

from streamscope.models.head_spec import parse_parts
from streamscope.models.hooks import Edit
from streamscope.models.mixing import PARTS, PlacedConnection


def parse_modules(specs: str | Sequence[str], n_layers: int) -> list[PlacedConnection]:
    """Modules named L2.attn, L2.*, L0-2.mlp, *.attn or all; in order, each once."""
    return [PlacedConnection(*part) for part in parse_parts(specs, n_layers, PARTS, "module")]


def constant_coefficients(values: Mapping[str, Tensor]) -> dict[str, Edit]:
    """H ← values[hook], [N] or [N, N], the same at every token."""
    return {name: partial(_constant, value=value) for name, value in values.items()}


def permute_streams(modules: Iterable[PlacedConnection], order: Sequence[int]) -> dict[str, Edit]:
    """X_s ← X_order[s] where the streams enter the modules."""
    return {module.entry: lambda X, hook: X[:, :, list(order)] for module in modules}


def average_streams(modules: Iterable[PlacedConnection]) -> dict[str, Edit]:
    """X_s ← the mean of the streams where they enter the modules; equal streams stay equal, bit for bit."""
    return {module.entry: _average for module in modules}


def permutations(n: int, draws: int, seed: int) -> list[tuple[int, ...]]:
    """`draws` different permutations of n streams, drawn uniformly from all but the identity; all if there are fewer.
    The same seed gives the same permutations."""
    identity = tuple(range(n))
    if math.factorial(n) - 1 <= draws:
        return list(itertools.permutations(range(n)))[1:]
    generator, drawn = random.Random(seed), dict[tuple[int, ...], None]()
    while len(drawn) < draws:
        order = tuple(generator.sample(identity, n))
        if order != identity:
            drawn[order] = None
    return list(drawn)


def _constant(H: Tensor, hook: Any, *, value: Tensor) -> Tensor:
    return value.to(H).expand_as(H)


def _average(X: Float[Tensor, "B T N D"], hook: Any) -> Float[Tensor, "B T N D"]:
    first = X[:, :, :1]  # the mean of equal numbers is not always that number
    return (first + (X - first).mean(2, keepdim=True)).expand_as(X)
