"""Kill commands at awkward moments, continue them, and compare the result with an unbroken run.

Each case runs in its own process: a tiny training (dropout, so that the random state matters; validation), a
fine-tuning and an extraction of features in several parts. A process dies at the n-th
`os.replace`, the call that gives every file its name. The command is then resumed, or started again if no run exists
yet. Weights, metrics and feature rows must then equal those of the uninterrupted run, bit for bit.
"""

import gc
import importlib
import itertools
import json
import multiprocessing
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import torch

from streamscope.cli.errors import InputError
from streamscope.models.checkpoint import load
from streamscope.models.tensors import digest
from tests.training.runs import rows

KILLED = 86
"""Exit code of a process that killed itself at a rename."""
PRELOADED = [
    *("streamscope.models.training.loop", "streamscope.models.training.data"),
    *("streamscope.text.pairs", "streamscope.models.train", "streamscope.models.sft", "streamscope.models.checkpoint"),
    *("torch._dynamo", "torch.utils.tensorboard", "typeguard"),  # torch and tyro import these late, and slowly
]
TIMEOUT = 120.0
"""Seconds that a process may take."""


class Case(NamedTuple):
    """A command that can be killed and continued: its module and its arguments without --out."""

    module: str
    argv: tuple[str, ...]
    file: str = ""
    """File name for --out inside the folder of the case; empty: the folder itself."""

    def arguments(self, folder: Path) -> list[str]:
        """Those that begin it, or --resume where a run is; an extraction is continued by the same command."""
        argv = ["--resume"] if (folder / "manifest.json").exists() else self.argv
        return [*argv, "--out", str(folder / self.file)]


ARGUMENTS = """pls --data stories:0:30 --valid stories:1:4 --scale tiny --set d_vocab=300 --steps 9 --batch-size 4
--log-every 2 --eval-every 4 --eval-batches 2 --checkpoint-every 3 --sample-every 0 --snapshots 0 --device cpu"""
TRAINING = Case("models.train", tuple(ARGUMENTS.split()))


def tuning(folder: Path, base: Path) -> Case:
    """A fine-tuning of `base` on pairs that are written to `folder`."""
    rng, words = random.Random(0), ["cat", "dog", "house", "ran", "sat", "red"]
    pairs = folder / "pairs.jsonl"
    rows = [{"prompt": " ".join(rng.choices(words, k=3)), "response": rng.choice(words)} for _ in range(80)]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    options = "--batch-size 4 --steps 6 --eval-every 3 --checkpoint-every 2 --snapshots 0 --device cpu"
    return Case("models.sft", (str(base), "--data", str(pairs), *options.split()))


def extraction(base: Path) -> Case:
    """The features and raw activations of some stories, in several parts (see `_work`)."""
    argv = (str(base), "--data", "stories:1:12", "--raw", "--device", "cpu")
    return Case("features.extract", argv, file="features.parquet")


def _work(module: str, argv: Sequence[str], death: int, log: str) -> None:
    """Run the command on one thread, with its output in a file; the process dies before its rename number `death`."""
    gc.freeze()  # what the server has imported is not garbage: a collection over it took a third of a second
    torch.set_num_threads(1)
    sys.stdout = sys.stderr = open(log, "a", encoding="utf-8", buffering=1)  # noqa: SIM115
    replace, count = os.replace, itertools.count(1)

    def counted(*names: Any) -> None:
        if next(count) == death:
            os._exit(KILLED)
        replace(*names)

    os.replace = counted  # type: ignore[assignment]
    if module == "features.extract":
        import streamscope.features.extract.measure as extraction

        extraction.PART_ROWS, extraction.BATCH_TOKENS = 512, 96
    try:
        importlib.import_module(module).main(list(argv))
    except InputError as error:
        print(f"error: {error}")
        os._exit(2)


def run(module: str, argv: Sequence[str], log: Path, death: int = 0) -> int:
    """Exit code of the command in a process, forked from a server that has already imported the libraries."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=_work, args=(module, tuple(argv), death, str(log)))
    process.start()
    process.join(TIMEOUT)
    process.kill()  # nothing, if it has ended
    process.join()
    return int(process.exitcode or 0)


def killed(case: Case, folder: Path, death: int) -> bool:
    """Run the case to its end in `folder`, after a death at this rename; whether there was one."""
    log, died = folder.with_suffix(".log"), False
    while code := run(case.module, case.arguments(folder), log, 0 if died else death):
        assert not died and code == KILLED, f"{case.module} ended with {code}; see {log}"
        died = True
    return died


def final_state(folder: Path) -> dict[str, Any]:
    """The results to compare: a run's weights, metrics without times, outcome and step; each table's rows."""
    state: dict[str, Any] = {}
    if (folder / "manifest.json").exists():
        about = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        state = {f"{name} noted": about.get(name) for name in ("outcome", "step", "steps", "weights")}
        state |= {"weights": digest(load(folder).state_dict()), "metrics": rows(folder)}
    for path in sorted(folder.glob("*.parquet")):
        state[path.name] = pq.read_table(path).to_pandas().to_csv()
    assert state, f"{folder}: neither a run nor a table"
    return state


def differences(one: Path, two: Path) -> list[str]:
    a, b = final_state(one), final_state(two)
    return [name for name in a.keys() | b.keys() if a.get(name) != b.get(name)]
