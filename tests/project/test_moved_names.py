"""Names of an earlier release: the same objects, with a warning that says where they are now."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import streamscope
from streamscope.aliases import MOVED
from streamscope.cli.errors import InputError


@pytest.mark.parametrize("old", sorted(MOVED))
def test_an_old_name_is_the_new_object(old: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"^streamscope\.{old} is now streamscope\."):
        found = _fresh(old)
    for home in MOVED[old]:
        new = importlib.import_module(f"streamscope.{home}")
        shared = [n for n, x in vars(new).items() if getattr(x, "__module__", "") == new.__name__]
        assert all(getattr(found, n) is getattr(new, n) for n in shared)


def _fresh(old: str) -> object:
    sys.modules.pop(f"streamscope.{old}", None)
    return importlib.import_module(f"streamscope.{old}")


def test_what_users_import_first() -> None:
    from streamscope import Documents, Prompts, Tasks, build, load

    assert [one.__name__ for one in (Documents, Prompts, Tasks, build, load)] == [
        "Documents", "Prompts", "Tasks", "build", "load"]  # fmt: skip
    assert streamscope.InputError is InputError and "Documents" in dir(streamscope)
    with pytest.raises(AttributeError, match="has no attribute 'documents'"):
        streamscope.documents  # noqa: B018


def test_names_below_a_package_that_moved() -> None:
    sys.modules.pop("streamscope.models.text", None)
    sys.modules.pop("streamscope.models.text.shards", None)
    with pytest.warns(DeprecationWarning) as warned:
        old = importlib.import_module("streamscope.models.text.shards")
    assert old is importlib.import_module("streamscope.text.shards")
    assert "streamscope.models.text.shards is now streamscope.text.shards" in str(warned[-1].message)


def test_a_users_own_modules_are_not_taken_for_ours(tmp_path: Path) -> None:
    for folder in ("models", "probes"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "models" / "errors.py").write_text("MINE = 1")
    (tmp_path / "probes" / "result.py").write_text("MINE = 2")
    code = "import streamscope, models.errors, probes.result; print(models.errors.MINE, probes.result.MINE)"
    env = os.environ | {"PYTHONPATH": str(Path(streamscope.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=tmp_path, env=env, capture_output=True)
    assert done.stdout == b"1 2\n", done.stderr.decode()
