"""The picture of the live page: what it refuses, and that it is taken."""

from pathlib import Path

import pytest

from streamscope.cli.errors import InputError
from streamscope.viewer import screenshot
from tests.viewer.pages import browser


def test_what_cannot_be_drawn_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"suffix \.png"):
        screenshot.main(["--out", str(tmp_path / "page.svg")])
    pytest.importorskip("playwright")
    monkeypatch.setattr(screenshot, "BROWSERS", ("no-such-browser",))
    with pytest.raises(InputError, match="no Chromium is installed: on Debian, apt install chromium"):
        screenshot.main(["--out", str(tmp_path / "page.png")])


@pytest.mark.slow
def test_the_picture_of_the_readme_is_taken(tmp_path: Path) -> None:
    with browser():
        pass
    path = tmp_path / "page.png"
    screenshot.main(["--out", str(path), "--width", "640", "--height", "480"])
    raw = path.read_bytes()
    assert raw.startswith(b"\x89PNG") and int.from_bytes(raw[16:20]) == 960, (
        "1.5 pixels of the picture for one of the page"
    )
