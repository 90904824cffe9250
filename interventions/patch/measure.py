"""Patching: pairs and cells of a model, log-odds and recoveries as cells × pairs, and a row per patch and per path."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from streamscope.cli.errors import InputError
from streamscope.instruments.about_model import title_of
from streamscope.instruments.contract import InstrumentData, Progress
from streamscope.instruments.data import Opened, Prompts
from streamscope.instruments.observations import Contrast, Estimates, Measure, Observations
from streamscope.instruments.prompts.alignment import check_tokenizer
from streamscope.instruments.stats.estimators import read_clusters
from streamscope.instruments.table import Column, Table, counts, described, key, quantity
from streamscope.interventions.patch import Patch
from streamscope.interventions.patch.activations import (
    Cell,
    Direction,
    Patched,
    default_spots,
    patch_pairs,
    plan,
    spots,
    sweep_pairs,
)
from streamscope.interventions.patch.attribution import attribute_pairs
from streamscope.interventions.patch.pairs import Pairs, PatchPair, by_token, choose_pairs, make_pairs, own_pair
from streamscope.interventions.patch.paths import Edge, edges_of, every_edge, parse_senders, patch_edges
from streamscope.models.head_spec import Head, parse_layers, score_names

RESOLUTION = 1e-5
"""Log-odds closer than this are equal: roundings of float32, in nats."""
ODDS = Measure(name="log-odds of answer and foil", unit="nats of log-odds", resolution=RESOLUTION)
SHARE = Measure(
    name="recovery", unit="share of the way from the corrupted to the clean run", resolution=RESOLUTION
)  # fmt: skip
CELLS = ("direction", "hook", "layer", "position", "head", "index", "name")
EDGES = ("direction", "sender", "reader", "reader_kind", "reader_layer")
NO_EDGE = "in this model the reader does not read what the sender writes"


@dataclass(frozen=True)
class Swept:
    """What a sweep in one direction gave: a row of labels for each patch, exact and guessed effects [rows, pairs]."""

    labels: Sequence[Mapping[str, Any]]
    exact: Patched
    """Without rows where patches are only guessed; clean and corrupted log-odds are there."""
    guessed: np.ndarray | None = None

    @property
    def own(self) -> np.ndarray:
        """Log-odds of the run that is patched [pairs]."""
        return self.exact.corrupt if self.exact.direction == "denoise" else self.exact.clean


def observe(how: Patch, model: Any, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: clean, corrupted and every patched or guessed run; units: pairs of prompts. Paths are further blocks."""
    how = with_resolved_heads(how, data)
    try:
        chosen = spots(model, how.hooks)
    except InputError as error:
        if data.like is None:
            raise
        raise InputError(f"the control: {error}; give --hooks that both models have, as attn_out mlp_out z") from None
    senders = parse_senders(how.senders, model)
    edges = edges_of(model, senders) if senders else []
    layers = parse_layers(how.layers, model.config.n_layers) or None
    found, words = pairs_of(how, data)
    pairs = found.pairs
    cells = plan(model, pairs, chosen, how.by if how.by != "token" else "role", layers)
    directions = tuple(dict.fromkeys(how.direction))
    swept = [sweep(how, model, pairs, cells, direction, progress) for direction in directions]
    seen = InstrumentData({}, {}, {"pairs": len(pairs), "left_out": found.left_out})
    add(seen, "effect", "recovery", swept, pairs, how.threshold, "hook")
    if edges:
        every = every_edge(model, senders)
        run = patch_edges(model, pairs, edges, directions[0], progress=progress)
        odds = np.full((len(every), len(pairs)), np.nan)
        odds[[every.index(edge) for edge in edges]] = run.patched
        paths = Swept([edge_labels(edge, directions[0]) for edge in every], replace(run, patched=odds))
        add(seen, "paths", "paths-recovery", [paths], pairs, how.threshold, "sender")
    clean, corrupt = swept[0].exact.clean.mean(), swept[0].exact.corrupt.mean()
    seen.about["title"] = f"{title_of(model)}, {words}: clean {clean:+.3f}, corrupted {corrupt:+.3f} nats"
    seen.extra = swept
    return seen


def with_resolved_heads(how: Patch, data: Opened) -> Patch:
    """With hooks and senders by name; heads are ranked by their recovery over the same pairs."""
    model = data.model
    if score_names(how.senders):
        named = [spec for spec in how.senders if not score_names([spec])]
        edges_of(model, parse_senders([*named, "L0.H0"], model))  # refuses senders before heads are ranked
        pairs, direction = pairs_of(how, data)[0].pairs, how.direction[0]
        cells = plan(model, pairs, spots(model, ["z"]), "head")
        recovery = patch_pairs(model, pairs, cells, direction).recovery(how.threshold)
        clear = ~np.isnan(recovery).any(0)  # `Patched` says by NaN what there is not, and holds no other
        if not clear.any():
            raise InputError(f"{_unclear(how.threshold)}, so that heads cannot be ranked; give a smaller --threshold")
        sign = -1.0 if direction == "noise" else 1.0
        scores = {
            Head(cell.layer, int(cell.head or 0)): sign * float(row.mean())
            for cell, row in zip(cells, recovery[:, clear], strict=True)
        }
        chosen = parse_senders(how.senders, model, {"recovery": scores})
        how = replace(how, senders=tuple(sender.label.replace(" ", ".") for sender in chosen))
    return replace(how, hooks=how.hooks or default_spots(model))


def pairs_of(how: Patch, data: Opened) -> tuple[Pairs, str]:
    """The pairs that the options name in the model's tokens, and what they are in words."""
    model, tokenizer = data.model, check_tokenizer(data.model)
    if data.like is not None and check_tokenizer(data.like.model).sha256 != tokenizer.sha256:
        a, b = (net.config.d_vocab for net in (data.like.model, model))
        raise InputError(
            f"the control has another vocabulary ({b} tokens, the model {a}): patches are compared token by token; "
            "train both with one tokenizer"
        )
    if how.clean is not None:
        assert how.corrupt is not None and how.answer is not None and how.foil is not None
        pair = own_pair(tokenizer, how.clean, how.corrupt, how.answer, how.foil)
        if len(pair.clean) > model.config.n_ctx:
            raise InputError(f"the text has {len(pair.clean)} tokens, the context holds {model.config.n_ctx}")
        return Pairs((pair,)), f"one pair, {how.answer!r} against {how.foil!r}"
    opened = data[Prompts]
    found = choose_pairs(make_pairs(opened.aligned, tokenizer, how.contrast), how.pairs)
    shared = read_clusters([p.cluster for p in found.pairs], len(found.pairs)).shared is not None
    name = opened.suite.name if opened.suite is not None else "prompts"
    words = f"{len(found.pairs)} pairs of {name} by {how.contrast}{found.left_out}"
    words += f", 95 % for new {'words' if shared else 'texts'}"
    if how.by == "token":
        found = Pairs(tuple(by_token(found.pairs, tokenizer)), found.filtered)
    return found, words


def sweep(
    how: Patch, model: Any, pairs: Sequence[PatchPair], cells: Sequence[Cell], direction: Direction, progress: Progress
) -> Swept:
    """Every cell of every pair in one direction, run, guessed, or both."""
    labels = [cell_labels(cell, direction) for cell in cells]
    if "exact" in how.method:
        exact = patch_pairs(model, pairs, cells, direction, progress=progress)
    else:
        exact = sweep_pairs(model, pairs, [], lambda *_: [], 0, direction)
    guessed = None
    if "attribution" in how.method:
        guessed = attribute_pairs(model, pairs, cells, direction, progress=progress)
    return Swept(labels, exact, guessed)


def cell_labels(cell: Cell, direction: Direction) -> dict[str, Any]:
    """What names a cell's row."""
    head = f"L{cell.layer}H{cell.head}" if cell.head is not None else ""
    where = head or (f"L{cell.layer}" if cell.layer >= 0 else "")
    name = " ".join(part for part in (cell.spot.short, where, cell.place) if part not in ("", "all"))
    index = -1 if cell.head is None else cell.head
    row = (direction, cell.spot.short, cell.layer, cell.place, head, index, name)
    return dict(zip(CELLS, row, strict=True))


def edge_labels(edge: Edge, direction: Direction) -> dict[str, Any]:
    """What names a path's row."""
    return dict(zip(EDGES, (direction, edge.sender.label, edge.label, edge.reader, edge.layer), strict=True))


# ---- cells and contrasts -----------------------------------------------------------------------


def units_of(pairs: Sequence[PatchPair]) -> pd.DataFrame:
    """unit (the pair's id and a hash of its tokens, the same in every model) and cluster of every pair."""
    tokens = [repr((p.clean, p.corrupt, p.answer, p.foil)) for p in pairs]
    names = [f"{p.id}:{hashlib.sha1(t.encode()).hexdigest()[:10]}" for p, t in zip(pairs, tokens, strict=True)]
    return pd.DataFrame({"unit": names, "cluster": pd.Series([p.cluster for p in pairs], dtype=object)})


def add(
    seen: InstrumentData,
    odds: str,
    share: str,
    swept: Sequence[Swept],
    pairs: Sequence[PatchPair],
    threshold: float,
    family: str,
) -> None:
    """Two blocks: log-odds, with the effect of every patch on them, and recoveries of the pairs that define them.

    Holm's p of the effects corrects over the patches that agree in direction and in `family`.
    """
    keys: dict[str, list[dict[str, Any]]] = {odds: [], share: []}
    values: dict[str, list[np.ndarray]] = {odds: [], share: []}
    made: dict[str, list[Contrast]] = {odds: [], share: []}

    def cell(block: str, label: Mapping[str, Any], run: str, x: np.ndarray) -> int:
        keys[block].append({**label, "run": run})
        values[block].append(x)
        return len(values[block]) - 1

    for one in swept:
        blank = {k: v if k == "direction" else type(v)() for k, v in one.labels[0].items()}
        clean = cell(odds, blank, "clean", one.exact.clean)
        corrupt = cell(odds, blank, "corrupted", one.exact.corrupt)
        base = corrupt if one.exact.direction == "denoise" else clean
        rows = [("effect", "recovery", "patched", one.exact.patched)] if len(one.exact.patched) else []
        if one.guessed is not None:
            rows.append(("attribution", "attributed", "guessed", one.own + one.guessed))
        for i, label in enumerate(one.labels):
            for effect, recovery, run, all_of in rows:
                at, tested = cell(odds, label, run, all_of[i]), effect == "effect"
                absent = NO_EDGE if np.isnan(all_of[i]).all() else ""
                made[odds].append(
                    Contrast(
                        quantity=effect, weights={at: 1.0, base: -1.0}, labels=label, null=0.0 if tested else None,
                        family=f"{odds}, {one.exact.direction} {label[family]}", missing=absent,
                    )
                )  # fmt: skip
                part = replace(one.exact, patched=all_of[i][None]).recovery(threshold)[0]
                why = absent or (_unclear(threshold) if np.isnan(part).all() else "")
                made[share].append(
                    Contrast(
                        quantity=recovery, weights={cell(share, label, run, part): 1.0}, labels=label, null=None,
                        missing=why,
                    )
                )  # fmt: skip
    units = units_of(pairs)
    for name, measure in ((odds, ODDS), (share, SHARE)):
        total = np.stack(values[name])
        seen.blocks[name] = Observations(
            measure=measure, cells=pd.DataFrame(keys[name]), units=units, total=total, size=~np.isnan(total)
        )
        seen.contrasts[name] = made[name]


def _unclear(threshold: float) -> str:
    return f"in no pair do clean and corrupted differ by {threshold:g} nats"


# ---- tables ------------------------------------------------------------------------------------


def tables(how: Patch, seen: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """patches: a row for every cell; attribution: how far the guesses are off; paths: a row for every path."""
    title, swept = seen.about["title"], seen.extra
    threshold = f"recovery where clean and corrupted differ by {how.threshold:g} nats"
    main = table_of(estimates["effect"], estimates["recovery"], CELLS, CELL_COLUMNS, f"{title}; {threshold}")
    out = {"patches": main}
    if all(len(one.exact.patched) and one.guessed is not None for one in swept):
        parts = [errors(one) for one in swept]
        out["attribution"] = Table.noted(
            pd.concat(parts, ignore_index=True), ERRORS, "attribution against the exact effect, over cells × pairs"
        )
    if "paths" in estimates:
        words = f"{title}: paths"
        paths = table_of(estimates["paths"], estimates["paths-recovery"], EDGES, EDGE_COLUMNS, words)
        there = [i for i in range(len(paths.frame)) if paths.missing.get((i, "effect")) != NO_EDGE]
        out["paths"] = paths.only(there, words)
    return out


def table_of(
    odds: Estimates, share: Estimates, keys: Sequence[str], columns: Sequence[Column], title: str
) -> Table:  # fmt: skip
    """Effects and recoveries side by side; `defined` are the pairs that have a recovery."""
    frame, missing = odds.wide(keys)
    shares, why = share.wide(keys, describe=("sd", "low", "high"))
    added = [c for c in shares if c not in (*keys, "n", "clusters")]
    frame = pd.concat([frame, shares[added]], axis=1).assign(defined=shares["n"])
    known = [*columns, *MEASURED, *counts("pairs of prompts", "independent pairs, or the fewest words of a kind")]
    shown = tuple(column for column in known if column.name in frame)
    by = "effect" if "effect" in frame else "attribution"
    return Table(frame, shown, missing | why, title, by=by, most=20)


def errors(swept: Swept) -> pd.DataFrame:
    """One row per hook: how far attribution is from the exact effects, over cells × pairs, in nats.

    correlation is Pearson's; max_abs and mean_abs are of guess − exact, exact_abs is the mean size of what is guessed.
    """
    assert swept.guessed is not None
    hooks = pd.Series([label["hook"] for label in swept.labels])
    rows = []
    for hook, at in hooks.groupby(hooks, sort=False).groups.items():
        a, b = swept.exact.effect[at].ravel(), swept.guessed[at].ravel()
        a, b = a[np.isfinite(a)], b[np.isfinite(a)]
        flat = len(a) < 2 or a.std() < RESOLUTION or b.std() < RESOLUTION
        correlation = np.nan if flat else float(np.corrcoef(a, b)[0, 1])
        off = np.abs(b - a)
        rows.append(
            {
                "direction": swept.exact.direction, "hook": hook, "values": len(a), "correlation": correlation,
                "max_abs": float(off.max()), "mean_abs": float(off.mean()), "exact_abs": float(np.abs(a).mean()),
                "undefined": "correlation: one of the two does not vary" if flat else "",
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


NATS, WAY = ODDS.unit, SHARE.unit
DIRECTION = key("direction", "direction", "denoise: clean into corrupted; noise: corrupted into clean")


def _hidden(name: str, title: str, doc: str, unit: str = "name", format: str = "") -> Column:
    return Column(name=name, title=title, unit=unit, doc=doc, format=format, shown=False)


CELL_COLUMNS = (
    DIRECTION,
    key("name", "patch", "hook, layer or head, and position"),
    _hidden("hook", "hook", "the hook's short name"),
    _hidden("layer", "layer", "counted from 0; −1 outside the blocks", "layer", "d"),
    _hidden("position", "position", "the role of the positions that are patched, all: every one"),
    _hidden("head", "head", "the head that is patched, empty: no single one"),
    _hidden("index", "index", "the head in its layer, from 0; −1: no single one", "head", "d"),
)
EDGE_COLUMNS = (
    DIRECTION,
    key("sender", "sender", "a head, a layer's attention or its FFN"),
    key("reader", "reader", "what reads the change"),
    _hidden("reader_kind", "kind of reader", "which input of a layer, or the head"),
    _hidden("reader_layer", "layer of the reader", "counted from 0", "layer", "d"),
)
MEASURED = (
    *quantity("effect", "effect", NATS, "patched − the run it was put into", format="+.3f", sd="pairs"),
    *described("recovery", "recovery", WAY, "0: corrupted run, 1: clean run", format="+.3f", sd="pairs"),
    *quantity("attribution", "attribution", NATS, "the first-order guess of the effect", format="+.3f", tested=False),
    *described("attributed", "attributed", WAY, "the first-order guess of the recovery", format="+.3f", sd="pairs",
               shown=False),
    _hidden("defined", "defined", "pairs whose runs differ by the threshold or more", "pairs of prompts", "d"),
)  # fmt: skip
ERRORS = (
    DIRECTION,
    key("hook", "hook", "the hook's short name"),
    Column(name="values", title="values", unit="cells × pairs", format="d", doc="how many effects are compared"),
    Column(name="correlation", title="correlation", unit="Pearson's r", format=".3f", doc="of guesses and effects"),
    Column(name="max_abs", title="largest error", unit=NATS, format=".3f", doc="largest |guess − effect|"),
    Column(name="mean_abs", title="mean error", unit=NATS, format=".3f", doc="mean |guess − effect|"),
    Column(name="exact_abs", title="mean effect", unit=NATS, format=".3f", doc="mean |effect|"),
)
