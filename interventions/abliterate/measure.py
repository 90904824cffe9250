"""The effect of projecting a direction out of a model's weights: loss and KL of documents, largest outputs.

In row vectors a matrix writes y = x W + b. With a unit direction d, W' = W (I − d d^T) and b' = b − (b·d) d, so
d·y' = 0 for every input (Arditi et al. 2024, arXiv 2406.11717, weight orthogonalization).
"""

import copy
import hashlib
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import pandas as pd
import torch
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.instruments.contract import Progress, need_parts, title_of
from streamscope.instruments.data import Documents, Opened
from streamscope.instruments.observations import Estimates
from streamscope.instruments.result import Result
from streamscope.instruments.table import Table, described, key, number
from streamscope.interventions import changes
from streamscope.interventions.abliterate import Abliterate
from streamscope.interventions.edits import random_direction
from streamscope.interventions.observe import NATS
from streamscope.models.checkpoint import write_derived
from streamscope.models.config import Dense, Identity, Independent, Kronecker
from streamscope.models.hooks import capture, edited_at
from streamscope.models.tensors import check_new, release_memory
from streamscope.models.transformer import StreamTransformer
from streamscope.probes.directions.choice import check_choice, direction_of
from streamscope.text.shards import document_batches

CHECK_DOCUMENTS = 16
"""Number of documents on which outputs are checked."""
WRITERS = (("attn", "o", "attention"), ("mlp", "down", "mlp"))
"""Module and name in a block, and part of the configuration."""


def project_out(W: Tensor, d: Tensor) -> Tensor:
    """W (I − d d^T) for W [..., D] and d [D], in float64, returned in W's dtype: d·(x W') = 0."""
    wide, r = W.double(), d.double()
    r = r / r.norm()
    return (wide - (wide @ r)[..., None] * r).to(W.dtype)


@torch.no_grad()
def abliterate_weights(
    model: StreamTransformer, d: Tensor, *, side: Literal["write", "read"] = "write", embedding: bool = False,
    dense: bool = False, share: bool = False,
) -> StreamTransformer:  # fmt: skip
    """A new model whose attention and FFN outputs (weights and biases) have no component along d [D].

    embedding: also change the token embedding and the position table; a tied head then loses d, too.
    dense: store identity, independent and Kronecker output projections as dense matrices, because W (I − d d^T) breaks
    their structure; without it they raise `InputError`.
    side: "read" reproduces the wrong variant of SPEC §1.10 a. It removes d from what attention's output matrix READS,
    (I − d d^T) W, which lives in head space and not in the residual stream.
    share: keep the unchanged weights in common with `model`, for a model that is only measured.

    Raises `InputError` for projections that are not linear or normed afterwards, and a direction of 0 or NaN.
    """
    config = model.config
    model.no_norm_after()
    if not torch.isfinite(d).all() or not d.norm() > 0:
        raise InputError("the direction must be finite and not 0")
    chosen = WRITERS if side == "write" else WRITERS[:1]
    for _, name, part in chosen:
        owner_config = getattr(config, part)
        spec = getattr(owner_config, name)
        if isinstance(spec, Dense):
            continue
        what = f"{part}.{name} is {spec.kind}"
        if not isinstance(spec, Identity | Independent | Kronecker):
            raise InputError(f"{what}, and no direction can be projected out of it")
        if not dense:
            raise InputError(f"{what}, which a projection would break; --dense stores it as a dense matrix")
        dense_spec = Dense(bias=getattr(spec, "bias", False))
        config = replace(config, **{part: replace(owner_config, **{name: dense_spec})})
    weights: dict[str, Tensor] = {}
    for layer, block in enumerate(model.blocks):
        for owner, name, _ in chosen:
            projection, where = getattr(getattr(block, owner), name), f"blocks.{layer}.{owner}.{name}"
            W = projection.matrix()
            W = project_out(W, d) if side == "write" else project_out(W.T, d).T
            weights[f"{where}.weight"] = W.T.contiguous()
            if projection.bias is not None and side == "write":
                weights[f"{where}.bias"] = project_out(projection.bias, d)
    if embedding:
        for name in ("embed.weight", "pos_embed.weight"):
            if name in (state := model.state_dict()):
                weights[name] = project_out(state[name], d)
    if share and config == model.config:
        shared_weights = [x for name, x in model.named_parameters() if name not in weights]
        new = copy.deepcopy(model, {id(value): value for value in (*shared_weights, model.tokenizer)})
        for name, x in weights.items():
            new.get_parameter(name).copy_(x)
        return new.eval()
    new = StreamTransformer(config, model.tokenizer, seed=None).to(model.cfg.device, model.cfg.dtype)
    new.load_state_dict({**model.state_dict(), **weights})
    return new.eval()


@torch.no_grad()
def largest_output(model: StreamTransformer, tokens: Tensor, d: Tensor) -> dict[str, float]:
    """max |d·y| over layers, rows and positions, for the outputs of attention and FFN and for the readout. In units of
    the residual stream; d [D] is a unit vector, tokens are [B, T]."""
    hooks = {"attention": "hook_attn_out", "FFN": "hook_mlp_out", "readout": "hook_resid_post"}
    largest = dict.fromkeys(hooks, 0.0)
    for row in tokens.split(1):  # of a large model, the outputs of all rows are a gigabyte
        with capture(model, [f"blocks.*.{hook}" for hook in hooks.values()]) as captures:
            model(row, return_type=None)
        for name, hook in hooks.items():
            values = [float((x @ d.to(x)).abs().max()) for key, x in captures.items() if key.endswith(hook)]
            largest[name] = max(largest[name], *values)
    return largest


def check(options: Abliterate, model: Any) -> None:
    need_parts(model, options.name)
    if edited_at(model):
        raise InputError("abliterate projects weights, which an edit of activations does not change: leave it out")
    if options.to is not None:
        check_new(options.to)
        if getattr(model, "run", None) is None:
            raise InputError("--to needs a run as the parent, and this model comes from none: load one")
    check_choice(options.direction, model, options.stream, options.method)
    changed_model(options, model, torch.ones(model.config.d_model))


def changed_model(options: Abliterate, model: StreamTransformer, d: torch.Tensor) -> StreamTransformer:
    """`abliterate_weights` with these options; the model is only measured and written, so it shares weights."""
    d = d.to(model.cfg.device)
    return abliterate_weights(model, d, side=options.side, embedding=options.embedding, dense=options.dense, share=True)


def observe(options: Abliterate, model: Any, data: Opened, progress: Progress) -> changes.Effects:
    """Cells: before, after, and after each random direction instead. Units: documents."""
    direction, found_in = direction_of(options.direction, data, options.stream, options.method)
    opened, d = data[Documents], direction.vector.to(model.cfg.device)
    random = [random_direction(len(d), options.seed, draw) for draw in range(options.draws)]
    variants = [partial(changed_model, options, model, x) for x in (d, *random)]  # one of them exists at a time
    change = changes.Change({"what": "direction"}, variants[:1], variants[1:])
    effects = changes.measure_changes(
        model, opened, [change], measures={"loss": NATS, "kl": changes.OF_DIRECTION["kl"]}, kl="reverse", controls=True,
        progress=progress,
    )  # fmt: skip
    _, tokens, _ = next(iter(document_batches(opened.shards, model.config.n_ctx, CHECK_DOCUMENTS, CHECK_DOCUMENTS)))
    tokens = tokens.to(model.cfg.device)
    outputs = {"before": largest_output(model, tokens, d), "after": largest_output(variants[0](), tokens, d)}
    out = pd.DataFrame(outputs).rename_axis("part").reset_index()
    phrase = "written" if options.side == "write" else "read (use --side write to remove what is written)"
    title = f"{title_of(model)}: direction of layer {direction.layer} projected out of what is {phrase}"
    title += f"; {effects.documents}" + (f"; direction {found_in}" if found_in else "")
    # a control's table has its levels, too
    levels = [replace(c, null=0.0, tested=False) if c.null is None else c for c in effects.contrasts["loss"]]
    effects.contrasts["loss"] = [c for c in levels if c.quantity != "random_delta"]
    effects.about = {"title": title, "direction": direction.about}
    effects.arrays, effects.extra = {"direction": direction.vector.numpy()}, out
    return effects


def tables(options: Abliterate, effects: changes.Effects, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    title = effects.about["title"]
    return {
        "abliterate": changes.effect_table(effects, estimates, ABLITERATE, title),
        "outputs": Table(effects.extra, OUTPUTS, title=f"Largest output along the direction; {title}"),
    }


def write(options: Abliterate, model: StreamTransformer, result: Result) -> None:
    """Write the changed model as a run folder; the manifest holds parent, direction and measurements."""
    assert options.to is not None and model.run is not None
    release_memory()  # of the measured variants
    d, row = result.arrays["direction"], result.table().frame.iloc[0]
    outputs = result.table("outputs").frame.set_index("part")
    write_derived(
        options.to, changed_model(options, model, torch.from_numpy(d)), model.run, loss=float(row["loss"]),
        tokens=int(result.blocks["loss"].sizes[0].sum()), outcome="abliterated",
        direction={**result.about["direction"], "sha256": hashlib.sha256(d.tobytes()).hexdigest()},
        abliteration={"side": options.side, "embedding": options.embedding, "dense": options.dense},
        largest_output={when: outputs[when].to_dict() for when in ("before", "after")},
    )  # fmt: skip


OVER = "documents"
ABLITERATE = (
    key("what", "projected out", "the direction that is projected out"),
    *changes.reverse_kl("KL(after ‖ before)", "KL of next-token distributions"),
    *described("baseline", "loss before", NATS.unit, "loss per token before the change", sd=OVER),
    *described("loss", "loss after", NATS.unit, "loss per token after the change", sd=OVER),
    *changes.DELTA, *changes.TOKENS,
)  # fmt: skip
OUTPUTS = (
    key("part", "part", "branch of the blocks, or readout"),
    *(number(when, f"max |d·output| {when}", "units of the residual stream",
             "largest over layers, documents and positions", ".3g") for when in ("before", "after")),
)  # fmt: skip
