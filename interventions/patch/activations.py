"""Activation patching: put one activation of another run into this one (Meng et al. 2022; Wang et al. 2022).

    cells = plan(model, pairs, spots(model, ["token_pre", "attn_out", "z"]), "auto", layers)
    found = patch_pairs(model, pairs, cells, "denoise")
    found.patched[c, i]                 log-odds of pair i with cell c patched, nats

denoise puts the clean activation into the corrupted run, noise the reverse. The metric is m = ln p(answers) −
ln p(foils) at the last position. Everything after the patched activation is recomputed.

Attribution patching approximates the same effects from one gradient (Nanda 2023; Syed et al. 2023), by
Σ (a_source − a_run) · ∂m/∂a at the run's own activations. This is exact if m is linear between the two runs:

    guessed = attribute_pairs(model, pairs, cells, "denoise")
    guessed - found.effect              its error
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from streamscope.cli.errors import InputError, unknown
from streamscope.interventions.observe import answer_log_probs
from streamscope.interventions.patch.pairs import PatchPair
from streamscope.models.hooks import Edit, ObservePoint, Query, capture, row_of, run
from streamscope.models.readout import IGNORE

Direction = Literal["denoise", "noise"]
Activations = Mapping[str, Tensor]
"""Hook name -> activation of one run, without the batch axis."""
By = Literal["auto", "role", "head", "head-role", "all"]
ANYWHERE = "all"
"""Position label of cells that patch every position."""


@dataclass(frozen=True)
class Spot:
    """A kind of hook, in every layer or outside the blocks, and the axes of its activation (without the batch).

    short: z, attn_out, token_pre, mlp.post, s1_pre, embed, ln_final.normalized, …
    name: with L for the layer, blocks.L.attn.hook_z, or outside the blocks: hook_embed.
    time, head: the axis of positions (in patterns the query's) and of heads, or None.
    stream: the number of a parallel stream; None for all.
    kv: whether the heads are those of keys and values, which several query heads may share.
    read: of q, k or v, the stream of which the layer reads the other run (token, context); empty: the whole activation.
    """

    short: str
    name: str
    time: int | None
    head: int | None
    stream: int | None = None
    kv: bool = False
    read: str = ""

    def hook(self, layer: int) -> str:
        return self.name.replace(".L.", f".{layer}.")


READ_BY = {"q": "attn_in", "k": "attn_in", "v": "attn_v_in"}
"""What queries, keys and values are made of."""


@dataclass(frozen=True)
class Cell:
    """The unit of a patch: a hook, a layer (−1 outside the blocks), positions with one label, and a head or all."""

    spot: Spot
    layer: int
    place: str
    head: int | None = None

    @property
    def hook(self) -> str:
        return self.spot.hook(self.layer)

    def index(self, pair: PatchPair, ndim: int) -> tuple[Any, ...] | None:
        """The cell's index into an activation with `ndim` axes, batch first; None if the pair has no such position."""
        slices: list[Any] = [slice(None)] * ndim
        if self.place != ANYWHERE:
            if self.place not in pair.places:
                return None
            assert self.spot.time is not None
            slices[self.spot.time + 1] = torch.as_tensor(pair.places[self.place])
        if self.head is not None:
            assert self.spot.head is not None
            slices[self.spot.head + 1] = slice(self.head, self.head + 1)
        if self.spot.stream is not None:
            slices[2] = slice(self.spot.stream, self.spot.stream + 1)
        return tuple(slices)


def spots(model: Any, names: Sequence[str]) -> list[Spot]:
    """Hooks from short names: the part after `hook_`, with `mlp.`, `attn_hc.`, … except for attention's.

    s0_pre, s1_mid, … are single streams of hyper-connections. q.token, v.context, … are queries, keys and values of
    this run whose layer reads one stream of the other. Raises `InputError` for a name without a hook, for a hook that
    only observes a sum, and for a stream that the model lacks.
    """
    by_name, chosen_spots = dict[str, Spot](), dict[str, Spot]()
    for full in model.hook_dict:
        parts, row = full.split("."), row_of(full)
        if row is None or (parts[0] == "blocks" and parts[1] != "0"):
            continue
        letters = row.shape.split(" | ")[0].split()[1:]
        kv, heads = "G" in letters, "G" if "G" in letters else "" if full.endswith("_mix") else "H"
        time, head = (letters.index(axis) if axis in letters else None for axis in ("T", heads))
        short = ".".join(parts[2 * (parts[0] == "blocks") :]).replace("hook_", "").removeprefix("attn.")
        by_name[short] = Spot(short, row.name, time, head, kv=kv)
    for name in names:
        short, stream = name.replace("hook_", "").removeprefix("attn."), None
        part, _, source_stream = short.partition(".")
        if source_stream and part in READ_BY and short not in by_name:  # HDPL has q.detail
            streams = model.config.residual.streams
            if len(streams) < 2:
                raise InputError(f"{name}: the heads of {model.config.name} read no named streams; patch {part}")
            if source_stream not in streams:
                raise unknown("stream", source_stream, list(streams))
            chosen_spots[short] = replace(by_name[part], short=short, read=source_stream)
            continue
        kind, _, place = short.partition("_")
        if kind[:1] == "s" and kind[1:].isdigit() and f"streams_{place}" in by_name:
            stream, n = int(kind[1:]), model.config.residual.n
            if stream >= n:
                raise InputError(f"stream s{stream} does not exist: the model has s0 to s{n - 1}")
        base = by_name.get(short if stream is None else f"streams_{place}")
        if base is None:
            raise unknown("hook to patch", name, list(by_name))
        point = model.hook_dict[base.hook(0)]
        if isinstance(point, ObservePoint):
            raise InputError(f"{short} only shows {point.shows}; patch {point.instead.replace('hook_', '')} instead")
        chosen_spots[short] = replace(base, short=short, stream=stream)
    return list(chosen_spots.values())


def default_spots(model: Any, by: By = "auto") -> tuple[str, ...]:
    """The streams that enter each layer, the outputs of attention and FFN, and every head's output. Only heads have an
    output of their own: z of all heads at a position is attn_out."""
    if "head" in by:
        return ("z",)
    streams = model.config.residual.streams or ("resid",)
    return (*(f"{name}_pre" for name in streams), "attn_out", "mlp_out", *(["z"] if by == "auto" else []))


def plan(
    model: Any, pairs: Sequence[PatchPair], chosen: Sequence[Spot], by: By = "auto", layers: Sequence[int] | None = None
) -> list[Cell]:
    """The cells of a sweep: hooks × layers × (position labels, heads, both, or the whole activation). auto: by head for
    hooks with query heads, by position label for others. "head" patches keys and values by their own heads, which
    several query heads may share. Raises `InputError` for heads or positions of a hook without them."""
    where: dict[str, list[float]] = {}  # of each position label its places, as shares of the prompts
    for pair in pairs:
        for label, positions in pair.places.items():
            where.setdefault(label, []).append(float(np.mean(positions)) / len(pair.clean))
    labels, cells = sorted(where, key=lambda label: (label != "BOS", label == "last", np.mean(where[label]))), []
    for spot in chosen:
        query_heads = spot.head is not None and not spot.kv
        axis = ("head" if query_heads else "role" if spot.time is not None else "all") if by == "auto" else by
        if "head" in axis and spot.head is None:
            raise InputError(f"{spot.short} has no heads: patch it with --by role")
        if "role" in axis and spot.time is None:
            raise InputError(f"{spot.short} has no positions: patch it with --by head or all")
        heads = range((spot.kv and model.cfg.n_key_value_heads) or model.config.n_heads) if "head" in axis else [None]
        places = labels if "role" in axis else [ANYWHERE]
        every = range(model.config.n_layers) if layers is None else layers
        for layer in every if ".L." in spot.name else [-1]:
            cells += [Cell(spot, layer, place, head) for head in heads for place in places]
    return cells


@dataclass(frozen=True)
class PatchResults:
    """Log-odds in nats: clean and corrupted [pairs], patched [cells, pairs], NaN where a pair lacks the position or the
    model the edge; no rows if patches are only guessed."""

    direction: Direction
    clean: np.ndarray
    corrupt: np.ndarray
    patched: np.ndarray
    guessed: np.ndarray | None = None
    """First-order guesses of `effect` [cells, pairs]."""
    labels: Sequence[Mapping[str, Any]] = ()
    """What a table calls each cell."""

    @property
    def own(self) -> np.ndarray:
        """Log-odds of the unpatched run [pairs]."""
        return self.corrupt if self.direction == "denoise" else self.clean

    @property
    def effect(self) -> np.ndarray:
        """Patched minus unpatched run [cells, pairs], nats."""
        return self.patched - self.own

    def recovery(self, threshold: float) -> np.ndarray:
        """(patched − corrupt) / (clean − corrupt) [cells, pairs]; NaN if |clean − corrupt| < `threshold` nats."""
        gap = self.clean - self.corrupt
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(np.abs(gap) >= threshold, (self.patched - self.corrupt) / gap, np.nan)


MakeSweep = Callable[[PatchPair, Activations, Activations], list[dict[str, Edit] | None]]
"""(pair, the run's own activations, the source's) -> one set of edits per cell, or None if the cell does not exist."""


def patch_pairs(
    model: Any, pairs: Sequence[PatchPair], cells: Sequence[Cell], direction: Direction = "denoise", *,
    progress: Callable[[Iterable], Iterable] = iter,
) -> PatchResults:  # fmt: skip
    """Every cell of every pair, exactly, with one run per cell."""

    def make(pair: PatchPair, recipient: Activations, source: Activations) -> list[dict[str, Edit] | None]:
        sources = sources_of(model, cells, pair.runs(direction)[0], recipient, source)
        return [
            None if a is None or (index := cell.index(pair, a.ndim + 1)) is None
            else {cell.hook: partial(_put, source=a, index=index)}
            for cell, a in zip(cells, sources, strict=True)
        ]  # fmt: skip

    return sweep_pairs(model, pairs, names_of(cells), make, len(cells), direction, progress=progress)


def names_of(cells: Sequence[Cell]) -> list[str]:
    """The hooks whose activations in both runs the cells need."""
    streams = [f"blocks.{cell.layer}.hook_{cell.spot.read}_pre" for cell in cells if cell.spot.read]
    return list(dict.fromkeys([*(cell.hook for cell in cells), *streams]))


def sources_of(
    model: Any, cells: Sequence[Cell], tokens: Sequence[int], recipient: Activations, source: Activations
) -> list[Tensor | None]:
    """What every cell's hook gets: its activation in the source run; or, for one that reads a stream, what the hook has
    in this run of `tokens` if its layer reads the source's stream. None where the values do not read that stream."""
    by_hook: dict[tuple[str, str], Tensor] = {}
    for layer, stream in dict.fromkeys((cell.layer, cell.spot.read) for cell in cells if cell.spot.read):
        readers = [cell for cell in cells if (cell.layer, cell.spot.read) == (layer, stream)]
        name = f"blocks.{layer}.hook_{stream}_pre"
        edits = {
            f"blocks.{layer}.hook_{point}": partial(add, delta=source[name] - recipient[name])
            for point in {READ_BY[cell.spot.short[0]] for cell in readers}
        }
        captures = run(model, Query(tokens=[tokens], hooks=tuple({cell.hook for cell in readers})), edits).hooks
        by_values = stream == "token" or model.config.residual.values != "token"
        by_hook |= {(hook, stream): x[0] for hook, x in captures.items() if hook[-1] != "v" or by_values}
    return [by_hook.get((c.hook, c.spot.read)) if c.spot.read else source[c.hook] for c in cells]


def add(x: Tensor, hook: Any, *, delta: Tensor) -> Tensor:
    return x + delta.to(x)


def sweep_pairs(
    model: Any, pairs: Sequence[PatchPair], names: Sequence[str], make: MakeSweep, n_cells: int, direction: Direction,
    *, progress: Callable[[Iterable], Iterable] = iter,
) -> PatchResults:  # fmt: skip
    """Run `make`'s edits on every pair, with the activations `names` of both prompts from unedited runs."""
    runs, patched = np.zeros((2, len(pairs))), np.full((n_cells, len(pairs)), np.nan)
    for i, pair in enumerate(progress(pairs)):
        recipient, source = both_runs(model, pair, names, direction)
        sweep = make(pair, recipient, source)
        edits = {c: edits for c, edits in enumerate(sweep) if edits is not None}
        tokens, other = pair.runs(direction)
        odds, source_odds = _odds(model, tokens, pair, list(edits.values())), _odds(model, other, pair, [])
        if not (np.isfinite(odds).all() and np.isfinite(source_odds).all()):
            raise InputError(f"log-odds of the pair {pair.id} are not finite: the weights, or a patch, are too large")
        patched[list(edits), i] = odds[1:]
        runs[:, i] = (source_odds[0], odds[0]) if direction == "denoise" else (odds[0], source_odds[0])
    return PatchResults(direction, runs[0], runs[1], patched)


def both_runs(
    model: Any, pair: PatchPair, names: Sequence[str], direction: Direction
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Activations (without batch axis) of the run to be patched, and of the other run."""
    captures = run(model, Query(tokens=pair.runs(direction), hooks=tuple(names))).hooks if names else {}
    return {name: x[0] for name, x in captures.items()}, {name: x[1] for name, x in captures.items()}


def _odds(model: Any, tokens: Sequence[int], pair: PatchPair, edits: Sequence[Mapping[str, Edit]]) -> np.ndarray:
    """ln Σ p(answers) − ln Σ p(foils) [1 + edits] after the last of these tokens."""
    log_p = answer_log_probs(model, [tokens], [pair.last], [[*pair.answers, *pair.foils]], edits)[:, 0]
    answers, foils = np.split(log_p, [len(pair.answers)], axis=-1)
    return np.asarray(np.logaddexp.reduce(answers, axis=-1) - np.logaddexp.reduce(foils, axis=-1))


def _put(x: Tensor, hook: Any, *, source: Tensor, index: tuple[Any, ...]) -> Tensor:
    new = x.clone()
    new[index] = source.to(x).expand_as(x)[index]
    return new


def attribute_pairs(
    model: Any, pairs: Sequence[PatchPair], cells: Sequence[Cell], direction: Direction = "denoise", *,
    progress: Callable[[Iterable], Iterable] = iter,
) -> np.ndarray:  # fmt: skip
    """First-order guesses of `PatchResults.effect` [cells, pairs] in nats: Σ (a_source − a_run) · ∂m/∂a per cell. One
    forward and one backward pass per pair."""
    hooks = list(dict.fromkeys(cell.hook for cell in cells))
    effects = np.full((len(cells), len(pairs)), np.nan)
    for i, pair in enumerate(progress(pairs)):
        recipient, source = both_runs(model, pair, names_of(cells), direction)
        ids = pair.runs(direction)[0]
        tokens = torch.tensor([ids], device=model.cfg.device)
        with torch.enable_grad(), capture(model, hooks, grad=True) as live:
            logits = model(tokens, logits_at=torch.tensor([[pair.last]], device=tokens.device))[0, 0]
        metric = pair.log_odds(logits)
        slopes = torch.autograd.grad(metric, [live[name] for name in hooks], allow_unused=True)
        gradients, products = dict(zip(hooks, slopes, strict=True)), dict[tuple[str, str], Tensor]()
        for c, (cell, value) in enumerate(zip(cells, sources_of(model, cells, ids, recipient, source), strict=True)):
            if value is None:
                continue
            key, g = (cell.hook, cell.spot.read), gradients[cell.hook]
            if key not in products:
                equal = value == recipient[cell.hook]  # masked scores are −inf in both
                change = (value - recipient[cell.hook]).masked_fill(equal, 0.0)[None].double()
                products[key] = torch.zeros_like(change) if g is None else change * g.detach().double()
            index = cell.index(pair, products[key].ndim)
            if index is not None:
                effects[c, i] = float(products[key][index].sum())
                if not np.isfinite(effects[c, i]):
                    raise InputError(f"the gradient of the pair {pair.id} at {cell.hook} is not finite")
    return effects


LOGITS = 2**24
"""Logits of a backward pass, 64 MiB in fp32; a part has at least one document."""


def attribute_heads(
    model: Any, batches: Iterable[tuple[Any, Int[Tensor, "B T"], Int[Tensor, "B T"]]]
) -> Float[np.ndarray, "layers heads"]:
    """d loss / d g of every head, g a factor on its output z, in nats per token: Σ z · ∂loss/∂z over all documents. To
    first order, scaling a head by g changes the loss by (g − 1) times this. `batches` are those of
    `text.shards.document_batches`. Raises `InputError` for a gradient that is not finite."""
    names = [f"blocks.{layer}.attn.hook_z" for layer in range(model.config.n_layers)]
    slopes, n = np.zeros((model.config.n_layers, model.config.n_heads)), 0
    for _, tokens, targets in batches:
        rows = max(1, LOGITS // (tokens.shape[1] * model.config.d_vocab))
        for ids, labels in zip(tokens.split(rows), targets.to(model.cfg.device).split(rows), strict=True):
            with torch.enable_grad(), capture(model, names, grad=True) as live:
                logits = model(ids.to(model.cfg.device))
                logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
                loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
            z = [live[name] for name in names]
            for layer, (x, g) in enumerate(zip(z, torch.autograd.grad(loss, z), strict=True)):
                slopes[layer] += (x.detach().double() * g.double()).sum((0, 1, 3)).cpu().numpy()
            n += int((labels != IGNORE).sum())
    if not np.isfinite(slopes).all():
        raise InputError("the gradient of the loss is not finite, so heads cannot be screened by it")
    return slopes / n
