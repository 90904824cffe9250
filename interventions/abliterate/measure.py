"""What projecting a direction out of a model's weights changes: loss and KL of documents, largest outputs."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch

from streamscope.cli.errors import InputError
from streamscope.instruments.about_model import title_of
from streamscope.instruments.contract import InstrumentData, Progress
from streamscope.instruments.data import Documents, Opened
from streamscope.instruments.observations import Contrast, Estimates, Measure, Observations
from streamscope.instruments.result import Result
from streamscope.instruments.table import Column, Table, counts, described, key, quantity
from streamscope.interventions.abliterate import Abliterate
from streamscope.interventions.abliterate.weights import abliterated, largest_output
from streamscope.interventions.edits import random_direction
from streamscope.interventions.observe import SMALLEST, document_losses
from streamscope.models.derived import check_new, write_derived
from streamscope.models.hooks import edited_at
from streamscope.models.transformer import StreamTransformer
from streamscope.probes.directions.choice import check_direction, direction_of, in_model, read_direction
from streamscope.text.shards import document_batches

CHECKED = 16
"""Documents on which outputs are checked."""
NO_DRAWS = "no random directions were drawn"
LOSS = Measure(name="loss", unit="nats/token", resolution=SMALLEST["loss"])
KL = Measure(name="KL(after ‖ before)", unit="nats/token", resolution=SMALLEST["loss"])


def check(how: Abliterate, model: Any) -> None:
    """Raise `InputError` for a direction that does not fit, weights that cannot be projected, a folder that is used."""
    if edited_at(model):
        raise InputError("what is projected are weights, which an edit of activations does not change: leave it out")
    if how.to is not None:
        check_new(how.to)
        if getattr(model, "run", None) is None:
            raise InputError("this model comes from no run: what is written needs a parent")
    if not in_model(how.direction):
        check_direction(read_direction(how.direction, how.stream, how.method), model)
    changed(how, model, torch.ones(model.config.d_model))


def changed(how: Abliterate, model: StreamTransformer, d: torch.Tensor) -> StreamTransformer:
    """`weights.abliterated` with these options."""
    d = d.to(model.cfg.device)
    return abliterated(model, d, side=how.side, embedding=how.embedding, dense=how.dense)


def observe(how: Abliterate, model: Any, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: before, after, and after each random direction instead; units: documents."""
    direction, found_in = direction_of(how.direction, data, how.stream, how.method)
    opened, d = data[Documents], direction.vector.to(model.cfg.device)
    random = [random_direction(len(d), how.seed, draw) for draw in range(how.draws)]
    variants = [changed(how, model, x) for x in (d, *random)]
    found = document_losses(model, opened.shards, variants, kl="reverse", **opened.limits, progress=progress)
    _, tokens, _ = next(iter(document_batches(opened.shards, model.config.n_ctx, CHECKED, CHECKED)))
    before, after = (largest_output(m, tokens.to(model.cfg.device), d) for m in (model, variants[0]))
    out = pd.DataFrame({"part": list(before), "before": list(before.values()), "after": list(after.values())})
    done = "written" if how.side == "write" else "read, which leaves what is written along it (--side write removes it)"
    title = f"{title_of(model)}: direction of layer {direction.layer} projected out of what is {done}"
    title += f"; {opened.title()}, {found.tokens.sum():,} tokens" + (f"; it was {found_in}" if found_in else "")
    cells = pd.DataFrame({"variant": ["before", "after", *["random"] * how.draws], "draw": [0, 0, *range(how.draws)]})
    of: dict[str, Any] = {"cells": cells, "units": opened.units(), "size": found.tokens.astype(float)}
    blocks = {
        "loss": Observations(measure=LOSS, total=np.concatenate([found.baseline[None], found.edited]), **of),
        "kl": Observations(measure=KL, total=np.concatenate([0 * found.baseline[None], found.kl]), **of),
    }
    at, missing = {"what": "direction"}, "" if how.draws else NO_DRAWS
    of_random = {2 + draw: 1 / how.draws for draw in range(how.draws)}
    contrasts = {
        "loss": [
            Contrast(quantity="baseline", weights={0: 1.0}, labels=at, null=0.0, tested=False),
            Contrast(quantity="loss", weights={1: 1.0}, labels=at, null=0.0, tested=False),
            Contrast(quantity="delta", weights={1: 1.0, 0: -1.0}, labels=at),
        ],
        "kl": [
            Contrast(quantity="kl", weights={1: 1.0}, labels=at, tested=False),
            Contrast(quantity="random_kl", weights=of_random, labels=at, tested=False, missing=missing),
            Contrast(quantity="kl_above", weights={1: 1.0, **{k: -w for k, w in of_random.items()}}, labels=at,
                     missing=missing),
        ],
    }  # fmt: skip
    about = {"title": title, "direction": direction.about}
    return InstrumentData(blocks, contrasts, about, {"direction": direction.vector.numpy()}, out)


def tables(how: Abliterate, seen: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """One row, and the outputs of the branches."""
    title = seen.about["title"]
    kl, why = estimates["kl"].wide(["what"])
    loss, also = estimates["loss"].wide(["what"])
    frame = kl.join(loss.drop(columns=["what", "n", "clusters"]))
    said = f"largest output along the direction; {title}"
    return {
        "abliterate": Table(frame, ABLITERATE, {**why, **also}, title),
        "outputs": Table(seen.extra, OUTPUTS, title=said),
    }


def write(how: Abliterate, model: StreamTransformer, result: Result) -> None:
    """The changed model as a run folder, with its parent, the direction, and what was measured in its manifest."""
    assert how.to is not None and model.run is not None
    d, row = result.arrays["direction"], result.table().frame.iloc[0]
    outputs = result.table("outputs").frame.set_index("part")
    write_derived(
        how.to, changed(how, model, torch.from_numpy(d)), model.run, loss=float(row["loss"]),
        tokens=int(result.blocks["loss"].sizes[0].sum()), outcome="abliterated",
        direction={**result.about["direction"], "sha256": hashlib.sha256(d.tobytes()).hexdigest()},
        abliteration={"side": how.side, "embedding": how.embedding, "dense": how.dense},
        largest_output={when: outputs[when].to_dict() for when in ("before", "after")},
    )  # fmt: skip


NATS, OVER = "nats/token", "documents"
ABLITERATE = (
    key("what", "projected out", "what is projected out"),
    *described("kl", "KL(after ‖ before)", NATS, "of next-token distributions", sd=OVER, source="SPEC §1.8"),
    *described("random_kl", "KL, random", NATS, "after projecting out random directions instead, mean", sd=OVER),
    *quantity("kl_above", "KL above random", NATS, "KL − that of random directions", sd=OVER),
    *described("baseline", "loss before", NATS, "loss per token, before", sd=OVER),
    *described("loss", "loss after", NATS, "loss per token, after", sd=OVER),
    *quantity("delta", "Δ loss", NATS, "loss after − loss before", sd=OVER),
    *counts("documents, or windows of them", "documents"),
)
OUTPUTS = (
    key("part", "part", "branch of the blocks, or the readout"),
    Column(name="before", title="max |d·output| before", unit="units of the residual stream", format=".3g",
           doc="largest over layers, documents and positions"),
    Column(name="after", title="max |d·output| after", unit="units of the residual stream", format=".3g",
           doc="largest over layers, documents and positions"),
)  # fmt: skip
