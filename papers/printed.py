"""What a paper prints: a row per printed cell, with its place and the line that it stands in.

`papers/PAPER/printed.csv` has the columns

    place, row, column    Table 4, LFA, Max L5 PDS; of a figure its series and x
    printed               as printed: 22.2M, 48.3%, -0.158, 3–6
    arm, quantity, part, x    the measured rows beside it (`papers.paper.Selection`); empty where there is none
    why                   three words that say why there is none
    unit                  of the cell; in percent a difference of two arms is relative to the second
    quote                 the line or sentence of the paper
"""

import re
from typing import NamedTuple

import pandas as pd

from streamscope.papers.paper import Estimate
from streamscope.papers.primary import PAPERS

NUMBER = re.compile(r"^[^\d.+−-]*([+−-]?)(\d*\.?\d+)(?:[-–]\d*\.?\d+)?\s*([MKk%×]?)")
COUNTS = ("heads", "streams", "clusters")
SCALE = {"M": 1e6, "K": 1e3, "k": 1e3, "%": 0.01}


class Form(NamedTuple):
    """How a paper writes a number, so that ours beside it is written alike."""

    decimals: int
    suffix: str
    signed: bool


def printed(paper: str) -> pd.DataFrame:
    """The printed cells of a paper, in its order."""
    cells = pd.read_csv(PAPERS / paper / "printed.csv", dtype=str, keep_default_na=False)
    return cells.assign(x=pd.to_numeric(cells["x"]))


def number(text: str) -> float:
    """The first number in a printed cell, or NaN: 2.22e7 for 22.2M, .483 for 48.3%."""
    match = NUMBER.match(text.replace(",", ""))
    if match is None:
        return float("nan")
    return float(match[1].replace("−", "-") + match[2]) * SCALE.get(match[3], 1.0)


def form(text: str, unit: str = "") -> Form:
    """How a cell is written. Means of counts have a decimal, and 16% of the unit percent is 16, not .16."""
    match = NUMBER.match(text.replace(",", ""))
    if match is None:
        return Form(3, "", False)
    decimals = max(len(match[2].partition(".")[2]), int(unit in COUNTS))
    suffix = "percent" if unit == "percent" and match[3] == "%" else match[3]
    return Form(decimals, suffix, match[1] == "+")


def written(value: float, number_form: Form) -> str:
    """A number as the paper writes it: 0.276, 48.3 %, 0.87 M."""
    scaled = value / SCALE.get(number_form.suffix, 1.0)
    decimals = number_form.decimals
    while number_form.suffix == "M" and decimals < 3 and abs(scaled) < 10 ** (1 - decimals):
        decimals += 1
    text = f"{scaled:{'+' if number_form.signed else ''}.{decimals}f}".replace("-", "−")
    if not text.strip("+−0."):
        text = text.lstrip("+−")  # a zero has no sign
    return text + {"%": " %", "percent": " %", "M": " M", "K": " K", "k": " k", "×": "×"}.get(number_form.suffix, "")


def with_interval(estimate: Estimate, number_form: Form) -> str:
    """A mean with its interval: 0.231 (0.205 to 0.257)."""
    text = written(estimate.mean, number_form)
    if not estimate.low < estimate.high:
        return text
    return f"{text} ({written(estimate.low, number_form)} to {written(estimate.high, number_form)})"
