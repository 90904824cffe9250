"""Measure which tasks models do, and the circuits of those that they do.

    python -m papers.circuits --out results/circuits                            which tasks each bundled model does
    python -m papers.circuits stories/lfa --tasks stories name-copying --out results/circuits
    python -m papers.circuits runs/smollm2 --tasks ioi induction --out results/circuits
    python -m papers.circuits runs/long/lfa-s0 runs/long/lfa-s1 --tasks stories --out results/circuits

    ability     metric of the clean run, and its effect (clean − corrupted), with 95 % intervals. A model does a task if
                both intervals lie above 0
    circuits    of a model and a task: the fewest edges that carry .9 of the effect, CPR and CMD, and the same of random
                circuits. Half of the pairs choose the edges, the other half judge them
    streams     the share of the summed sizes of all scores, by the stream of the sender and by what reads
    overlap     Jaccard index of the best edges of two tasks, compared with chance and with two draws of one task
    seeds       the same of one task in two runs of one architecture, compared with two draws in one run
    contrasts   how much further apart the circuits of two tasks are in one architecture than in another, over their
                training seeds: the difference of the gap in `overlap`, paired by seed

The cost of a run is printed first. Its rows are written when all its tasks are measured. Until then each finished task
is kept in OUT/.parts, and the same command goes on from there. Rows of other runs stay.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from annotated_types import Ge

from streamscope.cli.parse import parse
from streamscope.interventions.circuits import Method


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m papers.circuits`."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Run folders, bundled models or hf:FOLDER; default: every bundled model."""
    tasks: tuple[str, ...] = ()
    """Tasks whose circuits are measured, in the runs that do them."""
    pairs: Annotated[int, Ge(16)] = 64
    """Approximate number of pairs of each task."""
    method: Method = "eap-ig"
    """How edges are scored, as in `interventions.circuits`."""
    out: Path
    """Folder for the tables."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, then import what measures."""
    options = parse(Options, argv, __doc__)
    from streamscope.papers.circuits.measure import measure

    measure(options)
