"""Numbers as a paper prints them."""

import re
from typing import NamedTuple

import pandas as pd

SMALLEST = {
    "nats/token": 0.01,
    "nats": 0.05,
    "nats, log-odds": 0.05,
    "attention": 0.01,
    "share of cases": 0.05,
    "share of heads": 0.05,
    "share of tokens": 0.01,
    "share of variance": 0.01,
    "share of clusters": 0.05,
    "share": 0.01,
    "probability": 0.005,
    "heads": 0.5,
    "layer": 0.5,
    "layers": 0.5,
    "pooled sd": 0.2,
    "sd of differences": 0.2,
    "share of the loss": 0.01,
    "share of the direct effect": 0.1,
    "Spearman's ρ": 0.1,
    "|Spearman's ρ|": 0.1,
    "cosine": 0.01,
    "ARI": 0.02,
    "AMI": 0.02,
}
"""Unit -> the smallest effect of interest in it, ours: a difference within ± it is called negligible, however sure its
sign. A claim with another has its own."""


class Printed(NamedTuple):
    """A number of one model: the quantity here that it belongs to, the number as printed, where, and in which words."""

    preset: str
    quantity: str
    text: str
    where: str
    quote: str

    @property
    def value(self) -> float:
        """The number in the unit of the quantity."""
        return number(self.text)


class Order(NamedTuple):
    """The claim that `more` has more of a quantity than `less`; its size is the difference of the two printed."""

    quantity: str
    more: str
    less: str
    where: str
    smallest: float | None = None
    quote: str = ""
    task: str = ""
    """The quantity in nats that must lie above 0 in both."""


class Bound(NamedTuple):
    """The claim that a model lies above or below a printed limit, or 0 for more in one place than another."""

    quantity: str
    preset: str
    side: str
    text: str
    where: str
    quote: str
    smallest: float | None = None

    @property
    def limit(self) -> float:
        """The limit in the unit of the quantity."""
        return number(self.text)


def number(text: str) -> float:
    """22.2M, 48.3%, 0.276, -0.158, +0.00215 as a number: M is 10⁶, % a share of one.

    Raises `ValueError` for anything else.
    """
    found = re.fullmatch(r"([-+]?\d*\.?\d+)([M%]?)", text)
    if found is None:
        raise ValueError(f"{text!r} is no printed number")
    return float(found[1]) * {"": 1.0, "M": 1e6, "%": 0.01}[found[2]]


def smallest(claim: Order | Bound, quantities: pd.DataFrame) -> float:
    """The smallest effect of interest of a claim: its own, else that of its quantity's unit; NaN of an unknown unit."""
    if claim.smallest is not None:
        return claim.smallest
    units = quantities.loc[quantities["quantity"] == claim.quantity, "unit"]
    return SMALLEST.get(str(units.iloc[0]), float("nan")) if len(units) else float("nan")
