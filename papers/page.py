"""A paper's page: its tables printed | measured, its figures from our runs, and sentences whose numbers are read.

`papers/PAPER/page.md` is a jinja2 template. It calls

    {{ table("Table 2") }}                      the printed cells of a place with the measured ones beside them
    {{ figure("Figure 1") }}                    draws it (papers/PAPER/figures.py) into results/PAPER/, and shows it
    {{ value("lfa", "loss", grid="long") }}     an estimate with its interval, written as `like` is ("0.000")
    {{ value("lfa − d-cas", "loss", like="0.0", unit="percent", grid="long") }}
    {{ printed("Table 4", "LFA", "Max L5 PDS") }}
    {{ dose("Table 2") }}                       seeds, tokens and text of what the table shows
    {{ primary() }}                             the registered claims and their verdicts
    {{ matrix({"loss": "0.000"}, "std-t-rope") }}    arms × quantities, in bold what differs from an arm
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, StrictUndefined

from streamscope.cli.disk import write_atomically, write_text
from streamscope.cli.errors import InputError, unknown
from streamscope.instruments.stats.estimators import holm
from streamscope.models.checkpoint import read_manifest
from streamscope.papers.drawing import save, style
from streamscope.papers.paper import NAMES, OWN, RESULTS, Estimate, Selection, estimate, load, measure_runs
from streamscope.papers.primary import LEVEL, PAPERS, judge, registered
from streamscope.papers.printed import form, printed, with_interval, written
from streamscope.papers.sentences import sentences

MILLION = 1_000_000
LEGEND = (PAPERS / "legend.md").read_text("utf-8").strip()
DECIDED = ("reproduced", "contradicted", "no effect")
"""Verdicts that decide a claim."""


@dataclass(frozen=True)
class Page:
    """A paper's tables and figures from its long table, or from a reader's own runs.

    `papers/PAPER/tables.py` has GRIDS, place -> grid; DEFAULT is that of the others. With `own` rows every place shows
    the reader's runs.
    """

    paper: str
    own: pd.DataFrame | None = None

    @cached_property
    def rows(self) -> pd.DataFrame:
        """The long table."""
        return load(self.paper) if self.own is None else self.own

    @cached_property
    def cells(self) -> pd.DataFrame:
        """The printed cells; a page without a printed.csv has none."""
        return printed(self.paper)

    @cached_property
    def tables(self) -> Any:
        """The module papers/PAPER/tables.py."""
        return import_module(f"streamscope.papers.{self.paper}.tables")

    def grid(self, place: str) -> str:
        """The training that a place shows."""
        return OWN if self.own is not None else self.tables.GRIDS.get(place, self.tables.DEFAULT)

    def at(self, place: str) -> pd.DataFrame:
        """The printed cells of a place. Raises `InputError` for one that the paper does not number."""
        cells = self.cells[self.cells["place"] == place]
        if cells.empty:
            raise unknown("place", place, list(dict.fromkeys(self.cells["place"])))
        return cells

    def measured(self, cell: Mapping[str, Any]) -> Estimate | None:
        """The estimate beside a printed cell."""
        if not cell["quantity"]:
            return None
        selection = Selection(cell["arm"], cell["quantity"], cell["part"], cell["x"], self.grid(cell["place"]))
        return estimate(self.rows, selection, cell["unit"])

    def frame(self, place: str) -> pd.DataFrame:
        """The cells of a place, long: what is printed and measured, with interval, n and why nothing was measured."""
        rows = []
        for cell in self.at(place).to_dict("records"):
            measurement = self.measured(cell)
            row = {name: cell[name] for name in ("place", "row", "column", "printed", "unit")}
            if measurement is not None:
                row |= {"measured": measurement.mean, "low": measurement.low, "high": measurement.high,
                        "n": " / ".join(map(str, measurement.n))}  # fmt: skip
            rows.append(row | {"why": "" if measurement is not None else cell["why"] or "not measured"})
        return pd.DataFrame(rows).reindex(
            columns=["place", "row", "column", "printed", "measured", "low", "high", "n", "unit", "why"]
        )

    def table(self, place: str) -> str:
        """Markdown: a row per printed row, under each printed column what was measured (95 % over seeds)."""
        cells = self.at(place)
        columns, labels = list(dict.fromkeys(cells["column"])), list(dict.fromkeys(cells["row"]))
        texts = {(cell["row"], cell["column"]): self._cell(cell, cells) for cell in cells.to_dict("records")}
        head, lines = [""], [[row] for row in labels]
        for column in columns:
            parts = [texts.get((row, column), ("", "")) for row in labels]
            names = [f"{column}, printed", "measured (95 %)"]
            if not any(value for _, value in parts):
                names, parts = [column], [(text,) for text, _ in parts]
            elif not any(text for text, _ in parts):
                names, parts = [f"{column}, measured (95 %)"], [(value,) for _, value in parts]
            head += names
            for line, part in zip(lines, parts, strict=True):
                line += part
        return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *lines])

    def _cell(self, cell: Mapping[str, Any], cells: pd.DataFrame) -> tuple[str, ...]:
        """What is printed, and what was measured, written as it is printed (of another arm, where it is not here)."""
        measurement = self.measured(cell)
        if measurement is None:
            return cell["printed"], f"*{cell['why']}*" if cell["why"] else "*not measured*" if cell["quantity"] else ""
        is_same = (cells[["quantity", "part", "unit"]] == [cell["quantity"], cell["part"], cell["unit"]]).all(axis=1)
        example = cell["printed"] or next((text for text in cells.loc[is_same, "printed"] if text), "")
        return cell["printed"], with_interval(measurement, form(example, cell["unit"]))

    def value(
        self, arm: str, quantity: str, part: str = "", x: float = float("nan"), *, like: str = "0.000",
        unit: str = "", grid: str = "", interval: bool = True,
    ) -> str:  # fmt: skip
        """An estimate in a sentence. Raises `InputError` where nothing was measured."""
        measurement = self.estimate(arm, quantity, part, x, unit=unit, grid=grid)
        number_form = form(like, unit)
        return with_interval(measurement, number_form) if interval else written(measurement.mean, number_form)

    def estimate(
        self, arm: str, quantity: str, part: str = "", x: float = float("nan"), *, unit: str = "", grid: str = ""
    ) -> Estimate:
        """An estimate by its names. Raises `InputError` where nothing was measured."""
        selection = Selection(arm, quantity, part, x, OWN if self.own is not None else grid or self.tables.DEFAULT)
        measurement = estimate(self.rows, selection, unit)
        if measurement is None:
            raise InputError(f"{self.paper}: no rows of {selection}")
        return measurement

    def present(self, arms: Mapping[str, str], quantity: str, grid: str = "") -> dict[str, str]:
        """Those arms, with their names, of which a quantity was measured. Raises `InputError` without any."""
        grid = OWN if self.own is not None else grid or self.tables.DEFAULT
        measured_arms = set(self.rows.loc[(self.rows["quantity"] == quantity) & (self.rows["grid"] == grid), "arm"])
        if not measured_arms & set(arms):
            raise InputError(f"no {quantity} of {', '.join(arms)} was measured; runs are called ARM-sSEED")
        return {arm: name for arm, name in arms.items() if arm in measured_arms}

    def printed(self, place: str, row: str, column: str) -> str:
        """A printed cell."""
        cells = self.at(place)
        matches = cells[(cells["row"] == row) & (cells["column"] == column)]
        if len(matches) != 1:
            raise InputError(f"{place} has {len(matches)} cells {row!r}, {column!r}")
        return str(matches["printed"].iloc[0])

    def dose(self, place: str) -> str:
        """Seeds, tokens, parameters and text of what a place shows."""
        rows, cells = self.rows[self.rows["grid"] == self.grid(place)], self.at(place)
        arms = {arm for cell in cells["arm"] for arm in cell.replace(" / ", " − ").split(" − ")}
        rows = rows[rows["arm"].isin(arms)] if arms - {""} else rows
        shown = rows[rows["quantity"].isin(set(cells["quantity"]) - {"parameters"})]
        seeds = (shown if len(shown) else rows.assign(quantity="")).groupby(["arm", "quantity"])["seed"].nunique()
        tokens, size = (rows[name].dropna() / MILLION for name in ("tokens", "parameters"))
        parts = [f"{_span(seeds, '{:.0f}')} training seed{'s' if seeds.max() > 1 else ''}"]
        parts += [f"{_span(tokens, '{:.1f}')} M tokens of {', '.join(filter(None, dict.fromkeys(rows['text'])))}"]
        return ", ".join([*parts, *([f"{_span(size, '{:.2f}')} M parameters"] if len(size) else [])])

    def figure(self, place: str) -> str:
        """Draw a figure into results/PAPER/, and Markdown that shows it with its caption."""
        name = place.lower().replace(" ", "_") + ".svg"
        draw = self.figures[place]
        self.draw(place, RESULTS / self.paper / name)
        title = (draw.__doc__ or "").strip().splitlines()[0]
        return f"![{place}: {title}]({self.paper}/{name})\n\n*{place}. {title} {self.dose(place)}.*"

    @cached_property
    def figures(self) -> Mapping[str, Any]:
        """Place -> function that draws it: FIGURES of papers/PAPER/figures.py."""
        return dict(import_module(f"streamscope.papers.{self.paper}.figures").FIGURES)

    def draw(self, place: str, path: Path) -> None:
        """Draw one figure to a file, by its suffix. Raises `InputError` for an unknown figure or format."""
        if place not in self.figures:
            raise unknown("figure", place, list(self.figures))
        with style():
            save(self.figures[place](self), path)

    def verdicts(self) -> pd.DataFrame:
        """The registered claims of which at least two seeds of every arm are measured, judged."""
        claims, seeds, _ = registered(self.paper)
        rows = pd.read_csv(RESULTS / "differences" / "measured.csv")
        counts = rows[rows["seed"].isin(seeds)].groupby(["arm", "quantity"])["seed"].nunique()
        able = [c for c in claims if all(counts.get((arm, c["quantity"]), 0) > 1 for arm in c["arms"])]
        return judge(able, rows, seeds).set_index("claim") if able else pd.DataFrame()

    def primary(self) -> str:
        """Markdown of the registered claims with what the columns mean; those not measured yet say so."""
        verdicts = self.verdicts()
        head = "| claim | verdict | arms | quantity | the paper | n | difference (95 %) | p | detectable |"
        lines = [head, "|" + "---|" * 9]
        for claim in registered(self.paper)[0]:
            name, arms, paper = claim["id"], " − ".join(claim["arms"]), " against ".join(map(str, claim["printed"]))
            if len(claim["arms"]) == 4:  # a difference of two differences
                arms = "({} − {}) − ({} − {})".format(*claim["arms"])
                paper = "{} − {} against {} − {}".format(*claim["printed"])
            if claim.get("test") == "equivalence":
                paper += f", equal within {claim['margin']:g}"
            if name not in verdicts.index:
                lines.append(f"| {name} | not measured yet | {arms} | {claim['quantity']} | {paper} | | | | |")
                continue
            row, unit = verdicts.loc[name], " %" if claim.get("relative") else ""
            ends = [f"{row[end]:.3g}".replace("-", "−") for end in ("difference", "low", "high")]
            lines.append(
                f"| {name} | {row['verdict']} | {arms} | {claim['quantity']} | {paper} | {row['n']} | "
                f"{ends[0]}{unit} ({ends[1]} to {ends[2]}) | {row['p_holm']:.2g} | {row['shown']:.2g}{unit} |"
            )
        lines.append(f"\n{LEGEND}")
        most = len(registered(self.paper)[1])
        if len(verdicts) and any(int(n) < most for row in verdicts["n"] for n in row.split(" / ")):
            lines.append(
                f"\n*Interim: {most} seeds are registered for each arm; a verdict stands when they are measured.*"
            )
        return "\n".join(lines)

    def matrix(self, quantities: Mapping[str, str], against: str, arms: Sequence[str] = ()) -> str:
        """Markdown: a row per arm, a column per quantity with its number format; in bold what differs from `against`
        (Welch, p ≤ .05 by Holm over the arms of a quantity)."""
        grid = OWN if self.own is not None else self.tables.DEFAULT
        rows = self.rows[self.rows["grid"] == grid]
        arms = [arm for arm in arms or dict.fromkeys(rows["arm"]) if arm in set(rows["arm"])]
        lines: dict[str, list[str]] = {arm: [f"`{arm}`"] for arm in arms}
        for quantity, example in quantities.items():
            means = {arm: estimate(rows, Selection(arm, quantity)) for arm in arms}
            differences = {a: estimate(rows, Selection(f"{a} − {against}", quantity)) for a in arms if a != against}
            able = {arm: m.p for arm, m in differences.items() if m is not None and m.p == m.p}
            p = dict(zip(able, holm(np.array(list(able.values()))), strict=True)) if able else {}
            for arm, measurement in means.items():
                text = "" if measurement is None else written(measurement.mean, form(example))
                lines[arm].append(f"**{text}**" if p.get(arm, 1.0) <= LEVEL else text)
        head = ["", *quantities]
        return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *lines.values()])

    def text(self) -> str:
        """The page."""
        source = (PAPERS / self.paper / "page.md").read_text("utf-8")
        calls = {
            name: getattr(self, name)
            for name in ("table", "figure", "value", "estimate", "printed", "dose", "primary", "matrix")
        }
        environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True)
        return environment.from_string(source).render(paper=self.paper, **calls)

    def write(self) -> Path:
        """Write results/PAPER.md and its figures."""
        path = RESULTS / f"{self.paper}.md"
        write_text(path, self.text())
        return path


def _span(values: pd.Series, pattern: str) -> str:
    ends = [pattern.format(end) for end in (values.min(), values.max())]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def add(paper: str, folders: Sequence[Path], grid: str, text: str) -> str:
    """Measure runs and add their rows to the long table of a paper, but those whose weights it has."""
    path = RESULTS / paper / "measured.parquet"
    table = pd.read_parquet(path)
    known_weights = set(table.loc[table["grid"] == grid, "weights"])
    ended = [folder for folder in folders if read_manifest(folder).get("outcome") == "completed"]
    new = [folder for folder in ended if read_manifest(folder)["weights"] not in known_weights]
    measures = import_module(f"streamscope.papers.{paper}.tables").MEASURES
    for folder in new:
        rows = measure_runs([folder], measures, text, f"python -m papers {paper} --runs …").assign(grid=grid)
        is_old = (
            (table["grid"] == grid) & (table["arm"] == rows["arm"].iloc[0]) & (table["seed"] == rows["seed"].iloc[0])
        )
        table = pd.concat([table[~is_old], rows], ignore_index=True)
        write_atomically(path, partial(table.to_parquet, index=False, compression="zstd"))
    note = f"; {len(folders) - len(ended)} have not ended" if len(ended) < len(folders) else ""
    return f"{len(new)} of {len(folders)} runs measured{note}"


def index() -> str:
    """Markdown of the front page: what was decided of every paper, and where to read it."""
    head = f"| paper | registered claims | {' | '.join(DECIDED)} | not decided | sentences decided |"
    lines = [head, "|" + "---|" * 7]
    for paper in NAMES:
        verdicts = Page(paper).verdicts()
        words = verdicts["verdict"].to_list() if len(verdicts) else []
        counts = [words.count(word) for word in DECIDED]
        claims = len(registered(paper)[0])
        table = sentences(paper)["verdict"]
        sentence_count = f"{table.isin((*DECIDED, 'different value')).sum()} of {len(table)}"
        cells = [f"[{paper.upper()}]({paper}.md)", claims, *counts, claims - sum(counts), sentence_count]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return (PAPERS / "index.md").read_text("utf-8").replace("{{ table }}", "\n".join(lines))
