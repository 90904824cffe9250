"""What rebuilt states cost: by dictionaries, by the token's mean state, by principal components, by the mean."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from streamscope.cli.errors import InputError, reading
from streamscope.cli.terminal import counted
from streamscope.cli.user_code import latents_in
from streamscope.features.dictionaries.measure import FVU, L0
from streamscope.features.dictionary_quality import DictionaryQuality
from streamscope.features.profile.contexts import Context
from streamscope.instruments.contract import InstrumentData, need_parts, title_of
from streamscope.instruments.data import Documents, Opened
from streamscope.instruments.observations import Estimates, Measure, bootstrap, each, interval_columns, joined
from streamscope.instruments.open_data import OpenDocuments
from streamscope.instruments.progress import Progress, ticks
from streamscope.instruments.table import Table, counts, described, key, number, quantity
from streamscope.models.dictionaries import Dictionary, read_dictionary, without_latents
from streamscope.models.hooks import expected_hooks, layer_of
from streamscope.models.readout import IGNORE, divergences, token_losses
from streamscope.models.sweep import passes
from streamscope.probes.stream_states import RESID, Place, batch_states, places_of

MEASURED = 0.25  # share of the documents to measure on
K = 16  # principal components where there is no dictionary
MOST = 5  # positions at which a latent is shown
BEFORE = 12  # tokens shown before such a position; half as many after it
SAME = 0.9  # cosine above which two latents count as the same
TABLE = 0.01  # variance not explained by the token below which a stream is a table of tokens
TOKEN, COMPONENTS, MEAN = "mean per token", "{} principal components", "mean"


def rebuilds(
    size: Float[Tensor, " V"], total: Float[Tensor, "V D"], square: Float[Tensor, "D D"], k: int
) -> dict[str, Callable[..., Tensor]]:
    """What needs no dictionary, by name: W [D, k] are the first k principal components, and a token that was not there
    has the mean. size: positions of each token; total: the sums of their states; square: Σ x xᵀ over all positions."""
    mean = (total.sum(0) / size.sum()).float()
    by_token = torch.where(size[:, None] > 0, (total / size.clamp(min=1)[:, None]).float(), mean)
    W = torch.linalg.eigh(square / size.sum() - mean.double()[:, None] * mean.double())[1][:, -k:].float()
    return {
        TOKEN: lambda x, y, ids: by_token[ids],
        COMPONENTS.format(W.shape[1]): lambda x, y, ids: mean + (y - mean) @ W @ W.T,
        MEAN: lambda x, y, ids: mean.expand_as(y),
    }


@dataclass
class Cell:
    """One way to rebuild the state at a place."""

    name: str
    source: Place
    target: Place
    rebuild: Callable[..., Tensor]
    """(source [N, D], state [N, D], ids [N]) -> what takes the state's place."""
    dictionary: Any = None
    """The `Dictionary`, if it is one."""
    latents: list[int] = field(default_factory=list)
    """Those to show."""
    values: list[Float[Tensor, "N latents"]] = field(default_factory=list)
    """What they are at the positions that are measured."""
    alive: Any = False
    """[F] which latents some position has."""


def dictionary_cells(options: DictionaryQuality, model: Any) -> list[Cell]:
    """The dictionaries. Raises `InputError` for one of another model, a hook that the model lacks, and latents to show
    that the dictionary lacks."""
    folders = [latents_in(path, complete=True) or (path, []) for path in options.dictionary]
    names, cells = [Path(folder).name for folder, _ in folders], list[Cell]()
    labels = options.dictionary if len(set(names)) < len(names) else names
    for label, (folder, latents) in zip(labels, folders, strict=True):
        dictionary = read_dictionary(str(folder), model).to(model.cfg.device)
        if not dictionary.hook:
            raise InputError(f"{label} names no hook")
        with reading(label):
            without_latents(dictionary, latents or [0], model)  # hooks of the model, and latents that are there
        hooks = (dictionary.hook, dictionary.target)
        order = [name for name, _ in expected_hooks(model.config) if name in hooks]
        if order[0] != dictionary.hook:
            raise InputError(f"{label}: {order[0]} comes before {order[1]} and cannot be rebuilt from it")
        source, target = (Place(hook, dictionary.stream or RESID, layer_of(hook)) for hook in hooks)
        cells.append(Cell(label, source, target, lambda x, y, ids, d=dictionary: d.rebuild(x), dictionary, latents))
    return cells


def check(options: DictionaryQuality, model: Any) -> None:
    need_parts(model, options.name)
    dictionary_cells(options, model)


def simple_cells(cells: Sequence[Cell], model: Any, opened: OpenDocuments) -> list[Cell]:
    """What needs no dictionary, at every place that is rebuilt: the token's mean, principal components and the mean."""
    places = [cell.target for cell in cells]
    places = places or [place for place in places_of(model) if place.layer == model.cfg.n_layers // 2]
    n, width, device = model.cfg.d_vocab, model.cfg.d_model, model.cfg.device
    zeros = partial(torch.zeros, dtype=torch.float64, device=device)
    sums = {place: (zeros(n), zeros(n, width), zeros(width, width)) for place in places}
    for _, tokens, targets in opened.batches():
        tokens = tokens.to(device)
        real = (targets.to(device) != IGNORE) & (tokens != model.tokenizer.bos_id)
        states, _ = batch_states(model, tokens, sums)
        for place, (size, total, square) in sums.items():
            x = states[place][real].double()
            size.index_add_(0, tokens[real], torch.ones_like(x[:, 0]))
            total.index_add_(0, tokens[real], x)
            square += x.T @ x
    simple = list[Cell]()
    for place, place_sums in sums.items():
        at_place = [cell.dictionary for cell in cells if cell.target == place]
        k = max((int(dictionary.about.get("k") or dictionary.k or K) for dictionary in at_place), default=K)
        simple += [Cell(name, place, place, rebuild) for name, rebuild in rebuilds(*place_sums, k).items()]
    return simple


def trained_on(dictionaries: Sequence[Dictionary], opened: OpenDocuments, measured: OpenDocuments) -> str:
    """How many of the measured documents a dictionary was trained on, for the title; "" if none is known to be."""
    origin = {name: opened.shards.meta.get(name) for name in ("corpus", "tokenizer", "rule")} | {"part": opened.part}
    units, measured_texts, n = opened.units(), measured.units()["cluster"].drop_duplicates(), 0
    place = units["document"] if "document" in units else units["unit"].str.partition(":")[0].astype(int)
    for about in (dictionary.about for dictionary in dictionaries):
        data = about.get("data")
        if isinstance(data, Mapping) and origin.items() <= data.items():
            n = max(n, measured_texts.isin(units["cluster"][place < about["documents"]]).sum())
    return f"{n} of {counted(len(measured_texts), 'document')} were trained on: give other --data" if n else ""


def observe(options: DictionaryQuality, model: Any, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: the unedited model, then ways to rebuild a state. Units: documents, with sums over their positions."""
    opened, of_dictionaries = data[Documents], dictionary_cells(options, model)
    fitted, measured = opened.split(MEASURED, options.seed)
    cells = of_dictionaries + simple_cells(of_dictionaries, model, fitted)
    spots = list[tuple[list[int], int]]()  # the document of each position, and its place there
    advance = ticks(progress, len(list(measured.batches())) * len(cells))

    @torch.no_grad()
    def sums_of(tokens: Tensor, targets: Tensor) -> dict[str, Tensor]:
        in_context = (targets != IGNORE).flip(1).cumsum(1).flip(1) > 0  # scored, or of the window before
        rebuilt = in_context & (tokens != model.tokenizer.bos_id)
        real = rebuilt & (targets != IGNORE)
        states, _ = batch_states(model, tokens, {place for c in cells for place in (c.source, c.target)})
        documents = [ids[:n].tolist() for ids, n in zip(tokens, in_context.sum(1), strict=True)]
        spots.extend((documents[i], t) for i, t in real.nonzero().tolist())
        sweep, counted_sums, scored = list[dict[str, Any]](), list[Tensor](), real[rebuilt]
        for cell in cells:
            x, y = (states[place][rebuilt].float() for place in (cell.source, cell.target))
            new = cell.rebuild(x, y, tokens[rebuilt])
            sweep.append({cell.target.hook: lambda h, hook, at=cell.target, new=new: at.put(h, rebuilt, new)})
            squares = (y - new)[scored].double().square().sum(-1)
            z = cell.dictionary.encode(x[scored]) if cell.dictionary else x.new_zeros(len(squares), 0)
            cell.alive = cell.alive | (z > 0).any(0)
            cell.values.append(z[:, cell.latents].cpu())
            of_positions = torch.stack([squares, (z > 0).sum(-1), torch.full_like(squares, z.shape[1] > 0)])
            zeros = torch.zeros(3, len(tokens)).to(squares)
            counted_sums.append(zeros.index_add(1, real.nonzero()[:, 0], of_positions))
        outcomes = passes(model, tokens, [{}, *sweep])
        unedited_state, _ = next(outcomes)
        losses, kl = [token_losses(unedited_state, model.head, targets).double().sum(1)], list[Tensor]()
        for h, _ in outcomes:
            losses.append(token_losses(h, model.head, targets).double().sum(1))
            kl.append((divergences(unedited_state, h, model.head) * (targets != IGNORE)).sum(1))
            advance(1)
        error, l0, positions = torch.stack(counted_sums, 1)
        of_pass = {"loss": torch.stack(losses), "kl": torch.stack(kl)}
        return {**of_pass, "error": error, "l0": l0, "positions": positions}

    sums, units = measured.sums(model.cfg.device, sums_of)
    advance(0)
    measurements = _observed(cells, sums, units)
    fvu = measurements.blocks["fvu"]
    by_place = fvu.cells.assign(fvu=fvu.values).set_index("dictionary").groupby("place", sort=False)["fvu"]
    words = [words_of(str(place), values.to_dict()) for place, values in by_place]
    words.append(trained_on([cell.dictionary for cell in of_dictionaries], opened, measured))
    measurements.about["title"] = "; ".join([f"{title_of(model)} on {measured.title()}", *filter(None, words)])
    measurements.extra += matches(of_dictionaries, options.seed), contexts(of_dictionaries, spots, model.tokenizer)
    return measurements


def _observed(cells: Sequence[Cell], sums: Mapping[str, np.ndarray], units: pd.DataFrame) -> InstrumentData:
    with_unedited = pd.DataFrame([("", ""), *((cell.target.name, cell.name) for cell in cells)], columns=KEYS)
    labels = with_unedited[1:].reset_index(drop=True)
    mean_of = {cell.target: i for i, cell in enumerate(cells) if cell.name == MEAN}
    means = [mean_of[cell.target] for cell in cells]
    blocks = {
        "loss": (sums["loss"], sums["targets"], "nats/token"),
        "kl": (sums["kl"], sums["targets"], "nats/token"),
        "fvu": (sums["error"], sums["error"][means], "ratio of variances"),
        "l0": (sums["l0"], sums["positions"], "latents"),
    }
    observations = InstrumentData()
    for name, (total, size, unit) in blocks.items():
        measure = Measure(name=name, unit=unit, resolution=1e-6, limits=None if name == "loss" else (0.0, np.inf))
        keys = with_unedited if name == "loss" else labels
        missing = ["it has no latents" if name == "l0" and cell.dictionary is None else "" for cell in cells]
        observations.add(measure, keys, units, total, size, start=int(name == "loss"), null=None, missing=missing)
    increases = each("increase", labels, start=1)
    observations.contrasts["loss"] = [replace(c, weights={**c.weights, 0: -1.0}) for c in increases]
    observations.extra = (means, [1 - float(cell.alive.float().mean()) for cell in cells])  # NaN of no latents
    return observations


def words_of(place: str, fvu: Mapping[str, float]) -> str:
    """What the table says of a place in words: that it is a table of tokens, or that tokens tell more."""
    if fvu[TOKEN] < TABLE:
        return f"{place} holds only a table of tokens ({1 - fvu[TOKEN]:.1%} of its variance)"
    values = [value for name, value in fvu.items() if name not in (TOKEN, MEAN) and "principal" not in name]
    if values and fvu[TOKEN] < min(values):
        return f"at {place} the token alone tells more of the state than the dictionary"
    return ""


def recovered(total: np.ndarray, size: np.ndarray, axis: int) -> np.ndarray:
    """(loss with the mean − loss with x̂) / (loss with the mean − loss), of the totals [without, mean, x̂]."""
    without, mean, rebuilt = total.sum(axis)
    return np.asarray((mean - rebuilt) / (mean - without))


def tables(options: DictionaryQuality, data: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    frame, missing = joined([estimates[name] for name in ("loss", "kl", "fvu", "l0")], KEYS, COLUMNS)
    means, dead, pairs, context_rows = data.extra
    triples = [[0, mean + 1, i + 1] for i, mean in enumerate(means)]
    rows = [interval_columns("recovered", bootstrap(data.blocks["loss"], cells, recovered)) for cells in triples]
    frame = pd.concat([frame, pd.DataFrame([row for row, _ in rows])], axis=1).assign(dead=dead)
    missing |= {(i, name): reason for i, (_, reasons) in enumerate(rows) for name, reason in reasons.items()}
    missing |= {(i, "dead"): "it has no latents" for i, value in enumerate(dead) if value != value}
    title, out = data.about["title"], {"quality": Table(frame, COLUMNS, missing, data.about["title"])}
    if pairs:
        frame = pd.DataFrame(pairs, columns=[column.name for column in MATCHES])
        out["matches"] = Table(frame, MATCHES, {}, f"{title}: latents of one dictionary in another")
    if context_rows:
        out["contexts"] = Table(pd.DataFrame(context_rows), CONTEXTS, {}, f"{title}: where latents are largest")
    return out


def contexts(cells: Sequence[Cell], spots: Sequence[tuple[list[int], int]], tokenizer: Any) -> list[dict[str, Any]]:
    """The `MOST` positions at which each latent to show is largest, in their texts."""
    rows = list[dict[str, Any]]()
    for cell in cells:
        for latent, z in zip(cell.latents, torch.cat(cell.values).T, strict=True):
            share = float((z > 0).float().mean())
            for value, spot in zip(*(x.tolist() for x in z.topk(min(MOST, len(z)))), strict=True):
                if value > 0:
                    ids, t = spots[spot]
                    pieces = (ids[max(0, t - BEFORE) : t], [ids[t]], ids[t + 1 : t + 1 + BEFORE // 2])
                    text = Context(*map(tokenizer.decode, pieces)).marked()
                    rows.append(dict(dictionary=cell.name, latent=latent, share=share, value=value, context=text))
    return rows


def matches(cells: Sequence[Cell], seed: int) -> list[tuple[Any, ...]]:
    """Of every two dictionaries the mean, over the latents of one, of the largest cosine of what they write, and the
    same with the entries of each row of the other shuffled: rows of the table."""
    rows, generator = list[tuple[Any, ...]](), torch.Generator().manual_seed(seed)
    for a, b in permutations(cells, 2):
        W, V = (torch.nn.functional.normalize(cell.dictionary.W_dec.cpu(), dim=1) for cell in (a, b))
        shuffled = torch.stack([row[torch.randperm(len(row), generator=generator)] for row in V])
        largest, control = ((W @ x.T).amax(1) for x in (V, shuffled))
        means = (float(x.mean()) for x in (largest, control, (largest > SAME).float()))
        rows.append((a.name, b.name, *means, len(W)))
    return rows


KEYS = ("place", "dictionary")
COLUMNS = (
    key("place", "place", "hook and stream of the rebuilt state"),
    key("dictionary", "rebuilt by", "the dictionary, or what needs none"),
    *quantity("increase", "loss increase", "nats/token", "loss with the rebuilt state − loss", format="+.3f",
              sd="documents"),
    *FVU,
    *L0,
    number("dead", "dead", "share of latents", "latents that no position has", ".3f"),
    *described("kl", "KL", "nats/token", "KL of the model to the model with the rebuilt state", format=".3f",
               sd="documents", shown=False),
    *described("recovered", "loss recovered", "ratio", "(loss by the mean − loss by x̂) / (loss by the mean − loss)",
               format=".3f"),
    *counts("documents", "independent documents"),
)  # fmt: skip
MATCHES = (
    key("dictionary", "dictionary", "whose latents are looked for"),
    key("other", "in", "the dictionary in which they are looked for"),
    number("cosine", "largest cosine", "cosine", "mean over latents of the largest cosine with a latent there", ".3f"),
    number("shuffled", "shuffled", "cosine", "the same with the entries of each latent there shuffled", ".3f"),
    number("found", "found", "share of latents", f"latents with a cosine above {SAME}", ".3f"),
    number("latents", "latents", "latents", "latents of the dictionary", "d"),
)
CONTEXTS = (
    key("dictionary", "dictionary", "whose latent it is"),
    key("latent", "latent", "its number"),
    number("share", "active", "share of positions", "positions but BOS at which it is not 0", ".4f"),
    number("value", "value", "value of the latent", "the latent there", ".2f"),
    key("context", "text", "the position in ⟦ ⟧, with the tokens around it"),
)
