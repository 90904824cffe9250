"""Tables of the papers as they print them, each value with what came out here below it (layouts.toml)."""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from streamscope.papers.claims.table import measured
from streamscope.papers.claims.words import MEANINGS

FILE = Path(__file__).with_name("layouts.toml")
WRITTEN = tuple(MEANINGS)[-3:]
"""Verdicts that no measurement gives."""
SIGNS = {"reproduced": "=", "different value": "≠", "contradicted": "≠", "no effect": "≈ 0", "inconclusive": "?"}
"""Behind a measured value; other verdicts stand there in words."""
KEY = "= reproduced, ≠ contradicted or different, ≈ 0 no effect, ? inconclusive; in brackets 95 % intervals"
ROW, SOURCE, PAPER, HERE = "row", "value", "printed", "here"


@cache
def layouts() -> Mapping[str, Mapping[str, Any]]:
    """Paper -> table -> its layout."""
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def cells(layout: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """(row, column) -> the id of its claim, as the layout has them."""
    blank, other = layout.get("blank", ()), layout.get("other", {})
    found = {}
    for row, name in layout["rows"].items():
        for column, pattern in layout["columns"].items():
            if (place := f"{row}, {column}") not in blank:
                found[row, column] = other.get(place) or pattern.replace("ROW", name)
    return found


def arranged(claims: pd.DataFrame, layout: Mapping[str, Any]) -> pd.DataFrame:
    """The table as printed: of every row what the paper has, and below it what was measured here with its verdict.

    `claims` are judged rows of the ledger that hold those of the layout.
    """
    judged = claims.drop_duplicates("id").assign(cell=lambda rows: measured(rows)).set_index("id")
    lines = []
    for row in layout["rows"]:
        printed, here = {ROW: row, SOURCE: PAPER}, {ROW: "", SOURCE: HERE}
        for column in layout["columns"]:
            name = cells(layout).get((row, column))
            one = None if name is None else judged.loc[name]
            printed[column] = "" if one is None else one["printed"]
            here[column] = "" if one is None else measured_cell(one)
        lines += [printed, here]
    return pd.DataFrame(lines)


def measured_cell(one: "pd.Series[Any]") -> str:
    """What was measured and the sign of its verdict, or the verdict in words; of a property its reason as well."""
    verdict = str(one["verdict"])
    if not one["cell"]:
        return f"{verdict}: {one['finding']}" if one["kind"] == "property" and verdict in WRITTEN else verdict
    return f"{one['cell']} {SIGNS[verdict]}" if verdict in SIGNS else f"{one['cell']}, {verdict}"


def others(claims: pd.DataFrame, layout: Mapping[str, Any]) -> pd.DataFrame:
    """Claims that stand in the table, or are read off it, and have no cell of their own."""
    return claims[~claims["id"].isin(set(cells(layout).values()))]
