"""Figures and tables of the papers: drawn of the shipped tables with their numbers, refused in one line elsewhere."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from streamscope.models.errors import InputError
from streamscope.papers import dst, figures, hdpl, krom, lfa, pls
from streamscope.papers.claims.ledger import PAPERS
from streamscope.papers.dst.printed import TABLE5
from streamscope.papers.figures.look import GREYS, Look
from streamscope.papers.figures.options import RESULTS
from streamscope.papers.figures.shown import claims_of, draw, figures_of, table_of

COMMANDS = {"dst": dst, "hdpl": hdpl, "krom": krom, "lfa": lfa, "pls": pls}
DRAWN = [(paper, n) for paper in PAPERS for n, one in figures_of(paper).items() if one.draw and not one.instead]
OTHERS = [(paper, n) for paper in PAPERS for n, one in figures_of(paper).items() if (paper, n) not in DRAWN]


def traces(paper: str, number: str, **look: object) -> dict[str, object]:
    """The traces of a figure by name."""
    return {one.name or str(i): one for i, one in enumerate(draw(figures_of(paper)[number], Look(**look)).data)}


@pytest.mark.parametrize(("paper", "number"), DRAWN, ids=str)
def test_every_figure_that_is_said_to_be_drawn_is_drawn(paper: str, number: str) -> None:
    for look in (Look(), Look("page", grey=True)):
        found = draw(figures_of(paper)[number], look)
        assert found.layout.width == {"column": 3.3, "page": 6.9}[look.width] * 96
        assert found.data and all(
            any(len(part) for part in (one.x, one.y, getattr(one, "z", None)) if part is not None) for one in found.data
        )
        colours = [one.line.color for one in found.data if one.type == "scatter" and one.mode == "lines+markers"]
        assert not look.grey or set(colours) <= set(GREYS)


@pytest.mark.parametrize(("paper", "number"), OTHERS, ids=str)
def test_a_figure_that_no_table_has_is_refused_in_one_line(paper: str, number: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"figure {number} ") as caught:
        COMMANDS[paper].main(["--figure", number, "--format", "html", "--out", str(tmp_path / "new")])
    assert "\n" not in str(caught.value) and "python -m" in str(caught.value)
    assert not list(tmp_path.rglob("*.html"))


def test_values_are_those_of_the_tables() -> None:
    table = pd.read_parquet(RESULTS / "dst_tinystories/amplification.parquet")
    mean = table[table["preset"] == "dst-kron"].groupby("alpha")["loss"].mean()
    found = traces("dst", "2")
    assert np.allclose(found["dst-kron"].y, mean) and list(found["dst-kron"].x) == list(mean.index)
    assert list(found["dst-ind, paper"].y) == list(TABLE5["dst-ind"]), "of what was not trained here, the paper's"

    heads = pd.read_parquet(RESULTS / "lfa_tinystories/heads.parquet")
    first = next(iter(draw(figures_of("lfa")["7"], Look()).data))
    one = heads[(heads["preset"] == "lfa") & (heads["head"] == "L4H2")]["pds"].mean()
    assert np.isclose(first.z[4][2], one)
    shown = sum(len(one.x) for one in draw(figures_of("lfa")["4"], Look()).data)
    assert shown == len(heads[~heads["preset"].str.contains("+", regex=False)])

    depth = pd.read_parquet(RESULTS / "pls_tinystories/depth.parquet")
    pls_bars, c2_bars = draw(figures_of("pls")["2"], Look()).data
    for bars, preset in ((pls_bars, "pls"), (c2_bars, "c2")):
        mean = depth[depth["preset"] == preset].groupby("depth")["share"].mean()
        assert np.allclose(bars.y, mean) and np.isclose(sum(bars.y), 1, atol=1e-3)

    factors = pd.read_parquet(RESULTS / "krom_textbooks/factors.parquet")
    heat = draw(figures_of("krom")["heat"], Look()).data[0]
    cells = factors[(factors["module"] == "blocks.2.mlp_hc") & (factors["storage"] == "bf16")]["swap"]
    place = list(heat.y).index("2.mlp_hc"), next(i for i, x in enumerate(heat.x) if "bf16" in x)
    assert np.isclose(heat.z[place[0]][place[1]], np.log10(cells.mean()))


def test_gate_curves_are_drawn_of_tables_that_have_gates(tmp_path: Path) -> None:
    rows = [
        {"preset": "lfa", "seed": 0, "selection": "top1", "group": "selected", "measure": "sps", "part": "all",
         "gate": gate, "baseline": 0.5, "condition": 0.5 * gate}
        for gate in (0.0, 0.25, 0.75)
    ]  # fmt: skip
    pd.DataFrame(rows).to_parquet(tmp_path / "suppression.parquet")
    found = draw(figures_of("lfa")["5"], Look(), tmp_path)
    assert list(found.data[0].x) == [0, 0.25, 0.75, 1] and list(found.data[0].y) == [0, 0.125, 0.375, 0.5]
    pd.DataFrame(rows[:1]).to_parquet(tmp_path / "suppression.parquet")
    with pytest.raises(InputError, match="one gate alone"):
        draw(figures_of("lfa")["5"], Look(), tmp_path)
    with pytest.raises(InputError, match="drawn of heads.parquet, and there is no"):
        draw(figures_of("lfa")["7"], Look(), tmp_path)


def test_tables_are_those_of_the_ledger(capsys: pytest.CaptureFixture) -> None:
    claims = claims_of("lfa")
    table = table_of(claims, "2")
    row = table[table["claim"] == "lfa-t2-parameters-lfa"].iloc[0]
    assert row["printed"] == "18.5M parameters" and row["verdict"] == "contradicts itself"
    assert len(table) == (claims["place"].str.contains("Table 2")).sum() > 5
    lfa.main(["--table", "2"])
    assert "18.5M" in capsys.readouterr().out


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    lfa.main(["--figure", "1", "--figure", "7", "--format", "html", "--out", str(tmp_path)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lfa-figure-1.html", "lfa-figure-7.html"]
    pls.main(["--figure", "list"])
    assert "Capitalization by the scale" in capsys.readouterr().out
    for argv, line in ((["--figure", "9"], "unknown figure of pls"), (["--table", "7"], "unknown table of pls")):
        with pytest.raises(InputError, match=line):
            pls.main(argv)


def test_the_sheet_has_every_figure_once_and_the_script_once(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    figures.main(["--out", str(tmp_path / "sheet.html")])
    html = (tmp_path / "sheet.html").read_text()
    assert html.count("<figure>") == len(DRAWN) + len(OTHERS) and html.count('class="plotly-graph-div"') == len(DRAWN)
    assert len(html) < 8e6
    assert f"{len(DRAWN)} figures, {len(OTHERS)} that no table has" in capsys.readouterr().out
