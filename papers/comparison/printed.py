"""Numbers and claims as the papers print them: numbers of the ledgers, and the claims that a comparison judges.

A line of `papers/claims/compared.csv` is such a claim, with its place in the paper and, where it is not that of the
unit, the smallest effect of interest: "A > B", "A above 0.1" (or below), or "|A| > |B|" for a factor of sizes. Limits
such as 0 are ours; what a paper prints stands in its ledger alone.
"""

import csv
import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from streamscope.papers.claims.ledger import HERE, Row, keys, read

SMALLEST: dict[str, float] = tomllib.loads(Path(__file__).with_name("smallest.toml").read_text(encoding="utf-8"))
"""Unit -> the smallest effect of interest in it. A claim with another has its own."""


class Printed(NamedTuple):
    """A number of one model: the quantity here that it belongs to, the number as printed, and where."""

    preset: str
    quantity: str
    text: str
    where: str

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
    """What the paper says of both: its words, or two numbers as "0.995 against 0.994"."""
    task: str = ""
    """The quantity in nats that must lie above 0 in both."""


class Bound(NamedTuple):
    """The claim that a model lies above or below a printed limit, or 0 for more in one place than another."""

    quantity: str
    preset: str
    side: str
    text: str
    where: str
    smallest: float | None = None

    @property
    def limit(self) -> float:
        """The limit in the unit of the quantity."""
        return number(self.text)


class Ratio(NamedTuple):
    """The claim that a model has more of a quantity than its control, by a printed factor of sizes."""

    quantity: str
    text: str
    where: str


def number(text: str) -> float:
    """22.2M, 48.3%, 0.276, -0.158, +0.00215 as a number: M is 10⁶, % a share of one.

    Raises `ValueError` for anything else.
    """
    found = re.fullmatch(r"([-+]?\d*\.?\d+)([M%]?)", text)
    if found is None:
        raise ValueError(f"{text!r} is no printed number")
    return float(found[1]) * {"": 1.0, "M": 1e6, "%": 0.01}[found[2]]


def between(text: str) -> float:
    """Of "0.995 against 0.994" the first number less the second; NaN of any other text."""
    two = re.fullmatch(r"(\S+) against (\S+)", text)
    return number(two[1]) - number(two[2]) if two else float("nan")


def smallest(claim: Order | Bound, quantities: pd.DataFrame) -> float:
    """The smallest effect of interest of a claim: its own, else that of its quantity's unit; NaN of an unknown unit."""
    if claim.smallest is not None:
        return claim.smallest
    units = quantities.loc[quantities["quantity"] == claim.quantity, "unit"]
    return SMALLEST.get(str(units.iloc[0]), float("nan")) if len(units) else float("nan")


# ---- from the ledgers --------------------------------------------------------------------------


@cache
def rows() -> Mapping[str, Row]:
    """The claims of the shipped ledgers by id."""
    return {claim.row["id"]: claim.row for claim in read(HERE)}


def printed(claim: str) -> float:
    """The number that a claim of the ledger prints; of 6.32% the 6.32."""
    return float(rows()[claim]["printed"].rstrip("%").replace("−", "-"))


@cache
def numbers(paper: str) -> Mapping[tuple[str, str], Printed]:
    """(preset, quantity) → what the paper prints of it, the first that the ledger has.

    These are the numbers that are compared with a mean over seeds. A number that nothing measures has its configuration
    and its unit there, a factor of two models the claim: ("|pls| > |c2|", quantity).
    """
    found: dict[tuple[str, str], Printed] = {}
    for name, row in rows().items():
        if not name.startswith(f"{paper}-") or row["unit"] == "p":  # a p is of a test
            continue
        who, quantity = row["configuration"], row["unit"]
        if row["result"]:
            key, *more = keys(row["result"], name)
            pairs = dict(key.pairs)
            of_models = key.value == "mean" or (key.value == "value" and who == pairs.get("preset"))
            if more or not (row["unit"] == "factor" or (row["kind"] == "number" and of_models)):
                continue
            who, quantity = pairs.get("preset", pairs.get("claim", "")), pairs.get("quantity", "")
        found.setdefault((who, quantity), Printed(who, quantity, row["printed"], row["place"]))
    return found


@cache
def claims_to_judge(paper: str) -> tuple[Order | Bound | Ratio, ...]:
    """The claims of a paper that a comparison of runs judges, in the order of compared.csv."""
    found: list[Order | Bound | Ratio] = []
    with (HERE / "compared.csv").open(encoding="utf-8", newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["paper"] == paper]
    for line in lines:
        quantity, claim, where = line["quantity"], line["claim"], line["place"]
        least = float(line["smallest"]) if line["smallest"] else None
        if claim.startswith("|"):
            found.append(Ratio(quantity, numbers(paper)[claim, quantity].text, where))
        elif " > " in claim:
            more, less = claim.split(" > ")
            found.append(Order(quantity, more, less, where, least, line["quote"], line["task"]))
        else:
            preset, side, text = claim.rsplit(" ", 2)
            found.append(Bound(quantity, preset, side, text, where, least))
    return tuple(found)


def of_arms(claims: Iterable[Order | Bound | Ratio], arms: Mapping[str, str]) -> list[Order | Bound]:
    """Those claims whose arms are there, by the names of these; `arms` is what a claim calls an arm -> its name."""
    found: list[Order | Bound] = []
    for one in claims:
        if isinstance(one, Bound) and one.preset in arms:
            found.append(one._replace(preset=arms[one.preset]))
        elif isinstance(one, Order) and {one.more, one.less} <= set(arms):
            found.append(one._replace(more=arms[one.more], less=arms[one.less]))
    return found
