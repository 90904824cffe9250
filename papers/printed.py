"""Numbers as a paper prints them."""

import re
from typing import NamedTuple


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


class Bound(NamedTuple):
    """The claim that a model lies above or below a printed limit, or 0 for more in one place than another."""

    quantity: str
    preset: str
    side: str
    text: str
    where: str
    quote: str

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
