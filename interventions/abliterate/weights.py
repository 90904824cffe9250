"""Weights with a direction projected out of everything that the matrices write to the residual stream.

In row vectors a matrix writes y = x W + b. With a unit direction d, W' = W (I − d d^T) and b' = b − (b·d) d, so
d·y' = 0 for every input (Arditi et al. 2024, arXiv 2406.11717, weight orthogonalization).
"""

import copy
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.models.config import Dense, Identity, Independent, Kronecker
from streamscope.models.hooks import capture
from streamscope.models.transformer import StreamTransformer

WRITERS = (("attn", "o", "attention"), ("mlp", "down", "mlp"))
"""Module and name in a block, and part of the configuration."""

Side = Literal["write", "read"]


def project_out(W: Tensor, d: Tensor) -> Tensor:
    """W (I − d d^T) for W [..., D] and d [D], in float64, returned in W's dtype: d·(x W') = 0."""
    wide, r = W.double(), d.double()
    r = r / r.norm()
    return (wide - (wide @ r)[..., None] * r).to(W.dtype)


@torch.no_grad()
def abliterate_weights(
    model: StreamTransformer, d: Tensor, *, side: Side = "write", embedding: bool = False, dense: bool = False,
    share: bool = False,
) -> StreamTransformer:  # fmt: skip
    """A new model whose attention and FFN outputs (weights and biases) have no component along d [D].

    embedding: also change the token embedding and the position table, so that no stream has a component along d. A tied
    head then loses d, too.
    dense: store identity, independent and Kronecker output projections as dense matrices, because W (I − d d^T) breaks
    their structure; without it they raise `InputError`.
    side: "read" reproduces the wrong variant of SPEC §1.10 a. It removes d from what attention's output matrix READS,
    (I − d d^T) W, which lives in head space and not in the residual stream.

    share: keep the unchanged weights in common with `model`, for a model that is only measured: on SmolLM2 a quarter of
    the memory of a copy.

    Raises `InputError` for a direction of another width, and for projections that are not linear or normed afterwards.
    """
    config = model.config
    model.no_norm_after()
    if d.shape != (config.d_model,):
        raise InputError(f"the direction has shape {list(d.shape)}, the residual stream has width {config.d_model}")
    if not torch.isfinite(d).all() or not d.norm() > 0:
        raise InputError("the direction must be finite and not 0")
    chosen = WRITERS if side == "write" else WRITERS[:1]
    for _, name, part in chosen:
        config = _with_dense(config, part, name, dense)
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
            if name in (now := model.state_dict()):
                weights[name] = project_out(now[name], d)
    if share and config == model.config:
        same = [x for name, x in model.named_parameters() if name not in weights]
        new = copy.deepcopy(model, {id(one): one for one in (*same, model.tokenizer)})
        for name, x in weights.items():
            new.get_parameter(name).copy_(x)
        return new.eval()
    new = StreamTransformer(config, model.tokenizer, seed=None).to(model.cfg.device, model.cfg.dtype)
    new.load_state_dict({**model.state_dict(), **weights})
    return new.eval()


def _with_dense(config: Any, part: str, name: str, dense: bool) -> Any:
    """The configuration with a dense `part.name`."""
    owner = getattr(config, part)
    spec = getattr(owner, name)
    if isinstance(spec, Dense):
        return config
    if not isinstance(spec, Identity | Independent | Kronecker):
        raise InputError(f"{part}.{name} is {spec.kind}, and no direction can be projected out of it")
    if not dense:
        raise InputError(
            f"{part}.{name} is {spec.kind}, which a projection would break; --dense stores it as a dense matrix"
        )
    return replace(config, **{part: replace(owner, **{name: Dense(bias=getattr(spec, "bias", False))})})


@torch.no_grad()
def largest_output(model: StreamTransformer, tokens: Tensor, d: Tensor) -> dict[str, float]:
    """max |d·y| over layers, rows and positions, for the outputs of attention and FFN and for the readout.

    In units of the residual stream; d [D] is a unit vector, tokens are [B, T].
    """
    hooks = {"attention": "hook_attn_out", "FFN": "hook_mlp_out", "readout": "hook_resid_post"}
    largest = dict.fromkeys(hooks, 0.0)
    for row in tokens.split(1):  # of a large model, the outputs of all rows are a gigabyte
        with capture(model, [f"blocks.*.{hook}" for hook in hooks.values()]) as found:
            model(row, return_type=None)
        for name, hook in hooks.items():
            values = [float((x @ d.to(x)).abs().max()) for key, x in found.items() if key.endswith(hook)]
            largest[name] = max(largest[name], *values)
    return largest
