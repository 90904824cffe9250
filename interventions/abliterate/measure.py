"""The effect of projecting a direction out of a model's weights: loss and KL of documents, largest outputs."""

import hashlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import pandas as pd
import torch

from streamscope.cli.errors import InputError
from streamscope.instruments.contract import InstrumentData, Progress, title_of
from streamscope.instruments.data import Documents, Opened
from streamscope.instruments.observations import Contrast, Estimates, Measure
from streamscope.instruments.result import Result
from streamscope.instruments.table import Table, counts, described, key, number, quantity
from streamscope.interventions.abliterate import Abliterate
from streamscope.interventions.abliterate.weights import abliterate_weights, largest_output
from streamscope.interventions.edits import random_direction
from streamscope.interventions.observe import SMALLEST, document_losses
from streamscope.models.derived import check_new, write_derived
from streamscope.models.hooks import edited_at
from streamscope.models.tensors import release_memory
from streamscope.models.transformer import StreamTransformer
from streamscope.probes.directions.choice import check_direction, direction_of, in_model, read_direction
from streamscope.text.shards import document_batches

CHECK_DOCUMENTS = 16
"""Number of documents on which outputs are checked."""
NO_DRAWS = "no random directions were drawn"
LOSS = Measure(name="loss", unit="nats/token", resolution=SMALLEST["loss"])
KL = Measure(name="KL(after ‖ before)", unit="nats/token", resolution=SMALLEST["loss"])


def check(how: Abliterate, model: Any) -> None:
    """Raise `InputError` for a direction that does not fit, weights that cannot be projected, or a used folder."""
    if edited_at(model):
        raise InputError(
            "abliterate projects weights, which an edit of activations does not change: leave the edit out"
        )
    if how.to is not None:
        check_new(how.to)
        if getattr(model, "run", None) is None:
            raise InputError(
                "this model comes from no run, and --to needs one as the parent: load a run, or leave out --to"
            )
    if not in_model(how.direction):
        check_direction(read_direction(how.direction, how.stream, how.method), model)
    changed_model(how, model, torch.ones(model.config.d_model))


def changed_model(how: Abliterate, model: StreamTransformer, d: torch.Tensor) -> StreamTransformer:
    """`weights.abliterate_weights` with these options; the model is only measured and written, so it shares weights."""
    d = d.to(model.cfg.device)
    return abliterate_weights(model, d, side=how.side, embedding=how.embedding, dense=how.dense, share=True)


def observe(how: Abliterate, model: Any, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: before, after, and after each random direction instead. Units: documents."""
    direction, found_in = direction_of(how.direction, data, how.stream, how.method)
    opened, d = data[Documents], direction.vector.to(model.cfg.device)
    random = [random_direction(len(d), how.seed, draw) for draw in range(how.draws)]
    variants = [partial(changed_model, how, model, x) for x in (d, *random)]  # one of them exists at a time
    found = document_losses(model, opened.shards, variants, kl="reverse", **opened.limits, progress=progress)
    _, tokens, _ = next(iter(document_batches(opened.shards, model.config.n_ctx, CHECK_DOCUMENTS, CHECK_DOCUMENTS)))
    before, after = (largest_output(m, tokens.to(model.cfg.device), d) for m in (model, variants[0]()))
    out = pd.DataFrame({"part": list(before), "before": list(before.values()), "after": list(after.values())})
    done = "written" if how.side == "write" else "read (use --side write to remove what is written)"
    title = f"{title_of(model)}: direction of layer {direction.layer} projected out of what is {done}"
    title += f"; {opened.title()}, {found.tokens.sum():,} tokens" + (f"; direction {found_in}" if found_in else "")
    cells = pd.DataFrame({"variant": ["before", "after", *["random"] * how.draws], "draw": [0, 0, *range(how.draws)]})
    blocks = found.blocks(cells, opened.units(), loss=LOSS, kl=KL)
    row, missing = {"what": "direction"}, "" if how.draws else NO_DRAWS
    of_random = {2 + draw: 1 / how.draws for draw in range(how.draws)}
    contrasts = {
        "loss": [
            Contrast(quantity="baseline", weights={0: 1.0}, labels=row, null=0.0, tested=False),
            Contrast(quantity="loss", weights={1: 1.0}, labels=row, null=0.0, tested=False),
            Contrast(quantity="delta", weights={1: 1.0, 0: -1.0}, labels=row),
        ],
        "kl": [
            Contrast(quantity="kl", weights={1: 1.0}, labels=row, tested=False),
            Contrast(quantity="random_kl", weights=of_random, labels=row, tested=False, missing=missing),
            Contrast(quantity="kl_above", weights={1: 1.0, **{k: -w for k, w in of_random.items()}}, labels=row,
                     missing=missing),
        ],
    }  # fmt: skip
    about = {"title": title, "direction": direction.about}
    return InstrumentData(blocks, contrasts, about, {"direction": direction.vector.numpy()}, out)


def tables(how: Abliterate, seen: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """One row for the model, and one per branch for its outputs."""
    title = seen.about["title"]
    kl, why = estimates["kl"].wide(["what"])
    loss, also = estimates["loss"].wide(["what"])
    frame = kl.join(loss.drop(columns=["what", "n", "clusters"]))
    return {
        "abliterate": Table(frame, ABLITERATE, {**why, **also}, title),
        "outputs": Table(seen.extra, OUTPUTS, title=f"Largest output along the direction; {title}"),
    }


def write(how: Abliterate, model: StreamTransformer, result: Result) -> None:
    """Write the changed model as a run folder; the manifest holds parent, direction and measurements."""
    assert how.to is not None and model.run is not None
    release_memory()  # of the measured variants
    d, row = result.arrays["direction"], result.table().frame.iloc[0]
    outputs = result.table("outputs").frame.set_index("part")
    write_derived(
        how.to, changed_model(how, model, torch.from_numpy(d)), model.run, loss=float(row["loss"]),
        tokens=int(result.blocks["loss"].sizes[0].sum()), outcome="abliterated",
        direction={**result.about["direction"], "sha256": hashlib.sha256(d.tobytes()).hexdigest()},
        abliteration={"side": how.side, "embedding": how.embedding, "dense": how.dense},
        largest_output={when: outputs[when].to_dict() for when in ("before", "after")},
    )  # fmt: skip


NATS, OVER = "nats/token", "documents"
ABLITERATE = (
    key("what", "projected out", "the direction that is projected out"),
    *described("kl", "KL(after ‖ before)", NATS, "KL of next-token distributions", sd=OVER, source="SPEC §1.8"),
    *described("random_kl", "KL, random direction", NATS, "control: mean KL after projecting out random directions",
               sd=OVER),
    *quantity("kl_above", "KL − random", NATS, "KL − mean KL of random directions", sd=OVER),
    *described("baseline", "loss before", NATS, "loss per token before the change", sd=OVER),
    *described("loss", "loss after", NATS, "loss per token after the change", sd=OVER),
    *quantity("delta", "Δ loss", NATS, "loss after − loss before", sd=OVER),
    *counts("documents or windows", "documents"),
)  # fmt: skip
OUTPUTS = (
    key("part", "part", "branch of the blocks, or readout"),
    number("before", "max |d·output| before", "units of the residual stream",
           "largest over layers, documents and positions", ".3g"),
    number("after", "max |d·output| after", "units of the residual stream",
           "largest over layers, documents and positions", ".3g"),
)  # fmt: skip
