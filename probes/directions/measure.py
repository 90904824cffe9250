"""Directions between two sets of states by layer and stream, and tests of whether they are meaningful.

    r = (mean_a − mean_b) / ‖·‖                        difference of means (SPEC §1.6)
    top right singular vectors of A − mean_b           the SVD variant, with a on the positive side

A norm or a cosine alone shows nothing: two sets with any labels differ in their means. So each number has a control
from shuffled labels, and a direction from one half of the prompts must separate the other half.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import optimize, special, stats

from streamscope.cli.errors import InputError
from streamscope.instruments.contract import InstrumentData, Progress, title_of
from streamscope.instruments.data import Opened, Sets
from streamscope.instruments.observations import Estimates, Measure, Reasons
from streamscope.instruments.result import Result
from streamscope.instruments.stats.estimators import (
    UPPER,
    cluster_totals,
    clustered_square,
    cohens_d,
    degrees_of_freedom,
)
from streamscope.instruments.table import Table, counts, described, key, number
from streamscope.models.checkpoint import run_label
from streamscope.probes.directions import Directions
from streamscope.probes.stream_states import RESID, States, stream_states

NAN = float("nan")
SEPARATION = ("auc", "auc_low", "auc_high", "d")
COSINES = ("stream_cosine", "shuffled_cosine")
NO_DIFFERENCE = "the two sets have the same mean state here"
NO_SHUFFLES = "no shuffles were drawn"
ONE_STREAM = "undefined by construction, the model has one stream"
HITS = Measure(name="accuracy on held-out prompts", unit="share of prompts", resolution=0.0, kind="share")
Z = float(stats.norm.ppf(0.975))
TINY = 1e-9
"""A contrast below this share of the states' size is rounding."""


def random_cosine(width: int) -> float:
    """E|cos| of two random directions in `width` dimensions: sqrt(2/(π d)), within a factor 1 ± 1/(4d)."""
    return float(np.sqrt(2 / (np.pi * width)))


def unit(x: np.ndarray) -> np.ndarray:
    """x / ‖x‖ over the last axis; zeros stay zeros."""
    norm = np.linalg.norm(x, axis=-1, keepdims=True)
    return np.divide(x, norm, out=np.zeros_like(x), where=norm > 0)


def mean_difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """mean_a − mean_b [..., D] of states [prompts, ..., D]; exactly 0 if it is only rounding."""
    difference = a.mean(0) - b.mean(0)
    size = np.maximum(np.linalg.norm(a, axis=-1).max(0), np.linalg.norm(b, axis=-1).max(0))
    small = np.linalg.norm(difference, axis=-1) <= TINY * size
    return np.where(small[..., None], 0.0, difference)


def singular_directions(a: np.ndarray, b: np.ndarray, k: int = 3) -> np.ndarray:
    """Top right singular vectors [layers, k, D] of a − mean_b, a and b [prompts, layers, D], each turned so that a's
    mean lies above b's. If a has fewer than k prompts or dimensions, the last vectors are zeros."""
    _, _, right = np.linalg.svd((a - b.mean(0)).swapaxes(0, 1), full_matrices=False)
    vectors = np.zeros((right.shape[0], k, right.shape[-1]))
    vectors[:, : right.shape[1]] = right[:, :k]
    side = np.einsum("lkd,ld->lk", vectors, a.mean(0) - b.mean(0))
    return vectors * np.where(side < 0, -1.0, 1.0)[..., None]


def pair_cosines(directions: np.ndarray) -> np.ndarray:
    """Mean over the pairs of streams of cos(r_s, r_s') [layers], of unit directions [layers, streams, D]."""
    gram = np.einsum("lsd,ltd->lst", directions, directions)
    upper = np.triu_indices(directions.shape[1], 1)
    return gram[:, upper[0], upper[1]].mean(-1)


def concentration(norms: np.ndarray) -> np.ndarray:
    """1 − H(p)/ln n over the last axis, p the normalised norms (SPEC §1.6). 0: even; 1: all in one stream."""
    total = norms.sum(-1, keepdims=True)
    p = np.divide(norms, total, out=np.full_like(norms, 1 / norms.shape[-1]), where=total > 0)
    return np.asarray(1 - special.entr(p).sum(-1) / np.log(norms.shape[-1]))


def separation(a: np.ndarray, b: np.ndarray, lines: np.ndarray | None = None) -> dict[str, float]:
    """How far projections a [n_a] lie above b [n_b]: auc = P(a > b) + P(a = b)/2, and d = (m_a − m_b) / pooled sd, NaN
    without spread. `lines` [n_a + n_b] name what prompts share; None: all are independent.

    Interval: |AUC^ − θ| = z sqrt(θ(1−θ)/(n_a n_b) · (1 + N((1−θ)/(2−θ) + θ/(1+θ)))), N = (n_a + n_b)/2 − 1, solved for
    θ (Newcombe 2006, Statistics in Medicine 25:559, method 5), which also has a length at AUC 0 and 1. With lines n_a
    and n_b are divided by max(1, Var_lines/Var) · (t_df/z)². Var_lines adds each prompt's share of the AUC within lines
    (Obuchowski 1997, Biometrics 53:567), Var does not. At AUC 0 and 1 n_a and n_b are the lines of each set.
    """
    wins = ((a[:, None] > b) + (a[:, None] == b) / 2.0).astype(float)
    auc, n_a, n_b = float(wins.mean()), float(len(a)), float(len(b))
    if lines is not None:
        codes = np.unique(np.asarray(lines), return_inverse=True)[1]
        n_a, n_b = (float(len(np.unique(part_codes))) for part_codes in (codes[: len(a)], codes[len(a) :]))
        parts = np.concatenate([(wins.mean(1) - auc) / len(a), (wins.mean(0) - auc) / len(b)])
        if parts.any():
            totals, counts = cluster_totals(parts, codes)
            ratio_tz = float(special.stdtrit(degrees_of_freedom(counts), UPPER)) / Z
            independent = sum(float(clustered_square(x)) for x in np.split(parts, [len(a)]))
            worse = max(1.0, float(clustered_square(totals)) / independent) * ratio_tz**2
            n_a, n_b = max(1.0, len(a) / worse), max(1.0, len(b) / worse)
    low, high = auc_interval(auc, n_a, n_b)
    return {"auc": auc, "auc_low": low, "auc_high": high, "d": cohens_d(a, b), "n_a": len(a), "n_b": len(b)}


def auc_interval(auc: float, n_a: float, n_b: float) -> tuple[float, float]:
    """The 95 % interval of `separation`."""
    n = (n_a + n_b) / 2 - 1

    def half(theta: float) -> float:
        variance = theta * (1 - theta) * (1 + n * ((1 - theta) / (2 - theta) + theta / (1 + theta))) / (n_a * n_b)
        return Z * float(np.sqrt(variance))

    edge = 1e-12  # at 0 and 1 the variance is 0, so both also solve the equation
    low = 0.0 if auc <= edge else float(optimize.brentq(lambda t: auc - t - half(t), 0.0, min(auc, 1 - edge)))
    high = 1.0 if auc >= 1 - edge else float(optimize.brentq(lambda t: t - auc - half(t), max(auc, edge), 1.0))
    return low, high


def halves(lines: np.ndarray, seed: int, names: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Two disjoint halves of prompts [n], whole lines from a seeded shuffle of `names`, the sorted lines; the second
    has more if they are odd. Raises `InputError` for fewer than four lines, and if a half has no prompt."""
    names = np.unique(lines) if names is None else names
    if len(names) < 4:
        raise InputError(f"each half needs two independent prompts, {len(names)} in all are too few")
    place = np.argsort(np.random.default_rng(seed).permutation(len(names)))[np.searchsorted(names, lines)]
    order, first = np.argsort(place, kind="stable"), int((place < len(names) // 2).sum())
    if first in (0, len(lines)):
        raise InputError("one half has no prompt of a set; give sets with more lines in common")
    return order[:first], order[first:]


def lines_of(n_a: int, n_b: int) -> tuple[np.ndarray, np.ndarray]:
    """What prompts share: prompt i of two sets of one size is line i; of other sets every prompt is its own line."""
    return np.arange(n_a), np.arange(n_b) + (0 if n_a == n_b else n_a)


class HeldOutProjections(NamedTuple):
    """Held-out prompts `of_a` and `of_b` along the direction of the other half, relative to the middle between its
    means: a [n_a, layers], b [n_b, layers], NaN in layers without a direction."""

    a: np.ndarray
    b: np.ndarray
    of_a: np.ndarray
    of_b: np.ndarray


def project_held_out(
    a: np.ndarray, b: np.ndarray, seed: int = 0, lines: tuple[np.ndarray, np.ndarray] | None = None
) -> HeldOutProjections:
    """Projections of the second halves of a, b [prompts, layers, D] on the difference of means of the first halves.

    A line (default: `lines_of`) that both sets hold is in one half: otherwise the common part of counterparts would
    count against the direction.
    """
    of_a, of_b = lines or lines_of(len(a), len(b))
    names = np.union1d(of_a, of_b) if np.isin(of_a, of_b).any() else None
    (fit_a, test_a), (fit_b, test_b) = halves(of_a, seed, names), halves(of_b, seed, names)
    r = unit(mean_difference(a[fit_a], b[fit_b]))
    middle = np.einsum("ld,ld->l", (a[fit_a].mean(0) + b[fit_b].mean(0)) / 2, r)
    middle[~r.any(-1)] = np.nan
    projections = [np.einsum("nld,ld->nl", x, r) - middle for x in (a[test_a], b[test_b])]
    return HeldOutProjections(projections[0], projections[1], test_a, test_b)


def shuffled_differences(a: np.ndarray, b: np.ndarray, draws: int, seed: int = 0) -> np.ndarray:
    """Differences of means [draws, ..., D] with prompts assigned to the two sets at random, sizes kept."""
    all_states, generator = np.concatenate([a, b]), np.random.default_rng(seed)
    orders = [generator.permutation(len(all_states)) for _ in range(draws)]
    return np.stack([mean_difference(all_states[order[: len(a)]], all_states[order[len(a) :]]) for order in orders])


@dataclass(frozen=True)
class FoundDirections:
    """The directions of one model by stream, unit `vectors` [L, D] and `svd` [L, k, D]; tables with reasons."""

    vectors: dict[str, np.ndarray]
    svd: dict[str, np.ndarray]
    held_out: dict[str, HeldOutProjections]
    layers: pd.DataFrame
    missing: Reasons
    streams: pd.DataFrame
    streams_missing: Reasons

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays that `directions.choice` reads, float32."""
        tensors: dict[str, Any] = {}
        for stream, rows in self.layers.groupby("stream", sort=False):
            tensors |= {f"mean.{stream}": self.vectors[stream], f"svd.{stream}": self.svd[stream]}
            tensors |= {f"{name}.{stream}": rows[name] for name in ("norm", "d")}
        return {name: np.ascontiguousarray(x, np.float32) for name, x in tensors.items()}


def find(
    a: States, b: States, *, draws: int = 20, seed: int = 0, k: int = 3,
    lines: tuple[np.ndarray, np.ndarray] | None = None,
) -> FoundDirections:  # fmt: skip
    """Directions of every layer and stream, with their tables.

    auc and d test a direction from one half of the prompts on the other half (`project_held_out`; `lines` name what
    prompts of both sets share). `draws` label shuffles are the control of norm and stream_cosine.
    """
    of_a, of_b = lines or lines_of(len(a.values), len(b.values))
    vectors, svd, held_out, rows = {}, {}, {}, list[dict[str, Any]]()
    missing: Reasons = {}
    for stream in a.names:
        x, y = a.of(stream), b.of(stream)
        difference = mean_difference(x, y)
        norms, vectors[stream] = np.linalg.norm(difference, axis=-1), unit(difference)
        svd[stream] = singular_directions(x, y, k)
        size = np.concatenate([np.linalg.norm(x, axis=-1), np.linalg.norm(y, axis=-1)]).mean(0)
        control = np.full(len(norms), NAN)
        if draws:
            control = np.linalg.norm(shuffled_differences(x, y, draws, seed), axis=-1).mean(0)
        agreement = np.abs(np.einsum("ld,ld->l", svd[stream][:, 0], vectors[stream]))
        held_out[stream] = p = project_held_out(x, y, seed, (of_a, of_b))
        p.a[:, norms == 0] = p.b[:, norms == 0] = NAN
        lines_tested = np.concatenate([of_a[p.of_a], of_b[p.of_b]])
        for layer, norm in enumerate(norms):
            reasons = {} if draws else {"shuffled_norm": NO_SHUFFLES}
            if np.isnan(p.a[0, layer]):
                scores = dict.fromkeys(SEPARATION, NAN) | {"n_a": 0, "n_b": 0}
                reasons |= dict.fromkeys(SEPARATION, NO_DIFFERENCE)
            else:
                scores = separation(p.a[:, layer], p.b[:, layer], lines_tested)
                reasons |= {"d": "the projections have no spread"} if np.isnan(scores["d"]) else {}
            reasons |= {} if norm else {"svd_cosine": NO_DIFFERENCE}
            missing |= {(len(rows), name): text for name, text in reasons.items()}
            rows.append({
                "layer": layer, "stream": stream, "width": x.shape[-1], "norm": norm,
                "relative": norm / size[layer] if size[layer] > 0 else 0.0, "shuffled_norm": control[layer],
                **scores, "svd_cosine": agreement[layer] if norm else NAN,
            })  # fmt: skip
    return FoundDirections(vectors, svd, held_out, pd.DataFrame(rows), missing, *_streams(a, b, draws, seed))


def _streams(a: States, b: States, draws: int, seed: int) -> tuple[pd.DataFrame, Reasons]:
    """Similarity of the streams' directions, per layer."""
    n_layers, n = a.values.shape[1], len(a.parallel)
    names = (*COSINES, "concentration")
    frame = pd.DataFrame({"layer": range(n_layers), "pairs": n * (n - 1) // 2, **dict.fromkeys(names, NAN)})
    if n < 2:
        return frame, {(layer, name): ONE_STREAM for layer in range(n_layers) for name in names}
    x, y = a.values[:, :, :n], b.values[:, :, :n]
    difference = mean_difference(x, y)  # [L, N, D]
    frame["concentration"] = concentration(np.linalg.norm(difference, axis=-1))
    frame["stream_cosine"] = pair_cosines(unit(difference))
    if draws:
        shuffles = shuffled_differences(x, y, draws, seed)
        frame["shuffled_cosine"] = np.mean([pair_cosines(unit(shuffle)) for shuffle in shuffles], axis=0)
    missing = {} if draws else {(layer, "shuffled_cosine"): NO_SHUFFLES for layer in range(n_layers)}
    for layer in np.flatnonzero(~difference.any(-1).all(-1)).tolist():  # no direction if the sets do not differ
        frame.loc[layer, [*COSINES]] = NAN
        missing |= {(layer, name): f"{NO_DIFFERENCE}, in a stream" for name in COSINES}
    return frame, missing


def observe(options: Directions, model: Any, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: layer and stream. Units: held-out prompts, 1 if on their own set's side of the middle."""
    sets = data[Sets]
    a, b = (stream_states(model, rows.tokens, options.pool, progress=progress) for rows in (sets.a, sets.b))
    directions = find(a, b, draws=options.draws, seed=options.seed, lines=sets.lines)
    pool = "mean over positions" if options.pool == "mean" else "last position"
    left_out = a.left_out + b.left_out
    if left_out:
        pool += f" but for {left_out:,} with massive activations"
    folder, config = getattr(model, "run", None), getattr(model, "config", None)
    about = {
        "title": f"{title_of(model)}: {sets.title()}; {pool}", "preset": getattr(config, "name", type(model).__name__),
        "folder": None if folder is None else run_label(folder), "massive": left_out,
    }  # fmt: skip
    projections = directions.held_out[RESID]
    texts = [f"a: {sets.a.texts[i]}" for i in projections.of_a] + [f"b: {sets.b.texts[i]}" for i in projections.of_b]
    names = [hashlib.sha1(text.encode()).hexdigest()[:10] for text in texts]
    lines = np.concatenate([sets.lines[0][projections.of_a], sets.lines[1][projections.of_b]])
    margins = np.concatenate([np.concatenate([p.a, -p.b]).T for p in directions.held_out.values()])  # [cells, prompts]
    undefined = np.isnan(margins)  # without a difference there is no direction
    units = pd.DataFrame({"unit": names, "cluster": [f"line {i}" for i in lines]})
    cells, missing = directions.layers[["layer", "stream"]], np.where(undefined.all(1), NO_DIFFERENCE, "").tolist()
    measurements = InstrumentData(about=about, arrays=directions.arrays(), extra=directions)
    hits = np.where(undefined, np.nan, margins > 0)
    measurements.add(HITS, cells, units, hits, block="accuracy", tested=False, missing=missing)
    return measurements


def tables(options: Directions, data: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """Layers and streams; similarity of the readout's directions between layers, and between streams."""
    directions, title = data.extra, data.about["title"]
    accuracy, missing = estimates["accuracy"].wide(["layer", "stream"])
    frame = directions.layers.merge(accuracy, on=["layer", "stream"], how="left", validate="1:1")
    resid, best = frame[frame["stream"] == RESID].set_index("layer"), ""
    if resid["d"].notna().any():
        best = f"; best layer of resid by d {resid['d'].idxmax()}, by norm {resid['norm'].idxmax()}"
    r = directions.vectors[RESID]
    layer, other = np.triu_indices(len(r), 1)
    cosines = pd.DataFrame({"layer": layer, "other": other, "cosine": (r @ r.T)[layer, other]})
    cosines = cosines[r.any(-1)[layer] & r.any(-1)[other]].reset_index(drop=True)
    heading = f"Cosines between the readout's directions of two layers; {title}"
    return {
        "directions": Table(frame, DIRECTIONS, {**missing, **directions.missing}, f"Directions; {title}{best}"),
        "streams": Table(
            directions.streams, STREAMS, directions.streams_missing, f"Directions of the streams; {title}"
        ),
        "layers": Table(cosines, LAYERS, title=heading, by="cosine", most=10),
    }


def relate(whole_result: Result) -> dict[str, Table]:
    """Cosines of the same layer and stream in two runs of equal width, seeds of one preset or architectures, and the
    random baseline. Layers and streams of only one run are left out."""
    rows, arrays = [], whole_result.arrays
    for (i, first), (j, second) in combinations(enumerate(whole_result.about["runs"]), 2):
        names = {"run_a": first["model"], "run_b": second["model"]}
        names["kind"] = "seeds" if first["preset"] == second["preset"] else "architectures"
        streams = {name.partition("-mean.")[2] for name in arrays if name.startswith(f"run{i}-mean.")}
        for stream in sorted(streams, key=lambda name: (name == RESID, name == "joint", name)):
            x, y = (np.asarray(arrays.get(f"run{k}-mean.{stream}", np.empty(0)), float) for k in (i, j))
            if x.shape[-1] != y.shape[-1]:
                continue
            for layer, (r, q) in enumerate(zip(x, y, strict=False)):
                if r.any() and q.any():
                    row = {**names, "layer": layer, "stream": stream, "width": len(r), "cosine": float(r @ q)}
                    rows.append({**row, "absolute": abs(row["cosine"]), "random": random_cosine(len(r))})
    title = "Cosines between the directions of two runs"
    return {"runs": Table(pd.DataFrame(rows), RUNS, title=title, by="absolute", most=20)} if rows else {}


LAYER = key("layer", "layer", "layer after which the stream is read", "layer", "d")
STREAM = key("stream", "stream", "residual stream; joint: all streams concatenated; resid: input of the head")
WIDTH = number("width", "width", "dimensions", "width of the direction", "d", False)
OF_HELD_OUT = "for held-out prompts along the direction of the other half"
DIRECTIONS = (
    LAYER, STREAM, WIDTH,
    number("norm", "norm", "units of the residual stream", "norm of the difference of the sets' means", ".3f",
           source="SPEC §1.6"),
    number("shuffled_norm", "norm, shuffled", "units of the residual stream", "norm, mean over shuffled labels", ".3f"),
    number("relative", "relative norm", "norm / mean norm of the prompts' states",
           "norm relative to the states' mean norm", ".3f"),
    *described("auc", "AUC", "P(a > b)", f"P(a > b) {OF_HELD_OUT}; Newcombe's interval over lines", format=".3f"),
    number("d", "Cohen's d", "pooled standard deviations", f"Cohen's d {OF_HELD_OUT}", ".3f"),
    *described("accuracy", "accuracy", "share of held-out prompts",
               "prompts on their own set's side of the middle between the other half's means", format=".3f",
               sd="lines"),
    number("svd_cosine", "|cos| with SVD", "|cosine|", "between the difference of means and the first singular vector",
           ".3f"),
    number("n_a", "prompts of a", "prompts", "held-out prompts of set a", "d", False),
    number("n_b", "prompts of b", "prompts", "held-out prompts of set b", "d", False),
    *counts("held-out prompts", "lines of the two sets"),
)  # fmt: skip
STREAMS = (
    LAYER,
    number("pairs", "pairs", "pairs of streams", "pairs of parallel streams", "d", False),
    number("stream_cosine", "cosine", "cosine", "between two streams' directions, mean over pairs", "+.4f",
           source="SPEC §1.6"),
    number("shuffled_cosine", "cosine, shuffled", "cosine", "the same with shuffled labels, mean", "+.4f"),
    number("concentration", "concentration", "1 − entropy / ln streams", "of the norms: 0 even, 1 all in one stream",
           ".4f", source="SPEC §1.6"),
)  # fmt: skip
LAYERS = (
    LAYER, key("other", "other", "the other layer", "layer", "d"),
    number("cosine", "cosine", "cosine", "between the readout's directions of the two layers", "+.3f"),
)  # fmt: skip
RUNS = (
    key("run_a", "run", "the first run"), key("run_b", "other run", "the second run"),
    key("kind", "kind", "seeds of one preset, or architectures"), LAYER, STREAM, WIDTH,
    number("cosine", "cosine", "cosine", "between the two runs' directions", "+.4f", False),
    number("absolute", "|cosine|", "|cosine|", "between the two runs' directions", ".4f"),
    number("random", "|cosine|, random", "E|cosine|", "expected for random directions: sqrt(2/(π d))", ".4f"),
)  # fmt: skip
