"""A command whose tasks workers share, without torch: python -m tests.cli.launch_worker FOLDER --launch …"""

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from streamscope.cli.launch import LaunchOptions, launch, work
from streamscope.cli.parse import command, parse

TASKS = [f"t{i}" for i in range(6)]


@dataclass(frozen=True, kw_only=True)
class Options(LaunchOptions):
    folder: Annotated[Path, tyro.conf.Positional]
    broken: bool = False
    killed: str = ""
    """Task at which the first worker that begins it is killed."""


def main(argv: list[str] | None = None) -> None:
    options = parse(Options, argv, __doc__)
    launch(options, "tests.cli.launch_worker", sys.argv[1:] if argv is None else argv, logs=options.folder / "logs")
    if options.launch == "worker" and options.broken:
        sys.exit("error: this worker is broken")

    def do(name: str) -> None:
        marker = options.folder / "killed"
        if name == options.killed and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), 9)
        time.sleep(0.1)
        with (options.folder / f"{name}.txt").open("x") as file:
            file.write(f"{name} {os.getpid()}")

    work(TASKS, do, lambda name: (options.folder / f"{name}.txt").exists(), options.folder, wait=True)


if __name__ == "__main__":
    command(main)
