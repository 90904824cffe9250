"""The commit beside a result says whether the code differed from it."""

import subprocess
from pathlib import Path

from streamscope.models.provenance import CHANGES


def test_changed_code_is_a_change_and_a_written_page_is_not(tmp_path: Path) -> None:
    def git(*args: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        return subprocess.run(["git", *who, *args], cwd=tmp_path, capture_output=True, text=True, check=True).stdout

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
