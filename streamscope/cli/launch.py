"""Several workers for one command, wherever they run: each is the same command again, with `--launch worker`.

    serial      this process does it alone
    local       --workers processes on this machine, of one thread each
    ray         --workers tasks on the Ray cluster at RAY_ADDRESS, or on a local one (extra `launch`)
    submitit    --workers jobs of SLURM; without sbatch its imitation on this machine, for tests (extra `launch`)
    worker      what the others start: takes what is open in the ledger, prints no summary

Workers find their tasks in a ledger (`cli.ledger`) in a folder that all of them see, so they need no connection to
one another. What those that died leave, the others do, or the command itself when all have ended.
"""

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from streamscope.cli.bounds import Count, Only, Positive
from streamscope.cli.errors import InputError
from streamscope.cli.help import Group
from streamscope.cli.terminal import visible

SEVERAL = Group("Several processes")


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """Arguments of every command whose work many processes can share."""

    launch: Annotated[Literal["serial", "local", "ray", "submitit", "worker"], SEVERAL] = "serial"
    """Where the work runs: in this process (serial), in --workers processes on this machine (local), or in processes
    started by Ray or by SLURM (submitit). `worker` is for the started processes themselves."""
    workers: Annotated[Count, SEVERAL, Only("launch", "local", "ray", "submitit")] = 2
    """How many processes to start."""
    partition: Annotated[str | None, SEVERAL, Only("launch", "submitit")] = None
    """SLURM partition for submitit."""
    hours: Annotated[Positive, SEVERAL, Only("launch", "submitit")] = 24.0
    """Time limit of a SLURM job for submitit, in hours."""


def is_worker(options: LaunchOptions) -> bool:
    """Whether this process only works, started by a launcher."""
    return options.launch == "worker"


def launch(options: LaunchOptions, module: str, argv: Sequence[str], *, logs: Path) -> None:
    """Start the workers of `python -m MODULE ARGV` and wait for them; nothing for serial and worker.

    A worker that fails fails alone: what it held is done by the others, or by the caller afterwards. Raises
    `InputError` where the launcher is not installed and where all workers failed.
    """
    if options.launch in ("serial", "worker"):
        return
    command = [sys.executable, "-m", module, *_as_worker(argv)]
    logs.mkdir(parents=True, exist_ok=True)
    start = {"local": _local, "ray": _ray, "submitit": _submitit}[options.launch]
    failed = start(options, command, logs)
    if failed == options.workers:
        raise InputError(f"every worker failed; {_last_line(logs)}")
    if failed:
        print(visible(f"{failed} of {options.workers} workers failed; {_last_line(logs)}"), file=sys.stderr)


def _as_worker(argv: Sequence[str]) -> list[str]:
    """The arguments with `--launch worker` in place of the launcher and its options."""
    words, kept = iter(argv), []
    for word in words:
        name, equals, _ = word.partition("=")
        if name not in ("--launch", "--workers", "--partition", "--hours"):
            kept.append(word)
        elif not equals:
            next(words, None)
    return [*kept, "--launch", "worker"]


def _log(logs: Path, i: int) -> Path:
    return logs / f"worker-{i}.log"


def _runner(**environment: str) -> Callable[[Sequence[str], str, str], int]:
    """What runs one worker with its output in a file and returns its exit code; a closure, so that it travels whole to
    a machine of a cluster, without this module."""

    def run(command: Sequence[str], log: str, cwd: str) -> int:
        import os
        import subprocess

        env = {**environment, **os.environ}
        with open(log, "w") as file:
            return subprocess.run(command, cwd=cwd, env=env, stdout=file, stderr=subprocess.STDOUT).returncode

    return run


def _local(options: LaunchOptions, command: list[str], logs: Path) -> int:
    run = _runner(OMP_NUM_THREADS="1")
    with ThreadPoolExecutor(options.workers) as pool:
        codes = pool.map(lambda i: run(command, str(_log(logs, i)), os.getcwd()), range(options.workers))
        return sum(code != 0 for code in codes)


def _ray(options: LaunchOptions, command: list[str], logs: Path) -> int:
    try:
        import ray
    except ImportError:
        raise InputError("--launch ray needs Ray: pip install 'streamscope[launch]'") from None
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would call home
    address = os.environ.get("RAY_ADDRESS")
    local: dict[str, Any] = {"num_cpus": options.workers, "include_dashboard": False, "object_store_memory": 80 << 20}
    local = {} if address else local
    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **local)
    try:
        # the worker is a process of its own, as everywhere: what is sent is its command line
        run = ray.remote(num_cpus=1, max_retries=0)(_runner())
        jobs = [run.remote(command, str(_log(logs, i)), os.getcwd()) for i in range(options.workers)]
        return sum(_code(lambda job=job: ray.get(job)) != 0 for job in jobs)
    finally:
        ray.shutdown()


def _submitit(options: LaunchOptions, command: list[str], logs: Path) -> int:
    try:
        import submitit
    except ImportError:
        raise InputError("--launch submitit needs submitit: pip install 'streamscope[launch]'") from None
    executor = submitit.AutoExecutor(folder=logs / "submitit", cluster=None if shutil.which("sbatch") else "local")
    executor.update_parameters(timeout_min=max(1, round(60 * options.hours)), name="streamscope")
    if options.partition is not None:
        executor.update_parameters(slurm_partition=options.partition)
    jobs = [executor.submit(_runner(), command, str(_log(logs, i)), os.getcwd()) for i in range(options.workers)]
    return sum(_code(job.result) != 0 for job in jobs)


def _code(result: Any) -> int:
    """The exit code of a worker; −1 where the launcher lost it."""
    try:
        return int(result())
    except Exception as error:  # each launcher has errors of its own for a lost worker
        print(visible(f"a worker was lost: {str(error).strip().splitlines()[-1]}"), file=sys.stderr)
        return -1


def _last_line(logs: Path) -> str:
    """The last line of a worker's log that says something."""
    for path in sorted(logs.glob("worker-*.log")):
        lines = [line for line in path.read_text(errors="replace").splitlines() if "error:" in line]
        if lines:
            return f"{path} says {lines[-1]}"
    return f"see {logs}"


def child(command: Sequence[str], **options: Any) -> "subprocess.Popen[Any]":
    """A process that does not outlive this one: on Linux a worker that is killed takes it along.

    It has a session of its own, so that Ctrl-C reaches it once, from the worker, and not from the terminal as well.
    """
    before = _die_with_parent if sys.platform == "linux" else None
    return subprocess.Popen(command, start_new_session=True, preexec_fn=before, **options)


def _die_with_parent() -> None:
    import ctypes
    import signal

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
