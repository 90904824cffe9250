"""What a release says of itself: one version everywhere, and a script that completes every command."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

import streamscope
from streamscope import __main__ as entry
from streamscope.cli import completion
from streamscope.cli.completion import WRITERS, options, script
from streamscope.cli.errors import InputError

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


def test_pythons_are_those_of_the_page() -> None:
    minor = [one.rpartition(" ")[2] for one in PROJECT["classifiers"] if "Python :: 3." in one]
    page = (ROOT / "docs" / "guides" / "install.md").read_text(encoding="utf-8")
    assert PROJECT["requires-python"] == f">={minor[0]}" and f"| Python | {minor[0]} or newer" in page
    assert all(one in page for one in minor)


def test_extras_of_the_page_exist() -> None:
    page = (ROOT / "docs" / "guides" / "install.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert named and named <= set(PROJECT["optional-dependencies"])
    assert not {"ray", "submitit"} & {re.split(r"[>=<]", one)[0] for one in PROJECT["dependencies"]}


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two commands, whose helps take a moment."""
    known = {name: module for name, module in entry.commands().items() if name in ("ablate", "ablation_effects")}
    monkeypatch.setattr(completion, "commands", lambda: known)


def completed(text: str, words: list[str], folder: Path) -> list[str]:
    """What bash offers for the last of the words."""
    line = " ".join(f"'{word}'" for word in words)
    run = f'{text}\nCOMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _streamscope; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", run], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_completes_commands_options_values_and_models(two: None, tmp_path: Path) -> None:
    text = script("bash", ["stories/lfa", "stories/dst-kron"])
    assert completed(text, ["streamscope", "ab"], tmp_path) == ["ablate", "ablation_effects"]
    assert completed(text, ["streamscope", "ablate", "--he"], tmp_path) == ["--heads"]
    pair = ["--together", "--no-together"]
    assert [completed(text, ["streamscope", "ablate", one], tmp_path) for one in pair] == [[one] for one in pair]
    assert completed(text, ["streamscope", "ablate", "--method", ""], tmp_path) == ["zero", "mean", "resample"]
    assert completed(text, ["streamscope", "ablate", "stories/dst-k"], tmp_path) == ["stories/dst-kron"]
    assert completed(text, ["streamscope", "ablate", "nothing"], tmp_path) == []


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_name_commands_options_and_values(shell: str, two: None, tmp_path: Path) -> None:
    text = script(shell, ["stories/dst-kron"])
    for word in ("ablate", "ablation_effects", "heads", "stories/dst-kron", "zero", "resample"):
        assert re.search(rf"(?<![\w/]){word}(?![\w-])", text), word
    if (at := shutil.which(shell)) is not None:
        (tmp_path / "script").write_text(text)
        assert subprocess.run([at, "-n", str(tmp_path / "script")]).returncode == 0


def test_another_shell_is_one_line() -> None:
    for words in (["completion"], ["completion", "csh"]):
        with pytest.raises(InputError, match="|".join(WRITERS)):
            entry.main(words)


@pytest.mark.slow
def test_every_command_has_its_options() -> None:
    for name, module in entry.commands().items():
        assert options(module) or name in ("check", "runs", "runtime", "user_instrument"), name
