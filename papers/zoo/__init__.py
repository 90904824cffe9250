"""Bundle trained runs with the package: weights, tokenizer, history, and a card of measured scores for each.

    python -m papers.zoo runs/zoo/lfa runs/zoo/std-t runs/zoo/d-cas runs/zoo/cfm        what `make zoo` ends with

The bundled models are runs themselves: `python -m papers.zoo stories/lfa stories/std-t …` measures them again and
writes their cards anew, their weights stay as they are (`make cards` does it for all).

Every run becomes a folder OUT/<name of the run's folder> that loads like a run (`load("lfa")`), with README.md, its
card; OUT/README.md compares them. Weights are rounded to bf16 once, and the rounded ones are measured. The name is the
preset, or the preset and what is other than in it (kromcanon-b2).
Scores are of held-out stories: combinations of nouns and verbs that no training story has. A coreference head is
chosen on one half of the cases and scored on the other, beside chance and the rules of position.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from streamscope.models.cli import parse
from streamscope.models.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m papers.zoo`."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Run folders, named as the models are to be called."""
    out: Path = Path("models/zoo")
    """Folder of the bundle."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, check, measure, write."""
    options = parse(Options, argv, __doc__)
    if not options.runs:
        raise InputError("give run folders: python -m papers.zoo RUN RUN …")

    from streamscope.papers.zoo.bundle import bundle_runs

    bundle_runs(options.runs, options.out)
