"""Find, draw and write what --figure and --table ask for, or say why it cannot be drawn."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd

from streamscope.cli.disk import check_writable, write_text
from streamscope.cli.errors import InputError, unknown
from streamscope.instruments.figures import check_figure, write_figure
from streamscope.instruments.table import Table, read_parquet
from streamscope.papers.claims.judged import judged
from streamscope.papers.claims.table import measured
from streamscope.papers.claims.words import SMALL
from streamscope.papers.figures.architecture import architecture
from streamscope.papers.figures.layouts import KEY, arranged, layouts, others
from streamscope.papers.figures.options import RESULTS, SINGLE, OwnTable, PaperFigure
from streamscope.papers.figures.style import Style
from streamscope.papers.pages.markdown import table as markdown
from streamscope.papers.pages.web_page import Section, write_page

LEDGER = Path(__file__).resolve().parents[1] / "claims"
FIGURES = Path(__file__).with_name("figures.toml")
ALL, LIST = "all", "list"
NAMED = {"krom": {"Bias sweep": "sweep", "Architecture comparison": "architectures", "What replicates": "replicates"}}
"""Tables that bear no number: where they stand, and what --table calls them."""


def figures_of(paper: str) -> dict[str, PaperFigure]:
    """The figures of a paper by number, as figures.toml declares them."""
    module, found = import_module(f"streamscope.papers.figures.{paper}"), {}
    for one in tomllib.loads(FIGURES.read_text(encoding="utf-8"))[paper]:
        draw, given = one.pop("draw"), one.pop("with", None)
        draw = architecture if draw == "architecture" else getattr(module, draw)
        lists: dict[str, Any] = {name: tuple(one.pop(name, ())) for name in ("tables", "otherwise")}
        found[one["number"]] = PaperFigure(**one, draw=draw if given is None else draw(given), **lists)
    return found


def own_tables(paper: str) -> dict[str, OwnTable]:
    """What is put below tables of a paper, by their numbers."""
    own: dict[str, OwnTable] = getattr(import_module(f"streamscope.papers.figures.{paper}"), "TABLES", {})
    return own


def paths_of(figure: PaperFigure | OwnTable, folder: Path | None) -> list[Path]:
    """The tables of a figure or table, shipped or of `folder`: its own, there or among those of single models, or those
    in their place; of the first set that is whole, else its own."""

    def of(names: Sequence[str], below: str = "") -> list[Path]:
        files = [f"{name}.parquet" for name in names]
        return [RESULTS / file if folder is None else folder / below / Path(file).name for file in files]

    sets = [of(figure.tables), *([] if folder is None else [of(figure.tables, SINGLE)]), of(figure.otherwise)]
    return next((paths for paths in sets if paths and all(path.is_file() for path in paths)), sets[0])


def read(figure: PaperFigure | OwnTable, what: str, folder: Path | None) -> dict[str, pd.DataFrame]:
    """The tables of `what`, a figure or a table, by name: shipped, or of `folder`.

    Raises `InputError` for one that is missing.
    """
    found: dict[str, pd.DataFrame] = {}
    for path in paths_of(figure, folder):
        if not path.is_file():
            where = "the clone has the tables; name a folder with --tables" if folder is None else "it has other tables"
            raise InputError(f"{what} is drawn of {path.name}, and there is no {path}: {where}")
        found[path.stem] = read_parquet(path).to_pandas()
    return found


def draw(figure: PaperFigure, style: Style, folder: Path | None = None) -> Any:
    """The figure (plotly). Raises `InputError` where it cannot be drawn, with what would make its data."""
    tables = read(figure, f"figure {figure.number}", folder)
    style = replace(style, width="page") if figure.wide else style
    try:
        return figure.draw(tables, style)
    except KeyError as error:
        if folder is None:
            raise
        names = ", ".join(f"{name}.parquet" for name in tables)
        raise InputError(f"figure {figure.number} is drawn of {error}, which is not in {folder}: {names}") from None


def show(paper: str, options: Any) -> None:
    """Draw the figures, print the tables and write them where --out is given."""
    check(paper, options)
    known, claims = figures_of(paper), claims_of(paper) if options.table else pd.DataFrame()
    printed = list(dict.fromkeys(claims["table"])) if len(claims) else []
    if LIST in options.figure:
        Table.plain(listed(known), f"figures of {paper}").print()
    if LIST in options.table:
        found = claims["table"].value_counts().reindex(printed).rename("claims").reset_index()
        Table.plain(found, f"tables of {paper}").print()
    numbers = printed if ALL in options.table else [one for one in options.table if one != LIST]
    write_tables(paper, claims, list(dict.fromkeys(numbers)), options)
    numbers = [one for one in options.figure if one not in (ALL, LIST)]
    if ALL in options.figure:
        numbers = drawable(known, options.tables)
    write(paper, {number: known[number] for number in dict.fromkeys(numbers)}, options)


def check(paper: str, options: Any) -> None:
    """Raises `InputError` for a figure or a table that the paper does not have."""
    tables = list(dict.fromkeys(claims_of(paper)["table"])) if options.table else []
    for what, asked, there in (("figure", options.figure, list(figures_of(paper))), ("table", options.table, tables)):
        if strange := [one for one in asked if one not in (ALL, LIST, *there)]:
            raise unknown(f"{what} of {paper}", strange[0], [*there, ALL, LIST])


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
    claims that it does not hold in a cell below, and what our own models have in its place; as csv every claim in a
    line, for other programs."""
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
        if own := own_tables(paper).get(number):
            parts[f"{paper}, table {number}: {own.title}"] = own.make(read(own, f"table {number}", None))
        tables = {heading: Table.plain(rows, heading) for heading, rows in parts.items()}
        for heading, table in tables.items():
            table.print()
            if layout and heading == title:
                print(KEY)
        if options.out is None:
            continue
        if options.table_format == "csv":
            write_text(paths[number], table_of(mine).to_csv(index=False))
        elif options.table_format == "md":
            both = [markdown(list(table), table.astype(str).to_numpy().tolist()) for table in parts.values()]
            text = "\n\n".join(f"## {heading}\n\n{rows}" for heading, rows in zip(parts, both, strict=True))
            write_text(paths[number], text.removeprefix("#") + (f"\n\n{KEY}\n" if layout else "\n"))
        else:
            sections = [Section(heading, tables=[one]) for heading, one in tables.items()]
            lead = SMALL.replace("*", "") + (f" {KEY}." if layout else "")
            write_page(paths[number], title, lead, sections, f"python -m papers.{paper} --table {number}")
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
    """What there is: number, title, and what it is drawn of or what stands in its place."""

    def how(one: PaperFigure) -> str:
        where = f", else from {', '.join(one.otherwise)}" if one.otherwise else ""
        return f"drawn from {', '.join(one.tables) or 'the configuration'}{where}"

    rows = [(one.number, one.title, how(one)) for one in known.values()]
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
    """Claims in lines: what is printed for what, what came out here with its interval and n, and the verdict."""
    rows = claims.reset_index(drop=True)
    printed = (rows["printed"] + " " + rows["unit"].where(rows["printed"] != "", "")).str.strip()
    return pd.DataFrame({
        "configuration": rows["configuration"], "printed": printed, "measured": measured(rows),
        "verdict": rows["verdict"], "claim": rows["id"],
    })  # fmt: skip
