"""What the tests of the comparisons share: planted quantities, run folders changed by hand, and two checks."""

import json
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from streamscope.cli.parse import command
from streamscope.models.checkpoint import ZOO
from streamscope.papers.comparison.runs import all_agree, opened

NAN = float("nan")
Values = dict[tuple[str, str], list[float]]
Change = Callable[[Path], None]


def planted(values: Values) -> pd.DataFrame:
    """A table of quantities from (preset, quantity) -> one value per seed; NaN is undefined."""
    rows = [
        {"preset": preset, "seed": seed, "quantity": quantity, "family": "planted", "unit": "", "value": x, "sd": NAN,
         "ci_low": NAN, "ci_high": NAN, "n": 1, "detail": "", "undefined": "value: no head" if x != x else ""}
        for (preset, quantity), seeds in values.items()
        for seed, x in enumerate(seeds)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def changed(name: str, change: Callable[[dict], Any]) -> Change:
    """A change of one JSON file of a run folder."""

    def edit(folder: Path) -> None:
        data = json.loads((folder / name).read_text())
        change(data)
        (folder / name).write_text(json.dumps(data))

    return edit


def committed(page: Callable[[Sequence[str]], str], folder: Path) -> None:
    """Fails unless the page that is written again from a folder's tables is the README.md that lies there.

    The line that says who judged, when and at which commit, is left out.
    """
    text = (folder / "README.md").read_text()
    named = next(line for line in text.splitlines() if line.startswith("- Files: "))
    files = [name.strip(" .`") for name in named.removeprefix("- Files: ").rstrip(".").split(",")]
    assert all((folder / name).is_file() for name in files), files

    def plain(page: str) -> list[str]:
        return [line for line in page.splitlines() if not line.startswith("- Judged again")]

    assert plain(page(files)) == plain(text)


def as_bundled(folder: Path, names: Sequence[str]) -> None:
    """Fails unless the table `bundled` of a folder is of the models that are bundled today, and these trained alike.

    Held against the manifests and metrics in models/zoo, read here plainly.
    """
    table = pd.read_parquet(folder / "bundled.parquet")
    assert list(dict.fromkeys(table["model"])) == list(names)
    for name, rows in table.groupby("model"):
        manifest = json.loads((ZOO / str(name) / "manifest.json").read_text())
        assert set(rows["commit"]) == {manifest["commit"]}, f"{folder.name} has an older {name}: judge it again"
        assert (set(rows["preset"]), set(rows["seed"])) == ({manifest["preset"]}, {manifest["seed"]})
        logged = [json.loads(line) for line in (ZOO / str(name) / "metrics.jsonl").read_text().splitlines()]
        ends = {row["step"]: row["loss"] for row in logged if row["kind"] == "eval"}
        assert dict(zip(rows["step"], rows["loss"], strict=True)) == ends
    all_agree([opened(str(ZOO / name), names) for name in names])


def unexplained(folder: Path, leave_out: Collection[str] = ()) -> dict[str, list[str]]:
    """Table -> its columns with a value that is missing without a reason."""
    from streamscope.instruments.undefined_cells import printable

    found = {}
    for path in folder.glob("*.parquet"):
        table = pd.read_parquet(path)
        if path.stem not in leave_out and "undefined" in table:
            shown = printable(table)
            found[path.stem] = [c for c in shown if (shown[c].astype(str) == "NaN (unexplained)").any()]
    assert found
    return {name: columns for name, columns in found.items() if columns}


def fewer_prompts(patch: pytest.MonkeyPatch, most: int) -> None:
    """From every suite that is loaded, its first `most` prompts, whole pairs."""
    import streamscope.instruments.prompts

    whole = streamscope.instruments.prompts.load_suite

    def first(*args: Any, **options: Any) -> Any:
        suite = whole(*args, **options)
        return replace(suite, prompts=suite.prompts[:most])

    patch.setattr(streamscope.instruments.prompts, "load_suite", first)


def refused(
    main: Callable[[], None],
    argv: Sequence[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> str:
    """The line that a command ends with, having exited with 2."""
    monkeypatch.setattr(sys, "argv", ["papers", *argv])
    with pytest.raises(SystemExit) as end:
        command(main)
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert end.value.code == 2 and last.startswith("error: ")
    return last


def once_more(main: Callable[[Sequence[str]], None], folder: Path, scratch: Path) -> str:
    """The page of a folder, which judging its tables again must give word for word, with the same claims.

    But for the lines that say when it was judged and which files lie beside; `main` may load no model.
    """
    import streamscope.models.checkpoint

    def lines(text: str) -> list[str]:
        own = ("- Judged again", "- Files:", "![comparison]")
        return [line for line in text.splitlines() if line and not line.startswith(own)]

    def closed(*_: Any, **__: Any) -> None:
        raise AssertionError("--tables loads no model")

    out = scratch / "again"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(streamscope.models.checkpoint, "read_tensors", closed)
        main(["--tables", str(folder), "--out", str(out), "--static", "none", "--no-html"])
    texts = [(one / "README.md").read_text(encoding="utf-8") for one in (folder, out)]
    assert lines(texts[1]) == lines(texts[0])
    pd.testing.assert_frame_equal(*(pd.read_parquet(one / "claims.parquet") for one in (folder, out)))
    assert {path.name for path in out.glob("*.parquet")} == {path.name for path in folder.glob("*.parquet")}
    return texts[0]
