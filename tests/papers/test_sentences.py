"""The verdicts of sentences: planted rows whose verdict is known, and the shipped files."""

from pathlib import Path

import pandas as pd
import pytest

from streamscope.cli.errors import InputError
from streamscope.papers.__main__ import main
from streamscope.papers.paper import NAMES, complete, load
from streamscope.papers.primary import PAPERS
from streamscope.papers.sentences import VERDICTS, judged, sentences

FIELDS = (
    "id", "place", "quote", "kind", "printed", "unit", "arms", "quantity", "part", "grid", "test", "needs", "verdict",
    "why",
)  # fmt: skip
CLAIM = dict.fromkeys(FIELDS, "") | {"id": "x", "quantity": "loss", "x": float("nan"), "grid": "g"}
VALUES = {
    "loss": {"a": [1.50, 1.52, 1.48, 1.51], "b": [1.20, 1.22, 1.19, 1.21], "c": [1.50, 1.49, 1.51, 1.52],
             "z": [0.0, 0.0, 0.0], "1": [0.5], "one": [67.113472]},
    "able": {"a": [2.0, 2.1, 1.9, 2.2], "b": [0.1, -0.2, 0.3, -0.1], "c": [2.0, 2.1, 1.8, 2.0]},
}  # fmt: skip
ROWS = complete(pd.DataFrame(
    {"grid": "g", "arm": arm, "seed": seed, "quantity": quantity, "value": value, "unit": "nats"}
    for quantity, arms in VALUES.items() for arm, values in arms.items() for seed, value in enumerate(values)
))  # fmt: skip


@pytest.mark.parametrize(
    ("arms", "test", "printed", "needs", "verdict"),
    [
        ("a − b", "> 0", "", "", "reproduced"),
        ("b − a", "> 0", "", "", "contradicted"),
        ("b − a", "< 0", "", "", "reproduced"),
        ("a − c", "> 0", "", "", "inconclusive"),
        ("a − c", "> 0", "0.2", "", "no effect"),
        ("a − c", "> 0", "0.02", "", "inconclusive"),
        ("a − c", "within 0.1", "", "", "reproduced"),
        ("a − b", "within 0.1", "", "", "contradicted"),
        ("a − b", "within 0.31", "", "", "inconclusive"),
        ("b − a", "within 0.1", "", "", "contradicted"),
        ("b − a", "within 0.31", "", "", "inconclusive"),
        ("a − c", "number", "0.01", "", "inconclusive"),
        ("a", "number", "1.51", "", "reproduced"),
        ("a", "number", "1.9", "", "different value"),
        ("a − c", "number", "0.001", "", "inconclusive"),
        ("a", "> 1.4", "", "", "reproduced"),
        ("a − b", "> 0", "", "able > 0", "too weak to test"),
        ("a − c", "within 0.1", "", "able > 0", "reproduced"),
        ("a − d", "> 0", "", "", "not measured"),
        ("a / c", "> 1", "1.5×", "", "no effect"),
        ("a / c", "> 1", "1.01×", "", "inconclusive"),
        ("a / b", "> 1", "1.5×", "", "reproduced"),
        ("one", "counted", "67.11", "", "reproduced"),
        ("one", "counted", "67.12", "", "different value"),
        ("one", "number", "67.11", "", "inconclusive"),
        ("z", "> 0.5", "", "", "contradicted"),
        ("1", "> 0.1", "", "", "inconclusive"),
    ],
)
def test_a_planted_difference_has_its_verdict(arms: str, test: str, printed: str, needs: str, verdict: str) -> None:
    claim = CLAIM | {"arms": arms, "test": test, "printed": printed, "needs": needs, "unit": "nats"}
    assert judged(claim, ROWS)["verdict"] == verdict


def test_what_is_no_test_is_refused() -> None:
    for change, line in (({"test": "≥ 0"}, "the test '≥ 0' is none of"), ({"verdict": "reproducd"}, "mean reproduced")):
        with pytest.raises(InputError, match=line):
            judged(CLAIM | {"arms": "a − b", **change}, ROWS)


@pytest.mark.parametrize("paper", [name for name in NAMES if (PAPERS / name / "claims.csv").is_file()])
def test_every_sentence_points_at_rows_or_says_why_not(paper: str) -> None:
    table, rows = sentences(paper), load(paper)
    known = set(zip(rows["quantity"], rows["part"], rows["grid"], strict=True))
    assert table["id"].is_unique and set(table["verdict"]) <= set(VERDICTS)
    for claim in table.to_dict("records"):
        assert claim["quote"] and claim["place"], claim["id"]
        if claim["quantity"] and claim["grid"] != "differences":
            assert (claim["quantity"], claim["part"], claim["grid"]) in known, claim["id"]
        if not claim["quantity"]:
            assert claim["why"] or claim["verdict"] == "not measured", claim["id"]


def test_the_command_prints_and_saves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["lfa", "--claims", "--out", str(tmp_path / "x.csv")])
    saved = pd.read_csv(tmp_path / "x.csv")
    assert len(saved) == 236 and (saved["verdict"] == "paper inconsistent").sum() == 8
    assert "8 paper inconsistent" in capsys.readouterr().out.splitlines()[-1]
