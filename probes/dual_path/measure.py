"""The paths of HDPL's projections: sums over the positions of every document, and the loss with latents drawn."""

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from streamscope.cli.terminal import counted
from streamscope.instruments.contract import InstrumentData, Progress, title_of
from streamscope.instruments.data import Documents, Opened
from streamscope.instruments.observations import Contrast, Estimates, Measure, joined
from streamscope.instruments.table import Column, Table, counts, described, key, number, quantity
from streamscope.models.hooks import capture
from streamscope.models.layers.hdpl import LN2, HdplProjection, kl_by_dimension, latent_widths, take_penalties
from streamscope.models.readout import IGNORE
from streamscope.probes.dual_path import DualPath

READ = ("detail", "global", "mu", "logvar")
KEYS = ("place", "layer", "projection")
NATS, SHARE, POWER = "nats per token", "share of the output", "share of both paths' power"
ROUNDING = 1e-6
"""Rounding of a document's value in single precision."""


def projections_of(model: Any) -> dict[str, HdplProjection]:
    """{"blocks.L.attn.q": projection}, in order of layers and use. Raises `InputError` for a model without any."""
    paths = latent_widths(model.config)
    modules = dict(model.named_modules())
    return {name: modules[name] for i in range(model.config.n_layers) for name in (f"blocks.{i}.{p}" for p in paths)}


def observe(options: DualPath, model: Any, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: projections, their dimensions, and losses at μ and for every draw. Units: documents."""
    opened, projections, batches = data[Documents], projections_of(model), itertools.count()
    device = torch.device(model.cfg.device)
    devices = [device] if device.type == "cuda" else []

    def of(tokens: Tensor, targets: Tensor) -> dict[str, Tensor]:
        with (
            torch.no_grad(),
            capture(model, [f"{name}.hook_{kind}" for name in projections for kind in READ]) as captures,
        ):
            at_mean = loss(model, tokens, targets)
        batch, draw_losses = next(batches), list[Tensor]()
        for draw in range(options.draws):  # z = μ + σ ε, from a separate seed for every batch and draw
            with torch.no_grad(), torch.random.fork_rng(devices), drawing(projections):
                torch.manual_seed(int(np.random.SeedSequence([options.seed, batch, draw]).generate_state(1)[0]))
                draw_losses.append(loss(model, tokens, targets))
        per_projection = [sums_of(captures, name, targets != IGNORE) for name in projections]
        sums = {name: torch.cat([parts[name] for parts in per_projection]) for name in per_projection[0]}
        return {**sums, "loss": torch.stack([at_mean, *draw_losses])}

    total, units = opened.sums(model.cfg.device, of, progress)
    tokens, n = total["targets"], total["targets"].sum()
    names = [name.split(".") for name in projections]
    cells = pd.DataFrame([{"place": f"L{i}.{part}", "layer": int(i), "projection": part} for _, i, _, part in names])
    dims = pd.DataFrame([
        {**cell, "dimension": r}
        for cell, projection in zip(cells.to_dict("records"), projections.values(), strict=True)
        for r in range(projection.rank)
    ])  # fmt: skip
    mean = total["first"].sum(1) / n
    variance = np.maximum(total["second"].sum(1) / n - mean**2, 0.0)  # Var_t μ_r over all positions
    title = f"{title_of(model)}: {opened.title()}, {counted(int(n), 'token', ',')}"
    measurements = InstrumentData(about={"title": title}, extra={"variance": variance})

    def block(name: str, unit: str, keys: pd.DataFrame, total: np.ndarray, size: Any, quantity: str = "") -> None:
        limits = (0.0, 1.0) if name in ("clamped", "power") else (0.0, np.inf) if quantity or name == "kl" else None
        measure = Measure(name=name, unit=unit, resolution=ROUNDING, limits=limits)
        measurements.add(measure, keys, units, total, size, quantity=quantity, tested=False)
        if not quantity:
            weights = dict.fromkeys(range(len(keys)), 1 / len(keys))
            measurements.contrasts[name].append(Contrast(quantity=f"mean_{name}", weights=weights, tested=False))

    block("kl", NATS, cells, total["kl"], tokens)
    block("clamped", "share of tokens", cells, total["clamped"], tokens)
    # a document without any output of a projection has size 0 and is not in the cell
    block("along", SHARE, cells, total["global along"], total["output"])
    block("power", POWER, cells, total["global"], total["global"] + total["detail"])
    block("dimensions", NATS, dims, total["dimensions"], tokens, "kl")
    draws = range(1, options.draws + 1)
    block("loss", NATS, pd.DataFrame({"z": ["mean", *(f"draw {d}" for d in draws)]}), total["loss"], tokens)
    draw_weights = dict.fromkeys(draws, 1 / options.draws)
    measurements.contrasts["loss"] = [
        Contrast(quantity="loss", weights={0: 1.0}, null=None),
        Contrast(quantity="drawn", weights=draw_weights, null=None),
        Contrast(quantity="delta", weights={**draw_weights, 0: -1.0}),
    ]
    return measurements


def sums_of(
    captures: Mapping[str, Tensor], name: str, real: Bool[Tensor, "B T"]
) -> dict[str, Float[Tensor, "cells B"]]:
    """Sums over the positions with a target of each row, in double precision, for one projection; the last three are
    by dimension."""
    d, g, mu, logvar = (captures[f"{name}.hook_{kind}"].double() for kind in READ)
    y, kl = d + g, kl_by_dimension(mu, logvar)
    values = {
        "kl": kl.sum(-1), "clamped": kl.sum(-1) > LN2, "global along": (g * y).sum(-1), "output": y.square().sum(-1),
        "global": g.square().sum(-1), "detail": d.square().sum(-1), "dimensions": kl, "first": mu,
        "second": mu.square(),
    }  # fmt: skip
    return {name: (x.reshape(*real.shape, -1) * real[..., None]).double().sum(1).T for name, x in values.items()}


def loss(model: Any, tokens: Tensor, targets: Tensor) -> Float[Tensor, " B"]:
    """Summed loss of each row, in nats."""
    return model.losses_from(model.segment(model.embed_tokens(tokens)), targets).double().sum(1)


@contextmanager
def drawing(projections: Mapping[str, HdplProjection]) -> Iterator[None]:
    """Within this context the projections draw z as in training; the rest of the model, such as dropout, does not."""
    training = {module: module.training for module in projections.values()}
    try:
        for module in training:
            module.training = True
        yield
    finally:
        for module, mode in training.items():
            module.training = mode
        take_penalties(list(training))


def tables(options: DualPath, data: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """projections: one row each; dimensions: KL and whether it is active; model: means, and loss at z = μ and drawn."""
    title, keys = data.about["title"], list(KEYS)
    dims, dims_missing = estimates["dimensions"].wide([*keys, "dimension"])
    dims["variance"] = data.extra["variance"]
    dims["active"] = dims["variance"] > options.active
    names = ("kl", "clamped", "along", "power")
    frame, missing = joined([estimates[name].where(quantity=name) for name in names], keys, PROJECTIONS)
    means = [estimates[name].where(quantity=f"mean_{name}") for name in names]
    model, lost_of_all = joined([estimates["loss"], *means], [], MODEL)
    by_place = dims.groupby("place", sort=False)["active"]
    frame["active"], frame["dimensions"] = by_place.sum().to_numpy(), by_place.size().to_numpy()
    model["active"], model["dimensions"] = int(frame["active"].sum()), int(frame["dimensions"].sum())
    dims["active"] = np.where(dims["active"], "yes", "no")
    of_all = f"{title}: means over projections; z drawn as in training, {options.draws} times"
    return {
        "projections": Table(frame, PROJECTIONS, missing, title),
        "dimensions": Table(dims, DIMENSIONS, dims_missing, f"{title}: by latent dimension", "kl", 10),
        "model": Table(model, MODEL, lost_of_all, of_all),
    }


WHERE = (
    key("place", "projection", "layer and projection"),
    number("layer", "layer", "layer", "from 0", "d", False),
    key("projection", "projection", "q, k, v, o, gate, up or down", shown=False),
)  # fmt: skip
COUNTS = counts("documents or windows", "documents")
QUANTITIES = (
    ("along", "global path's share", SHARE, "Σ g·y / Σ y·y; the detail path has the rest", ".4f"),
    ("power", "global path's power", POWER, "Σ |g|² / Σ (|g|² + |d|²)", ".4f"),
    ("kl", "KL", NATS, "KL(N(μ, σ²) ‖ N(0, I)), before the bound", ".3f"),
    ("clamped", "KL > ln 2", "share of tokens", "tokens above the paper's bound, where the penalty has no gradient",
     ".3f"),
)  # fmt: skip


def _shares(prefix: str = "", where: str = "") -> tuple[Column, ...]:
    """The four quantities of a projection, or their means over all."""
    return tuple(
        column
        for name, title, unit, doc, format in QUANTITIES
        for column in described(f"{prefix}{name}", title, unit, doc + where, format=format, sd="documents")
    )


ACTIVE = (
    number("active", "active dimensions", "latent dimensions", "dimensions whose mean varies over positions", "d"),
    number("dimensions", "dimensions", "latent dimensions", "R, the width of the latent", "d"),
)  # fmt: skip
PROJECTIONS = (*WHERE, *_shares(), *ACTIVE, *COUNTS)
DIMENSIONS = (
    *WHERE,
    number("dimension", "dimension", "latent dimension", "from 0", "d"),
    *described("kl", "KL", NATS, "KL of this dimension", sd="documents"),
    number("variance", "variance of μ", "variance of μ over tokens", "variance over all positions"),
    key("active", "active", "whether the variance exceeds --active", "yes or no"),
    *COUNTS,
)  # fmt: skip
MODEL = (
    *_shares("mean_", ", mean over projections"),
    *ACTIVE,
    number("loss", "loss, z = μ", NATS, "loss as at evaluation", ".4f"),
    number("drawn", "loss, z drawn", NATS, "loss as in training, mean over draws", ".4f"),
    *quantity("delta", "Δ loss", NATS, "loss with z drawn − loss at z = μ", sd="documents"),
    *COUNTS,
)  # fmt: skip
