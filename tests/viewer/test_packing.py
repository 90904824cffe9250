"""The page as one file: what it holds, ONNX Runtime by its hash, and what is refused before a page is written."""

import hashlib
import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from streamscope.cli.errors import InputError
from streamscope.models.checkpoint import load
from streamscope.viewer import describe, page, runtime
from streamscope.viewer.session import Shown, open_models

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = b"let a=1;export{a as env};"


def package(**files: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for key, content in files.items():
            member = tarfile.TarInfo(f"package/dist/{runtime.FILES[key]}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> bytes:
    """A small package in the place of ONNX Runtime's, and a cache of its own."""
    content = package(script=SCRIPT, wasm=b"\0asm")
    monkeypatch.setattr(runtime, "SHA256", hashlib.sha256(content).hexdigest())
    monkeypatch.setenv("STREAMSCOPE_CACHE", str(tmp_path / "cache"))
    return content


def test_the_runtime_is_kept_by_its_hash(made: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="a page needs ONNX Runtime, which is fetched once"):
        runtime.read("wasm")
    (tmp_path / "other.tgz").write_bytes(made + b" ")
    with pytest.raises(InputError, match=f"this is not onnxruntime-web {runtime.VERSION}: its sha256 is"):
        runtime.main([str(tmp_path / "other.tgz")])
    (tmp_path / "right.tgz").write_bytes(made)
    runtime.main([str(tmp_path / "right.tgz")])
    assert str(tmp_path / "cache") in capsys.readouterr().out
    assert runtime.read("script") == SCRIPT and runtime.read("wasm") == b"\0asm"


def test_npm_is_asked_once(made: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npm, log = tmp_path / "npm", tmp_path / "asked"
    (tmp_path / "made.tgz").write_bytes(made)
    npm.write_text(f'#!/bin/sh\necho "$@" >> {log}\ncp {tmp_path / "made.tgz"} onnxruntime-web.tgz\n')
    npm.chmod(0o755)
    monkeypatch.setattr(runtime.shutil, "which", lambda name: str(npm))
    runtime.main([])
    runtime.main([])
    assert log.read_text() == f"pack --silent onnxruntime-web@{runtime.VERSION}\n"
    npm.write_text("#!/bin/sh\necho first >&2\necho 'npm error network' >&2\nexit 1\n")
    monkeypatch.setenv("STREAMSCOPE_CACHE", str(tmp_path / "empty"))
    with pytest.raises(InputError, match=rf"^npm could not fetch onnxruntime-web {runtime.VERSION}: npm error"):
        runtime.main([])
    monkeypatch.setattr(runtime.shutil, "which", lambda name: None)
    with pytest.raises(InputError, match="npm is not installed: install it"):
        runtime.main([])


def test_the_page_holds_models_snapshots_and_notices(made: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime.install(made)
    asked: list[str] = []
    monkeypatch.setattr(page, "graph_of", lambda model, *_: asked.append(str(model.run)) or str(model.run).encode())
    html = page.html(open_models(["stories/lfa@all", "stories/std-t"]), "Lily had a ball.")
    assert len(asked) == 8 and len(set(asked)) == 8 and asked[0].endswith("zoo/lfa")  # the last snapshot is the model
    for blob in ("wasm", "onnx-lfa", "onnx-lfa@1000", "onnx-std-t"):
        assert html.count(f'id="{blob}"') == 1
    assert "globalThis.ort" in html and "Copyright (c) Microsoft Corporation" in html and str(ROOT) not in html


def test_what_no_page_can_hold(made: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime.install(made)
    shown = [Shown("x", "x", load("stories/lfa"))]
    for module, name, value, line in (
        (describe, "is_plain_bpe", lambda text: False, "x: a page only computes byte-level BPE that splits words"),
        (page, "LARGEST", 1000, "x has 770,496 parameters, too many for a page: drop --out, for the server"),
    ):
        monkeypatch.setattr(module, name, value)
        with pytest.raises(InputError, match=line):
            page.html(shown)


def test_without_the_extra_the_command_says_what_to_install() -> None:
    code = (
        "import sys, importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'onnx' else find(name, *a)\n"
        "from streamscope.cli.parse import command; from streamscope.viewer.view import main\n"
        "command(lambda: main(['stories/lfa']))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "error: onnx is not installed: pip install 'streamscope[view]'\n"
