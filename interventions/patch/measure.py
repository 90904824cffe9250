"""Patching: log-odds and recoveries as cells × pairs, with one row per patch and per path."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from streamscope.cli.errors import InputError
from streamscope.cli.terminal import counted
from streamscope.instruments.contract import InstrumentData, Progress, say, title_of
from streamscope.instruments.data import Opened, Prompts, check_tokenizer
from streamscope.instruments.observations import Contrast, Estimates, Measure, Observations, joined
from streamscope.instruments.stats.estimators import read_clusters
from streamscope.instruments.table import Column, Table, counts, described, key, number, quantity
from streamscope.interventions.patch import Patch, activations
from streamscope.interventions.patch.pairs import (
    Pairs,
    PatchPair,
    by_token,
    choose_pairs,
    make_pairs,
    own_pair,
    units_of,
)
from streamscope.interventions.patch.paths import edges_of, parse_senders, patch_edges
from streamscope.models.head_spec import Head, parse_layers, score_names

RESOLUTION = 1e-5
"""Log-odds closer than this count as equal (float32 rounding), in nats."""
ODDS = Measure(name="log-odds of answer and foil", unit="nats of log-odds", resolution=RESOLUTION)
SHARE = Measure(name="recovery", unit="share of the way from the corrupted to the clean run", resolution=RESOLUTION)
CELLS = ("direction", "hook", "layer", "position", "head", "index", "name")
EDGES = ("direction", "sender", "reader", "reader_kind", "reader_layer")
NO_EDGE = "in this model the reader does not read what is patched"


def observe(options: Patch, model: Any, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: clean, corrupted and every patched or guessed run. Units: pairs of prompts. Paths are further blocks."""
    options = with_resolved_heads(options, data)
    try:
        chosen = activations.spots(model, options.hooks)
    except InputError as error:
        if data.like is None:
            raise
        advice = "give --hooks that both models have, such as attn_out mlp_out z"
        raise InputError(f"the control: {error}; {advice}") from None
    edges = edges_of(model, parse_senders(options.senders, model))
    layers = parse_layers(options.layers, model.config.n_layers) or None
    pair_set, words = pairs_of(options, data)
    pairs = pair_set.pairs
    cells = activations.plan(model, pairs, chosen, options.by if options.by != "token" else "role", layers)
    directions = tuple(dict.fromkeys(options.direction))
    if hasattr(progress, "say"):
        baseline = activations.patch_pairs(model, pairs, [], directions[0])
        if not (np.abs(baseline.clean - baseline.corrupt) >= options.threshold).any():
            lost = f"{_unclear(options.threshold)}: recovery will have no value"
            say(progress, f"{lost}; give other pairs, or --threshold")
    swept, exact = list[activations.PatchResults](), "exact" in options.method
    for direction in directions:
        results = activations.patch_pairs(
            model, pairs, cells if exact else [], direction, progress=progress if exact else iter
        )
        guessed = None
        if "attribution" in options.method:
            guessed = activations.attribute_pairs(model, pairs, cells, direction, progress=progress)
        swept.append(replace(results, guessed=guessed, labels=[cell_labels(cell, direction) for cell in cells]))
    about = {"pairs": len(pairs), "left_out": pair_set.left_out}
    measurements = InstrumentData(about=about, extra=swept)
    add_blocks(measurements, "effect", "recovery", swept, pairs, options.threshold, "hook")
    if edges:
        paths = patch_edges(model, pairs, edges, directions[0], progress=progress)
        keys = [(directions[0], edge.sender.name, edge.reader.name, edge.kind, edge.reader.layer) for edge in edges]
        paths = replace(paths, labels=[dict(zip(EDGES, values, strict=True)) for values in keys])
        add_blocks(measurements, "paths", "paths-recovery", [paths], pairs, options.threshold, "sender")
    odds_words = f"log-odds clean {swept[0].clean.mean():+.3f}, corrupted {swept[0].corrupt.mean():+.3f} nats"
    measurements.about["title"] = f"{title_of(model)}, {words}: {odds_words}"
    return measurements


def with_resolved_heads(options: Patch, data: Opened) -> Patch:
    model = data.model
    if score_names(options.senders):
        named_specs = [spec for spec in options.senders if not score_names([spec])]
        edges_of(model, parse_senders([*named_specs, "L0.H0"], model))  # refuses bad senders before heads are ranked
        pairs, direction = pairs_of(options, data)[0].pairs, options.direction[0]
        cells = activations.plan(model, pairs, activations.spots(model, ["z"]), "head")
        recovery = activations.patch_pairs(model, pairs, cells, direction).recovery(options.threshold)
        clear = ~np.isnan(recovery).any(0)  # NaN marks undefined recoveries only
        if not clear.any():
            raise InputError(f"{_unclear(options.threshold)}, so heads cannot be ranked; give a smaller --threshold")
        sign = -1.0 if direction == "noise" else 1.0
        scores = {
            Head(cell.layer, int(cell.head or 0)): sign * float(row.mean())
            for cell, row in zip(cells, recovery[:, clear], strict=True)
        }
        chosen = parse_senders(options.senders, model, {"recovery": scores})
        options = replace(options, senders=tuple(sender.name.replace(" ", ".") for sender in chosen))
    by = "role" if options.by == "token" else options.by
    return replace(options, hooks=options.hooks or activations.default_spots(model, by))


def pairs_of(options: Patch, data: Opened) -> tuple[Pairs, str]:
    """The pairs that the options describe, in the model's tokens, and a description in words."""
    model, tokenizer = data.model, check_tokenizer(data.model)
    if data.like is not None and check_tokenizer(data.like.model).sha256 != tokenizer.sha256:
        a, b = (net.config.d_vocab for net in (data.like.model, model))
        both = f"the control has another vocabulary ({b} tokens, the model {a})"
        raise InputError(f"{both}, but patches are compared token by token; train both with one tokenizer")
    if options.clean is not None:
        assert options.corrupt is not None and options.answer is not None and options.foil is not None
        pair = own_pair(tokenizer, options.clean, options.corrupt, options.answer, options.foil)
        if len(pair.clean) > model.config.n_ctx:
            length = counted(len(pair.clean), "token")
            raise InputError(f"the text has {length}, the context holds {model.config.n_ctx}")
        sides = ((options.answer, pair.answers), (options.foil, pair.foils))
        words = " against ".join(_counted(tokenizer, *side) for side in sides).removesuffix(",")
        return Pairs((pair,)), f"one pair, {words}"
    opened = data[Prompts]
    contrast = options.contrast
    if contrast == "auto":
        contrast = "corrupt" if any(p.corrupt is not None for p in opened.aligned.prompts) else "noun"
    pair_set = choose_pairs(make_pairs(opened.aligned, tokenizer, contrast), options.pairs)
    shared = read_clusters([p.cluster for p in pair_set.pairs], len(pair_set.pairs)).shared is not None
    name = opened.suite.name if opened.suite is not None else "prompts"
    words = f"{counted(len(pair_set.pairs), 'pair')} of {name} by {contrast}{pair_set.left_out}"
    words += f", 95 % for new {'words' if shared else 'texts'}"
    if options.by == "token":
        pair_set = Pairs(tuple(by_token(pair_set.pairs, tokenizer)), pair_set.filtered)
    return pair_set, words


def _counted(tokenizer: Any, continuation: str, ids: Sequence[int]) -> str:
    first = tokenizer.pieces(ids[:1])[0]
    return repr(continuation) if first == continuation else f"{first!r}, the first token of {continuation!r},"


def cell_labels(cell: activations.Cell, direction: activations.Direction) -> dict[str, Any]:
    head = f"L{cell.layer}.{'KV' if cell.spot.kv else 'H'}{cell.head}" if cell.head is not None else ""
    where = head or (f"L{cell.layer}" if cell.layer >= 0 else "")
    name = " ".join(part for part in (cell.spot.short, where, cell.place) if part not in ("", "all"))
    index = -1 if cell.head is None else cell.head
    row = (direction, cell.spot.short, cell.layer, cell.place, head, index, name)
    return dict(zip(CELLS, row, strict=True))


def add_blocks(
    data: InstrumentData, odds: str, share: str, swept: Sequence[activations.PatchResults], pairs: Sequence[PatchPair],
    threshold: float, family: str,
) -> None:  # fmt: skip
    """Add two blocks: log-odds with the effect of every patch, and recoveries of the pairs that define one. Holm's p of
    the effects corrects over the patches with the same direction and `family`."""
    cells: dict[str, list[tuple[dict[str, Any], np.ndarray]]] = {odds: [], share: []}
    data.contrasts |= {odds: [], share: []}

    def cell(block: str, label: Mapping[str, Any], run: str, x: np.ndarray) -> int:
        cells[block].append(({**label, "run": run}, x))
        return len(cells[block]) - 1

    for sweep in swept:
        blank = {k: v if k == "direction" else type(v)() for k, v in sweep.labels[0].items()}
        clean, corrupt = cell(odds, blank, "clean", sweep.clean), cell(odds, blank, "corrupted", sweep.corrupt)
        base = corrupt if sweep.direction == "denoise" else clean
        rows = [("effect", "recovery", "patched", sweep.patched)] if len(sweep.patched) else []
        if sweep.guessed is not None:
            rows.append(("attribution", "attributed", "guessed", sweep.own + sweep.guessed))
        for i, label in enumerate(sweep.labels):
            for effect, recovery, run, patched in rows:
                absent = NO_EDGE if np.isnan(patched[i]).all() else ""
                data.contrasts[odds].append(Contrast(
                    quantity=effect, labels=label, null=0.0 if effect == "effect" else None, missing=absent,
                    weights={cell(odds, label, run, patched[i]): 1.0, base: -1.0},
                    family=f"{odds}, {sweep.direction} {label[family]}",
                ))  # fmt: skip
                part = replace(sweep, patched=patched[i]).recovery(threshold)
                data.contrasts[share].append(Contrast(
                    quantity=recovery, weights={cell(share, label, run, part): 1.0}, labels=label, null=None,
                    missing=absent or (_unclear(threshold) if np.isnan(part).all() else ""),
                ))  # fmt: skip
    for name, measure in ((odds, ODDS), (share, SHARE)):
        keys, total = pd.DataFrame([key for key, _ in cells[name]]), np.stack([x for _, x in cells[name]])
        data.blocks[name] = Observations(
            measure=measure, cells=keys, units=units_of(pairs), total=total, size=~np.isnan(total)
        )


def _unclear(threshold: float) -> str:
    return f"no pair differs by {threshold:g} nats or more between clean and corrupted"


def tables(options: Patch, data: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """patches: one row per cell; attribution: the errors of the guesses; paths: one row per path."""
    title, swept = data.about["title"], data.extra
    threshold = f"recovery for pairs that differ by at least {options.threshold:g} nats"
    main = table_of(estimates["effect"], estimates["recovery"], CELLS, CELL_COLUMNS, f"{title}; {threshold}")
    out = {"patches": main}
    if all(len(sweep.patched) and sweep.guessed is not None for sweep in swept):
        parts = pd.concat([errors(sweep) for sweep in swept], ignore_index=True)
        out["attribution"] = Table.noted(parts, ERRORS, "Error of attribution patching, over cells × pairs")
    if "paths" in estimates:
        words = f"{title}: effects through single paths"
        paths = table_of(estimates["paths"], estimates["paths-recovery"], EDGES, EDGE_COLUMNS, words)
        edge_rows = [i for i in range(len(paths.frame)) if paths.missing.get((i, "effect")) != NO_EDGE]
        out["paths"] = paths.only(edge_rows, words)
    return out


def table_of(odds: Estimates, share: Estimates, keys: Sequence[str], columns: Sequence[Column], title: str) -> Table:
    """Effects and recoveries by row; `defined` counts the pairs with a recovery."""
    all_columns = [*columns, *MEASURED, *counts("pairs of prompts", "independent pairs, or the fewest words of a kind")]
    frame, missing = joined([odds, share], keys, all_columns)
    frame["defined"] = share.wide(keys)[0]["n"]
    shown = tuple(column for column in all_columns if column.name in frame)
    by = "effect" if "effect" in frame else "attribution"
    return Table(frame, shown, missing, title, by=by, most=20)


def errors(swept: activations.PatchResults) -> pd.DataFrame:
    """One row per hook: the errors of attribution, over cells × pairs, in nats. correlation is Pearson's r; max_abs and
    mean_abs are the largest and mean |guess − exact|; exact_abs: mean |exact|."""
    assert swept.guessed is not None
    hooks, rows = pd.Series([label["hook"] for label in swept.labels]), []
    for hook, index in hooks.groupby(hooks, sort=False).groups.items():
        a, b = swept.effect[index].ravel(), swept.guessed[index].ravel()
        a, b = a[np.isfinite(a)], b[np.isfinite(a)]
        names = ("correlation", "max_abs", "mean_abs", "exact_abs")
        values, undefined = [np.nan] * 4, f"{', '.join(names)}: {NO_EDGE}"
        if len(a):
            flat = len(a) < 2 or a.std() < RESOLUTION or b.std() < RESOLUTION
            undefined, off = "correlation: one of the two does not vary" if flat else "", np.abs(b - a)
            values = [np.nan if flat else np.corrcoef(a, b)[0, 1], off.max(), off.mean(), np.abs(a).mean()]
        row = {"direction": swept.direction, "hook": hook, "values": len(a), "undefined": undefined}
        rows.append(row | dict(zip(names, values, strict=True)))
    return pd.DataFrame(rows)


NATS, WAY = ODDS.unit, SHARE.unit
DIRECTION = key("direction", "direction", "denoise: clean into corrupted; noise: corrupted into clean")
CELL_COLUMNS = (
    DIRECTION,
    key("name", "patch", "hook, layer or head, and position"),
    key("hook", "hook", "short name of the hook", shown=False),
    key("layer", "layer", "counted from 0; −1 outside the blocks", "layer", "d", False),
    key("position", "position", "role of the patched positions; all: every position", shown=False),
    key("head", "head", "the patched head; empty: not a single one", shown=False),
    key("index", "index", "number of the head in its layer, from 0; −1: not a single one", "head", "d", False),
)  # fmt: skip
EDGE_COLUMNS = (
    DIRECTION,
    key("sender", "sender", "a head, a layer's attention or its FFN"),
    key("reader", "reader", "the part that reads the change"),
    key("reader_kind", "kind of reader", "the reading input of a layer, or the head", shown=False),
    key("reader_layer", "layer of the reader", "counted from 0", "layer", "d", False),
)  # fmt: skip
MEASURED = (
    *quantity("effect", "effect", NATS, "log-odds of the patched run − unpatched run", format="+.3f", sd="pairs"),
    *described("recovery", "recovery", WAY, "0: as in the corrupted run, 1: as in the clean run", format="+.3f",
               sd="pairs"),
    number("attribution", "effect, first-order", NATS, "first-order approximation of the effect", "+.3f"),
    *described("attributed", "recovery, first-order", WAY, "first-order approximation of the recovery", format="+.3f",
               sd="pairs", shown=False),
    number("defined", "pairs with recovery", "pairs of prompts", "pairs whose runs differ by at least the threshold",
           "d", False),
)  # fmt: skip
ERRORS = (
    DIRECTION,
    key("hook", "hook", "short name of the hook"),
    number("values", "values", "cells × pairs", "number of compared effects", "d"),
    number("correlation", "correlation", "Pearson's r", "correlation of approximation and exact effect", ".3f"),
    number("max_abs", "largest error", NATS, "largest |approximation − effect|", ".3f"),
    number("mean_abs", "mean error", NATS, "mean |approximation − effect|", ".3f"),
    number("exact_abs", "mean effect", NATS, "mean |effect|", ".3f"),
)  # fmt: skip
