"""The runs that a paper's comparison needs at a scale: cells of a grid, trained where they are missing."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from streamscope.models.errors import InputError, unknown
from streamscope.models.grid import Cell, begin, cells_of, changed, read_grid, reopen, work
from streamscope.models.ledger import Ledger
from streamscope.papers.scales.options import ScaleOptions

Told = TypeVar("Told", bound=ScaleOptions)
PAPERS = Path(__file__).resolve().parents[1]


def cells(paper: str, scale: str, seeds: int, given: Sequence[str] = ()) -> list[Cell]:
    """The runs of a paper at a scale: every arm of its grid.toml, for seed 0 first, then for the next ones.

    An arm that has `scales` is one of these alone, as where a width divides by no such number of heads.
    `given` are KEY=VALUE in place of what the recipe says (`models.grid.changed`). Raises `InputError` for a scale that
    scales.toml does not have, and as `changed` does.
    """
    shared, grid = read_grid(PAPERS / "scales" / "scales.toml"), read_grid(PAPERS / paper / "grid.toml")
    if scale not in shared:
        raise unknown("scale", scale, list(shared))
    train = {"scale": scale, **shared[scale], **grid.get("scales", {}).get(scale, {})}
    arms = [dict(arm) for arm in grid["arms"]]
    mine = [arm for arm in arms if scale in arm.pop("scales", (scale,))]
    parts = [{**arm, "seeds": [seed]} for seed in range(seeds) for arm in mine]
    return [changed(cell, given) for cell in cells_of({"train": train, "parts": parts})]


def runs_of(paper: str, options: Told) -> Told:
    """The options with all runs of the paper, trained where they were missing, and with a folder for the page.

    Raises `InputError` for runs or tables beside --scale, and with the line of a training that failed.
    """
    scale = options.scale
    assert scale is not None
    if options.runs or options.tables is not None:
        raise InputError(f"--scale {scale} trains the runs itself: give it, run folders or --tables, one of them")
    folder = options.folder if options.folder is not None else Path("runs") / f"{paper}-{scale}"
    now = replace(options, out=options.out if options.out is not None else folder / "page")
    now.writable()
    found = cells(paper, scale, options.seeds, options.train)
    begin(found, folder)
    reopen(found, folder, retry=options.retry)
    work(found, folder)
    ledger = Ledger(folder / ".ledger")
    for cell in found:
        state = ledger.state(cell.name)
        if state.kind == "failed":
            raise InputError(f"{folder / cell.name} failed: {state.detail}; --retry tries it again")
    return replace(now, runs=tuple(str(folder / cell.name) for cell in found))
