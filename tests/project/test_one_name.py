"""One import name: `streamscope`, installed or in a clone, and the short names of a clone are the same modules."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("models", "probes", "interventions", "features", "papers", "benchmarks")
SAME = """
import importlib, pickle, sys
for room in {rooms!r}:
    assert importlib.import_module(room) is importlib.import_module(f"streamscope.{{room}}"), room
import models.errors, streamscope.models.errors
assert models.errors is streamscope.models.errors
assert models.errors.InputError is streamscope.models.errors.InputError
from probes import Pds
from streamscope.probes import Pds as Same
from streamscope.interventions import Ablate
assert Pds is Same and isinstance(pickle.loads(pickle.dumps(Same())), Pds)
assert models.errors.__name__ == models.errors.__spec__.name == "streamscope.models.errors"
import datasets
assert datasets.load_dataset
"""


def run(argv: list[str], cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, "-W", "error", *argv], cwd=cwd, capture_output=True, text=True, env=kept | env
    )


def foreign(folder: Path) -> Path:
    """A user's folder that holds other things under the names of our rooms."""
    for name in ("models", "features"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("raise RuntimeError('not ours')")
    (folder / "probes.py").write_text("raise RuntimeError('not ours')")
    return folder


def test_short_and_long_names_are_the_same_modules() -> None:
    code = SAME.format(rooms=ROOMS)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "module",
    [
        "interventions.ablate",
        *(pytest.param(m, marks=pytest.mark.slow) for m in ("streamscope.probes.pds", "models.train")),
    ],
)
def test_a_command_by_both_names_in_the_clone(module: str) -> None:
    done = run(["-m", module, "--help"], ROOT)
    assert done.returncode == 0, done.stderr
    assert f"usage: python -m {module}" in done.stdout


def test_a_folder_with_other_models_in_it(tmp_path: Path) -> None:
    where = foreign(tmp_path / "user")
    done = run(["-m", "streamscope", "ablate", "--help"], where, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    wrong = run(["-m", "streamscope", "ablat"], where, PYTHONPATH=str(ROOT))
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: unknown command 'ablat'") and wrong.stderr.count("\n") == 1
    listed = run(["-m", "streamscope"], where, PYTHONPATH=str(ROOT))
    assert "  ablate " in listed.stdout and "  train " in listed.stdout


def test_every_package_is_in_the_wheel() -> None:
    import tomllib

    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    there = {"streamscope", "streamscope.datasets"}
    for room in ROOMS:
        for path in (ROOT / room).rglob("__init__.py"):
            there.add(".".join(("streamscope", *path.parent.relative_to(ROOT).parts)))
    assert set(told) == there


@pytest.mark.slow
def test_a_wheel_in_an_empty_folder(tmp_path: Path) -> None:
    clone, site = tmp_path / "clone", tmp_path / "site"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", str(tmp_path), str(clone)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert not [n for n in names if n.split("/")[0] in (*ROOMS, "tests", "datasets")]
    subprocess.run([*pip, "install", "--no-deps", "--target", str(site), str(wheel)], check=True)
    where = foreign(tmp_path / "user")
    code = "from streamscope.models import load; print(load('lfa').config.name)"
    done = run(["-c", code], where, PYTHONPATH=str(site))
    assert done.stdout == "lfa\n", done.stderr
    done = run(["-m", "streamscope", "pds", "lfa"], where, PYTHONPATH=str(site))
    assert done.returncode == 0 and "L5H4" in done.stdout, done.stderr
