"""From the states of two prompt sets to directions and tables: layers, streams, pairs of runs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from streamscope.models.errors import InputError
from streamscope.probes.contrast_directions import (
    concentration,
    held_out,
    mean_difference,
    pair_cosines,
    random_cosine,
    shuffled,
    singular_directions,
    unit,
)
from streamscope.probes.stream_states import RESID, States
from streamscope.probes.undefined import note

NAN = float("nan")
SEPARATION = ("auc", "auc_low", "auc_high", "d")
NO_DIFFERENCE = "the two sets have the same mean state here"
ONE_STREAM = "undefined by construction, the model has one stream"
LAYER_UNITS = {
    "width": "dimensions",
    "norm": "units of the residual stream",
    "relative": "norm / mean norm of the prompts' states",
    "shuffled_norm": "as norm, mean over shuffled labels",
    "auc": "P(a > b), held-out prompts",
    "auc_low": "as auc",
    "auc_high": "as auc",
    "d": "pooled standard deviations, held-out prompts",
    "svd_cosine": "|cosine| of the difference of means and the first singular vector",
}
STREAM_UNITS = {
    "stream_cosine": "cosine, mean over pairs of streams",
    "shuffled_cosine": "as stream_cosine, mean over shuffled labels",
    "concentration": "1 − entropy of the norms' shares / ln streams",
}
RUN_UNITS = {"cosine": "cosine", "absolute": "|cosine|", "random": "E|cosine| of random directions"}


@dataclass(frozen=True, kw_only=True)
class Found:
    """The directions of one run. Arrays by stream: unit `vectors` [L, D], `svd` [L, k, D]; `width` is D of a stream."""

    run: str
    preset: str
    width: int
    vectors: dict[str, np.ndarray]
    svd: dict[str, np.ndarray]
    layers: pd.DataFrame
    streams: pd.DataFrame
    about: dict[str, Any] = field(default_factory=dict)


def find(a: States, b: States, *, run: str, preset: str, draws: int = 20, seed: int = 0, k: int = 3) -> Found:
    """Directions of every layer and stream, with their tables.

    layers   run, layer, stream, width, norm, relative, shuffled_norm, auc …, d, n_a, n_b, svd_cosine, undefined
    streams  run, layer, pairs, stream_cosine, shuffled_cosine, concentration, undefined

    auc and d are those of a direction from one half of the prompts, on the other half (`contrast_directions.held_out`).
    `draws` shuffles of the labels are the control of norm and stream_cosine; 0 leaves the controls undefined.
    """
    if a.streams != b.streams:
        raise InputError("the two sets were not run on one model")
    vectors, svd, rows = {}, {}, []
    for stream in a.names:
        x, y = a.of(stream), b.of(stream)
        difference = mean_difference(x, y)
        norms, vectors[stream] = np.linalg.norm(difference, axis=-1), unit(difference)
        svd[stream] = singular_directions(x, y, k)
        size = np.concatenate([np.linalg.norm(x, axis=-1), np.linalg.norm(y, axis=-1)]).mean(0)
        control = np.linalg.norm(shuffled(x, y, draws, seed), axis=-1).mean(0) if draws else np.full(len(norms), NAN)
        agreement = np.abs(np.einsum("ld,ld->l", svd[stream][:, 0], vectors[stream]))
        for layer, apart in enumerate(held_out(x, y, seed)):
            why = {} if draws else {"shuffled_norm": "no shuffles were drawn"}
            if apart is None or norms[layer] == 0:
                why |= dict.fromkeys((*SEPARATION, "svd_cosine"), NO_DIFFERENCE)
            got = apart._asdict() if apart is not None and norms[layer] > 0 else dict.fromkeys(SEPARATION, NAN)
            if got["d"] != got["d"] and "d" not in why:
                why["d"] = "the projections have no spread"
            rows.append(
                {
                    "run": run, "layer": layer, "stream": stream, "width": x.shape[-1], "norm": norms[layer],
                    "relative": norms[layer] / size[layer] if size[layer] > 0 else 0.0,
                    "shuffled_norm": control[layer], **{name: got[name] for name in SEPARATION},
                    "n_a": got.get("n_a", 0), "n_b": got.get("n_b", 0),
                    "svd_cosine": NAN if norms[layer] == 0 else agreement[layer], "undefined": note(why),
                }
            )  # fmt: skip
    table = pd.DataFrame(rows)
    return Found(
        run=run, preset=preset, width=a.values.shape[-1], vectors=vectors, svd=svd, layers=table,
        streams=_streams(a, b, run, draws, seed),
    )  # fmt: skip


def _streams(a: States, b: States, run: str, draws: int, seed: int) -> pd.DataFrame:
    """How alike the streams' directions are, per layer."""
    n_layers, n = a.values.shape[1], len(a.parallel)
    if n < 2:
        why = note(dict.fromkeys(STREAM_UNITS, ONE_STREAM))
        rows = [dict.fromkeys(STREAM_UNITS, NAN) | {"undefined": why} for _ in range(n_layers)]
    else:
        difference = mean_difference(a.values[:, :, :n], b.values[:, :, :n])  # [L, N, D]
        controls = shuffled(a.values[:, :, :n], b.values[:, :, :n], draws, seed) if draws else difference[:0]
        share, alike = concentration(np.linalg.norm(difference, axis=-1)), pair_cosines(unit(difference))
        by_chance = np.mean([pair_cosines(unit(c)) for c in controls], axis=0) if draws else np.full(n_layers, NAN)
        rows = []
        for layer in range(n_layers):
            reasons = {} if draws else {"shuffled_cosine": "no shuffles were drawn"}
            values = {"stream_cosine": alike[layer], "shuffled_cosine": by_chance[layer], "concentration": share[layer]}
            if not difference[layer].any(-1).all():  # a stream in which the sets do not differ has no direction
                values |= {"stream_cosine": NAN, "shuffled_cosine": NAN}
                reasons |= dict.fromkeys(("stream_cosine", "shuffled_cosine"), NO_DIFFERENCE + ", in a stream")
            rows.append({**values, "undefined": note(reasons)})
    table = pd.DataFrame(rows)
    table.insert(0, "pairs", n * (n - 1) // 2)
    table.insert(0, "layer", range(n_layers))
    table.insert(0, "run", run)
    return table


def between(runs: Sequence[Found]) -> pd.DataFrame:
    """Cosines of the same layer and stream in two runs of equal width, beside the random baseline.

    run_a, run_b, kind ("seeds" of one preset, or "architectures"), layer, stream, width, cosine, absolute, random. Runs
    of unequal widths have no common directions and no rows; layers and streams that only one has are left out.
    """
    rows = []
    for one, other in combinations(runs, 2):
        kind = "seeds" if one.preset == other.preset else "architectures"
        for stream in (s for s in one.vectors if s in other.vectors):
            x, y = one.vectors[stream], other.vectors[stream]
            if x.shape[-1] != y.shape[-1]:
                continue
            for layer, (r, q) in enumerate(zip(x, y, strict=False)):
                if r.any() and q.any():
                    cosine = float(r @ q)
                    rows.append(
                        {
                            "run_a": one.run, "run_b": other.run, "kind": kind, "layer": layer, "stream": stream,
                            "width": len(r), "cosine": cosine, "absolute": abs(cosine), "random": random_cosine(len(r)),
                        }
                    )  # fmt: skip
    names = ["run_a", "run_b", "kind", "layer", "stream", "width", *RUN_UNITS]
    return pd.DataFrame(rows, columns=names)


def labels(runs: Sequence[Found]) -> list[str]:
    """The runs' folder names, numbered where two are equal: short names for figures and files."""
    names = [Path(found.run).name for found in runs]
    return [name if names.count(name) == 1 else f"{name}-{i}" for i, name in enumerate(names)]


def best_layer(layers: pd.DataFrame, by: str = "d", stream: str = RESID) -> int:
    """The layer with the largest `by` (d on held-out prompts, or norm) in a stream. Raises `InputError` without any."""
    values = layers[layers["stream"] == stream].set_index("layer")[by].dropna()
    if values.empty:
        raise InputError(f"no layer has a defined {by} in the stream {stream!r}")
    return int(values.idxmax())
