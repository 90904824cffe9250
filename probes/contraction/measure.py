"""Streams after every module: their spread and dimension, also compared with the same writes without mixing."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from streamscope.cli.terminal import counted
from streamscope.instruments.contract import InstrumentData, Progress, title_of
from streamscope.instruments.data import Documents, Opened
from streamscope.instruments.observations import Estimates, Measure, joined
from streamscope.instruments.table import Table, counts, described, key, number
from streamscope.models.hooks import capture, is_finite, not_finite
from streamscope.models.layers.hyper_mixing import StochasticConnection, mix
from streamscope.models.mixing import PlacedConnection, connections, inert_modules, sigma2
from streamscope.models.readout import IGNORE
from streamscope.probes.contraction import Contraction

KEYS = ("after", "module", "layer", "acts")
SIZE, STREAMS, SHARE = "share of the streams' size", "streams", "share of what differs"
ROUNDING = 1e-6
"""Rounding of a document's value in single precision."""
UNBOUND = "H_res is not doubly stochastic, so its σ₂ gives no bound"
EQUAL = "the streams are equal, with and without mixing"


def observe(options: Contraction, model: Any, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: modules in writing order. Units: documents."""
    opened, mixing, inert = data[Documents], connections(model), inert_modules(model)
    modules = list(map(PlacedConnection.from_path, mixing))
    read_hooks = dict.fromkeys(hook for module in modules for hook in (module.entry, module.exit))

    def of(tokens: Tensor, targets: Tensor) -> dict[str, Tensor]:
        with torch.no_grad(), capture(model, [*read_hooks, *(f"{name}.hook_res" for name in mixing)]) as captures:
            model(tokens, logits_at=torch.zeros(len(tokens), 1, dtype=torch.long, device=tokens.device))
        if not all(map(is_finite, captures.values())):
            raise not_finite(model, tokens, [])
        per_module, real = by_module(captures, list(mixing)), targets != IGNORE
        return {name: torch.stack([(row[name] * real).sum(1) for row in per_module]) for name in per_module[0]}

    total, units = opened.sums(model.cfg.device, of, progress)
    cells = pd.DataFrame([
        {"after": module.label, "module": module.number, "layer": module.layer,
         "acts": "no" if module.path in inert else "yes"}
        for module in modules
    ])  # fmt: skip
    bound = all(isinstance(connection, StochasticConnection) for connection in mixing.values())
    tokens = total["targets"]
    title = f"{title_of(model)}: {opened.title()}, {counted(int(tokens.sum()), 'token', ',')}"
    measurements = InstrumentData(about={"title": title})
    alone = total["alone"]  # 0 for documents with equal streams, which are not in the cell
    decrease = np.where(alone > 0, alone - total["apart"], 0.0)
    for name, unit, limits, values, size, reason in (
        ("spread", SIZE, (0.0, np.inf), total["spread"], tokens, ""),
        ("rank", STREAMS, (0.0, np.inf), total["rank"], tokens, ""),
        ("contracted", SHARE, (-np.inf, 1.0), decrease, alone, "" if alone.any() else EQUAL),
        ("predicted", SHARE, (0.0, 1.0), total["predicted"], tokens, "" if bound else UNBOUND),
    ):
        measure = Measure(name=name, unit=unit, resolution=ROUNDING, limits=limits)
        measurements.add(measure, cells, units, values, size, tested=False, missing=reason)
    return measurements


def by_module(captures: Mapping[str, Tensor], modules: list[str]) -> list[dict[str, Float[Tensor, "B T"]]]:
    """spread, rank, ‖X − X̄‖, ‖Y − Ȳ‖ and 1 − Π σ₂ at every position, after each module."""
    rows: list[dict[str, Tensor]] = []
    writes, product = torch.zeros(()), None
    for module in map(PlacedConnection.from_path, modules):
        hooks = (module.entry, module.exit, f"{module.path}.hook_res")
        state_in, state_out, H = (captures[hook].double() for hook in hooks)
        writes = writes + (state_out - mix(H, state_in))
        product = H.new_ones(H.shape[:2]) if product is None else product * sigma2(H)
        p = torch.linalg.eigvalsh(state_out @ state_out.mT).clamp(min=0)  # squared singular values, of small matrices
        p = p / p.sum(-1, keepdim=True)
        deviation = _deviation(state_out)
        rows.append({
            "spread": deviation / state_out.square().sum((-2, -1)).sqrt(), "rank": torch.special.entr(p).sum(-1).exp(),
            "apart": deviation, "alone": _deviation(writes), "predicted": 1 - product,
        })  # fmt: skip
    return rows


def _deviation(X: Float[Tensor, "B T N D"]) -> Float[Tensor, "B T"]:
    """‖X − X̄‖."""
    return (X - X.mean(-2, keepdim=True)).square().sum((-2, -1)).sqrt()


def tables(options: Contraction, data: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """modules: one row after each module."""
    frame, missing = joined([estimates[name] for name in ("spread", "rank", "contracted", "predicted")], KEYS, MODULES)
    return {"modules": Table(frame, MODULES, missing, data.about["title"], "spread", 24)}


MODULES = (
    key("after", "after", "layer and module"),
    number("module", "module", "from 0", "number of the module in writing order", "d", False),
    number("layer", "layer", "layer", "from 0", "d", False),
    key("acts", "can act", "whether its mixing can change an output"),
    *described("spread", "spread", SIZE, "‖X − X̄‖ / ‖X‖", format=".4f", sd="documents"),
    *described("rank", "effective rank", STREAMS, "exp of the entropy of squared singular values", format=".3f",
               sd="documents"),
    *described("contracted", "contracted", SHARE, "compared with the same writes without mixing", format=".4f",
               sd="documents"),
    *described("predicted", "1 − Π σ₂", SHARE, "lower bound on the contraction of the first module's write",
               format=".4f", sd="documents"),
    *counts("documents or windows", "documents"),
)  # fmt: skip
