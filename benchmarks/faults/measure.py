"""What `python -m benchmarks.faults` measures and prints."""

import gc
import importlib
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch

from streamscope.benchmarks.faults.options import Options
from streamscope.cli.errors import InputError
from streamscope.models.checkpoint import load
from streamscope.models.tensors import digest
from streamscope.models.training.run import OF_THE_MACHINE, read_metrics

KILLED = 86
"""Exit code of a process that killed itself at a rename."""
STEPS = 9
PRELOADED = ["training.loop", "training.data", "derived", "text.pairs"]
PRELOADED = [f"streamscope.models.{name}" for name in (*PRELOADED, "train", "sft", "checkpoint")]
PRELOADED += ["torch._dynamo", "torch.utils.tensorboard", "typeguard"]  # which torch and tyro import late, and slowly
LATEST = 120.0
"""Seconds after which a process is no longer waited for."""


@dataclass(frozen=True)
class Case:
    """Work that a test can start again: module with the command, arguments without --out."""

    name: str
    module: str
    argv: tuple[str, ...]
    file: str = ""
    """What --out names inside the folder of the case; nothing: the folder."""
    resumes: bool = True
    """Gone on with by --resume; else by the same command."""

    def words(self, folder: Path) -> list[str]:
        """The arguments that start the case, or go on with what is left of it in `folder`."""
        out = ("--out", str(folder / self.file))
        return ["--resume", *out] if self.resumes and (folder / "manifest.json").exists() else [*self.argv, *out]


def training(folder: Path, *more: str) -> Case:
    """A tiny PLS: 9 steps, a checkpoint every 3, an evaluation every 4."""
    argv = (
        *("pls", "--data", "stories:0:30", "--valid", "stories:1:4", "--scale", "tiny", "--set", "d_vocab=300"),
        *("--steps", str(STEPS), "--batch-size", "4", "--log-every", "2", "--eval-every", "4", "--eval-batches", "2"),
        *("--checkpoint-every", "3", "--sample-every", "0", "--snapshots", "0", "--device", "cpu", *more),
    )
    return Case(" ".join(("training", *more)), "models.train", argv)


def tuning(folder: Path, base: Path) -> Case:
    """A fine-tuning of `base` on pairs that are written to `folder`."""
    rng, words = random.Random(0), ["cat", "dog", "house", "ran", "sat", "red"]
    pairs = folder / "pairs.jsonl"
    rows = [{"prompt": " ".join(rng.choices(words, k=3)), "response": rng.choice(words)} for _ in range(80)]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    argv = (
        "--batch-size",
        "4",
        "--steps",
        "6",
        "--eval-every",
        "3",
        "--checkpoint-every",
        "2",
        "--snapshots",
        "0",
        "--device",
        "cpu",
    )
    return Case("sft", "models.sft", (str(base), "--data", str(pairs), *argv))


def extraction(folder: Path, base: Path) -> Case:
    """The features of some stories in several parts (see `_work`), and raw activations beside them."""
    argv = (str(base), "--data", "stories:1:12", "--raw", "--device", "cpu")
    return Case("extraction", "features.extract", argv, file="features.parquet", resumes=False)


def grid(folder: Path) -> Case:
    """Two trainings as `training`'s."""
    preset, *train = training(folder).argv
    options = {name[2:].replace("-", "_"): value for name, value in zip(train[::2], train[1::2], strict=True)}
    words = {"set": [options.pop("set")], "snapshots": options.pop("snapshots")}
    values = {**words, **{name: int(value) if value.isdigit() else value for name, value in options.items()}}
    lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    text = [f'presets = ["{preset}"]', "seeds = [0, 1]", "[train]", *lines]
    (path := folder / "grid.toml").write_text("\n".join(text), encoding="utf-8")
    return Case("grid", "models.grid", (str(path),), resumes=False)


@dataclass(frozen=True)
class Death:
    """When a process dies: at the n-th rename (before or after it), or a time after its start."""

    replace: int = 0
    after: bool = False
    seconds: float | None = None


def _work(module: str, argv: Sequence[str], death: Death, log: str) -> None:
    """What the process does: the command, on one thread, with its output in a file."""
    gc.freeze()  # what the server has imported is not garbage: a collection over it took a third of a second
    torch.set_num_threads(1)
    sys.stdout = sys.stderr = open(log, "a", encoding="utf-8", buffering=1)  # noqa: SIM115
    replace, count = os.replace, 0

    def counted(*names: Any) -> None:
        nonlocal count
        count += 1
        if count == death.replace and not death.after:
            os._exit(KILLED)
        replace(*names)
        if count == death.replace and death.after:
            os._exit(KILLED)

    os.replace = counted  # type: ignore[assignment]
    if module == "features.extract":
        import streamscope.features.extract.measure as extraction

        extraction.PART_ROWS, extraction.BATCH_TOKENS = 512, 96
    try:
        importlib.import_module(module).main(list(argv))
    except InputError as error:
        print(f"error: {error}")
        os._exit(2)


def start(module: str, argv: Sequence[str], log: Path, death: Death | None = None) -> Any:
    """A process that runs the command; forked from a server that has imported what it needs."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=_work, args=(module, tuple(argv), death or Death(), str(log)))
    process.start()
    return process


def run(module: str, argv: Sequence[str], log: Path, death: Death | None = None) -> int:
    """Exit code of the command; negative for a signal. Raises `InputError` for one that does not end."""
    process = start(module, argv, log, death)
    process.join(LATEST if death is None or death.seconds is None else death.seconds)
    if process.is_alive():
        process.kill()
        process.join()
        if death is None or death.seconds is None:
            raise InputError(f"{module} did not end within {LATEST:g} s; see {log}")
    return int(process.exitcode or 0)


def uninterrupted(case: Case, folder: Path) -> float:
    """Run the case to its end in `folder`; seconds. Raises `InputError` when it fails."""
    began = time.perf_counter()
    code = run(case.module, case.words(folder), folder.with_suffix(".log"))
    if code != 0:
        raise InputError(f"{case.name} ended with {code}; see {folder.with_suffix('.log')}")
    return time.perf_counter() - began


def killed(case: Case, folder: Path, deaths: Iterator[Death]) -> int:
    """Run the case with these deaths, one per process, until it completes or they are used up; the number of kills."""
    log, kills = folder.with_suffix(".log"), 0
    while True:
        argv, death = case.words(folder), next(deaths, None)
        code = run(case.module, argv, log, death)
        if code == 0:
            return kills
        if death is None or code not in (KILLED, -9):
            raise InputError(f"{case.name}: {' '.join(argv)} ended with {code}; see {log}")
        kills += 1


def ended(folder: Path) -> dict[str, Any]:
    """What must be the same: of each run weights as `load` gives them, metrics without times, outcome and step; of each
    table its rows."""
    found: dict[str, Any] = {}
    for path in sorted([*folder.glob("manifest.json"), *folder.glob("*/manifest.json")]):
        run, about = path.parent, json.loads(path.read_text(encoding="utf-8"))
        of = "" if run == folder else f"{run.name} "
        found[f"{of}weights"] = digest(load(run).state_dict())
        rows = [{k: v for k, v in row.items() if k not in OF_THE_MACHINE} for row in read_metrics(run)]
        found[f"{of}metrics"] = rows
        found |= {f"{of}{name} noted": about.get(name) for name in ("outcome", "step", "steps", "weights")}
    for path in sorted(folder.glob("*.parquet")):
        found[path.name] = pq.read_table(path).to_pandas().to_csv()
    if not found:
        raise InputError(f"{folder}: neither a run nor a table")
    return found


def differences(one: Path, two: Path) -> list[str]:
    """In what two runs differ: names out of `ended`."""
    a, b = ended(one), ended(two)
    return [name for name in a.keys() | b.keys() if a.get(name) != b.get(name)]


def measure(options: Options) -> None:
    """Measure and print."""
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        os.environ.setdefault("STREAMSCOPE_CACHE", str(folder / "cache"))
        base = training(folder)
        cases = [base, training(folder, "--keep", "best"), tuning(folder, folder / "training")]
        cases += [extraction(folder, folder / "training"), grid(folder)]
        seconds = {case: uninterrupted(case, folder / case.name.replace(" ", "_")) for case in cases}
        print(", ".join(f"{case.name} {s:.1f} s" for case, s in seconds.items()), file=sys.stderr)
        began, done, wrong = time.perf_counter(), 0, list[str]()

        def once(case: Case, deaths: Iterator[Death], out: Path) -> int:
            kills = killed(case, out, deaths)
            found = differences(folder / case.name.replace(" ", "_"), out)
            wrong.extend(f"{case.name}, {out.name}: {', '.join(found)} differ" for _ in found[:1])
            return kills

        runs = 0
        while done < options.kills:
            case = cases[runs % len(cases)]
            deaths = (Death(seconds=rng.uniform(0.0, 1.1 * seconds[case])) for _ in range(options.kills - done))
            done += once(case, deaths, folder / f"random-{runs}")
            runs += 1
            print(f"{done} kills at random times, {runs} runs", file=sys.stderr)
        print(f"{done} kills at random times in {runs} runs: {len(wrong)} runs differ from the uninterrupted one")
        for case in cases if options.every_replace else ():
            name = case.name.replace(" ", "_")
            number = 1
            while once(case, iter([Death(number)]), folder / f"{name}-before-{number}"):
                once(case, iter([Death(number, after=True)]), folder / f"{name}-after-{number}")
                number += 1
            print(f"{case.name}: killed before and after each of {number - 1} renames")
        print("\n".join(wrong) or "all runs ended with the same weights and metrics")
        print(f"{time.perf_counter() - began:.0f} s")
    if wrong:
        sys.exit(1)
