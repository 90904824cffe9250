"""Lenses of every stream after every layer: fitted on some documents, compared with the model on others."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import islice, product
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from streamscope.cli.errors import InputError
from streamscope.instruments.contract import InstrumentData, title_of
from streamscope.instruments.data import Documents, Opened
from streamscope.instruments.observations import Contrast, Estimates, Measure, joined
from streamscope.instruments.open_data import OpenDocuments
from streamscope.instruments.progress import Progress, ticks
from streamscope.instruments.table import Table, counts, described, key
from streamscope.models.hooks import capture, pad
from streamscope.models.lenses import Map, weights_digest
from streamscope.models.make import untrained
from streamscope.models.readout import IGNORE, chunk_rows
from streamscope.probes.lenses import Lenses
from streamscope.probes.logit_lens.measure import head_of
from streamscope.probes.stream_states import RESID, Place, batch_states, last_state, places_of, stream_hooks

MEASURED = 0.25  # share of the documents to measure on
DAMPING = 1e-4  # λ of ridge, in units of the mean variance of a dimension
KEPT, BATCH = 16_384, 1024  # positions that are kept to train tuned, and those of a step
LEARNING_RATE = 1e-3  # the first, which falls to 0


def places(options: Lenses, model: Any) -> list[Place]:
    """The streams to read: those of `hooks`, or all after every layer and, of several, their sum (resid)."""
    streams = places_of(model, options.hooks)
    if options.hooks or streams[0].stream == RESID:
        return streams
    return [*streams, *(Place(f"blocks.{i}.hook_resid_post", RESID, i) for i in range(model.cfg.n_layers))]


def check(options: Lenses, model: Any) -> None:
    places(options, model)
    if "untrained" in options.kinds:
        untrained(model, options.seed)


Source = tuple[str, Place]
"""Whose state, the model's ("own") or that of its "untrained" twin, and where."""


def states_of(
    nets: Mapping[str, Any], read_places: Sequence[Place], tokens: Int[Tensor, "B T"], real: Bool[Tensor, "B T"]
) -> tuple[dict[Source, Float[Tensor, "N D"]], Float[Tensor, "N D"]]:
    """The states of the model ("own") and perhaps of its twin at real positions, and the model's last one."""
    states, last = dict[Source, Tensor](), dict[str, Tensor]()
    for net, model in nets.items():
        by_place, last[net] = batch_states(model, tokens, read_places)
        states |= {(net, place): x[real].float() for place, x in by_place.items()}
    return states, last["own"][real].float()


# ---- fitting ----------------------------------------------------------------------------------


def moments(x: Float[Tensor, "N D"], y: Float[Tensor, "N D"]) -> Float[Tensor, "1+D 1+2*D"]:
    """[1 x]ᵀ [1 x y] in float64: sums over positions, which is all that least squares of y from x needs."""
    with_ones = functional.pad(x.double(), (1, 0), value=1.0)
    return with_ones.T @ torch.cat([with_ones, y.double()], 1)


def ridge(sums: Tensor) -> Map:
    """argmin over A, b of Σ |y − x A − b|² / n + λ |A|², λ = `DAMPING` · mean variance of x; `sums` of `moments`."""
    means, d = sums[0] / sums[0, 0], len(sums) - 1
    mean_x, mean_y = means[1:].split(d)
    cxx, cxy = (sums[1:, 1:] / sums[0, 0] - mean_x[:, None] * means[1:]).split(d, 1)
    penalty = DAMPING * cxx.diagonal().mean().clamp(min=1e-12)
    A = torch.linalg.solve(cxx + penalty * torch.eye(d).to(cxx), cxy)
    return Map(A.float(), (mean_y - mean_x @ A).float())


Cell = tuple[str, Place, dict[Source, Map]]
"""One lens of one place: the maps of the states whose sum the head reads; none for the logit lens and the constant."""


def fit(
    options: Lenses, nets: Mapping[str, Any], opened: OpenDocuments, read_places: Sequence[Place],
    J: Mapping[Place, Map], tick: Callable[[int], None],
) -> tuple[list[Cell], Float[Tensor, " V"], str]:  # fmt: skip
    """The constant and the wanted lenses, without those that are an earlier place's, from every position of these
    documents that has a next token, BOS too; ln of the mean of the model's probabilities; and words for the title."""
    model, device, n = nets["own"], nets["own"].cfg.device, 0
    head, first = head_of(model), {place.stream: place for place in reversed(read_places)}
    repeated = {(net, p): first[p.stream] for net in nets for p in read_places if p != first[p.stream]}
    total = torch.zeros(model.cfg.d_vocab, dtype=torch.float64, device=device)
    kept_mask = thinned(sum(len(ids) - 1 for ids in opened.rows()), options.seed).to(device)
    sums, samples, kept_last = defaultdict[Source, Any](float), defaultdict[Source, list[Tensor]](list), []
    for _, tokens, targets in opened.batches():
        states, last = states_of(nets, read_places, tokens.to(device), (targets != IGNORE).to(device))
        repeated = {(net, place): earlier for (net, place), earlier in repeated.items()
                    if torch.equal(states[net, place], states[net, earlier])}  # fmt: skip
        with torch.no_grad():
            total += sum(head(h).double().softmax(-1).sum(0) for h in last.split(chunk_rows(model.cfg.d_vocab)))
        rows = kept_mask[n : n + len(last)]
        n += len(last)
        kept_last.append(last[rows])
        for source, x in states.items():
            sums[source] += moments(x, last)
            samples[source].append(x[rows])
    last, cells = torch.cat(kept_last), [("constant", Place("", "", -1), dict[Source, Map]())]
    norm_of = getattr(model, "layer_norm", lambda layer: None)
    for kind, place in product(options.kinds, read_places):
        source, maps = ("untrained" if kind == "untrained" else "own", place), dict[Source, Map]()
        earlier = repeated.get(source)
        tick(1)
        if kind == "jacobian":  # of a sum of streams, those of the streams; it depends on the layers that follow
            maps = {("own", p): J[p] for p in J if p == place or (place not in J and p.layer == place.layer)}
        elif earlier and (kind != "logit" or norm_of(place.layer) is norm_of(earlier.layer)):
            continue
        elif kind != "logit":
            start = ridge(sums[source])
            fixed = kind == "ridge"
            maps[source] = start if fixed else tuned(options, head, start, torch.cat(samples[source]), last)
        cells.append((kind, place, maps))
    same = {place for net, place in repeated if net == "own"} | set(repeated.values())
    layers = Counter(place.stream for place in same if place.hook.endswith("_post"))
    unchanged = ", ".join(sorted(stream for stream, count in layers.items() if count == model.cfg.n_layers))
    words = f"fitted on {n:,} positions of other documents"
    if unchanged:
        words += f"; no layer changes {unchanged}: one row for each lens" + " but jacobian" * bool(J)
    return cells, (total / n).clamp(min=1e-45).log(), words


def thinned(n: int, seed: int) -> Bool[Tensor, " n"]:
    """`KEPT` of n positions, drawn at random."""
    mask = torch.zeros(n, dtype=torch.bool)
    mask[torch.as_tensor(np.random.default_rng([seed, 1]).permutation(n)[:KEPT])] = True
    return mask


def tuned(
    options: Lenses, head: Callable[[Tensor], Tensor], start: Map, x: Float[Tensor, "N D"], last: Float[Tensor, "N D"]
) -> Map:
    """The map of least KL(model ‖ lens): Adam from `start`, its learning rate falling to 0 along a line."""
    rng = np.random.default_rng([options.seed, 2])
    A, b = start.A.clone().to(x).requires_grad_(), start.b.clone().to(x).requires_grad_()
    optimizer = torch.optim.Adam([A, b], lr=LEARNING_RATE)
    falling = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / options.steps)
    for _ in range(options.steps):
        rows = torch.as_tensor(rng.integers(0, len(x), min(BATCH, len(x))))
        with torch.no_grad():
            p = head(last[rows]).softmax(-1)
        loss = -(p * head(Map(A, b).to_last(x[rows])).log_softmax(-1)).sum(-1).mean()
        A.grad, b.grad = torch.autograd.grad(loss, [A, b])
        optimizer.step()
        falling.step()
    return Map(A.detach(), b.detach())


def jacobians(model: Any, rows: Sequence[Sequence[int]], read_places: Sequence[Place]) -> dict[Place, Map]:
    """x̂ = J x with J = mean over texts of the mean over positions t of Σ_t' ∂x_last,t' / ∂x_t, t' ≥ t.

    Positions are those after BOS that have a next token. One backward pass per dimension of the last state gives a row
    of J for every layer and stream. A sum of several streams is no variable of the model: it has no J of its own.
    """
    live = [place for place in read_places if place.stream != RESID or not stream_hooks(model)]
    ids = [list(row)[: model.cfg.n_ctx] for row in rows if len(row) > 2]
    if not ids:
        raise InputError("no text has a position after BOS with a next token: give longer texts")
    tokens = pad(ids).to(model.cfg.device)
    weight = torch.zeros(tokens.shape, device=tokens.device)
    for i, row in enumerate(ids):
        weight[i, 1 : len(row) - 1] = 1 / (len(row) - 2)
    with torch.enable_grad(), capture(model, [place.hook for place in live], grad=True) as sources:
        h = last_state(model, tokens)
    target = (h * (weight > 0)[..., None]).sum((0, 1))  # [D]
    matrices = {place: torch.zeros(model.cfg.d_model, model.cfg.d_model) for place in live}
    for d in range(model.cfg.d_model):
        grads = torch.autograd.grad(target[d], list(sources.values()), retain_graph=True, materialize_grads=True)
        by_hook = dict(zip(sources, grads, strict=True))
        for place, J in matrices.items():
            J[d] = (place.of(by_hook[place.hook]).float() * weight[..., None]).sum((0, 1)).cpu() / len(ids)
    return {place: Map(J.T.contiguous(), torch.zeros(len(J))) for place, J in matrices.items()}


# ---- measuring --------------------------------------------------------------------------------


def observe(options: Lenses, model: Any, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: the constant lens, and lenses of places. Units: documents, with a sum over their positions."""
    opened, read_places = data[Documents], places(options, model)
    fit_documents, test_documents = opened.split(MEASURED, options.seed)
    nets = {"own": model} | ({"untrained": untrained(model, options.seed)} if "untrained" in options.kinds else {})
    tick = ticks(progress, len(read_places) * len(options.kinds) + 1)
    texts = [row for row in islice(fit_documents.rows(), options.texts) if len(row) > 2]
    J = jacobians(model, texts, read_places) if "jacobian" in options.kinds else {}
    cells, constant, words = fit(options, nets, fit_documents, read_places, J, tick)
    head = head_of(model)

    @torch.no_grad()
    def sums_of(tokens: Tensor, targets: Tensor) -> dict[str, Float[Tensor, "cells B"]]:
        real = targets != IGNORE
        states, last = states_of(nets, read_places, tokens, real)
        document = real.nonzero()[:, 0]
        kl = torch.zeros(len(cells), len(tokens), dtype=torch.float64, device=tokens.device)
        agreement = torch.zeros_like(kl)
        for rows in torch.arange(len(last), device=last.device).split(chunk_rows(model.cfg.d_vocab)):
            log_p = head(last[rows]).log_softmax(-1)
            p, first = log_p.exp(), log_p.argmax(-1)
            for i, (kind, place, maps) in enumerate(cells):
                if maps:
                    logits = head(torch.stack([maps[s].to_last(states[s][rows]) for s in maps]).sum(0))
                elif kind == "logit":
                    logits = head_of(model, place.layer)(states["own", place][rows])
                else:
                    logits = constant.expand_as(log_p)
                log_q = logits.to(log_p).log_softmax(-1)
                kl[i].index_add_(0, document[rows], (p * (log_p - log_q)).sum(-1, dtype=torch.float64))
                agreement[i].index_add_(0, document[rows], (log_q.argmax(-1) == first).double())
        return {"kl": kl, "agreement": agreement}

    sums, units = test_documents.sums(model.cfg.device, sums_of)
    tick(0)
    about = {"title": f"{title_of(model)} on {test_documents.title()}; {words}", "texts": len(texts),
             "weights_digest": weights_digest(model), "layers": model.cfg.n_layers}  # fmt: skip
    arrays = {"constant": constant.float().cpu().numpy()}
    for kind, _, maps in cells:
        for (_, place), lens in maps.items():
            arrays |= {f"{kind}.{place.name}.{part}": x.cpu().numpy() for part, x in vars(lens).items()}
    measurements = InstrumentData(about=about, arrays=arrays)
    labels = pd.DataFrame([(kind, place.stream, place.layer, place.hook) for kind, place, _ in cells], columns=KEYS)
    everywhere = labels[1:].drop_duplicates(["stream", "layer"]).assign(lens="constant").to_dict("records")
    for name, unit, limits in (("kl", "nats/token", (0.0, np.inf)), ("agreement", "share of positions", (0.0, 1.0))):
        measure = Measure(name=name, unit=unit, resolution=1e-6 if name == "kl" else 0.0, limits=limits)
        measurements.add(measure, labels, units, sums[name], sums["targets"], start=1, null=None)
        of_constant = [Contrast(quantity=name, weights={0: 1.0}, labels=row, null=None) for row in everywhere]
        measurements.contrasts[name] += of_constant
    return measurements


def tables(options: Lenses, data: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    frame, missing = joined([estimates["kl"], estimates["agreement"]], KEYS, COLUMNS)
    return {"lenses": Table(frame, COLUMNS, missing, data.about["title"])}


KEYS = ("lens", "stream", "layer", "hook")
COLUMNS = (
    key("stream", "stream", f"the stream; {RESID}: the sum of the streams, or a single one"),
    key("layer", "layer", "counted from 0", "layer", "d"),
    key("lens", "lens", "how the state is read"),
    key("hook", "hook", "where the state is read", shown=False),
    *described("kl", "KL to the model", "nats/token", "KL of the model's prediction to the lens'", format=".3f",
               sd="documents"),
    *described("agreement", "agreement", "share of positions", "positions with the same most probable token",
               format=".3f", sd="documents"),
    *counts("documents", "independent documents"),
)  # fmt: skip
