"""Train many runs, one for each preset, setting and seed, and resume whatever stopped.

    python -m models.grid grid.toml --out runs/grid
    python -m models.grid grid.toml --out runs/grid --launch submitit --workers 8 --partition gpu
    python -m models.grid grid.toml --out runs/paper --train scale=paper --train device=cuda
    python -m models.grid --status --out runs/grid
    python -m models.grid grid.toml --out runs/grid --launch local --workers 2

    presets = ["gpt2", "lfa"]                        # grid.toml
    seeds = [0, 1]
    [train]                                          # options of python -m models.train, for every run
    data = "stories"
    scale = "zoo"
    set = ["n_layers=4"]
    [settings.fast]                                  # each run once more with these: runs/grid/lfa-fast-s0
    lr = 2e-3
    [settings.slow]
    lr = 5e-4
    [[parts]]                                        # in this order, each with its changes to the above
    [[parts]]
    presets = ["std-t"]
    train = {set = ["positions=rope"]}

Every run is a folder OUT/PRESET[-SETTING]-sSEED of `models.train`, trained in its own process. After a kill, repeat the
command: finished runs are skipped, others resume from their last checkpoint. A run that fails is recorded with its
error (`--retry` tries it again), and the others continue. Several commands on one OUT, also on several machines, share
the work. A training that two grids contain is run once, under its first name.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain, product
from pathlib import Path
from typing import Annotated, Any

import tyro
from annotated_types import MinLen
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from streamscope.cli.bounds import Count, Whole, check
from streamscope.cli.disk import Manifest, read_json, read_rows, read_toml, write_text
from streamscope.cli.errors import InputError, reading, unknown
from streamscope.cli.launch import LaunchOptions, child, launch, work
from streamscope.cli.locks import Held, locked
from streamscope.cli.parse import command, parse
from streamscope.cli.terminal import print_grid
from streamscope.cli.terminal import visible as printable
from streamscope.models.config.presets import preset
from streamscope.models.config.serialization import from_dict, parse_set, to_dict
from streamscope.models.train import Options as Train
from streamscope.models.training.config import Training, check_given, with_recipe

TRAINING = {option.name for option in fields(Training)}
OPTIONS = {*TRAINING, *(option.name for option in fields(Train))} - {"preset", "out", "resume", "training", "seed"}
"""The options of `models.train` that a grid may set."""


@dataclass(frozen=True, kw_only=True)
class Options(LaunchOptions):
    grid: Annotated[Path | None, tyro.conf.Positional] = None
    """GRID.toml; default: the grid that --out was started with."""
    out: Path | None = None
    """Folder for the run folders."""
    threads: Count = 1
    """CPU threads per training."""
    train: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """KEY=VALUE: an option for every run that replaces the grid's, such as scale=paper or device=cuda."""
    retry: bool = False
    """Try failed runs again."""
    status: bool = False
    """Only print the state of the runs."""


@dataclass(frozen=True)
class Cell:
    """One run of a grid."""

    name: str
    """Name of its folder."""
    argv: tuple[str, ...]
    """Arguments of `models.train` without --out."""


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(Options, argv, __doc__)
    if options.out is None:
        raise InputError("--out FOLDER is missing: name the folder for the runs")
    out, worker = options.out, options.launch == "worker"
    if options.grid is not None:
        grid = cells_of(read_grid(options.grid))
        cells = begin([with_options(cell, options.train) for cell in grid], out, write=not options.status)
    elif options.train:
        raise InputError("--train changes a grid: also name the grid's file")
    elif not (cells := _read_cells(out)):
        raise InputError(f"{out} holds no grid yet: give GRID.toml")
    if not options.status:
        for cell in cells if options.retry and not worker else ():
            failure_file(out, cell.name).unlink(missing_ok=True)
        words = sys.argv[1:] if argv is None else argv
        launch(options, "streamscope.models.grid", words, logs=out / ".ledger" / "logs")
        train_open(cells, out, threads=options.threads, visible=not worker)
    if not worker:
        print_status(out, cells)


class Stopped(Exception):
    """A signal stopped a training, which was saved."""


def failure_file(out: Path, name: str) -> Path:
    return out / ".ledger" / f"{name}.failed"


def state_of(out: Path, name: str) -> str:
    """done, failed, running or open."""
    if _completed(out / name):
        return "done"
    if failure_file(out, name).is_file():
        return "failed"
    lock = out / ".ledger" / f"{name}.lock"
    if lock.exists():
        try:
            with locked(lock, refusal=name):
                pass
        except Held:
            return "running"
    return "open"


def train_open(cells: Sequence[Cell], out: Path, *, threads: int, visible: bool) -> None:
    """Train the open cells; with `visible`, show a bar and also wait for the cells of other processes. On SIGINT and
    SIGTERM the current run is saved, and the process exits with 130."""
    by_name = {cell.name: cell for cell in cells}

    def stop(number: int, frame: Any) -> None:
        raise Stopped

    def done(name: str) -> bool:
        return _completed(out / name) or failure_file(out, name).is_file()

    handlers = {s: signal.signal(s, stop) for s in (signal.SIGINT, signal.SIGTERM)}
    columns = (TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=Console(file=sys.stderr), disable=not visible) as bar:
            task = bar.add_task("runs", total=len(by_name), completed=sum(map(done, by_name)))

            def do(name: str) -> None:
                try:
                    train(by_name[name], out, threads)
                except InputError as error:
                    write_text(failure_file(out, name), json.dumps(str(error)))
                bar.update(task, completed=sum(map(done, by_name)))

            work(list(by_name), do, done, out / ".ledger", wait=visible)
    except Stopped:
        print(printable(f"stopped; the same command continues {out}"), file=sys.stderr)
        sys.exit(130)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def read_grid(path: Path) -> dict[str, Any]:
    """The dictionary of a TOML file. Raises `InputError` for another file."""
    return read_toml(path, dict[str, Any], "give a grid as .toml")


@dataclass(frozen=True, kw_only=True)
class _Grid:
    """A grid without parts."""

    presets: Annotated[tuple[str, ...], MinLen(1)] = ()
    seeds: Annotated[tuple[Whole, ...], MinLen(1)] = (0,)
    train: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(self, "{} of a grid")

    def cells(self) -> Iterator[Cell]:
        """presets × settings × seeds, in this order."""
        for name, (setting, changes) in product(self.presets, (self.settings or {"": {}}).items()):
            runs = ["-".join(filter(None, (name, setting, f"s{seed}"))) for seed in self.seeds]
            options = _merged(self.train, changes)
            words = _words(options)
            with reading(f"{runs[0]} of a grid"):  # an option that would be ignored, a model that is impossible
                training, scale = _training(options), options.get("scale", Train.scale)
                config = preset(name, scale, **parse_set(options.get("set", [])))
                check_given(training, with_recipe(training, name, scale), config, Training())
            yield from (Cell(run, (name, *words, "--seed", str(n))) for run, n in zip(runs, self.seeds, strict=True))


def cells_of(grid: Mapping[str, Any]) -> list[Cell]:
    """The cells, presets × settings × seeds of every part, in this order."""
    parts, whole = grid.get("parts", [{}]), {key: value for key, value in grid.items() if key != "parts"}
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise InputError("[[parts]] of a grid are tables with changes to the grid")
    cells: list[Cell] = []
    for part in parts:
        trains = [table.get("train", {}) for table in (whole, part)]
        table = whole | part | ({"train": _merged(*trains)} if all(isinstance(x, dict) for x in trains) else {})
        keys = [option.name for option in fields(_Grid)]
        if wrong := [key for key in table if key not in keys]:
            raise unknown("key of a grid", wrong[0], keys)
        cells += _Grid(**table).cells()
    if len({cell.name for cell in cells}) < len(cells):
        raise InputError("a grid names a run (preset, setting and seed) twice")
    first: dict[str, Cell] = {}
    for cell in cells:
        first_cell = first.setdefault(_identity(cell), cell)
        if first_cell is not cell:
            raise InputError(f"{first_cell.name} and {cell.name} of a grid are the same run: their settings are equal")
    return cells


def _merged(*tables: Mapping[str, Any]) -> dict[str, Any]:
    """Options, of which later ones replace earlier ones; those of `set` are added."""
    options: dict[str, Any] = {name.replace("-", "_"): value for table in tables for name, value in table.items()}
    sets = [table["set"] for table in tables if "set" in table]
    if not all(isinstance(words, list) and all(isinstance(word, str) for word in words) for words in sets):
        raise InputError('set of a grid is a list of texts, such as ["n_layers=4"]')
    return options | ({"set": list(chain(*sets))} if any(sets) else {})


def _training(options: Mapping[str, Any]) -> Training:
    """The options of the training. Raises `InputError` for an unknown option or a value of another type."""
    for name in options:
        if name not in OPTIONS:
            raise unknown("option of a grid", name, sorted(OPTIONS))
    if isinstance(options.get("compile"), bool):  # in runs of older versions
        raise InputError(f'compile of a grid is "off", "blocks" or "step", got {options["compile"]}')
    return from_dict(Training, {name: value for name, value in options.items() if name in TRAINING}, "train")


def _identity(cell: Cell) -> str:
    """The options that determine a run: the model's configuration, and the other options in any order."""
    name, options = cell.argv[0], _options_of(cell)
    sets = [option[1] for option in options if option[0] == "--set"]
    scale = next((option[1] for option in options if option[0] == "--scale"), Train.scale)
    with reading(f"{cell.name} of a grid"):
        config = to_dict(preset(name, scale, **parse_set(sets)))
    return json.dumps([config, sorted(option for option in options if option[0] != "--set")], default=str)


def _options_of(cell: Cell) -> list[list[str]]:
    """[name, value] of each option; a flag of older versions has no value."""
    options: list[list[str]] = []
    for word in cell.argv[1:]:
        if word.startswith("--"):
            options.append([])
        options[-1].append(word)
    return options


def _words(options: Mapping[str, Any]) -> list[str]:
    """Options of `models.train` as command-line words, checked by name and type."""
    _training(options)
    words: list[str] = []
    for name, value in options.items():
        items = value if isinstance(value, list) else [value]
        if not all(isinstance(item, str | int | float) for item in items):
            raise InputError(f"{name} of a grid must be a string, a number, true, false or a list, got {value!r}")
        words += [word for item in items for word in (f"--{name.replace('_', '-')}", str(item))]
    return words


def with_options(cell: Cell, words: Sequence[str]) -> Cell:
    """Replace options of a cell by KEY=VALUE words; VALUE is read as TOML, else as text."""
    options = _options_of(cell)
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or key == "set":
            raise InputError(f"--train {word}: give KEY=VALUE for an option other than set, such as scale=paper")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except (tomllib.TOMLDecodeError, RecursionError):
            value = text
        new = _words(_merged({key: value}))
        options = [new, *(option for option in options if option[:1] != new[:1])]
    return Cell(cell.name, (cell.argv[0], *chain(*options)))


def _read_cells(out: Path) -> list[Cell]:
    memory = out / "grid.json"
    rows = read_json(memory, dict[str, list[str]], "restore it, or choose another --out") if memory.is_file() else {}
    return [Cell(name, tuple(argv)) for name, argv in rows.items()]


def begin(cells: Sequence[Cell], out: Path, *, write: bool = True) -> list[Cell]:
    """Add the cells to those in `out`, and return them under the names that `out` uses.

    A training is in a folder once: if it is already there, under another name or with its options in another order,
    that cell is used.
    """
    with locked(out / ".grid.lock") if write else contextlib.nullcontext():  # commands see each other's cells
        existing_cells, matched = _read_cells(out), list[Cell]()
        by_identity: dict[str, Cell] = {}
        for cell in existing_cells:
            with contextlib.suppress(InputError):  # a cell of another version, with unknown parts
                by_identity.setdefault(_identity(cell), cell)
        arguments = {cell.name: cell.argv for cell in existing_cells}
        for cell in cells:
            first_cell = by_identity.setdefault(_identity(cell), cell)
            if first_cell is cell and cell.name not in arguments and (out / cell.name).exists():
                raise InputError(f"{out / cell.name} is not of this grid: move it, or choose another --out")
            if first_cell is cell and cell.argv != (started := arguments.setdefault(cell.name, cell.argv)):
                raise InputError(
                    f"{out / cell.name} was started with other options ({' '.join(started)}): choose another --out"
                )
            matched.append(first_cell)
        if write and len(arguments) > len(existing_cells):
            write_text(out / "grid.json", json.dumps({name: list(argv) for name, argv in arguments.items()}, indent=1))
    return matched


def train(cell: Cell, out: Path, threads: int) -> dict[str, Any]:
    """Train a cell to its end in its own process, or resume it; returns its last evaluation. A signal is `Stopped`."""
    folder, log = out / cell.name, out / ".ledger" / "logs" / f"{cell.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    if not _completed(folder):
        argv = ["--resume"] if (folder / "manifest.json").is_file() else cell.argv
        env = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
        env |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        words = [sys.executable, "-m", "streamscope.models.train", *argv, "--out", str(folder)]
        with log.open("a", encoding="utf-8") as file:
            process = child(words, stdout=file, stderr=subprocess.STDOUT, env=env)
            try:
                code = process.wait()
            except Stopped:
                process.send_signal(signal.SIGTERM)  # it saves first
                process.wait()
                raise
        if code == 130:
            raise Stopped
        if code:
            lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
            reason = next((line for line in reversed(lines) if line.strip()), f"exit code {code}")
            reason = f"killed by signal {-code}" if code < 0 else reason.removeprefix("error: ")
            raise InputError(f"{reason} (see {log})")
    last = [row for row in read_rows(folder / "metrics.jsonl", strict=False) if row["kind"] == "eval"][-1]
    return {"step": last["step"], "loss": last["loss"]}


def _completed(folder: Path) -> bool:
    path = folder / "manifest.json"
    return path.is_file() and read_json(path, Manifest).get("outcome") == "completed"


def print_status(out: Path, cells: Sequence[Cell]) -> None:
    """Print a line per run: its state, its step, its last validation loss or its error."""
    lines = []
    for cell in cells:
        state, log, failure = state_of(out, cell.name), out / cell.name / "metrics.jsonl", failure_file(out, cell.name)
        rows = read_rows(log, strict=False) if log.is_file() else []
        losses = ["", *(f"{row['loss']:.4f}" for row in rows if row["kind"] == "eval")]
        detail = read_json(failure, str, "delete it, and the run is tried again") if state == "failed" else ""
        lines.append((cell.name, state, str(max((row["step"] for row in rows), default=0)), losses[-1], detail))
    columns = ("run", "state", "step", "validation loss", "")
    print_grid(columns, lines, title=str(out), width=None if sys.stdout.isatty() else 160)


if __name__ == "__main__":
    command(main)
