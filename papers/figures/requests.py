"""Find, draw and write what --figure and --table ask for, or say why it cannot be drawn."""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd

from streamscope.cli.disk import check_writable, write_text
from streamscope.cli.errors import InputError, unknown
from streamscope.instruments.figures import check_figure, write_figure
from streamscope.instruments.table import Table, read_parquet
from streamscope.models.checkpoint import STORIES
from streamscope.models.config.presets import PRESETS
from streamscope.papers.claims.judged import judged, measured
from streamscope.papers.claims.words import MEANINGS
from streamscope.papers.comparison.runs import Run, opened, trained_runs
from streamscope.papers.figures.architecture import architecture
from streamscope.papers.figures.options import RESULTS, SINGLE, PaperFigure
from streamscope.papers.figures.style import Style, note
from streamscope.papers.pages.folder import seeds_and_tokens
from streamscope.papers.pages.markdown import table as markdown

LEDGER = Path(__file__).resolve().parents[1] / "claims"
FIGURES = Path(__file__).with_name("figures.toml")
LAYOUTS = Path(__file__).with_name("layouts.toml")
WRITTEN = tuple(MEANINGS)[-3:]
"""Verdicts that no measurement gives."""
SIGNS = {"reproduced": "=", "different value": "≠", "contradicted": "≠", "no effect": "≈ 0", "inconclusive": "?"}
"""Behind a measured value; other verdicts stand there in words."""
KEY = "= reproduced, ≠ contradicted or different, ≈ 0 no effect, ? inconclusive; in brackets 95 % intervals"
ROW, SOURCE, PAPER, HERE = "row", "value", "printed", "here"
ALL, LIST = "all", "list"
NAMED = {"krom": {"Bias sweep": "sweep", "Architecture comparison": "architectures", "What replicates": "replicates"}}
"""Tables that bear no number: where they stand, and what --table calls them."""


def figures_of(paper: str) -> dict[str, PaperFigure]:
    """The figures of a paper by number, as figures.toml declares them."""
    module, found = import_module(f"streamscope.papers.figures.{paper}"), {}
    for one in tomllib.loads(FIGURES.read_text(encoding="utf-8"))[paper]:
        draw, given = one.pop("draw"), one.pop("with", None)
        draw = architecture if draw == "architecture" else getattr(module, draw)
        tables = tuple(one.pop("tables", ()))
        found[one["number"]] = PaperFigure(**one, draw=draw if given is None else draw(given), tables=tables)
    return found


def paths_of(figure: PaperFigure, folder: Path | None) -> list[Path]:
    """The tables of a figure: shipped, or those of `folder`; those of single models there where these are whole."""
    if folder is None:
        return [RESULTS / f"{name}.parquet" for name in figure.tables]
    names = [f"{Path(name).name}.parquet" for name in figure.tables]
    own, single = ([place / name for name in names] for place in (folder, folder / SINGLE))
    return own if all(map(Path.is_file, own)) or not all(map(Path.is_file, single)) else single


def read(figure: PaperFigure, folder: Path | None) -> dict[str, pd.DataFrame]:
    """The tables of a figure by name: shipped, or of `folder`. Raises `InputError` for one that is missing."""
    found: dict[str, pd.DataFrame] = {}
    for path in paths_of(figure, folder):
        if not path.is_file():
            if folder is None:
                where = "the clone has the tables; name a folder with --tables"
            else:
                where = "it has other tables" if any(folder.glob("*.parquet")) else f"--tables {folder} has no tables"
            raise InputError(f"figure {figure.number} is drawn of {path.name}, and there is no {path}: {where}")
        found[path.stem] = read_parquet(path).to_pandas()
    return found


def draw(figure: PaperFigure, style: Style, folder: Path | None = None) -> Any:
    """The figure (plotly). Raises `InputError` where it cannot be drawn, with what would make its data."""
    tables = read(figure, folder)
    style = replace(style, width="page") if figure.wide else style
    try:
        canvas = figure.draw(tables, style)
    except KeyError as error:
        if folder is None:
            raise
        names = ", ".join(f"{name}.parquet" for name in tables)
        raise InputError(f"figure {figure.number} is drawn of {error}, which is not in {folder}: {names}") from None
    if runs := runs_of(paths_of(figure, folder), tables.values()):
        (seeds, amount), before = seeds_and_tokens(runs), canvas.layout.title.text
        words = f"training seeds {seeds}; {amount} each" if "," in seeds else f"one training seed; {amount}"
        note(canvas, f"{before}<br>{words}" if before else words)
    return canvas


def runs_of(paths: Sequence[Path], tables: Iterable[pd.DataFrame]) -> list[Run]:
    """The trained models behind tables: the runs of their folders, or the bundled models that they name."""
    runs = [run for folder in dict.fromkeys(path.parent for path in paths) for run in trained_runs(folder)]
    named = {run for table in tables if "run" in table for run in table["run"] if str(run).startswith(STORIES)}
    return runs or [opened(run, tuple(PRESETS)) for run in sorted(named)]


def show(paper: str, options: Any) -> None:
    """Draw the figures, print the tables and write them where --out is given."""
    claims, known = check(paper, options), figures_of(paper)
    printed = list(dict.fromkeys(claims["table"]))
    if LIST in options.figure:
        Table.plain(listed(known), f"figures of {paper}").print()
    if LIST in options.table:
        found = claims["table"].value_counts().reindex(printed).rename("claims").reset_index()
        Table.plain(found, f"tables of {paper}").print()
    numbers = printed if ALL in options.table else [one for one in options.table if one != LIST]
    write_tables(paper, claims, list(dict.fromkeys(numbers)), options)
    given = [one for one in options.figure if one != LIST]
    numbers = drawable(known, options.tables) if ALL in given else given
    write(paper, {number: known[number] for number in dict.fromkeys(numbers)}, options)


def check(paper: str, options: Any) -> pd.DataFrame:
    """The claims in tables of the paper, where --table asks for any. Raises `InputError` for a figure or a table that
    the paper does not have."""
    claims = claims_of(paper) if options.table else pd.DataFrame({"table": []})
    for what, there in (("figure", list(figures_of(paper))), ("table", list(dict.fromkeys(claims["table"])))):
        if strange := [one for one in getattr(options, what) if one not in (ALL, LIST, *there)]:
            raise unknown(f"{what} of {paper}", strange[0], [*there, ALL, LIST])
    return claims


def asked(paper: str, numbers: Sequence[str]) -> list[PaperFigure]:
    """The figures of these numbers; of `all` every one."""
    return [one for number, one in figures_of(paper).items() if ALL in numbers or number in numbers]


def drawable(known: Mapping[str, PaperFigure], folder: Path | None) -> list[str]:
    """The figures whose tables are shipped, or of a folder those of its tables; says which others there are.

    Raises `InputError` where there is none.
    """
    if folder is None:
        have = [*known]
    else:
        have = [
            number for number, one in known.items()
            if one.tables and all(path.is_file() for path in paths_of(one, folder))
        ]  # fmt: skip
    if not have:
        raise InputError(f"{folder} has the tables of none of the figures: --figure list says which they are drawn of")
    if left := [number for number, one in known.items() if one.tables and number not in have]:
        print(f"not drawn, for want of tables: {', '.join(left)} (--figure list says why)")
    return have


def write_tables(paper: str, claims: pd.DataFrame, numbers: Sequence[str], options: Any) -> None:
    """Every table on the terminal, and into --out, a folder, where that is given: as the paper arranges it, and the
    claims that it does not hold in a cell below; as csv every claim in a line, for other programs."""
    paths = {number: (options.out or Path()) / f"{paper}-table-{number}.{options.table_format}" for number in numbers}
    if options.out is not None:
        for path in paths.values():
            check_writable(path)
    for number in numbers:
        mine, layout = claims[claims["table"] == number], layouts().get(paper, {}).get(number)
        title = f"{paper}, table {number}: printed and measured"
        parts = {title: arranged(claims, layout)} if layout else {}
        rest = others(mine, layout) if layout else mine
        if len(rest):
            parts[f"{paper}, table {number}: other claims about it" if layout else title] = table_of(rest)
        tables = {heading: Table.plain(rows, heading) for heading, rows in parts.items()}
        for heading, table in tables.items():
            table.print()
            if layout and heading == title:
                print(KEY)
        if options.out is None:
            continue
        if options.table_format == "csv":
            write_text(paths[number], table_of(mine).to_csv(index=False))
        else:
            both = [markdown(list(table), table.astype(str).to_numpy().tolist()) for table in parts.values()]
            text = "\n\n".join(f"## {heading}\n\n{rows}" for heading, rows in zip(parts, both, strict=True))
            write_text(paths[number], text.removeprefix("#") + (f"\n\n{KEY}\n" if layout else "\n"))
        print(f"written {paths[number]}")


def write(paper: str, chosen: Mapping[str, PaperFigure], options: Any) -> None:
    """Every figure into --out, a folder; all are drawn before the first is written.

    With `all`, a figure for which these tables hold no case is left out, and why is said; raises `InputError` where one
    was asked for by its number, or none can be drawn.
    """
    folder, style = options.out or Path(), Style(options.width, options.grey)
    drawn: dict[str, Any] = {}
    why = ""
    for number, figure in chosen.items():
        try:
            drawn[number] = draw(figure, style, options.tables)
        except InputError as error:
            if ALL not in options.figure or number in options.figure:
                raise
            why = f"figure {number} is not drawn: {error}"
            print(why)
    if why and not drawn:
        raise InputError(f"no figure can be drawn of these tables; {why}")
    paths = {number: check_figure(folder / f"{paper}-figure-{number}.{options.format}") for number in drawn}
    for number, figure in drawn.items():
        write_figure(figure, paths[number])
        print(f"written {paths[number]}")


def listed(known: Mapping[str, PaperFigure]) -> pd.DataFrame:
    """What there is: number, title, and what it is drawn of."""
    rows = [
        (one.number, one.title, f"drawn from {', '.join(one.tables) or 'the configuration'}") for one in known.values()
    ]
    return pd.DataFrame(rows, columns=["figure", "title", "how"])


def claims_of(paper: str) -> pd.DataFrame:
    """The claims of the ledger that stand in tables of the paper, judged, in the order of the tables, whose numbers (or
    names, where it has none) are in `table`."""
    rows = judged(LEDGER, RESULTS)
    rows = rows[rows["paper"] == paper]
    names = NAMED.get(paper, {})
    found = rows["place"].str.findall("|".join([r"Table \d+", *names]))
    rows = rows.assign(table=found.map(lambda places: list(dict.fromkeys(places)))).explode("table")
    rows = rows[rows["table"].notna()]
    rows["table"] = rows["table"].map(lambda place: names.get(place, place.removeprefix("Table ")))
    order = rows["table"].map(lambda number: int(number) if number.isdigit() else list(names.values()).index(number))
    return rows.iloc[order.argsort(kind="stable")].reset_index(drop=True)


def table_of(claims: pd.DataFrame) -> pd.DataFrame:
    """Claims in lines: what is printed for what, what came out here with its interval, n and unit, and the verdict."""
    rows = claims.reset_index(drop=True)
    return pd.DataFrame({
        "configuration": rows["configuration"], "printed": rows["printed"], "measured": measured(rows),
        "unit": rows["unit"], "verdict": rows["verdict"], "claim": rows["id"],
    })  # fmt: skip


# ---- tables as the papers print them, from layouts.toml ----------------------------------------


@cache
def layouts() -> Mapping[str, Mapping[str, Any]]:
    """Paper -> table -> its layout."""
    return tomllib.loads(LAYOUTS.read_text(encoding="utf-8"))


def cells(layout: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """(row, column) -> the id of its claim, as the layout has them."""
    blank, other = layout.get("blank", ()), layout.get("other", {})
    found = {}
    for row, name in layout["rows"].items():
        for column, pattern in layout["columns"].items():
            if (place := f"{row}, {column}") not in blank:
                found[row, column] = other.get(place) or pattern.replace("ROW", name)
    return found


def arranged(claims: pd.DataFrame, layout: Mapping[str, Any]) -> pd.DataFrame:
    """The table as printed: of every row what the paper has, and below it what was measured here with its verdict.

    `claims` are judged rows of the ledger that hold those of the layout.
    """
    judged = claims.drop_duplicates("id").assign(cell=lambda rows: measured(rows)).set_index("id")
    lines = []
    for row in layout["rows"]:
        printed, here = {ROW: row, SOURCE: PAPER}, {ROW: "", SOURCE: HERE}
        for column in layout["columns"]:
            name = cells(layout).get((row, column))
            one = None if name is None else judged.loc[name]
            printed[column] = "" if one is None else one["printed"]
            here[column] = "" if one is None else measured_cell(one)
        lines += [printed, here]
    return pd.DataFrame(lines)


def measured_cell(one: "pd.Series[Any]") -> str:
    """What was measured and the sign of its verdict, or the verdict in words; of a property its reason as well."""
    verdict = str(one["verdict"])
    if not one["cell"]:
        return f"{verdict}: {one['finding']}" if one["kind"] == "property" and verdict in WRITTEN else verdict
    return f"{one['cell']} {SIGNS[verdict]}" if verdict in SIGNS else f"{one['cell']}, {verdict}"


def others(claims: pd.DataFrame, layout: Mapping[str, Any]) -> pd.DataFrame:
    """Claims that stand in the table, or are read off it, and have no cell of their own."""
    return claims[~claims["id"].isin(set(cells(layout).values()))]
