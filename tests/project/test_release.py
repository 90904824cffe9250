"""What a release says of itself: one version everywhere, and a script that completes every command."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

import streamscope
from streamscope import __main__ as entry
from streamscope.cli.errors import InputError
from streamscope.cli.parse import SHELLS, completion

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_one_version(capsys: pytest.CaptureFixture[str]) -> None:
    entry.main(["--version"])
    assert capsys.readouterr().out == f"streamscope {PROJECT['version']}\n"
    assert streamscope.__version__ == PROJECT["version"]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\S+)", changes, re.MULTILINE)[0] == PROJECT["version"]
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {PROJECT['version']}\n" in cited
    assert f"Version {'.'.join(PROJECT['version'].split('.')[:2])} " in (ROOT / "docs" / "stable.md").read_text()


@pytest.fixture(scope="module")
def bash_script() -> str:
    return completion("bash")


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_completes_commands_options_and_values(bash_script: str) -> None:
    def completed(*words: str) -> set[str]:
        line = " ".join(f"'{word}'" for word in words)
        (name,) = re.findall(r"complete .*-F (\S+) streamscope", bash_script)
        set_words = f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; {name}; "
        run = f'{bash_script}\n{set_words}printf "%s\\n" "${{COMPREPLY[@]}}"'
        done = subprocess.run(["bash"], input=run, capture_output=True, text=True)
        return set(done.stdout.split())

    assert {"ablate", "ablation_effects"} <= completed("streamscope", "ab")
    assert "--heads" in completed("streamscope", "ablate", "--he")
    assert completed("streamscope", "ablate", "--method", "") >= {"zero", "mean", "resample"}


def test_every_command_has_its_options(bash_script: str) -> None:
    assert {name for name in entry.commands() if name not in bash_script} <= {"check", "runs", "user_instrument"}


def test_another_shell_is_one_line() -> None:
    for words in (["completion"], ["completion", "csh"]):
        with pytest.raises(InputError, match="|".join(SHELLS)):
            entry.main(words)
