"""A command whose work launchers share, without torch: python -m tests.cli.ledger_worker FOLDER --launch …"""

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from streamscope.cli.launch import LaunchOptions, is_worker, launch
from streamscope.cli.ledger import Ledger
from streamscope.cli.parse import command, parse

TASKS = [f"t{i}" for i in range(4)]


@dataclass(frozen=True, kw_only=True)
class Options(LaunchOptions):
    folder: Annotated[Path, tyro.conf.Positional]
    broken: bool = False


def main(argv: list[str] | None = None) -> None:
    options = parse(Options, argv, __doc__)
    ledger = Ledger(options.folder / "ledger")
    words = sys.argv[1:] if argv is None else argv
    launch(options, "tests.cli.ledger_worker", words, logs=options.folder / "logs")
    if is_worker(options) and options.broken:
        sys.exit("error: this worker is broken")

    def do(name: str) -> int:
        time.sleep(0.05)
        (options.folder / f"{name}.txt").write_text(f"output of {name}\n")
        return os.getpid()

    ledger.work(TASKS, do)


if __name__ == "__main__":
    command(main)
