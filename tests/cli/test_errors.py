"""The border: what readers of foreign files raise is one line, a defect of ours is a traceback."""

import subprocess
import sys
from pathlib import Path

import pytest

from streamscope.cli.errors import InputError, Undefined, reading

RAISED = [
    (KeyError("weight"), "x.pt cannot be read (it lacks 'weight'); save it again"),
    (Exception("bare\nof two lines"), "x.pt cannot be read (bare of two lines); save it again"),
    (PermissionError(13, "Permission denied", "x.pt"), "x.pt cannot be read (Permission denied); save it again"),
    (ValueError("\x1b[1mloud\x1b[0m"), "x.pt cannot be read (loud); save it again"),
    (EOFError(), "x.pt cannot be read (EOFError); save it again"),
    (InputError("n_heads must be at least 1"), "x.pt: n_heads must be at least 1"),
]


@pytest.mark.parametrize(("error", "line"), RAISED, ids=[type(error).__name__ for error, _ in RAISED])
def test_what_a_reader_raises_is_one_line(error: Exception, line: str) -> None:
    with pytest.raises(InputError) as caught, reading(Path("x.pt"), "save it again"):
        raise error
    assert str(caught.value) == line and caught.value.__cause__ is error


def test_a_line_that_names_the_file_passes() -> None:
    with pytest.raises(Undefined, match="^x.pt has no head$"), reading("x.pt"):
        raise Undefined("x.pt has no head")


COMMAND = """
import sys
from streamscope.cli.errors import reading
from streamscope.cli.parse import command

def main():
    assert "--traceback" not in sys.argv
    if "defect" in sys.argv:
        raise IndexError("of ours")
    if "memory" in sys.argv:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
    with reading("x.pt"):
        {}["weight"]

command(main)
"""


@pytest.mark.parametrize(
    ("words", "code", "lines"),
    [
        ((), 2, ["error: x.pt cannot be read (it lacks 'weight'); restore the file, or check the path"]),
        (("memory",), 2, ["error: not enough memory (DefaultCPUAllocator: can't allocate memory); choose smaller"]),
        (("--traceback",), 2, ["Traceback (most recent call last):", "KeyError: 'weight'"]),
        (("defect",), 1, ["IndexError: of ours", "This is a defect of streamscope: please report it"]),
    ],
)
def test_a_command_ends_so(words: tuple[str, ...], code: int, lines: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", COMMAND, *words], capture_output=True, text=True)
    assert done.returncode == code and all(line in done.stderr for line in lines), done.stderr
    assert done.stderr.count("\n") == 1 or "Traceback" in done.stderr
