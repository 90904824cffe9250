"""PLS' page: planted rows whose cells are known, figures that draw the values of the table, a run that is measured."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from streamscope.cli.errors import InputError
from streamscope.papers.page import Page
from streamscope.papers.paper import OWN, complete, load
from streamscope.papers.pls import figures, tables

EARLY = {"pls": [0.41, 0.33, 0.38], "c2": [0.12, 0.2, 0.07]}


def rows(values: dict[str, list[float]], quantity: str, part: str = "", unit: str = "share of tokens") -> pd.DataFrame:
    return complete(
        pd.DataFrame(
            {"grid": OWN, "arm": arm, "seed": seed, "quantity": quantity, "part": part, "value": value, "unit": unit,
             "parameters": 5e5, "tokens": 3e6, "text": "stories"}
            for arm, one in values.items() for seed, value in enumerate(one)
        )
    )  # fmt: skip


def line(text: str, start: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(f"| {start} "))


def test_a_planted_cell_is_the_mean_with_its_t_interval() -> None:
    page = Page("pls", rows(EARLY, "depth", "layers 0–1"))
    cell = page.frame("Table 1").set_index(["row", "column"]).loc[("Early (layers 0–1)", "PLS")]
    low, high = stats.t.interval(0.95, 2, np.mean(EARLY["pls"]), stats.sem(EARLY["pls"]))
    assert cell[["measured", "low", "high"]].to_list() == pytest.approx([np.mean(EARLY["pls"]), low, high], abs=1e-12)
    difference = stats.ttest_ind(EARLY["pls"], EARLY["c2"], equal_var=False).confidence_interval(0.95)
    last = page.frame("Table 1").set_index(["row", "column"]).loc[("Early (layers 0–1)", "PLS − C2")]
    assert last[["low", "high"]].to_list() == pytest.approx([*difference], abs=1e-12)
    assert "| 26% | 37 % (27 % to 47 %) | 5% | 13 % (0 % to 29 %) |" in line(page.table("Table 1"), "Early (layers 0–1)")


def test_a_column_without_printed_cells_is_one_column_written_as_those_beside_it() -> None:
    page = Page("pls", rows({"pls": [0.5, 0.4], "c2": [0.3, 0.4]}, "clusters.coverage", "HDBSCAN"))
    text = page.table("C.5")
    assert text.splitlines()[0] == "|  | PLS, printed | measured (95 %) | C2, measured (95 %) |"
    assert line(text, "Coverage").endswith("| 46.0% | 45.0 % (0.0 % to 100.0 %) | 35.0 % (0.0 % to 98.5 %) |")
