"""Circuits as an instrument: scores of edges × pairs, and the metric of circuits × pairs that did not choose them."""

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from itertools import combinations, product
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from streamscope.cli.errors import InputError
from streamscope.cli.terminal import counted
from streamscope.instruments import observations
from streamscope.instruments.contract import InstrumentData, Progress, say, title_of
from streamscope.instruments.data import Opened, Prompts
from streamscope.instruments.observations import ONE_UNIT, SAME, Contrast, Estimates, Measure, Observations, Reasons
from streamscope.instruments.open_data import open_data
from streamscope.instruments.progress import LONG_SECONDS, duration, peak_gigabytes
from streamscope.instruments.result import Result
from streamscope.instruments.stats.estimators import BOOTSTRAP_CLUSTERS, read_clusters
from streamscope.instruments.stats.held_out import sides_of, unit_of
from streamscope.instruments.table import Table, counts, described, key, note, number, quantity
from streamscope.interventions.circuits import Circuits, Metric, worth
from streamscope.interventions.circuits.graph import Graph, check_model, graph_of, write_vector
from streamscope.interventions.circuits.metrics import Batch, batches_of
from streamscope.interventions.circuits.scores import MEMORY, score_edges
from streamscope.interventions.circuits.worth import SHARES, Ranking
from streamscope.interventions.patch.pairs import Pairs, PatchPair, choose_pairs, make_pairs, units_of
from streamscope.models.config import DualStream, Hyper

RESOLUTION = 1e-5
"""Metrics closer than this count as equal (float32 rounding), in nats."""
FEWEST = 4
"""Independent pairs that a contrast must give to be chosen: two for each half."""
RANKINGS: tuple[Ranking, ...] = ("score", "size")
FLAT = "clean − corrupted is not significantly different from 0: give more pairs"


def check(options: Circuits, model: Any) -> None:
    check_model(model)


def observe(options: Circuits, model: Any, data: Opened, progress: Progress) -> InstrumentData:
    """Blocks: the score of every edge on every pair; the metric of runs and circuits on the judging pairs."""
    graph, (pair_set, words) = graph_of(model, options.latents), task_pairs(options, model)
    pairs, units = pair_set.pairs, units_of(pair_set.pairs)
    side = sides_of(units, *GROUPS)
    choosing, judging = (np.flatnonzero(side == half) for half in (0, 1))
    if hasattr(progress, "say"):
        runs = worth.circuit_values(model, graph, batches_for(model, graph, pairs, options.metric), options.metric, [])
        say(progress, outlook(_observed(options, runs, units), side == 1))
        if (seconds := seconds_of(options, model, pair_set)) > LONG_SECONDS:
            say(progress, f"about {duration(seconds)} for the circuit; {peak_gigabytes():.1f} GB of memory so far")
    scored = choosing if options.method == "acdc" else np.arange(len(pairs))
    scores = np.full((len(graph.edges), len(pairs)), np.nan, np.float32)
    scores[:, scored] = score_edges(
        model, graph, [pairs[i] for i in scored], options.method, options.metric, steps=options.steps,
        threshold=options.threshold, seed=options.seed, points=options.ig_points, progress=progress,
    )  # fmt: skip
    chosen, n, rng = scores[:, choosing].mean(1), len(graph.edges), np.random.default_rng(options.seed)
    orders: list[tuple[str, int, np.ndarray, Ranking]] = [(ranking, 0, chosen, ranking) for ranking in RANKINGS]
    orders += [("random", draw, rng.random(n), "score") for draw in range(options.draws)]
    cells, masks = list[dict[str, Any]](), list[np.ndarray]()
    for (ranking, draw, by_edge, by), k in product(orders, SHARES):
        cells.append({"run": "circuit", "ranking": ranking, "draw": draw, "share": k})
        masks.append(worth.top(by_edge, worth.size_of(k, n), by))
    batch_list = batches_for(model, graph, [pairs[i] for i in judging], options.metric)
    circuits = worth.circuit_values(model, graph, batch_list, options.metric, masks, progress)
    values = _observed(options, circuits, units.iloc[judging].reset_index(drop=True), cells)
    about = {
        "title": f"{title_of(model)}, {words}", "edges": len(graph.edges), "judging": len(judging),
        "mib": {"n_layers": model.config.n_layers, "n_heads": model.config.n_heads, "d_model": model.config.d_model,
                "parallel_attn_mlp": getattr(model.config.residual, "order", "") == "parallel"},
    }  # fmt: skip
    extra = (chosen, scores[:, choosing], units["cluster"].iloc[choosing])
    measurements = InstrumentData(about=about, extra=extra)
    measure = Measure(name="edge score", unit="nats", resolution=RESOLUTION)
    measurements.add(measure, edge_cells(model, graph), units, scores, block="scores", quantity="score")
    measurements.blocks["circuits"], measurements.contrasts["circuits"] = values, _contrasts(values)
    return measurements


EFFECT = Contrast(quantity="effect", weights={0: 1.0, 1: -1.0}, labels={"ranking": "whole model", "share": 1.0})


def is_flat(effect: Any) -> bool:
    """Whether f has no value, because its denominator may be 0: the interval of clean − corrupted touches 0, or without
    one the value is no more than rounding."""
    if np.isnan(effect["low"]):
        return bool(abs(effect["value"]) <= RESOLUTION)
    return bool(effect["low"] <= 0 <= effect["high"])


def outlook(runs: Observations, judging: np.ndarray) -> str:
    """What f can be on the judging pairs, from the clean and the corrupted run of all pairs, and how many it needs."""
    effect, every = (observations.estimate(block, [EFFECT]).frame.iloc[0] for block in (runs.at(judging), runs))
    value, pairs = f"{effect['value']:+.2f}", counted(int(effect["clusters"]), "independent pair")
    value += "" if np.isnan(effect["low"]) else f" ({effect['low']:.2f} … {effect['high']:.2f})"
    line = f"clean − corrupted {value} nats on {pairs} to judge the circuit"
    if not is_flat(effect) and effect["clusters"] >= BOOTSTRAP_CLUSTERS:
        return line
    errors = stats.t.ppf(0.975, np.arange(1, 1000)) * every["sd"] / np.sqrt(np.arange(2, 1001))
    enough = np.flatnonzero(errors < abs(every["value"]))
    needs = 2 * max(BOOTSTRAP_CLUSTERS, int(enough[0]) + 2) if len(enough) else 0
    more = f"give more pairs, about {needs} independent ones" if needs else "give other pairs, or many more"
    return f"{line}: f, CPR and CMD will have no {'value' if is_flat(effect) else 'interval'}; {more}"


GROUPS = ("cluster", "pairs of prompts")
"""What is divided into halves."""
TRIED = 4
"""Pairs by whose time the cost of all is estimated, at most a quarter of them."""


def seconds_of(options: Circuits, model: Any, pair_set: Pairs) -> float:
    """What a circuit will cost, by scores and one circuit of `TRIED` pairs."""
    tried = max(1, min(TRIED, len(pair_set.pairs) // 4))
    graph, sample = graph_of(model, options.latents), pair_set.pairs[:tried]
    steps, times = min(options.steps, 2), [time.perf_counter()]
    score_edges(model, graph, sample, options.method, options.metric, steps=steps, threshold=options.threshold,
                seed=options.seed, points=options.ig_points)  # fmt: skip
    times.append(time.perf_counter())
    batch_list = batches_for(model, graph, sample, options.metric)
    worth.circuit_values(model, graph, batch_list, options.metric, [np.arange(len(graph.edges)) % 2 == 0])
    scores, circuit = np.diff([*times, time.perf_counter()])
    circuits = len(worth.SHARES) * (len(RANKINGS) + options.draws)
    judging = sides_of(units_of(pair_set.pairs), *GROUPS).sum()
    scores *= options.steps / steps if "ig" in options.method else 1
    return float((scores * len(pair_set.pairs) + circuit / 3 * circuits * judging) / len(sample))


def task_pairs(options: Circuits, model: Any) -> tuple[Pairs, str]:
    """The task's pairs in the model's tokens, and a description. Raises `InputError` where no contrast gives pairs."""
    opened = open_data(Prompts(suite=options.task), model)
    tried: list[Any] = [options.contrast]
    if options.contrast == "auto":
        corrupted = any(p.corrupt is not None for p in opened.aligned.prompts)
        tried = ["corrupt"] if corrupted else ["noun", "order"]
    for contrast in tried:
        with nullcontext() if contrast == tried[-1] else suppress(InputError):
            candidates = make_pairs(opened.aligned, opened.tokenizer, contrast)
            if len({unit_of(p.cluster) for p in candidates.pairs}) >= FEWEST:
                break
    if options.metric == "loss" and (unscored := dict(opened.aligned.unscored)):
        lost = tuple((pair.id, unscored[pair.id]) for pair in candidates.pairs if pair.id in unscored)
        scorable_pairs = tuple(pair for pair in candidates.pairs if pair.id not in unscored)
        candidates = Pairs(scorable_pairs, (*candidates.filtered, *lost)) if scorable_pairs else candidates
    pair_set = choose_pairs(candidates, options.pairs)
    words = f"{counted(len(pair_set.pairs), 'pair')} of {opened.suite.name} by {contrast}{pair_set.left_out}"
    return pair_set, f"{words}, {options.method}, metric {options.metric}"


def edge_cells(model: Any, graph: Graph) -> pd.DataFrame:
    """A row per edge: name, sender and reader, layers, the part that reads, the stream that the sender writes to."""
    residual, rows, streams = model.config.residual, [], ["residual"]
    if isinstance(residual, Hyper | DualStream):
        streams = ["all streams"] if isinstance(residual, Hyper) else list(residual.streams)
    for (i, j), name in zip(graph.edges, graph.names, strict=True):
        u, v = graph.senders[i], graph.readers[j]
        stream = streams[int(write_vector(residual, u.part).argmax())]
        rows.append({"edge": name, "sender": u.name, "reader": v.name, "sender_layer": u.layer, "reader_layer": v.layer,
                     "part": v.part, "stream": stream})  # fmt: skip
    return pd.DataFrame(rows)


def _observed(
    options: Circuits, values: np.ndarray, units: pd.DataFrame, circuits: Sequence[Mapping[str, Any]] = ()
) -> Observations:
    blank = {"ranking": "", "draw": 0, "share": 1.0}
    cells = pd.DataFrame([{**blank, **cell} for cell in ({"run": "clean"}, {"run": "corrupted"}, *circuits)])
    measure = Measure(name=options.metric, unit="nats", resolution=RESOLUTION)
    return Observations(measure=measure, cells=cells, units=units, total=values, size=1.0)


def batches_for(model: Any, graph: Graph, pairs: Sequence[PatchPair], metric: Metric) -> list[Batch]:
    """The pairs in batches whose runs fit into memory with the outputs of all senders."""
    tokens = max(256, MEMORY // (12 * model.config.d_model * len(graph.senders)))
    return list(batches_of(pairs, metric, tokens, model.cfg.device))


def _contrasts(values: Observations) -> list[Contrast]:
    cells, contrasts = values.cells, []
    for ranking, k in product(RANKINGS, SHARES):
        cell = values.cell(run="circuit", ranking=ranking, share=k)
        drawn = np.flatnonzero((cells["ranking"] == "random") & (cells["share"] == k))
        labels, fixed = {"ranking": ranking, "share": k}, "a circuit of all edges is the model" if k == 1 else ""
        weights = {cell: 1.0} | dict.fromkeys(drawn.tolist(), -1.0 / len(drawn))
        contrasts.append(Contrast(quantity="m", weights={cell: 1.0}, labels=labels, null=None))
        contrasts.append(Contrast(quantity="above", weights=weights, labels=labels, fixed=fixed))
    return [*contrasts, Contrast(quantity="m", weights={0: 1.0}, labels=EFFECT.labels, null=None), EFFECT]


def tables(options: Circuits, data: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """edges: one row each; faithfulness: one row per ranking and share of edges; summary: CPR, CMD, edges for .9."""
    values, title = data.blocks["circuits"], data.about["title"]
    whole = estimates["circuits"].where(ranking="whole model")
    m, effect = (whole.where(quantity=name).frame.iloc[0] for name in ("m", "effect"))
    flat = FLAT if is_flat(effect) else ""
    interval = "" if np.isnan(m["low"]) else f" ({m['low']:.2f} … {m['high']:.2f})"
    title = f"{title}; clean {m['value']:+.2f}{interval} nats on the pairs that judge"
    curve = _faithfulness(data, values, estimates["circuits"], flat, title)
    return {
        "edges": _edges(options, data, estimates["scores"], curve.frame, flat, title),
        "faithfulness": curve,
        "summary": _summary(values, estimates["circuits"], curve, flat, title),
    }


def _edges(
    options: Circuits, data: InstrumentData, estimates: Estimates, curve: pd.DataFrame, flat: str, title: str
) -> Table:  # fmt: skip
    frame, missing = estimates.wide(list(data.blocks["scores"].cells))
    chosen, n = data.extra[0].astype(float), len(frame)
    frame["chosen_by"] = chosen
    frame["in_circuit"] = worth.top(chosen, worth.size_of(options.keep, n), "size")
    entering = [worth.top(chosen, worth.size_of(k, n), "size") for k in SHARES]
    frame["enters"] = np.array(SHARES)[np.argmax(entering, 0)]
    f_by_share = curve[curve["ranking"] == "size"].set_index("share")["f"]
    frame["f"] = frame["enters"].map(f_by_share)
    missing |= {(int(i), "f"): flat for i in np.flatnonzero(frame["f"].isna())}
    return Table(frame, EDGES, missing, title, by="score", most=20)


def _faithfulness(
    data: InstrumentData, values: Observations, estimates: Estimates, flat: str, title: str
) -> Table:  # fmt: skip
    frame, missing = estimates.where(ranking=set(RANKINGS)).wide(["ranking", "share"], describe=("low", "high"))
    chosen, scores, clusters = data.extra
    within, n, cells = read_clusters(clusters.to_list(), len(clusters)), len(chosen), values.cells
    sizes, stability = [worth.size_of(k, n) for k in SHARES], [f"stability{end}" for end in ENDS]
    frame["edges"] = sizes * len(RANKINGS)  # rows are those of `_contrasts`
    frame["chance"] = [worth.chance(size, n) for size in frame["edges"]]
    frame[stability] = [row for ranking in RANKINGS for row in worth.stability(scores, within, sizes, ranking)]
    if within.count < 2:  # every draw of one is the same
        frame[stability] = np.nan
        missing |= {(i, column): ONE_UNIT for i, column in product(range(len(frame)), stability)}
    rows = list[dict[str, float]]()
    for i, (ranking, k) in enumerate(zip(frame["ranking"], frame["share"], strict=True)):
        rows.append({})
        for name, kind in (("f", ranking), ("random", "random")):
            indices = np.flatnonzero((cells["ranking"] == kind) & (cells["share"] == k))
            numbers, reasons = _interval(name, values, indices, worth.mean_faithfulness, flat)
            rows[i] |= numbers
            missing |= {(i, column): text for column, text in reasons.items()}
    frame = pd.concat([frame, pd.DataFrame(rows)], axis=1)
    title = f"{title}: edges chosen on one half of the pairs, judged on the other {len(values.units)}"
    return Table(frame[[c.name for c in FAITHFULNESS]], FAITHFULNESS, missing, title)


ENDS = ("", "_low", "_high")


def _interval(
    name: str, values: Observations, cells: np.ndarray, statistic: Any, flat: str
) -> tuple[dict[str, float], dict[str, str]]:
    if flat:
        columns = [f"{name}{end}" for end in ENDS]
        return dict.fromkeys(columns, np.nan), dict.fromkeys(columns, flat)
    return observations.interval_columns(name, observations.bootstrap(values, [0, 1, *map(int, cells)], statistic))


def _summary(values: Observations, estimates: Estimates, curve: Table, flat: str, title: str) -> Table:
    rows, ranking_of = list[dict[str, Any]](), values.cells["ranking"]
    blank = dict.fromkeys((f"{column}{end}" for column in ("random", "difference") for end in ENDS), np.nan)
    for name, estimate_name in (("metric of the clean run", "m"), ("effect: clean − corrupted", "effect")):
        whole_model = estimates.where(ranking="whole model", quantity=estimate_name)
        reasons = {of: text for (_, of), text in whole_model.reasons.items() if of in ("value", "low", "high")}
        numbers, reasons = observations.interval_columns("value", (whole_model.frame.iloc[0].to_dict(), reasons))
        undefined = note(reasons | dict.fromkeys(blank, "not of a circuit"))
        rows.append({"measure": name, "unit": "nats", **numbers, **blank, "undefined": undefined})
    drawn = np.flatnonzero(ranking_of == "random")
    for name, ranking, statistic in (
        ("CPR: area under f", "score", worth.cpr), ("CMD: area of |1 − f|", "size", worth.cmd),
    ):  # fmt: skip
        ranked_cells = np.flatnonzero(ranking_of == ranking)
        rows.append({"measure": name, "unit": "share of the effect"})
        lost = dict[str, str]()
        for column, indices, g in (("value", ranked_cells, statistic), ("random", drawn, statistic),
                                   ("difference", np.r_[ranked_cells, drawn], _over_random(statistic))):  # fmt: skip
            numbers, reasons = _interval(column, values, indices, g, flat)
            rows[-1] |= numbers
            lost |= reasons
        rows[-1]["undefined"] = note(lost)
    whole, lost = share_for_whole(curve.frame, curve.missing)
    return Table.noted(pd.DataFrame([*rows, {**whole, "undefined": note(lost)}]), SUMMARY_COLUMNS, title)


def share_for_whole(curve: pd.DataFrame, missing: Reasons) -> tuple[dict[str, Any], dict[str, str]]:
    """The row of the smallest circuit that keeps `WHOLE` of the effect, and why cells have no value. Its interval holds
    the shares k whose own interval of f holds `WHOLE`."""
    row: dict[str, Any] = {"measure": f"smallest circuit with f = {worth.WHOLE:g}", "unit": "share of edges"}
    reasons = {f"difference{end}": "compare the intervals" for end in ENDS}
    best = curve[curve["ranking"] == "size"]
    for column, name in (("value", "f"), ("random", "random")):
        for end, bound in (("", ""), ("_low", "_high"), ("_high", "_low")):  # a larger f needs fewer edges
            per_share = [missing.get((int(i), f"{name}{bound}"), SAME) for i in best.index]
            lost = next((text for text in per_share if text != SAME), "")
            f = best[f"{name}{bound}"].fillna(best[name]).to_numpy(float)
            row[f"{column}{end}"] = np.nan if lost else worth.whole_at(f)
            reasons |= {f"{column}{end}": lost} if lost else {}
    return {**row, **dict.fromkeys((f"difference{end}" for end in ENDS), np.nan)}, reasons


def _over_random(statistic: Any) -> Any:
    """The statistic of the first sequence of circuits minus that of the others."""

    def difference(total: Any, size: Any, axis: int = -1) -> np.ndarray:
        runs, rest = slice(0, 2), slice(2 + len(SHARES), None)
        own = statistic(total[: rest.start], size[: rest.start], axis)
        others = (np.concatenate([x[runs], x[rest]]) for x in (total, size))
        return np.asarray(own - statistic(*others, axis))

    return difference


def relate(result: Result) -> dict[str, Table]:
    """agreement: the Jaccard index of the best edges of every two runs, for each share of edges."""
    frame = (result.tables.get("edges") or result.table()).frame
    by_run = frame.groupby(["run", "step"] if "step" in frame else ["run"], sort=False)
    scores = {" @ ".join(map(str, label)): group.set_index("edge")["chosen_by"] for label, group in by_run}
    rows = []
    for a, b in combinations(scores, 2):
        shared = scores[a].index.intersection(scores[b].index)
        x, y = (scores[name].loc[shared].to_numpy() for name in (a, b))
        for k in SHARES[:-1]:
            n = worth.size_of(k, len(shared))
            overlap = worth.jaccard(worth.top(x, n, "size"), worth.top(y, n, "size"))
            rows.append({"run": a, "other": b, "share": k, "edges": n, "jaccard": overlap,
                         "chance": worth.chance(n, len(shared))})  # fmt: skip
    if not rows:
        return {}
    return {"agreement": Table(pd.DataFrame(rows), AGREEMENT, {}, "Best edges that two runs share")}


SHARE = key("share", "share k", "share of the edges that the circuit keeps", "share of edges", "g")
RANKED = key("ranking", "ranked by", "score, for CPR; size of the score, for CMD")
EDGES = (
    key("edge", "edge", "sender -> reader; a2.h1: head 1 of layer 2, m3: FFN of layer 3, m3.17: its latent, x3.mlp: "
        "mixing before it"),
    key("sender", "sender", "what writes", shown=False), key("reader", "reader", "what reads", shown=False),
    key("sender_layer", "layer of the sender", "counted from 0; −1 for the input", "layer", "d", False),
    key("reader_layer", "layer of the reader", "counted from 0; L for the logits", "layer", "d", False),
    key("part", "read as", "q, k, v: query, key, value; g: gate; mlp: FFN; mix: mixing of streams; logits"),
    key("stream", "stream", "the stream that the sender writes to"),
    *quantity("score", "score", "nats", "m(clean) − m(edge patched), or its approximation", sd="pairs"),
    number("chosen_by", "score, choosing half", "nats", "mean score over the half that chooses the circuit",
           "+.4f", False),
    key("in_circuit", "in circuit", "whether it is among the best --keep of edges", "yes or no"),
    number("enters", "enters at k", "share of edges", "smallest circuit that holds the edge, by size", "g", False),
    number("f", "f at k", "share of the effect", "what that circuit keeps of the effect", ".3f", False),
    *counts("pairs of prompts", "independent pairs, or the fewest words of a kind"),
)  # fmt: skip
FAITHFULNESS = (
    RANKED, SHARE, number("edges", "edges", "edges", "number of edges kept, rounded down", "d"),
    *described("f", "f", "share of the effect", "(m(circuit) − m(corrupted)) / (m(clean) − m(corrupted))",
               format=".3f"),
    *described("random", "f of random circuits", "share of the effect", "mean f of random circuits of as many edges",
               format=".3f"),
    *described("m", "metric", "nats", "m of the circuit", format="+.3f", shown=False),
    *quantity("above", "m − random", "nats", "m(circuit) − mean m of random circuits", format="+.3f", sd="pairs"),
    *described("stability", "stability", "Jaccard index", "overlap of the best edges of two bootstraps of the pairs",
               format=".2f"),
    number("chance", "chance overlap", "Jaccard index", "overlap of two random sets of as many edges", ".3f", False),
    *counts("pairs of prompts", "independent pairs, or the fewest words of a kind"),
)  # fmt: skip
SUMMARY_COLUMNS = (
    key("measure", "measure", "what is summarised"), key("unit", "unit", "unit of the row"),
    *described("value", "value", "units of the measure", "of the model, or of the best edges", format=".3f"),
    *described("random", "random circuits", "units of the measure", "mean over random circuits", format=".3f"),
    *described("difference", "difference", "units of the measure", "best edges − random circuits", format="+.3f"),
)  # fmt: skip
AGREEMENT = (
    key("run", "run", "one run"), key("other", "other run", "another run"), SHARE,
    number("edges", "edges", "edges", "number of edges of each", "d"),
    number("jaccard", "Jaccard", "Jaccard index", "shared edges / edges of either, the largest by size", ".3f"),
    number("chance", "chance", "Jaccard index", "of two random sets", ".3f"),
)  # fmt: skip
