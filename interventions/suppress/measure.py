"""LFA's suppression protocol (§3.3, App. D, F): gated heads as cells, prompts and documents as units, four readings."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal

import numpy as np
import pandas as pd

from streamscope.cli.errors import InputError
from streamscope.cli.terminal import counted
from streamscope.instruments.contract import InstrumentData, Progress, title_of
from streamscope.instruments.data import Documents, Opened, Prompts
from streamscope.instruments.observations import (
    Contrast,
    Estimates,
    Measure,
    Observations,
    Reasons,
    effect_contrasts,
    ranks,
)
from streamscope.instruments.prompts import align, load_suite
from streamscope.instruments.stats.estimators import read_clusters
from streamscope.instruments.table import Table, counts, descending, described, key, number, quantity
from streamscope.interventions.controls import EFFECT_SIZES, REASON, effect_sizes, inert_reason, random_sets
from streamscope.interventions.edits import scale_heads
from streamscope.interventions.observe import MEASURES, SMALLEST, Observed, observe_loss, observe_prompts
from streamscope.interventions.selection import pds_scores
from streamscope.interventions.suppress import Suppress
from streamscope.models.head_spec import Head
from streamscope.models.hooks import Edits
from streamscope.probes.pds import NOUNS, Pds
from streamscope.probes.roles import sinks_sentence

KEYS = ("selection", "group", "draw", "gate", "part")
OVER = "over"
"""The selection of all heads over the threshold; the others are top1, top3, …"""
WHOLE = ("edited", "baseline", "delta")
NO_DRAW, ONE_DRAW = "no draw can act", "fewer than two draws that can act"
FLAT = "the mean response is the same at every gate"


@dataclass(frozen=True)
class Cell:
    """Heads under a gate; `edit` is the index of their edit (None: the baseline), `draw` −1 unless they are random."""

    selection: str
    group: Literal["selected", "bottom", "random"]
    draw: int
    heads: tuple[Head, ...]
    gate: float
    edit: int | None

    @property
    def labels(self) -> dict[str, Any]:
        """Keys of the cell, the same in every model although heads are each model's own."""
        return {"selection": self.selection, "group": self.group, "draw": self.draw, "gate": self.gate}

    @property
    def names(self) -> dict[str, Any]:
        """The number of heads, and their names."""
        return {"k": len(self.heads), "heads": "+".join(head.label for head in self.heads)}


@dataclass(frozen=True)
class Protocol:
    """Selections of heads, each with its controls, under every gate.

    edits: the sweep; gate 1 is the baseline and is not run. cells: selected and bottom-k heads under every gate. draws:
    random sets of as many heads under the smallest gate. prefer_first: the heads that attend to the first noun more.
    """

    edits: list[Edits]
    cells: list[Cell]
    draws: list[Cell]
    prefer_first: frozenset[str] = frozenset()

    @property
    def hard(self) -> float:
        """The smallest gate."""
        return min(cell.gate for cell in self.cells)


def observe(how: Suppress, model: Any, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: every selection with its controls under every gate, by part. Units: prompts, pairs of them, or
    documents."""
    prompts = data[Prompts]
    ranked = Pds().measure(model, _to_rank(how, data))
    ranking, names = ranked.table("heads"), ranked.about["sinks"]
    scores = pds_scores(ranking.frame)
    sinks = {head for head in scores if head.label in names}
    protocol = design(scores, select(how, scores), how.gates, draws=how.draws, seed=how.seed, sinks=sinks)
    first = ranking.frame.loc[ranking.frame["prefers"] == NOUNS[0], "head"]
    protocol = replace(protocol, prefer_first=frozenset(first))
    measures = [m for m in dict.fromkeys(how.measures) if m != "loss"]
    observed = observe_prompts(model, measures, protocol.edits, prompts.aligned, prompts.tokenizer, progress=progress)
    ranked_on = how.rank_on or "the same prompts"
    best = ", ".join(f"{r.head} {r.pds:.3f} ({r.prefers})" for r in ranking.frame.nlargest(5, "pds").itertuples())
    scored = prompts.aligned.scoring() if "coherence" in measures else ""
    title = f"{title_of(model)} on {prompts.title()}{scored}; heads ranked on {ranked_on}: {best}"
    title += sinks_sentence(names, len(scores)) + (", which are left out of the bottom heads" if names else "")
    seen = InstrumentData({}, {}, {"title": title, "ranked_on": ranked_on}, extra=(protocol, ranking))
    for one in observed.values():
        add_measure(seen, protocol, one, model.config.n_layers, prompts.unit)
    if "loss" in how.measures:
        documents = data[Documents]
        found = observe_loss(model, protocol.edits, documents.shards, **documents.limits, progress=progress)
        units = documents.units()
        cases = found.cases.assign(id=units["unit"], cluster=units["cluster"])
        add_measure(seen, protocol, replace(found, cases=cases), model.config.n_layers)
    return seen


def _to_rank(how: Suppress, data: Opened) -> Any:
    """The prompts of the measurement, or those of --rank-on."""
    prompts = data[Prompts]
    if how.rank_on is None:
        return prompts
    suite = load_suite(how.rank_on)
    return replace(prompts, aligned=align(suite, prompts.tokenizer, data.model.config.n_ctx), suite=suite)


def select(how: Suppress, scores: Mapping[Head, float]) -> dict[str, tuple[Head, ...]]:
    """The heads to suppress, by selection: top1, top3, …, and `OVER`."""
    found = {f"top{k}": rank_heads(scores, k) for k in dict.fromkeys(how.k)} if "topk" in how.select else {}
    return {**found, OVER: heads_over(scores, how.threshold)} if "threshold" in how.select else found


def rank_heads(scores: Mapping[Head, float], k: int, which: Literal["top", "bottom"] = "top") -> tuple[Head, ...]:
    """The k heads with the largest or smallest PDS, by layer and index; ties go to the earlier head.

    Raises `InputError` if fewer than k other heads remain for the controls.
    """
    if not 1 <= k <= len(scores) // 2:
        raise InputError(
            f"k={k} of {len(scores)} heads leave fewer than {k} others to compare with; give 1 to {len(scores) // 2}"
        )
    sign = -1.0 if which == "top" else 1.0
    return tuple(sorted(sorted(scores, key=lambda head: (sign * scores[head], head))[:k]))


def heads_over(scores: Mapping[Head, float], threshold: float | Literal["own"]) -> tuple[Head, ...]:
    """The heads whose PDS exceeds the threshold (LFA Table 5: 0.075); "own" is μ+σ over the heads, σ with n−1.

    Raises `InputError` for no head, and for more than half of them, which leave too few for the controls.
    """
    values = np.array(list(scores.values()))
    limit = float(values.mean() + values.std(ddof=1)) if threshold == "own" else float(threshold)
    chosen = tuple(sorted(head for head, pds in scores.items() if pds > limit))
    if not chosen:
        best = max(scores, key=lambda head: scores[head])
        raise InputError(
            f"no head has PDS over {limit:.4f}: the largest is {best.label} with {scores[best]:.4f}; "
            "lower --threshold, or --select topk"
        )
    if len(chosen) > len(scores) // 2:
        raise InputError(
            f"{len(chosen)} of {len(scores)} heads have PDS over {limit:.4f} and leave too few for the controls; "
            "raise --threshold, or --select topk"
        )
    return chosen


def design(
    scores: Mapping[Head, float], selections: Mapping[str, Sequence[Head]], gates: Sequence[float], *, draws: int = 39,
    seed: int = 0, sinks: Collection[Head] = (),
) -> Protocol:  # fmt: skip
    """The edits of the protocol. Controls of k selected heads: the k with the smallest PDS, and `draws` random sets.

    `sinks` are heads that attend almost only to BOS. Their PDS is near 0 whatever the text says, so they are not used
    as bottom heads. Random sets (`controls.random_sets`) run only at the smallest gate (hard suppression, LFA App. D).
    Raises `InputError` for a k that leaves no controls.
    """
    edits: list[Edits] = []
    index: dict[tuple[tuple[Head, ...], float], int] = {}

    def cell(selection: str, group: Any, heads: Sequence[Head], gate: float, draw: int = -1) -> Cell:
        at = (tuple(heads), float(gate))
        if gate != 1 and at not in index:
            index[at] = len(edits)
            edits.append(scale_heads(heads, gate))
        return Cell(selection, group, draw, *at, index.get(at))

    cells, random = [], []
    act = {head: pds for head, pds in scores.items() if head not in sinks}
    for name, heads in selections.items():
        if sinks and len(heads) > len(act) // 2:
            raise InputError(
                f"{len(sinks)} of {len(scores)} heads are BOS sinks, and the other {len(act)} are too few to suppress "
                f"{len(heads)} and compare with {len(heads)} more; suppress at most {len(act) // 2}"
            )
        groups = {"selected": tuple(heads), "bottom": rank_heads(act, len(heads), "bottom")}
        cells += [cell(name, group, some, gate) for group, some in groups.items() for gate in gates]
        for i, some in enumerate(random_sets(scores, heads, len(heads), draws, seed)):
            random.append(cell(name, "random", some, min(gates), i))
    return Protocol(edits, cells, random)


def add_measure(
    seen: InstrumentData, protocol: Protocol, observed: Observed, n_layers: int, name_of: Callable[..., str] = str
) -> None:
    """Add the blocks of one measure: <measure>, <measure>-curves over the gates and <measure>-orders of the pairs.

    Parts are all prompts, and at the smallest gate also each relation with two or more independent cases (LFA App. F)
    and each layer in which SPS is read. Holm's families are the effects of one group, gate and kind of part.
    """
    name, hard = observed.measure, protocol.hard
    units = observed.cases.rename(columns={"id": "unit"})
    units["unit"] = units["unit"].map(name_of)
    measure = MEASURES[name]
    parts = _parts(observed)
    lost = {cell: _no_effect(name, "all", cell, n_layers) for cell in (*protocol.cells, *protocol.draws)}
    rows: list[tuple[dict[str, Any], np.ndarray, np.ndarray]] = []
    contrasts: list[Contrast] = []

    def put(edit: int | None, part: str, **labels: Any) -> int:
        readout, _, inside = parts[part]
        rows.append(({**labels, "part": part}, np.where(inside, observed.under(edit, readout), 0.0), inside))
        return len(rows) - 1

    base = {part: put(None, part, selection="unedited", group="", draw=-1, gate=1.0) for part in parts}
    at: dict[tuple[Cell, str], int] = {}
    for cell in protocol.cells:
        for part in parts if cell.gate == hard else ["all"]:
            readout, kind, _ = parts[part]
            edited = at[cell, part] = put(cell.edit, part, **cell.labels)
            labels = {**cell.labels, "part": part}
            contrasts += effect_contrasts(
                "edited", {edited: 1.0}, base[part], labels, missing=_no_effect(name, readout, cell, n_layers),
                family=f"{name}, {cell.group} at {cell.gate!r}, {kind}",
            )  # fmt: skip
    for cell in protocol.draws:
        edited = at[cell, "all"] = put(cell.edit, "all", **cell.labels)
        weights, labels = {edited: 1.0, base["all"]: -1.0}, {**cell.labels, "part": "all"}
        contrasts.append(Contrast(quantity="drawn", weights=weights, labels=labels, null=None, missing=lost[cell]))
    for cell in (cell for cell in protocol.cells if cell.gate == hard and cell.group == "selected"):
        mine = [at[c, "all"] for c in protocol.draws if c.selection == cell.selection and not lost[c]]
        share, none = dict.fromkeys(mine, 1 / max(1, len(mine))), "" if mine else NO_DRAW
        beyond = {at[cell, "all"]: 1.0, **{i: -w for i, w in share.items()}}
        described: dict[str, Any] = {"labels": {**cell.labels, "part": "all"}, "null": None}
        contrasts += [
            Contrast(quantity="random", weights={**share, base["all"]: -1.0}, missing=none, **described),
            Contrast(quantity="above", weights=beyond, missing=lost[cell] or none, **described),
        ]
    keys, totals, sizes = zip(*rows, strict=True)
    cells, total = pd.DataFrame(list(keys)), np.stack(totals)
    block = Observations(measure=measure, cells=cells, units=units, total=total, size=np.stack(sizes))
    seen.blocks[name], seen.contrasts[name] = block, contrasts
    gates = sorted({cell.gate for cell in protocol.cells})
    if len(gates) > 2:
        seen.blocks[f"{name}-curves"] = block
        seen.contrasts[f"{name}-curves"] = _curves(protocol, at, name, n_layers, gates)
    if {"target_first", "target_last"} <= set(observed.cases["order"]):
        _add_orders(seen, protocol, observed, measure, n_layers, name_of)


def _no_effect(measure: str, readout: str, cell: Cell, n_layers: int) -> str:
    """The reason if the heads cannot change the readout, else ""."""
    return inert_reason(measure, readout, cell.heads, n_layers)


def _parts(observed: Observed) -> dict[str, tuple[str, str, np.ndarray]]:
    """part -> (readout, kind of part, which units are in it)."""
    cases = observed.cases
    every = np.ones(len(cases), bool)
    parts = {"all": ("all", "all", every)}
    for name in sorted(set(cases["relation"]) - {""}):
        inside = (cases["relation"] == name).to_numpy()
        if read_clusters(cases["cluster"].to_numpy()[inside], int(inside.sum())).count > 1:
            parts[name] = ("all", "relation", inside)
    return parts | {name: (name, "layer", every) for name in observed.readouts[1:]}


def _curves(
    protocol: Protocol, at: Mapping[tuple[Cell, str], int], name: str, n_layers: int, gates: Sequence[float]
) -> list[Contrast]:
    """Least-squares slope of the measure over the gate, and the coefficient of (g − ḡ)², per group of heads."""
    x = np.array(gates) - np.mean(gates)
    line = np.linalg.pinv(np.stack([np.ones_like(x), x], 1))[1]
    bend = np.linalg.pinv(np.stack([np.ones_like(x), x, x * x], 1))[2]
    out = []
    for (selection, group), some in groupby(protocol.cells, lambda cell: (cell.selection, cell.group)):
        cells = list(some)
        labels, why = {"selection": selection, "group": group}, _no_effect(name, "all", cells[0], n_layers)
        for curve, weights in (("slope", line), ("curvature", bend)):
            of = {at[cell, "all"]: float(weights[gates.index(cell.gate)]) for cell in cells}
            family = f"{name}, {curve}, {group}"
            out.append(Contrast(quantity=curve, weights=of, labels=labels, family=family, missing=why))
    return out


def _add_orders(
    seen: InstrumentData, protocol: Protocol, observed: Observed, measure: Measure, n_layers: int,
    name_of: Callable[..., str],
) -> None:  # fmt: skip
    """LFA App. F: the effect with the target first, with the target last, and first − last; pairs are the units."""
    cases = observed.cases.reset_index(drop=True)
    sides = [cases[cases["order"] == f"target_{order}"].groupby("pair").groups for order in ("first", "last")]
    pairs = [pair for pair in dict.fromkeys(cases["pair"]) if all(pair in side for side in sides)]
    if len(pairs) < 2:
        raise InputError(f"{counted(len(pairs), 'pair')} with both orders; an asymmetry needs at least two")
    members = [list(cases.index[cases["pair"] == pair]) for pair in pairs]
    columns = ["pair", "cluster", "category", "relation"]
    units = cases.iloc[[rows[0] for rows in members]][columns].reset_index(drop=True)
    units.insert(0, "unit", [name_of(*cases["id"].iloc[rows]) if name_of is not str else pair
                             for pair, rows in zip(pairs, members, strict=True)])  # fmt: skip

    def both(edit: int | None) -> list[np.ndarray]:
        values = observed.under(edit)
        return [np.array([values[list(side[pair])].mean() for pair in pairs]) for side in sides]

    keys: list[dict[str, Any]] = [
        {"selection": "unedited", "group": "", "gate": 1.0, "order": order} for order in ("first", "last")
    ]
    totals, contrasts = both(None), []
    for cell in (cell for cell in protocol.cells if cell.gate == protocol.hard):
        labels = {"selection": cell.selection, "group": cell.group, "gate": cell.gate}
        i, why = len(keys), _no_effect(measure.name, "all", cell, n_layers)
        keys += [{**labels, "order": order} for order in ("first", "last")]
        totals += both(cell.edit)
        first, last = {i: 1.0, 0: -1.0}, {i + 1: 1.0, 1: -1.0}
        difference = {**first, **{at: -w for at, w in last.items()}}
        contrasts += [
            Contrast(quantity="first", weights=first, labels=labels, null=None, missing=why),
            Contrast(quantity="last", weights=last, labels=labels, null=None, missing=why),
            Contrast(quantity="asymmetry", weights=difference, labels=labels, missing=why,
                     family=f"{measure.name}, asymmetry, {cell.group}"),
        ]  # fmt: skip
    block = Observations(measure=measure, cells=pd.DataFrame(keys), units=units, total=np.stack(totals), size=1.0)
    seen.blocks[f"{measure.name}-orders"], seen.contrasts[f"{measure.name}-orders"] = block, contrasts


Part = tuple[pd.DataFrame, Reasons]


def tables(how: Suppress, seen: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """effects, controls, parts, curves, asymmetry, draws, ranking: each holds all measures."""
    protocol, ranking = seen.extra
    measures = [name for name in seen.blocks if "-" not in name]
    found: dict[str, list[Part]] = {}
    for name in measures:
        drawn = _draw_rows(protocol, name, estimates[name])
        found.setdefault("effects", []).append(_effects(seen, name, estimates[name], protocol, how.resamples))
        found.setdefault("controls", []).append(_controls(protocol, name, estimates[name], drawn))
        if f"{name}-curves" in estimates:
            found.setdefault("curves", []).append(_curve_rows(protocol, name, estimates))
        if f"{name}-orders" in estimates:
            frame, missing = estimates[f"{name}-orders"].wide(("selection", "group", "gate"))
            found.setdefault("asymmetry", []).append((_with_names(protocol, frame, name), missing))
        found.setdefault("draws", []).append(drawn)
    hard = f"gate {protocol.hard:g}"
    titles = {
        "effects": f"{seen.about['title']}; gated − unedited, 95 % over cases",
        "controls": f"{hard}: selected heads compared with heads of the smallest PDS and random sets",
        "parts": f"{hard}: effect by relation of the nouns, and on SPS by layer",
        "curves": "The measure as a function of the gate: slope and deviation from a line",
        "asymmetry": f"{hard}: effect on prompts with the target first and with the target last",
        "draws": f"{hard}: effect of each random set of as many heads",
    }
    made: dict[str, Table] = {}
    for name, some in found.items():
        frame, missing = _stacked(some)
        of = [column for column in COLUMNS[name] if column.name in frame]
        made[name] = Table(frame, tuple(of), missing, titles[name])
    whole = (made["effects"].frame["part"] == "all").to_numpy()
    made["parts"] = made["effects"].only(np.flatnonzero(~whole).tolist(), titles["parts"])
    made["effects"] = made["effects"].only(np.flatnonzero(whole).tolist(), titles["effects"])
    for name in LONG:
        made[name] = replace(made[name], by="delta", most=10, per=("measure",))
    made = {name: made[name] for name in titles if name in made and len(made[name].frame)}
    rows, missing = descending(ranking.frame, ranking.missing, ["pds"])
    return {**made, "ranking": replace(ranking, frame=rows, missing=missing, by="pds", most=10)}


def _stacked(parts: Sequence[Part]) -> Part:
    """The rows of several frames in one, with their reasons."""
    missing: Reasons = {}
    start = 0
    for frame, reasons in parts:
        missing |= {(row + start, name): why for (row, name), why in reasons.items()}
        start += len(frame)
    return pd.concat([frame for frame, _ in parts], ignore_index=True), missing


def _with_names(protocol: Protocol, frame: pd.DataFrame, measure: str) -> pd.DataFrame:
    """The frame with columns for the heads and the measure of every row."""
    known = {(c.selection, c.group, c.draw): c.names for c in (*protocol.cells, *protocol.draws)}
    draw = frame["draw"] if "draw" in frame else [-1] * len(frame)
    names = [known[row] for row in zip(frame["selection"], frame["group"], draw, strict=True)]
    frame = frame.copy()
    frame.insert(2, "k", [one["k"] for one in names])
    frame.insert(3, "heads", [one["heads"] for one in names])
    first = [sum(head in protocol.prefer_first for head in one["heads"].split("+")) for one in names]
    frame.insert(4, "prefer_first", first)
    frame.insert(5, "measure", measure)
    return frame


def _effects(seen: InstrumentData, name: str, found: Estimates, protocol: Protocol, resamples: int) -> Part:
    """One row per selection, group, gate and part, with Cohen's d."""
    block = seen.blocks[name]
    frame, missing = found.where(quantity=set(WHOLE)).wide(KEYS)
    sizes = [
        effect_sizes(block, list(c.weights), row, missing, resamples)
        for row, c in enumerate(c for c in found.contrasts if c.quantity == "delta")
    ]
    return _with_names(protocol, frame, name).drop(columns="draw").assign(**pd.DataFrame(sizes)), missing


def _draw_rows(protocol: Protocol, name: str, found: Estimates) -> Part:
    """One row per random set, with the effect of the selected heads."""
    frame, missing = found.where(quantity="drawn").wide(KEYS)
    frame = frame.drop(columns=["part", "n", "clusters"]).rename(columns={"drawn": "delta"})
    frame = _with_names(protocol, frame, name)
    missing = {(row, "delta"): why for (row, _), why in missing.items()}
    of = found.where(quantity="delta", group="selected", gate=protocol.hard, part="all").frame
    frame["selected"] = frame["selection"].map(of.set_index("selection")["value"])
    gone = {(row, "selected"): REASON for row, value in enumerate(frame["selected"]) if value != value}
    return frame, missing | gone


def _controls(protocol: Protocol, name: str, found: Estimates, drawn: Part) -> Part:
    """One row per selection at the smallest gate: the effect of the selected heads, and of all controls."""
    at: dict[str, Any] = {"gate": protocol.hard, "part": "all"}
    frame, missing = found.where(group="selected", quantity={"baseline", "delta", "random", "above"}, **at).wide(
        ("selection", "group", "gate"), describe=("low", "high")
    )
    frame = _with_names(protocol, frame, name).rename(columns={"delta": "selected"})
    frame["bottom"] = found.where(quantity="delta", group="bottom", **at).frame["value"].to_numpy()
    missing = {
        (row, {"delta": "selected"}.get(column, column)): why
        for (row, column), why in missing.items()
        if column in ("delta", "random", "above", "above_low", "above_high")
    }
    more: list[dict[str, float]] = []
    for row, one in frame.iterrows():
        values = drawn[0].loc[drawn[0]["selection"] == one["selection"], "delta"].dropna()
        random = {"random_sd": np.nan, "random_low": values.min(), "random_high": values.max()}
        random |= {"p_rank": np.nan, "p_rank_min": np.nan, "draws": len(values)}
        if len(values) and one["selected"] == one["selected"]:
            random |= ranks(one["selected"], values.tolist())
        if len(values) > 1:
            random["random_sd"] = float(values.to_numpy().std(ddof=1))
        reasons = {"random_sd": ONE_DRAW, "random_low": NO_DRAW, "random_high": NO_DRAW, "bottom": REASON}
        reasons |= dict.fromkeys(("p_rank", "p_rank_min"), REASON if len(values) else NO_DRAW)
        missing |= {(row, name): why for name, why in reasons.items() if np.isnan({**one, **random}[name])}
        more.append(random)
    names = [column.name for column in CONTROLS]
    return frame.drop(columns=["random_low", "random_high"]).assign(**pd.DataFrame(more))[names], missing


def _curve_rows(protocol: Protocol, name: str, estimates: Mapping[str, Estimates]) -> Part:
    """One row per selection and group: slope and curvature, and r², departure and intercept of the mean curve.

    r² = 1 − Σ(ȳ_g − line)² / Σ(ȳ_g − ȳ)²; departure is the largest |ȳ_g − line|. Read r² with the departure, because
    noise alone gives a flat curve a small r². A narrow interval of the curvature around 0 supports a line; a large p
    does not.
    """
    frame, missing = estimates[f"{name}-curves"].wide(("selection", "group"))
    more = []
    for row, one in frame.iterrows():
        of = estimates[name].where(quantity="delta", part="all", selection=one["selection"], group=one["group"]).frame
        gates, y = of["gate"].to_numpy(float), of["value"].to_numpy(float)
        residual = y - y.mean() - one["slope"] * (gates - gates.mean())
        total = float(np.square(y - y.mean()).sum())
        shape = {
            "intercept": y.mean() - one["slope"] * gates.mean(),
            "r2": 1 - float(np.square(residual).sum()) / total if total > SMALLEST[name] ** 2 else np.nan,
            "departure": np.abs(residual).max(),
        }
        why = missing.get((row, "slope"), FLAT)
        missing |= {(row, column): why for column, value in shape.items() if value != value}
        more.append(shape)
    return _with_names(protocol, frame, name).assign(**pd.DataFrame(more)), missing


MIXED = "units of the measure"
"""One table holds all measures: SPS in attention, coherence in nats of log-odds, loss in nats per token."""
WHICH = (
    key("selection", "selection", "top1, top3, … by PDS, or over: all heads over the threshold"),
    key("group", "group", "selected heads, as many with the smallest PDS (bottom), or random ones"),
    number("k", "heads gated", "heads", "number of heads gated at once", "d", False),
    key("heads", "heads", "the heads of the set", "layer and index"),
    number("prefer_first", "for the first noun", "heads",
           "heads of the set that attend more to the first noun than to the last: no recency heads", "d"),
    key("measure", "measure", "sps (attention), coherence (nats, log-odds) or loss (nats/token)"),
)  # fmt: skip
GATE = number("gate", "gate", "factor on z", "factor on the heads' outputs", "g")
CASES = counts("prompts or documents", "independent cases: the two orders of a prompt together, or documents")
EFFECTS = (
    *WHICH, GATE, key("part", "part", "all prompts, those of a relation, or SPS in the heads of a layer"),
    *quantity("edited", "gated", MIXED, "measure with the heads gated", tested=False, format=".4f"),
    *quantity("baseline", "unedited", MIXED, "measure of the unedited model", tested=False, format=".4f"),
    *quantity("delta", "Δ", MIXED, "gated − unedited", sd="independent cases", source="LFA §3.3"), *CASES,
    *EFFECT_SIZES,
)  # fmt: skip
CONTROLS = (
    WHICH[0], *WHICH[2:], GATE,
    *quantity("baseline", "unedited", MIXED, "measure of the unedited model", tested=False, format=".4f"),
    *quantity("selected", "Δ, selected heads", MIXED, "Δ of the selected heads", tested=False),
    *quantity("bottom", "Δ, smallest PDS", MIXED, "Δ of as many heads with the smallest PDS", tested=False),
    *quantity("random", "Δ, random heads", MIXED, "mean Δ of the random sets that can act", tested=False,
              source="LFA App. D"),
    *described("above", "selected − random", MIXED, "Δ of selected − mean Δ of random heads, for fixed sets",
               format="+.4f"),
    number("random_sd", "sd over random sets", f"{MIXED}, between random sets",
           "standard deviation of Δ over the random sets", ".4f", False),
    number("random_low", "smallest Δ, random", MIXED, "smallest Δ of a random set", "+.4f", False),
    number("random_high", "largest Δ, random", MIXED, "largest Δ of a random set", "+.4f", False),
    number("draws", "random sets", "random sets", "number of random sets that can affect the measure", "d"),
    number("p_rank", "p among random heads", "probability",
           "two-sided p from the rank of the selected heads among the random sets", "p"),
    number("p_rank_min", "smallest p among random heads", "probability",
           "smallest p_rank possible with this number of sets", "p", False),
)  # fmt: skip
PER_GATE = f"{MIXED} per unit of the gate"
CURVES = (
    *WHICH,
    *quantity("slope", "slope", PER_GATE, "least-squares slope; for a line, −slope is the effect of full suppression",
              sd="independent cases", source="LFA App. D"),
    *quantity("curvature", "curvature", f"{PER_GATE}, squared", "coefficient of (g − mean g)²", sd="independent cases"),
    number("intercept", "intercept", MIXED, "Δ of the line at gate 0", "+.4f", False),
    number("r2", "r²", "share", "share of the variance over gates that the line explains", ".3f"),
    number("departure", "deviation from line", MIXED, "largest distance of the mean curve from the line", ".4f"),
    *CASES,
)  # fmt: skip
ASYMMETRY = (
    *WHICH, GATE,
    *quantity("first", "target first", MIXED, "Δ on prompts with the target first", tested=False),
    *quantity("last", "target last", MIXED, "Δ on prompts with the target last", tested=False),
    *quantity("asymmetry", "first − last", MIXED, "Δ with target first − Δ with target last", sd="independent cases",
              source="LFA App. F"),
    *counts("pairs with both orders", "independent cases"),
)  # fmt: skip
DRAWS = (
    *WHICH, GATE, number("draw", "draw", "random sets", "number of the random set, from 0", "d"),
    *quantity("delta", "Δ", MIXED, "Δ of the random set", tested=False),
    *quantity("selected", "Δ, selected heads", MIXED, "Δ of the selected heads", tested=False),
)  # fmt: skip
COLUMNS = {"effects": EFFECTS, "controls": CONTROLS, "curves": CURVES, "asymmetry": ASYMMETRY,
           "draws": DRAWS}  # fmt: skip
LONG = ("parts", "draws")
"""Tables that print only their largest rows."""
