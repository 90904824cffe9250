"""Figures of single models, drawn of runs: which run a command takes, that its tables are measured once, and where."""

from pathlib import Path

import pandas as pd
import pytest

from streamscope.models.checkpoint import NAMES
from streamscope.models.train import main as train
from streamscope.papers import dst
from streamscope.papers.claims.ledger import PAPERS
from streamscope.papers.comparison.runs import opened
from streamscope.papers.figures.options import SINGLE
from streamscope.papers.figures.requests import asked, figures_of
from streamscope.papers.scales import singles


@pytest.fixture(scope="module")
def runs(corpus: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny runs of two steps: dst-kron as it is, with a frozen token stream, and of another seed."""
    folder = tmp_path_factory.mktemp("singles")
    for name, more in (("frozen-0", ["--set", "residual=frozen_token"]), ("1", ["--seed", "1"]), ("0", [])):
        train(
            ["dst-kron", "--data", str(corpus[0]), "--valid", str(corpus[1]), "--scale", "tiny", "--steps", "2",
             "--batch-size", "2", "--sample-every", "0", *more, "--out", str(folder / name)]
        )  # fmt: skip
    return {path.name: path for path in folder.iterdir()}


def test_a_command_takes_the_first_seed_of_the_plainest_run(runs: dict[str, Path]) -> None:
    found = [opened(str(path), ["dst-kron"]) for path in runs.values()]
    word = {name: str(path) for name, path in runs.items()}
    for command, words, lost in (
        ("probe {dst-kron} {dst-dense} --x 1", ["probe", word["0"], "--x", "1"], ["dst-dense"]),
        ("probe {dst-kron+residual.kind=frozen_token}", ["probe", word["frozen-0"]], []),
        ("probe {dst-kron*}", ["probe", word["0"], word["1"]], []),
        ("probe {dst-dense} --x 1", [], ["dst-dense"]),
        ("cluster --features a.parquet", ["cluster", "--features", "a.parquet"], []),
    ):
        assert singles.filled(command, found) == (words, lost)


def test_they_are_measured_once_and_drawn(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    third, fourth = asked("dst", ["3", "4"])
    singles.measure("dst", [third], [str(runs["frozen-0"]), str(runs["0"])], tmp_path)
    assert str(runs["0"]) in capsys.readouterr().out
    table = pd.read_parquet(tmp_path / SINGLE / "routing-cells.parquet")
    assert set(table["layer"]) == {*range(opened(str(runs["0"]), ["dst-kron"]).config["model"]["n_layers"])}
    assert not (tmp_path / SINGLE / "amplify-picture.parquet").exists(), "of figures that are asked for, alone"
    dst.main(["--figure", "3", "--format", "html", "--tables", str(tmp_path), "--out", str(tmp_path / "drawn")])
    assert (tmp_path / "drawn" / "dst-figure-3.html").is_file()

    def never(*_: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(singles, "main_of", never)
    singles.measure("dst", [third], [str(runs["0"])], tmp_path)
    with pytest.raises(AssertionError, match="measured again"):
        singles.measure("dst", [fourth], [str(runs["0"])], tmp_path)
    capsys.readouterr()
    singles.measure("dst", asked("dst", ["5"]), [str(runs["0"])], tmp_path)
    assert "no run of dst-ind, dst-dense for python -m probes.coreference" in capsys.readouterr().out
    singles.forget(tmp_path)
    with pytest.raises(AssertionError, match="measured again"):
        singles.measure("dst", [third], [str(runs["0"])], tmp_path)


@pytest.mark.parametrize("paper", PAPERS)
def test_every_figure_of_single_models_has_its_commands(paper: str) -> None:
    """They are those that made the shipped tables, of the bundled models."""
    figures, commands = figures_of(paper), singles.singles(paper)
    of_others = {
        number for number, one in figures.items()
        if any(name.split("/")[0] in ("bundled", "pls_modes") for name in one.tables)
    }  # fmt: skip
    assert set(commands) == of_others
    for command in {one for some in commands.values() for one in some if not one.startswith("papers.modes")}:
        plain = command.replace("{kromcanon+residual.b_res=-2.0}", "{kromcanon-b2}")
        for name in NAMES:
            plain = plain.replace(f"{{{name}}}", f"stories/{name}")
        assert "{" not in plain
