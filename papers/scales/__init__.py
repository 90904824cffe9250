"""The models that papers need at a scale: trained where they are missing, then measured once, judged, written.

    python -m papers.lfa --scale zoo                                        into runs/zoo, with a page
    python -m papers.krom --scale paper --train device=cuda --figure all    the printed sizes, with the paper's figures
    python -m papers.hdpl --scale tiny --seeds 2                            a look at what it does, in a minute
    python -m papers.scales zoo                                             trains the models of all papers

Which models a paper needs stands in its `grid.toml`, next to the code that compares them: arms, seeds, and what each
scale changes of the training. Runs are cells of a grid (`models.grid`): stopped, the same command goes on, more --seeds
add runs, and several commands on one folder share the work. All papers share a folder, and a training that two of them
need, or that is one of the bundled models, is there once.
What was measured is measured again only where weights, options
or code have changed (`measured.json` in the page's folder); else its tables are judged and its page is written again.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from typing import TypeVar

from streamscope.cli.errors import InputError
from streamscope.cli.parse import parse
from streamscope.papers.figures import drawn
from streamscope.papers.figures.options import FigureOptions
from streamscope.papers.scales.options import ScaleOptions

Options = TypeVar("Options", bound=ScaleOptions)


@contextmanager
def at_scale(paper: str, options: Options) -> Iterator[Options]:
    """The options of a comparison: with --scale the runs that it trained, or the tables that it measured before.

    Without --scale the options are those given. Figures that are asked for are drawn at the end, of the new tables, and
    of what single models are measured for (`singles`). Raises `InputError` for runs or tables with --scale, with the
    line of a training that failed, for figures that the paper does not have, before anything is trained, and for
    figures of runs whose tables go nowhere.
    """
    now, runs = options, options.runs
    figures = isinstance(now, FigureOptions) and bool(now.figure or now.table)
    if figures:
        from streamscope.papers.figures.requests import check

        check(paper, now)
    if options.scale is not None:
        from streamscope.papers.scales.measured import known, remember
        from streamscope.papers.scales.training import runs_of

        trained = runs_of(paper, options)
        now, runs = known(trained), trained.runs
    if figures and now.out is None:
        raise InputError("--figure and --table of runs are drawn of their tables: say with --out FOLDER where these go")
    yield now
    if now.scale is not None and now.runs:
        remember(now)
    if isinstance(now, FigureOptions) and figures:
        from streamscope.papers.figures.requests import asked
        from streamscope.papers.scales import singles

        assert now.out is not None
        if now.runs:
            singles.forget(now.out)
        singles.measure(paper, asked(paper, now.figure), runs, now.out, getattr(now, "device", "auto"))
        drawn(paper, replace(now, runs=(), tables=now.out))


def comparison_main(options: type[Options], doc: str | None, example: str) -> Callable[..., None]:
    """`main(argv=None)` of a paper: figures are drawn, or runs trained (with --scale), measured, judged and written.

    `example` begins with the module, whose `report` has the `COMPARISON`; it and what else is heavy is imported then.
    """
    module = example.partition(" ")[0]
    paper = module.removeprefix("papers.")

    def main(argv: Sequence[str] | None = None) -> None:
        """Parse, measure what is not measured yet or read what was, print, write."""
        parsed = parse(options, argv, doc)
        if isinstance(parsed, FigureOptions) and parsed.scale is None and drawn(paper, parsed):
            return
        with at_scale(paper, parsed) as now:
            now.check(example)

            from streamscope.papers.comparison.report import compare

            compare(import_module(f"streamscope.{module}.report").COMPARISON, now)

    return main
