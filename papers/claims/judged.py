"""Claims with what was measured: read from result tables, never stored with the claim."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from streamscope.cli.errors import InputError
from streamscope.instruments.table import read_about, read_parquet
from streamscope.instruments.undefined_cells import reasons
from streamscope.papers.claims.ledger import Claim, Key, Row, read, readings
from streamscope.papers.claims.words import Word, word_of
from streamscope.papers.comparison.printed import SMALLEST, number
from streamscope.papers.comparison.runs import again, ended, trained_runs
from streamscope.papers.comparison.seeds import FLAT
from streamscope.papers.comparison.verdicts import as_measured
from streamscope.papers.lfa.competence import needs_copying

NAN = float("nan")
WITH_CI = ("difference", "mean", "value", "share", "area", "delta", "ratio", "slope")
"""Measured columns whose interval is ci_low, ci_high; another column's are NAME_low, NAME_high."""
DENIED: dict[Word, Word] = {"reproduced": "contradicted", "contradicted": "reproduced"}
"""The word of a claim -> that of its denial, where they differ."""
DECIDES: tuple[Word, ...] = (
    "contradicted", "model too weak to test", "not a test (true by construction)", "paper inconsistent",
    "not testable here", "not measured yet", "different value", "inconclusive", "no effect", "reproduced",
)  # fmt: skip
"""Which verdict of a part is that of a claim of several parts, the first that is among them."""
FOUND: dict[str, tuple[Word, Word]] = {
    "present": ("reproduced", "contradicted"),
    "absent": ("model too weak to test", "reproduced"),
    "undecided": ("inconclusive", "inconclusive"),
}
"""Verdict of `probes.phenomena` -> the word of the claim that there is one, and of its denial."""
NOT_GATED = "these models were not gated"
LOSS = "nats/token"
"""Unit of a loss. Two losses compare on one text and by one tokenizer; no model here has a paper's."""
OTHER_TEXT = "a loss on other text and by another tokenizer; it would need those of the paper"
NO_INTERVAL = "of trained models, and no interval"
GATE = "specimens/phenomena.parquet"
"""What each bundled model does at all (`probes.phenomena`)."""
OF_NOUNS = ("probes.coreference", "probes.sps", "interventions.suppress", "papers.lfa")
"""What measures where heads look for nouns: of a model that does not copy them its numbers say nothing."""


def judged(ledger: Path, results: Path) -> pd.DataFrame:
    """One row per claim: the ledger's columns except `result` and `verdict`, then what the results say.

    measured (of a limit the value itself, not how far beyond it lies), value (as a number), ci_low, ci_high, n,
    clusters, table (of the row that decides), measurement (table, quantity and number: claims with the same text rest
    on one measurement), scale, tokens, commit, command (the one that made that table, else the ledger's), verdict,
    finding (the result's own verdict, or the ledger's reason), alone and size (`papers.comparison.verdicts`).

    Raises `InputError`, with the line of the ledger, for a result that is not there, selects another number of rows
    than one, or has a verdict of no word.
    """
    claims = read(ledger)
    tables = Tables(results)
    return pd.DataFrame([{"paper": claim.paper, **claim.row, **_judge(claim, tables)} for claim in claims])


def _judge(claim: Claim, tables: "Tables") -> dict[str, Any]:
    row = claim.row
    nothing = {
        "measured": "", "value": NAN, "ci_low": NAN, "ci_high": NAN, "n": "", "clusters": "", "table": "",
        "measurement": "", "scale": "", "tokens": "", "commit": "", "command": typed(row),
        "verdict": row["verdict"] or "not measured yet", "finding": row["why"], "alone": "", "size": "",
    }  # fmt: skip
    if not row["result"]:
        return nothing
    found, one, word, finding = _deciding(claim, tables)
    if word == "not measured yet":
        return {**nothing, "verdict": word, "finding": finding}
    value, low, high = number_cell(found.value, one)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    text = number_text(value) if is_number else str(value)
    width = f" ({number_text(low)} … {number_text(high)})" if low == low else ""
    return {
        **nothing,
        "measured": text,
        "value": float(value) if is_number else NAN,
        "ci_low": low,
        "ci_high": high,
        "n": str(one["n"] if "n" in one else one.get("seeds", "")),
        "clusters": str(one.get("clusters", "")),
        "table": found.file,
        "measurement": "" if value != value else f"{found.file}; {one.get('quantity', found.value)}; {text}{width}",
        **tables.made(found.file, str(one.get("run", one.get("preset", "")))),
        "verdict": word,
        "finding": finding,
        "alone": str(one.get("alone", "")),
        "size": str(one.get("size", "")),
    }


def _deciding(claim: Claim, tables: "Tables") -> tuple[Key, dict[str, Any], Word, str]:
    """Of the rows of a claim the one that decides, with its verdict.

    Of several readings the first is shown. Readings that do not agree leave the claim undecided: the paper does not say
    which of them it means.
    """
    found = [_of_reading(claim, reading, tables) for reading in readings(claim.row["result"], claim.where)]
    key, one, word, finding = found[0]
    if len({word for _, _, word, _ in found}) == 1:
        return key, one, word, finding
    each = ", ".join(f"{row.get('quantity', key.value)} {word}" for key, row, word, _ in found)
    return key, one, "inconclusive", f"it depends on the reading: {each}"


def _of_reading(claim: Claim, reading: tuple[Key, ...], tables: "Tables") -> tuple[Key, dict[str, Any], Word, str]:
    """The part of a reading that decides: the one whose verdict comes first in `DECIDES`.

    A claim of several parts, as a < b < c, is reproduced where all are, and contradicted where one is.
    Over two to four seeds an interval on one side of 0 has every seed on that side, for t > n − 1; so what is said of
    each seed needs no other rule.
    """
    parts = [(found, tables.row(found, claim.where)) for found in reading]
    judged_parts = [(found, one, *verdict(claim, found, one, tables)) for found, one in parts]
    found, one, word, finding = min(judged_parts, key=lambda part: DECIDES.index(part[2]))
    several = len(parts) > 1 and word != "reproduced"
    return found, one, word, f"{one.get('claim', found.value)}: {finding}" if several else finding


def number_cell(name: str, one: Mapping[str, Any]) -> tuple[Any, float, float]:
    """What was measured in a column of a row, and its interval; of a limit not how far beyond it (`as_measured`)."""
    if name != "difference" or "claim" not in one:
        return one[name], *interval(name, one)
    if "value_low" in one:
        return one["value"], *interval("value", one)
    value, low, high = as_measured(str(one["claim"]), one[name], *interval(name, one))
    return value, low, high


def typed(row: Row) -> str:
    """The command of the ledger; "" where nothing can measure the claim."""
    return f"python -m {row['instrument']} {row['arguments']}".rstrip() if row["instrument"] else ""


def number_text(value: float) -> str:
    """A measured number, as pages print it."""
    return "undefined" if value != value else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def measured(rows: pd.DataFrame) -> list[str]:
    """What was measured, with its interval and n, in one cell; a share in percent where the paper prints it so."""
    cells = []
    for r in rows.itertuples():
        percent = "%" in r.printed and r.unit != "factor" and r.value == r.value
        value, low, high = (
            f"{number_text(100 * one)}%" if percent else number_text(one) for one in (r.value, r.ci_low, r.ci_high)
        )
        width = f" ({low} … {high})" if r.ci_low == r.ci_low else ""
        cells.append(f"{value if percent else r.measured}{width}" + (f", n {r.n}" if r.n and r.measured else ""))
    return cells


def interval(name: str, one: Mapping[str, Any]) -> tuple[float, float]:
    """The ends of the 95 % interval of a column of a row, NaN where the table has none."""
    ends = (f"{name}_low", f"{name}_high") if f"{name}_low" in one else ("ci_low", "ci_high")
    if ends[0] == "ci_low" and name not in WITH_CI:
        return NAN, NAN
    return float(one.get(ends[0], NAN)), float(one.get(ends[1], NAN))


# ---- verdicts ----------------------------------------------------------------------------------


def verdict(claim: Claim, found: Key, one: Mapping[str, Any], tables: "Tables") -> tuple[Word, str]:
    """The ledger's word for what a row of a result table says, and what it says in full.

    A table that judges has `direction` (text) or `holds` (yes or no), or says whether there is something to find
    (`verdict`, `probes.phenomena`). A number on the other side of a printed one is another value, and refutes nothing.
    In another table the printed number is compared with the interval of the measured one
    (`_near`), unless the model cannot do the task that the number is about, or the number is a loss, which is of its
    own text and tokenizer. Without an interval the two must be one number as printed, where it is counted or computed,
    or the same in all seeds; else one run is no verdict. Raises `InputError` for a verdict of no word, and a claim that
    is no number in a table that does not judge.
    """
    where, row = claim.where, claim.row
    if "direction" in one or "holds" in one:
        finding = str(one["direction"]) if "direction" in one else "holds" if one["holds"] else "opposite"
        word = _word(finding, where)
        if found.denied:
            word, finding = DENIED.get(word, word), f"of its denial: {finding}"
        return ("different value" if row["kind"] == "number" and word == "contradicted" else word), finding
    if (finding := str(one.get("verdict", ""))) in FOUND:
        full = f"{finding}: {number_text(float(one[found.value]))} {one.get('unit', '')}".rstrip()
        return FOUND[finding][found.denied], full
    if row["kind"] != "number":
        raise InputError(
            f"{where}: result: {found.file} has no verdicts, and {row['kind']} needs one; name a judged row"
        )
    value = float(one[found.value])
    if value != value:
        why = reasons(str(one.get("undefined", ""))).get(found.value, "undefined")
        finding = f"undefined: {why.removeprefix('undefined ')}"
        return _word(finding, where), finding
    if cannot := tables.cannot(found.file, one, row["instrument"]):
        lacking_word = "inconclusive" if cannot.endswith(NOT_GATED) else word_of(cannot)
        return lacking_word or "model too weak to test", cannot
    try:
        printed = number(row["printed"].replace("−", "-").replace(",", ""))
    except ValueError as error:
        raise InputError(f"{where}: printed: {error}, to compare with {found.file}") from None
    if row["unit"] == LOSS and not found.value.endswith("_sd"):
        return "not testable here", OTHER_TEXT
    low, high = interval(found.value, one)
    if low == low and high == high:
        return _near(printed, low, high, SMALLEST.get(str(one.get("unit", row["unit"])), 0.0))
    if tables.trained(found.file) and FLAT not in reasons(str(one.get("undefined", ""))).values():
        return "inconclusive", NO_INTERVAL
    same = abs(value - printed) <= _half_a_digit(row["printed"])
    return ("reproduced", "the same as printed") if same else ("different value", "another number, no interval")


def _near(printed: float, low: float, high: float, least: float) -> tuple[Word, str]:
    """A printed number and an interval: all of it within ± the smallest effect of interest, outside it, or neither.

    An interval within ± that effect need not contain the number: a precise measurement close to it is as good as equal.
    It must contain a number that is no larger than the smallest effect: 0 would be as good as equal to that one, too.
    """
    contained = low <= printed <= high
    if printed - least <= low and high <= printed + least and (contained or abs(printed) > least):
        return "reproduced", f"all of the interval within ±{least:g}"
    if not contained:
        return "different value", "printed value outside"
    return "inconclusive", "printed value inside" + (f", but not all of it within ±{least:g}" if least else "")


def _half_a_digit(printed: str) -> float:
    """Half of the last digit of a printed number, in the unit of `number`."""
    digits = printed.rstrip("M%").rpartition(".")[2] if "." in printed else ""
    unit = {"M": 1e6, "%": 0.01}.get(printed[-1], 1.0)
    return 0.5 * unit * 10.0 ** -len(digits) * (1 + 1e-9)


def _word(text: str, where: str) -> Word:
    if (word := word_of(text)) is None:
        raise InputError(f"{where}: result: no word for its verdict {text!r} (papers.claims.words)")
    return word


# ---- result tables -----------------------------------------------------------------------------


class Tables:
    """The tables of a results folder, each read once."""

    def __init__(self, results: Path) -> None:
        if not results.is_dir():
            raise InputError(f"--results {results} is not there; the result tables are in the clone, under results/")
        self.results = results
        self._frames: dict[str, pd.DataFrame] = {}
        self._cells = cache(lambda file, column: self._frames[file][column].tolist())
        self._about = cache(lambda file: read_about(results / file).get("about", {}))
        self._runs = cache(lambda file: trained_runs((results / file).parent))
        self._made: dict[tuple[str, str], dict[str, str]] = {}

    def frame(self, file: str, where: str) -> pd.DataFrame:
        """A table by its path in the folder."""
        if file not in self._frames:
            path = self.results / file
            if not path.is_file():
                raise InputError(f"{where}: result: {path} is not there; name a table that is, or empty the cell")
            read_about(path)  # a file that is no parquet raises one line
            self._frames[file] = read_parquet(path).to_pandas()
        return self._frames[file]

    def rows(self, found: Key, where: str) -> pd.DataFrame:
        """The rows that a key selects."""
        frame = self.frame(found.file, where)
        for name in (*(column for column, _ in found.pairs), found.value):
            if name not in frame:
                raise InputError(f"{where}: result: {found.file} has no column {name!r}; it has {', '.join(frame)}")
        kept = list(range(len(frame)))
        for column, text in found.pairs:
            cells = self._cells(found.file, column)
            kept = [i for i in kept if _is(cells[i], text)]
        return frame.iloc[kept]

    def row(self, found: Key, where: str) -> dict[str, Any]:
        """The one row that a key selects."""
        kept = self.rows(found, where)
        if len(kept) != 1:
            chosen = "; ".join(f"{column}={text}" for column, text in found.pairs)
            raise InputError(f"{where}: result: {len(kept)} rows of {found.file} have {chosen}; a key selects one row")
        selected: dict[str, Any] = kept.iloc[0].to_dict()
        return {str(name): cell.item() if hasattr(cell, "item") else cell for name, cell in selected.items()}

    def made(self, file: str, run: str = "") -> dict[str, str]:
        """Scale and tokens of the runs behind a table, the commit at which it was measured, and by which command.

        Of the runs of the folder only `run`, a folder or a preset, or else those that the table itself names, where
        they are among them.
        """
        if (file, run) not in self._made:
            about = self._about(file)
            runs = self._runs(file)
            own = [run] if run else list(about.get("run", []))
            runs = [one for one in runs if {str(one.folder), one.preset} & set(own)] or runs
            seen = sorted({one.tokens_seen for one in ended(runs)})
            self._made[file, run] = {
                "scale": ", ".join(dict.fromkeys(one.manifest["scale"] for one in runs)),
                "tokens": " to ".join(f"{n:,}" for n in dict.fromkeys((seen[0], seen[-1]))) if seen else "",
                "commit": str(about.get("commit", ""))[:12],
                **({"command": again(about["argv"])} if "argv" in about else {}),
            }
        return self._made[file, run]

    def trained(self, file: str) -> bool:
        """Whether a table is of trained models; else its numbers are counted or computed."""
        return bool(self._runs(file)) or self._about(file).get("run", "none") != "none"

    def cannot(self, file: str, one: Mapping[str, Any], instrument: str) -> str:
        """Why the models of a row lack what its number is about; "" where they have it, and where nothing is needed.

        By the table's own column `cannot`, as comparisons have it, or by the gate's line about the model.
        """
        if "cannot" in one:
            return str(one["cannot"])
        needed = str(one.get("task", "copying" if instrument in OF_NOUNS else ""))
        if not needed or not needs_copying(str(one.get("quantity", ""))):
            return ""
        if (self.results / GATE).is_file():
            gate, run = self.frame(GATE, ""), self._model(file, one)
            mine = gate[(gate["run"] == run) & (gate["phenomenon"] == needed)]
            if len(mine):
                return lacking(mine.iloc[0])
        return f"{needed}: {NOT_GATED}"

    def _model(self, file: str, one: Mapping[str, Any]) -> str:
        """The one model of a row: the run that it names, that of its preset, or the only one of its table."""
        own = {one["run"]} if "run" in one else set(self._about(file).get("run", []))
        if "preset" in one and (runs := self._runs(file)):
            own = {str(run.folder) for run in runs if run.preset == one["preset"]}
        return str(own.pop()) if len(own) == 1 else ""


def lacking(row: Mapping[str, Any]) -> str:
    """That a line of the gate does not show its phenomenon; "" where it does."""
    if row["verdict"] == "present":
        return ""
    width = f"{row['value']:+.3f} ({row['value_low']:+.3f} … {row['value_high']:+.3f})"
    side = "below" if row["verdict"] == "absent" else "not resolved above"
    return f"{row['phenomenon']} of {row['run']} {width}, {side} {row['limit']:g}"


def _is(cell: Any, text: str) -> bool:
    """Whether a cell is what a key says."""
    if isinstance(cell, int | float) and not isinstance(cell, bool):
        try:
            return float(text) == cell
        except ValueError:
            return False
    return fnmatchcase(str(cell), text) if "*" in text else str(cell) == text
