"""Measure trained models with one instrument after the other, and show the results on one page.

    python -m papers.demo stories/kromhc runs/demo/lfa --out runs/demo/page
    python -m papers.demo runs/lfa --pairs 1000 --documents 200

Takes one run or several of one tokenizer. FOLDER/index.html is the page, complete in itself, with the command of every
section. The results lie next to it as parquet. Prompts are held-out minimal pairs of the built-in stories, documents
those that the run was validated on. A model of the zoo takes a minute on a core.
FOLDER/live.html is the live page of the first two runs. It needs the extra `view` and `python -m viewer.runtime`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from annotated_types import Ge

from streamscope.cli.bounds import Count
from streamscope.cli.parse import parse
from streamscope.cli.provenance import check_device
from streamscope.models.run_names import runs_of


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m papers.demo`."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN…")] = ()
    """Run folders, one or several."""
    out: Path = Path("runs/demo/page")
    """Folder for index.html and the results; files of these names in it are replaced."""
    pairs: Annotated[int, Ge(4)] = 600
    """Held-out minimal pairs of the stories, for the probes."""
    edited_pairs: Annotated[int, Ge(4)] = 80
    """Held-out minimal pairs to measure on while heads are turned off."""
    documents: Annotated[int, Ge(2)] = 100
    """Validation documents to measure the loss on without each head."""
    k: Count = 3
    """Number of heads to turn off together, those that follow a word's place most."""
    draws: Count = 39
    """Random sets of k heads to compare them with; with 39 the smallest p_rank is 0.05."""
    device: str = "auto"
    """auto, cpu or cuda."""

    def check_sources(self) -> None:
        """Raise `InputError` for a device or a run that is not there."""
        check_device(self.device)
        runs_of(self.runs)


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, then import what measures."""
    options = parse(Options, argv, __doc__)
    options.check_sources()
    from streamscope.papers.demo.report import measure

    measure(options)
