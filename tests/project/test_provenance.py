"""The commit beside a result says whether the code differed from it, and names no path of the machine that made it."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from streamscope.cli.provenance import CHANGES, commit, provenance


@pytest.fixture
def git(tmp_path: Path) -> Callable[..., str]:
    def run(*args: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        return subprocess.run(["git", *who, *args], cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    return run


def test_changed_code_is_a_change_and_a_written_page_is_not(tmp_path: Path, git: Callable[..., str]) -> None:
    (tmp_path / "results").mkdir()
    code, page = tmp_path / "code.py", tmp_path / "results" / "page.md"
    git("init", "--quiet")
    for path in (code, page):
        path.write_text("1")
        git("add", str(path))
    git("commit", "--quiet", "-m", "both")
    page.write_text("2")
    assert git(*CHANGES) == ""
    code.write_text("2")
    assert "code.py" in git(*CHANGES) and "page.md" not in git(*CHANGES)


def test_the_device_is_the_one_that_was_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device="cuda:0": f"name of {device}")
    assert provenance("cuda:1")["device"] == "name of cuda:1"


def test_the_commit_is_that_of_the_clone_and_not_of_a_repository_around_it(
    tmp_path: Path, git: Callable[..., str]
) -> None:
    installed = tmp_path / "venv" / "site-packages"
    installed.mkdir(parents=True)
    assert commit(installed) == "unknown", "no repository"
    git("init", "--quiet")
    git("commit", "--quiet", "--allow-empty", "-m", "of a paper that uses the package")
    commit.cache_clear()
    assert commit(installed) == "unknown", "somebody else's"
    assert commit(tmp_path) == git("rev-parse", "HEAD").strip()


def test_no_published_table_names_a_path_of_the_machine_that_made_it() -> None:
    root = Path(__file__).parents[2]
    files = subprocess.run(
        ["git", "ls-files", "results/*.parquet"], cwd=root, capture_output=True, text=True, check=True
    )
    names = files.stdout.split()
    assert len(names) > 40
    for name in names:
        schema = pq.read_schema(root / name)
        about = (schema.metadata or {}).get(b"about", b"").decode()
        if {"command", "commit"} <= set(schema.names):  # the long table of a paper says so of every row
            made = pq.read_table(root / name, columns=["command", "commit"]).to_pandas().drop_duplicates()
            about = json.dumps(made.to_numpy().tolist())
        assert about, f"{name} does not say what made it"
        assert not (absolute := re.findall(r'"/[^"]+|"~[^"]*', about)), f"{name} names {absolute}"
