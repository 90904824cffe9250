"""How well methods find planted circuits: AUROC of their scores for the true edges, against noise."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from streamscope.instruments.figures import Curve
from streamscope.instruments.result import Result
from streamscope.instruments.table import Table, key, number
from streamscope.interventions.circuits import worth
from streamscope.interventions.circuits.names import METHODS, Method
from streamscope.interventions.circuits.planted.models import plant, specification
from streamscope.interventions.circuits.scores import score_edges

PAIRS = 36
"""Of every circuit."""
COLUMNS = (
    key("circuit", "circuit", "the planted circuit"),
    key("method", "method", "how edges are scored"),
    key("noise", "noise", "rms of the noise in every weight / rms of the planted weights", "share", "g"),
    number("auroc", "AUROC", "share of pairs of edges", "true edges above other edges, by mean |score|", ".3f"),
    number("as_mib", "AUROC, ten points", "area", "by MIB's ten sizes, false positives rescaled by the last", ".3f"),
    number("accuracy", "accuracy", "share of prompts", "prompts that the model answers right", ".2f"),
    number("true", "true edges", "edges", "edges that change the answer in the model without noise", "d"),
    number("edges", "edges", "edges", "edges of the model", "d"),
)  # fmt: skip


def detection(noises: Sequence[float], methods: Sequence[Method] = METHODS, *, seed: int = 0) -> Result:
    """How well scores of edges find the edges of models whose weights were written by hand (`datasets/planted`).

    One row per planted circuit, noise and method, and the curve of AUROC over noise. `noises` are shares of the planted
    weights.
    """
    rows = []
    for name in specification()["circuits"]:
        for noise in noises:
            one = plant(name, noise=noise, seed=seed, pairs=PAIRS)
            for method in methods:
                scores = np.abs(score_edges(one.model, one.graph, one.pairs, method, seed=seed).mean(1))
                rows.append({
                    "circuit": name, "method": method, "noise": noise, "auroc": worth.auroc(scores, one.true),
                    "as_mib": worth.auroc_as_mib(scores, one.true), "accuracy": one.accuracy(),
                    "true": int(one.true.sum()), "edges": len(one.true),
                })  # fmt: skip
    table = Table(pd.DataFrame(rows), COLUMNS, {}, f"True edges of planted circuits, {PAIRS} pairs each, seed {seed}")
    figure = Curve("auroc", x="noise", by="method", each=("circuit",), title="True edges that scores find")
    return Result({"detection": table}, {}, {}, (figure,), {}, {"model": "planted circuits"})
