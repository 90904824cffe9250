"""Estimates, printed cells and pages: planted rows whose answer is known."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from streamscope.cli.errors import InputError
from streamscope.papers.__main__ import main
from streamscope.papers.page import Page, index
from streamscope.papers.paper import ENDS, NAMES, OWN, RESULTS, Selection, complete, estimate, load, with_parts
from streamscope.papers.primary import PAPERS
from streamscope.papers.printed import form, number, printed, with_interval, written
from streamscope.papers.scorecard.tables import given_back

WRITTEN = [name for name in NAMES if (PAPERS / name / "page.md").is_file()]
VALUES = {"lfa": [0.31, 0.22, 0.27, 0.35], "cfm": [0.02, 0.05, 0.04]}


def planted(quantity: str = "pds", unit: str = "attention", part: str = "L5") -> pd.DataFrame:
    rows = [
        {"grid": OWN, "arm": arm, "seed": seed, "quantity": quantity, "part": part, "value": value, "unit": unit,
         "parameters": 1e6, "tokens": 2e6, "text": "stories"}
        for arm, values in VALUES.items() for seed, value in enumerate(values)
    ]  # fmt: skip
    return complete(pd.DataFrame(rows))


def test_an_estimate_is_the_mean_of_seeds_with_a_t_interval() -> None:
    found = estimate(planted(), Selection("lfa", "pds", "L5", grid=OWN))
    low, high = stats.t.interval(0.95, 3, np.mean(VALUES["lfa"]), stats.sem(VALUES["lfa"]))
    assert found is not None and found.n == (4,)
    assert found[:3] == pytest.approx((np.mean(VALUES["lfa"]), low, high), abs=1e-12)
    assert estimate(planted(), Selection("d-cas", "pds", "L5")) is None
    assert estimate(planted(), Selection("lfa", "pds", "L4")) is None


def test_a_difference_has_welchs_interval_and_in_percent_that_of_the_second_arm() -> None:
    test = stats.ttest_ind(VALUES["lfa"], VALUES["cfm"], equal_var=False)
    low, high = test.confidence_interval(0.95)
    found = estimate(planted(), Selection("lfa − cfm", "pds", "L5"))
    assert found is not None and found.n == (4, 3) and found.p == pytest.approx(test.pvalue, rel=1e-9)
    difference = np.mean(VALUES["lfa"]) - np.mean(VALUES["cfm"])
    assert found[:3] == pytest.approx((difference, low, high), abs=1e-12)
    percent = estimate(planted(), Selection("lfa − cfm", "pds", "L5"), "percent")
    assert percent is not None
    assert percent[:3] == pytest.approx(np.array([difference, low, high]) * 100 / np.mean(VALUES["cfm"]), abs=1e-9)
    of_percent = estimate(planted(unit="percent"), Selection("lfa − cfm", "pds", "L5"), "percent")
    assert of_percent is not None and of_percent.mean == pytest.approx(difference), "percent of percent"


def test_a_ratio_has_the_interval_of_the_logarithms() -> None:
    logs = stats.ttest_ind(np.log(VALUES["lfa"]), np.log(VALUES["cfm"]), equal_var=False)
    low, high = np.exp(logs.confidence_interval(0.95))
    found = estimate(planted(), Selection("lfa / cfm", "pds", "L5"))
    assert found is not None
    assert found.mean == pytest.approx(stats.gmean(VALUES["lfa"]) / stats.gmean(VALUES["cfm"]))
    assert found[1:3] == pytest.approx((low, high))


def test_a_seed_with_two_rows_is_refused() -> None:
    twice = pd.concat([planted(), planted().assign(grid="long")])
    with pytest.raises(InputError, match="several rows; give the grid"):
        estimate(twice, Selection("lfa", "pds", "L5"))


@pytest.mark.parametrize(
    ("text", "value", "ours", "shown"),
    [
        ("22.2M", 22.2e6, 874_944, "0.87 M"), ("48.3%", 0.483, 0.12345, "12.3 %"), ("-0.158", -0.158, -0.2, "−0.200"),
        ("+0.00215", 0.00215, 0.01, "+0.01000"), ("4.2×", 4.2, 0.51, "0.5×"), ("3–6", 3, 7.72, "8"),
        ("1,234", 1234, 99.6, "100"), ("<0.0001", 0.0001, 0.02, "0.0200"),
        ("25-30%", 0.25, 0.104, "10 %"),
    ],
)  # fmt: skip
def test_our_number_is_written_as_the_paper_writes_its(text: str, value: float, ours: float, shown: str) -> None:
    assert number(text) == pytest.approx(value)
    assert written(ours, form(text)) == shown


def test_counts_have_a_decimal_and_percent_is_not_scaled_twice() -> None:
    assert written(7.72, form("3–6", "heads")) == "7.7"
    assert written(3.64, form("10.2%", "percent")) == "3.6 %"


def test_a_table_shows_the_planted_cell_beside_the_printed_one() -> None:
    page = Page("lfa", planted())
    found = estimate(planted(), Selection("lfa", "pds", "L5"))
    assert found is not None
    line = next(line for line in page.table("Table 4").splitlines() if line.startswith("| LFA "))
    assert f"| 0.276 | {with_interval(found, form('0.276'))} |" in line and "*not measured*" in line
    frame = page.frame("Table 4").set_index(["row", "column"])
    assert frame.loc[("CFM", "Max L5 PDS"), "measured"] == pytest.approx(np.mean(VALUES["cfm"]))
    assert frame.loc[("CFM", "Max L5 PDS"), "n"] == "3" and frame.loc[("CFM", "Avg PDS"), "why"] == "not measured"
    assert page.dose("Table 1") == "4 training seeds, 2.0 M tokens of stories, 1.00 M parameters"
    assert page.dose("Table 4") == "3 to 4 training seeds, 2.0 M tokens of stories, 1.00 M parameters"
    more = complete(pd.concat([planted("pds.mean", part="").query("seed < 2"), planted()]))
    assert Page("lfa", more).dose("Figure 4").startswith("2 training seeds"), "other quantities have more"
    with pytest.raises(InputError, match="did you mean Table 4"):
        page.table("Tabel 4")
    with pytest.raises(InputError, match="no rows of"):
        page.value("d-cas", "pds", "L5")


def test_a_part_is_taken_from_the_name_of_a_quantity() -> None:
    rows = pd.DataFrame({"quantity": ["pds.L5", "pds.last", "induction.8", "a.L0.d"]})
    split = with_parts(rows)
    assert split["quantity"].tolist() == ["pds", "pds.last", "induction.8", "a.L0.d"]
    assert split["part"].tolist() == ["L5", "", "", ""]


@pytest.mark.parametrize("paper", [name for name in NAMES if (PAPERS / name / "printed.csv").is_file()])
def test_every_printed_number_stands_in_its_quotation_and_every_selection_can_be_made(paper: str) -> None:
    cells, rows, page = printed(paper), load(paper), Page(paper)
    known = set(zip(rows["quantity"], rows["part"], strict=True))
    for cell in cells.to_dict("records"):
        where = f"{cell['place']}, {cell['row']}, {cell['column']}"
        if cell["quantity"]:
            known_later = page.grid(cell["place"]) == "differences"  # its arms are measured one after the other
            assert known_later or (cell["quantity"], cell["part"]) in known, where
            assert cell["unit"] and not cell["why"], where
        elif cell["printed"]:
            assert cell["why"] or not cell["printed"][-1].isdigit(), where
        if cell["quote"] and not np.isnan(number(cell["printed"])):
            assert cell["printed"].lstrip("-−+").rstrip("×") in cell["quote"].replace("–", "–"), where


@pytest.mark.parametrize("paper", WRITTEN)
def test_the_committed_page_is_what_its_rows_and_its_template_say(paper: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Page, "draw", lambda page, place, path: None)
    assert Page(paper).text() == (RESULTS / f"{paper}.md").read_text("utf-8")


def test_the_committed_overview_counts_the_verdicts_of_the_pages() -> None:
    assert index() == (RESULTS / "README.md").read_text("utf-8")


@pytest.mark.parametrize("paper", WRITTEN)
def test_every_measured_cell_is_recomputed_by_plain_code(paper: str) -> None:
    page, seen = Page(paper), 0
    for place in dict.fromkeys(page.cells["place"]):
        rows = page.rows[page.rows["grid"] == page.grid(place)]
        for cell, shown in zip(page.at(place).to_dict("records"), page.frame(place).to_dict("records"), strict=True):
            where = f"{place}, {cell['row']}, {cell['column']}"
            same = (rows["quantity"] == cell["quantity"]) & (rows["part"] == cell["part"]) & rows["value"].notna()
            same &= (rows["x"] == cell["x"]) | (rows["x"].isna() & np.isnan(cell["x"]))
            sign = next((sign for sign in (" − ", " / ") if sign in cell["arm"]), "")
            arms = cell["arm"].split(sign) if sign else [cell["arm"]]
            units = [set(rows.loc[same & (rows["arm"] == arm), "unit"]) for arm in arms]
            values = [rows[same & (rows["arm"] == arm)].groupby("seed")["value"].last().to_numpy() for arm in arms]
            if not cell["quantity"] or not all(map(len, values)):
                assert np.isnan(shown["measured"]), where
                continue
            seen, one, other = seen + 1, values[0], values[-1]
            if not sign:
                want = [one.mean()]
                if len(one) > 1 and np.ptp(one):
                    ends = stats.t.interval(0.95, len(one) - 1, one.mean(), stats.sem(one))
                    want += np.clip(ends, *ENDS.get(*units[0], (-np.inf, np.inf))).tolist()
            else:
                scale = 1.0
                if sign == " / ":
                    if min(one.min(), other.min()) <= 0:
                        continue  # no interval of a ratio of values below zero
                    one, other = np.log(one), np.log(other)
                elif cell["unit"] == "percent" and units[0] != {"percent"}:
                    scale = 100 / abs(other.mean())
                want = [(one.mean() - other.mean()) * scale]
                if min(len(one), len(other)) > 1 and np.ptp(one) + np.ptp(other):
                    test = stats.ttest_ind(one, other, equal_var=False)
                    want += [end * scale for end in test.confidence_interval(0.95)]
                want = list(np.exp(want)) if sign == " / " else want
            assert [shown["measured"], shown["low"], shown["high"]][: len(want)] == pytest.approx(want, rel=1e-9), where
    assert seen >= 5


def test_registered_claims_are_interim_until_all_seeds_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    from streamscope.papers import page as body

    claim = {"id": "c", "quantity": "pds.last", "arms": ["lfa", "cfm"], "margin": 0.1, "printed": [0.3, 0.1]}
    rng = np.random.default_rng(0)
    rows = [
        {"arm": arm, "seed": seed, "quantity": "pds.last", "value": level + 0.01 * rng.normal()}
        for arm, level in (("lfa", 0.3), ("cfm", 0.05)) for seed in range(20, 24)
    ]  # fmt: skip
    monkeypatch.setattr(body.pd, "read_csv", lambda path: pd.DataFrame(rows))
    for seeds, interim in ((range(20, 36), True), (range(20, 24), False)):
        monkeypatch.setattr(body, "registered", lambda paper, seeds=seeds: ([claim], seeds, {}))
        text = Page("lfa", planted()).primary()
        assert "| reproduced |" in text and ("Interim: 16 seeds" in text) == interim


def test_a_figure_without_matplotlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The demonstration's set-up had no matplotlib, and the README's command ended in a traceback."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match="need matplotlib: pip install"):
        main(["lfa", "--figure", "1", "--out", str(tmp_path / "x.svg")])
    assert not list(tmp_path.iterdir())


def test_a_matrix_has_in_bold_what_differs_from_an_arm() -> None:
    values = {"lfa": [1.0, 1.1, 0.9, 1.05], "cfm": [3.0, 3.1, 2.9, 3.0], "d-cas": [1.05, 0.95, 1.1, 1.0]}
    rows = pd.DataFrame([
        {"grid": OWN, "arm": arm, "seed": seed, "quantity": "loss", "value": value, "unit": "nats"}
        for arm, some in values.items() for seed, value in enumerate(some)
    ])  # fmt: skip
    lines = Page("scorecard", complete(rows)).matrix({"loss": "0.00"}, "lfa").splitlines()
    assert lines[2:] == ["| `lfa` | 1.01 |", "| `cfm` | **3.00** |", "| `d-cas` | 1.02 |"]


def test_what_later_layers_give_back_is_counted_by_hand() -> None:
    direct, back = np.array([2.0, -1.0, 0.5]), np.array([-1.0, 0.5, 0.25])
    assert given_back(direct, back) == pytest.approx((1.0 + 0.5 - 0.25) / 3.5)
    assert np.isnan(given_back(np.zeros(2), np.ones(2)))
