"""Pure functions that return edits: hook name -> function(activation, hook) -> new activation.

An ablated head writes nothing instead of its z (`scale_heads`), its mean over a reference set (`replace_heads`), or its
output in another row (`resample_heads`). All three blend z ← g z + (1−g) z': g = 1 changes nothing, bit for bit, and
g = 0 is the full ablation. Hook: `blocks.L.attn.hook_z` [B, T, H, K].

`add_direction` steers residual streams after a block. The edits of one instrument alone are in its `measure`: `streams`
replaces a stream, `mixing` its mixing, `latents` changes the latents of HDPL projections, `amplify` sharpens attention.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.models.head_spec import Head
from streamscope.models.hooks import Edit, Query, everywhere, run, scale_axis

if TYPE_CHECKING:
    from streamscope.probes.stream_states import Place

Z = "blocks.{}.attn.hook_z"


def scale_heads(heads: Iterable[Head], g: float) -> dict[str, Edit]:
    """Multiply the outputs z of the heads by g, before the output projection (LFA App. D).

    g = 0 removes a head, g = 1 changes nothing (bit for bit). Hook: `blocks.L.attn.hook_z` [B, T, H, K].
    """
    return {Z.format(layer): partial(scale_axis, index=index, g=g) for layer, index in heads_by_layer(heads).items()}


def replace_heads(heads: Iterable[Head], means: Mapping[Head, Tensor], g: float = 0.0) -> dict[str, Edit]:
    """Mean ablation: z ← g z + (1−g) z̄ at every position, z̄ [K] the head's mean over a reference set.

    Unlike zero, the mean keeps what is constant in a head's output. `mean_outputs` computes means.
    """
    return {
        Z.format(layer): partial(_blend, index=index, other=torch.stack([means[Head(layer, h)] for h in index]), g=g)
        for layer, index in heads_by_layer(heads).items()
    }


def resample_heads(heads: Iterable[Head], g: float = 0.0, *, seed: int = 0) -> dict[str, Edit]:
    """Resample ablation: z ← g z + (1−g) z of another row of the batch, at the same position.

    Rows are exchanged along one random cycle, so no row keeps its own; `seed` fixes the cycle of a batch size, and all
    heads of a row come from one donor. The result depends on the composition of a batch, and a longer row may read the
    padding of a shorter one: use batches of similar length. Raises `InputError` in the forward pass for a single row.
    """
    layers = heads_by_layer(heads)
    return {Z.format(layer): partial(_resample, index=index, g=g, seed=seed) for layer, index in layers.items()}


def add_direction(
    direction: Tensor, amounts: Mapping[int, float], streams: Iterable[str] = ("resid",)
) -> dict[str, Edit]:
    """Activation addition: x ← x + c d after block L, at every position of each stream (SPEC §1.8).

    direction d [D]; amounts {layer: c}, in units of the stream times those of 1/d; c = 0 changes nothing, bit for bit.
    streams: "resid" with a single stream, "token" and "context", "s0", "s1", … of hyper-connections. Hooks:
    `blocks.L.hook_resid_post`, `hook_token_post`, `hook_context_post` [B, T, D], `hook_streams_post` [B, T, N, D].
    """
    from streamscope.probes.stream_states import place_at

    edits: dict[str, Edit] = {}
    for layer, c in sorted(amounts.items()):
        by_hook: dict[str, list[Place]] = {}
        for place in (place_at(stream, layer) for stream in dict.fromkeys(streams)):
            by_hook.setdefault(place.hook, []).append(place)
        edits |= {hook: partial(_add, places=places, step=float(c) * direction) for hook, places in by_hook.items()}
    return edits


def random_direction(d: int, seed: int, draw: int) -> Tensor:
    """A unit vector [d], uniform on the sphere, from its own generator."""
    x = torch.from_numpy(np.random.default_rng([seed, draw]).standard_normal(d))
    return (x / x.norm()).float()


def donors(n: int, seed: int) -> Tensor:
    """The donor row [n] of each of n rows: one random cycle without fixed points."""
    if n < 2:
        raise InputError("resampling needs at least two rows in every batch; change the batch size or use mean")
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    donor_of = torch.empty_like(order)
    donor_of[order] = order.roll(1)
    return donor_of


def heads_by_layer(heads: Iterable[Head]) -> dict[int, list[int]]:
    """Layer -> indices, both ascending, each head once."""
    indices: dict[int, list[int]] = {}
    for layer, head in sorted(set(heads)):
        indices.setdefault(layer, []).append(head)
    return indices


@everywhere
def _blend(z: Tensor, hook: Any, *, index: list[int], other: Tensor, g: float) -> Tensor:
    new = z.clone()
    new[:, :, index] = g * z[:, :, index] + (1 - g) * other.to(z)
    return new


def _resample(z: Tensor, hook: Any, *, index: list[int], g: float, seed: int) -> Tensor:
    return _blend(z, hook, index=index, other=z[donors(z.shape[0], seed).to(z.device)][:, :, index], g=g)


@everywhere
def _add(x: Tensor, hook: Any, *, places: "Sequence[Place]", step: Tensor) -> Tensor:
    for place in places:
        x = place.put(x, ..., place.of(x) + step.to(x))
    return x


def mean_outputs(model: Any, rows: Iterable[Sequence[int]], *, chunk: int = 32) -> dict[Head, Tensor]:
    """Mean z [K] of every head; see `hook_means`."""
    means = hook_means(model, (Z.format("*"),), rows, chunk=chunk)
    return {Head(int(name.split(".")[1]), h): z for name, mean in means.items() for h, z in enumerate(mean)}


def hook_means(
    model: Any, names: Sequence[str], rows: Iterable[Sequence[int]], *,
    part: Callable[[Tensor], Tensor] = lambda x: x, start: int = 0, chunk: int = 32,
) -> dict[str, Tensor]:  # fmt: skip
    """Mean of each hook [...], or of a `part` of it [T, ...], over the positions of rows from `start` on (by default
    with BOS), in float32. Sums run in float64 over `chunk` rows at a time, so memory does not grow."""
    sums, n = dict[str, Tensor](), 0
    for batch in chunks((row for row in rows if len(row) > start), chunk):  # a document without a target has none
        n += sum(len(row) - start for row in batch)
        for name, values in run(model, Query(tokens=batch, hooks=tuple(names))).hooks.items():
            total = torch.stack([part(x[start:]).double().sum(0) for x in values]).sum(0)
            sums[name] = sums[name] + total if name in sums else total
    return {name: (total / n).float() for name, total in sums.items()}


def document_rows(batches: Iterable[tuple[Any, Tensor, Tensor]]) -> Iterator[list[int]]:
    """The inputs of `text.shards.document_batches` one by one without padding; windows of a longer document come whole,
    with the repeated context."""
    for _, tokens, targets in batches:
        for row, target in zip(tokens, targets, strict=True):
            real = (target != -100).nonzero()
            yield row[: int(real[-1]) + 1 if len(real) else 0].tolist()


def chunks(rows: Iterable[Sequence[int]], size: int) -> Iterator[list[Sequence[int]]]:
    """Lists of `size` rows, the last one shorter."""
    iterator = iter(rows)
    while batch := list(islice(iterator, size)):
        yield batch
