"""The loss of a model with one of its streams removed, one row per place, with documents as units.

A stream is read at three points of layer L, `blocks.L.hook_<stream>_pre`, `_mid` and `_post`: attention reads pre, the
FFN mid, the next layer (or the head) post. The stream continues, so the reach of an edit depends on the point:

    onwards     pre of layer L only: layer L and everything after it read the replacement plus later writes. A frozen
                token stream is never written, so it stays replaced up to the head.
    layer       pre and mid of layer L; at post the removed part is put back as the layer carries it. Only layer L reads
                the change; its outputs stay. Hyper-connections carry through H_res: until post, other streams lack the
                stream's share, too, and coefficients come from the changed streams.
    everywhere  pre and mid of every layer and post of the last: nothing ever reads the stream itself.
    head        post of the last layer: only the final norm and the head read the replacement.

Streams: "token", "context"; "s0", "s1", … of hyper-connections; "resid" for a single stream.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.cli.terminal import counted
from streamscope.instruments.contract import Progress, title_of
from streamscope.instruments.data import Documents, Opened
from streamscope.instruments.observations import Estimates
from streamscope.instruments.open_data import OpenDocuments
from streamscope.instruments.table import Table, key, number
from streamscope.interventions import changes
from streamscope.interventions.edits import document_rows, hook_means
from streamscope.interventions.streams import Streams
from streamscope.models.config import FrozenToken
from streamscope.models.head_spec import parse_layers
from streamscope.models.hooks import Edit, Query, edited_at, hooked_at, run
from streamscope.models.transformer import StreamTransformer
from streamscope.probes.stream_states import Place, place_at, streams_of
from streamscope.text.shards import TokenShards

DRAWN = ("random", "resample")
"""Methods with random replacements."""
SYMBOL = {"token": "x_t", "context": "x_e", "resid": "x"}
TARGET = {"zero": "0", "random": "random vocabulary", "mean": "mean", "resample": "other text"}
PAPER = {("token", "zero"): 36.0, ("context", "zero"): 9.5, ("token", "random"): 28.0}
"""Percent in DST Table 4, for another model and corpus, at an unstated place."""
NOT_PRINTED = "not in the paper"
EMPTY = "by construction, x_e is 0 until layer 0 writes it"


Replacement = Callable[[str, Tensor], Tensor]
"""(hook name, the stream [B, T, D]) -> its replacement, of the same shape."""


def zero(name: str, x: Tensor) -> Tensor:
    """x ← 0 (DST Table 4)."""
    return torch.zeros_like(x)


def constant(values: Mapping[str, Tensor]) -> Replacement:
    """x ← values[hook] [D], the same at every position: mean ablation."""
    return lambda name, x: values[name].to(x).expand_as(x)


def sequence(values: Mapping[str, Tensor]) -> Replacement:
    """x_t ← values[hook]_t from rows [T', D] with T' ≥ T, the same in every row of the batch: another text's stream."""
    return lambda name, x: values[name][: x.shape[1]].to(x).expand_as(x)


EVERYWHERE, HEAD = "everywhere", "head"
POINTS: tuple[Literal["pre", "mid", "post"], ...] = ("pre", "mid", "post")


def replace_at(stream: str, replacement: Replacement, where: int | str, reach: str, n_layers: int) -> dict[str, Edit]:
    """The edits of a place: `EVERYWHERE`, `HEAD`, or a layer with the reach "layer" or "onwards"."""
    if reach == "layer":
        return _replace_in_layer(stream, replacement, int(where))
    names = hook_names(stream, n_layers)
    if where != EVERYWHERE:
        names = (names[-1] if where == HEAD else place_at(stream, int(where), "pre").hook,)
    return dict.fromkeys(names, partial(_replace, place=place_at(stream, 0), replacement=replacement))


def _replace_in_layer(stream: str, replacement: Replacement, layer: int) -> dict[str, Edit]:
    """Replace the stream for the readers of one layer; afterwards it is what it would have been. The edits of a layer
    share state, so use them together, in one forward pass at a time."""
    removed: dict[str, Tensor] = {}  # the part that is put back
    pre, mid, post = (place_at(stream, layer, point) for point in POINTS)

    def take(x: Tensor, hook: Any, *, carried: bool) -> Tensor:
        new = _replace(x, hook, place=pre, replacement=replacement)
        removed["part"] = removed["part"] + (x - new) if carried else x - new
        return new

    def carry(H: Tensor, hook: Any) -> Tensor:
        removed["part"] = H @ removed["part"]
        return H

    edits: dict[str, Edit] = {pre.hook: partial(take, carried=False)}
    if pre.part is not None:
        edits |= {f"blocks.{layer}.{branch}_hc.hook_res": carry for branch in ("attn", "mlp")}
    return edits | {mid.hook: partial(take, carried=True), post.hook: lambda x, hook: x + removed.pop("part")}


def hook_names(stream: str, n_layers: int) -> tuple[str, ...]:
    """Hooks where a stream is read: pre and mid of every layer, post of the last."""
    names = [place_at(stream, layer, point).hook for layer in range(n_layers) for point in POINTS[:2]]
    return (*names, place_at(stream, n_layers - 1).hook)


def _replace(x: Tensor, hook: Any, *, place: Place, replacement: Replacement) -> Tensor:
    return place.put(x, ..., replacement(hook.name, place.of(x)))


def stream_of(model: StreamTransformer, stream: str, ids: Sequence[int]) -> dict[str, Tensor]:
    """The stream of one text [T, D] at every hook where it is read, in an unedited run."""
    captures = run(model, Query(tokens=[list(ids)], hooks=hook_names(stream, model.config.n_layers))).hooks
    return {name: place_at(stream, 0).of(x[0]) for name, x in captures.items()}


def random_embeddings(model: StreamTransformer, stream: str, d_vocab: int, seed: int, draw: int) -> dict[str, Tensor]:
    """Embeddings of n_ctx tokens drawn uniformly from the tokenizer's `d_vocab`, [n_ctx, D], the same at every hook.
    Rows of a learned position table are added: the tokens' meaning is lost, their positions are not."""
    n, rng = model.config.n_ctx, np.random.default_rng([seed, draw])
    ids = torch.from_numpy(rng.integers(0, d_vocab, n)).to(model.cfg.device)
    with torch.no_grad():
        x = model.embed(ids[None])[0]
        if model.pos_embed is not None:
            x = x + model.pos_embed.weight[:n]
    return dict.fromkeys(hook_names(stream, model.config.n_layers), x)


def window(shards: TokenShards, n_ctx: int, seed: int, draw: int) -> list[int]:
    """BOS and n_ctx − 1 tokens from a random place inside a document. `InputError` for data shorter than the
    context."""
    starts = set(shards.starts.tolist()) | {int(s) + 1 for s in shards.starts}
    last = shards.n_tokens - (n_ctx - 1)
    allowed = [i for i in range(max(0, last)) if i not in starts] if last < 10_000 else None
    if last < 1 or allowed == []:
        raise InputError(
            f"the data have {counted(shards.n_tokens, 'token')}, resampling needs more than the context of {n_ctx}"
        )
    rng = np.random.default_rng([seed, draw, 1])
    while True:
        start = int(rng.choice(allowed)) if allowed is not None else int(rng.integers(0, last))
        if start not in starts:
            return [int(shards.tokens[0]), *shards.tokens[start : start + n_ctx - 1].tolist()]


def observe(options: Streams, model: Any, data: Opened, progress: Progress) -> changes.Effects:
    opened, change_list = data[Documents], list[changes.Change]()
    places = parse_places(options.where, options.reach, model.config.n_layers)
    changed = bool(edited_at(model) or hooked_at(model))  # then x_e may be written before layer 0
    for stream in chosen_streams(model, options.streams):
        for method in dict.fromkeys(options.method):
            if (stream, method) == ("context", "random"):  # it does not begin as embeddings
                continue
            drawn = replacements(options, model, opened, stream, method)
            for where, reach in places:
                first_read = reach == "onwards" or not isinstance(model.config.residual, FrozenToken)
                empty = stream == "context" and where == 0 and first_read and not changed
                labels = {
                    "stream": stream, "definition": f"{SYMBOL.get(stream, stream)} → {TARGET[method]}",
                    "method": method, "where": f"L{where}" if isinstance(where, int) else where, "reach": reach,
                    "layer": where if isinstance(where, int) else -1,
                }  # fmt: skip
                change_list.append(changes.Change(
                    labels, [replace_at(stream, x, where, reach, model.config.n_layers) for x in drawn],
                    missing=EMPTY if empty else "",
                    family=f"{stream}, {method}",
                    undrawn="" if method in DRAWN else "the replacement is not random",
                ))  # fmt: skip
    if not change_list:
        raise InputError("nothing to measure: the context stream does not begin as embeddings; use --method resample")
    effects = changes.measure_changes(model, opened, change_list, progress=progress)
    effects.about["title"] = f"{title_of(model)}: loss without a stream; {effects.documents}"
    return effects


def check(options: Streams, model: Any) -> None:
    chosen_streams(model, options.streams)


def with_resolved_heads(options: Streams, data: Opened) -> Streams:
    return replace(options, streams=chosen_streams(data.model, options.streams))


def chosen_streams(model: Any, chosen: Sequence[str]) -> tuple[str, ...]:
    """The streams to remove; a single stream only if named. Raises `InputError` for a stream the model lacks, and for a
    single stream that was not named."""
    streams = streams_of(model, chosen)
    if streams == ("resid",) and not chosen:
        raise InputError(
            f"{model.config.name} has one residual stream, and nothing is left without it: use interventions.ablate "
            "for its heads or interventions.patch for its layers, or --streams resid to measure it anyway"
        )
    return streams


def parse_places(specs: Sequence[str], reaches: Sequence[str], n_layers: int) -> list[tuple[int | str, str]]:
    """(layer, reach), layers ascending, then head and everywhere as given; all by default. Raises `InputError` as
    `parse_layers`."""
    last = [spec for spec in dict.fromkeys(specs or (HEAD, EVERYWHERE)) if spec in (HEAD, EVERYWHERE)]
    layers = [spec.replace("L", "") for spec in specs if spec not in (HEAD, EVERYWHERE)]
    if unknown := [spec for spec in layers if not spec.replace("-", "").isdigit()]:
        raise InputError(f"--where {unknown[0]}: give layers as 3 or 2-4, head or everywhere")
    layer_numbers = parse_layers(layers, n_layers, "--where") if specs else range(n_layers)
    return [
        *((layer, reach) for layer in layer_numbers for reach in dict.fromkeys(reaches)),
        *((spec, "") for spec in last),
    ]


def replacements(options: Streams, model: Any, opened: OpenDocuments, stream: str, method: str) -> list[Replacement]:
    """What replaces a stream, one per draw; the mean is over the documents."""
    if method == "zero":
        return [zero]
    if method == "mean":
        names, part = hook_names(stream, model.config.n_layers), place_at(stream, 0).of
        return [constant(hook_means(model, names, document_rows(opened.batches()), part=part))]
    if method == "random":
        draws = range(options.draws)
        return [sequence(random_embeddings(model, stream, opened.shards.d_vocab, options.seed, i)) for i in draws]
    texts = [window(opened.shards, model.config.n_ctx, options.seed, i) for i in range(options.draws)]
    return [sequence(stream_of(model, stream, ids)) for ids in texts]


def tables(options: Streams, effects: changes.Effects, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """One row per stream, method and place; `draw_sd` is between draws, which the intervals do not include."""
    printed = [PAPER.get((c.labels["stream"], c.labels["method"]), np.nan) for c in effects.changes]
    columns, title = {"paper_percent": printed}, effects.about["title"]
    table = changes.effect_table(effects, estimates, COLUMNS, title, extra_columns=columns)
    absent = {(i, "paper_percent"): NOT_PRINTED for i, x in enumerate(printed) if np.isnan(x)}
    return {"streams": replace(table, missing=table.missing | absent)}


COLUMNS = (
    key("stream", "stream", "the removed stream", shown=False),
    key("definition", "stream → replacement", "the stream and its replacement, in the notation of DST Table 4"),
    key("method", "method", "zero, random, mean or resample", shown=False),
    key("where", "where", "a layer, the head, or everywhere", "place"),
    key("reach", "reach", "readers of the change: that layer only, or everything from there on"),
    number("layer", "layer", "layer", "from 0; −1 for head and everywhere", "d", False),
    *changes.LOSS, *changes.DELTA, *changes.RELATIVE, *changes.DRAWS,
    number("paper_percent", "percent, paper", "percent of the unedited loss",
           "value in DST Table 4, for another model and corpus", "+.1f", False, source="DST Table 4"),
    *changes.TOKENS,
)  # fmt: skip
