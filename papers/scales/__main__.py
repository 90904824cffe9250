"""Train the models that the papers need at a scale, for all papers or for some.

    python -m papers.scales zoo                     seed 0 of every arm first, in the order of claims
    python -m papers.scales zoo --papers lfa pls --seeds 1
    python -m papers.scales paper --train device=cuda --launch submitit --workers 8 --partition gpu
    python -m papers.scales zoo --status
    python -m papers.scales long --only krom-kromhc-s0 krom-kromhc-s1

--status names the runs, and the folder of `results` that has measurements of one. Afterwards
`python -m papers.lfa --scale zoo`, and so for every paper, measures and judges. Killed, the same command goes on. A
training that two papers need is done once, and one that the folder has already, as those of the bundled models, not
again.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from streamscope.cli.bounds import Count
from streamscope.cli.errors import unknown
from streamscope.cli.launch import LaunchOptions, is_worker, launch
from streamscope.cli.parse import command, parse
from streamscope.models.grid import begin, print_status, reopen, work
from streamscope.papers.scales.training import ORDER, Paper, all_cells, published


@dataclass(frozen=True, kw_only=True)
class Options(LaunchOptions):
    """Arguments of `python -m papers.scales`."""

    scale: Annotated[Literal["tiny", "eighth", "zoo", "long", "small", "paper"], tyro.conf.Positional]
    """tiny: a test; eighth: the bundled models, an eighth of their tokens; zoo: the bundled models; long: 8 to 16
    million tokens, more of them in windows of the whole context; small: width 192; paper: as printed."""
    papers: tuple[Paper, ...] = ORDER
    """Whose models; the scorecard has every architecture."""
    seeds: Count | None = None
    """Training seeds of every arm; by default as many as a paper's grid.toml says."""
    only: tuple[str, ...] = ()
    """Names of runs, as --status lists them: train these alone, in this order."""
    out: Path | None = None
    """Folder of the runs; default runs/SCALE."""
    threads: Count = 1
    """CPU threads of a training."""
    train: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """KEY=VALUE, an option of every training in place of the recipe's, as device=cuda."""
    retry: bool = False
    """Try trainings again that failed."""
    status: bool = False
    """Only say where the runs stand."""


def main(argv: Sequence[str] | None = None) -> None:
    """Train what is open, print the table. Raises `InputError` as the grid does."""
    options = parse(Options, argv, __doc__)
    out = options.out if options.out is not None else Path("runs") / options.scale
    wanted = all_cells(options.papers, options.scale, options.seeds, options.train)
    if options.only:
        by_name = {cell.name: cell for cell in wanted}
        for name in options.only:
            if name not in by_name:
                raise unknown("run", name, list(by_name))
        wanted = [by_name[name] for name in options.only]
    cells = list(dict.fromkeys(begin(wanted, out, write=not options.status)))
    if not options.status:
        if not is_worker(options):
            reopen(cells, out, retry=options.retry)
        words = sys.argv[1:] if argv is None else argv
        launch(options, "streamscope.papers.scales", words, logs=out / ".ledger" / "logs")
        work(cells, out, threads=options.threads, visible=not is_worker(options))
    if not is_worker(options):
        print_status(out, cells, published(out))


if __name__ == "__main__":
    command(main)
