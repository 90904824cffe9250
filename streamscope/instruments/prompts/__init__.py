"""Suites of prompts whose words have roles: what the coreference probes read.

A suite is a bundled name (coreference, competing; the tasks capitalization, gender, winograd; the generated stories,
stories-told, stories-words and story-cases; with corrupted prompts
ioi, ioi-abc, greater-than, induction, docstring, name-copying, letter-case, agreement, capitals, pronouns), a file of
the same format (JSONL, CSV, parquet), hf:DATASET, or FORMAT:PATH for a published set (winobias, wsc273, wsc285,
winogender, gap). `prompts.alignment.align` says where the roles lie in tokens, `prompts.tasks` scores answers. This
module holds the names alone; what reads or makes a suite is imported where one is loaded.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from streamscope.aliases import folder_of
from streamscope.cli.errors import InputError, did_you_mean, near_files, unknown
from streamscope.text.corpus import is_records
from streamscope.text.readers import check_content

if TYPE_CHECKING:
    from streamscope.instruments.prompts.suite import Suite

DATASETS = folder_of("datasets")
TASKS = ("capitalization", "capitalization-8", "gender", "gender-16", "winograd")
FILES = {
    "coreference": DATASETS / "coreference" / "prompts.jsonl", "competing": DATASETS / "competing" / "prompts.jsonl",
}  # fmt: skip
COUNTERFACTUAL = (
    "ioi", "ioi-abc", "greater-than", "induction", "agreement", "capitals", "pronouns", "docstring", "name-copying",
    "letter-case",
)  # fmt: skip
"""Suites with corrupted prompts (`prompts.counterfactual`)."""
GENERATED = ("stories", "stories-told", "stories-words", "story-cases", *COUNTERFACTUAL)
BUNDLED = (*FILES, *GENERATED, *TASKS)


def load_suite(name_or_path: str | Path, *, n: int | None = None, seed: int | None = None) -> "Suite":
    """A bundled suite (`BUNDLED`), a JSONL, CSV or parquet file or hf:DATASET of the same fields, or FORMAT:PATH.

    Args:
        n: how many pairs, cases or prompts of a generated suite, by default 1000 of stories, else 200.
        seed: which ones, by default 2, which `text.stories` reserves for evaluation.
    """
    name = str(name_or_path)
    check_suite(name, n=n, seed=seed)
    seed = 2 if seed is None else seed
    if name in COUNTERFACTUAL:
        from streamscope.instruments.prompts.counterfactual import counterfactual_suite

        return counterfactual_suite(name, 200 if n is None else n, seed)
    from streamscope.instruments.prompts import suite

    if name in GENERATED:
        return suite.story_suite(name, 1000 if n is None else n, seed)
    if name in FILES or name in TASKS:
        file = FILES.get(name, DATASETS / "tasks" / f"{name}.jsonl")
        relative = file.relative_to(DATASETS.parent)  # the same on any machine
        return replace(suite.read_suite(str(file), name), source=relative.as_posix())
    if is_records(name):
        return suite.read_suite(name, name.removeprefix("hf:") if name.startswith("hf:") else Path(name).stem)
    from streamscope.instruments.prompts.loaders import FORMATS

    form, _, location = name.partition(":")
    return FORMATS[form](location)


def check_suite(name: str, *, n: int | None = None, seed: int | None = None) -> None:
    """Raise `InputError` where there is no suite of this name, or none of that size."""
    if name in GENERATED:
        if n is not None and n < 1:
            raise InputError(f"n must be at least 1 {'case' if name == 'story-cases' else 'pair'}, not {n}")
        return
    if n is not None or seed is not None:
        generated = f"n and seed belong to the generated suites {', '.join(GENERATED)}"
        raise InputError(f"{generated}: leave them out with {name!r}, or give one of these")
    if name in FILES or name in TASKS:
        file = FILES.get(name, DATASETS / "tasks" / f"{name}.jsonl")
        if not file.is_file():
            raise InputError(f"{file} is missing; run from a clone of the repository, which holds datasets/")
        return
    if is_records(name):
        return
    path, (form, colon, location) = Path(name).expanduser(), name.partition(":")
    if colon:
        from streamscope.instruments.prompts.loaders import FORMATS

        if form not in FORMATS:
            raise unknown("format of a prompt suite", form, list(FORMATS))
        check_content(Path(location))
        return
    if suggestion := did_you_mean(name, BUNDLED) or near_files(path):
        raise InputError(f"unknown prompt suite {name!r}: {suggestion}")
    if path.suffix or len(path.parts) > 1:
        raise InputError(f"{path} is no file; give one of {', '.join(BUNDLED)}, or a JSONL file of prompts")
    raise unknown("prompt suite", name, list(BUNDLED))


def check_task(name: str) -> None:
    """Raise `InputError` where `tasks.load_task` finds no task of this name."""
    from streamscope.instruments.prompts.loaders import FORMATS, PAIRS

    form, colon, location = name.partition(":")
    if colon and form in PAIRS:
        check_content(Path(location))
    elif colon and form not in FORMATS and not is_records(name):
        raise unknown("format of a task", form, [*FORMATS, *PAIRS])
    else:
        check_suite(name)
