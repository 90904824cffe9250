"""What the commands that measure a run share: their arguments, loading, tables on the screen and on disk."""

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field, make_dataclass, replace
from functools import cached_property, partial
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from streamscope.cli.errors import InputError
from streamscope.cli.launch import launch, work
from streamscope.cli.terminal import counted, visible
from streamscope.cli.user_code import edit_file
from streamscope.instruments.options import Arguments, check_out
from streamscope.instruments.progress import progress_bar, signs_of_life
from streamscope.text import BosChoice

if TYPE_CHECKING:
    from streamscope.instruments.contract import Instrument
    from streamscope.instruments.result import Result


def main_of(subclass: "type[Instrument]", doc: str | None = None, command: Sequence[str] = ()) -> Callable[..., None]:
    """`main(argv=None)` of an instrument: its fields, its data's and `Arguments` are the options.

    `command` are the module that Python runs for it, and the words before the options, by default the instrument's own.
    """

    def main(argv: Sequence[str] | None = None) -> None:
        from streamscope.cli.parse import parse

        parts, flat = [], tyro.conf.OmitArgPrefixes
        for default in subclass.takes:
            name = f"data{re.sub('(?=[A-Z])', '_', type(default).__name__).lower()}"
            parts.append((name, Annotated[type(default), flat], field(default=default)))
        parts.append(("options", Annotated[subclass, flat], field(default=subclass())))
        made = make_dataclass("Options", parts, bases=(Arguments,), frozen=True, kw_only=True)
        options: Any = parse(made, argv, doc or subclass.__doc__)
        words = [*(command or (subclass.__module__,)), *(sys.argv[1:] if argv is None else argv)]
        *names, _ = map(itemgetter(0), parts)
        measure(options.options, list(map(vars(options).get, names)), options, words)

    return main


@dataclass(frozen=True)
class Job:
    """A run to be measured, with a control or alone."""

    run: str
    control: str | None
    instrument: "Instrument"
    data: Sequence[Any]
    device: str
    edits: tuple[str, ...] = ()
    """The user's own, under which the run is measured."""
    work: Path | None = None
    """Where unfinished work is kept, of an instrument that continues inside a run."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    bos: BosChoice = "yes"

    @cached_property
    def task(self) -> str:
        """Its name among parts: what is measured how on which models and data, by the content of all their files."""
        from streamscope.cli.disk import sha256
        from streamscope.models.hooks.controls import about_edits
        from streamscope.models.interop.huggingface.convert import content_digest
        from streamscope.models.run_names import run_folder
        from streamscope.text.corpus import open_corpus

        models = [(name, content_digest(run_folder(name))) for name in (self.run, self.control) if name]
        options, data = asdict(self.instrument), [[type(spec).__name__, asdict(spec)] for spec in self.data]
        files = []
        for value in _values([options, data]):
            if isinstance(value, dict) and isinstance(value.get("data"), str):
                files.append(open_corpus(value["data"]).fingerprint())
            names = (str(value), str(value).partition(":")[2]) if isinstance(value, str | Path) else ()
            files += [sha256(Path(name)) for name in filter(os.path.isfile, names)]
        about = [self.instrument.name, options, data, files, models, self.dtype, self.bos, *about_edits(self.edits)]
        return hashlib.sha256(json.dumps(about, default=str).encode()).hexdigest()[:24]

    def models(self) -> list[Any]:
        """The model, and its control if there is one."""
        from streamscope.instruments.data import Documents, check_tokenizer
        from streamscope.instruments.open_data import same_tokens
        from streamscope.models.checkpoint import load_for_instruments

        models: list[Any] = []
        for name in filter(None, (self.run, self.control)):
            models.append(load_for_instruments(name, device=self.device, dtype=self.dtype))
            if self.bos != "yes":
                models[-1].tokenizer = check_tokenizer(models[-1]).with_bos(self.bos)
        if self.control is not None:
            (a, b), (c, d) = ((m.config.n_layers, m.config.n_heads) for m in models)
            if (a, b) != (c, d):
                shapes = f"{counted(c, 'layer')} of {counted(d, 'head')}, the model {a} of {b}"
                same = "heads can be compared between models of one shape"
                raise InputError(f"--control {self.control} has {shapes}; {same}")
            if Documents in map(type, self.instrument.takes):
                same_tokens(models[0], models[1], self.control)
        for model in models:
            self.instrument.check(model)
        return models

    def do(self, label: str = "", *, keep: bool = False) -> "Result":
        """Measure the model under the user's own edits, and its control, with a bar on stderr (`progress_bar`)."""
        from streamscope.instruments.contract import title_of

        with signs_of_life(label + self.run):
            model, *controls = self.models()
            instrument, about = self.instrument, dict[str, Any]()
            edits: Any = nullcontext()
            if self.edits:
                from streamscope.models.hooks import edit
                from streamscope.models.hooks.controls import about_edits, user_edits

                about["edits"] = about_edits(self.edits)
                edits = edit(model, user_edits(model, self.edits), must_fire=self.work is None)  # or all is done
            try:
                with edits:
                    opened = instrument.open(model, *self.data)
                    opened.work = self.work and self.work / self.task
                    instrument = instrument.with_resolved_heads(opened) if controls else instrument
                    bar: Any = progress_bar(f"{label}{title_of(model)}", keep=keep and not controls)
                    result = instrument.run(opened, bar)
            except InputError as error:
                if self.edits and "finite" in str(error):
                    raise InputError(f"{error}; this is under --edit {' '.join(self.edits)}") from error
                raise
            if bar.interrupted:
                note = about["interrupted"] = "; ".join(bar.interrupted)
                tables = {name: replace(x, title=f"{x.title}; {note}") for name, x in result.tables.items()}
                result = replace(result, tables=tables)
            result = replace(result, about={**result.about, **about})
            if not controls:
                return result
            from streamscope.instruments.result import compare

            like = instrument.open(controls[0], *self.data, like=opened)
            like.work = self.work and self.work / f"{self.task}-control"
            bar = progress_bar(f"{label}{title_of(controls[0])}, control")
            return compare(result, instrument.run(like, bar))


def measure(instrument: "Instrument", data: Sequence[Any], options: Arguments, command: Sequence[str]) -> None:
    """Open every run, measure, print, write. What cannot be written or measured is refused before the work."""
    from streamscope.cli.provenance import check_device
    from streamscope.instruments.figures import check_figure
    from streamscope.models.run_names import runs_of

    if options.figure is not None:
        check_figure(options.figure)
        if options.figure.resolve() in [path.resolve() for path in _inputs(instrument, data, options)]:
            raise InputError(f"--figure {options.figure} is an input, which would be lost; name another file")
    if options.out is not None:
        check_out(options.out, instrument.name, _inputs(instrument, data, options), instrument.exports)
    check_device(options.device)
    for source in (instrument, *data):
        source.check_sources()
    for names in (options.run, [] if options.control is None else [options.control]):
        runs_of(names)
    instrument.check_read(data)
    if options.bos != "yes" and not instrument.reads_text:
        raise InputError(f"{instrument.name} reads no text, so --bos has no effect: leave it out")
    if options.launch != "serial" and options.out is None:
        raise InputError("--launch needs --out: workers meet in a folder next to it")
    for spec in options.edit:
        edit_file(spec)
    parts = options.out and options.out.with_name(f".{options.out.name}.parts")
    if parts is None or options.launch == "worker":
        return _measure(instrument, data, options, command, parts)
    from streamscope.cli.locks import locked

    refusal = f"another command is writing {options.out}: wait for it to end, or give another --out"
    try:
        with locked(parts / "lock", refusal):
            _measure(instrument, data, options, command, parts)
            shutil.rmtree(parts, ignore_errors=True)
    finally:
        with suppress(OSError):  # not empty: unfinished work, which the same command continues
            parts.rmdir()


def _measure(
    instrument: "Instrument", data: Sequence[Any], options: Arguments, command: Sequence[str], parts: Path | None
) -> None:
    """`measure` once it is known that nobody else writes there; `parts` keeps results until all are there."""
    from streamscope.cli.provenance import pick_device, provenance
    from streamscope.instruments.result import pool_results
    from streamscope.models.run_names import run_folder, runs_of

    if data and not options.run and options.control is None and all(map(attrgetter("alone"), data)):
        for option, is_given in (("bos", options.bos != "yes"), ("edit", options.edit)):
            if is_given:
                line = f"--{option}: {instrument.name} reads files, and no model runs; give it to what made them"
                raise InputError(line)
        about = provenance("cpu")
        with signs_of_life(instrument.name):
            result = instrument.run(instrument.open(None, *data), progress_bar(instrument.name))
        finish(result, options.out, about, options.figure)
        return
    names = runs_of(options.run or instrument.runs)
    device = pick_device(options.device)
    about = {**provenance(device), "dtype": options.dtype, "run": list(names)}  # its code and time are those of now
    controls: Sequence[str | None] = [None] if options.control is None else runs_of([options.control])
    controls = _at_the_same_steps(names, controls) if len(controls) > 1 else [*controls] * len(names)
    job_of = partial(
        Job, instrument=instrument, data=data, device=str(device), edits=options.edit, dtype=options.dtype,
        bos=options.bos, work=parts if instrument.continues else None,
    )  # fmt: skip
    jobs = list(map(job_of, names, controls))
    if len(jobs) > 1 and options.launch != "worker":
        first = {str(run_folder(job.run)).rpartition("@")[0] or job.run: job for job in reversed(jobs)}
        for job in first.values():
            job.models()  # what cannot be measured is refused before any is
    if parts is not None:
        launch(options, command[0], command[1:], logs=parts / "logs")
        if options.launch == "worker":
            by_task = {job.task: job for job in jobs}
            files = {task: parts / f"{task}.parquet" for task in by_task}
            work(list(by_task), lambda t: by_task[t].do().save(files[t]), lambda t: files[t].exists(), parts)
            return
    store = None if options.launch == "serial" and (instrument.continues or len(jobs) == 1) else parts
    results = []  # of several runs, the one that is interrupted is not kept: else the command would go on
    for i, job in enumerate(jobs, 1):
        label = f"{i}/{len(jobs)} " if len(jobs) > 1 else ""
        results.append(job.do(label, keep=len(jobs) == 1) if store is None else _stored(job, store, label))
    finish(pool_results(results) if len(results) > 1 else results[0], options.out, about, options.figure)


def _inputs(instrument: "Instrument", data: Sequence[Any], options: Arguments) -> list[Path]:
    """The files and folders that options name, also inside FORMAT:PATH, PATH#CATEGORY, PATH*2 + PATH."""
    paths: list[Path] = []
    for value in _values([options.run, options.control, options.edit, *map(asdict, (instrument, *data))]):
        parts = [str(value), *re.split(r"[*#@]|\s*\+\s*", str(value))] if isinstance(value, str | Path) else []
        for part in [*parts, *(part.partition(":")[2] for part in parts)]:
            with suppress(OSError, ValueError):
                paths += [Path(part.strip())] if part.strip() and Path(part.strip()).exists() else []
    return paths


def _values(options: Any) -> list[Any]:
    """Options, and what is in them."""
    values = [options]
    for value in values:  # grows on the way
        values += value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return values


def finish(result: "Result", out: Path | None, about: Mapping[str, Any], figure: Path | None = None) -> None:
    """Write a result, with what is also known `about` it, then print it: what was measured is safe first.

    One that was interrupted is written as NAME-interrupted where there is an earlier result.
    """
    from streamscope.instruments.figures import write_figure

    if out is not None and "interrupted" in result.about and out.exists():
        new = "what was measured before the interruption is next to it"
        print(visible(f"{out} holds an earlier result and stays; {new}"))
        out = out.with_stem(f"{out.stem}-interrupted")
    paths = [] if out is None else replace(result, about={**result.about, **about}).save(out)
    result.print()
    print("Columns:\n" + visible(next(iter(result.tables.values())).column_legend(), keep="\n"))
    if result.about.get("no_mean"):
        print(visible(result.about["no_mean"]))
    for path in paths:
        print(visible(f"written {path}"))
    if figure is not None:
        write_figure(result.figure(), figure)
        size = f" ({figure.stat().st_size / 1e6:.1f} MB, with plotly inside)" if figure.suffix == ".html" else ""
        print(visible(f"figure {figure}{size}"))
    if "interrupted" in result.about:
        raise KeyboardInterrupt


def _stored(job: Job, store: Path, label: str) -> "Result":
    """What a job measures, or what a worker or an earlier call that was killed did and put into the folder `store`."""
    from streamscope.instruments.result import Result

    path = store / f"{job.task}.parquet"
    if path.exists():
        return replace(Result.load(path), figures=job.instrument.figures)
    try:
        result = job.do(label)
    except InputError as error:
        raise InputError(f"{job.run}: {error}") from None
    result.save(path)
    return result


def _at_the_same_steps(names: Sequence[str], controls: Sequence[Any]) -> list[str]:
    """The control of each snapshot: that of the same step."""
    control_at_step = {name.rpartition("@")[2]: name for name in controls}
    for name in names:
        if name.rpartition("@")[2] not in control_at_step:
            raise InputError(f"--control has no snapshot of the step of {name}; it has {', '.join(control_at_step)}")
    return [control_at_step[name.rpartition("@")[2]] for name in names]
