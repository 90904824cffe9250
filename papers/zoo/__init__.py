"""Bundle trained runs with the package: weights, tokenizer, history and a card of scores.

    python -m papers.zoo lfa=runs/zoo/lfa-s0 std-t-rope=runs/zoo/std-t-rope-s0        what `make zoo` ends with

The bundled models are runs themselves: `python -m papers.zoo stories/lfa stories/std-t …` measures them again and
writes their cards anew, their weights stay unchanged (`make cards` does it for all).

NAME=RUN becomes a folder OUT/NAME that loads like a run (`load("stories/lfa")`), with README.md, its card, and
scores.json, what it says; OUT/README.md compares all models of OUT. Weights are rounded to bf16 once, and the rounded
ones are measured; of the history about 400 lines of training are kept. The name is the preset, or the preset and what
is other than in it (kromcanon-b2); RUN alone is called by its folder.
A card has the recipe and a line for each phenomenon of the competence gate (`probes.phenomena`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from streamscope.cli.bounds import Whole
from streamscope.cli.errors import InputError
from streamscope.cli.parse import parse


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m papers.zoo`."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN…")] = ()
    """NAME=RUN, or run folders that are named as the models are to be called."""
    snapshots: tuple[Whole, ...] = ()
    """Steps whose snapshots are bundled as well, of every run that is given."""
    out: Path = Path("models/zoo")
    """Folder of the bundle."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, check, measure, write."""
    options = parse(Options, argv, __doc__)
    if not options.runs:
        raise InputError("give runs: python -m papers.zoo NAME=RUN NAME=RUN …")

    from streamscope.papers.zoo.bundle import bundle_runs

    bundle_runs(options.runs, options.out, options.snapshots)
