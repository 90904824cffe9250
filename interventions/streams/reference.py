"""Replacements of a stream: its mean over a reference set, another text's stream, or embeddings of random words."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.interventions.edits.means import hook_means
from streamscope.models.hooks import Query, run

if TYPE_CHECKING:
    from streamscope.models.transformer import StreamTransformer
    from streamscope.text.shards import TokenShards


def hook_names(stream: str, n_layers: int) -> tuple[str, ...]:
    """Hooks where a stream is read: pre and mid of every layer, post of the last."""
    kind = "streams" if stream[1:].isdigit() else stream
    names = [f"blocks.{layer}.hook_{kind}_{place}" for layer in range(n_layers) for place in ("pre", "mid")]
    return (*names, f"blocks.{n_layers - 1}.hook_{kind}_post")


def _stream_part(stream: str, x: Tensor) -> Tensor:
    """The stream's part [T, D] of a hook's activation [T, D] or [T, N, D]."""
    return x[:, int(stream[1:])] if stream[1:].isdigit() else x


def stream_means(
    model: "StreamTransformer", stream: str, rows: Iterable[Sequence[int]], *, chunk: int = 32
) -> dict[str, Tensor]:
    """Mean [D] of a stream at every hook where it is read; see `hook_means`."""
    return hook_means(
        model, hook_names(stream, model.config.n_layers), rows, part=partial(_stream_part, stream), chunk=chunk
    )


def stream_of(model: "StreamTransformer", stream: str, ids: Sequence[int]) -> dict[str, Tensor]:
    """The stream of one text [T, D] at every hook where it is read, in an unedited run."""
    found = run(model, Query(tokens=[list(ids)], hooks=hook_names(stream, model.config.n_layers))).hooks
    return {name: _stream_part(stream, x[0]) for name, x in found.items()}


def random_embeddings(model: "StreamTransformer", stream: str, seed: int, draw: int) -> dict[str, Tensor]:
    """Embeddings of n_ctx tokens drawn uniformly from the vocabulary, [n_ctx, D], the same at every hook.

    Rows of a learned position table are added: the tokens' meaning is lost, their positions are not.
    """
    n, rng = model.config.n_ctx, np.random.default_rng([seed, draw])
    ids = torch.from_numpy(rng.integers(0, model.config.d_vocab, n)).to(model.cfg.device)
    with torch.no_grad():
        x = model.embed(ids[None])[0]
        if model.pos_embed is not None:
            x = x + model.pos_embed.weight[:n]
    return dict.fromkeys(hook_names(stream, model.config.n_layers), x)


def window(shards: "TokenShards", n_ctx: int, seed: int, draw: int) -> list[int]:
    """BOS and n_ctx − 1 tokens from a random place inside a document. `InputError` for data shorter than the
    context."""
    starts = set(shards.starts.tolist()) | {int(s) + 1 for s in shards.starts}
    last = shards.n_tokens - (n_ctx - 1)
    allowed = [i for i in range(max(0, last)) if i not in starts] if last < 10_000 else None
    if last < 1 or allowed == []:
        raise InputError(f"the data have {shards.n_tokens} tokens, resampling needs more than the context of {n_ctx}")
    rng = np.random.default_rng([seed, draw, 1])
    while True:
        at = int(rng.choice(allowed)) if allowed is not None else int(rng.integers(0, last))
        if at not in starts:
            return [int(shards.tokens[0]), *shards.tokens[at : at + n_ctx - 1].tolist()]
