"""Tables of single models behind figures of a paper, measured on the runs of a comparison (`singles.toml`)."""

import contextlib
import io
import re
import shutil
import tomllib
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from streamscope.models.config.presets import PRESETS
from streamscope.papers.comparison.runs import Run, opened, overrides
from streamscope.papers.figures.options import SINGLE, PaperFigure

COMMANDS = Path(__file__).with_name("singles.toml")
MODEL = re.compile(r"\{(?P<preset>[\w-]+)(?P<all>\*)?(?:\+(?P<field>[\w.]+)=(?P<value>[^}]+))?\}")


def singles(paper: str) -> dict[str, list[str]]:
    """The commands behind every such figure of a paper, by its number, with models as singles.toml writes them."""
    commands: dict[str, list[str]] = tomllib.loads(COMMANDS.read_text(encoding="utf-8")).get(paper, {})
    return commands


def measure(paper: str, figures: Sequence[PaperFigure], runs: Sequence[str], out: Path, device: str = "auto") -> None:
    """Write into OUT/single the tables of those of `figures` that describe single models, where they are not there.

    A model of which there is no run is left out of a command, with a note, and a command without any model is not
    called: what is drawn of its table is then missing, which whoever draws it says. Raises `InputError` as the commands
    do.
    """
    known, folder = singles(paper), out / SINGLE
    wanted = [f for f in figures if f.number in known and not all(path.is_file() for path in tables_of(f, out))]
    commands = dict.fromkeys(command for figure in wanted for command in known[figure.number])
    all_runs = [opened(run, list(PRESETS)) for run in runs] if commands else []
    for command in commands:
        words, lost = filled(command, all_runs)
        if lost:
            print(f"{paper}, figures of single models: no run of {', '.join(lost)} for python -m {command.split()[0]}")
        if not words:
            continue
        print(f"{paper}, figures of single models: python -m {' '.join(words)}, in {folder}")
        module, *argv = words
        files = [str(folder / word) if word == "." or word.endswith(".parquet") else word for word in argv]
        with contextlib.redirect_stdout(io.StringIO()):  # its tables are on disk, and many
            main_of(module)([*files, "--device", device])


def forget(out: Path) -> None:
    """Remove the tables of single models: they were measured of other runs or by other code."""
    shutil.rmtree(out / SINGLE, ignore_errors=True)


def tables_of(figure: PaperFigure, out: Path) -> list[Path]:
    """Where the tables of a figure of single models lie under the folder of a page."""
    return [out / SINGLE / f"{Path(name).name}.parquet" for name in figure.tables]


def main_of(module: str) -> Callable[[Sequence[str]], None]:
    """The command of a module."""
    command: Callable[[Sequence[str]], None] = import_module(f"streamscope.{module}").main
    return command


def filled(command: str, runs: Sequence[Run]) -> tuple[list[str], list[str]]:
    """(the words of a command with run folders in place of its models, the models of which there is no run).

    No words where it names models and there is a run of none.

    Of a preset it is the run of the first seed that differs from the preset in the fewest fields, the first of several.
    """
    words, lost, given = list[str](), list[str](), 0
    for word in command.split():
        model = MODEL.fullmatch(word)
        if not model:
            words.append(word)
            continue
        mine = [run for run in runs if run.preset == model["preset"]]
        if model["field"]:
            mine = [run for run in mine if str(overrides(run).get(model["field"])) == model["value"]]
        else:
            fewest = min((len(overrides(run)) for run in mine), default=0)
            mine = [run for run in mine if len(overrides(run)) == fewest]
        mine = sorted(mine, key=lambda run: run.seed)[: None if model["all"] else 1]
        lost, given = lost + [word.strip("{*}")] * (not mine), given + len(mine)
        words += [str(run.folder) for run in mine]
    return [] if lost and not given else words, lost
