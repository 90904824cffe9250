"""The logit lens: streams after every layer as candidate tokens, and as losses of layers × prompts."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.instruments.contract import InstrumentData, title_of
from streamscope.instruments.data import Opened, Text
from streamscope.instruments.observations import Estimates, Measure, joined
from streamscope.instruments.table import Table, counts, described, key, number
from streamscope.models import readout
from streamscope.models.hooks import Captures, Edits, Query, run
from streamscope.models.layers.head import unembed
from streamscope.models.lenses import Map, lenses_of_kind
from streamscope.probes.logit_lens import LogitLens
from streamscope.text import is_bos

LONGEST = 8
"""Characters of a token that fit a cell of the picture."""
STREAM = "blocks.{}.hook_resid_post"


def maps_of(options: LogitLens, model: Any) -> dict[int, Map]:
    """The maps of `--lens FILE:KIND` by layer; none for the logit lens. Raises `InputError` as `read_lenses` does."""
    if not options.lens:
        return {}
    lenses, kind = lenses_of_kind(options.lens, model)
    return {layer: lenses.at(kind, STREAM.format(layer)) for layer in options.layers or range(model.cfg.n_layers)}


def check(options: LogitLens, model: Any) -> None:
    maps_of(options, model)


def head_of(model: Any, layer: int | None = None) -> Callable[[Any], Any]:
    """States [N, D] of any dtype -> logits [N, V] in float32 or wider, through the norm of a layer, where layers have
    norms of their own, or the final one."""
    dtype = next(model.parameters()).dtype
    wide = torch.promote_types(dtype, torch.float32)
    if hasattr(model, "layer_norm"):
        norm = model.layer_norm(model.cfg.n_layers - 1 if layer is None else layer)
        return lambda x: unembed(norm(x[None].to(dtype)), model.head)[0].to(wide)
    capped = model.adapter.apply_output_logits_transform  # some families scale or cap the logits
    return lambda x: capped(model.unembed(model.ln_final(x[None].to(dtype))))[0].to(wide)


def candidates(
    model: Any, options: LogitLens, rows: Sequence[Sequence[int]], *, edits: Edits | None = None, tokenizer: Any = None,
    progress: Any = iter,
) -> pd.DataFrame:  # fmt: skip
    """`read` for rows of token ids, BOS first; under edits the streams are those of the edited pass. Without a
    tokenizer, tokens are written as numbers. Raises `InputError` for a layer that the model lacks, for more predictions
    than its vocabulary, and for logits that are not finite."""
    cfg, maps, tokenizer = model.cfg, maps_of(options, model), tokenizer or getattr(model, "tokenizer", None)
    if options.k > cfg.d_vocab:
        raise InputError(f"k = {options.k}: give 1 to {cfg.d_vocab}, the size of the vocabulary")
    if beyond := [layer for layer in options.layers if layer >= cfg.n_layers]:
        raise InputError(f"layer {beyond[0]} does not exist: the model has layers 0 to {cfg.n_layers - 1}")

    @torch.no_grad()
    def logits(layer: int, x: Tensor) -> Tensor:
        x = x.to(cfg.device)
        scores = head_of(model)(maps[layer].to_last(x)) if maps else head_of(model, layer)(x)
        if not bool(scores.logsumexp(-1).isfinite().all()):  # −∞ forbids a token
            damage = "the weights of its norm or of the head are damaged"
            raise InputError(f"the logits of layer {layer} are not finite: {damage}")
        return scores

    def pieces(ids: Any) -> list[str]:
        if hasattr(tokenizer, "pieces"):
            return tokenizer.pieces(ids)
        return [tokenizer.decode([int(i)]) if tokenizer is not None else str(int(i)) for i in ids]

    layers = sorted(set(options.layers)) or range(cfg.n_layers)
    query = Query(tokens=[list(row) for row in rows], hooks=tuple(map(STREAM.format, layers)))
    captures = run(model, query, edits, progress=progress)
    return read(options, captures, query, logits, pieces, readout.chunk_rows(cfg.d_vocab))


def read(
    options: LogitLens, captures: Captures, query: Query, logits: Callable[[int, Any], Tensor],
    pieces: Callable[[Any], list[str]], size: int,
) -> pd.DataFrame:  # fmt: skip
    """One row per prompt, position, layer and candidate: the k most probable next tokens and the actual one
    (`CANDIDATES`), from logits(layer, stream [P, D]) -> [P, V] of `size` positions at a time, and the text of ids."""
    tables = []
    for prompt, ids in enumerate(query.tokens):
        texts, next_ids = np.array(pieces(ids), dtype=object), torch.tensor([*ids[1:], -1])
        for name in query.hooks:
            stream, layer = captures.hooks[name][prompt], int(name.split(".")[1])
            for start in range(0, len(ids), size):
                rows = slice(start, start + size)
                frame = _candidates(logits(layer, stream[rows]), next_ids[rows], options.k)
                frame["position"] += start
                tables.append(frame.assign(prompt=prompt, read=texts[frame["position"]], layer=layer))
    table = pd.concat(tables, ignore_index=True)
    table["token"] = pieces(table["id"])
    order = ["prompt", "position", "read", "layer", "top", "rank", "id", "token", "probability", "actual"]
    return table.sort_values(["prompt", "position", "layer", "rank"], kind="stable")[order].reset_index(drop=True)


def _candidates(logits: Tensor, next_ids: Tensor, k: int) -> pd.DataFrame:
    """Top k of every row of logits [P, V], then the token `next_ids` [P] (−1: none) if it is not among them."""
    z, next_ids = logits, next_ids.to(logits.device)[:, None]
    values, ids = z.topk(k, dim=-1)
    hit = z.gather(-1, next_ids.clamp(min=0))
    place = torch.arange(k, device=z.device).expand_as(ids)
    first_equal = torch.where(values == values.roll(1, -1), 0, place).cummax(-1).values
    new = (next_ids >= 0) & ~(ids == next_ids).any(-1, keepdim=True)
    ids = torch.cat([ids, next_ids], -1)
    columns = {
        "position": torch.arange(len(z), device=z.device)[:, None].expand_as(ids),
        "top": torch.cat([place + 1, torch.zeros_like(next_ids)], -1),
        "rank": torch.cat([first_equal, (z > hit).sum(-1, keepdim=True)], -1) + 1, "id": ids,
        "probability": (torch.cat([values, hit], -1) - z.logsumexp(-1, keepdim=True)).double().exp(),
        "actual": ids == next_ids,
    }  # fmt: skip
    keep = torch.cat([torch.ones_like(place, dtype=torch.bool), new], -1)
    return pd.DataFrame({name: x[keep].cpu().numpy() for name, x in columns.items()})


def observe(options: LogitLens, model: Any, data: Opened, progress: Any = iter) -> InstrumentData:
    """Cells: layers. Units: prompts, with the loss at every position that has a next token."""
    opened = data[Text]
    table = candidates(model, options, opened.rows, tokenizer=opened.tokenizer, progress=progress)
    measurements = observed(table, opened.names)
    measurements.about["title"] = title_of(model) + opened.title() + (f"; lens {options.lens}" if options.lens else "")
    return measurements


def observed(table: pd.DataFrame, names: Sequence[str] | None = None) -> InstrumentData:
    """Observations of `read`: −ln p of the actual next token, and whether it is the most probable one."""
    actual = table[table["actual"]]
    if actual.empty:
        raise InputError("no position has a next token: give prompts of at least two tokens")
    rows = actual.assign(loss=-np.log(actual["probability"].clip(lower=np.finfo(float).tiny)), hit=actual["rank"] == 1)
    groups = rows.groupby(["layer", "prompt"])[["loss", "hit"]]
    sums, size = groups.sum().unstack(), groups.size().unstack()
    units = pd.DataFrame({"unit": [str(i) if names is None else names[i] for i in size.columns]})
    units["cluster"] = units["unit"].str.split(":").str[-1]  # copies of a text are not independent
    cells = pd.DataFrame({"layer": size.index})
    measurements = InstrumentData(about={"title": "logit lens"}, extra=table)
    for name, unit, most in (("loss", "nats/token", np.inf), ("hit", "share of positions", 1.0)):
        measure = Measure(name=name, unit=unit, resolution=1e-6, limits=(0.0, most))
        measurements.add(measure, cells, units, sums[name].to_numpy(float), size.to_numpy(float), null=None)
    return measurements


def tables(options: LogitLens, data: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """layers: loss, accuracy and rank of the actual next token; lens: the most probable token; candidates: all kept."""
    title, table = data.about["title"], data.extra
    actual = table[table["actual"]]
    frame, missing = joined([estimates["loss"], estimates["hit"]], ["layer"], LAYERS)
    ranks = actual.groupby("layer")["rank"]
    frame["median_rank"], frame["positions"] = ranks.median().to_numpy(), ranks.size().to_numpy()
    best = table[table["top"] == 1].reset_index(drop=True)
    texts = [visible(t.strip(" ") or "␣" * len(t), LONGEST) for t in best["token"]]
    best["picture_text"] = [f"<u>{t}</u>" if true else t for t, true in zip(texts, best["actual"], strict=True)]
    read_tokens = zip(best["position"], best["read"], strict=True)
    best["read"] = ["BOS" if is_bos(t, p) else visible(t, LONGEST) for p, t in read_tokens]
    size_note = f"; {frame['positions'].max():,} tokens" if len(frame) else ""
    lens = "most probable next token after each layer, underlined if it is the true one"
    return {
        "layers": Table(frame, LAYERS, missing, f"{title}: loss of the actual next token after each layer{size_note}"),
        "lens": Table(best[[c.name for c in LENS]], LENS, {}, f"{title}: {lens}", "layer", 1, ("prompt", "position")),
        "candidates": Table(table, CANDIDATES, {}, f"{title}: candidates", "probability", 10),
    }


LAYER = key("layer", "layer", "counted from 0", "layer", "d")
LAYERS = (
    LAYER,
    *described("loss", "loss", "nats/token", "mean −ln p of the true next token", sd="prompts",
               source="PLS App. A.5.1"),
    *described("hit", "accuracy", "share of positions", "positions whose true next token ranks first", format=".3f"),
    number("median_rank", "median rank", "rank", "median rank of the true next token; 1 is the most probable", ".1f"),
    number("positions", "positions", "positions", "positions that have a next token", "d"),
    *counts("prompts", "independent prompts"),
)  # fmt: skip
PLACE = (
    number("prompt", "prompt", "prompt", "number of the prompt, from 0", "d", False),
    number("position", "position", "tokens from BOS", "position of the token", "d"),
    key("read", "token", "token at the position"),
    LAYER,
)  # fmt: skip
PROBABILITY = number("probability", "probability", "probability", "probability of the candidate", ".3f")
LENS = (
    *PLACE,
    key("token", "likeliest next", "the most probable next token"),
    key("picture_text", "text in the picture", "the token, underlined if it is the true one", shown=False),
    PROBABILITY,
)  # fmt: skip
CANDIDATES = (
    *PLACE,
    number("top", "place", "place", "place among the k most probable tokens, or 0", "d"),
    number("rank", "rank", "rank", "rank by logit; 1 is the most probable, equal logits share a rank", "d"),
    number("id", "id", "token id", "token id of the candidate", "d", False),
    key("token", "candidate", "a likely next token"),
    PROBABILITY,
    key("actual", "true next token", "whether it is the next token of the prompt", "yes or no"),
)  # fmt: skip


def visible(piece: str, longest: int | None = None) -> str:
    """A token's text for a picture: cut to `longest` characters, visible line breaks, escaped HTML."""
    cut = piece if longest is None or len(piece) <= longest else piece[: longest - 1] + "…"
    return escape(cut.replace("\n", "⏎").replace("\t", "⇥"), quote=False)
