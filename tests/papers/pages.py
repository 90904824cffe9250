"""What the tests of the comparisons share: planted quantities, run folders changed by hand, and two checks."""

import json
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from models.cli import command

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


def unexplained(folder: Path, leave_out: Collection[str] = ()) -> dict[str, list[str]]:
    """Table -> its columns with a value that is missing without a reason."""
    from probes.undefined import printable

    found = {}
    for path in folder.glob("*.parquet"):
        table = pd.read_parquet(path)
        if path.stem not in leave_out and "undefined" in table:
            shown = printable(table)
            found[path.stem] = [c for c in shown if (shown[c].astype(str) == "NaN (unexplained)").any()]
    assert found
    return {name: columns for name, columns in found.items() if columns}


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
