"""Steering along a direction at every scale: KL, loss and projection of documents, and samples."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from streamscope.cli.errors import InputError
from streamscope.instruments.contract import Progress, title_of
from streamscope.instruments.data import Documents, Opened
from streamscope.instruments.observations import Estimates
from streamscope.instruments.table import Table, described, key
from streamscope.interventions import changes
from streamscope.interventions.edits import add_direction, document_rows, hook_means, random_direction
from streamscope.interventions.observe import NATS
from streamscope.interventions.steer import Steer
from streamscope.models.generate import check_room, continuations
from streamscope.models.head_spec import parse_layers
from streamscope.probes.directions.choice import check_choice, direction_of
from streamscope.probes.stream_states import streams_of

BASELINE = "dose 0 is the baseline itself"


def mean_norms(model: Any, rows: Iterable[Sequence[int]]) -> dict[int, float]:
    """Mean ‖resid_post‖ over tokens (without BOS) per layer: the unit of --scale."""
    hooks = [f"blocks.{layer}.hook_resid_post" for layer in range(model.config.n_layers)]
    means = hook_means(model, hooks, rows, part=lambda x: x.double().norm(dim=-1), start=1)
    if not means:
        raise InputError("the documents contain only BOS, so there is no mean norm: give longer ones")
    return {layer: float(means[hook]) for layer, hook in enumerate(hooks)}


def check(options: Steer, model: Any) -> None:
    check_choice(options.direction, model, options.stream, options.method)
    parse_layers(options.layers, model.config.n_layers)
    streams_of(model, options.streams)
    if options.prompt:
        check_room(model, options.prompt, options.sample_tokens)


def with_resolved_heads(options: Steer, data: Opened) -> Steer:
    if options.layers:
        return options
    direction, _ = direction_of(options.direction, data, options.stream, options.method)
    return replace(options, layers=(str(direction.layer),))


def observe(options: Steer, model: Any, data: Opened, progress: Progress) -> changes.Effects:
    """Cells: the unedited model, every scale, and random directions at every scale. Units: documents."""
    direction, found_in = direction_of(options.direction, data, options.stream, options.method)
    layers = parse_layers(options.layers, model.config.n_layers) or [direction.layer]
    streams, opened = streams_of(model, options.streams), data[Documents]
    d = direction.vector.to(model.cfg.device)
    norms = None if options.raw else mean_norms(model, document_rows(opened.batches()))
    directions = [d, *(random_direction(len(d), options.seed, i).to(d) for i in range(options.draws))]
    change_list = []
    for scale in dict.fromkeys(options.scale):
        amounts = {layer: scale * (norms[layer] if norms is not None else 1.0) for layer in layers}
        steered, *controls = (add_direction(x, amounts, streams) for x in directions)
        fixed = BASELINE if scale == 0 else ""
        change_list.append(changes.Change({"scale": float(scale)}, [steered], controls, fixed=fixed))
    effects = changes.measure_changes(
        model, opened, change_list, measures={"loss": NATS} | changes.OF_DIRECTION, kl="reverse", direction=d,
        controls=True, progress=progress,
    )  # fmt: skip
    where, dose = f"layer{'s' if len(layers) > 1 else ''} {', '.join(map(str, layers))} to {', '.join(streams)}", "1"
    if norms is not None:
        dose = f"{' and '.join(f'{norms[layer]:.1f}' for layer in layers)}, the mean norm of the stream"
    title = f"{title_of(model)}: direction of layer {direction.layer} added after {where}; {opened.title()}"
    title += f"; a dose of 1 is {dose}"
    effects.about = {
        "title": title + (f"; direction {found_in}" if found_in else ""), "layers": layers,
        "direction": direction.about, "streams": list(streams),
        "norms": None if norms is None else {f"L{layer}": norm for layer, norm in norms.items()},
    }  # fmt: skip
    effects.arrays = {"direction": direction.vector.numpy()}
    if options.prompt:
        edits: list[Any] = [edits for change in change_list for edits in change.variants]
        texts = continuations(model, options.prompt, edits, tokens=options.sample_tokens, seed=options.seed)
        effects.extra = pd.DataFrame({"scale": [change.labels["scale"] for change in change_list], "sample": texts})
    return effects


def tables(options: Steer, effects: changes.Effects, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    title = effects.about["title"]
    unit = "units of the residual stream" if options.raw else "mean norms of the residual stream"
    scale = key("scale", "dose", "dose c of the added direction", unit, "+g")
    columns = (scale, *STEER)
    out = {"steer": changes.effect_table(effects, estimates, columns, title)}
    if effects.extra is not None:
        sample = key("sample", "sample", "the prompt, continued at this scale", "text")
        out["samples"] = Table(effects.extra, (scale, sample), title=f"Samples; {title}")
    return out


STEER = (
    *changes.reverse_kl("KL(P_c ‖ P_0)", "KL of next-token distributions, steered from unsteered"),
    *changes.LOSS, *changes.DELTA, changes.RANDOM_DELTA,
    *described("shift", "shift of d·x", "units of the residual stream",
               "change of d·x after the last layer, before the norm", format="+.4f", sd="documents"),
    *changes.TOKENS,
)  # fmt: skip
