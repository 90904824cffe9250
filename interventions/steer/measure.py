"""Steering along a direction at every scale: KL, loss and projection of documents, and samples."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.instruments.contract import InstrumentData, Progress, title_of
from streamscope.instruments.data import Documents, Opened
from streamscope.instruments.observations import Contrast, Estimates, Measure, joined
from streamscope.instruments.table import Table, counts, described, key, number, quantity
from streamscope.interventions.edits import add_direction, random_direction
from streamscope.interventions.edits.means import chunks, document_rows
from streamscope.interventions.observe import NATS, Losses, document_losses
from streamscope.interventions.steer import Steer
from streamscope.models.generate import check_room, continuations
from streamscope.models.head_spec import parse_layers
from streamscope.models.hooks import Edits, Query, run
from streamscope.probes.directions.choice import check_choice, direction_of
from streamscope.probes.stream_states import streams_of

BASELINE = "dose 0 is the baseline itself"
NO_DRAWS = "no random directions were drawn"
CHUNK = 32
MEASURES = {
    "loss": NATS,
    "kl": replace(NATS, name="KL(P_c ‖ P_0)", limits=(0.0, np.inf)),
    "shift": Measure(name="shift of d·x", unit="units of the residual stream", resolution=1e-6),
}


def mean_norms(model: Any, rows: Iterable[Sequence[int]]) -> dict[int, float]:
    """Mean ‖resid_post‖ over tokens (without BOS) per layer: the unit of --scale."""
    total, tokens = np.zeros(model.config.n_layers), 0
    for chunk in chunks(rows, CHUNK):
        if not (some := [row for row in chunk if len(row) > 1]):
            continue
        tokens += sum(len(row) - 1 for row in some)
        for name, xs in run(model, Query(tokens=some, hooks=("blocks.*.hook_resid_post",))).hooks.items():
            total[int(name.split(".")[1])] += sum(float(x[1:].double().norm(dim=-1).sum()) for x in xs)
    if not tokens:
        raise InputError("the documents contain only BOS, so there is no mean norm: give longer ones")
    return {layer: float(value) for layer, value in enumerate(total / tokens)}


def steering_edits(
    direction: Tensor, layers: Sequence[int], streams: Sequence[str], scale: float, norms: Mapping[int, float] | None
) -> Edits:
    """Add scale · norm_ℓ · d to each stream after each layer ℓ (norm_ℓ = 1 without `norms`); d [D] is a unit vector."""
    amounts = {layer: scale * (norms[layer] if norms is not None else 1.0) for layer in layers}
    return add_direction(direction, amounts, streams)


def check(how: Steer, model: Any) -> None:
    """Raise `InputError` for a direction, layers, streams or samples that the model cannot have."""
    check_choice(how.direction, model, how.stream, how.method)
    parse_layers(how.layers, model.config.n_layers)
    streams_of(model, how.streams)
    if how.prompt:
        check_room(model, how.prompt, how.sample_tokens)


def with_resolved_heads(how: Steer, data: Opened) -> Steer:
    """These options with the layers of the model's direction."""
    if how.layers:
        return how
    return replace(how, layers=(str(direction_of(how.direction, data, how.stream, how.method)[0].layer),))


def observe(how: Steer, model: Any, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: the unedited model, every scale, and random directions at every scale. Units: documents."""
    direction, found_in = direction_of(how.direction, data, how.stream, how.method)
    layers = parse_layers(how.layers, model.config.n_layers) or [direction.layer]
    streams, opened = streams_of(model, how.streams), data[Documents]
    d = direction.vector.to(model.cfg.device)
    norms = None if how.raw else mean_norms(model, document_rows(opened.batches()))
    random = [random_direction(len(d), how.seed, i).to(d) for i in range(how.draws)]
    scales = list(dict.fromkeys(how.scale))
    sweep = [steering_edits(x, layers, streams, scale, norms) for x in (d, *random) for scale in scales]
    found = document_losses(model, opened.shards, sweep, kl="reverse", direction=d, **opened.limits, progress=progress)
    where = f"layer{'s' if len(layers) > 1 else ''} {', '.join(map(str, layers))} to {', '.join(streams)}"
    dose = "1" if norms is None else f"{' and '.join(f'{norms[at]:.1f}' for at in layers)}, the mean norm of the stream"
    title = f"{title_of(model)}: direction of layer {direction.layer} added after {where}; {opened.title()}"
    title += f"; a dose of 1 is {dose}"
    about = {
        "title": title + (f"; direction {found_in}" if found_in else ""), "layers": layers,
        "direction": direction.about, "streams": list(streams),
        "norms": None if norms is None else {f"L{layer}": norm for layer, norm in norms.items()},
    }  # fmt: skip
    seen = InstrumentData({}, {}, about, {"direction": direction.vector.numpy()}, {})
    add_divergence(seen, found, scales, how.draws, opened.units())
    if how.prompt:
        texts = continuations(model, how.prompt, sweep[: len(scales)], tokens=how.sample_tokens, seed=how.seed)
        seen.extra["samples"] = pd.DataFrame({"scale": scales, "sample": texts})
    return seen


def add_divergence(
    seen: InstrumentData, found: Losses, scales: Sequence[float], draws: int, units: pd.DataFrame
) -> None:
    """Blocks of loss, KL and shift: unedited, under the direction at every scale, and under each random direction."""
    n = len(scales)
    keys = [{"scale": scale, "draw": draw} for draw in range(-1, draws) for scale in scales]
    cells = pd.DataFrame([{"scale": np.nan, "draw": -1}, *keys])
    seen.blocks |= found.blocks(cells, units, at=None, **MEASURES)
    seen.contrasts |= {name: [] for name in MEASURES}
    for i, scale in enumerate(scales, 1):
        labels, fixed = {"scale": float(scale)}, BASELINE if scale == 0 else ""
        random = {i + n * (draw + 1): 1 / draws for draw in range(draws)}
        missing = "" if draws else NO_DRAWS
        beyond: dict[int, float] = {i: 1.0, **{k: -w for k, w in random.items()}}
        of_random: dict[str, Any] = {"labels": labels, "null": None, "missing": missing}
        seen.contrasts["loss"] += [
            Contrast(quantity="baseline", weights={0: 1.0}, labels=labels, null=None),
            Contrast(quantity="loss", weights={i: 1.0}, labels=labels, null=None),
            Contrast(quantity="delta", weights={i: 1.0, 0: -1.0}, labels=labels, fixed=fixed),
            Contrast(quantity="random_delta", weights={**random, 0: -1.0}, **of_random),
        ]
        seen.contrasts["kl"] += [
            Contrast(quantity="kl", weights={i: 1.0}, labels=labels, tested=False, fixed=fixed),
            Contrast(quantity="random_kl", weights=random, **of_random),
            Contrast(quantity="kl_above", weights=beyond, labels=labels, missing=missing, fixed=fixed if draws else ""),
        ]
        shift = Contrast(quantity="shift", weights={i: 1.0}, labels=labels, tested=False, fixed=fixed)
        seen.contrasts["shift"].append(shift)


def tables(how: Steer, seen: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """One row per scale, and the samples."""
    title = seen.about["title"]
    unit = "units of the residual stream" if how.raw else "mean norms of the residual stream"
    scale = key("scale", "dose", "dose c of the added direction", unit, "+g")
    columns = (scale, *STEER)
    frame, missing = joined([estimates[name] for name in ("kl", "loss", "shift")], ["scale"], columns)
    frame = frame.assign(tokens=int(seen.blocks["loss"].sizes[0].sum()))
    out = {"steer": Table(frame, columns, missing, title)}
    if "samples" in seen.extra:
        sample = key("sample", "sample", "the prompt, continued at this scale", "text")
        out["samples"] = Table(seen.extra["samples"], (scale, sample), title=f"Samples; {title}")
    return out


RANDOM = "mean over random directions of the same size"
STEER = (
    *described("kl", "KL(P_c ‖ P_0)", "nats/token", "KL of next-token distributions, steered from unsteered",
               sd="documents", source="SPEC §1.8"),
    *quantity("random_kl", "KL, random direction", "nats/token", RANDOM, format=".4f", tested=False),
    *quantity("kl_above", "KL − random", "nats/token", "KL − mean KL of random directions", sd="documents"),
    *quantity("loss", "loss", "nats/token", "loss per token, steered", format=".4f", tested=False),
    *quantity("baseline", "unsteered loss", "nats/token", "loss per token, unsteered", tested=False, format=".4f",
              shown=False),
    *quantity("delta", "Δ loss", "nats/token", "steered loss − unsteered loss", sd="documents"),
    *quantity("random_delta", "Δ loss, random direction", "nats/token", RANDOM, tested=False, shown=False),
    *described("shift", "shift of d·x", "units of the residual stream",
               "change of d·x after the last layer, before the norm", format="+.4f", sd="documents"),
    number("tokens", "tokens", "tokens", "predicted tokens", "d", False),
    *counts("documents or windows", "documents"),
)  # fmt: skip
