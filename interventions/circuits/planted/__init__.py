"""Small models with weights written by hand, in which the edges that compute the answer are known.

    python -m interventions.circuits.planted --out runs/planted          five runs, one per topology, with noise .1
    python -m interventions.circuits.planted --figure auroc.html         AUROC of every method against noise

`datasets/planted` holds the specification and the card. An edge is true if patching it in the model without noise
changes the metric of a pair.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from streamscope.cli.bounds import NotNegative, Seed
from streamscope.cli.errors import InputError
from streamscope.cli.parse import parse
from streamscope.interventions.circuits.names import METHODS, Method


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m interventions.circuits.planted`."""

    out: Path | None = None
    """Folder for one run per circuit."""
    figure: Path | None = None
    """Write AUROC against noise here: .html, .svg, .pdf or .png; a .csv with the numbers lies next to it."""
    noise: tuple[NotNegative, ...] = (0.1,)
    """Rms of the noise in every weight, as a share of the rms of the planted weights that are not 0. The runs have the
    first, the figure has all."""
    methods: tuple[Method, ...] = METHODS
    """Methods of the curve."""
    seed: Seed = 0
    """Seed of the noise and the texts."""


def main(argv: Sequence[str] | None = None) -> None:
    """Write the runs, the figure, or both."""
    options = parse(Options, argv, __doc__)
    if options.out is None and options.figure is None:
        raise InputError("give --out FOLDER for the models, --figure FILE for AUROC against noise, or both")
    from streamscope.instruments.figures import check_figure
    from streamscope.interventions.circuits.planted.detection import detection
    from streamscope.interventions.circuits.planted.models import build_planted, specification

    if options.figure is not None:
        check_figure(options.figure)
    for name in specification()["circuits"] if options.out is not None else ():
        assert options.out is not None
        build_planted(name, options.noise[0], options.seed).save(options.out / name)
        print(f"written {options.out / name}")
    if options.figure is not None:
        result = detection(options.noise, options.methods, seed=options.seed)
        for path in result.save(options.figure.with_suffix(".csv"), figure=options.figure):
            print(f"written {path}")
