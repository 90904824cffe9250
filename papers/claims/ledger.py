"""The ledgers as they lie on disk: a CSV file per paper, a row per claim, validated cell by cell."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Annotated, NamedTuple, get_args

from pydantic import BeforeValidator, Field
from typing_extensions import TypedDict

from streamscope.cli.disk import parse, read_bytes
from streamscope.cli.errors import InputError
from streamscope.papers.claims.words import Kind, Paper, Written, word_of

HERE = Path(__file__).resolve().parent
"""The shipped ledgers."""
PAPERS: tuple[str, ...] = get_args(Paper)
REMEDY = "correct the row"
LIMIT = re.compile(r" (above|below) [^<>]+$")
"""How the claim of a table ends that holds a measured value against a limit; two limits hold a printed range."""
Text = Annotated[str, Field(min_length=1)]
Module = Annotated[str, Field(pattern=r"^((models|probes|interventions|features|papers|benchmarks)(\.\w+)+)?$")]


def _today(text: str) -> str:
    return str(word_of(text) or text)


class Row(TypedDict):
    """A claim as the paper makes it, and where its measurement is found; cells in the order of the columns."""

    id: Annotated[str, Field(pattern=r"^(dst|lfa|hdpl|pls|krom)(-[a-z0-9.]+)+$")]
    place: Text
    """Table 2, §5.1, Fig. 3, App. E."""
    quote: Annotated[str, Field(min_length=1, max_length=240)]
    """The paper's words, as its text has them."""
    kind: Kind
    configuration: Text
    """Presets or arms, and the scale, of the paper."""
    printed: str
    """The value as printed; "" where there is none."""
    unit: str
    instrument: Module
    """The module that re-measures it; "" where nothing can."""
    arguments: str
    """What follows the module, as one types it."""
    result: str
    """FILE; column=value; …; measured column: one row of a result table (`keys`). "not FILE" where the claim of that
    row is the denial of this one; several rows, with " & " between, where the claim holds if all of them do.
    Readings of a claim, with " | " between, are judged each by itself: one verdict for the claim, where all agree."""
    verdict: Annotated[Written, BeforeValidator(_today)]
    """Only where no measurement decides. Words of older ledgers are read as those of today."""
    why: str
    """The reason of such a verdict, or a remark."""


COLUMNS = tuple(Row.__annotations__)


class Claim(NamedTuple):
    """A row, its paper, and where it stands."""

    paper: str
    row: Row
    where: str
    """FILE:LINE."""


class Key(NamedTuple):
    """What selects a row of a result table, and the column with the measured value."""

    file: str
    pairs: tuple[tuple[str, str], ...]
    """Columns and what they hold; `*` in a value stands for anything."""
    value: str
    denied: bool
    """Whether the row's claim is the denial of the ledger's."""


def read(folder: Path) -> list[Claim]:
    """The claims of every ledger of a folder, in the order of `PAPERS`.

    Raises `InputError` with file, line, column and what is wrong, for two rows of one id, and for a folder without any.
    """
    found: list[Claim] = []
    for paper in PAPERS:
        path = folder / f"{paper}.csv"
        if path.is_file():
            found += _of_file(path, paper)
    if not found:
        raise InputError(f"{folder} holds no ledger: {', '.join(f'{paper}.csv' for paper in PAPERS)}")
    first: dict[str, str] = {}
    for claim in found:
        if (other := first.setdefault(claim.row["id"], claim.where)) != claim.where:
            raise InputError(f"{claim.where}: id: {claim.row['id']} is that of {other} too; {REMEDY}")
    return found


def _of_file(path: Path, paper: str) -> list[Claim]:
    text = read_bytes(path).decode("utf-8-sig", errors="replace")
    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: list[Claim] = []
    try:
        if (head := tuple(next(lines, ()))) != COLUMNS:
            raise InputError(f"{path}:1: the columns are {', '.join(head)}; they must be {', '.join(COLUMNS)}")
        for cells in lines:
            where = f"{path}:{lines.line_num}"
            if len(cells) != len(COLUMNS):
                raise InputError(f"{where}: {len(cells)} cells for {len(COLUMNS)} columns; {REMEDY}")
            row: Row = parse(json.dumps(dict(zip(COLUMNS, cells, strict=True))), Row, where, REMEDY)
            _check(row, paper, where)
            rows.append(Claim(paper, row, where))
    except csv.Error as error:
        raise InputError(f"{path}:{lines.line_num}: no CSV ({error}); {REMEDY}") from None
    return rows


def _check(row: Row, paper: str, where: str) -> None:
    """What the cells must be together."""
    if not row["id"].startswith(f"{paper}-"):
        raise InputError(f"{where}: id: {row['id']} must begin with {paper}-; {REMEDY}")
    if row["verdict"]:
        if row["result"]:
            raise InputError(f"{where}: verdict: what has a result is judged by it, not by hand; empty one of the two")
        if not row["why"]:
            raise InputError(f"{where}: why: {row['verdict']} needs its reason; {REMEDY}")
    elif not row["instrument"]:
        raise InputError(f"{where}: instrument: a claim that can be measured names what measures it; {REMEDY}")
    found = keys(row["result"], where) if row["result"] else ()
    plain = sum(not LIMIT.search(dict(key.pairs).get("claim", "")) for key in found)
    if row["kind"] == "number" and plain > 1:
        raise InputError(f"{where}: result: a number is compared with one row, and this names {len(found)}; {REMEDY}")


def keys(text: str, where: str) -> tuple[Key, ...]:
    """The rows of a result, of all readings.

    Each is lfa_long/claims.parquet; claim=lfa > cfm; quantity=loss; difference. Raises `InputError` for anything
    else.
    """
    return tuple(key for reading in readings(text, where) for key in reading)


def readings(text: str, where: str) -> tuple[tuple[Key, ...], ...]:
    """The rows of each reading of a claim, with "|" between, of one the rows of its parts, with "&" between.

    a < b & b < c of a < b < c.
    """
    return tuple(tuple(_key(part, where) for part in one.split(" & ")) for one in text.split(" | "))


def _key(text: str, where: str) -> Key:
    file, *pairs, value = (part.strip() for part in text.split(";"))
    split = [tuple(part.split("=", 1)) for part in pairs]
    if not file.endswith(".parquet") or not pairs or any(len(pair) != 2 for pair in split) or "=" in value or not value:
        raise InputError(f"{where}: result: {text!r} is not FILE.parquet; column=value; …; measured column; {REMEDY}")
    pairs_of_text = tuple((pair[0], pair[1]) for pair in split)
    return Key(file.removeprefix("not ").strip(), pairs_of_text, value, file.startswith("not "))
