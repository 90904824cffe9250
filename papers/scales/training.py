"""The runs that the papers' comparisons need at a scale: cells of a grid, trained where they are missing."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from streamscope.cli.errors import InputError, unknown
from streamscope.cli.ledger import Ledger
from streamscope.models.grid import Cell, begin, cells_of, read_grid, reopen, with_options, work
from streamscope.papers.comparison import TRAINED
from streamscope.papers.figures.options import RESULTS
from streamscope.papers.scales.options import ScaleOptions

Options = TypeVar("Options", bound=ScaleOptions)
PAPERS = Path(__file__).resolve().parents[1]


Paper = Literal["lfa", "pls", "dst", "hdpl", "krom", "scorecard"]
ORDER: tuple[Paper, ...] = get_args(Paper)
"""Of the papers, where all are trained: those whose claims wait for most come first."""


def cells(paper: str, scale: str, seeds: int | None = None, given: Sequence[str] = ()) -> list[Cell]:
    """The runs of a paper at a scale: every arm of its grid.toml, for seed 0 first, then for the next ones.

    `seeds` are as many as grid.toml says where it is None. An arm that has `scales` is one of these alone, as where a
    width divides by no such number of heads, and an arm of fewer `seeds` has no more. Names begin with the paper's, so
    that papers can share a folder.
    `given` are KEY=VALUE that replace the recipe's values (`models.grid.with_options`). Raises `InputError` for a scale
    that scales.toml does not have, and as `with_options` does.
    """
    shared, grid = read_grid(PAPERS / "scales" / "scales.toml"), read_grid(PAPERS / paper / "grid.toml")
    if scale not in shared:
        raise unknown("scale", scale, list(shared))
    train = _recipe(shared, grid.get("scales", {}), scale)
    arms = [dict(arm) for arm in grid["arms"]]
    mine = [arm for arm in arms if scale in arm.pop("scales", (scale,))]
    most = seeds or grid["seeds"]
    parts = [{**arm, "seeds": [s]} for s in range(most) for arm in mine if s < arm.get("seeds", most)]
    grid_cells = cells_of({"train": train, "parts": parts})
    names = [c.name if c.name.startswith(f"{paper}-") else f"{paper}-{c.name}" for c in grid_cells]
    return [replace(with_options(cell, given), name=name) for name, cell in zip(names, grid_cells, strict=True)]


def _recipe(shared: dict[str, Any], own: dict[str, Any], scale: str) -> dict[str, Any]:
    """Options of the trainings at a scale: what all papers share, then the paper's own.

    A scale that is `like` another has its recipe, and its size of models, but for what it says itself.
    """
    recipe = dict(shared[scale])
    size = recipe.pop("like", scale)
    return {"scale": size, **shared[size], **own.get(size, {}), **recipe, **own.get(scale, {})}


def all_cells(papers: Sequence[str], scale: str, seeds: int | None = None, given: Sequence[str] = ()) -> list[Cell]:
    """The runs of several papers: seed 0 of each in their order, then the next seeds."""
    by_seed = [(int(cell.argv[-1]), cell) for paper in papers for cell in cells(paper, scale, seeds, given)]
    return [cell for _, cell in sorted(by_seed, key=lambda pair: pair[0])]


def published(folder: Path) -> dict[str, str]:
    """Name of a run of the folder -> "measured in results/…", where `results` has measurements of it."""
    from streamscope.papers.comparison.runs import trained_runs

    return {
        run.folder.name: f"measured in results/{page.parent.name}"
        for page in sorted(RESULTS.glob(f"*/{TRAINED}"))
        for run in trained_runs(page.parent)
        if run.folder == folder / run.folder.name
    }


def runs_of(paper: str, options: Options) -> Options:
    """The options with all runs of the paper, trained where they were missing, and with a folder for the page.

    Raises `InputError` for runs or tables given with --scale, and with the line of a training that failed.
    """
    scale = options.scale
    assert scale is not None
    if options.runs or options.tables is not None:
        raise InputError(f"--scale {scale} trains the runs itself: give it, run folders or --tables, one of them")
    folder = options.folder if options.folder is not None else Path("runs") / scale
    now = replace(options, out=options.out if options.out is not None else folder / f"page-{paper}")
    now.writable()
    wanted = begin(cells(paper, scale, options.seeds, options.train), folder)
    reopen(wanted, folder, retry=options.retry)
    work(wanted, folder)
    ledger = Ledger(folder / ".ledger")
    for cell in wanted:
        state = ledger.state(cell.name)
        if state.kind == "failed":
            raise InputError(f"{folder / cell.name} failed: {state.detail}; --retry tries it again")
    return replace(now, runs=tuple(str(folder / cell.name) for cell in wanted))
