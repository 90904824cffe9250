"""Runs every instrument in a process of its own and reads what the system counted."""

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any

import pandas as pd

from streamscope.benchmarks.real_model import Options
from streamscope.cli.disk import check_writable
from streamscope.cli.errors import InputError, unknown
from streamscope.cli.provenance import provenance
from streamscope.instruments.registry import REGISTERED, discover
from streamscope.instruments.result import Result
from streamscope.instruments.table import Table, key, number

ARGUMENTS: dict[str, str] = {
    "ablate": "--heads L18.* --max-documents 4",
    "ablation_effects": "--groups L18.H6 --tasks gender-16 --draws 4",
    "abliterate": "--a happy --b sad --to FOLDER/without --max-documents 4 --draws 2",
    "amplify": "--max-documents 4 --alpha 1 4",
    "circuits": "--task induction --pairs 8 --method eap --draws 1",
    "coherence": "",
    "coreference": "",
    "dictionaries": "--max-tokens 600 --width 64 --k 4 --batch 128",
    "dictionary_quality": "--max-documents 8",
    "direct_logit_attribution": "--tasks gender-16",
    "directions": "--a happy --b sad",
    "extract": "--max-tokens 500 --out FOLDER/features.parquet",
    "head_groups": "",
    "heads": "--max-documents 4",
    "hydra": "--heads L18.H6 --tasks gender-16",
    "interchange": "--suite pronouns --hooks blocks.20.hook_resid_post --pairs 40 --basis whole means --n 100",
    "lenses": "--hooks blocks.20.hook_resid_post --kinds logit ridge --max-documents 8",
    "linear": "--task gender --stories 40 --hooks blocks.20.hook_resid_post",
    "logit_lens": "",
    "needed_context": "--max-tokens 500",
    "patch": "--suite ioi --pairs 4 --hooks z --layers 18",
    "pds": "",
    "phenomena": "--n 20 --max-documents 4",
    "picture": "--heads L18.H6",
    "specialization": "--max-documents 8 --samples 8",
    "sps": "",
    "steer": "--a happy --b sad --max-documents 4 --scale 0 1 --draws 2",
    "steer_heads": "--groups L18.H6 --tasks gender-16 --scales 0 1 --draws 4 --measures task",
    "suppress": "--k 2 --gates 1 0 --draws 2",
    "token_effects": "--heads L18.H6 --max-tokens 500",
}
"""Little data for each instrument; FOLDER is a temporary one."""
ABSENT = {
    "cluster", "profile", "predict_effects", "dual_path", "latents", "mixing", "mixing_monitor", "contraction",
    "routing", "streams",
}  # fmt: skip
"""Instruments that read features, HDPL's projections or several streams: a model with one stream has none."""
COLUMNS = (
    key("instrument", "instrument", "the command"), key("arguments", "arguments", "its data and options", "text"),
    number("memory", "peak memory", "MiB", "largest resident set of the process", ",.0f"),
    number("cpu", "CPU", "s", "user plus system time", ".1f"),
    number("silence", "longest silence", "s", "longest wait between two outputs", ".1f"),
    key("outcome", "outcome", "completed, or why not", "text"),
)  # fmt: skip


def measure(options: Options) -> None:
    discover()
    names = options.only or tuple(sorted(ARGUMENTS))
    for name in names:
        if name not in ARGUMENTS:
            raise unknown("instrument", name, sorted(ARGUMENTS))
    if missing := sorted(REGISTERED.keys() - ARGUMENTS.keys() - ABSENT):
        raise InputError(f"{', '.join(missing)}: give arguments in benchmarks.real_model.measure")
    if options.out is not None:
        check_writable(options.out)
    rows: list[dict[str, Any]] = []
    if options.only and options.out is not None and options.out.is_file():
        old = Result.load(options.out)
        if (run := old.about.get("run")) != options.run:
            raise InputError(f"{options.out} has the costs on {run}: name another file for --out")
        rows = [row for row in old.table().frame.to_dict("records") if row["instrument"] not in names]
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            arguments = ARGUMENTS[name].replace("FOLDER", folder).split()
            costs = cost([name, options.run, *arguments], options.limit)
            rows.append({"instrument": name, "arguments": ARGUMENTS[name], **costs})
            print(f"{name}: {costs['memory']:,.0f} MiB, {costs['cpu']:.1f} s, {costs['outcome']}", file=sys.stderr)
            frame = pd.DataFrame(rows).sort_values("instrument", ignore_index=True)
            table = Table(frame, COLUMNS, {}, f"What every instrument costs on {options.run}")
            if options.out is not None:  # what is measured is kept
                Result({"costs": table}, about={**provenance("cpu"), "run": options.run}).save(options.out)
    print(table)


def cost(command: Sequence[str], limit: float) -> dict[str, float | str]:
    """Memory (MiB), CPU (s), longest silence (s) and outcome of `streamscope COMMAND` in a process of its own."""
    began = last = time.monotonic()
    silence, outcome, printed, piece = 0.0, "completed", b"", b"."
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    argv = [sys.executable, "-m", "streamscope", *command]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)
    assert process.stdout is not None
    timer = threading.Timer(limit, process.kill)
    timer.start()
    while piece:
        piece = os.read(process.stdout.fileno(), 65536)
        silence, last = max(silence, time.monotonic() - last), time.monotonic()
        printed = (printed + piece)[-2000:]
    timer.cancel()
    process.stdout.close()
    _, status, use = os.wait4(process.pid, 0)
    if code := os.waitstatus_to_exitcode(status):
        *_, line = printed.decode(errors="replace").strip().splitlines() or [f"exit code {code}"]
        outcome = line[:120] if code > 0 else f"ended by signal {-code}"
        outcome = outcome if last - began < limit else f"stopped after {limit:.0f} s"
    process.returncode = code
    return {
        "memory": use.ru_maxrss / 1024, "cpu": use.ru_utime + use.ru_stime, "silence": silence, "outcome": outcome,
    }  # fmt: skip
