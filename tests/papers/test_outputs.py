"""What --out of a command of the papers names is never an input, nor the table of another command."""

import hashlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
import pytest

from streamscope.cli.errors import InputError
from streamscope.papers.claims import HERE, RESULTS
from streamscope.papers.claims import main as claims
from streamscope.papers.claims.count import main as count
from streamscope.papers.claims.single import main as single
from streamscope.papers.dst import main as dst
from streamscope.papers.krom.arithmetic import main as arithmetic
from streamscope.papers.krom.contraction import main as contraction
from streamscope.papers.modes import main as modes
from streamscope.papers.peers import main as peers

KROM = "holds a table of papers.krom.arithmetic"


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A folder with ledgers, results, a table without provenance, and a bundled claim."""
    shutil.copytree(HERE, tmp_path / "ledger", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for name in ("krom_arithmetic", "dst_tinystories", "bundled_claims"):
        shutil.copytree(RESULTS / name, tmp_path / "results" / name)
    shutil.copy(
        tmp_path / "results/krom_arithmetic/arithmetic.parquet", tmp_path / "results/bundled_claims/claims.parquet"
    )
    shutil.copy(tmp_path / "results/krom_arithmetic/arithmetic.parquet", tmp_path / "x-claims.parquet")
    pd.DataFrame({"text": ["Once upon a time."]}).to_parquet(tmp_path / "results" / "own.parquet")
    return tmp_path


def state(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


TABLE = "{}/results/krom_arithmetic/arithmetic.parquet"
COMMANDS: dict[str, tuple[Callable[[Sequence[str]], None], str, str]] = {
    "a ledger": (claims, "--ledger {}/ledger --out {}/ledger/dst.csv", r"dst\.csv is an input"),
    "by another path": (claims, "--ledger {}/ledger --out {}/results/../ledger/dst.csv", r"dst\.csv is an input"),
    "a result table": (claims, f"--results {{}}/results --out {TABLE}", KROM),
    "a table of one's own": (claims, "--results {}/results --out {}/results/own.parquet", r"own\.parquet is an input"),
    "counts": (count, f"--out {TABLE}", KROM),
    "the second table": (contraction, "--out {}/x.parquet", KROM),
    "arithmetic": (arithmetic, "--out {}/results/dst_tinystories/runs.parquet", r"holds a table of papers\.dst, "),
    "peers": (peers, f"--kromhc {{}} --out {TABLE}", KROM),
    "one model": (single, "{}/results/bundled_claims", KROM),
    "another comparison": (modes, "stories/pls stories/c2 --out {}/results/dst_tinystories", r"table of papers\.dst,"),
    "a folder in it": (dst, "stories/dst-kron --out {}/results/dst_tinystories/runs.parquet", "is a file"),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_an_input_and_a_table_of_another_command_are_not_written_over(name: str, made: Path) -> None:
    main, words, said = COMMANDS[name]
    before = state(made)
    with pytest.raises(InputError, match=said):
        main(words.replace("{}", str(made)).split())
    assert state(made) == before


def test_a_table_of_its_own_is_written_anew(tmp_path: Path) -> None:
    for _ in range(2):
        count(["lfa", "--out", str(tmp_path / "counts.parquet")])
    shutil.copy(RESULTS / "parameter_counts" / "counts.parquet", tmp_path / "counts.parquet")
    count(["lfa", "--out", str(tmp_path / "counts.parquet")])
    assert pd.read_parquet(tmp_path / "counts.parquet")["preset"].tolist() == ["lfa"]
