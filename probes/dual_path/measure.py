"""The paths of HDPL's projections: sums over the positions of every document, and the loss with latents drawn."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.instruments.contract import InstrumentData, Progress, title_of
from streamscope.instruments.data import Documents, Opened
from streamscope.instruments.observations import Contrast, Estimates, Measure, Observations, each
from streamscope.instruments.open_data import OpenDocuments
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
    named = dict(model.named_modules())
    return {name: named[name] for i in range(model.config.n_layers) for name in (f"blocks.{i}.{p}" for p in paths)}


def observe(how: DualPath, model: Any, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: projections, their dimensions, and losses at μ and for every draw. Units: documents."""
    opened, projections = data[Documents], projections_of(model)
    sums, losses = Sums(projections), []
    for batch, (index, tokens, targets) in enumerate(progress(list(opened.batches()))):
        tokens, targets = tokens.to(model.cfg.device), targets.to(model.cfg.device)
        with torch.no_grad(), capture(model, [f"{name}.hook_{kind}" for name in projections for kind in READ]) as found:
            at_mean = loss(model, tokens, targets)
        sums.add(found, index, targets != IGNORE)
        drawn = [_loss_with_draw(how, model, projections, tokens, targets, batch, draw) for draw in range(how.draws)]
        losses.append((index, torch.stack([at_mean, *drawn]).cpu().numpy()))
    return seen_of(how, model, opened, sums, losses)


def loss(model: Any, tokens: Tensor, targets: Tensor) -> Float[Tensor, " B"]:
    """Summed loss of each row, in nats."""
    return model.losses_from(model.segment(model.embed_tokens(tokens)), targets).double().sum(1)


def _loss_with_draw(
    how: DualPath, model: Any, projections: Mapping[str, HdplProjection], tokens: Tensor, targets: Tensor,
    batch: int, draw: int,
) -> Float[Tensor, " B"]:  # fmt: skip
    """The loss with z = μ + σ ε, from a separate seed for every batch and draw."""
    devices = [tokens.device] if tokens.device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices), drawing(projections):
        torch.manual_seed(int(np.random.SeedSequence([how.seed, batch, draw]).generate_state(1)[0]))
        return loss(model, tokens, targets)


@contextmanager
def drawing(projections: Mapping[str, HdplProjection]) -> Iterator[None]:
    """Within this context the projections draw z as in training; the rest of the model, such as dropout, does not."""
    before = {name: one.training for name, one in projections.items()}
    try:
        for one in projections.values():
            one.training = True
        yield
    finally:
        for name, one in projections.items():
            one.training = before[name]
        take_penalties(list(projections.values()))


class Sums:
    """Sums over the positions with a target, per document, in double precision; lists are in the order of projections,
    and `documents` gives the document of each row."""

    def __init__(self, projections: Mapping[str, HdplProjection]) -> None:
        self.projections, self.documents, self.tokens = projections, list[int](), list[np.ndarray]()
        names = ("kl", "clamped", "global along", "output", "global", "detail")
        self.of: dict[str, list[np.ndarray]] = {name: [] for name in names}  # each [projections, rows]
        self.by_dimension: dict[str, list[np.ndarray]] = {name: [] for name in projections}  # each [rows, R]
        self.first = {name: torch.zeros(one.rank, dtype=torch.float64) for name, one in projections.items()}
        self.second = {name: torch.zeros_like(one) for name, one in self.first.items()}

    def add(self, found: Mapping[str, Tensor], index: Any, real: Bool[Tensor, "B T"]) -> None:
        """Add the rows of a batch."""
        self.documents += [int(i) for i in index]
        self.tokens.append(real.sum(1).cpu().numpy())
        rows: dict[str, list[np.ndarray]] = {name: [] for name in self.of}
        for name in self.projections:
            d, g, mu, logvar = (found[f"{name}.hook_{kind}"].double() for kind in READ)
            y, kl = d + g, kl_by_dimension(mu, logvar)
            token = kl.sum(-1)
            per = {
                "kl": token, "clamped": (token > LN2).double(), "global along": (g * y).sum(-1),
                "output": y.square().sum(-1), "global": g.square().sum(-1), "detail": d.square().sum(-1),
            }  # fmt: skip
            for what, values in per.items():
                rows[what].append((values * real).sum(1).cpu().numpy())
            self.by_dimension[name].append((kl * real[..., None]).sum(1).cpu().numpy())
            self.first[name] += mu[real].sum(0).cpu()
            self.second[name] += mu[real].square().sum(0).cpu()
        for what, one in rows.items():
            self.of[what].append(np.stack(one))

    def total(self, what: str) -> np.ndarray:
        """[projections, documents] for one of the sums, in document order."""
        return np.concatenate(self.of[what], 1)[:, self.order]

    @property
    def order(self) -> np.ndarray:
        """The row of each document."""
        return np.argsort(self.documents)

    def dimensions(self) -> np.ndarray:
        """KL of every dimension of every projection [dimensions, documents]."""
        return np.concatenate([np.concatenate(rows).T for rows in self.by_dimension.values()])[:, self.order]

    def variance(self, name: str) -> np.ndarray:
        """Var_t μ_r [R] over all positions."""
        n = sum(int(one.sum()) for one in self.tokens)
        mean = self.first[name] / n
        return (self.second[name] / n - mean.square()).clamp(min=0.0).numpy()


def seen_of(how: DualPath, model: Any, opened: OpenDocuments, sums: Sums, losses: list[Any]) -> InstrumentData:
    """Observations from the sums."""
    tokens = np.concatenate(sums.tokens)[sums.order].astype(float)
    some = tokens > 0
    if not some.any():
        raise InputError("no document has a token to predict")
    units = opened.units()[some].reset_index(drop=True)
    names = [name.split(".") for name in sums.projections]
    cells = pd.DataFrame([{"place": f"L{i}.{part}", "layer": int(i), "projection": part} for _, i, _, part in names])
    dims = pd.DataFrame([
        {**cell, "dimension": r}
        for cell, one in zip(cells.to_dict("records"), sums.projections.values(), strict=True) for r in range(one.rank)
    ])  # fmt: skip
    title = f"{title_of(model)}: {opened.title()}, {int(tokens.sum()):,} tokens"
    seen = InstrumentData({}, {}, {"title": title}, extra={})

    def block(name: str, unit: str, keys: pd.DataFrame, total: np.ndarray, size: Any, quantity: str = "") -> None:
        measure = Measure(name=name, unit=unit, resolution=ROUNDING)
        seen.blocks[name] = Observations(measure=measure, cells=keys, units=units, total=total, size=size)
        seen.contrasts[name] = each(quantity or name, keys, tested=False)
        if not quantity:
            weights = dict.fromkeys(range(len(keys)), 1 / len(keys))
            seen.contrasts[name].append(Contrast(quantity=f"mean_{name}", weights=weights, tested=False))

    def of(what: str) -> np.ndarray:
        return sums.total(what)[:, some]

    block("kl", NATS, cells, of("kl"), tokens[some])
    block("clamped", "share of tokens", cells, of("clamped"), tokens[some])
    # a document without any output of a projection has size 0 and is not in the cell
    block("along", SHARE, cells, of("global along"), of("output"))
    block("power", POWER, cells, of("global"), of("global") + of("detail"))
    block("dimensions", NATS, dims, sums.dimensions()[:, some], tokens[some], "kl")
    order = np.argsort(np.concatenate([index for index, _ in losses]))
    total = np.concatenate([one for _, one in losses], 1)[:, order][:, some]
    draws = range(1, how.draws + 1)
    block("loss", NATS, pd.DataFrame({"z": ["mean", *(f"draw {d}" for d in draws)]}), total, tokens[some])
    mean = dict.fromkeys(draws, 1 / how.draws)
    seen.contrasts["loss"] = [
        Contrast(quantity="loss", weights={0: 1.0}, null=None),
        Contrast(quantity="drawn", weights=mean, null=None),
        Contrast(quantity="delta", weights={**mean, 0: -1.0}),
    ]
    seen.extra["variance"] = np.concatenate([sums.variance(name) for name in sums.projections])
    return seen


def tables(how: DualPath, seen: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """projections: one row each; dimensions: KL and whether it is active; model: means, and loss at z = μ and drawn."""
    title, keys = seen.about["title"], list(KEYS)
    dims, lost = estimates["dimensions"].wide([*keys, "dimension"])
    dims["variance"] = seen.extra["variance"]
    dims["active"] = dims["variance"] > how.active
    frame, missing = estimates["kl"].where(quantity="kl").wide(keys)
    model, lost_of_all = estimates["loss"].wide([])
    for name in ("kl", "clamped", "along", "power"):
        if name != "kl":
            other, why = estimates[name].where(quantity=name).wide(keys)
            frame = frame.merge(other.drop(columns=["n", "clusters"]), on=keys, validate="one_to_one")
            missing |= why
        other, why = estimates[name].where(quantity=f"mean_{name}").wide([])
        model = pd.concat([other.drop(columns=["n", "clusters"]), model], axis=1)
        lost_of_all |= why
    by_place = dims.groupby("place", sort=False)["active"]
    frame["active"], frame["dimensions"] = by_place.sum().to_numpy(), by_place.size().to_numpy()
    model["active"], model["dimensions"] = int(frame["active"].sum()), int(frame["dimensions"].sum())
    dims["active"] = np.where(dims["active"], "yes", "no")
    means = f"{title}: means over projections; z drawn as in training, {how.draws} times"
    return {
        "projections": Table(frame, PROJECTIONS, missing, title),
        "dimensions": Table(dims, DIMENSIONS, lost, f"{title}: by latent dimension", "kl", 10),
        "model": Table(model, MODEL, lost_of_all, means),
    }


WHERE = (
    key("place", "projection", "layer and projection"),
    number("layer", "layer", "layer", "from 0", "d", False),
    Column(name="projection", title="projection", unit="name", shown=False, doc="q, k, v, o, gate, up or down"),
)  # fmt: skip
COUNTS = counts("documents or windows", "documents")


def _shares(prefix: str = "", where: str = "") -> tuple[Column, ...]:
    """The four quantities of a projection, or their means over all."""
    means = (
        ("along", "global path's share", SHARE, "Σ g·y / Σ y·y; the detail path has the rest", ".4f"),
        ("power", "global path's power", POWER, "Σ |g|² / Σ (|g|² + |d|²)", ".4f"),
        ("kl", "KL", NATS, "KL(N(μ, σ²) ‖ N(0, I)), before the bound", ".3f"),
        (
            "clamped",
            "KL > ln 2",
            "share of tokens",
            "tokens above the paper's bound, where the penalty has no gradient",
            ".3f",
        ),
    )
    return tuple(
        column
        for name, title, unit, doc, format in means
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
    *quantity("loss", "loss, z = μ", NATS, "loss as at evaluation", tested=False, format=".4f"),
    *quantity("drawn", "loss, z drawn", NATS, "loss as in training, mean over draws", tested=False, format=".4f"),
    *quantity("delta", "Δ loss", NATS, "loss with z drawn − loss at z = μ", sd="documents"),
    *COUNTS,
)  # fmt: skip
