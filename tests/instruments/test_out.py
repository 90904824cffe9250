"""What --out names is never an input of the command, nor the table of another instrument."""

import hashlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
import pytest

from streamscope.cli.errors import InputError
from streamscope.features.cluster import main as cluster
from streamscope.features.extract import Extract
from streamscope.features.profile import main as profile
from streamscope.instruments.data import Tokens
from streamscope.instruments.result import Result
from streamscope.interventions.ablate import main as ablate
from streamscope.models.checkpoint import load, run_folder
from streamscope.probes.directions import main as directions
from streamscope.probes.heads import main as heads

HEADS = ("stories/gpt2", "--sequences", "2", "--no-texts")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table of features, text as a table, labels, and a run."""
    folder = tmp_path_factory.mktemp("made")
    Extract(tier="core").measure(load("stories/pls"), Tokens(max_tokens=300)).save(folder / "f.parquet")
    pd.DataFrame({"text": ["Once upon a time there was a cat.", "She ran to the house."]}).to_parquet(
        folder / "t.parquet"
    )
    found = pd.read_parquet(folder / "f.parquet", columns=["document", "position"])
    found.assign(cluster=0).to_csv(folder / "labels.csv", index=False)
    (folder / "data").mkdir()
    shutil.copy(folder / "t.parquet", folder / "data" / "train.parquet")
    shutil.copytree(run_folder("stories/gpt2"), folder / "run")
    (folder / "page.html").write_text("text")
    return folder


def state(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


COMMANDS: dict[str, tuple[Callable[[Sequence[str]], None], str, str]] = {
    "by another path": (cluster, "--features {}/f.parquet --no-umap --out {}/data/../f.parquet", "is an input"),
    "of a profile": (profile, "--features {}/f.parquet --out {}/f.parquet", "is an input"),
    "its labels": (profile, "--features {}/f.parquet --labels {}/labels.csv --out {}/labels.csv", "is an input"),
    "another instrument's": (heads, " ".join(HEADS) + " --out {}/f.parquet", "holds a table of extract"),
    "text": (ablate, "stories/gpt2 --heads L0.H0 --draws 0 --data {}/t.parquet --out {}/t.parquet", "is an input"),
    "text with a weight": (ablate, "stories/gpt2 --draws 0 --data {}/t.parquet*2 --out {}/t.parquet", "is an input"),
    "a figure": (heads, "stories/gpt2 --data {}/page.html --figure {}/page.html", "is an input"),
    "a file of a folder of text": (ablate, "stories/gpt2 --data {}/data --out {}/data/train.parquet", "is an input"),
    "the weights of a run": (directions, "{}/run --out {}/run/model.parquet", "model.safetensors"),
    "weights that are no input": (directions, "stories/gpt2 --out {}/run/model.parquet", "model.safetensors"),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_an_input_is_not_written_over(name: str, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main, words, said = COMMANDS[name]
    before = state(made)
    with pytest.raises(InputError, match=said):
        main(words.replace("{}", str(made)).split())
    assert state(made) == before


def test_the_tables_beside_the_main_one_may_be_inputs(made: Path, tmp_path: Path) -> None:
    shutil.copy(made / "f.parquet", tmp_path / "x-labels.parquet")
    before = state(tmp_path)
    with pytest.raises(InputError, match=r"x-labels\.parquet is an input"):
        cluster(f"--features {tmp_path}/x-labels.parquet --no-umap --out {tmp_path}/x.parquet".split())
    assert state(tmp_path) == before


def test_a_result_does_not_take_the_place_of_another_instruments(made: Path, tmp_path: Path) -> None:
    shutil.copy(made / "f.parquet", tmp_path / "f.parquet")
    heads([*HEADS, "--out", str(tmp_path / "h.parquet")])
    found, before = Result.load(tmp_path / "h.parquet"), state(tmp_path)
    with pytest.raises(InputError, match="holds a table of extract"):
        found.save(tmp_path / "f.parquet")
    assert state(tmp_path) == before
    heads([*HEADS, "--out", str(tmp_path / "h.parquet")])  # its own it may write anew
    heads([*HEADS, "--out", str(tmp_path / "h.csv")])
    heads([*HEADS, "--out", str(tmp_path / "h.csv")])
    with pytest.raises(InputError, match="holds a table of heads"):
        ablate(f"stories/gpt2 --heads L0.H0 --draws 0 --out {tmp_path}/h.csv".split())
