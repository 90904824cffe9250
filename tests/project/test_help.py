"""Every command answers --help at once: nothing heavy is imported for it."""

import json
import os
import pydoc
import re
import subprocess
import sys
from pathlib import Path

import pytest

from streamscope.__main__ import main
from streamscope.cli.parse import spoken
from streamscope.instruments.registry import discover
from streamscope.models.checkpoint import NAMES

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("streamscope", "models", "probes", "interventions", "features", "viewer", "papers", "benchmarks")
COMMANDS = sorted(
    re.sub(r"\.__(main|init)__$", "", ".".join(path.relative_to(ROOT).with_suffix("").parts))
    for room in ROOMS
    for path in (ROOT / room).rglob("*.py")
    if re.search(
        r"\n(main = |def main\()" if path.name == "__init__.py" else r'\nif __name__ == "__main__":',
        path.read_text(encoding="utf-8"),
    )
    and path.parent.name != "streamscope"
    and path.name not in ("chat_process.py", "package_main.py")  # which programs of ours start
)
HEAVY = ("torch", "pandas", "transformer_lens", "plotly", "pyarrow", "tokenizers", "sklearn", "scipy", "statsmodels")

BLOCKED = f"""
import contextlib, io, json, os, runpy, sys, tempfile, traceback
import tyro  # every command is run in a fork, which finds no more imported than what all of them need

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {HEAVY!r}:
            raise AssertionError(f"--help imports {{name}}")

def help_of(module):
    sys.argv = ["x", "--help"]
    try:
        runpy.run_module(module, run_name="__main__")
    except SystemExit as end:
        return end.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
    return 0

modules = sys.argv[1:]
sys.meta_path.insert(0, Blocker())
import streamscope.cli.parse, streamscope.instruments.command, streamscope.instruments.contract
import streamscope.instruments.figures
with contextlib.redirect_stdout(io.StringIO()):
    help_of("probes.pds")  # what printing a help loads
assert not set(sys.modules) & set({HEAVY!r})
found = {{}}
for module in modules:
    with tempfile.TemporaryFile("w+") as said:
        if not (child := os.fork()):
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            code = help_of(module)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.seek(0)
        found[module] = [code, said.read()]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def helped() -> dict[str, tuple[int, str]]:
    """Module -> exit code of `python -m MODULE --help` where heavy imports raise, and what it printed."""
    assert {name.split(".")[0] for name in COMMANDS} == set(ROOMS) and "papers.primary" in COMMANDS
    argv = [sys.executable, "-c", BLOCKED, *COMMANDS, "models.checkpoint"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("module", COMMANDS)
def test_help_imports_nothing_heavy_and_reads_as_prose(module: str, helped: dict[str, tuple[int, str]]) -> None:
    """Sentences end where the terminal does, only examples and files are longer, and no value is called None."""
    code, said = helped[module]
    assert code == 0 and "usage:" in said, said
    about, _, options = said.partition("\nOptions:\n")
    assert not re.search(r"(?m)^(python|streamscope|torchrun) ", said)
    assert not [line for line in about.splitlines() if len(line) > 100 and not line.startswith("    ")]
    assert not [line for line in options.splitlines() if len(line) > 100 and "://" not in line]
    flat = " ".join(said.split())
    assert not re.search(r"\{(None|\[)|default: None", flat) and "(repeatable) (repeatable)" not in flat


@pytest.mark.parametrize("module", COMMANDS)
def test_help_is_short_and_grouped(module: str, helped: dict[str, tuple[int, str]]) -> None:
    """One sentence, once; at most two examples; flags in pairs; groups with a person's titles; where more is said."""
    _, said = helped[module]
    if module == "instruments.user_instrument" or "[FILE" in said.partition("\n")[0]:
        return
    summary = " ".join(said.split("\n\n")[1].split())
    assert summary.endswith((".", "?")) and len(summary) <= 100, summary
    assert " ".join(said.split()).count(summary) == 1
    examples = re.findall(r"(?m)^    (?:python -m|streamscope|torchrun) .*", said)
    assert len(examples) <= 2
    titles = re.findall(r"(?m)^(\w[^.\n]*):$", said)
    assert len(titles) == len(set(titles)) and not [one for one in titles if "of-" in one or "positional" in one]
    for on, off in re.findall(r"(?m)^  (--[\w-]+) / (--[\w-]+)", said):
        assert off == f"--no-{on.removeprefix('--')}"
    assert not re.search(r"(?m)^  --no-", said)


@pytest.mark.parametrize("width", [80, 120])
def test_an_instrument_has_its_groups_in_order_as_wide_as_the_terminal(width: int) -> None:
    argv, environment = [sys.executable, "-m", "interventions.ablate", "--help"], {**os.environ, "COLUMNS": str(width)}
    said = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True, env=environment).stdout
    titles = ["Examples", "Arguments", "Options", "Data (documents)", "Data (prompts)", "Output", "Model"]
    assert re.findall(r"(?m)^(\w[^.\n]*):$", said) == [*titles, "Several processes"]
    assert "--together / --no-together" in said and "(default: off)" in said
    assert said.count("python -m interventions.ablate") == 3  # usage and two examples
    assert said.splitlines()[-1].endswith("python -m pydoc interventions.ablate")
    lengths = [len(line) for line in said.splitlines() if not line.startswith("    python")]
    assert min(width, 100) - 5 < max(lengths) <= min(width, 100)


def test_the_blocker_blocks(helped: dict[str, tuple[int, str]]) -> None:
    code, said = helped["models.checkpoint"]
    assert code == 1 and "AssertionError: --help imports" in said


def test_commands_are_named_as_they_are_typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    text = "python -m interventions.ablate   x\npython -m streamscope.probes.pds, python -m pytest"
    monkeypatch.setattr(sys, "argv", ["ablate.py"])
    assert spoken(text) == text
    with pytest.raises(SystemExit):  # a command by its room, as in `python -m`
        main(["features.extract", "--help"])
    shown = capsys.readouterr().out
    assert "usage: streamscope extract" in shown and "python -m" not in shown.replace("python -m pydoc", "")
    assert spoken("python -m probes.heads\n    python -m probes.pds") == "streamscope heads\n    streamscope pds"
    assert spoken(text) == "streamscope ablate               x\nstreamscope pds, python -m pytest"


def test_the_documentation_that_a_help_names_can_be_read(helped: dict[str, tuple[int, str]]) -> None:
    """`python -m pydoc` of every instrument, and `help(Class)` in Python."""
    for name, kind in discover().items():
        assert name in pydoc.render_doc(sys.modules[kind.__module__], renderer=pydoc.plaintext), name
        assert "heads" not in vars(kind) or "heads" in pydoc.render_doc(kind, renderer=pydoc.plaintext)
    assert set(NAMES) <= set(re.findall(r"[\w-]+", helped["probes.pds"][1])), "every bundled model"
