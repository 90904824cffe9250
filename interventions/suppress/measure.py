"""LFA's suppression protocol (§3.3, App. D, F): gated heads as cells, prompts and documents as units, four readings."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from streamscope.cli.errors import InputError
from streamscope.cli.terminal import counted
from streamscope.instruments.contract import InstrumentData, Progress, title_of
from streamscope.instruments.data import Documents, Opened, Prompts
from streamscope.instruments.observations import Contrast, Estimates, Observations, Reasons, effect_contrasts
from streamscope.instruments.prompts import load_suite
from streamscope.instruments.prompts.alignment import align
from streamscope.instruments.stats.estimators import rank_among, read_clusters
from streamscope.instruments.table import Table, counts, descending, described, key, number, quantity
from streamscope.interventions import controls
from streamscope.interventions.edits import scale_heads
from streamscope.interventions.observe import MEASURES, Observed, observe_loss, observe_prompts
from streamscope.interventions.suppress import Suppress
from streamscope.models.head_spec import Head
from streamscope.models.hooks import Edits
from streamscope.probes.pds import NOUNS, Pds
from streamscope.probes.roles import head_scores, sinks_sentence

KEYS = ("measure", "selection", "group", "draw", "gate", "part")
ORDERS = ("first", "last")
OVER = "over"
"""The selection of all heads over the threshold; the others are top1, top3, …"""
NO_DRAW, ONE_DRAW = "no draw can act", "fewer than two draws that can act"
FLAT = "the mean response is the same at every gate"


class Cell(NamedTuple):
    """Heads under a gate; `edit` is the index of their edit (None: the baseline), `draw` −1 unless they are random."""

    selection: str
    group: Literal["selected", "bottom", "random"]
    draw: int
    gate: float
    heads: tuple[Head, ...]
    edit: int | None

    @property
    def labels(self) -> dict[str, Any]:
        """Keys of the cell, the same in every model although heads are each model's own."""
        return dict(zip(KEYS[1:5], self[:4], strict=True))


def observe(options: Suppress, model: Any, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: every selection with its controls under every gate, by part. Units: prompts, pairs of them, or
    documents."""
    prompts = to_rank = data[Prompts]
    if options.rank_on is not None:
        suite = load_suite(options.rank_on)
        to_rank = replace(prompts, aligned=align(suite, prompts.tokenizer, model.config.n_ctx), suite=suite)
    ranked = Pds().measure(model, to_rank)
    ranking, names = ranked.table("heads"), ranked.about["sinks"]
    scores = head_scores(ranking.frame, "pds")
    sinks = {head for head in scores if head.label in names}
    numbers = dict.fromkeys(options.k) if "topk" in options.select else ()
    selections = {f"top{k}": rank_heads(scores, k) for k in numbers}
    if "threshold" in options.select:
        selections[OVER] = heads_over(scores, options.threshold)
    edits, cells = design(scores, selections, options.gates, draws=options.draws, seed=options.seed, sinks=sinks)
    measures = [m for m in dict.fromkeys(options.measures) if m != "loss"]
    observed = observe_prompts(model, measures, edits, prompts.aligned, prompts.tokenizer, progress=progress)
    ranked_on = options.rank_on or "the same prompts"
    best = ", ".join(f"{r.head} {r.pds:.3f} ({r.prefers})" for r in ranking.frame.nlargest(5, "pds").itertuples())
    scored = prompts.aligned.scoring() if "coherence" in measures else ""
    scored += observed["sps"].left_out if "sps" in observed else ""
    title = f"{title_of(model)} on {prompts.title()}{scored}; heads ranked on {ranked_on}: {best}"
    title += sinks_sentence(names, len(scores)) + (", which are left out of the bottom heads" if names else "")
    measurements = InstrumentData(about={"title": title, "ranked_on": ranked_on}, extra=(cells, ranking))
    for values in observed.values():
        add_measure(measurements, cells, values, model.config.n_layers, prompts.unit)
    if "loss" in options.measures:
        losses = observe_loss(model, edits, data[Documents], progress=progress)
        add_measure(measurements, cells, losses, model.config.n_layers)
    return measurements


def rank_heads(scores: Mapping[Head, float], k: int, end: Literal["top", "bottom"] = "top") -> tuple[Head, ...]:
    """The k heads with the largest or smallest PDS, by layer and index; ties go to the earlier head. Raises
    `InputError` if fewer than k other heads remain for the controls."""
    if not 1 <= k <= len(scores) // 2:
        raise InputError(
            f"k={k} of {len(scores)} heads leave fewer than {k} others to compare with; give 1 to {len(scores) // 2}"
        )
    sign = -1.0 if end == "top" else 1.0
    return tuple(sorted(sorted(scores, key=lambda head: (sign * scores[head], head))[:k]))


def heads_over(scores: Mapping[Head, float], threshold: float | Literal["own"]) -> tuple[Head, ...]:
    """The heads whose PDS exceeds the threshold (LFA Table 5: 0.075); "own" is μ+σ over the heads, σ with n−1. Raises
    `InputError` for no head, and for more than half of them, which leave too few for the controls."""
    values = np.array(list(scores.values()))
    limit = float(values.mean() + values.std(ddof=1)) if threshold == "own" else float(threshold)
    chosen = tuple(sorted(head for head, pds in scores.items() if pds > limit))
    best, over, topk = max(scores, key=scores.__getitem__), f"PDS over {limit:.4f}", "or --select topk"
    if not chosen:
        raise InputError(f"no head has {over}: {best.label} has {scores[best]:.4f}; lower --threshold, {topk}")
    if len(chosen) > len(scores) // 2:
        share = f"{len(chosen)} of {len(scores)} heads"
        raise InputError(f"{share} have {over} and leave too few for the controls; raise --threshold, {topk}")
    return chosen


def design(
    scores: Mapping[Head, float], selections: Mapping[str, Sequence[Head]], gates: Sequence[float], *, draws: int = 39,
    seed: int = 0, sinks: Collection[Head] = (),
) -> tuple[list[Edits], list[Cell]]:  # fmt: skip
    """The edits of the protocol, without gate 1, which is the baseline; and the selected and bottom heads under every
    gate, then random sets of as many heads under the smallest gate (hard suppression, LFA App. D).

    Controls of k selected heads: the k with the smallest PDS, and `draws` random sets (`controls.random_sets`). `sinks`
    are heads that attend almost only to BOS. Their PDS is near 0 whatever the text says, so they are not used as bottom
    heads. Raises `InputError` for a k that leaves no controls.
    """
    act = {head: pds for head, pds in scores.items() if head not in sinks}
    sets: list[tuple[str, Any, int, float, tuple[Head, ...]]] = []
    random = []
    for name, heads in selections.items():
        if sinks and len(heads) > len(act) // 2:
            few = f"{len(sinks)} of {len(scores)} heads are BOS sinks, and the other {len(act)} are too few to suppress"
            raise InputError(f"{few} {len(heads)} and compare with as many; suppress at most {len(act) // 2}")
        groups = {"selected": tuple(heads), "bottom": rank_heads(act, len(heads), "bottom")}
        sets += [(name, group, -1, float(gate), members) for group, members in groups.items() for gate in gates]
        drawn = controls.random_sets(scores, heads, len(heads), draws, seed)
        random += [(name, "random", i, float(min(gates)), members) for i, members in enumerate(drawn)]
    gated = dict.fromkeys((heads, gate) for *_, gate, heads in (*sets, *random) if gate != 1)
    index = {pair: i for i, pair in enumerate(gated)}
    cells = [Cell(*parts, index.get((parts[4], parts[3]))) for parts in (*sets, *random)]
    return [scale_heads(heads, gate) for heads, gate in gated], cells


def add_measure(
    data: InstrumentData, cells: Sequence[Cell], observed: Observed, n_layers: int, name_of: Callable[..., str] = str
) -> None:
    """Add the blocks of one measure: <measure>, <measure>-curves over the gates and <measure>-orders of the pairs.
    Parts are all prompts, and at the smallest gate also each relation with two or more independent cases (LFA App. F)
    and each layer in which SPS is read. Holm's families are the effects of one group, gate and kind of part."""
    name, cases, gates = observed.measure, observed.cases.reset_index(drop=True), sorted({cell.gate for cell in cells})
    hard_cells = [cell for cell in cells if cell.gate == gates[0] and cell.group != "random"]
    units = cases.rename(columns={"id": "unit"}).assign(unit=cases["id"].map(name_of))
    every = np.ones(len(cases), bool)
    parts = {"all": ("all", "all", every)}  # readout, kind of part, units in it
    for relation in sorted(set(cases["relation"]) - {""}):
        inside = (cases["relation"] == relation).to_numpy()
        if read_clusters(cases["cluster"].to_numpy()[inside], int(inside.sum())).count > 1:
            parts[relation] = ("all", "relation", inside)
    parts |= {layer: (layer, "layer", every) for layer in observed.readouts[1:]}

    def unmoved(cell: Cell, readout: str = "all") -> str:
        return controls.inert_reason(name, readout, cell.heads, n_layers)

    unedited = {"selection": "unedited", "group": "", "draw": -1, "gate": 1.0}
    rows = [
        (cell, part) for cell in (None, *cells) for part in (parts if cell is None or cell in hard_cells else ["all"])
    ]
    block_rows = {row: i for i, row in enumerate(rows)}
    contrasts = list[Contrast]()
    for (cell, part), i in block_rows.items():
        if cell is None:
            continue
        base, reason, labels = block_rows[None, part], unmoved(cell, parts[part][0]), {**cell.labels, "part": part}
        if cell.group == "random":
            weights = {i: 1.0, base: -1.0}
            contrasts.append(Contrast(quantity="drawn", weights=weights, labels=labels, null=None, missing=reason))
            continue
        family = f"{name}, {cell.group} at {cell.gate!r}, {parts[part][1]}"
        contrasts += effect_contrasts("edited", {i: 1.0}, base, labels, missing=reason, family=family)
        if part == "all" and cell in hard_cells and cell.group == "selected":
            random_cells = [c for c in cells if c.group == "random" and c.selection == cell.selection]
            moving_rows = [block_rows[c, "all"] for c in random_cells if not unmoved(c)]
            share, none = dict.fromkeys(moving_rows, 1 / max(1, len(moving_rows))), "" if moving_rows else NO_DRAW
            beyond = {i: 1.0, **{j: -w for j, w in share.items()}}
            plain: dict[str, Any] = {"labels": labels, "null": None}
            contrasts += [
                Contrast(quantity="random", weights={**share, base: -1.0}, missing=none, **plain),
                Contrast(quantity="above", weights=beyond, missing=reason or none, **plain),
            ]
    values = [observed.under(cell and cell.edit, parts[part][0]) for cell, part in rows]
    inside = np.stack([parts[part][2] for _, part in rows])
    block = data.blocks[name] = Observations(
        measure=MEASURES[name], units=units, total=np.where(inside, values * np.asarray(observed.size), 0.0),
        size=inside * observed.size,
        cells=pd.DataFrame([{**(cell.labels if cell else unedited), "part": part} for cell, part in rows]),
    )  # fmt: skip
    data.contrasts[name] = contrasts
    if len(gates) > 2:
        powers = np.vander(np.array(gates) - np.mean(gates), 3, increasing=True)
        fits = {"slope": np.linalg.pinv(powers[:, :2])[1], "curvature": np.linalg.pinv(powers)[2]}
        data.blocks[f"{name}-curves"] = block
        data.contrasts[f"{name}-curves"] = [
            Contrast(
                quantity=curve, labels={"selection": cell.selection, "group": cell.group}, missing=unmoved(cell),
                weights={block_rows[c, "all"]: fit[gates.index(c.gate)] for c in cells if c[:3] == cell[:3]},
                family=f"{name}, {curve}, {cell.group}",
            )
            for cell in hard_cells for curve, fit in fits.items()
        ]  # fmt: skip
    if not {"target_first", "target_last"} <= set(cases["order"]):
        return
    sides = [set(cases.loc[cases["order"] == f"target_{order}", "pair"]) for order in ORDERS]
    pairs = [pair for pair in dict.fromkeys(cases["pair"]) if all(pair in side for side in sides)]
    if len(pairs) < 2:
        raise InputError(f"{counted(len(pairs), 'pair')} with both orders; an asymmetry needs at least two")
    of_pair = cases.groupby("pair")
    units = of_pair[["cluster", "category", "relation"]].first().loc[pairs].reset_index()
    ids = of_pair["id"].agg(list)
    units.insert(0, "unit", [pair if name_of is str else name_of(*ids[pair]) for pair in pairs])

    def by_order(edit: int | None) -> list[np.ndarray]:
        mean = pd.Series(observed.under(edit)).groupby([cases["order"], cases["pair"]]).mean()
        return [mean[f"target_{order}"][pairs].to_numpy() for order in ORDERS]

    totals, keys, contrasts = by_order(None), [{"selection": "unedited", "group": "", "gate": 1.0}], []
    for cell in hard_cells:
        keys.append({"selection": cell.selection, "group": cell.group, "gate": cell.gate})
        i, plain = len(totals), {"labels": keys[-1], "missing": unmoved(cell)}
        totals += by_order(cell.edit)
        asymmetry, family = {i: 1.0, 0: -1.0, i + 1: -1.0, 1: 1.0}, f"{name}, asymmetry, {cell.group}"
        contrasts += [
            Contrast(quantity="first", weights={i: 1.0, 0: -1.0}, null=None, **plain),
            Contrast(quantity="last", weights={i + 1: 1.0, 1: -1.0}, null=None, **plain),
            Contrast(quantity="asymmetry", weights=asymmetry, family=family, **plain),
        ]
    data.blocks[f"{name}-orders"] = Observations(
        measure=MEASURES[name], cells=pd.DataFrame([{**key, "order": order} for key in keys for order in ORDERS]),
        units=units, total=np.stack(totals), size=1.0,
    )  # fmt: skip
    data.contrasts[f"{name}-orders"] = contrasts


def tables(options: Suppress, data: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """effects, controls, parts, curves, asymmetry, draws, ranking: each holds all measures."""
    (cells, ranking), hard = data.extra, f"gate {min(options.gates):g}"
    measures = [name for name in data.blocks if "-" not in name]
    all_estimates, curves, orders = (
        stacked({name: estimates[f"{name}{kind}"] for name in measures if f"{name}{kind}" in estimates})
        for kind in ("", "-curves", "-orders")
    )
    at_hard: dict[str, Any] = {"gate": min(options.gates), "part": "all"}

    effects, lost_effects = all_estimates.where(quantity={"edited", "baseline", "delta"}).wide(KEYS)
    deltas = [c for c in all_estimates.contrasts if c.quantity == "delta"]
    sizes = [
        controls.sizes_of_effect(data.blocks[c.labels["measure"]], [*c.weights], row, lost_effects, options.resamples)
        for row, c in enumerate(deltas)
    ]
    effects = effects.assign(**pd.DataFrame(sizes))

    draws, no_draws = all_estimates.where(quantity="drawn").wide(KEYS)
    selected, keys = all_estimates.where(quantity="delta", group="selected", **at_hard).frame, ["measure", "selection"]
    of_selected = selected[[*keys, "value"]].rename(columns={"value": "selected"})
    draws = draws.rename(columns={"drawn": "delta"}).merge(of_selected, how="left", on=keys)
    no_draws = {(row, "delta"): reason for (row, _), reason in no_draws.items()}
    no_draws |= {(int(row), "selected"): controls.REASON for row in np.flatnonzero(draws["selected"].isna())}

    frames = {
        "effects": (effects, lost_effects), "controls": control_rows(all_estimates, draws, at_hard),
        "curves": curve_rows(all_estimates, curves),
        "asymmetry": orders.wide(("measure", "selection", "group", "gate")),
        "draws": (draws, no_draws),
    }  # fmt: skip
    titles = {
        "effects": f"{data.about['title']}; gated − unedited, 95 % over cases",
        "controls": f"{hard}: selected heads compared with heads of the smallest PDS and random sets",
        "parts": f"{hard}: effect by relation of the nouns, and on SPS by layer",
        "curves": "The measure as a function of the gate: slope and deviation from a line",
        "asymmetry": f"{hard}: effect on prompts with the target first and with the target last",
        "draws": f"{hard}: effect of each random set of as many heads",
    }
    heads = {c[:3]: [head.label for head in c.heads] for c in cells}
    prefer_first = {*ranking.frame.loc[ranking.frame["prefers"] == NOUNS[0], "head"]}
    out: dict[str, Table] = {}
    for name, (frame, missing) in frames.items():
        if len(frame):
            draw = frame["draw"] if "draw" in frame else [-1] * len(frame)
            names = [heads[row] for row in zip(frame["selection"], frame["group"], draw, strict=True)]
            first = [len(prefer_first & set(members)) for members in names]
            frame = frame.assign(k=list(map(len, names)), heads=list(map("+".join, names)), prefer_first=first)
            shown = [column.name for column in COLUMNS[name]]
            out[name] = Table(frame[shown], COLUMNS[name], missing, titles[name])
    of_all_prompts = (out["effects"].frame["part"] == "all").to_numpy()
    out["parts"] = out["effects"].only(np.flatnonzero(~of_all_prompts).tolist(), titles["parts"])
    out["effects"] = out["effects"].only(np.flatnonzero(of_all_prompts).tolist(), titles["effects"])
    for name in ("parts", "draws"):
        out[name] = replace(out[name], by="delta", most=10, per=("measure",))
    rows, missing = descending(ranking.frame, ranking.missing, ["pds"])
    return {
        **{name: out[name] for name in titles if name in out and len(out[name].frame)},
        "ranking": replace(ranking, frame=rows, missing=missing, by="pds", most=10),
    }


def stacked(parts: Mapping[str, Estimates]) -> Estimates:
    """The estimates of several measures in one, each with the label `measure`."""
    frames = [part.frame.assign(measure=name) for name, part in parts.items()]
    contrasts = [replace(c, labels={"measure": m, **c.labels}) for m, part in parts.items() for c in part.contrasts]
    starts = np.cumsum([0, *map(len, frames)])
    reasons = {
        (int(start) + row, column): reason
        for start, part in zip(starts, parts.values(), strict=False) for (row, column), reason in part.reasons.items()
    }  # fmt: skip
    return Estimates(pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(), reasons, tuple(contrasts))


def control_rows(estimates: Estimates, draws: pd.DataFrame, at_hard: Mapping[str, Any]) -> tuple[pd.DataFrame, Reasons]:
    """One row per selection at the smallest gate: the effect of the selected heads, and of all controls."""
    selection = estimates.where(group="selected", quantity={"baseline", "delta", "random", "above"}, **at_hard)
    frame, lost = selection.wide(("measure", "selection", "group", "gate"), describe=("low", "high"))
    frame = frame.rename(columns={"delta": "selected"})
    frame["bottom"] = estimates.where(quantity="delta", group="bottom", **at_hard).frame["value"].to_numpy()
    missing = {
        (row, {"delta": "selected"}.get(column, column)): reason for (row, column), reason in lost.items()
        if column in ("delta", "random", "above", "above_low", "above_high")
    }  # fmt: skip
    more: list[dict[str, float]] = []
    for row, entry in frame.iterrows():
        is_draw = (draws["measure"] == entry["measure"]) & (draws["selection"] == entry["selection"])
        values = draws.loc[is_draw, "delta"].dropna()
        random = {"random_sd": values.std(ddof=1), "random_low": values.min(), "random_high": values.max()}
        random |= {"p_rank": np.nan, "p_rank_min": np.nan, "draws": len(values)}
        if len(values) and entry["selected"] == entry["selected"]:
            random["p_rank"], random["p_rank_min"] = rank_among(entry["selected"], values)
        reasons = {"random_sd": ONE_DRAW, "random_low": NO_DRAW, "random_high": NO_DRAW, "bottom": controls.REASON}
        reasons |= dict.fromkeys(("p_rank", "p_rank_min"), controls.REASON if len(values) else NO_DRAW)
        missing |= {(int(row), name): reason for name, reason in reasons.items() if np.isnan({**entry, **random}[name])}
        more.append(random)
    return frame.drop(columns=["random_low", "random_high"]).assign(**pd.DataFrame(more)), missing


def curve_rows(estimates: Estimates, curves: Estimates) -> tuple[pd.DataFrame, Reasons]:
    """One row per selection and group: slope and curvature, and r², departure and intercept of the mean curve. r² = 1 −
    Σ(ȳ_g − line)² / Σ(ȳ_g − ȳ)²; departure is the largest |ȳ_g − line|. Read r² with the departure, because noise alone
    gives a flat curve a small r². A narrow interval of the curvature around 0 supports a line; a large p does not."""
    keys = ["measure", "selection", "group"]
    frame, missing = curves.wide(keys)
    if not len(frame):
        return frame, missing
    mean = estimates.where(quantity="delta", part="all").frame.set_index([*keys, "gate"])["value"].unstack("gate")
    y, gates = mean.loc[pd.MultiIndex.from_frame(frame[keys])].to_numpy(), mean.columns.to_numpy(float)
    slope, middle = frame["slope"].to_numpy(), y.mean(1)
    residual = y - middle[:, None] - slope[:, None] * (gates - gates.mean())
    total, rounding = (
        np.square(y - middle[:, None]).sum(1),
        np.array([MEASURES[name].resolution for name in frame["measure"]]) ** 2,
    )
    r2 = np.where(total > rounding, 1 - np.square(residual).sum(1) / np.maximum(total, rounding), np.nan)
    shape = {"intercept": middle - slope * gates.mean(), "r2": r2, "departure": np.abs(residual).max(1)}
    missing |= {
        (int(row), name): missing.get((int(row), "slope"), FLAT)
        for name, values in shape.items() for row in np.flatnonzero(np.isnan(values))
    }  # fmt: skip
    return frame.assign(**shape), missing


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
    number("edited", "gated", MIXED, "measure with the heads gated", ".4f"),
    number("baseline", "unedited", MIXED, "measure of the unedited model", ".4f"),
    *quantity("delta", "Δ", MIXED, "gated − unedited", sd="cases", source="LFA §3.3"), *CASES,
    *controls.EFFECT_SIZES,
)  # fmt: skip
CONTROLS = (
    WHICH[0], *WHICH[2:], GATE,
    number("baseline", "unedited", MIXED, "measure of the unedited model", ".4f"),
    number("selected", "Δ, selected heads", MIXED, "Δ of the selected heads", "+.4f"),
    number("bottom", "Δ, smallest PDS", MIXED, "Δ of as many heads with the smallest PDS", "+.4f"),
    number("random", "Δ, random heads", MIXED, "mean Δ of the random sets that can act", "+.4f", source="LFA App. D"),
    *described("above", "selected − random", MIXED, "Δ of selected − mean Δ of random heads, for fixed sets",
               format="+.4f"),
    number("random_sd", "sd over random sets", f"{MIXED}, between random sets",
           "standard deviation of Δ over the random sets", ".4f", False),
    number("random_low", "smallest Δ, random", MIXED, "smallest Δ of a random set", "+.4f", False),
    number("random_high", "largest Δ, random", MIXED, "largest Δ of a random set", "+.4f", False),
    number("draws", "random sets", "random sets", "number of random sets that can affect the measure", "d"),
    number("p_rank", "p among random heads", "probability",
           "two-sided p from the rank of the selected heads among the random sets", "p"),
    controls.RANK_COLUMNS[-1],
)  # fmt: skip
PER_GATE = f"{MIXED} per unit of the gate"
CURVES = (
    *WHICH,
    *quantity("slope", "slope", PER_GATE, "least-squares slope; for a line, −slope is the effect of full suppression",
              sd="cases", source="LFA App. D"),
    *quantity("curvature", "curvature", f"{PER_GATE}, squared", "coefficient of (g − mean g)²", sd="cases"),
    number("intercept", "intercept", MIXED, "Δ of the line at gate 0", "+.4f", False),
    number("r2", "r²", "share", "share of the variance over gates that the line explains", ".3f"),
    number("departure", "deviation from line", MIXED, "largest distance of the mean curve from the line", ".4f"),
    *CASES,
)  # fmt: skip
ASYMMETRY = (
    *WHICH, GATE,
    number("first", "target first", MIXED, "Δ on prompts with the target first", "+.4f"),
    number("last", "target last", MIXED, "Δ on prompts with the target last", "+.4f"),
    *quantity("asymmetry", "first − last", MIXED, "Δ with target first − Δ with target last", sd="cases",
              source="LFA App. F"),
    *counts("pairs with both orders", "independent cases"),
)  # fmt: skip
DRAWS = (
    *WHICH, GATE, number("draw", "draw", "random sets", "number of the random set, from 0", "d"),
    number("delta", "Δ", MIXED, "Δ of the random set", "+.4f"),
    number("selected", "Δ, selected heads", MIXED, "Δ of the selected heads", "+.4f"),
)  # fmt: skip
COLUMNS = {"effects": EFFECTS, "controls": CONTROLS, "curves": CURVES, "asymmetry": ASYMMETRY,
           "draws": DRAWS}  # fmt: skip
