"""Several workers for one command, wherever they run: each is the same command again, with `--launch worker`.

    serial      this process does it alone
    local       --workers processes on this machine, of one thread each
    ray         --workers tasks on the Ray cluster at RAY_ADDRESS, or on a local one (extra `launch`)
    submitit    --workers jobs of SLURM; without sbatch its imitation on this machine, for tests (extra `launch`)
    worker      what the others start: does what nobody else does, prints no summary

A command's tasks are the runs that it measures or trains. A worker takes one that is not done by locking a file, which
the system unlocks when the worker ends (`work`). So workers need no connection to one another, and what one that was
killed held is done by the others, by the command itself, or by the same command again.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
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
    workers: Annotated[Count, SEVERAL, Only("launch", ("local", "ray", "submitit"))] = 2
    """How many processes to start."""
    partition: Annotated[str | None, SEVERAL, Only("launch", ("submitit",))] = None
    """SLURM partition for submitit."""
    hours: Annotated[Positive, SEVERAL, Only("launch", ("submitit",))] = 24.0
    """Time limit of a SLURM job for submitit, in hours."""


def launch(options: LaunchOptions, module: str, argv: Sequence[str], *, logs: Path) -> None:
    """Start the workers of `python -m MODULE ARGV` and wait for them; nothing for serial and worker.

    A worker that fails fails alone: what it held is done by the others, or by the caller afterwards.
    """
    if options.launch in ("serial", "worker"):
        return
    logs.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", module, *_as_worker(argv)]
    calls = [(command, str(logs / f"worker-{i}.log"), os.getcwd()) for i in range(options.workers)]
    try:
        codes = (_submitit if options.launch == "submitit" else _joblib)(options, calls)
    except ImportError as error:
        raise InputError(f"--launch {options.launch} needs {error.name}: pip install 'streamscope[launch]'") from None
    if (failed := sum(code != 0 for code in codes)) == options.workers:
        raise InputError(f"every worker failed; {_last_line(logs)}")
    if failed:
        print(visible(f"{failed} of {options.workers} workers failed; {_last_line(logs)}"), file=sys.stderr)


def work(
    tasks: Sequence[str], do: Callable[[str], object], is_done: Callable[[str], bool], locks: Path, wait: bool = False
) -> None:
    """Do the tasks that are not `is_done` and that no other process holds, by a lock for each in the folder `locks`.

    `do` makes a task `is_done` at its very end, or raises. `wait` stays for the tasks that others hold, and does those
    that they leave.
    """
    from streamscope.cli.locks import Held, locked

    while todo := [name for name in tasks if not is_done(name)]:
        is_held = False
        for name in todo:
            try:
                with locked(locks / f"{name}.lock", refusal=name):
                    if not is_done(name):  # another did it in the meantime
                        do(name)
            except Held:
                is_held = True
        if not (wait and is_held):
            return
        time.sleep(1.0)


def _as_worker(argv: Sequence[str]) -> list[str]:
    """The arguments with `--launch worker` in place of the launcher and its options."""
    words, arguments = iter(argv), []
    for word in words:
        name, equals, _ = word.partition("=")
        if name not in ("--launch", "--workers", "--partition", "--hours"):
            arguments.append(word)
        elif not equals:
            next(words, None)
    return [*arguments, "--launch", "worker"]


def _run(command: Sequence[str], log: str, cwd: str, environment: Mapping[str, str]) -> int:
    with open(log, "w") as file:
        env = {**environment, **os.environ}
        return subprocess.run(command, cwd=cwd, env=env, stdout=file, stderr=subprocess.STDOUT).returncode


def _joblib(options: LaunchOptions, calls: Sequence[Any]) -> list[int]:
    """Exit codes of workers on this machine or on a Ray cluster, where a thread or a task waits for each process."""
    from joblib import Parallel, delayed, parallel_config

    backend, environment = "threading", {"OMP_NUM_THREADS": "1"}
    if options.launch == "ray":
        import ray
        from ray.util.joblib import register_ray

        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would call home
        local = {"num_cpus": options.workers, "include_dashboard": False, "object_store_memory": 80 << 20}
        ray.init(log_to_driver=False, logging_level="ERROR", **({} if "RAY_ADDRESS" in os.environ else local))
        register_ray()
        backend, environment = "ray", {}
    with parallel_config(backend, n_jobs=options.workers):
        return Parallel()(delayed(_run)(*call, environment) for call in calls)


def _submitit(options: LaunchOptions, calls: Sequence[Any]) -> list[int]:
    """Exit codes of workers that are jobs of SLURM; −1 for one that it lost."""
    import submitit

    folder = Path(calls[0][1]).with_name("submitit")
    executor = submitit.AutoExecutor(folder=folder, cluster=None if shutil.which("sbatch") else "local")
    executor.update_parameters(timeout_min=max(1, round(60 * options.hours)), name="streamscope")
    if options.partition is not None:
        executor.update_parameters(slurm_partition=options.partition)
    jobs = [executor.submit(_run, *call, {}) for call in calls]
    return [-1 if job.exception() else job.result() for job in jobs]


def _last_line(logs: Path) -> str:
    for path in sorted(logs.glob("worker-*.log")):
        if lines := [line for line in path.read_text(errors="replace").splitlines() if "error:" in line]:
            return f"{path} says {lines[-1]}"
    return f"see {logs}"


def child(command: Sequence[str], **options: Any) -> "subprocess.Popen[Any]":
    """A process that does not outlive this one: on Linux a worker that is killed takes it along.

    It has a session of its own, so that Ctrl-C reaches it once, from the worker, and not from the terminal as well.
    """

    def die_with_parent() -> None:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG

    setup = die_with_parent if sys.platform == "linux" else None
    return subprocess.Popen(command, start_new_session=True, preexec_fn=setup, **options)
