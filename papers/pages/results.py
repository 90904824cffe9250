"""The Markdown pages of results: what `pages.toml` says, with the numbers of the tables."""

import itertools
import math
import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from string import ascii_lowercase
from typing import Any, Literal

import pandas as pd

from streamscope.cli.disk import write_text
from streamscope.cli.errors import InputError
from streamscope.cli.terminal import counted
from streamscope.features.cluster.description import RANGES, depth_ranges
from streamscope.papers.claims.judged import Tables, interval, judged
from streamscope.papers.claims.ledger import HERE as LEDGER
from streamscope.papers.claims.ledger import keys
from streamscope.papers.claims.words import DECIDED, MEANINGS, reason
from streamscope.papers.comparison.printed import number as printed_number
from streamscope.papers.pages.folder import folder_page, table_of
from streamscope.papers.pages.markdown import (
    Page,
    Raw,
    Section,
    cell,
    in_percent,
    measurement,
    minus,
    quotation,
    with_unit,
)
from streamscope.papers.pages.strips import Row, Strip, TokenMap

FILE = Path(__file__).with_name("pages.toml")
ORDER = re.compile(r"claim=[^;|&]* [<>] [^;|&]*;[^|&]*; difference")
"""A result whose measured value is the difference of two models."""
OVER = re.compile(r"(min|max|mean|count)\((\w+)\)")
REAL = "smollm2"
"""The folder of the real model's tables."""


@cache
def page_texts() -> Mapping[str, Any]:
    """What `pages.toml` says."""
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


# ---- numbers, each read from one cell of a result table ----------------------------------------


class Number(float):
    """A number that is written with a minus sign, but for a zero, and a space before the percent sign."""

    def __format__(self, spec: str) -> str:
        return minus(format(float(self), f"z{spec}").replace("%", "\u00a0%"))


@dataclass(frozen=True)
class Value:
    """A number with its 95 % interval, NaN where it has none.

    As text, `f"{x:.2f}"` is "0.46 (0.42 to 0.49)"; `f"{x.value:.2f}"` is the number alone.
    """

    value: float
    low: float = math.nan
    high: float = math.nan

    def __post_init__(self) -> None:
        for name in ("value", "low", "high"):
            object.__setattr__(self, name, Number(getattr(self, name)))

    def __format__(self, spec: str) -> str:
        own, *ends = (format(x, spec) for x in (self.value, self.low, self.high))
        return f"{own} ({ends[0]} to {ends[1]})" if self.low == self.low else own

    def __mul__(self, factor: float) -> "Value":
        """In another unit."""
        ends = sorted((factor * self.low, factor * self.high)) if self.low == self.low else (math.nan, math.nan)
        return Value(factor * self.value, *ends)


@dataclass(frozen=True)
class Source:
    """Where numbers come from: the result tables, and the claims that they judge."""

    tables: Tables
    claims: pd.DataFrame

    def row(self, name: str, where: str) -> "pd.Series[Any]":
        """A claim of the ledger."""
        mine = self.claims[self.claims["id"] == name]
        if mine.empty:
            raise InputError(f"{where}: the ledger has no claim {name}")
        return mine.iloc[0]

    def claim(self, name: str, where: str) -> Value:
        """What was measured for a claim of the ledger."""
        one = self.row(name, where)
        return Value(one["value"], one["ci_low"], one["ci_high"])

    def printed(self, name: str, where: str) -> Value:
        """What the paper prints for a claim of the ledger, "9.5%" as .095."""
        try:
            return Value(printed_number(self.row(name, where)["printed"]))
        except ValueError as error:
            raise InputError(f"{where}: {name} prints no number: {error}") from None


def read(text: str, source: Source, where: str) -> Value:
    """The cell that a text names, with its interval: "FILE.parquet; column=value; …; column", or "claim ID".

    "printed ID" is what the paper prints for that claim.

    In place of the last column, min(column), max(column), mean(column) or count(column) take it over all rows that the
    rest selects. "times 100" at the end changes the unit. Raises `InputError` for a file, column or row that is not
    there.
    """
    text, _, factor = text.partition(" times ")
    if text.startswith("claim "):
        number = source.claim(text.removeprefix("claim "), where)
    elif text.startswith("printed "):
        number = source.printed(text.removeprefix("printed "), where)
    else:
        number = _cell(text, source.tables, where)
    return number * float(factor) if factor else number


def _cell(text: str, tables: Tables, where: str) -> Value:
    """What "FILE.parquet; column=value; …; column" names."""
    (key,) = keys(text, where)
    if (over := OVER.fullmatch(key.value)) is None:
        row = tables.row(key, where)
        return Value(float(row[key.value]), *interval(key.value, row))
    rows = tables.rows(key._replace(value=over[2]), where)[over[2]].dropna()
    if rows.empty:
        raise InputError(f"{where}: no row of {key.file} is selected by {text}")
    return Value(float(getattr(rows, over[1])()))


def fill_in(text: str, values: dict[str, Any], where: str) -> str:
    """A sentence with its numbers. Raises `InputError` for a name that has no value."""
    try:
        return text.format_map(values)
    except (KeyError, AttributeError, ValueError) as error:
        raise InputError(f"{where}: {error} in {text!r}") from None


# ---- pages -------------------------------------------------------------------------------------


def strip(given: Mapping[str, Any], source: Source, where: str) -> Strip:
    """The figure that a page declares, with its numbers."""
    rows = []
    for one in given["rows"]:
        found = read(one["of"], source, where)
        printed = read(one["printed"], source, where).value if "printed" in one else math.nan
        rows.append(Row(one["label"], found.value, found.low, found.high, printed))
    rest = {name: given[name] for name in ("line", "line_label", "log") if name in given}
    return Strip(title=given["title"], unit=given["unit"], rows=rows, **rest)


def sentences(given: Mapping[str, Any], source: Source, where: str) -> list[str]:
    """The sentences of a page with their numbers."""
    values = _values(given, source, where)
    return [fill_in(text, values, where) for text in given["sentences"]]


def details(given: Mapping[str, Any], source: Source, where: str) -> list[tuple[str, str]]:
    """What a page says beyond its sentences, by title."""
    values = _values(given, source, where)
    texts = [(one["title"], " ".join(one["sentences"])) for one in given.get("detail", ())]
    return [(title, fill_in(text, values, where)) for title, text in texts]


def _values(given: Mapping[str, Any], source: Source, where: str) -> dict[str, Value]:
    return {name: read(of, source, where) for name, of in given.get("values", {}).items()}


def written_table(given: Mapping[str, Any], values: dict[str, Value], where: str) -> Section:
    """A table that a page declares cell by cell, each a text with the page's numbers in it."""
    return Section(**{**given, "rows": [[fill_in(text, values, where) for text in row] for row in given["rows"]]})


def front(source: Source) -> Page:
    """results/README.md: the findings, then the papers."""
    given, claims = page_texts()["front"], source.claims
    sections = []
    for one in given["finding"]:
        where = f"{FILE.name}: {one['name']}"
        figure = replace(strip(one["figure"], source, where), path=f"figures/{one['name']}.svg")
        sections.append(Section(title=one["title"], text=" ".join(sentences(one, source, where)), figure=figure))
    words = [*DECIDED, "inconclusive", "model too weak to test"]
    rows = []
    for paper, one in page_texts()["paper"].items():
        mine = claims[claims["paper"] == paper]
        n = mine["verdict"].value_counts()
        counts = [int(n.get(word, 0)) for word in words]
        link, distinct = Raw(f"[{paper.upper()}]({paper}.md)"), measurements(mine[mine["verdict"].isin(DECIDED)])
        counts.insert(len(DECIDED), distinct)
        rows.append([link, one["about"], *counts, len(mine) - sum(counts) + distinct, len(mine)])
    text = given["papers"].format(n=len(claims))
    columns = ("paper", "about", *DECIDED, "from measurements", *words[len(DECIDED) :], "other", "claims")
    papers = Section(title="The papers", text=text, columns=columns, rows=rows)
    return Page(
        title=given["title"], lead=given["lead"], sections=[*sections, papers, Section(**given["more"])],
        made=given["made"],
    )  # fmt: skip


def measurements(claims: pd.DataFrame) -> int:
    """How many measurements claims rest on. A claim that is a text instead of a number has its own."""
    named = claims["measurement"].ne("")
    return int(claims.loc[named, "measurement"].nunique() + (~named).sum())


def levels_of(source: Source) -> dict[str, list[float]]:
    """The two levels of the measurements that are a difference, [] where a difference has none."""
    orders = source.claims["result"].str.contains(ORDER) & source.claims["unit"].ne("factor")
    found: dict[str, list[float]] = {name: [] for name in source.claims.loc[orders, "measurement"]}
    own = set(source.claims["id"])
    for name, cells in page_texts()["levels"].items():
        if name not in own:
            continue
        where = f"{FILE.name}: levels.{name}"
        found[source.row(name, where)["measurement"]] = [read(text, source, where).value for text in cells]
    return found


def decided_rows(decided: pd.DataFrame, source: Source) -> list[list[str]]:
    """The table of the claims that were decided. Rows that rest on one measurement have the same letter."""
    levels = levels_of(source)
    shared = decided.loc[decided["measurement"].duplicated(keep=False), "measurement"].unique()
    letters = dict(zip((name for name in shared if name), ascii_lowercase, strict=False))
    rows = []
    for r in decided.itertuples():
        measured = cell(measurement(r, levels.get(r.measurement)))
        if r.measurement in letters:
            measured += f" <sup>{letters[r.measurement]}</sup>"
        why = f"{r.verdict}: {in_points(reason(r.finding), r)}" if r.verdict == "no effect" else r.verdict
        how = r.why.partition("; after `")[0]  # the commands that came before the last one are in the ledger
        printed = with_unit(r.printed, r.unit)
        rows.append([quotation(r.quote), r.configuration, how, printed, Raw(measured), r.tokens, why])
    return rows


def legend(rows: list[list[str]]) -> str:
    """How to read a table of claims: only what it has."""
    shown = " ".join(map(str, itertools.chain(*rows)))
    return " ".join(text for of, text in page_texts()["legend"].items() if of == "always" or of in shown)


def in_points(text: str, claim: Any) -> str:
    """A reason with its limits in points where the measurement is written in percent: "within ±1 points"."""
    return re.sub(r"±([\d.]+)", lambda x: f"±{100 * float(x[1]):g} points", text) if in_percent(claim) else text


def paper_page(paper: str, source: Source) -> Page:
    """results/PAPER.md: what was decided, and how many were not."""
    given, where = page_texts()["paper"][paper], f"{FILE.name}: {paper}"
    mine = source.claims[source.claims["paper"] == paper]
    decided = mine[mine["verdict"].isin(DECIDED)]
    order = decided["verdict"].map(DECIDED.index)
    decided = decided.iloc[order.argsort(kind="stable")]
    counts = mine["verdict"].value_counts()
    words = [word for word in MEANINGS if word in counts.index]
    other = ", ".join(f"{counts[word]} {word}" for word in words if word not in DECIDED)
    ends = {end for tokens in mine["tokens"] if tokens for end in tokens.split(" to ")}
    doses = sorted(ends, key=lambda end: int(end.replace(",", "")))
    amount = " to ".join(dict.fromkeys((doses[0], doses[-1]))) if doses else ""
    seen = f"Models that claims are judged on saw {amount} training tokens. " if doses else ""
    rows, values = decided_rows(decided, source), _values(given, source, where)
    return Page(
        title=given["title"],
        lead=f"{given['about']}. {given['paper']}. Models: {given['models']}.",
        figure=replace(strip(given["figure"], source, where), path=f"figures/{paper}.svg"),
        sentences=sentences(given, source, where),
        details=details(given, source, where),
        sections=[
            Section(
                title="Claims that were decided",
                text=f"Of {len(mine)} claims {len(decided)} {'was' if len(decided) == 1 else 'were'} decided, "
                f"from {counted(measurements(decided), 'measurement')}. "
                f"The others: {other}. {legend(rows)}",
                columns=(
                    "the paper says",
                    "model",
                    "how we read it",
                    "printed",
                    "measured (95 %)",
                    "training tokens",
                    "verdict",
                ),
                rows=rows,
            ),
            *(written_table(one, values, where) for one in given.get("table", ())),
        ],
        made=given["made"],
        note=f"{seen}The claims, with place and command: `papers/claims/{paper}.csv`. "
        f"The tables: {folders(paper, source.tables.results)}.",
    )


AGREES, DIFFERS, OPEN = "agrees", "does not agree", "inconclusive"


def agreement(found: Value, side: Literal["above", "below"], limit: float) -> str:
    """The verdict on a statement: it agrees if the whole 95 % interval lies on the paper's side of the limit.

    Raises `InputError` for a number that has no interval.
    """
    if found.low != found.low:
        raise InputError(f"{FILE.name}: {found.value:g} has no interval, so it decides no statement")
    if found.low <= limit <= found.high:
        return OPEN
    return AGREES if (found.low > limit) == (side == "above") else DIFFERS


def real_page(source: Source, folder: str) -> Page:
    """results/FOLDER/README.md: what papers say of ordinary transformers, in one real model."""
    given, where = page_texts()["real"], f"{FILE.name}: real"
    rows = []
    for one in given["claim"]:
        found = read(one["of"], source, where)
        word = agreement(found, one["side"], float(one.get("limit", 0)))
        rows.append([one["paper"], one["says"], one.get("printed", ""), f"{found:{one['format']}} {one['unit']}", word])
    sections = []
    for one in given["part"]:
        path = f"{one['name']}.svg"
        figure: Any = (
            token_map(source.tables, folder, one["map"], path) if "map" in one
            else replace(strip(one["figure"], source, where), path=path)
        )  # fmt: skip
        sections.append(Section(title=one["title"], text=" ".join(sentences(one, source, where)), figure=figure))
    counted = Counter(row[-1] for row in rows)
    text = given["claims"].format(n=len(rows), yes=counted[AGREES], no=counted[DIFFERS], open=counted[OPEN])
    columns = ("paper", "what it says of ordinary transformers", "printed", "SmolLM2 (95 %)", "")
    table = Section(title="What agrees and what does not", text=text, columns=columns, rows=rows)
    return Page(title=given["title"], lead=given["lead"], sections=[table, *sections], made=given["made"])


def tables_page(source: Source, folder: str) -> Page:
    """results/FOLDER/README.md of a page that `pages.toml` declares whole: a figure, sentences and tables."""
    given, where = page_texts()["tables"][folder], f"{FILE.name}: {folder}"
    return Page(
        title=given["title"],
        lead=given["lead"],
        figure=replace(strip(given["figure"], source, where), path=f"{folder}.svg"),
        sentences=sentences(given, source, where),
        sections=[table_of(source.tables.results / folder, **one) for one in given["table"]],
        made=given["made"],
    )


def token_map(tables: Tables, folder: str, title: str, path: str) -> TokenMap:
    """The map of clusters, coloured by where predictions settle: early, middle, late."""
    found = tables.frame(f"{folder}/modes-labels.parquet", FILE.name)
    depth = depth_ranges(found["k_star"].to_numpy(int), int(found["k_star"].max()))
    rows = list(zip(found["x"], found["y"], depth.tolist(), found["cluster"], strict=True))
    return TokenMap(title=title, rows=rows, groups=[f"settle {name}" for name in RANGES], path=path)


def folders(paper: str, results: Path) -> str:
    """Links to the folders of a paper's tables."""
    names = sorted(p.name for p in results.iterdir() if p.is_dir() and p.name.split("_")[0] == paper)
    return ", ".join(f"[{name}]({name}/)" for name in names)


def pages_of(source: Source) -> dict[str, Page]:
    """Every page by its file in the results folder."""
    results, given = source.tables.results, page_texts()
    pages = {"README.md": front(source)} | {f"{paper}.md": paper_page(paper, source) for paper in given["paper"]}
    for name, one in given["folder"].items():
        if (results / name).is_dir():
            rest = {key: value for key, value in one.items() if key not in ("values", "sentences")}
            if isinstance(like := rest.get("table"), str):
                rest["table"] = given["folder"][like]["table"]
            own = sentences(one, source, f"{FILE.name}: {name}") if "sentences" in one else ()
            pages[f"{name}/README.md"] = folder_page(results / name, sentences=own, **rest)
    for name in given["tables"]:
        if (results / name).is_dir():
            pages[f"{name}/README.md"] = tables_page(source, name)
    if (results / REAL).is_dir():
        pages[f"{REAL}/README.md"] = real_page(source, REAL)
    return pages


def readme(text: str, claims: pd.DataFrame) -> str:
    """The README of the clone with the counts of the ledger, of each paper and of all.

    Raises `InputError` where it has no place for one of them.
    """
    verdicts, decided = Counter(claims["verdict"]), claims[claims["verdict"].isin(DECIDED)]
    counts = {
        "no effect": (r"(no effect\*:) \d+", str(verdicts["no effect"])),
        "the claims that were not decided": (
            r"(The other) \d+ of \d+",
            f"{len(claims) - len(decided)} of {len(claims)}",
        ),
        "models that are too weak": (r"(too weak for) \d+", str(verdicts["model too weak to test"])),
    }
    for paper, own in decided.groupby("paper"):
        word = Counter(own["verdict"])
        row = f"| {word['reproduced']} | {word['contradicted']} | {measurements(own)} |"
        counts[f"{paper}"] = (rf"(?m)^(\| [^|\n]*\b{str(paper).upper()}\b.*\)) \| \d+ \| \d+ \| \d+ \|$", row)
    for name, (place, now) in counts.items():
        text, n = re.subn(place, rf"\1 {now}", text)
        if n != 1:
            raise InputError(f"README.md: {n} places for the number of {name}; it must have one")
    return text


def write_results(results: Path) -> list[Path]:
    """Every page of a results folder and the figures in it, and the counts in the README beside it; gives what was
    written."""
    written = {}
    source = Source(Tables(results), judged(LEDGER, results))
    front = results.parent / "README.md"
    if front.is_file() and f"({results.name}/README.md)" in (before := front.read_text(encoding="utf-8")):
        written[front] = readme(before, source.claims)
    for name, page in pages_of(source).items():
        for figure in (page.figure, *(section.figure for section in page.sections)):
            if figure is not None and figure.rows:
                written[(results / name).parent / figure.path] = figure.svg()
        written[results / name] = page.text()
    for path, text in written.items():
        write_text(path, text)
    return list(written)
