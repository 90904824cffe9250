"""One HTML page of results or tables: light and dark, wide and narrow, on paper, without a network.

    section = Section("Where do heads look?", ["PDS of every head."], [result], commands=["python -m probes.pds"])
    write_page(Path("index.html"), "Heads", "What they look at.", [section])

Every text is escaped; `markupsafe.Markup` is HTML already. Plotly stands in the page once, where it has a figure.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from streamscope.cli.disk import write_text
from streamscope.instruments.result import Result
from streamscope.instruments.table import Table

HERE = Path(__file__).parent
CSS = HERE / "page.css"
TOP = 36
"""Pixels above a figure, whose title is text of the page."""


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it: paragraphs, results with their figures, other tables, commands to copy."""

    title: str
    text: Sequence[str] = ()
    results: Sequence[Result] = ()
    figures: Sequence[str | None] = (None,)
    """Names of figures of every result; None is the first that has something to show."""
    table: str | None = None
    """Name of the table of every result that is open; None is the main one. A click opens the others."""
    tables: Sequence[Table] = ()
    commands: Sequence[str] = ()

    def plots(self, number: int) -> Iterator[tuple[Markup, Markup]]:
        """Caption and HTML of every figure of section `number`, as wide as the page."""
        figures = [result.figure(name) for result in self.results for name in self.figures]
        for i, figure in enumerate(figures):
            caption = Markup(figure.layout.title.text.replace("</b><br>", "</b> ").replace("<br>", " "))
            height = (figure.layout.height or 450) - (figure.layout.margin.t or TOP) + TOP
            figure.update_layout(title=None, width=None, height=height, margin={"t": TOP})
            config = {"displayModeBar": False, "responsive": True}
            yield (
                caption,
                Markup(figure.to_html(config, include_plotlyjs=False, full_html=False, div_id=f"figure-{number}-{i}")),
            )

    def shown(self) -> list[Table]:
        """The open table of every result, and the other tables."""
        return [*(result.table(self.table) for result in self.results), *self.tables]

    def folded(self) -> list[Table]:
        """The further tables of the results."""
        table_ids = [id(table) for table in self.shown()]
        return [table for result in self.results for table in result.tables.values() if id(table) not in table_ids]

    def legend(self) -> list[str]:
        """What the columns of the open tables mean, a line each."""
        lines = (line for table in self.shown() for line in table.column_legend().split("\n"))
        return list(dict.fromkeys(lines)) if self.results else []


def html(title: str, lead: str, sections: Sequence[Section], footer: str = "") -> str:
    """The page; `footer` says how it was made."""
    plotly = Markup(get_plotlyjs()) if any(section.results for section in sections) else ""
    css = Markup(CSS.read_text(encoding="utf-8"))
    templates = Environment(
        loader=FileSystemLoader(HERE), undefined=StrictUndefined, autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    page: str = templates.get_template("web_page.html.j2").render(
        title=title, lead=lead, sections=sections, footer=footer, css=css, plotly=plotly
    )  # fmt: skip
    return page + "\n"


def write_page(path: Path, title: str, lead: str, sections: Sequence[Section], footer: str = "") -> None:
    """Write the page, complete when it bears its name. Raises `InputError` for a path that cannot be written."""
    write_text(path, html(title, lead, sections, footer))
