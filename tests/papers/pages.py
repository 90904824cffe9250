"""What the tests of the comparisons share: planted quantities, run folders changed by hand, and two checks."""

import json
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from streamscope.cli.parse import command
from streamscope.papers.comparison.runs import trained_runs

NAN = float("nan")
Values = dict[tuple[str, str], list[float]]
Change = Callable[[Path], None]


def planted(values: Values) -> pd.DataFrame:
    """A table of quantities from (preset, quantity) -> one value per seed; NaN is undefined."""
    rows = [
        {"preset": preset, "seed": seed, "quantity": quantity, "family": "planted", "unit": "planted", "value": x,
         "sd": NAN, "ci_low": NAN, "ci_high": NAN, "n": 1, "detail": "",
         "undefined": "value: no head" if x != x else ""}
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


def unexplained(folder: Path, leave_out: Collection[str] = ()) -> dict[str, list[str]]:
    """Table -> its columns with a value that is missing without a reason."""
    from streamscope.instruments.undefined_cells import reasons

    found = {}
    for path in folder.glob("*.parquet"):
        table = pd.read_parquet(path)
        if path.stem not in leave_out and "undefined" in table:
            why = [reasons(text) for text in table["undefined"]]
            missing = table.isna()
            found[path.stem] = [c for c in table if any(c not in why[i] for i in np.flatnonzero(missing[c]))]
    assert found
    return {name: columns for name, columns in found.items() if columns}


def fewer_prompts(patch: pytest.MonkeyPatch, most: int) -> None:
    """From every suite that is loaded, its first `most` prompts, whole pairs.

    Replaced where modules have it by name, and these are imported first: one that is imported later, under the patch,
    would keep it after the test.
    """
    import streamscope.instruments.open_data
    import streamscope.instruments.prompts.tasks
    import streamscope.interventions.selection
    import streamscope.probes.phenomena.measure

    whole = streamscope.instruments.prompts.load_suite

    def first(*args: Any, **options: Any) -> Any:
        suite = whole(*args, **options)
        return replace(suite, prompts=suite.prompts[:most])

    for name, module in list(sys.modules.items()):
        if name.startswith("streamscope.") and vars(module).get("load_suite") is whole:
            patch.setattr(module, "load_suite", first)


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


def once_more(main: Callable[[Sequence[str]], None], folder: Path, scratch: Path) -> None:
    """Judging the tables of a folder again gives the same tables, without a model."""
    import streamscope.models.checkpoint

    def closed(*_: Any, **__: Any) -> None:
        raise AssertionError("--tables loads no model")

    out = scratch / "again"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(streamscope.models.checkpoint, "read_tensors", closed)
        main(["--tables", str(folder), "--out", str(out), "--static", "none", "--no-html"])
    assert_same_tables(folder, out)
    short_page(out)


def assert_same_tables(one: Path, two: Path) -> None:
    """Two folders hold the same tables and the same runs (fields that came since have defaults).

    Numbers agree to 1e-12: the last digit of a sum depends on the processor's vectors.
    """
    tables = sorted(path.name for path in one.glob("*.parquet"))
    assert tables and tables == sorted(path.name for path in two.glob("*.parquet"))
    for name in tables:
        pd.testing.assert_frame_equal(pd.read_parquet(one / name), pd.read_parquet(two / name), rtol=1e-12, atol=1e-15)
    assert trained_runs(one) == trained_runs(two) != []


def short_page(folder: Path) -> str:
    """The README.md that a command wrote: short, with the command that trained the runs and the one that measured."""
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 15 and "python -m papers." in text and "nan" not in text.split("```")[0]
    return text
