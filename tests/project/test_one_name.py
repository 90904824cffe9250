"""One import name: `streamscope`, installed or in a clone, and the short names of a clone are the same modules."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import streamscope
from streamscope.__main__ import main
from streamscope.cli.commands import SYNONYMS, commands
from streamscope.cli.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
ROOMS = ("models", "probes", "interventions", "features", "viewer", "benchmarks")
"""Those that the wheel has; `papers` is in the clone alone."""
SAME = """
import importlib, pickle, sys
for room in {rooms!r}:
    assert importlib.import_module(room) is importlib.import_module(f"streamscope.{{room}}"), room
import models.hooks, streamscope.models.hooks
assert models.hooks is streamscope.models.hooks
assert models.hooks.edit is streamscope.models.hooks.edit
from probes import Pds
from streamscope.probes import Pds as Same
from streamscope.interventions import Ablate
assert Pds is Same and isinstance(pickle.loads(pickle.dumps(Same())), Pds)
assert models.hooks.__name__ == models.hooks.__spec__.name == "streamscope.models.hooks"
import datasets
assert datasets.load_dataset
"""


def run(argv: list[str], cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    words = [sys.executable, "-W", "error", *argv]
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True, env=kept | env)


def foreign(folder: Path) -> Path:
    for name in ("models", "features"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("raise RuntimeError('not ours')")
    (folder / "probes.py").write_text("raise RuntimeError('not ours')")
    return folder


def test_short_and_long_names_are_the_same_modules() -> None:
    done = run(["-c", SAME.format(rooms=ROOMS)], ROOT)
    assert done.returncode == 0, done.stderr
    done = run(["-m", "interventions.ablate", "--help"], ROOT)
    assert (done.returncode, "usage: python -m interventions.ablate" in done.stdout) == (0, True), done.stderr


def test_an_instrument_keeps_its_short_name_where_a_benchmark_has_it_too() -> None:
    """`streamscope circuits` was unknown, because another room's circuits ended alike; `features --out x` ran
    benchmarks.features."""
    names = commands()
    assert names["circuits"] == "streamscope.interventions.circuits" and "interventions.circuits" not in names
    assert "benchmarks.circuits" in names and names["benchmarks.features"] == "streamscope.benchmarks.features"
    assert not [name for name in names.values() if ".papers" in name], "papers are commands of a clone"
    assert {name for words in SYNONYMS.values() for name in words.split()} <= set(names)
    assert not set(SYNONYMS) & set(names)
    for room in ("viewer", "features"):
        assert room not in names
        with pytest.raises(InputError, match=f"^unknown command of {room} '--out': known: "):
            main([room, "--out", "x"])


@pytest.mark.parametrize(
    ("word", "command"),
    [
        ("induction", "heads"), ("lens", "logit_lens"), ("attention", "picture"), ("dla", "direct_logit_attribution"),
        ("sae", "dictionaries"), ("probe", "linear"), ("Patching", "patch"),
        ("path_patching", "circuits"), ("hooks", "describe"), ("kronecker", "routing"),
        ("abliteratte", "abliterate"), ("zzz", ""),
    ],
)  # fmt: skip
def test_a_word_of_the_field_leads_to_its_command(word: str, command: str) -> None:
    with pytest.raises(InputError) as caught:
        main([word])
    found = re.search(r": (?:it is|try|did you mean) ([\w.]+)", str(caught.value))
    assert (found[1] if found else "") == command and "\n" not in str(caught.value)


def test_a_folder_with_other_models_in_it(tmp_path: Path) -> None:
    where = foreign(tmp_path / "user")
    done = run(["-m", "streamscope", "ablate", "--help"], where, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    wrong = run(["-m", "streamscope", "ablat"], where, PYTHONPATH=str(ROOT))
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: unknown command 'ablat'") and wrong.stderr.count("\n") == 1
    listed = run(["-m", "streamscope"], where, PYTHONPATH=str(ROOT))
    assert "  ablate " in listed.stdout and "  train " in listed.stdout
    for folder, module in (("models", "errors"), ("probes", "result")):  # the user's own modules
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").touch()
        (tmp_path / folder / f"{module}.py").write_text(f"MINE = '{module}'")
    code = "import streamscope, models.errors, probes.result; print(models.errors.MINE, probes.result.MINE)"
    mine = run(["-c", code], tmp_path, PYTHONPATH=str(ROOT))
    assert mine.stdout == "errors result\n", mine.stderr


def test_what_users_import_first() -> None:
    names = ["Documents", "Prompts", "Tasks", "build", "load"]
    assert [getattr(streamscope, name).__name__ for name in names] == names
    assert streamscope.InputError is InputError and "Documents" in dir(streamscope)
    with pytest.raises(AttributeError, match="has no attribute 'documents'"):
        streamscope.documents  # noqa: B018


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of what is committed; setuptools is the installed one, so that nothing is fetched."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(["git", "clone", "-q", str(ROOT), str(folder / "clone")], check=True)
    gone = folder / "clone" / "build" / "lib" / "streamscope" / "gone.py"  # as an earlier build leaves it
    gone.parent.mkdir(parents=True)
    gone.touch()
    argv = ["wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(folder / "clone")]
    done = subprocess.run([*PIP, *argv], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [path for path in (folder / "clone" / "build").rglob("*") if path.is_file()] == [gone], "nothing is left"
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def site(wheel: Path) -> Path:
    subprocess.run([*PIP, "install", "--no-deps", "--target", str(wheel.parent / "site"), str(wheel)], check=True)
    return wheel.parent / "site"


@pytest.mark.slow
def test_the_wheel_holds_what_commands_read_and_one_model(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert not [n for n in names if n.split("/")[0] in (*ROOMS, "tests", "datasets")]
    assert "streamscope/gone.py" not in names
    models = {n.split("/")[3] for n in names if n.startswith("streamscope/models/zoo/") and n.count("/") == 4}
    assert models == {"lfa"} and wheel.stat().st_size < 6e6
    read = [p for p in subprocess.run(["git", "ls-files", "-z", *ROOMS, "datasets"], cwd=ROOT, capture_output=True,
                                      text=True, check=True).stdout.split("\0") if p]  # fmt: skip
    wanted = {f"streamscope/{p}" for p in read if not p.endswith(".md") and not p.startswith("models/zoo/")}
    assert wanted <= names  # templates, style sheets, word lists, prompts: whatever is no document


@pytest.mark.slow
def test_a_wheel_in_an_empty_folder(site: Path, tmp_path: Path) -> None:
    where = foreign(tmp_path / "user")

    def streamscope(*argv: str) -> subprocess.CompletedProcess[str]:
        return run([str(site / "bin" / "streamscope"), *argv], where, PYTHONPATH=str(site))

    code = "from streamscope.models import load; model = load('stories/lfa'); print(model.run)"
    done = run(["-c", code], where, PYTHONPATH=str(site))
    assert done.stdout == f"{site}/streamscope/models/zoo/lfa\n", done.stderr
    listed = run(["-X", "importtime", str(site / "bin" / "streamscope"), "--help"], where, PYTHONPATH=str(site))
    assert "torch" not in listed.stderr and "pandas" not in listed.stderr
    for name, module in commands().items():
        (line,) = (line for line in listed.stdout.splitlines() if line.split()[:1] == [name])
        assert len(line.split()) > 3, f"{module} says nothing of itself"
    done = streamscope("ablate", "--heads", "L5.H4", "--draws", "1", "--max-documents", "3", "--out", "a.csv")
    assert done.returncode == 0 and "L5.H4" in done.stdout and (where / "a.csv").is_file(), done.stderr
    (where / "mine.py").write_text("def halve(value, hook):\n    return value * 0.5\n")
    small = ("--only", "loss", "--max-documents", "3", "--edit", "mine.py:halve@blocks.3.hook_mlp_out")
    done = streamscope("phenomena", "stories/lfa", "--control", "stories/lfa", *small)
    assert done.returncode == 0 and "stories/lfa, edited minus stories/lfa" in done.stdout, done.stderr
    done = streamscope("ablation_effects")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: stories/pls is not part of this installation, which has stories/lfa; give")
