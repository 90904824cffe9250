"""How far it is from what an instrument observes to the disk: the files of this repository that one row passes."""

import importlib
import sys
import threading
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from streamscope.instruments.result import Result

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("streamscope", "models", "probes", "interventions", "features")
OF_THE_MODEL = ("models/layers", "models/config", "models/interop", "models/hooks/points.py", "models/decoder.py",
                "models/transformer.py", "models/checkpoint.py", "models/tensors.py")  # fmt: skip
OF_THE_DATA = ("streamscope/text", "streamscope/instruments/prompts", "streamscope/instruments/open_data.py",
               "models/training/data.py", "streamscope/aliases.py")  # fmt: skip
"""Where the model's forward pass and the opening of data go, which are the same for every row."""


def walk(module: str, argv: list[str]) -> list[str]:
    """The files whose functions run between the call of `observe` and the return of `Result.save`."""
    main: Any = importlib.import_module(f"streamscope.{module}").main
    files: dict[str, None] = {}
    importing, walking = 0, False

    @cache
    def place(code_file: str) -> str | None:
        path = Path(code_file).resolve()
        name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else ""
        return name if name.startswith(ROOMS) and not name.startswith((*OF_THE_MODEL, *OF_THE_DATA)) else None

    def profile(frame: Any, event: str, _: Any) -> None:
        nonlocal importing, walking
        code = frame.f_code
        if code.co_name == "<module>" and event in ("call", "return"):
            importing += 1 if event == "call" else -1
        elif event == "call" and not importing:
            walking = walking or code.co_qualname == "Instrument.observe"
            if walking and (name := place(code.co_filename)):
                files[name] = None
        elif event == "return" and code is Result.save.__code__:
            walking = False

    for where in (threading, sys):
        where.setprofile(profile)
    try:
        main(argv)
    finally:
        for where in (threading, sys):
            where.setprofile(None)
    return list(files)


@pytest.mark.slow  # how the code is cut, not what it computes
@pytest.mark.parametrize(
    ("module", "argv", "most"),
    [
        ("interventions.ablate", ["--heads", "L0.H0", "--max-documents", "2"], 19),
        ("probes.pds", [], 12),
        ("features.extract", ["--max-tokens", "100"], 14),
    ],
)
def test_a_row_passes_few_files(
    module: str, argv: list[str], most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamscope.instruments.command.LOG_EVERY", 1e6)  # a slow machine passes no more files
    files = walk(module, [*argv, "--out", str(tmp_path / "x.parquet")])
    assert len(files) <= most, "\n".join(files)
