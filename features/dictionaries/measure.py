"""Dictionaries: states are harvested once, then each hook, seed and control is trained, measured and written."""

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from streamscope.cli.disk import read_json, write_text
from streamscope.cli.errors import InputError
from streamscope.features.dictionaries import STATES, Dictionaries
from streamscope.instruments.contract import InstrumentData, title_of
from streamscope.instruments.data import Opened, Tokens
from streamscope.instruments.observations import Estimates, Measure, joined
from streamscope.instruments.open_data import Document, OpenDocuments
from streamscope.instruments.progress import Progress, say, ticks
from streamscope.instruments.table import Table, counts, described, key, number
from streamscope.models.checkpoint import run_label
from streamscope.models.dictionaries import CONFIG, Dictionary, read_dictionary, write_dictionary
from streamscope.models.hooks import layer_of, match, pad, row_of
from streamscope.models.lenses import weights_digest
from streamscope.probes.stream_states import Place, batch_states, places_of

TEXTS = 32  # documents of a pass that harvests states
SAVED = 20  # passes after which the states are written to disk, and a killed command goes on from there
HELD_OUT = 0.1  # share of the positions, from the last documents, that the table is measured on
CALIBRATION = 2**23  # latents of positions of the last steps; the threshold is what k of them per position exceed
STATE = "B T D"  # shape of the hooks that a transcoder reads and rebuilds
DECAY = 0.2  # share of the steps over which the learning rate falls to 0


def places(options: Dictionaries, model: Any) -> list[Place]:
    """The streams to read, with --target the hook to read and the one to rebuild. Raises `InputError` for hooks that
    are no streams, and for a target with several hooks that are read, or hooks of other shapes."""
    if not options.target:
        live = [place.hook for place in places_of(model) if place.layer == model.cfg.n_layers // 2]
        return places_of(model, options.hooks or live[-1:])
    names = match(model, [*options.hooks, options.target])
    if len(names) != 2 or options.target not in names:
        raise InputError(f"--target {options.target} is rebuilt from one hook: give it as --hooks")
    if wrong := [name for name in names if getattr(row_of(name), "shape", STATE) != STATE]:
        raise InputError(f"{wrong[0]} holds no states [B, T, D]: give hooks such as blocks.0.hook_mlp_in")
    return [Place(name, "", layer_of(name)) for name in sorted(names, key=lambda name: name == options.target)]


check = places


def scored(document: Document, bos: int | None) -> slice:
    """The rows of a document whose states are kept: those that are read, without BOS."""
    first = document.unscored
    return slice(max(first, 1) if document.ids[0] == bos else first, len(document.ids) - 1)


def sizes_of(opened: OpenDocuments) -> list[int]:
    parts = (scored(document, opened.tokenizer.bos_id) for document in opened.documents())
    return [max(0, part.stop - part.start) for part in parts]


def harvest(
    model: Any, opened: OpenDocuments, source_places: Sequence[Place], folder: Path, advance: Callable[[int], None]
) -> dict[Place, Float[np.ndarray, "N D"]]:
    """The states at every position but BOS, in the order of the documents, as files in a folder; goes on where a killed
    command stopped."""
    documents, ends = list(opened.documents()), np.cumsum([0, *sizes_of(opened)]).tolist()
    folder.mkdir(parents=True, exist_ok=True)
    about = {"weights": weights_digest(model), "places": [place.name for place in source_places],
             "data": {**opened.about(), "part": opened.part}, "n": ends[-1]}  # fmt: skip
    log, finished = folder / "done.json", 0
    if log.is_file():
        record = read_json(log, dict[str, Any], "remove the folder")
        finished = record.pop("documents")
        if record != about:
            raise InputError(f"{folder} holds states of another command: remove it")
        advance(ends[finished])
    layout: dict[str, Any] = {"mode": "r+" if finished else "w+", "shape": (ends[-1], model.cfg.d_model)}
    files = {place: folder / f"{place.name.replace(':', '-')}.f32" for place in source_places}
    rows = {place: np.memmap(file, np.float32, **layout) for place, file in files.items()}
    for first in range(finished, len(documents), TEXTS):
        batch = documents[first : first + TEXTS]
        tokens = pad([document.ids[:-1] for document in batch]).to(model.cfg.device)
        states, _ = batch_states(model, tokens, source_places)
        for i, document in enumerate(batch):
            part = scored(document, opened.tokenizer.bos_id)
            for place, x in states.items():
                rows[place][ends[first + i] : ends[first + i + 1]] = x[i, part].float().cpu().numpy()
        finished = first + len(batch)
        if finished // TEXTS % SAVED == 0 or finished == len(documents):
            for array in rows.values():
                array.flush()
            write_text(log, json.dumps({**about, "documents": finished}))
        advance(ends[finished] - ends[first])
    return {place: np.asarray(array) for place, array in rows.items()}


class Scale:
    """x' = (x − mean) factor has mean 0 and mean square norm D in a sample of states x."""

    def __init__(self, x: Float[Tensor, "N D"]) -> None:
        self.mean = x.mean(0)
        square = float((x - self.mean).square().sum(1).mean())
        self.factor = (x.shape[1] / square) ** 0.5 if square > 0 else 1.0

    def __call__(self, rows: np.ndarray) -> Tensor:
        return (torch.from_numpy(rows) - self.mean) * self.factor


def train(
    options: Dictionaries, x: np.ndarray, seed: int, *, target: np.ndarray | None = None, frozen: bool = False,
    advance: Callable[[int], None],
) -> Dictionary:  # fmt: skip
    """A dictionary of states x [N, D] that rebuilds them, or `target` [N, D], in one pass in random order. A frozen one
    has a start of its own, so that its directions are not those from which the trained ones came."""
    rng, generator = np.random.default_rng([seed, 11]), torch.Generator().manual_seed(seed * 7919 + 11 + frozen)
    n, width, transcoder, y = len(x), options.width, target is not None, x if target is None else target
    sample = np.sort(rng.permutation(n)[:100_000])
    to_x, to_y = (Scale(torch.from_numpy(rows[sample])) for rows in (x, y))
    W_dec = torch.nn.functional.normalize(torch.randn(width, y.shape[1], generator=generator), dim=1)
    start = W_dec if not transcoder else torch.randn(width, x.shape[1], generator=generator)
    W = {"W_enc": torch.nn.functional.normalize(start, dim=1).T.clone(), "b_enc": torch.zeros(width),
         "W_dec": W_dec.clone(), "b_dec": torch.zeros(y.shape[1])}  # fmt: skip
    if transcoder:
        W["W_skip"] = torch.zeros(x.shape[1], y.shape[1])
    trained = {name: p.requires_grad_() for name, p in W.items() if not (frozen and name == "W_dec")}
    optimizer = torch.optim.Adam(trained.values(), lr=options.lr)
    steps = max(1, n // options.batch)
    falling = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(1.0, (steps - i) / max(1, DECAY * steps)))
    least, order = torch.zeros(()), rng.permutation(n)
    sizes = [width // part for part in ((8, 4, 2, 1) if options.matryoshka else (1,))]  # latents that are to rebuild y
    for step in range(steps):
        rows = np.sort(order[step * options.batch : (step + 1) * options.batch])
        bx = to_x(x[rows])
        by = to_y(y[rows]) if transcoder else bx
        pre = torch.relu(bx @ W["W_enc"] + W["b_enc"])
        least = kth_largest(pre.detach(), options.k * len(rows), float(least))
        z = torch.where(pre >= least, pre, 0.0)
        skip = bx @ W["W_skip"] if transcoder else 0.0
        errors = [by - W["b_dec"] - skip - z[:, :size] @ W["W_dec"][:size] for size in sizes]
        loss = torch.stack([e.square().sum(1).mean() for e in errors]).mean()
        for (name, p), g in zip(trained.items(), torch.autograd.grad(loss, [*trained.values()]), strict=True):
            along = (g * p.detach()).sum(1, keepdim=True) * p.detach() if name == "W_dec" else 0.0
            p.grad = g - along  # the length of a row is no freedom
        optimizer.step()
        falling.step()
        with torch.no_grad():
            W["W_dec"].div_(W["W_dec"].norm(dim=1, keepdim=True))
        advance(len(rows))
    W = {name: p.detach() for name, p in W.items()}
    last = to_x(x[np.sort(order[-max(options.batch, CALIBRATION // width) :])])
    pre = torch.relu(last @ W["W_enc"] + W["b_enc"]).flatten()
    threshold = pre.kthvalue(max(1, pre.numel() - options.k * len(last))).values.expand(width).clone()
    # the dictionary of states as they are: both scales are in its weights
    W_enc, W_dec, b_dec = to_x.factor * W["W_enc"], W["W_dec"] / to_y.factor, W["b_dec"] / to_y.factor + to_y.mean
    W_skip = W["W_skip"] * to_x.factor / to_y.factor if transcoder else None
    b_dec = b_dec if W_skip is None else b_dec - to_x.mean @ W_skip
    return Dictionary(W_enc, W["b_enc"] - to_x.mean @ W_enc, W_dec, b_dec, threshold, W_skip)


def kth_largest(pre: Float[Tensor, "N F"], k: int, guess: float) -> Float[Tensor, ""]:
    """The k-th largest of all, above 0; `guess`, that of the last step, leaves few to sort."""
    candidates = pre[pre > guess / 2]
    if len(candidates) < k:
        candidates = pre.flatten()
    return candidates.topk(min(k, len(candidates))).values[-1].clamp(min=1e-12)


def observe(options: Dictionaries, model: Any, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: dictionaries. Units: held-out documents, with sums over their positions, those of all windows of one."""
    opened, source_places = data[Tokens], places(options, model)
    pairs = [(source_places[0], source_places[1])] if options.target else [(place, place) for place in source_places]
    specs = dict[str, tuple[Place, Place, int, bool]]()  # by the name of the folder
    for pair, seed, frozen in product(pairs, options.seeds, (False, True) if options.controls else (False,)):
        hooks = "-to-".join(place.name.replace(":", "-") for place in dict.fromkeys(pair))
        specs[f"{hooks}-s{seed}" + "-frozen" * frozen] = *pair, seed, frozen
    places_read = [document.document for document in opened.documents()]
    document = np.repeat(places_read, sizes_of(opened))  # of each state
    names, counts_of = np.unique(document, return_counts=True)
    if len(names) < 3:
        raise InputError(f"some documents are trained on and two others held out: give 3, not {len(names)}")
    first = names[min(int(np.searchsorted(np.cumsum(counts_of), (1 - HELD_OUT) * len(document))), len(names) - 2)]
    n = int((document < first).sum())
    if n < options.batch:
        raise InputError(f"{n:,} positions to train on: a step needs --batch {options.batch}; give more text")
    run = getattr(model, "run", None)
    label = run_label(run) if run else getattr(getattr(model, "config", None), "name", type(model).__name__)
    about = {"weights_digest": weights_digest(model), "model_name": label, "documents": int(first), "positions": n,
             "data": {**opened.about(), "part": opened.part}, "context_size": model.cfg.n_ctx}  # fmt: skip
    about |= {name: getattr(options, name) for name in ("width", "k", "batch", "lr", "matryoshka")}
    dictionaries = dict[str, Dictionary]()
    with tempfile.TemporaryDirectory() as temporary:
        to = options.to or Path(temporary)
        for name in (name for name in specs if (to / name / CONFIG).is_file()):
            dictionaries[name] = found = read_dictionary(str(to / name), model)
            if found.target != specs[name][1].hook or not about.items() <= found.about.items():
                raise InputError(f"{to / name} was trained with other options or text: give another --to")
            say(progress, f"{to / name} is there")
        advance = ticks(progress, len(document) * (1 + len(specs) - len(dictionaries)))
        states = harvest(model, opened, source_places, to / STATES, advance)
        for name in (name for name in specs if name not in dictionaries):
            source, target, seed, frozen = specs[name]
            y = None if source == target else states[target][:n]
            plain = train(options, states[source][:n], seed, target=y, frozen=frozen, advance=advance)
            meta = {**about, "frozen": frozen, "seed": seed, "threads": torch.get_num_threads()}
            dictionaries[name] = replace(plain, hook=source.hook, target=target.hook, stream=source.stream, about=meta)
            write_dictionary(to / name, dictionaries[name])
        cells = [(name, *spec, dictionaries[name]) for name, spec in specs.items()]
        copies = dict(zip(places_read, opened.units()["cluster"], strict=True))  # copies of a document are no others
        observations = _observed(cells, {place: x[n:] for place, x in states.items()}, document[n:], copies)
        advance(0)
        del states
        shutil.rmtree(to / STATES, ignore_errors=True)
    words = f"{options.width} latents, trained on {n:,} positions, held out"
    return replace(observations, about={"title": f"{title_of(model)}: {opened.title()}; {words}"})


def _observed(
    dictionaries: Sequence[tuple[str, Place, Place, int, bool, Dictionary]], rows: Mapping[Place, np.ndarray],
    document: np.ndarray, copies: Mapping[int, str],
) -> InstrumentData:  # fmt: skip
    documents, starts, sizes = np.unique(document, return_index=True, return_counts=True)
    sums, cells, dead = list[np.ndarray](), list[dict[str, Any]](), list[float]()
    for name, source, target, seed, frozen, dictionary in dictionaries:
        mean, alive = torch.from_numpy(rows[target]).mean(0), torch.zeros(len(dictionary.b_enc)).bool()
        parts = list[Tensor]()
        for part in np.array_split(np.arange(len(document)), max(1, len(document) // 8192)):
            x, y = (torch.from_numpy(rows[place][part]) for place in (source, target))
            z = dictionary.encode(x)
            alive |= (z > 0).any(0)
            squares = [(y - rebuilt).square().sum(1) for rebuilt in (dictionary.decode(z, x), mean)]
            parts.append(torch.stack([*squares, (z > 0).sum(1)]).double())
        sums.append(np.add.reduceat(torch.cat(parts, 1).numpy(), starts, axis=1))
        dead.append(1 - float(alive.float().mean()))
        decoder = "frozen" if frozen else "trained"
        cells.append(dict(hook=source.hook, stream=source.stream, seed=seed, decoder=decoder, dictionary=name))
    error, variance, latents = np.stack(sums, 1)
    units = pd.DataFrame({"unit": documents.astype(str), "cluster": [copies[i] for i in documents.tolist()]})
    observations, labels = InstrumentData(extra=dead), pd.DataFrame(cells)
    quantities = {"fvu": ("ratio of variances", error, variance), "l0": ("latents per position", latents, sizes)}
    for name, (unit, total, size) in quantities.items():
        measure = Measure(name=name, unit=unit, resolution=1e-9, limits=(0.0, np.inf))
        observations.add(measure, labels, units, total, size, null=None)
    return observations


def tables(options: Dictionaries, data: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    frame, missing = joined([estimates["fvu"], estimates["l0"]], KEYS, COLUMNS)
    frame["dead"] = data.extra
    return {"dictionaries": Table(frame, COLUMNS, missing, data.about["title"])}


KEYS = ("dictionary", "hook", "stream", "seed", "decoder")
FVU = described(
    "fvu", "variance not explained", "ratio of variances", "Σ|x − x̂|² / Σ|x − mean|²", format=".3f", sd="documents"
)
L0 = described("l0", "L0", "latents per position", "latents above their thresholds", format=".1f", sd="documents")
COLUMNS = (
    key("dictionary", "dictionary", "its folder"),
    key("hook", "hook", "what it reads", shown=False),
    key("stream", "stream", "stream of the hook", shown=False),
    key("seed", "seed", "seed of the start and of the order", shown=False),
    key("decoder", "decoder", "trained, or frozen at random: the control"),
    *FVU,
    *L0,
    number("dead", "dead", "share of latents", "latents that no held-out position has", ".3f"),
    *counts("documents", "independent documents"),
)  # fmt: skip
