"""Suites of prompts whose words have roles: what the coreference probes read.

A suite is a bundled name (coreference, competing; the tasks capitalization, gender, winograd; the generated stories,
stories-told, stories-words and story-cases; with corrupted prompts
ioi, ioi-abc, greater-than, induction, docstring, name-copying, letter-case, agreement, capitals, pronouns), a file of
the same format (JSONL, CSV, parquet), hf:DATASET, or FORMAT:PATH for a published set (winobias, wsc273, wsc285,
winogender, gap). `align` says where the roles lie in tokens; `instruments.prompts.tasks` scores answers.
"""

import json
from collections.abc import Callable
from dataclasses import fields, replace
from functools import lru_cache, partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamscope.aliases import folder_of
from streamscope.cli.disk import parse
from streamscope.cli.errors import InputError, did_you_mean, near_files, reading, unknown
from streamscope.instruments.prompts.alignment import Aligned, align, check_tokenizer, require_pairs
from streamscope.instruments.prompts.counterfactual import SUITES, N, counterfactual_suite
from streamscope.instruments.prompts.loaders import FORMATS, PAIRS
from streamscope.instruments.prompts.suite import Order, Prompt, Suite, last_word, order_of
from streamscope.text.corpus import is_records, records
from streamscope.text.readers import check_content

if TYPE_CHECKING:
    from streamscope.text.stories import Case

__all__ = [
    "BUNDLED", "Aligned", "Order", "Prompt", "Suite", "align", "check_tokenizer", "load_suite", "require_pairs",
]  # fmt: skip

DATASETS = folder_of("datasets")
FILES = {name: DATASETS / name / "prompts.jsonl" for name in ("coreference", "competing")}
TASKS = ("capitalization", "capitalization-8", "gender", "gender-16", "winograd")
HELD_OUT = {"stories": "pairs", "stories-told": "told", "stories-words": "words"}
"""Suites of minimal pairs, by what the stories hold out: pairs of nouns; guests, whose habits are told; words."""
GENERATED = (*HELD_OUT, "story-cases", *SUITES)
CATEGORY = {"gender": "gender", "anchor": "gender", "number": "plurality"}
"""Category of a passage's kind; in all others nouns compete (LFA App. F), and `relation` says how."""
BUNDLED = (*FILES, *GENERATED, *TASKS)
STORY_N, STORY_SEED = 1000, 2
"""Of the generated suites: how many pairs or cases, and the seed that `text.stories` reserves for evaluation."""


def load_suite(name_or_path: str | Path, *, n: int | None = None, seed: int | None = None) -> Suite:
    """A bundled suite (`BUNDLED`), a JSONL, CSV or parquet file or hf:DATASET of the same fields, or FORMAT:PATH.

    Args:
        n: how many pairs, cases or prompts of a generated suite, by default `STORY_N` or `counterfactual.N`.
        seed: which ones, by default `STORY_SEED`.
    """
    return check_suite(str(name_or_path), n=n, seed=seed)()


def check_suite(name: str, *, n: int | None = None, seed: int | None = None) -> Callable[[], Suite]:
    """What makes or reads a suite; `InputError` where there is none of this name, or of that size."""
    path, (form, colon, location) = Path(name).expanduser(), name.partition(":")
    if name in GENERATED:
        if n is not None and n < 1:
            raise InputError(f"n must be at least 1 {'case' if name == 'story-cases' else 'pair'}, not {n}")
        default = N if name in SUITES else STORY_N
        return partial(_generated, name, default if n is None else n, STORY_SEED if seed is None else seed)
    if n is not None or seed is not None:
        generated = f"n and seed belong to the generated suites {', '.join(GENERATED)}"
        raise InputError(f"{generated}: leave them out with {name!r}, or give one of these")
    if name in FILES or name in TASKS:
        file = FILES.get(name, DATASETS / "tasks" / f"{name}.jsonl")
        if not file.is_file():
            raise InputError(f"{file} is missing; run from a clone of the repository, which holds datasets/")
        relative = file.relative_to(DATASETS.parent)  # the same on any machine
        return lambda: replace(_read(str(file), name), source=relative.as_posix())
    if is_records(name):
        return partial(_read, name, name.removeprefix("hf:") if name.startswith("hf:") else path.stem)
    if colon and form not in FORMATS:
        raise unknown("format of a prompt suite", form, list(FORMATS))
    if colon:
        check_content(Path(location))
        return partial(FORMATS[form], location)
    if suggestion := did_you_mean(name, BUNDLED) or near_files(path):
        raise InputError(f"unknown prompt suite {name!r}: {suggestion}")
    if path.suffix or len(path.parts) > 1:
        raise InputError(f"{path} is no file; give one of {', '.join(BUNDLED)}, or a JSONL file of prompts")
    raise unknown("prompt suite", name, list(BUNDLED))


def check_task(name: str) -> None:
    """Raise `InputError` where `tasks.load_task` finds no task of this name."""
    form, colon, location = name.partition(":")
    if colon and form in PAIRS:
        check_content(Path(location))
    elif colon and form not in FORMATS and not is_records(name):
        raise unknown("format of a task", form, [*FORMATS, *PAIRS])
    else:
        check_suite(name)


@lru_cache(maxsize=16)  # a thousand pairs of stories take a second
def _generated(name: str, n: int, seed: int) -> Suite:
    if name in SUITES:
        return counterfactual_suite(name, n, seed)
    return _story_cases(n, seed) if name == "story-cases" else _pairs(name, n, seed)


def _pairs(name: str, n: int, seed: int) -> Suite:
    """Minimal pairs of the built-in stories."""
    from streamscope.text.stories import minimal_pairs

    prompts = []
    for i, p in enumerate(minimal_pairs(seed, n, HELD_OUT[name])):
        pair, first, last = f"{name}-{seed}-{i:05d}", (p.first, p.first_case), (p.last, p.last_case)
        for order, (text, case), corrupt in (("first", first, p.first_corrupt), ("last", last, p.last_corrupt)):
            options: dict[str, Any] = {"corrupt": corrupt, "coherent": p.coherent, "incoherent": p.incoherent}
            prompts.append(_of_case(text, case, id=f"{pair}-{case.relation}-{order}", pair=pair, **options))
    return Suite(name, tuple(prompts), f"streamscope.text.stories.minimal_pairs({seed}, {n}, {HELD_OUT[name]!r})")


def _of_case(text: str, case: "Case", start: int = 0, **options: Any) -> Prompt:
    """The prompt of a labelled pronoun in a text that begins at character `start` of its story."""
    rival = next(span for span in case.candidates if span != case.antecedent)
    marks = {"query": case.pronoun, "target": case.antecedent, "distractor": rival}
    roles = {role: (span.start - start, span.end - start) for role, span in marks.items()}
    target, competitor = (text[slice(*roles[role])].lower() for role in ("target", "distractor"))
    category = CATEGORY.get(case.category, "competing-nouns")
    options |= {"roles": roles, "order": order_of(roles), "words": {"target": target, "competitor": competitor}}
    return Prompt(text=text, category=category, relation=case.category, **options)


def _story_cases(n: int, seed: int) -> Suite:
    """Labelled pronouns of stories of held-out pairs, each in its paragraph. The cases of one story are one unit."""
    from streamscope.text.stories import story

    prompts: list[Prompt] = []
    for index in count():
        tale, name = story(seed, index, "pairs"), f"{seed}-{index:05d}"
        for i, case in enumerate(tale.cases):
            start = tale.text.rfind("\n\n", 0, case.candidates[0].start) + 2 if "\n\n" in tale.text else 0
            stop = tale.text.find("\n\n", case.pronoun.end)
            text = tale.text[start : stop if stop >= 0 else None]
            prompts.append(_of_case(text, case, start, id=f"story-cases-{name}-{i}", cluster=f"story-{name}"))
            if len(prompts) == n:
                source = f"streamscope.text.stories.labelled({seed}, {index + 1}, 'pairs')"
                return Suite("story-cases", tuple(prompts), source)
    raise AssertionError("stories do not end")


LISTS = ("answers", "foils", "roles", "words")


def _read(source: str, name: str) -> Suite:
    prompts = []
    for i, (place, row) in enumerate(records(source, "a prompt as JSON")):
        with reading(place):
            if Path(source).suffix not in (".jsonl", ".ndjson"):
                row = {key: _value(value) if key in LISTS else value for key, value in row.items()}
            plain = "clean" in row or ("roles" not in row and isinstance(row.get("text"), str))
            prompts.append(_prompt(_own(row, i) if plain else row))
    return Suite(name, tuple(prompts), source)


def _value(cell: Any) -> Any:
    """The list or object that a cell of a table holds as JSON; another text is a list of one."""
    if isinstance(cell, dict):  # a column of objects has None for what a row lacks
        return {key: value for key, value in cell.items() if value is not None}
    if not isinstance(cell, str):
        return cell
    try:
        return json.loads(cell) if cell.lstrip()[:1] in ("[", "{") else [cell]
    except ValueError:
        raise InputError(f"{cell[:60]!r} is no JSON; write a list or an object") from None


def _own(row: dict[str, Any], i: int) -> dict[str, Any]:
    """A row without roles as a prompt whose query is its last word."""
    if "clean" in row:
        for side in ("answers", "foils"):
            if not isinstance(row.get(side), list) or not row[side]:
                raise InputError(f"a prompt with 'clean' needs {side!r}, a list of continuations")
        if not isinstance(row["clean"], str) or not isinstance(row.get("corrupt"), str):
            raise InputError("'clean' and 'corrupt' must be text")
        row = {"text": row["clean"], **row}
        del row["clean"]
    return {"id": f"prompt-{i + 1}", "category": "own", "roles": {"query": list(last_word(row["text"]))}, **row}


def _prompt(row: dict[str, Any]) -> Prompt:
    """One line of a suite's file, with every type checked."""
    names = [f.name for f in fields(Prompt)]
    if strange := [key for key in row if key not in names]:
        raise unknown("key of a prompt", strange[0], [*names, "clean"])
    answers, foils = row.get("answers"), row.get("foils")
    if isinstance(answers, list) and isinstance(foils, list) and answers and foils:
        row = {"coherent": answers[0], "incoherent": foils[0], **row}
    return parse(json.dumps(row), Prompt, "the prompt", f"its keys are {', '.join(names)}")
