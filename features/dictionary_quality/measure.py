"""What rebuilt states cost: by dictionaries, by the token's mean state, by principal components, by the mean."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.cli.user_code import latents_in
from streamscope.features.dictionary_quality import DictionaryQuality
from streamscope.features.profile.contexts import Context
from streamscope.instruments.contract import InstrumentData, Progress, ticks, title_of
from streamscope.instruments.data import Documents, Opened
from streamscope.instruments.observations import (
    Contrast,
    Estimates,
    Measure,
    Observations,
    bootstrap,
    interval_columns,
    joined,
)
from streamscope.instruments.open_data import OpenDocuments
from streamscope.instruments.table import Table, counts, described, key, number, quantity
from streamscope.models.dictionaries import Dictionary, read_dictionary
from streamscope.models.hooks import Edit, capture, match
from streamscope.models.readout import IGNORE, divergences, token_losses
from streamscope.models.sweep import prefix_of
from streamscope.probes.stream_states import Place, last_state, places_of

MEASURED = 0.25
"""Share of the documents to measure on."""
K = 16
"""Principal components where there is no dictionary."""
MOST = 5
"""Positions at which a latent is shown."""
BEFORE = 12
"""Tokens shown before such a position; half as many after it."""
SAME = 0.9
"""Cosine above which two latents count as the same."""
TABLE = 0.01
"""Variance not explained by the token below which a stream is a table of tokens."""
TOKEN, COMPONENTS, MEAN = "mean per token", "{} principal components", "mean"


def place_of(hook: str, stream: str) -> Place:
    """Where a dictionary reads or rebuilds."""
    return Place(hook, stream or "resid", int(hook.split(".")[1]))


def dictionaries(options: DictionaryQuality, model: Any) -> "LatentChoice":
    """The dictionaries, and the latents to show. Raises `InputError` for one of another model, a hook that the model
    lacks, and latents that the dictionary lacks."""
    folders = [latents_in(path, complete=True) or (path, []) for path in options.dictionary]
    names = [Path(folder).name for folder, _ in folders]
    labels = options.dictionary if len(set(names)) < len(names) else names
    by_label = dict[str, tuple[Dictionary, list[int]]]()
    for label, (folder, latents) in zip(labels, folders, strict=True):
        dictionary = read_dictionary(str(folder), model)
        if not dictionary.hook:
            raise InputError(f"{label} names no hook")
        if max(latents, default=0) >= (n := len(dictionary.b_enc)):
            raise InputError(f"{label} has the latents 0 to {n - 1}, not {max(latents)}")
        match(model, [dictionary.hook, dictionary.target])
        by_label[label] = dictionary.to(model.cfg.device), latents
    return by_label


def check(options: DictionaryQuality, model: Any) -> None:
    """Raise `InputError` for dictionaries that are not of this model."""
    if not hasattr(model, "segment"):
        raise InputError("dictionaries are measured in models of our own parts; this one runs in a bridge")
    dictionaries(options, model)


# ---- what needs no dictionary -----------------------------------------------------------------


@dataclass
class Tables:
    """Sums over positions of a state, by token id, and its second moments."""

    size: Float[Tensor, " V"]
    total: Float[Tensor, "V D"]
    square: Any = 0.0

    @property
    def mean(self) -> Float[Tensor, " D"]:
        """The mean state."""
        return (self.total.sum(0) / self.size.sum()).float()

    def add(self, ids: Int[Tensor, " N"], x: Float[Tensor, "N D"]) -> None:
        """Add positions."""
        self.size.index_add_(0, ids, torch.ones_like(ids, dtype=torch.float64))
        self.total.index_add_(0, ids, x.double())
        self.square = self.square + x.double().T @ x.double()

    def of_token(self, ids: Int[Tensor, " N"]) -> Float[Tensor, "N D"]:
        """The mean state of each token; of one that was not there, the mean."""
        means = (self.total[ids] / self.size[ids].clamp(min=1)[:, None]).float()
        return torch.where(self.size[ids][:, None] > 0, means, self.mean)

    def components(self, k: int) -> Float[Tensor, "D k"]:
        """The first k principal components."""
        n, mean = self.size.sum(), self.mean.double()
        _, vectors = torch.linalg.eigh(self.square / n - mean[:, None] * mean)
        return vectors[:, -k:].float()


Rebuild = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(source [N, D], state [N, D], ids [N]) -> what takes the state's place."""


@dataclass
class Cell:
    """One way to rebuild the state at a place."""

    name: str
    source: Place
    target: Place
    rebuild: Rebuild
    dictionary: Dictionary | None = None
    alive: Any = None
    sums: dict[str, list[Tensor]] = field(default_factory=lambda: defaultdict(list))


def edits_of(cell: Cell, ids: Int[Tensor, "B T"], real: Bool[Tensor, "B T"]) -> dict[str, Edit]:
    """The edits that put the rebuilt state in the place of the state, at real positions but BOS."""
    memory: dict[str, Tensor] = {}

    def source(x: Tensor, hook: Any) -> Tensor:
        memory["x"] = cell.source.of(x)
        return x

    def replaced(x: Tensor, hook: Any) -> Tensor:
        state = cell.target.of(x)
        source_state = memory.get("x", state)
        rebuilt = state.clone()
        rebuilt[real] = cell.rebuild(source_state[real].float(), state[real].float(), ids[real]).to(state)
        if cell.target.part is None:
            return rebuilt
        out = x.clone()
        out[..., cell.target.part, :] = rebuilt
        return out

    if cell.source.hook == cell.target.hook:
        return {cell.target.hook: replaced}
    return {cell.source.hook: source, cell.target.hook: replaced}


# ---- measuring --------------------------------------------------------------------------------


def read(model: Any, opened: OpenDocuments, hooks: Sequence[str]) -> Iterator[tuple[Tensor, Tensor, Tensor, Any, Any]]:
    """(tokens, targets, real positions but BOS, activations, numbers of the documents) of every batch."""
    bos = model.tokenizer.bos_id
    for index, tokens, targets in opened.batches():
        tokens, targets = tokens.to(model.cfg.device), targets.to(model.cfg.device)
        real = (targets != IGNORE) & (tokens != bos)
        with torch.no_grad(), capture(model, list(hooks)) as captures:
            last_state(model, tokens)
        yield tokens, targets, real, captures, index


def observe(options: DictionaryQuality, model: Any, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: the unedited model, then ways to rebuild a state. Units: documents, with sums over their positions."""
    opened, choice = data[Documents], dictionaries(options, model)
    by_label = {label: dictionary for label, (dictionary, _) in choice.items()}
    latent_batches = list[LatentBatch]()
    fitted, measured = opened.split(MEASURED, options.seed)
    pairs = {
        label: (place_of(dictionary.hook, dictionary.stream), place_of(dictionary.target, dictionary.stream))
        for label, dictionary in by_label.items()
    }
    middle = [place for place in places_of(model) if place.layer == model.cfg.n_layers // 2]
    tables = tables_of(model, fitted, list(dict.fromkeys(target for _, target in pairs.values())) or middle)
    cells = cells_of(by_label, pairs, tables)
    advance = ticks(progress, len(list(measured.batches())) * len(cells))
    loss, order = list[Tensor](), list[Any]()
    hooks = list(dict.fromkeys(place.hook for cell in cells for place in (cell.source, cell.target)))
    for tokens, targets, real, captures, index in read(model, measured, hooks):
        sweep = [{}, *(edits_of(cell, tokens, real) for cell in cells)]
        prefix = prefix_of(model, tokens, sweep)
        with torch.no_grad():
            unedited_state, _ = prefix.run({})
            base = token_losses(unedited_state, model.head, targets)
            loss.append(torch.stack([base.double().sum(1), (targets != IGNORE).sum(1).double()]))
            order.extend(np.asarray(index).tolist())
            latent_batches += latents_of(choice, tokens, real, captures)
            for cell, edits in zip(cells, sweep[1:], strict=True):
                h, _ = prefix.run(edits)
                kl = divergences(unedited_state, h, model.head) * (targets != IGNORE)
                _add(
                    cell,
                    token_losses(h, model.head, targets).double().sum(1),
                    kl.sum(1),
                    tables,
                    tokens,
                    real,
                    captures,
                )
                advance(1)
    advance(0)
    measurements = _observed(model, measured, cells, tables, torch.cat(loss, 1), np.argsort(order))
    rows = contexts(choice, latent_batches, model.tokenizer)
    measurements.extra = (*measurements.extra, matches(by_label, options.seed), rows)
    return measurements


def tables_of(model: Any, opened: OpenDocuments, targets: Sequence[Place]) -> dict[Place, Tables]:
    """What needs no dictionary, of every place that is rebuilt."""
    v, d, device = model.cfg.d_vocab, model.cfg.d_model, model.cfg.device
    by_place = {
        place: Tables(torch.zeros(v, dtype=torch.float64, device=device),
                      torch.zeros(v, d, dtype=torch.float64, device=device)) for place in targets
    }  # fmt: skip
    for tokens, _, real, captures, _ in read(model, opened, list(dict.fromkeys(place.hook for place in targets))):
        for place, table in by_place.items():
            table.add(tokens[real], place.of(captures[place.hook])[real].float())
    return by_place


def cells_of(
    by_label: Mapping[str, Dictionary], pairs: Mapping[str, tuple[Place, Place]], tables: Mapping[Place, Tables]
) -> list[Cell]:
    """The dictionaries, and per place that is rebuilt the token's mean, principal components and the mean."""
    cells = list[Cell]()
    for label, dictionary in by_label.items():

        def by_dictionary(x: Tensor, y: Tensor, ids: Tensor, dictionary: Dictionary = dictionary) -> Tensor:
            return dictionary.decode(dictionary.encode(x), x)

        cells.append(
            Cell(label, *pairs[label], by_dictionary, dictionary, torch.zeros(len(dictionary.b_enc), dtype=torch.bool))
        )
    for place, table in tables.items():
        ks = [
            int(dictionary.about.get("k") or dictionary.k or 16)
            for label, dictionary in by_label.items()
            if pairs[label][1] == place
        ]
        k = min(max(ks, default=K), len(table.mean))
        V, mean = table.components(k), table.mean

        def by_token(x: Tensor, y: Tensor, ids: Tensor, table: Tables = table) -> Tensor:
            return table.of_token(ids)

        def by_components(x: Tensor, y: Tensor, ids: Tensor, V: Tensor = V, mean: Tensor = mean) -> Tensor:
            return mean + (y - mean) @ V @ V.T

        def by_mean(x: Tensor, y: Tensor, ids: Tensor, mean: Tensor = mean) -> Tensor:
            return mean.expand_as(y)

        cells += [Cell(TOKEN, place, place, by_token), Cell(COMPONENTS.format(k), place, place, by_components),
                  Cell(MEAN, place, place, by_mean)]  # fmt: skip
    return cells


def _add(
    cell: Cell, loss: Tensor, kl: Tensor, tables: Mapping[Place, Tables], tokens: Tensor, real: Tensor, captures: Any
) -> None:
    """The sums of a batch's documents for one cell."""
    x, y = (place.of(captures[place.hook]).float() for place in (cell.source, cell.target))
    squares = torch.zeros(2, *tokens.shape, dtype=torch.float64, device=tokens.device)
    rebuilt = cell.rebuild(x[real], y[real], tokens[real])
    squares[0][real] = (y[real] - rebuilt).double().square().sum(-1)
    squares[1][real] = (y[real] - tables[cell.target].mean).double().square().sum(-1)
    cell.sums["loss"].append(loss)
    cell.sums["kl"].append(kl)
    cell.sums["error"].append(squares[0].sum(1))
    cell.sums["variance"].append(squares[1].sum(1))
    latents = torch.zeros(tokens.shape, dtype=torch.float64, device=tokens.device)
    if cell.dictionary is not None:
        z = cell.dictionary.encode(x[real]) > 0
        latents[real] = z.sum(-1).double()
        cell.alive |= z.any(0).cpu()
    cell.sums["l0"].append(latents.sum(1))
    cell.sums["positions"].append(real.sum(1).double())


def _observed(
    model: Any, measured: OpenDocuments, cells: Sequence[Cell], tables: Mapping[Place, Tables], loss: Tensor, order: Any
) -> InstrumentData:
    sums = {name: torch.stack([torch.cat(cell.sums[name]) for cell in cells]).cpu().numpy()[:, order]
            for name in ("loss", "kl", "error", "variance", "l0", "positions")}  # fmt: skip
    base, targets = loss.cpu().numpy()[:, order]
    labels = [{"place": cell.target.name, "dictionary": cell.name} for cell in cells]
    has_latents = np.array([cell.dictionary is not None for cell in cells])[:, None]
    blocks: dict[str, tuple[Any, Any, str]] = {
        "loss": (np.vstack([base, sums["loss"]]), targets, "nats/token"),
        "kl": (sums["kl"], targets, "nats/token"),
        "fvu": (sums["error"], sums["variance"], "ratio of variances"),
        "l0": (np.where(has_latents, sums["l0"], np.nan), np.where(has_latents, sums["positions"], 0.0), "latents"),
    }
    units = measured.units().reset_index(drop=True)
    observations = InstrumentData({}, {})
    for name, (total, size, unit) in blocks.items():
        rows = [{"place": "", "dictionary": ""}, *labels] if name == "loss" else labels
        observations.blocks[name] = Observations(
            measure=Measure(name=name, unit=unit, resolution=1e-6, limits=None if name == "loss" else (0.0, np.inf)),
            cells=pd.DataFrame(rows), units=units,
            total=total, size=np.broadcast_to(size, total.shape),
        )  # fmt: skip
        if name == "loss":
            observations.contrasts[name] = [
                Contrast(quantity="increase", weights={i: 1.0, 0: -1.0}, labels=keys)
                for i, keys in enumerate(labels, 1)
            ]
        else:
            observations.contrasts[name] = [
                Contrast(quantity=name, weights={i: 1.0}, labels=keys, null=None,
                         missing="" if has_latents[i, 0] or name != "l0" else "it has no latents")
                for i, keys in enumerate(labels)
            ]  # fmt: skip
    mean = {cell.target: i for i, cell in enumerate(cells, 1) if cell.name == MEAN}
    observations.extra = (
        [mean[cell.target] for cell in cells],
        [float("nan") if cell.alive is None else 1 - float(cell.alive.float().mean()) for cell in cells],
    )
    share = sums["error"].sum(1) / sums["variance"].sum(1)
    fvus: dict[Place, dict[str, float]] = {place: {} for place in tables}
    for cell, value in zip(cells, share, strict=True):
        fvus[cell.target][cell.name] = float(value)
    words = [words_of(place, fvu) for place, fvu in fvus.items()]
    observations.about["title"] = f"{title_of(model)} on {measured.title()}" + "".join(
        f"; {text}" for text in words if text
    )
    return observations


def words_of(place: Place, fvu: Mapping[str, float]) -> str:
    """What the table says of a place in words: that it is a table of tokens, or that tokens tell more."""
    if fvu[TOKEN] < TABLE:
        return f"{place.name} holds only a table of tokens ({1 - fvu[TOKEN]:.1%} of its variance)"
    values = [value for name, value in fvu.items() if name not in (TOKEN, MEAN) and "principal" not in name]
    if values and fvu[TOKEN] < min(values):
        return f"at {place.name} the token alone tells more of the state than the dictionary"
    return ""


def recovered(total: np.ndarray, size: np.ndarray, axis: int) -> np.ndarray:
    """(loss with the mean − loss with x̂) / (loss with the mean − loss), of the totals [without, mean, x̂]."""
    without, mean, rebuilt = total.sum(axis)
    return np.asarray((mean - rebuilt) / (mean - without))


def tables(options: DictionaryQuality, data: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """One row per way to rebuild."""
    frame, missing = joined([estimates[name] for name in ("loss", "kl", "fvu", "l0")], KEYS, COLUMNS)
    means, dead, pairs, context_rows = data.extra
    for i, mean in enumerate(means):
        row, reasons = interval_columns("recovered", bootstrap(data.blocks["loss"], [0, mean, i + 1], recovered))
        for name, value in row.items():
            frame.loc[i, name] = value
        missing |= {(i, name): reason for name, reason in reasons.items()}
    frame["dead"] = dead
    missing |= {(i, "dead"): "it has no latents" for i, value in enumerate(dead) if value != value}
    quality = {"quality": Table(frame, COLUMNS, missing, data.about["title"])}
    more = {"matches": (pairs, MATCHES, "latents of one dictionary in another"),
            "contexts": (context_rows, CONTEXTS, "where latents are largest")}  # fmt: skip
    return quality | {
        name: Table(pd.DataFrame(rows), columns, {}, f"{data.about['title']}: {words}")
        for name, (rows, columns, words) in more.items() if rows
    }  # fmt: skip


LatentChoice = Mapping[str, tuple[Dictionary, list[int]]]
"""The dictionaries by name, and their latents to show."""
LatentBatch = tuple[str, list[list[int]], Tensor, Tensor]
"""(dictionary, tokens of each document, document and position of each state [N, 2], latents [N, n])."""


def latents_of(choice: LatentChoice, tokens: Tensor, real: Tensor, captures: Any) -> list[LatentBatch]:
    """The latents to show at the positions of a batch."""
    lengths = [int(mask.nonzero().max()) + 1 for mask in real]
    documents, parts = [ids[:n].tolist() for ids, n in zip(tokens, lengths, strict=True)], list[LatentBatch]()
    for label, (dictionary, latents) in choice.items():
        if latents:
            z = dictionary.encode(dictionary.stream_of(captures[dictionary.hook])[real].float())[:, latents]
            parts.append((label, documents, real.nonzero().cpu(), z.cpu()))
    return parts


def contexts(choice: LatentChoice, parts: Sequence[LatentBatch], tokenizer: Any) -> list[dict[str, Any]]:
    """The `MOST` positions at which each latent to show is largest, in their texts."""
    rows = list[dict[str, Any]]()
    for label, (_, latents) in choice.items():
        own_parts = [part for part in parts if part[0] == label]
        spots = [(documents[i], t) for _, documents, places, _ in own_parts for i, t in places.tolist()]
        for j, latent in enumerate(latents):
            z = torch.cat([part[3][:, j] for part in own_parts])
            for value, row in zip(*(x.tolist() for x in z.topk(min(MOST, len(z)))), strict=True):
                if value > 0:
                    ids, t = spots[row]
                    pieces = (ids[max(0, t - BEFORE) : t], [ids[t]], ids[t + 1 : t + 1 + BEFORE // 2])
                    text = Context(*map(tokenizer.decode, pieces)).marked()
                    share = float((z > 0).float().mean())
                    rows.append(dict(dictionary=label, latent=latent, share=share, value=value, context=text))
    return rows


def matches(by_label: Mapping[str, Dictionary], seed: int) -> list[dict[str, Any]]:
    """Of every two dictionaries the mean, over the latents of one, of the largest cosine of what they write, and the
    same with the entries of each row of the other shuffled."""
    rows = list[dict[str, Any]]()
    generator = torch.Generator().manual_seed(seed)
    for a, dictionary_a in by_label.items():
        for b, dictionary_b in ((b, dictionary_b) for b, dictionary_b in by_label.items() if b != a):
            W, V = (torch.nn.functional.normalize(x.W_dec.cpu(), dim=1) for x in (dictionary_a, dictionary_b))
            shuffled = torch.stack([row[torch.randperm(len(row), generator=generator)] for row in V])
            largest, control = ((W @ x.T).amax(1) for x in (V, shuffled))
            values = {"cosine": largest.mean(), "shuffled": control.mean(), "found": (largest > SAME).float().mean()}
            rows.append({"dictionary": a, "other": b, **{k: float(v) for k, v in values.items()}, "latents": len(W)})
    return rows


KEYS = ("place", "dictionary")
COLUMNS = (
    key("place", "place", "hook and stream of the rebuilt state"),
    key("dictionary", "rebuilt by", "the dictionary, or what needs none"),
    *quantity("increase", "loss increase", "nats/token", "loss with the rebuilt state − loss", format="+.3f",
              sd="documents"),
    *described("fvu", "variance not explained", "ratio of variances", "Σ|x − x̂|² / Σ|x − mean|²", format=".3f",
               sd="documents"),
    *described("l0", "L0", "latents per position", "latents above their thresholds", format=".1f", sd="documents"),
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
